"""Maps that pass blocks from site to site around a ring."""

from __future__ import annotations

from einsql.ir.einsum.graph import EinSum
from einsql.ir.hints import Ring


def is_turn(node: EinSum) -> bool:
    """True for a map by which every site of a ring takes the block of its neighbour."""
    return len(node.operands) == 1 and any(isinstance(parts, Ring) for _, parts in node.hint)
