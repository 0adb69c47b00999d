"""Loops generated for a node and compiled by Numba."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from einsql.ir.einsum.graph import EinSum
    from einsql.kernels.kernel import Runner


def compile_loops(node: EinSum) -> Runner:
    """See `generated.compile_loops`; its module is loaded when a node is first compiled."""
    from einsql.kernels.loops.generated import compile_loops  # and the generator of loops

    return compile_loops(node)
