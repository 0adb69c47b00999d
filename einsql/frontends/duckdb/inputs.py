"""The rows of a query's tables, which DuckDB passes while it runs a statement."""

from __future__ import annotations

import itertools
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from einsql.core.quoting import in_quotes
from einsql.core.schema import Field, Key, Schema
from einsql.errors import OperationalError
from einsql.frontends.duckdb.tables import TableSchema
from einsql.storage.fields import LocalFields
from einsql.storage.out_of_memory import enough_memory
from einsql.storage.relation import Relation

_numbers = itertools.count(1)
_inputs: WeakValueDictionary[int, Input] = WeakValueDictionary()
"""The inputs of all queries, by number."""

EXAMPLE = 10**7
"""Greatest number of elements of an example. They take no memory unless binding copies them."""
SYSTEM = "system.main"
"""The schema of DuckDB's functions; a macro of the user's may have the same name elsewhere."""
READ = "__einsql_read"
"""DuckDB's name of the function `read`."""


class Input:
    """A table that a query reads.

    A prepared statement passes the rows of the table each time it runs.
    """

    def __init__(self, schema: TableSchema) -> None:
        self._schema = schema
        self._number = next(_numbers)
        self._relation: Relation | None = None
        _inputs[self._number] = self

    def example(self, extent: int) -> Relation:
        """A relation of the types of the table, over zeros.

        Args:
            extent: The extent of each key.
        """
        keys = self._schema.keys
        extent = extent if extent ** len(keys) <= EXAMPLE else 1
        values = {c: t for c, t in self._schema.dtypes.items() if c not in keys}
        schema = Schema(
            tuple(Key(k, 0, extent) for k in keys), tuple(Field(c, t) for c, t in values.items())
        )
        zeros = {c: np.broadcast_to(t.numpy.type(0), schema.shape) for c, t in values.items()}
        return Relation(schema, LocalFields(zeros))

    @property
    def select(self) -> str:
        """A query of DuckDB's that passes all rows of the table, as one list."""
        casts = enumerate(self._schema.casts)
        row = ", ".join(f"c{n}: {cast}" for n, cast in casts)
        table = in_quotes(self._schema.name)
        rows = f"{SYSTEM}.list({{{row}}})"
        return f"SELECT {SYSTEM}.{READ}({self._number}, {rows}) FROM {table} AS __einsql_row"

    def fill(self, rows: pa.StructArray) -> None:
        """Keeps the rows of the table.

        Raises:
            DataError: A key or value is NULL.
            IntegrityError: A key is duplicate or negative.
        """
        with enough_memory:
            columns = {}
            fields = zip(self._schema.dtypes.items(), rows.flatten(), strict=True)
            for (column, dtype), array in fields:
                self._schema.without_nulls(column, array.null_count, len(array))
                columns[column] = np.asarray(array.to_numpy(zero_copy_only=False), dtype.numpy)
            self._relation = self._schema.relation(columns)

    @property
    def relation(self) -> Relation:
        """The relation over the rows that were passed last.

        A recursive query passes them once and scans the query several times.

        Raises:
            OperationalError: DuckDB has not passed the rows.
        """
        if self._relation is None:
            raise OperationalError(
                f"DuckDB has scanned einsql('…') before {self._schema.name}, which it reads",
                hint="edb.sql(…) reads tables first.",
            )
        return self._relation


def read(*columns: pa.ChunkedArray) -> pa.Array:
    """A function of DuckDB: passes the rows of a table to an input.

    Args:
        columns: The number of the input, and the list of the rows; NULL for a table without rows.

    Returns:
        0 for each row.
    """
    numbers, lists = [c.chunk(0) if c.num_chunks == 1 else c.combine_chunks() for c in columns]
    for n, number in enumerate(numbers.to_pylist()):
        own = _inputs.get(number)
        if own is not None:  # else no plan reads the rows any more
            own.fill(lists.slice(n, 1).flatten())
    return pa.array(np.zeros(len(numbers), np.int64))
