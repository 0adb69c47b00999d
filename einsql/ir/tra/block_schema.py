"""Types of tensor relations: the existing keys, and the record of arrays under each key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise, product
from math import prod

import numpy as np

from einsql.core.boxes import common_volumes, split
from einsql.core.records import dataclass
from einsql.core.schema import DType, Field
from einsql.core.tables import Table
from einsql.core.units import plural
from einsql.errors import DataError, InternalError, ProgrammingError
from einsql.ir.einsum.evaluation import expression_value, same
from einsql.ir.einsum.graph import Expr, Label, Value

KeyTuple = tuple[int, ...]
"""The key of one (key, array) pair."""

Cuts = tuple[tuple[int, ...], ...]
"""For each axis the starts of its blocks, followed by the axis's exclusive upper bound."""

Domain = tuple[tuple[str, tuple[int, ...]], ...]
"""For each key dimension of a join's result the label that it cuts, and the boundaries of the
label's intervals as positions from the least value of the label."""


@dataclass(frozen=True, slots=True)
class Dim:
    """An axis of a relation's arrays: an interval of positions, by the values of key dimensions.

    The intervals of a cut are adjacent. They may also leave out parts of the axis of the tensor
    (a slice) or overlap (a window with its halo). Tables have one entry for each combination of
    values of `keys`, the last one fastest. Key dimensions without effect are removed, so that
    equal axes compare equal.

    Attributes:
        extents: The numbers of elements.
        keys: The key dimensions that determine the interval; none if all intervals are equal.
        bounds: The number of values of each of `keys`.
        starts: The positions of the first elements in the tensor; None if the arrays have no
            positions in one tensor.
    """

    extents: tuple[int, ...]
    keys: tuple[int, ...] = ()
    bounds: tuple[int, ...] = ()
    starts: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        rows = [self.extents] if self.starts is None else [self.extents, self.starts]
        tables = np.array(rows, np.int64).reshape(len(rows), *self.bounds)
        kept = [n for n in range(len(self.keys)) if tables.size and _varies(tables, n + 1)]
        at = tuple(slice(None) if n in kept else 0 for n in range(len(self.keys)))
        tables = tables[(slice(None), *at)] if tables.size else np.zeros((len(rows), 1), np.int64)
        extents, *starts = tables.reshape(len(rows), -1).tolist()
        object.__setattr__(self, "extents", tuple(extents))
        object.__setattr__(self, "bounds", tuple(self.bounds[n] for n in kept))
        object.__setattr__(self, "keys", tuple(self.keys[n] for n in kept))
        object.__setattr__(self, "starts", tuple(starts[0]) if starts else None)

    @classmethod
    def of(cls, intervals: np.ndarray, keys: Sequence[int]) -> Dim:
        """The axis with given intervals.

        Args:
            intervals: int64, an axis for each key dimension, then `[lo, hi)`.
            keys: The key dimensions.
        """
        starts = intervals[..., 0].reshape(-1)
        extents = np.maximum(0, intervals[..., 1].reshape(-1) - starts)
        bounds = intervals.shape[:-1]
        return cls(tuple(extents.tolist()), tuple(keys), bounds, tuple(starts.tolist()))

    @property
    def relative(self) -> Dim:
        """The axis without positions."""
        return self if self.starts is None else Dim(self.extents, self.keys, self.bounds)

    @property
    def overlaps(self) -> bool:
        """True if two intervals have a position in common."""
        if self.starts is None:
            return False
        pairs = sorted((lo, lo + n) for lo, n in zip(self.starts, self.extents, strict=True) if n)
        return any(after < end for (_, end), (after, _) in pairwise(pairs))

    @property
    def cut(self) -> tuple[int, ...] | None:
        """The boundaries of intervals in order that cover an axis, as of a cut; None for others."""
        if self.starts is None or len(self.keys) > 1:
            return None
        ends = (0, *(lo + n for lo, n in zip(self.starts, self.extents, strict=True)))
        return ends if self.starts == ends[:-1] else None

    def within(self, extent: int) -> bool:
        """True if every interval is within 0 and an extent."""
        pairs = [] if self.starts is None else list(zip(self.starts, self.extents, strict=True))
        return bool(pairs) and all(lo >= 0 and lo + n <= extent for lo, n in pairs)

    def at(self, key: KeyTuple) -> int:
        """The axis's extent in the array under a key."""
        return self.extents[self._entry(key)]

    def interval(self, key: KeyTuple) -> tuple[int, int]:
        """The positions `[lo, hi)` of the array under a key."""
        n = self._entry(key)
        lo = 0 if self.starts is None else self.starts[n]
        return lo, lo + self.extents[n]

    def over(self, keys: np.ndarray) -> np.ndarray:
        """The axis's extent in the array under each key.

        Args:
            keys: int64 of shape (pairs, key dimensions).

        Returns:
            int64 of shape (pairs,).
        """
        return np.asarray(np.array(self.extents, np.int64)[self._entries(keys)])

    def intervals(self, keys: np.ndarray) -> np.ndarray:
        """The positions `[lo, hi)` of the array under each key, int64 of shape (pairs, 2)."""
        starts = np.zeros(len(keys), np.int64)
        if self.starts is not None:
            starts = np.array(self.starts, np.int64)[self._entries(keys)]
        return np.stack([starts, starts + self.over(keys)], axis=1)

    def renumbered(self, to: Sequence[int]) -> Dim:
        """The axis over other key dimensions; `to` has the new number of each old one."""
        return Dim(self.extents, tuple(to[k] for k in self.keys), self.bounds, self.starts)

    def _entry(self, key: KeyTuple) -> int:
        entry = 0
        for k, bound in zip(self.keys, self.bounds, strict=True):
            entry = entry * bound + key[k]
        return entry

    def _entries(self, keys: np.ndarray) -> np.ndarray:
        entries = np.zeros(len(keys), np.int64)
        for k, bound in zip(self.keys, self.bounds, strict=True):
            entries = entries * bound + keys[:, k]
        return entries


def _varies(tables: np.ndarray, axis: int) -> bool:
    return not np.array_equal(tables, np.broadcast_to(tables.take([0], axis), tables.shape))


Dims = tuple[Dim, ...]
"""The axes of a tensor in intervals."""


@dataclass(frozen=True, slots=True)
class BlockSchema:
    """The type of a tensor relation.

    Attributes:
        bounds: The number of values of each key dimension; keys start at 0.
        dims: The axes of the arrays.
        fields: The record of arrays under each key, all of one shape.
        existing: The existing keys in order, int64 of shape (pairs, key dimensions); None for
            all keys within the bounds (continuity).
    """

    bounds: tuple[int, ...]
    dims: tuple[Dim, ...]
    fields: tuple[Field, ...]
    existing: Table | None = None

    def __post_init__(self) -> None:
        if self.existing is not None and len(self.existing) == prod(self.bounds):
            object.__setattr__(self, "existing", None)

    @property
    def dtype(self) -> DType:
        """The type of the arrays' elements in a relation with one field.

        Raises:
            InternalError: The relation has several fields.
        """
        if len(self.fields) != 1:
            raise InternalError(f"A relation of {len(self.fields)} fields has no single type")
        return self.fields[0].dtype

    @property
    def is_continuous(self) -> bool:
        """True if every key within the bounds exists."""
        return self.existing is None

    @property
    def count(self) -> int:
        """The number of pairs."""
        return prod(self.bounds) if self.existing is None else len(self.existing)

    def each_key(self) -> Iterator[KeyTuple]:
        """The existing keys, in order."""
        return map(tuple, self.key_array().tolist())

    def holes(self) -> Iterator[KeyTuple]:
        """The missing keys within the bounds, in order."""
        if self.existing is not None:
            existing = set(self.each_key())
            yield from (k for k in product(*map(range, self.bounds)) if k not in existing)

    def key_array(self) -> np.ndarray:
        """The existing keys in order, int64 of shape (pairs, key dimensions), read-only."""
        return every_key(self.bounds) if self.existing is None else self.existing.array

    def shape(self, key: KeyTuple) -> tuple[int, ...]:
        """The shape of the array under a key."""
        return tuple(d.at(key) for d in self.dims)

    @property
    def shares_keys(self) -> bool:
        """True if a key dimension cuts several axes, so that the arrays form no grid."""
        keys = [k for d in self.dims for k in d.keys]
        return len(set(keys)) < len(keys)

    @property
    def overlaps(self) -> bool:
        """True if arrays overlap, as the halos of a window do."""
        if not self.shares_keys or any(d.starts is None for d in self.dims):
            return any(d.overlaps for d in self.dims)
        boxes = self.boxes()
        shared = common_volumes(boxes[:, None], boxes[None])
        np.fill_diagonal(shared, 0)
        return bool(shared.any())

    def boxes(self) -> np.ndarray:
        """The positions of every array, int64 (keys, axes, 2)."""
        keys = self.key_array()
        boxes = np.empty((len(keys), len(self.dims), 2), np.int64)
        for n, dim in enumerate(self.dims):
            boxes[:, n] = dim.intervals(keys)
        return boxes

    def box(self, key: KeyTuple) -> np.ndarray:
        """The positions of the array under a key, int64 (axes, 2)."""
        return np.array([d.interval(key) for d in self.dims], np.int64).reshape(-1, 2)


@lru_cache(maxsize=64)
def every_key(bounds: tuple[int, ...]) -> np.ndarray:
    """All keys within bounds in order, int64 of shape (pairs, key dimensions), read-only."""
    keys = np.indices(bounds, np.int64).reshape(len(bounds), prod(bounds)).T
    keys.flags.writeable = False
    return keys


GREATEST_CODE = 1 << 62
"""The maximum of keys within bounds that one int64 numbers."""


def codes(bounds: Sequence[int], *keys: np.ndarray) -> list[np.ndarray]:
    """Numbers of keys; they compare as the keys do.

    Args:
        bounds: The number of values of each key dimension.
        keys: Arrays of keys, int64 of shape (pairs, key dimensions).

    Returns:
        For each array the number of each key, int64 of shape (pairs,).
    """
    if prod(bounds) < GREATEST_CODE:
        strides = [prod(bounds[n + 1 :]) for n in range(len(bounds))]
        return [k @ np.array(strides, np.int64) for k in keys]
    numbers = np.unique(np.concatenate(keys), axis=0, return_inverse=True)[1].reshape(-1)
    return np.split(numbers, np.cumsum([len(k) for k in keys])[:-1])


def key_set(keys: np.ndarray, bounds: Sequence[int]) -> Table:
    """The distinct keys in order.

    Args:
        keys: int64 of shape (pairs, key dimensions), in any order.
        bounds: The number of values of each key dimension.
    """
    first = np.unique(codes(bounds, keys)[0], return_index=True)[1]
    return Table.of(keys[first])


def boundaries(extent: int, parts: int) -> tuple[int, ...]:
    """The starts of the blocks of an equal split, followed by the axis's extent."""
    return (*split(0, extent, parts)[:, 0].tolist(), extent)


def equal_cuts(what: str, shape: Sequence[int], parts: Sequence[int]) -> Cuts:
    """The cuts that split each axis of an array equally.

    Raises:
        ProgrammingError: Axes and parts differ in number, or a part is below 1.
    """
    if len(parts) != len(shape) or any(p < 1 for p in parts):
        raise ProgrammingError(
            f"{what} cannot cut an array of rank {len(shape)} into {shown(parts)} parts",
            hint="Give each axis a number of at least 1.",
        )
    return tuple(boundaries(n, p) for n, p in zip(shape, parts, strict=True))


def cut_dims(cuts: Cuts) -> tuple[Dim, ...]:
    """The axes of a tensor whose key i cuts axis i."""
    return tuple(Dim(sizes(c), (n,), (len(c) - 1,), c[:-1]) for n, c in enumerate(cuts))


def dim_bounds(dims: Sequence[Dim]) -> tuple[int, ...]:
    """The number of values of each key dimension of a tensor in intervals.

    Raises:
        ProgrammingError: A key dimension has two numbers of values, or cuts no axis.
    """
    bounds: dict[int, int] = {}
    for k, bound in (pair for d in dims for pair in zip(d.keys, d.bounds, strict=True)):
        if bounds.setdefault(k, bound) != bound:
            raise ProgrammingError(f"Key {k} takes {bounds[k]} and {plural(bound, 'value')}")
    if sorted(bounds) != list(range(len(bounds))):
        raise ProgrammingError(f"Only the keys {shown(sorted(bounds))} cut an axis")
    return tuple(bounds[k] for k in range(len(bounds)))


def sizes(cut: Sequence[int]) -> tuple[int, ...]:
    """Extents of the blocks between boundaries."""
    return tuple(b - a for a, b in pairwise(cut))


def dim_over(keys: np.ndarray, extents: np.ndarray, bounds: Sequence[int]) -> Dim | None:
    """The axis with an extent for each key.

    None if the extents depend on more than one key dimension.

    Args:
        keys: int64 of shape (pairs, key dimensions).
        extents: int64 of shape (pairs,).
        bounds: The number of values of each key dimension.
    """
    if len(np.unique(extents)) < 2:
        return Dim(tuple(extents[:1].tolist()) or (0,))
    for n, bound in enumerate(bounds):
        table = np.zeros(bound, np.int64)
        table[keys[:, n]] = extents
        if np.array_equal(table[keys[:, n]], extents):
            return Dim(tuple(table.tolist()), (n,), (bound,))
    return None


def key_label(number: int) -> Label:
    """The label of a key dimension in key functions and conditions."""
    return Label(f"k{number}")


def over_keys(expr: Expr, keys: np.ndarray) -> np.ndarray:
    """Evaluates a function of keys for each key.

    Args:
        expr: An expression over the labels `k0`, `k1`, …
        keys: int64 of shape (pairs, key dimensions).

    Returns:
        The value of each key.

    Raises:
        DataError: The expression divides by zero, overflows or casts a key that does not fit, for
            a key that no CASE or condition excludes.
    """
    columns = {f"k{n}": keys[:, n] for n in range(keys.shape[1])}

    def column(e: Label | Value) -> np.ndarray:
        if not isinstance(e, Label):
            raise InternalError("A function of keys reads values")
        return columns[e.name]

    try:
        with np.errstate(all="ignore"):
            computed = expression_value(expr, column, np.ones(len(keys), np.bool_), same)
    except DataError as error:
        raise DataError(f"{error.reason} in a function of keys") from None
    return np.broadcast_to(computed, (len(keys),))


def match_rows(
    operands: Sequence[BlockSchema], places: Sequence[tuple[int, ...]]
) -> tuple[np.ndarray, np.ndarray]:
    """The natural join of keys.

    Args:
        operands: The operands.
        places: For each key dimension of each operand the match's key dimension.

    Returns:
        The keys of the matches in order, int64 of shape (matches, key dimensions), and the
        positions of the joined keys among the keys of each operand, int64 of shape
        (matches, operands).
    """
    keys = np.zeros((1, 0), np.int64)
    rows = np.zeros((1, 0), np.int64)
    for operand, own in zip(operands, places, strict=True):
        right, width = operand.key_array(), keys.shape[1]
        common = [n for n, p in enumerate(own) if p < width]
        fresh = [n for n, p in enumerate(own) if p >= width]
        wanted, offered = codes(
            [operand.bounds[n] for n in common], keys[:, [own[n] for n in common]], right[:, common]
        )
        order = np.argsort(offered, kind="stable")
        offered = offered[order]
        first = np.searchsorted(offered, wanted, "left")
        count = np.searchsorted(offered, wanted, "right") - first
        left = np.repeat(np.arange(len(keys)), count)
        start = np.repeat(first - np.cumsum(count) + count, count)
        at = order[start + np.arange(len(left))]
        keys = np.concatenate([keys[left], right[at][:, fresh]], axis=1)
        rows = np.concatenate([rows[left], at[:, None]], axis=1)
    return keys, rows


def shown(key: Sequence[object]) -> str:
    """Formats a key or a shape for messages, as `<0, 1>`."""
    return f"<{', '.join(map(str, key))}>"
