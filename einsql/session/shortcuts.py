"""DuckDB's methods of a connection: relations, and fetches of the last result."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from einsql.core.lazy_module import LazyModule
from einsql.core.quoting import in_quotes
from einsql.errors import InterfaceError
from einsql.planner.outcome import Description, Rows
from einsql.session.cursor import Cursor, Parameters, Session
from einsql.session.tracebacks import guarded_methods

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from einsql.session import relation as _relations
    from einsql.session import sources as _sources
    from einsql.session.relation import Relation
    from einsql.session.sources import Source

    _Connection = Session
else:  # imported for relations
    _relations = LazyModule("einsql.session.relation")
    _sources = LazyModule("einsql.session.sources")
    _Connection = object  # a protocol would hide attributes


@guarded_methods("capturing", "fetchone")
class Shortcuts(_Connection):
    """DuckDB's methods of a connection besides `execute` and those of transactions."""

    _last: Rows | None = None
    """The result of the last `execute`, until a cursor fetches from it."""
    _reader: Cursor | None = None
    """The cursor that fetches from it for the connection."""

    # ---- relations

    def sql(self, query: str, *, params: Parameters = None, alias: str = "") -> Relation:
        """Returns the relation of a SELECT, which runs when its rows are fetched.

        Any other statement runs at once.

        Args:
            query: The statement.
            params: Values for `?`, `$1` and `$name`.
            alias: The name of the relation in queries over it.

        Raises:
            Error: The statement is wrong; the error has the position in the text.
        """
        source = _sources.source_of(query, params)
        return self._related(source, sys._getframe(1), alias)

    query = from_query = sql

    def table(self, name: str) -> Relation:
        """Returns the relation of a table, a tensor or a view."""
        source = _sources.source_of(f"SELECT * FROM {_sources.quoted_parts(name)}", None)
        return self._related(source, None, name.rpartition(".")[2])

    view = table

    def from_df(self, df: object) -> Relation:
        """Returns the relation of a DataFrame or an Arrow table; `from_arrow` is the same."""
        return self._related(_sources.rows_source(df), None)

    from_arrow = from_df

    def values(self, *rows: object) -> Relation:
        """Returns the relation of rows of values.

        Args:
            rows: A tuple or a list for each row; or the values of one row.

        Raises:
            InterfaceError: There are no values, or the rows differ in length.
        """
        return self._related(_sources.values_source(rows), None)

    def read_csv(self, path: _sources.Paths, **options: object) -> Relation:
        """Returns the relation of CSV files, with the options of DuckDB's read_csv."""
        return self._reading("read_csv", path, options)

    from_csv_auto = read_csv

    def read_parquet(self, path: _sources.Paths, **options: object) -> Relation:
        """Returns the relation of Parquet files, with the options of DuckDB's read_parquet."""
        return self._reading("read_parquet", path, options)

    from_parquet = read_parquet

    def read_json(self, path: _sources.Paths, **options: object) -> Relation:
        """Returns the relation of JSON files, with the options of DuckDB's read_json."""
        return self._reading("read_json", path, options)

    def append(self, table_name: str, df: object, *, by_name: bool = False) -> Self:
        """Inserts the rows of a DataFrame or an Arrow table into a table or a tensor.

        Args:
            table_name: The table.
            df: The rows.
            by_name: Whether columns are matched by name instead of position.
        """
        source = _sources.rows_source(df)
        into = f"INSERT INTO {in_quotes(table_name)}{' BY NAME' if by_name else ''} "
        with self.capturing(None, source.captured, ()):
            Cursor(self).run(into + source.text)
        return self

    def begin(self) -> Self:
        """Begins a transaction."""
        self.execute("BEGIN")
        return self

    @contextmanager
    def capturing(
        self, frame: FrameType | None, known: Mapping[str, object], parameters: Sequence[object]
    ) -> Iterator[dict[str, object]]:
        """Locks the connection for a statement, and records the variables that it reads.

        Args:
            frame: The caller's frame; None for no variables but the known ones.
            known: Variables that precede those of the frame, by their names.
            parameters: The values of the statement's parameters.
        """
        scope = self.context.scope
        with self.running(frame, parameters):
            before = scope.captured
            scope.captured = captured = dict(known)
            try:
                yield captured
            finally:
                scope.captured = before

    def _reading(
        self, function: str, path: _sources.Paths, options: Mapping[str, object]
    ) -> Relation:
        text = _sources.call_text(function, path, options)
        return self._related(_sources.source_of(text, None), None)

    def _related(self, source: Source, frame: FrameType | None, alias: str = "") -> Relation:
        self.check_open()
        return _relations.Relation(self, source, frame, alias)

    # ---- the last result

    def _keep(self, cursor: Cursor) -> Cursor:
        """Keeps a cursor's result for the fetches of the connection, until the cursor fetches."""
        self._last = cursor.shared(self._forget)
        return cursor

    def _forget(self) -> None:
        self._last = self._reader = None

    def _result(self) -> Cursor:
        self.check_open()
        if self._last is None:
            raise InterfaceError(
                "The connection has no results to fetch",
                hint="Fetch from what execute() returns, or execute a SELECT first.",
            )
        if self._reader is None:
            self._reader = Cursor.over(weakref.proxy(self), self._last)
        return self._reader

    @property
    def description(self) -> Description | None:
        """The description of the last result of `execute`; None without one."""
        return None if self._last is None else self._last.description

    @property
    def rowcount(self) -> int:
        """The number of rows of the last result of `execute`; -1 without one."""
        return -1 if self._last is None else len(self._last.result)

    def fetchone(self) -> tuple[Any, ...] | None:
        """Returns the next row of the last result of `execute`, or None."""
        return self._result().fetchone()

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """Returns the next rows of the last result of `execute`."""
        return self._result().fetchmany(size)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Returns the remaining rows of the last result of `execute`."""
        return self._result().fetchall()

    def fetch_df(self) -> Any:
        """Returns the last result of `execute` as a DataFrame; see `Cursor.fetch_df`."""
        return self._result().fetch_df()

    df = fetchdf = fetch_df

    def fetchnumpy(self) -> dict[str, np.ndarray]:
        """Returns the columns of the last result of `execute` as arrays by name."""
        return self._result().fetchnumpy()

    def fetch_numpy(self, *, fill: Any = None) -> Any:
        """Returns the last result of `execute` as an array over its keys."""
        return self._result().fetch_numpy(fill=fill)

    def torch(self) -> dict[str, Any]:
        """Returns the columns of the last result of `execute` as PyTorch tensors by name."""
        return self._result().torch()

    def pl(self) -> Any:
        """Returns the last result of `execute` as a polars DataFrame."""
        return self._result().pl()

    def fetch_arrow_table(self) -> pa.Table:
        """Returns the last result of `execute` as an Arrow table."""
        return self._result().fetch_arrow_table()

    to_arrow_table = fetch_arrow_table

    def arrow(self) -> pa.RecordBatchReader:
        """Returns the last result of `execute` as a reader of Arrow record batches."""
        return self._result().arrow()

    to_arrow_reader = arrow
