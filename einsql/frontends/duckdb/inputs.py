"""The rows of a query's tables, which DuckDB passes in parts while it runs a statement."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from einsql.errors import OperationalError
from einsql.frontends.duckdb.tables import TableSchema
from einsql.storage.out_of_memory import enough_memory
from einsql.storage.relation import Relation

_numbers = itertools.count(1)
_inputs: WeakValueDictionary[int, Input] = WeakValueDictionary()
"""The inputs of all queries, by number."""


class Input:
    """The rows of one table of a query.

    A statement that is interrupted leaves rows behind, and a prepared one runs again with the same
    input. Each scan of the table therefore has a number of its own.

    Attributes:
        schema: The columns.
        number: The number of the input, unique in the process.
    """

    def __init__(self, schema: TableSchema) -> None:
        self.schema = schema
        self.number = next(_numbers)
        self._parts: dict[int, list[list[pa.Array]]] = {}
        _inputs[self.number] = self

    def put(self, scan: int, columns: list[pa.Array]) -> None:
        """Keeps some rows of a scan; threads call it in any order."""
        self._parts.setdefault(scan, []).append(columns)

    def take(self, scan: int | None, rows: int) -> Relation:
        """The relation over the rows of a scan; drops the rows of all scans.

        Args:
            scan: The number of the scan; None for one without rows.
            rows: The number of its rows.

        Raises:
            DataError: A key or value is NULL.
            IntegrityError: A key is duplicate or negative.
        """
        parts = [] if scan is None else self._parts.pop(scan, [])
        self._parts = {}
        if sum(len(p[0]) for p in parts) != rows:
            raise OperationalError(f"DuckDB has not passed all rows of {self.schema.name}")
        with enough_memory:
            return self.schema.relation(self._columns(parts, rows))

    def _columns(self, parts: list[list[pa.Array]], rows: int) -> dict[str, np.ndarray]:
        # Parts come from several threads. In the order of their first keys, rows of a table in
        # the order of its keys need no scatter.
        keys = range(len(self.schema.keys))
        parts.sort(key=lambda part: [part[n][0].as_py() or 0 for n in keys])
        columns = {}
        for n, (column, dtype) in enumerate(self.schema.dtypes.items()):
            arrays = [part[n] for part in parts]
            self.schema.without_nulls(column, sum(a.null_count for a in arrays), rows)
            whole = [a.to_numpy(zero_copy_only=False) for a in arrays]
            columns[column] = np.concatenate([np.zeros(0, dtype.numpy), *whole], dtype=dtype.numpy)
        return columns


def put(*columns: pa.ChunkedArray) -> pa.Array:
    """A function of DuckDB: passes rows to an input.

    Args:
        columns: The number of the input, the number of the scan, and the columns of the rows.

    Returns:
        1 for each row.
    """
    number, scan, *values = [pa.concat_arrays(c.chunks) for c in columns]
    input_ = _inputs.get(number[0].as_py()) if len(number) else None
    if input_ is not None:  # else no plan reads the rows any more
        input_.put(scan[0].as_py(), values)
    return pa.array(np.ones(len(number), np.int64))


class Scans:
    """A table of one row with the number of a scan, which is another one each time."""

    schema: Any = pa.schema([("scan", pa.int64())])

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def reader(
        self, columns: Sequence[str] | None = None, where: Any = None
    ) -> pa.RecordBatchReader:
        """A reader of the row; see `streams.Readable`."""
        rows = pa.table([pa.array([next(self._numbers)], pa.int64())], schema=self.schema)
        found = rows if where is None else rows.filter(where)
        return (found if columns is None else found.select(columns)).to_reader()
