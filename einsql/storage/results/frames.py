"""The columns of a result over all rows: arrays of NumPy and DataFrames of pandas."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.schema import DType
from einsql.storage.arrow_arrays import arrow_array, arrow_lists
from einsql.storage.results.result import Result, ResultColumn
from einsql.storage.results.row_result_base import distinct_names

Column = tuple[ResultColumn, DType, np.ndarray, np.ndarray | None]
"""A column, its type, its values, and flags that are false where a value is NULL."""


def arrays_of(result: Result) -> dict[str, np.ndarray]:
    """Returns the columns as arrays by name, masked where a value is NULL.

    A repeated name gets a number, as in DuckDB. A LIST is an array of lists.
    """
    arrays = []
    for column, dtype, values, known in _columns(result):
        if column.over is not None:
            arrays.append(_listed(values, dtype, known))
        elif known is not None and not known.all():
            arrays.append(np.ma.masked_array(values, ~known))
        else:  # the caller may change an array, and some are the memory of a tensor
            arrays.append(values if values.base is None else values.copy())
    return dict(zip(distinct_names([c.name for c in result.columns]), arrays, strict=True))


def frame_of(result: Result) -> Any:
    """Returns the rows as a pandas DataFrame.

    As in DuckDB, a BOOLEAN or integer column with NULLs has pandas' nullable type.
    """
    import pandas as pd  # optional; the caller has checked that it is installed

    series: dict[int, Any] = {}
    for n, (column, dtype, values, known) in enumerate(_columns(result)):
        if column.over is not None:
            series[n] = _listed(values, dtype, known)
        elif known is not None and not known.all():
            if dtype is DType.BOOLEAN:
                series[n] = pd.arrays.BooleanArray(np.array(values), ~known)
            elif dtype.is_integer:  # a float would lose digits
                series[n] = pd.arrays.IntegerArray(np.array(values), ~known)
            else:
                series[n] = arrow_array(values, dtype, known).to_pandas()
        else:
            series[n] = values
    frame = pd.DataFrame(series, index=pd.RangeIndex(len(result)))
    frame.columns = distinct_names([c.name for c in result.columns])
    return frame


def _columns(result: Result) -> Iterator[Column]:
    fields = result.fields
    is_plain = fields.is_local and not fields.is_sparse and not result.has_lists
    if is_plain and result.dense_keys and result.schema.keys:
        yield from _dense_columns(result)
        return
    for column, values in zip(result.columns, result.table(), strict=True):
        yield (column, *values)


def _dense_columns(result: Result) -> Iterator[Column]:
    """The columns of a result that has every key: the keys count, the values are read in order."""
    keys = result.schema.keys
    shape = result.schema.shape
    for column in result.columns:
        if column.key is not None:
            axis = next(n for n, k in enumerate(keys) if k.name == column.key)
            counted = np.arange(keys[axis].lo, keys[axis].hi)
            along = counted.reshape([-1 if n == axis else 1 for n in range(len(keys))])
            yield column, column.dtype, np.broadcast_to(along, shape).reshape(-1), None
            continue
        assert column.field is not None
        values = loaded(result.fields[column.field], column.dtype)
        known = None if result.never_null(column.field) else result.known(column.field)
        yield (
            column,
            column.dtype,
            np.broadcast_to(values, shape).reshape(-1),
            None if known is None else np.broadcast_to(known, shape).reshape(-1),
        )


def _listed(values: np.ndarray, dtype: DType, known: np.ndarray | None) -> np.ndarray:
    flags = np.ones(values.shape, np.bool_) if known is None else known
    lists: np.ndarray = arrow_lists(values, dtype, flags).to_numpy(zero_copy_only=False)
    return lists
