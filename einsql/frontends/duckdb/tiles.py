"""Tiles in DuckDB's columns: conversion from Arrow to arrays of equal shape, and back.

A tile is a STRUCT(shape INTEGER[], data DOUBLE[]) with its elements in row-major order. Lists
and ARRAYs, with one level of nesting per axis, are read as well. A number is a tile without axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.core.units import plural
from einsql.errors import DataError, ProgrammingError
from einsql.storage.relation import MAX_AXES

Shape = tuple[int, ...]

_READ_AS = {
    pa.bool_(): DType.BOOLEAN,
    pa.int8(): DType.TINYINT,
    pa.int16(): DType.INTEGER,
    pa.int32(): DType.INTEGER,
    pa.int64(): DType.BIGINT,
    pa.uint8(): DType.INTEGER,
    pa.uint16(): DType.INTEGER,
    pa.uint32(): DType.BIGINT,
    pa.float16(): DType.HALF,
    pa.float32(): DType.FLOAT,
    pa.float64(): DType.DOUBLE,
}
_FORMS = (
    "A tile is a list or an ARRAY of numbers, nested or not, or STRUCT(shape INTEGER[], data …[])."
)


@dataclass(frozen=True, slots=True)
class Column:
    """One argument of a call, with an array for each row.

    Attributes:
        flat: The elements of all rows.
        starts: The offset of each row's elements in `flat`.
        form: The index of each row's shape in `shapes`.
    """

    dtype: DType
    flat: np.ndarray
    starts: np.ndarray
    form: np.ndarray
    shapes: tuple[Shape, ...]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """The arrays of rows of one shape, stacked along a new first axis.

        Args:
            rows: The row numbers, at least one.

        Returns:
            An array of shape (rows, *shape); a view if the tiles are contiguous.
        """
        shape = self.shapes[self.form[rows[0]]]
        size, starts = prod(shape), self.starts[rows]
        first = int(starts[0])
        if np.array_equal(starts, first + size * np.arange(len(rows))):
            elements = self.flat[first : first + size * len(rows)]
        elif size <= 64:
            elements = self.flat[starts[:, None] + np.arange(size)]
        else:
            elements = np.empty((len(rows), size), self.flat.dtype)
            for n, start in enumerate(starts.tolist()):
                elements[n] = self.flat[start : start + size]
        return elements.reshape(len(rows), *shape)


@dataclass(frozen=True, slots=True)
class Lists:
    """An argument of an aggregate, with a list of arrays for each row.

    Attributes:
        items: The arrays of all lists.
        first: The index in `items` of the first array of each row's list.
        count: The number of arrays in each row's list.
    """

    items: Column
    first: np.ndarray
    count: np.ndarray


# ---- reading


def read(given: pa.Array, what: str) -> Column:
    """Reads a column of tiles without NULLs.

    Args:
        given: The Arrow column that DuckDB passes to a function.
        what: The name of the argument in error messages.

    Raises:
        ProgrammingError: The column has another type, or its nested lists are ragged.
        DataError: An element is NULL, or a shape does not match its data.
    """
    if pa.types.is_struct(given.type):
        return _structs(given, what)
    return _nested(given, what)


def read_lists(given: pa.Array, what: str) -> Lists:
    """Reads a column of lists of tiles; NULL tiles are omitted.

    Raises:
        ProgrammingError: The argument is no list of tiles.
        DataError: An element is NULL, or a shape does not match its data.
    """
    if not _is_list(given.type):
        raise ProgrammingError(
            f"{what} is no list of tiles", hint="list(tile) makes one of the tiles of a group."
        )
    inner, offsets = _unnested(given)
    lo, hi = int(offsets[0]), int(offsets[-1])
    inner, offsets = inner.slice(lo, hi - lo), offsets - lo
    if inner.null_count:
        there = np.asarray(inner.is_valid())
        offsets = np.concatenate([[0], np.cumsum(there)])[offsets]
        inner = inner.drop_null()
    return Lists(read(inner, what), offsets[:-1], np.diff(offsets))


def _is_list(kind: pa.DataType) -> bool:
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(is_type(kind) for is_type in lists)


def _unnested(lists: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """The flat elements of a column of lists, the offset of each list and the end offset."""
    if pa.types.is_fixed_size_list(lists.type):
        ends = lists.offset + np.arange(len(lists) + 1)
        return lists.values, ends * lists.type.list_size
    return lists.values, np.asarray(lists.offsets, np.int64)


def _nested(lists: pa.Array, what: str) -> Column:
    rows = len(lists)
    starts, spans = np.arange(rows), np.ones(rows, np.int64)
    extents: list[np.ndarray] = []
    level = lists
    while _is_list(level.type):
        _no_nulls(level, what)
        inner, offsets = _unnested(level)
        lengths = np.diff(offsets)
        head = lengths[np.minimum(starts, max(0, len(lengths) - 1))] if len(lengths) else spans * 0
        extent = np.where(spans > 0, head, 0)
        items = np.repeat(starts - np.cumsum(spans) + spans, spans) + np.arange(spans.sum())
        if not np.array_equal(lengths[items], np.repeat(extent, spans)):
            row = int(
                np.repeat(np.arange(rows), spans)[
                    np.argmax(lengths[items] != np.repeat(extent, spans))
                ]
            )
            raise DataError(
                f"{what} is no tensor in row {row + 1} of its chunk: its lists differ in length",
                hint="Lists within a tile have equal lengths.",
            )
        starts = np.where(spans > 0, offsets[np.minimum(starts, len(lengths))], 0)
        spans = spans * extent
        extents.append(extent)
        level = inner
    dtype, flat = _elements(level, what)
    if not extents:
        return Column(
            dtype=dtype, flat=flat, starts=starts, form=np.zeros(rows, np.intp), shapes=((),)
        )
    return Column(dtype, flat, starts, *_forms(np.stack(extents, axis=1)))


def _structs(structs: pa.StructArray, what: str) -> Column:
    """Reads a STRUCT(shape INTEGER[], data DOUBLE[]) with any numeric types."""
    names = [structs.type.field(n).name for n in range(structs.type.num_fields)]
    if sorted(names) != ["data", "shape"]:
        raise ProgrammingError(
            f"{what} is a STRUCT with {', '.join(names)}, which is no tile", hint=_FORMS
        )
    shape, data = (structs.flatten()[names.index(n)] for n in ("shape", "data"))
    if not _is_list(shape.type) or not _is_list(data.type):
        raise ProgrammingError(f"{what} has no lists as its shape and data", hint=_FORMS)
    for part in (shape, data):
        _no_nulls(part, what)
    inner, offsets = _unnested(data)
    if _is_list(inner.type):
        raise ProgrammingError(
            f"The data of {what} is a list of lists", hint="It is one list, in row-major order."
        )
    dtype, flat = _elements(inner, what)
    form, shapes = _shapes(shape)
    if any(n is None or not 0 <= n < 2**31 for s in shapes for n in s):
        raise DataError(f"An extent in a shape of {what} is negative, NULL or beyond INTEGER")
    if any(len(s) >= MAX_AXES for s in shapes):
        raise DataError(f"{what} has a shape with {MAX_AXES} axes or more")
    sizes = np.array([prod(s) for s in shapes], np.int64)[form]
    lengths = np.diff(offsets)
    if not np.array_equal(sizes, lengths):
        row = int(np.argmax(sizes != lengths))
        raise DataError(
            f"{what} has the shape {list(shapes[form[row]])} and {plural(lengths[row], 'element')}",
            hint=f"That shape has {sizes[row]}.",
        )
    return Column(dtype=dtype, flat=flat, starts=offsets[:-1], form=form, shapes=shapes)


def _shapes(lists: pa.Array) -> tuple[np.ndarray, tuple[Shape, ...]]:
    """The shapes in a column of integer lists without NULLs, in the format of `_forms`."""
    inner, offsets = _unnested(lists)
    ranks = np.diff(offsets)
    if inner.null_count == 0 and len(ranks) and (ranks == ranks[0]).all():
        flat = np.asarray(inner, np.int64)[offsets[0] : offsets[-1]]
        return _forms(flat.reshape(len(ranks), ranks[0]))
    return numbered(lists.to_pylist())


def numbered(shapes: Sequence[Any]) -> tuple[np.ndarray, tuple[Shape, ...]]:
    """The index of each row's shape, and the distinct shapes."""
    known: dict[Shape, int] = {}
    form = np.array([known.setdefault(tuple(s), len(known)) for s in shapes], np.intp)
    return form, tuple(known)


def _forms(extents: np.ndarray) -> tuple[np.ndarray, tuple[Shape, ...]]:
    """Like `numbered`, for shapes of one rank, which are the rows of a matrix."""
    if len(extents) and (extents == extents[0]).all():
        return np.zeros(len(extents), np.intp), (tuple(extents[0].tolist()),)
    distinct, form = np.unique(extents, axis=0, return_inverse=True)
    return form.reshape(-1), tuple(map(tuple, distinct.tolist()))


def _no_nulls(array: pa.Array, what: str) -> None:
    if array.null_count:
        raise DataError(
            f"{what} holds NULL", hint="A tile may be NULL, its elements may not: COALESCE them."
        )


def _elements(array: pa.Array, what: str) -> tuple[DType, np.ndarray]:
    _no_nulls(array, what)
    kind = array.type
    if pa.types.is_null(kind):  # an empty list without an element type
        return DType.DOUBLE, np.zeros(0)
    if pa.types.is_decimal(kind):
        array, kind = array.cast(pa.float64()), pa.float64()
    dtype = _READ_AS.get(kind)
    if dtype is None:
        raise ProgrammingError(
            f"{what} has elements of type {kind}, which is no type of tensors", hint=_FORMS
        )
    elements = array.to_numpy(zero_copy_only=False)
    return dtype, np.asarray(elements, dtype.numpy)


# ---- rows of equal shapes


def groups(columns: Sequence[Column]) -> Iterator[np.ndarray]:
    """Groups of row numbers whose arrays have equal shapes; a row is in one group."""
    rows = len(columns[0].form)
    code = np.zeros(rows, np.int64)
    for c in columns:
        code = code * len(c.shapes) + c.form
    if rows and (code == code[0]).all():
        yield np.arange(rows)
        return
    for value in np.unique(code):
        yield np.flatnonzero(code == value)


# ---- conversions


def numbers(column: pa.Array) -> np.ndarray:
    """The numbers of tiles without axes, as DOUBLEs.

    Raises:
        ProgrammingError: A tile has axes.
    """
    tiles = read(column, "The argument of tensor_value")
    if any(tiles.shapes[n] for n in np.unique(tiles.form)):
        shape = next(s for s in tiles.shapes if s)
        raise ProgrammingError(
            f"tensor_value takes a tile without axes, not one of shape {list(shape)}",
            hint="tile.data[1] is the first element of any tile.",
        )
    return np.asarray(tiles.flat[tiles.starts], np.float64)


def reshaped(column: Column, shapes: Sequence[Any]) -> Column:
    """The elements of a column with other shapes, one shape for each row.

    Raises:
        DataError: A shape has another number of elements.
    """
    form, known = numbered(shapes)
    for n, (old, new) in enumerate(zip(column.form, shapes, strict=True)):
        if any(e is None or e < 0 for e in new) or prod(tuple(new)) != prod(column.shapes[old]):
            raise DataError(
                f"tensor_of cannot give row {n + 1} of its chunk the shape {list(new)}: it has "
                f"{plural(prod(column.shapes[old]), 'element')}"
            )
    return Column(
        dtype=column.dtype, flat=column.flat, starts=column.starts, form=form, shapes=known
    )
