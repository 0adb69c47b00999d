"""Loops generated for a node and compiled by LLVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule

if TYPE_CHECKING:
    from einsql.ir.einsum.graph import EinSum
    from einsql.kernels.kernel import Runner
    from einsql.kernels.loops import generated as _generated
else:  # loaded when a node is first compiled, with the generator of loops
    _generated = LazyModule("einsql.kernels.loops.generated")


def compile_loops(node: EinSum) -> Runner:
    """Creates a generated kernel; see `generated.compile_loops`."""
    return _generated.compile_loops(node)
