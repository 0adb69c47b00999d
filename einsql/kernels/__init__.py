"""Kernels: functions over NumPy arrays that run a node of the EinSum graph, or a group of them."""

from einsql.kernels.groups import find_groups, join
from einsql.kernels.kernel import Arrays, Kernel, Runner, Tick
from einsql.kernels.registry import KERNELS, compile_node

__all__ = ["KERNELS", "Arrays", "Kernel", "Runner", "Tick", "compile_node", "find_groups", "join"]
