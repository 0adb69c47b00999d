"""A query of `einsql('…')` as a source that DuckDB scans; each scan runs the query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from einsql.core import forks
from einsql.core.quoting import in_quotes
from einsql.errors import Error
from einsql.frontends.duckdb import kernels
from einsql.frontends.duckdb.inputs import Input
from einsql.frontends.duckdb.rows import batches_of, column_type, tile_type
from einsql.frontends.duckdb.session import GivenScope, Session, bind_text, in_text
from einsql.planner.context import Context
from einsql.planner.queries import Bound, plan_query
from einsql.sql.scope.relation import Column, Relation, TileRelation, deduplicated
from einsql.storage.duckdb.pushdown import understood
from einsql.storage.results.result import Result
from einsql.storage.results.tile_result import TileResult

if TYPE_CHECKING:
    import pyarrow.dataset as ds

FAR = 2**62
"""Beyond all keys of tensors."""


class Query:
    """A bound query, an implementation of `streams.Readable`.

    A statement of DuckDB passes the rows of the query's tables to its inputs and then scans it.
    The scan binds the query again, over these rows and for the columns and the filter that DuckDB
    needs.

    Attributes:
        schema: The types of its columns.
        inputs: The tables of DuckDB that it reads, by name.
        on_scan: Callback at each scan.
    """

    def __init__(
        self,
        session: Session,
        text: str,
        bound: Bound,
        found: Mapping[str, object],
        inputs: Mapping[str, Input],
        external: bool,
        parameters: Sequence[object],
    ) -> None:
        self.schema = _schema(bound.relation)
        self.inputs = inputs
        self.on_scan: Callable[[], object] = lambda: None
        self._session = session
        self._text = text
        self._columns = _named(bound.relation)
        self._external = external
        self._parameters = parameters
        self._found = {n: a for n, a in found.items() if n not in inputs}
        self._refusal: forks.Refusal | None = None
        forks.register(self)

    def forked(self, refusal: forks.Refusal) -> None:
        """In a forked child: refuses to run."""
        self._refusal = refusal

    def reader(
        self, columns: Sequence[str] | None = None, where: ds.Expression | None = None
    ) -> pa.RecordBatchReader:
        """Runs the query; see `streams.Readable`.

        Raises:
            Error: The query fails.
        """
        self.on_scan()
        wanted = self.schema.names if columns is None else list(columns)
        schema = pa.schema([self.schema.field(n) for n in wanted])
        rows, names = self._result(wanted, where)
        batches = batches_of(rows, names, wanted, where)
        typed = (b if b.schema.equals(schema) else b.cast(schema) for b in batches)
        return pa.RecordBatchReader.from_batches(schema, typed)

    def _result(
        self, wanted: Sequence[str], where: ds.Expression | None
    ) -> tuple[Result | TileResult, tuple[str, ...]]:
        if self._refusal is not None:
            raise self._refusal()
        relations = {n: own.relation for n, own in self.inputs.items()}
        known = {**self._found, **relations}
        lower = {n.lower(): r for n, r in known.items()}
        scope = GivenScope(lambda name: known.get(name, lower.get(name.lower())), None)
        with (
            kernels.running,
            self._session.beside(scope, self._external, self._parameters) as context,
        ):
            bound, names = self._bound(context, wanted, where)
            return plan_query(context, bound).result(bound.inputs, context.tick), names

    def _bound(
        self, context: Context, wanted: Sequence[str], where: ds.Expression | None
    ) -> tuple[Bound, tuple[str, ...]]:
        """The query for some columns and a filter, and the names of its columns."""
        names = tuple(self.schema.names)
        fewer = self._columns and _narrowed(self._text, self._columns, wanted, where)
        if fewer:
            text, chosen = fewer
            try:
                return in_text(lambda own: bind_text(context, own), text), chosen
            except Error:  # the query cannot be a subquery, or it is wrong
                pass
        return in_text(lambda own: bind_text(context, own), self._text), names


def _schema(relation: Relation | TileRelation) -> pa.Schema:
    names = deduplicated([c.name for c in relation.columns])
    if isinstance(relation, Relation):
        types = [column_type(c.dtype, is_list=c.over is not None) for c in relation.columns]
    else:
        tile = tile_type(relation.node.schema.dtype)
        types = [tile if c.key is None else pa.int64() for c in relation.columns]
    return pa.schema(list(zip(names, types, strict=True)))


def _named(relation: Relation | TileRelation) -> tuple[Column, ...]:
    """The columns of a query over elements, by whose names a subquery can be read; or none."""
    if isinstance(relation, TileRelation):
        return ()
    names = [c.name for c in relation.columns]
    return relation.columns if deduplicated(names) == names else ()


def _narrowed(
    text: str, columns: Sequence[Column], wanted: Sequence[str], where: ds.Expression | None
) -> tuple[str, tuple[str, ...]] | None:
    """The query for the columns and the keys that a scan needs, and its columns; None for all."""
    names = tuple(c.name for c in columns)
    keys = {name: n for n, name in enumerate(c.name for c in columns if c.key is not None)}
    bounds = np.array([(-FAR, FAR)] * len(keys), np.int64).reshape(-1, 2)
    condition = understood(where, bounds, keys, names)
    limits = [
        f"{in_quotes(name)} {sign} {limit}"
        for name, n in keys.items()
        for sign, limit in ((">=", condition.box[n, 0]), ("<", condition.box[n, 1]))
        if abs(limit) != FAR
    ]
    used = condition.columns
    fewer = tuple(n for n in names if n in wanted or used is None or n in used) or names[:1]
    if fewer == names and not limits:
        return None
    # A comment may end the text.
    filtered = f"SELECT {', '.join(map(in_quotes, fewer))} FROM ({text}\n) AS einsql"
    return filtered + (f" WHERE {' AND '.join(limits)}" if limits else ""), fewer
