"""Guards as limits: for the points of a row, a condition on keys is a range of one label.

A point exists where every limit holds. A limit Σ factor · key + constant ≥ 0 over the keys
of a row and one label inside it says where that label begins or ends in the row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from einsql.ir.einsum.graph import Call, Const, EinSum, Expr, Label
from einsql.ir.einsum.intervals import can_raise


@dataclass(frozen=True, slots=True)
class Limit:
    """Σ factor · key + constant ≥ 0.

    Attributes:
        inner: The class of the label inside the row.
        rises: True if it bounds that label from below, False if from above.
        factors: Class and factor of each key of the row that counts.
        constant: The constant.
    """

    inner: int
    rises: bool
    factors: tuple[tuple[int, int], ...]
    constant: int

    def edge(self, bounds: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
        """Least and greatest place of the edge over all rows.

        The label's first value for a limit from below, the one behind its last otherwise.
        """
        sign = -1 if self.rises else 1
        at = [sign * self.constant + (not self.rises)] * 2
        for c, factor in self.factors:
            lo, hi = bounds[c]
            ends = sorted((sign * factor * lo, sign * factor * (hi - 1)))
            at = [at[0] + ends[0], at[1] + ends[1]]
        return at[0], at[1]


def limit(term: Expr, node: EinSum, own: Mapping[str, int], rows: Sequence[int]) -> Limit | None:
    """A term of a guard as a limit, or None if it is none.

    Args:
        term: A term that holds wherever a point exists.
        node: The node it belongs to.
        own: Class of each label.
        rows: Classes of the row.
    """
    if not isinstance(term, Call) or term.fn not in ("le", "lt"):
        return None
    if can_raise(term, {a.label: (a.lo, a.hi) for a in node.axes}):
        return None
    first, second = (_linear(a) for a in term.args)
    if first is None or second is None:
        return None
    factors: dict[int, int] = {}
    for sign, (parts, _) in ((1, second), (-1, first)):
        for label, factor in parts.items():
            c = own[label]
            factors[c] = factors.get(c, 0) + sign * factor
    constant = second[1] - first[1] - (term.fn == "lt")
    inner = [c for c, f in factors.items() if f and c not in rows]
    if len(inner) != 1 or abs(factors[inner[0]]) != 1:
        return None
    outer = tuple(sorted((c, f) for c, f in factors.items() if f and c in rows))
    return Limit(inner[0], factors[inner[0]] > 0, outer, constant)


def _linear(e: Expr) -> tuple[dict[str, int], int] | None:
    """An expression as factors of labels and a constant."""
    if isinstance(e, Label):
        return {e.name: 1}, 0
    if isinstance(e, Const):
        return ({}, int(e.value)) if e.dtype.is_integer else None
    if not isinstance(e, Call) or not e.dtype.is_integer:
        return None
    parts = [_linear(a) for a in e.args]
    known = [p for p in parts if p is not None]
    if len(known) < len(parts):
        return None
    if e.fn == "cast":
        return known[0]
    if e.fn == "neg":
        return _sum(({}, 0), known[0], -1)
    if e.fn in ("add", "sub"):
        return _sum(known[0], known[1], 1 if e.fn == "add" else -1)
    if e.fn == "mul":
        for scaled, other in (known, reversed(known)):
            if not other[0]:
                return _sum(({}, 0), scaled, other[1])
    return None


def _sum(
    a: tuple[dict[str, int], int], b: tuple[dict[str, int], int], by: int
) -> tuple[dict[str, int], int]:
    factors = dict(a[0])
    for label, factor in b[0].items():
        factors[label] = factors.get(label, 0) + by * factor
    return factors, a[1] + by * b[1]


def never_empty(limits: frozenset[Limit], bounds: Mapping[int, tuple[int, int]]) -> bool:
    """True if every row provably has a point within the limits."""
    below = [m for m in limits if m.rises]
    above = [m for m in limits if not m.rises]
    for c in {m.inner for m in limits}:
        lo, hi = bounds[c]
        if hi <= lo:
            return False
        if any(m.edge(bounds)[1] >= hi for m in below if m.inner == c):
            return False
        if any(m.edge(bounds)[0] <= lo for m in above if m.inner == c):
            return False
        for m in below:
            for n in above:
                if m.inner == n.inner == c and _least_gap(m, n, bounds) <= 0:
                    return False
    return True


def _least_gap(below: Limit, above: Limit, bounds: Mapping[int, tuple[int, int]]) -> int:
    """The least number of values between two limits over all rows."""
    factors = dict(above.factors)
    for c, f in below.factors:
        factors[c] = factors.get(c, 0) + f
    least = above.constant + 1 + below.constant
    for c, f in factors.items():
        lo, hi = bounds[c]
        least += min(f * lo, f * (hi - 1))
    return least
