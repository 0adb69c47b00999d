"""Kernels: what runs a node of the EinSum graph on NumPy arrays."""

from einsql.kernels.dispatch.kernel import Fields, Kernel, Runner, Tick
from einsql.kernels.dispatch.registry import KERNELS, compile_node
from einsql.kernels.groups import find_groups, join

__all__ = ["KERNELS", "Fields", "Kernel", "Runner", "Tick", "compile_node", "find_groups", "join"]
