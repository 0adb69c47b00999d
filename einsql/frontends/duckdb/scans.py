"""A query of `einsql('…')` as a source that DuckDB scans; each scan runs the query."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import numpy as np
import pyarrow as pa

from einsql.core import forks
from einsql.core.quoting import in_quotes
from einsql.errors import Error, OperationalError
from einsql.frontends.duckdb import kernels
from einsql.frontends.duckdb.inputs import Input
from einsql.frontends.duckdb.rows import batches_of, stored_type, tile_type
from einsql.frontends.duckdb.session import GivenScope, Session, bind_text, in_text
from einsql.planner.context import Context
from einsql.planner.queries import Bound, plan_query
from einsql.sql.scope.relation import Column, Relation, TileRelation, deduplicated
from einsql.storage.duckdb.pushdown import understood
from einsql.storage.results.result import Result
from einsql.storage.results.tile_result import TileResult

if TYPE_CHECKING:
    import pyarrow.dataset as ds

_numbers = itertools.count(1)
_queries: WeakValueDictionary[int, Query] = WeakValueDictionary()
"""The queries of all plans of DuckDB, by number."""


class Query:
    """A bound query, an implementation of `streams.Readable`.

    A statement of DuckDB passes the rows of the query's tables to its inputs, then calls `read`,
    and then scans it. The scan binds the query again, over these rows and for the columns and the
    filter that DuckDB needs.

    Attributes:
        number: The number of the query, unique in the process.
        schema: The types of its columns.
        inputs: The tables of DuckDB that it reads, by name.
    """

    def __init__(
        self, session: Session, text: str, bound: Bound, found: Mapping[str, object],
        inputs: Mapping[str, Input],
    ) -> None:  # fmt: skip
        self.number = next(_numbers)
        self.schema = _schema(bound.relation)
        self.inputs = inputs
        self._session = session
        self._text = text
        self._found = {n: a for n, a in found.items() if n not in inputs}
        self._read: Mapping[str, object] | None = None if inputs else {}
        self._refusal: forks.Refusal | None = None
        _queries[self.number] = self
        forks.register(self)

    def forked(self, refusal: forks.Refusal) -> None:
        """In a forked child: refuses to run."""
        self._refusal = refusal

    def read(self, scans: Sequence[tuple[int, int | None]]) -> None:
        """Takes the rows of all inputs.

        Args:
            scans: The number of rows of each input, and the number of its scan.

        Raises:
            Error: The rows are no tensor.
        """
        self._read = {
            name: own.take(scan, rows)
            for (name, own), (rows, scan) in zip(self.inputs.items(), scans, strict=True)
        }

    def reader(
        self, columns: Sequence[str] | None = None, where: ds.Expression | None = None
    ) -> pa.RecordBatchReader:
        """A reader of the rows that satisfy a filter, which runs the query at its first batch."""
        wanted = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(n) for n in wanted])
        return pa.RecordBatchReader.from_batches(schema, self._batches(schema, where))

    def _batches(self, schema: pa.Schema, where: ds.Expression | None) -> Iterator[pa.RecordBatch]:
        result, names = self._result(schema.names, where)
        for batch in batches_of(result, names, schema.names, where):
            yield batch if batch.schema.equals(schema) else batch.cast(schema)

    def _result(
        self, wanted: Sequence[str], where: ds.Expression | None
    ) -> tuple[Result | TileResult, tuple[str, ...]]:
        if self._refusal is not None:
            raise self._refusal()
        relations = self._read
        if relations is None:
            raise OperationalError(
                "DuckDB has scanned einsql('…') before the tables that it reads",
                hint="edb.sql(…) reads them first.",
            )
        if self.inputs:
            self._read = None
        known = {n.lower(): r for n, r in {**self._found, **relations}.items()}
        scope = GivenScope(lambda name: known.get(name.lower()), None)
        with kernels.running, self._session.beside(scope) as context:
            bound, names = self._bound(context, wanted, where)
            return plan_query(context, bound).result(bound.inputs, context.tick), names

    def _bound(
        self, context: Context, wanted: Sequence[str], where: ds.Expression | None
    ) -> tuple[Bound, tuple[str, ...]]:
        """The query for some columns and a filter, and the names of its columns."""
        names = tuple(self.schema.names)
        bound = in_text(lambda own: bind_text(context, own), self._text)
        asked = _narrowed(self._text, bound.relation, names, wanted, where)
        if asked is not None:
            text, fewer = asked
            try:
                return in_text(lambda own: bind_text(context, own), text), fewer
            except Error:  # the query cannot be a subquery
                pass
        return bound, names


def read(*columns: pa.ChunkedArray) -> pa.Array:
    """A function of DuckDB: all rows of a query's tables have been passed.

    Args:
        columns: The number of the query; for each input the number of rows and of the scan.

    Returns:
        0 for each row.
    """
    numbers, scans = [pa.concat_arrays(c.chunks) for c in columns]
    for number, own in zip(numbers.to_pylist(), scans.to_pylist(), strict=True):
        query = _queries.get(number)
        if query is not None:
            query.read([(rows, scan) for rows, scan in own])
    return pa.array(np.zeros(len(numbers), np.int64))


def _schema(relation: Relation | TileRelation) -> pa.Schema:
    names = deduplicated([c.name for c in relation.columns])
    if isinstance(relation, Relation):
        types = [_type(c) for c in relation.columns]
    else:
        tile = tile_type(relation.node.schema.dtype)
        types = [tile if c.key is None else pa.int64() for c in relation.columns]
    return pa.schema(list(zip(names, types, strict=True)))


def _type(column: Column) -> pa.DataType:
    kind = stored_type(column.dtype)
    return kind if column.over is None else pa.list_(kind)


def _narrowed(
    text: str,
    relation: Relation | TileRelation,
    names: tuple[str, ...],
    wanted: Sequence[str],
    where: ds.Expression | None,
) -> tuple[str, tuple[str, ...]] | None:
    """The query for the columns and the keys that a scan needs, and its columns; None for all."""
    if isinstance(relation, TileRelation) or names != tuple(c.name for c in relation.columns):
        return None
    keys = relation.node.schema.keys
    numbers = {k.name: n for n, k in enumerate(keys)}
    shown = {c.name: numbers[c.key] for c in relation.columns if c.key is not None}
    bounds = np.array([(k.lo, k.hi) for k in keys], np.int64).reshape(-1, 2)
    condition = understood(where, bounds, shown, names)
    limits = [
        f"{in_quotes(name)} BETWEEN {lo} AND {hi - 1}"
        for name, n in shown.items()
        for lo, hi in [condition.box[n].tolist()]
        if (lo, hi) != (keys[n].lo, keys[n].hi)
    ]
    used = condition.columns
    fewer = tuple(n for n in names if n in wanted or used is None or n in used) or names[:1]
    if fewer == names and not limits:
        return None
    columns = ", ".join(map(in_quotes, fewer))
    # A comment may end the text.
    filtered = f"SELECT {columns} FROM ({text}\n) AS einsql"
    return filtered + (f" WHERE {' AND '.join(limits)}" if limits else ""), fewer
