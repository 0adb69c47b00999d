"""Joins of sparse operands: the combinations of stored elements that agree in common labels.

Elements of the first operand are joined with the others one after another, the most selective
first: an operand whose labels are all known is looked up, and one with known labels is expanded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from einsql.core.records import dataclass
from einsql.core.sparse.compressed import Compressed, by_rows_of
from einsql.core.sparse.matrix import ROWS, ROWS_EACH
from einsql.core.sparse.numbering import numbers_of

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
        labels: The labels of the matrix's keys.
    """

    number: int
    matrix: Compressed
    labels: tuple[str, ...]

    def by(self, label: str) -> Side:
        """The side with a label as that of its rows; unchanged with one label or many rows."""
        if len(self.labels) == 1 or self.labels[0] == label:
            return self
        most = max(ROWS, ROWS_EACH * self.matrix.stored)
        if self.matrix.extents[self.labels.index(label)] > most:
            return self
        others = tuple(x for x in self.labels if x != label)
        axis = self.labels.index(label)
        return Side(self.number, by_rows_of(self.matrix, axis), (label, *others))

    @property
    def ends(self) -> np.ndarray:
        """The ends of the parts into which a join may divide it: of rows, or of each element."""
        return np.arange(self.matrix.stored + 1) if len(self.labels) == 1 else self.matrix.starts


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
    left = sorted(sides, key=lambda s: (not set(s.labels) & set(keys), s.matrix.stored))
    first = left.pop(0)
    by_key = next((x for x in keys if x in first.labels), first.labels[0])
    ordered, known = [first.by(by_key)], set(first.labels)
    while left:
        best = max(left, key=lambda s: (len(set(s.labels) & known), -s.matrix.stored))
        left.remove(best)
        common = [x for x in best.labels if x in known]
        ordered.append(best.by(common[0]) if len(common) == 1 else best)
        known |= set(best.labels)
    return ordered


def parts(ordered: Sequence[Side], divisible: bool = True) -> Iterator[Joined]:
    """The combinations, in parts of consecutive rows of the first side if they are divisible."""
    ends = ordered[0].ends
    waiting = [slice(0, len(ends) - 1)]
    while waiting:
        rows = waiting.pop()
        elements = slice(int(ends[rows.start]), int(ends[rows.stop]))
        try:
            joined = _joined(ordered, elements, divisible and rows.stop - rows.start > 1)
        except TooManyError:
            half = _half(ends, rows)
            waiting += [slice(half, rows.stop), slice(rows.start, half)]
            continue
        yield joined


def _half(ends: np.ndarray, rows: slice) -> int:
    """The row that divides the elements of rows evenly, with at least one row on each side."""
    first, last = int(ends[rows.start]), int(ends[rows.stop])
    middle = int(np.searchsorted(ends, (first + last) // 2))
    least, most = int(rows.start) + 1, int(rows.stop) - 1
    return min(max(middle, least), most)


def _joined(ordered: Sequence[Side], elements: slice, divisible: bool) -> Joined:
    """Joins a range of elements of the first side with the other sides.

    Raises:
        TooManyError: There are too many combinations, and the range can be divided.
    """
    first = ordered[0]
    count = elements.stop - elements.start
    if divisible and count > MOST:
        raise TooManyError
    places = dict(zip(first.labels, _places(first, elements), strict=True))
    joined = Joined(count, places, {first.number: first.matrix.values[elements]})
    for side in ordered[1:]:
        joined = _with(joined, side, divisible)
    return joined


def _places(side: Side, elements: slice | np.ndarray) -> list[np.ndarray]:
    """The position of each label at some elements of a side."""
    return [np.asarray(place[elements], np.int64) for place in side.matrix.positions]


def _with(joined: Joined, side: Side, divisible: bool) -> Joined:
    matrix = side.matrix
    common = [x for x in side.labels if x in joined.places]
    if len(common) == len(side.labels):
        at = matrix.numbers_at([joined.places[x] for x in side.labels])
        kept = joined.only(at >= 0)
        stored = matrix.values[at[at >= 0]]
        return Joined(kept.count, kept.places, {**kept.elements, side.number: stored})
    order: np.ndarray | None = None
    if common == [side.labels[0]]:
        rows = joined.places[side.labels[0]]
        firsts = matrix.starts[rows].astype(np.int64)
        counts = matrix.starts[rows + 1] - firsts
    elif common:
        order, firsts, counts = _found(joined, side, common)
    else:  # every element joins
        firsts = np.zeros(joined.count, np.int64)
        counts = np.full(joined.count, matrix.stored)
    total = int(counts.sum())
    if divisible and total > MOST:
        raise TooManyError
    old = np.repeat(np.arange(joined.count), counts)
    before = np.cumsum(counts) - counts
    at = np.arange(total) + np.repeat(firsts - before, counts)
    at = at if order is None else order[at]
    kept = joined.only(old)
    own = zip(side.labels, _places(side, at), strict=True)
    places = {**kept.places, **{x: place for x, place in own if x not in kept.places}}
    return Joined(total, places, {**kept.elements, side.number: matrix.values[at]})


def _found(
    joined: Joined, side: Side, common: Sequence[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the elements of a side that agree with combinations in some labels.

    Returns:
        An order of the elements, and in it the first element of each combination, and their
        number.
    """
    every = zip(side.labels, side.matrix.positions, side.matrix.extents, strict=True)
    known = [(place, extent) for x, place, extent in every if x in common]
    extents = tuple(extent for _, extent in known)
    here = numbers_of([place for place, _ in known], extents)
    asked = numbers_of([joined.places[x] for x in common], extents)
    order = np.argsort(here, kind="stable")
    ordered = here[order]
    firsts = np.searchsorted(ordered, asked)
    return order, firsts, np.searchsorted(ordered, asked, side="right") - firsts
