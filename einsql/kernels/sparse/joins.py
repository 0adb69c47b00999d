"""Joins of sparse operands: the combinations of stored elements that agree in common labels.

Rows of the first operand are joined with the others one after another, the most selective first:
an operand whose two labels are known is looked up, and one with a known label is expanded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from einsql.core.records import dataclass
from einsql.core.sparse.matrix import Compressed, transposed

MOST = 2**22
"""Combinations that are joined at a time: 64 bytes each, so that one step takes 256 MB."""


class TooManyError(Exception):
    """A part of the first operand has more than `MOST` combinations."""


@dataclass(frozen=True, slots=True)
class Side:
    """An operand of a join.

    Attributes:
        number: The number of the operand.
        matrix: The elements within the domain; its values are the numbers of the elements.
        rows, columns: The labels of its rows and columns.
    """

    number: int
    matrix: Compressed
    rows: str
    columns: str

    def by(self, label: str) -> Side:
        """The side with a label as that of its rows."""
        if self.rows == label:
            return self
        return Side(self.number, transposed(self.matrix), self.columns, self.rows)

    @property
    def labels(self) -> set[str]:
        """Both labels."""
        return {self.rows, self.columns}


@dataclass(frozen=True, slots=True)
class Joined:
    """Combinations of stored elements.

    Attributes:
        count: The number of combinations.
        places: The position of each label within its axis, for each combination.
        elements: The number of the element of each operand, for each combination.
    """

    count: int
    places: Mapping[str, np.ndarray]
    elements: Mapping[int, np.ndarray]

    def only(self, kept: np.ndarray) -> Joined:
        """The combinations that a mask or an order selects."""
        places = {x: a[kept] for x, a in self.places.items()}
        elements = {n: a[kept] for n, a in self.elements.items()}
        return Joined(len(next(iter(places.values()))), places, elements)


def order_of(sides: Sequence[Side], keys: Sequence[str]) -> list[Side]:
    """The sides in the order of the join, the first one by rows of a key where it has one.

    Args:
        sides: The sides, at least one.
        keys: The labels of the result; parts of a join over rows of a key have disjoint results.
    """
    left = sorted(sides, key=lambda s: (not s.labels & set(keys), s.matrix.stored))
    first = left.pop(0)
    by_key = next((x for x in keys if x in first.labels), first.rows)
    ordered, known = [first.by(by_key)], set(first.labels)
    while left:
        best = max(left, key=lambda s: (len(s.labels & known), -s.matrix.stored))
        left.remove(best)
        common = [x for x in (best.rows, best.columns) if x in known]
        ordered.append(best.by(common[0]) if len(common) == 1 else best)
        known |= best.labels
    return ordered


def parts(ordered: Sequence[Side], divisible: bool = True) -> Iterator[Joined]:
    """The combinations, in parts of consecutive rows of the first side if they are divisible."""
    waiting = [slice(0, ordered[0].matrix.shape[0])]
    while waiting:
        rows = waiting.pop()
        try:
            joined = _joined(ordered, rows, divisible and rows.stop - rows.start > 1)
        except TooManyError:
            half = _half(ordered[0].matrix, rows)
            waiting += [slice(half, rows.stop), slice(rows.start, half)]
            continue
        yield joined


def _half(matrix: Compressed, rows: slice) -> int:
    """The row that divides the elements of rows evenly, with at least one row on each side."""
    first, last = int(matrix.starts[rows.start]), int(matrix.starts[rows.stop])
    middle = int(np.searchsorted(matrix.starts, (first + last) // 2))
    least, most = int(rows.start) + 1, int(rows.stop) - 1
    return min(max(middle, least), most)


def _joined(ordered: Sequence[Side], rows: slice, divisible: bool) -> Joined:
    """Joins a range of rows of the first side with the other sides.

    Raises:
        TooManyError: There are too many combinations, and the range can be divided.
    """
    first = ordered[0]
    part = first.matrix.part(rows, slice(0, first.matrix.shape[1]))
    if divisible and part.stored > MOST:
        raise TooManyError
    places = {first.rows: part.rows + rows.start, first.columns: part.columns.astype(np.int64)}
    joined = Joined(part.stored, places, {first.number: part.values})
    for side in ordered[1:]:
        joined = _with(joined, side, divisible)
    return joined


def _with(joined: Joined, side: Side, divisible: bool) -> Joined:
    matrix = side.matrix
    if side.labels <= joined.places.keys():
        at = matrix.places(joined.places[side.rows], joined.places[side.columns])
        kept = joined.only(at >= 0)
        stored = matrix.values[at[at >= 0]]
        return Joined(kept.count, kept.places, {**kept.elements, side.number: stored})
    if side.rows in joined.places:
        rows = joined.places[side.rows]
        firsts = matrix.starts[rows].astype(np.int64)
        counts = matrix.starts[rows + 1] - firsts
    else:  # no label in common: every element joins
        firsts = np.zeros(joined.count, np.int64)
        counts = np.full(joined.count, matrix.stored)
    total = int(counts.sum())
    if divisible and total > MOST:
        raise TooManyError
    old = np.repeat(np.arange(joined.count), counts)
    before = np.cumsum(counts) - counts
    at = np.arange(total) + np.repeat(firsts - before, counts)
    kept = joined.only(old)
    places = {**kept.places, side.columns: matrix.columns[at].astype(np.int64)}
    if side.rows not in places:
        places[side.rows] = matrix.rows[at]
    return Joined(total, places, {**kept.elements, side.number: matrix.values[at]})
