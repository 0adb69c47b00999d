"""Types of tensor relations: the existing keys, and the record of arrays under each key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import prod

import numpy as np

from einsql.core.boxes import split
from einsql.core.mappings import grouped
from einsql.core.schema import DType, Field
from einsql.errors import DataError, InternalError, ProgrammingError
from einsql.ir.einsum.graph import Const, Expr, Label, Param, Value
from einsql.ir.functions.casts import evaluated, failure_of

KeyTuple = tuple[int, ...]
"""The key of one (key, array) pair."""

Cuts = tuple[tuple[int, ...], ...]
"""For each axis the starts of its blocks, followed by the axis's exclusive upper bound."""


@dataclass(frozen=True, slots=True)
class Dim:
    """An axis of a relation's arrays: one extent, or one per value of a key dimension.

    Equal extents are reduced to one extent, so that equal axes compare equal.
    """

    extents: tuple[int, ...]
    key: int | None = None

    def __post_init__(self) -> None:
        if len(set(self.extents)) < 2:
            object.__setattr__(self, "extents", self.extents[:1] or (0,))
            object.__setattr__(self, "key", None)

    def at(self, key: KeyTuple) -> int:
        """The axis's extent in the array under a key."""
        return self.extents[0] if self.key is None else self.extents[key[self.key]]


@dataclass(frozen=True, slots=True)
class BlockSchema:
    """The type of a tensor relation.

    Attributes:
        bounds: The number of values of each key dimension; keys start at 0.
        dims: The axes of the arrays.
        fields: The record of arrays under each key, all of one shape.
        existing: The existing keys; None for all keys within the bounds (continuity).
    """

    bounds: tuple[int, ...]
    dims: tuple[Dim, ...]
    fields: tuple[Field, ...]
    existing: frozenset[KeyTuple] | None = None

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
        if self.existing is None:
            return product(*map(range, self.bounds))
        return iter(sorted(self.existing))

    def holes(self) -> Iterator[KeyTuple]:
        """The missing keys within the bounds, in order."""
        existing = self.existing
        if existing is not None:
            every = product(*map(range, self.bounds))
            yield from (k for k in every if k not in existing)

    def key_array(self) -> np.ndarray:
        """The existing keys, int64 of shape (pairs, key dimensions)."""
        return np.array(list(self.each_key()), np.int64).reshape(self.count, len(self.bounds))

    def shape(self, key: KeyTuple) -> tuple[int, ...]:
        """The shape of the array under a key."""
        return tuple(d.at(key) for d in self.dims)


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
        return Dim(tuple(extents[:1].tolist()))
    for n, bound in enumerate(bounds):
        table = np.zeros(bound, np.int64)
        table[keys[:, n]] = extents
        if np.array_equal(table[keys[:, n]], extents):
            return Dim(tuple(table.tolist()), n)
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
        DataError: The expression divides by zero or overflows.
    """
    columns = {f"k{n}": keys[:, n] for n in range(keys.shape[1])}

    def value(e: Expr) -> np.ndarray:
        match e:
            case Const():
                return np.full(len(keys), e.value, e.dtype.carrier)
            case Label():
                return columns[e.name]
            case Value() | Param():
                raise InternalError("A function of keys reads values")
        args = [value(a) for a in e.args]
        failure = None if e.fn == "cast" else failure_of(e.fn, e.args[0].dtype, e.dtype)
        if failure is not None and np.any(failure.numpy(*args)):
            raise DataError(f"{failure.reason} in a function of keys")
        return np.asarray(evaluated(e.fn, args, e.dtype))

    with np.errstate(all="ignore"):
        return value(expr)


def matches(
    operands: Sequence[Iterable[KeyTuple]], places: Sequence[tuple[int, ...]]
) -> list[tuple[KeyTuple, tuple[KeyTuple, ...]]]:
    """The natural join of keys.

    Args:
        operands: The keys of each operand.
        places: For each key dimension of each operand the result's key dimension.

    Returns:
        The result's keys in order, each with the joined keys of the operands.
    """
    joined: list[tuple[KeyTuple, tuple[KeyTuple, ...]]] = [((), ())]
    width = 0
    for keys, own in zip(operands, places, strict=True):
        common = [n for n, p in enumerate(own) if p < width]
        fresh = [n for n, p in enumerate(own) if p >= width]
        index = grouped((tuple(key[n] for n in common), key) for key in keys)
        joined = [
            ((*old, *(key[n] for n in fresh)), (*parts, key))
            for old, parts in joined
            for key in index.get(tuple(old[own[n]] for n in common), ())
        ]
        width += len(fresh)
    return sorted(joined)


def shown(key: Sequence[object]) -> str:
    """Formats a key or a shape for messages, as `<0, 1>`."""
    return f"<{', '.join(map(str, key))}>"
