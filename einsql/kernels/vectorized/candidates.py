"""The values of groups that may be among the best ones, and their order."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from einsql.core.records import dataclass

CACHED = 1 << 16
"""Number of values that are searched together, so that they are in the cache at the second pass."""
SPREAD = 16
"""Parts of a group for each wanted value, of which only the extremes are ordered.

Random values have about `1 + 1 / SPREAD` candidates for each wanted one.
"""

PARTS = 4
"""As `SPREAD`, for groups of stored elements, which are short: ten nearest of 500 films, with 330
elements each, took 8.1, 9.9 and 10.8 ms with 4, 8 and 16 (`python -m benchmarks.recommender`)."""

TIED = 4
"""Candidates for each wanted value above which those equal to the last one are counted."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Values with the number of their group.

    Attributes:
        group: The number of each value's group.
        at: The position of each value, an index of each key of the element-wise node.
        elements: The numbers of the stored elements; None for values of an array.
    """

    group: np.ndarray
    at: tuple[np.ndarray, ...]
    elements: np.ndarray | None = None

    def of(self, array: np.ndarray) -> np.ndarray:
        """The values of a field of the element-wise node."""
        own: np.ndarray = array[self.at if self.elements is None else self.elements]
        return own

    def only(self, kept: np.ndarray | slice) -> Candidates:
        """Some of the values."""
        elements = None if self.elements is None else self.elements[kept]
        return Candidates(self.group[kept], tuple(a[kept] for a in self.at), elements)


@dataclass(frozen=True, slots=True)
class RowSearch:
    """The search for the values of each row that may be among the best.

    Attributes:
        wanted: The number of the best values.
        greatest: Whether greater values are better.
        first_ties: Whether the first ones of equal values are the best.
    """

    wanted: int
    greatest: bool
    first_ties: bool

    def candidates(self, array: np.ndarray, selected: np.ndarray | None, keys: int) -> Candidates:
        """The candidates of all rows.

        Args:
            array: The values; the first axes are those of the rows.
            selected: Which values are selected; the others have the worst value. None for all.
            keys: The number of the first axes.
        """
        shape = array.shape
        rows = np.ascontiguousarray(array).reshape(prod(shape[:keys]), prod(shape[keys:]))
        masks = None if selected is None else np.ascontiguousarray(selected).reshape(rows.shape)
        together = max(1, CACHED // max(1, rows.shape[1]))
        parts = []
        for start in range(0, len(rows), together):
            mask = None if masks is None else masks[start : start + together]
            chosen = self._chosen(rows[start : start + together], mask)
            parts.append(np.flatnonzero(chosen) + start * rows.shape[1])
        flat = np.concatenate(parts)
        return Candidates(flat // rows.shape[1], np.unravel_index(flat, shape))

    def _chosen(self, rows: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
        """The candidates of some rows, as flags."""
        if self.wanted >= rows.shape[1]:
            return np.ones(rows.shape, bool) if mask is None else mask
        bound = self._bound(rows)
        chosen = ~(rows < bound) if self.greatest else ~(rows > bound)
        if mask is not None:
            chosen &= mask
        if self.first_ties and np.count_nonzero(chosen) > TIED * self.wanted * len(rows):
            chosen = self._without_late_ties(rows, chosen)
        return chosen

    def _without_late_ties(self, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """The candidates without those equal to the last wanted value that come too late."""
        bound = self._nth(rows)
        if rows.dtype.kind == "f" and np.isnan(bound).any():
            return chosen
        equal = chosen & (rows == bound)
        better = chosen & ((rows > bound) if self.greatest else (rows < bound))
        if rows.dtype.kind == "f" and self.greatest:
            better |= chosen & np.isnan(rows)
        room = self.wanted - np.count_nonzero(better, axis=1)
        early = equal.cumsum(axis=1) <= room[:, None]
        return np.asarray(better | (equal & early))

    def _bound(self, rows: np.ndarray) -> np.ndarray:
        """A value of each row that `wanted` of its values reach; NaN is the greatest value."""
        terms = rows.shape[1]
        width = terms // (SPREAD * self.wanted)
        if width > 1:
            count = terms // width
            parts = rows[:, : count * width].reshape(len(rows), width, count)
            rows = parts.max(axis=1) if self.greatest else np.fmin.reduce(parts, axis=1)
        return self._nth(rows)

    def _nth(self, rows: np.ndarray) -> np.ndarray:
        place = rows.shape[1] - self.wanted if self.greatest else self.wanted - 1
        return np.asarray(np.partition(rows, place, axis=1)[:, place, None])


def codes_of(values: np.ndarray, greatest: bool) -> np.ndarray:
    """Integers in ascending order from the best value to the worst one, equal for equal values."""
    if values.dtype.kind == "f":
        size = max(4, values.itemsize)
        floats = np.add(values, 0, dtype=f"f{size}")  # -0 becomes 0
        unknown = np.isnan(floats)
        if unknown.any():
            floats[unknown] = np.nan
        bits = floats.view(f"i{size}")
        below = bits >> (8 * size - 1)  # all bits of negative numbers
        below &= np.iinfo(bits.dtype).max
        bits ^= below
        codes: np.ndarray = bits.astype(np.int64, copy=False)
    else:
        codes = values.astype(np.int64)
    if greatest:
        np.invert(codes, out=codes)
    return codes


def leading(
    group: np.ndarray, values: np.ndarray, wanted: int, greatest: bool
) -> np.ndarray | slice:
    """The values that may be among the best of their group, of groups one after another."""
    if (group[1:] < group[:-1]).any():
        return slice(None)
    firsts = np.flatnonzero(np.diff(group, prepend=-1))
    chosen = reaching(values, firsts, np.diff(firsts, append=len(group)), wanted, greatest)
    return slice(None) if chosen is None else chosen


def reaching(
    values: np.ndarray, firsts: np.ndarray, counts: np.ndarray, wanted: int, greatest: bool
) -> np.ndarray | None:
    """Flags of the values that may be among the best of their group; None for all of them.

    Each of `PARTS` parts for a wanted value has a best value. The last wanted one of these is a
    bound of the group. NaN is the greatest value, and a bound of NaN excludes no value.

    Args:
        values: The values of the groups, one group after another.
        firsts: The position of the first value of each group.
        counts: The number of values of each group.
        wanted: The number of the best values.
        greatest: Whether greater values are better.
    """
    parts = PARTS * wanted
    long = counts > parts
    if not long.any():
        return None
    begins = firsts[long, None] + counts[long, None] * np.arange(parts) // parts
    # The parts of a group end where the next long group begins, so other groups are left out.
    ends = (firsts + counts)[long]
    edges = np.append(begins, ends[:, None], axis=1).reshape(-1)
    edges = edges[:-1] if edges[-1] == len(values) else edges
    best = (np.maximum if greatest else np.fmin).reduceat(values, edges)
    best = np.resize(best, (len(ends), parts + 1))[:, :parts]
    place = parts - wanted if greatest else wanted - 1
    bounds = np.full(len(counts), worst_of(values.dtype, greatest), values.dtype)
    bounds[long] = np.partition(best, place, axis=1)[:, place]
    bound = np.repeat(bounds, counts)
    worse = values < bound if greatest else values > bound
    return np.logical_not(worse, out=worse)


def worst_of(dtype: np.dtype[Any], greatest: bool) -> float | int | bool:
    """The worst value of a type, besides NaN."""
    if dtype.kind == "b":
        return not greatest
    if dtype.kind == "f":
        return -np.inf if greatest else np.inf
    return int(np.iinfo(dtype).min if greatest else np.iinfo(dtype).max)


def order_of(group: np.ndarray, codes: np.ndarray, arguments: np.ndarray) -> np.ndarray:
    """The positions in the order of groups, codes and arguments."""
    if not len(group):
        return group
    low, high = int(codes.min()), int(codes.max())
    span = high - low + 1
    if span * (int(group.max()) + 1) >= 2**62:
        return np.lexsort((arguments, codes, group))
    places = group * span + (codes - low)
    follows = arguments[1:] >= arguments[:-1]
    if np.where(group[1:] == group[:-1], follows, group[1:] > group[:-1]).all():
        return np.argsort(places, kind="stable")
    return np.lexsort((arguments, places))
