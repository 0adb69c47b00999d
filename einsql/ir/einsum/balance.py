"""Cuts by nonzeros: labels whose intervals have equally many elements of a sparse tensor.

The rows of a graph may have very different numbers of elements. Intervals of equal lengths would
leave most of the elements to one site. So a key of a sparse tensor is cut where its elements divide
evenly. Results inherit the intervals of their keys, so that their readers find them in place.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from einsql.core.records import dataclass
from einsql.core.sparse.pattern import Pattern
from einsql.ir.einsum.graph import EinSum, Input, Node


@dataclass(frozen=True, slots=True, eq=False)
class Balance:
    """A key of a sparse tensor whose elements decide where a label is cut.

    Attributes:
        pattern: The positions of the elements.
        axis: The number of the key.
        lo: The first value of the key.
    """

    pattern: Pattern
    axis: int
    lo: int

    def intervals(self, lo: int, hi: int, parts: int) -> np.ndarray:
        """Cuts the values `[lo, hi)` of the label, int64 (parts, 2)."""
        return self.pattern.balanced(self.axis, lo - self.lo, hi - self.lo, parts) + self.lo


def balance_of(tensor: Input, axis: int) -> Balance | None:
    """The balance of a key of a sparse tensor; None for other tensors."""
    if tensor.pattern is None or not tensor.sparse:
        return None
    return Balance(tensor.pattern, axis, tensor.schema.keys[axis].lo)


def balances_of(node: EinSum, known: Mapping[int, Mapping[str, Balance]]) -> Mapping[str, Balance]:
    """The balance of each free label of a node that has one.

    The largest sparse tensor decides, then the results that the node reads.

    Args:
        node: The node.
        known: The balances of the keys of earlier results, by the identity of their nodes.
    """
    sizes = [_stored(o.source) for o in node.operands]
    if not any(sizes) and not any(known.get(id(o.source)) for o in node.operands):
        return {}
    free = {a.label: (a.lo, a.hi) for a in node.axes if a.define is None}
    balances: dict[str, Balance] = {}
    for n in sorted(range(len(sizes)), key=lambda n: -sizes[n]):
        o = node.operands[n]
        for axis, (label, key) in enumerate(zip(o.labels, o.source.schema.keys, strict=True)):
            source = o.source
            balance = (
                balance_of(source, axis)
                if isinstance(source, Input)
                else known.get(id(source), {}).get(source.keys[axis])
            )
            lo, hi = free.get(label, (0, -1))
            if balance is not None and key.lo <= lo <= hi <= key.hi:
                balances.setdefault(label, balance)
    return balances


def _stored(tensor: Node) -> int:
    """The number of stored elements of a sparse tensor; 0 for other relations."""
    if not isinstance(tensor, Input) or tensor.pattern is None or not tensor.sparse:
        return 0
    return tensor.pattern.stored
