"""Exports results to files in pieces: arrays by boxes and rows by batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from einsql.core import boxes
from einsql.core.bfloat16 import loaded
from einsql.errors import DataError
from einsql.storage.files.tensor import Pieces
from einsql.storage.files.writing import Column
from einsql.storage.results.result import Result, ResultColumn

if TYPE_CHECKING:
    import pyarrow as pa

Tick = Callable[[float], None]
"""Callback with the completed fraction, 0 to 1; raises to cancel."""


def columns(result: Result, names: tuple[str, ...], named: bool, tick: Tick) -> tuple[Column, ...]:
    """The value columns as arrays with an axis for each key, in SELECT's order.

    Args:
        result: The result to write.
        names: The names of the arrays.
        named: Whether the user has set the names.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.

    Raises:
        DataError: A key is hidden, selected twice, absent or NULL, or no value is selected.
    """
    if result.hidden:
        raise DataError(
            f"The keys {', '.join(result.hidden)} are not selected, so rows are a bag",
            hint="Select them, or aggregate them away.",
        )
    values = [c for c in result.columns if c.field is not None]
    if not values:
        raise DataError("The result has keys only", hint="Select a value, too.")
    known = [k.name for k in result.schema.keys]
    axes = tuple(known.index(c.key) for c in result.columns if c.key is not None)
    if len(set(axes)) < len(axes):
        raise DataError("A key is selected twice", hint="An array has one axis for each key.")
    for c in values:
        assert c.field is not None
        if not result.dense_keys:
            raise DataError(
                "Some keys are absent, and an array has every element",
                hint="Insert the rows into a tensor with DEFAULT 0, whose keys all exist; or write "
                "a .csv or .parquet file, which contains rows.",
            )
        if not result.never_null(c.field):
            raise DataError(
                f"Some values of {c.name} are NULL, and an array has a number for every element",
                hint="COALESCE(…, 0) replaces NULLs; a .csv or .parquet file contains rows.",
            )
    share = 1 / len(values)
    return tuple(
        Column(
            name, c.dtype, partial(_pieces, result, c, axes, _shared(tick, n * share, share)), named
        )
        for n, (name, c) in enumerate(zip(names, values, strict=True))
    )


def shape(result: Result) -> tuple[int, ...]:
    """The shape of the arrays of `columns`."""
    extents = {k.name: k.extent for k in result.schema.keys}
    return tuple(extents[c.key] for c in result.columns if c.key is not None)


def batches(result: Result, tick: Tick) -> Iterator[pa.RecordBatch]:
    """The present rows in batches, ordered by key, with SELECT's columns."""
    done = 0
    for piece in result.pieces():
        yield from piece.batches()
        done += piece.schema.size
        tick(done / result.schema.size)


def matrix(result: Result) -> Result:
    """The result with the key columns first."""
    return replace(result, columns=tuple(sorted(result.columns, key=lambda c: c.key is None)))


def columnwise(result: Result, tick: Tick) -> Iterator[pa.RecordBatch]:
    """The elements of a dense matrix, column by column."""
    import pyarrow as pa  # takes 60 ms, and few callers need it

    *keys, value = result.columns
    transposed = replace(result, columns=(*keys[::-1], value))
    (column,) = columns(transposed, (value.name,), False, tick)
    for _, array in column.bytewise():
        flat = loaded(np.ascontiguousarray(array).reshape(-1), value.dtype)
        yield pa.record_batch([pa.array(flat)], [value.name])


def _shared(tick: Tick, start: float, share: float) -> Tick:
    return lambda fraction: tick(start + share * fraction)


def _pieces(
    result: Result, column: ResultColumn, axes: tuple[int, ...], tick: Tick, most: int
) -> Pieces:
    """The elements of a column by boxes, with the axes in the file's order."""
    assert column.field is not None
    origin = result.bounds[:, :1]
    extents = np.array(shape(result), np.int64)
    bounds = np.stack([np.zeros_like(extents), extents], axis=-1).reshape(-1, 2)
    done, size = 0, max(1, result.schema.size)
    for box in boxes.runs(bounds, most):
        keys = np.empty_like(box)
        keys[list(axes)] = box
        part = result.part(keys + origin, [column.field])
        array = part.fields[column.field].view(column.dtype.numpy).transpose(axes)
        yield box, array
        done += array.size
        tick(done / size)
