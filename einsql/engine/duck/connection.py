"""The DuckDB connection of a session."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from einsql.engine.duck.failures import translated
from einsql.errors import ProgrammingError
from einsql.settings import Settings

if TYPE_CHECKING:
    import duckdb
    import numpy as np

T = TypeVar("T")

POLL = 0.05
"""Seconds between two looks at whether the session was interrupted."""

SETTINGS = (
    "SET python_enable_replacements = false",
    "SET enable_progress_bar = false",
)
"""What a connection is set to when it is opened, beside what the session passes on."""


def passed_on(settings: Settings) -> list[str]:
    """Statements that bring the session's settings to DuckDB."""
    told = []
    if settings.memory_limit is not None:
        told.append(f"SET memory_limit = '{max(LEAST, settings.memory_limit // 2)}B'")
    if settings.temp_directory is not None:
        where = settings.temp_directory.replace("'", "''")
        told.append(f"SET temp_directory = '{where}'")
    if settings.max_temp_directory_size is not None:
        told.append(f"SET max_temp_directory_size = '{settings.max_temp_directory_size}B'")
    if not settings.enable_external_access:
        told.append("SET enable_external_access = false")
    return told


LEAST = 2**25
"""Bytes that DuckDB gets of any memory limit; it does little with fewer."""


class Duck:
    """A session's own connection to DuckDB, opened when something needs it.

    Args:
        open_: Gives the connection.
        settings: The session's, as they are at the moment.
        empty: Whether its database holds nothing before it is opened.
    """

    def __init__(
        self,
        open_: Callable[[], duckdb.DuckDBPyConnection],
        settings: Callable[[], Settings] = Settings,
        empty: bool = True,
    ) -> None:
        self._open = open_
        self._settings = settings
        self._empty = empty
        self._told: set[str] = set()
        self._con: duckdb.DuckDBPyConnection | None = None
        self._begun = False
        self._given: set[str] = set()

    @property
    def _holds_nothing(self) -> bool:
        return self._empty and self._con is None

    @property
    def con(self) -> duckdb.DuckDBPyConnection:
        """DuckDB's own connection."""
        if self._con is None:
            self._con = self._open()
            for statement in SETTINGS:
                self._con.execute(statement)
            self.apply()
            if self._begun:
                self._con.begin()
        return self._con

    def apply(self) -> None:
        """Brings the session's settings to the connection, if it is open."""
        if self._con is not None:
            for statement in passed_on(self._settings()):
                if statement not in self._told:  # some cannot be said again
                    self._con.execute(statement)
            self._told = set(passed_on(self._settings()))

    # ---- transactions

    @property
    def in_transaction(self) -> bool:
        """True between `begin` and `commit` or `rollback`."""
        return self._begun

    def begin(self) -> None:
        """Begins a transaction; one that needs DuckDB later begins there then."""
        if self._con is not None:
            self._con.begin()
        self._begun = True

    def commit(self) -> None:
        """Commits the transaction.

        Raises:
            Error: DuckDB cannot; the transaction is over.
        """
        self._end("commit")

    def rollback(self) -> None:
        """Undoes the transaction."""
        self._end("rollback")

    def _end(self, how: str) -> None:
        begun, self._begun = self._begun, False
        if not begun or self._con is None:
            return
        with translated(""):
            if how == "commit":
                try:
                    self._con.execute("SELECT 1").fetchall()  # COMMIT would hide a failure
                except Exception:
                    self._con.rollback()
                    raise
            getattr(self._con, how)()

    # ---- statements

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement and gives its rows.

        Raises:
            Error: DuckDB refuses it, or fails.
        """
        with translated(sql):
            return self.con.execute(sql, list(parameters)).fetchall()

    def give(self, name: str, function: Callable[[np.ndarray], np.ndarray]) -> None:
        """Gives DuckDB a function of a DOUBLE, once."""
        if name in self._given:
            return
        import pyarrow as pa  # only boundaries need it
        from duckdb.func import ARROW  # as `in_memory`

        def over_arrow(values: Any) -> Any:
            column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
            mask = column.is_null().to_numpy(zero_copy_only=False)
            found = function(column.fill_null(0.0).to_numpy(zero_copy_only=False))
            return pa.array(found, type=pa.float64(), mask=mask)

        self.con.create_function(name, over_arrow, ["double"], "double", type=ARROW)
        self._given.add(name)

    def tables(self) -> list[tuple[str, str]]:
        """Names of tables, and their columns with types."""
        if self._holds_nothing:
            return []
        return self.execute(
            "SELECT table_name, string_agg(column_name || ' ' || data_type, ', ' ORDER BY "
            "column_index) FROM duckdb_columns() WHERE NOT internal AND table_oid IN "
            "(SELECT table_oid FROM duckdb_tables()) AND schema_name <> '__einsql' GROUP BY ALL"
        )

    def definitions(self) -> list[tuple[str, str, str]]:
        """Names of tables and views, which of both they are, and what makes them."""
        if self._holds_nothing:
            return []
        return self.execute(
            "SELECT table_name, 'table', sql FROM duckdb_tables() WHERE NOT internal "
            "AND schema_name <> '__einsql' UNION ALL "
            "SELECT view_name, 'view', sql FROM duckdb_views() WHERE NOT internal "
            "AND NOT starts_with(view_name, '__einsql_')"
        )

    def has(self, name: str) -> bool:
        """True if a table or view of DuckDB has the name."""
        if self._holds_nothing:
            return False
        found = self.execute(
            "SELECT 1 FROM duckdb_tables() WHERE lower(table_name) = lower(?) "
            "AND schema_name <> '__einsql' UNION ALL "
            "SELECT 1 FROM duckdb_views() WHERE lower(view_name) = lower(?) AND NOT internal",
            [name, name],
        )
        return bool(found)

    @cached_property
    def aggregates(self) -> frozenset[str]:
        """Names of DuckDB's aggregates, in small letters."""
        rows = self.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
            "WHERE function_type = 'aggregate'"
        )
        return frozenset(row[0] for row in rows)

    def has_setting(self, name: str) -> bool:
        """True if DuckDB has a setting of the name."""
        return bool(self.execute("SELECT 1 FROM duckdb_settings() WHERE name = lower(?)", [name]))

    def refuse(self, name: str) -> None:
        """Refuses to give an object of einsql's the name of a table.

        Raises:
            ProgrammingError: There is one.
        """
        if self.has(name):
            raise ProgrammingError(
                f'There is a table "{name}" already',
                hint="DROP TABLE removes it, or take another name.",
            )

    @contextmanager
    def showing(self, relations: Mapping[str, object]) -> Iterator[None]:
        """Meanwhile DuckDB knows Arrow streams under their names."""
        shown = []
        try:
            for name, stream in relations.items():
                self.con.register(name, stream)
                shown.append(name)
            yield
        finally:
            import duckdb  # it is open

            for name in shown:
                with suppress(duckdb.Error):  # a transaction that failed has dropped it
                    self.con.unregister(name)

    def run(self, work: Callable[[], T], tick: Callable[[float], None]) -> T:
        """Does work on the connection in a thread, and asks `tick` meanwhile.

        `tick` is told how far DuckDB is; what it raises stops DuckDB and is raised here.

        Raises:
            Error: DuckDB fails, or is stopped.
        """
        con, done = self.con, threading.Event()
        found: list[T] = []
        failed: list[BaseException] = []

        def worker() -> None:
            try:
                found.append(work())
            except BaseException as error:
                failed.append(error)
            finally:
                done.set()

        thread = threading.Thread(target=worker, daemon=True)
        thread.start()
        try:
            while not done.wait(POLL):
                tick(max(0.0, con.query_progress() / 100))
        except BaseException:
            while not done.wait(POLL):
                con.interrupt()
            raise
        finally:
            thread.join()
        if failed:
            raise failed[0]
        return found[0]

    def close(self) -> None:
        """Closes the connection."""
        if self._con is not None:
            self._con.close()
            self._con = None
