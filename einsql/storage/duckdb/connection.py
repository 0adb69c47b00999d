"""The DuckDB connection of a session."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from einsql.core import forks
from einsql.core.lazy_module import LazyModule
from einsql.core.records import cached_property
from einsql.core.settings import Settings
from einsql.errors import Error, InterfaceError, OperationalError, ProgrammingError
from einsql.storage.duckdb.failures import is_invalidated, translate, translated
from einsql.storage.duckdb.guarded_connection import Access, GuardedConnection
from einsql.storage.duckdb.profiling import Profiling
from einsql.storage.duckdb.python_functions import PythonFunctions

if TYPE_CHECKING:
    import duckdb
    import numpy as np

    from einsql.storage.duckdb import forwarded_settings as _forwarded
else:  # loaded when DuckDB is opened
    _forwarded = LazyModule("einsql.storage.duckdb.forwarded_settings")

T = TypeVar("T")

POLL = 0.05
"""Seconds between two checks for cancellation."""

_IN_SEARCH_PATH = (
    "(database_name, schema_name) IN ((?, 'main'), ('temp', 'main'), "
    "(current_database(), current_schema()))"
)
"""Condition on the schemas in which DuckDB resolves an unqualified table name."""


def names(con: duckdb.DuckDBPyConnection, database: str) -> set[str]:
    """The lower-case names of the tables and views in a database's main schema.

    Raises:
        Error: DuckDB's catalog cannot be queried.
    """
    with translated(""):
        query = con.execute(
            "SELECT lower(table_name) FROM duckdb_tables() WHERE database_name = $1 "
            "AND schema_name = 'main' UNION SELECT lower(view_name) FROM duckdb_views() "
            "WHERE database_name = $1 AND schema_name = 'main' AND NOT internal",
            [database],
        )
        return {row[0] for row in query.fetchall()}


class Duck:
    """A session's connection to DuckDB, opened on first use.

    Args:
        open_: Opens the connection.
        settings: Returns the session's current settings.
        empty: Whether the database is empty when it is opened.
        least: Returns the least memory limit of all sessions of the database.
        scratch: The name of the directory for DuckDB's temporary files.
        temp_directory: Returns the directory of temporary files with which the database is opened.
        root: Returns the connection that stays open as long as the database.
        access: Access of SQL to files, shared by all sessions of the database.
        persist: Callback after DuckDB may have committed, before the commit is reported.
        on_invalidated: Callback with the reason after DuckDB has invalidated its database.

    Attributes:
        aborted: Whether a failed statement has aborted the transaction.
        names_changed: Whether the transaction may have created tables.
        dropped: Lower-case names of the tables that the transaction may have dropped.
        registered: Lower-case names of temporary tables created from rows of Python.
        asked: Whether DuckDB has run a statement of the user since a loop last reset the flag.
        profiling: The profiling of the user's statements.
    """

    def __init__(
        self,
        open_: Callable[[], duckdb.DuckDBPyConnection],
        settings: Callable[[], Settings] = Settings,
        empty: bool = True,
        least: Callable[[int | None], int | None] = lambda limit: limit,
        scratch: str = "duckdb",
        temp_directory: Callable[[], str] = str,
        root: Callable[[], duckdb.DuckDBPyConnection] | None = None,
        access: Access | None = None,
        persist: Callable[[], None] = lambda: None,
        on_invalidated: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._persist = persist
        self._on_invalidated = on_invalidated
        self._root = root or (lambda: self.con)
        self._open = open_
        self._settings = settings
        self._empty = empty
        self._least = least
        self._scratch, self._temp_directory = scratch, temp_directory
        self._applied: set[str] = set()
        self._con: duckdb.DuckDBPyConnection | None = None
        self._access = access or Access()
        self._guarded: GuardedConnection | None = None
        self._begun = False
        self.functions = PythonFunctions(self._registering)
        self._name = ""
        self.aborted = self.names_changed = self.asked = False
        self.registered: set[str] = set()
        self.dropped: set[str] = set()
        self.profiling = Profiling()
        forks.register(self)

    def forked(self, refusal: forks.Refusal) -> None:
        """After a fork, in the child: drops the connection without closing it."""
        forks.never_destroy(self._con)
        self._con, self._guarded, self._empty = None, None, False
        self._open = self._root = refusal.refuse

    @property
    def database(self) -> str:
        """DuckDB's name for the session's database, independent of USE."""
        _ = self.con
        return self._name

    @property
    def _is_empty(self) -> bool:
        return self._empty and self._con is None

    @property
    def con(self) -> duckdb.DuckDBPyConnection:
        """DuckDB's connection, or one that checks statements while external access is off."""
        if self._con is None:
            con = self._open()
            self._name = str(con.execute("SELECT current_database()").fetchall()[0][0])
            for statement in _forwarded.SETTINGS:
                con.execute(statement)
            if self._begun:
                con.begin()
            self._con = con
            self.apply()
        if self._access.off:
            if self._guarded is None:
                self._guarded = GuardedConnection(self._con, self._access)
            return cast("duckdb.DuckDBPyConnection", self._guarded)
        return self._con

    def apply(self) -> None:
        """Forwards the session's settings to the connection, if it is open.

        Raises:
            Error: DuckDB refuses a setting, such as a new temporary directory while one is in use.
        """
        if self._con is None:
            return
        settings, directory = self._settings(), self._temp_directory()
        limit = self._least(settings.memory_limit)
        statements = _forwarded.forwarded(settings, limit, self._scratch, directory)
        applied = self._applied or _forwarded.opened(directory)
        if settings.temp_directory:
            with suppress(OSError):  # DuckDB reports it when it needs the directory
                os.makedirs(settings.temp_directory, exist_ok=True)
        for statement in statements:
            if statement not in applied:  # DuckDB refuses to set some of them again
                with translated(statement):
                    self._con.execute(statement)
        self._applied = set(statements)
        self._access.off |= not settings.enable_external_access

    # ---- transactions

    @property
    def in_transaction(self) -> bool:
        """True between `begin` and `commit` or `rollback`."""
        return self._begun

    def begin(self) -> None:
        """Begins a transaction; if the connection is not open yet, DuckDB begins it on opening.

        The caller calls `rollback` after an interrupt.

        Raises:
            Error: DuckDB fails.
        """
        self._begun = True  # set first: after an interrupt `rollback` must end DuckDB's transaction
        if self._con is not None:
            with translated(""):
                self._con.begin()

    def commit(self) -> None:
        """Commits the transaction.

        Raises:
            Error: DuckDB fails; the transaction has ended.
        """
        self._end("commit")

    def rollback(self) -> None:
        """Rolls the transaction back."""
        self._end("rollback")

    def _end(self, how: str) -> None:
        if self._begun and self._con is not None:
            with translated(""):
                try:
                    if how == "commit":  # DuckDB's COMMIT would hide that it rolls back
                        self._refuse_aborted_commit()
                    getattr(self._con, how)()
                    self._persist()
                except Exception as error:
                    self._reset()
                    with suppress(Exception):  # the transaction has ended already
                        self._con.rollback()
                    self.failed(error)
                    raise
        self._reset()  # last, for the reason given in `begin`

    def _refuse_aborted_commit(self) -> None:
        self.failed()
        if self.aborted:
            raise OperationalError(
                "COMMIT has rolled the transaction back: a failed statement had aborted it",
                hint="BEGIN it anew.",
            )

    def _reset(self) -> None:
        self.aborted = self.names_changed = False
        self.dropped = set()
        self._begun = False

    # ---- statements

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement and returns its rows.

        Raises:
            Error: DuckDB refuses the statement, or fails.
        """
        with translated(sql):
            try:
                return self.con.execute(sql, list(parameters)).fetchall()
            except (Exception, KeyboardInterrupt) as error:
                self._abort()
                self.failed(error if isinstance(error, Exception) else None)
                raise

    def _abort(self) -> None:
        """Closes a partly fetched result, which blocks other statements of the connection."""
        import duckdb  # already loaded, as the connection is open

        with suppress(duckdb.Error):
            self.con.abort()

    def failed(self, error: Exception | None = None) -> None:
        """Detects whether a failure has aborted the transaction or invalidated the database.

        Args:
            error: DuckDB's exception.

        Raises:
            OperationalError: DuckDB could not write the database file and has invalidated it.
        """
        import duckdb  # already loaded, as the connection is open

        if self._begun and self._con is not None:
            try:
                self._con.execute("SELECT 1").fetchall()
            except duckdb.Error:
                self.aborted = True
        if isinstance(error, duckdb.FatalException) and not is_invalidated(error):
            self._on_invalidated(translate(error, "").reason)

    def refuse_aborted(self) -> None:
        """Refuses a statement in an aborted transaction.

        Raises:
            OperationalError: The transaction is aborted.
        """
        if self.aborted:
            raise OperationalError(
                "The transaction is aborted: a statement has failed in DuckDB",
                hint="ROLLBACK it; COMMIT would roll it back, too.",
            )

    def _registering(self, lasts: bool) -> Any:
        """The connection that registers a Python function, see `Registering`."""
        con = self.con
        return con if self._begun and not lasts else self._root()

    def tables(self) -> list[tuple[str, str]]:
        """The names of the tables, and their columns with types."""
        if self._is_empty:
            return []
        return self.execute(
            "SELECT table_name, string_agg(column_name || ' ' || data_type, ', ' ORDER BY "
            "column_index) FROM duckdb_columns() WHERE NOT internal AND table_oid IN "
            "(SELECT table_oid FROM duckdb_tables()) AND schema_name <> '__einsql' GROUP BY ALL"
        )

    def names(self) -> set[str]:
        """The lower-case names of the tables and views in the session's database."""
        return set() if self._is_empty else names(self.con, self.database)

    def definitions(self) -> list[tuple[str, str, str]]:
        """Name, kind and CREATE statement of each table and view."""
        if self._is_empty:
            return []
        return self.execute(
            "SELECT table_name, 'table', sql FROM duckdb_tables() WHERE NOT internal "
            "AND schema_name <> '__einsql' UNION ALL "
            "SELECT view_name, 'view', sql FROM duckdb_views() WHERE NOT internal "
            "AND NOT starts_with(view_name, '__einsql_')"
        )

    def has(self, name: str) -> bool:
        """True if DuckDB has a table or view of the name."""
        if self._is_empty:
            return False
        matches = self.execute(
            "SELECT 1 FROM duckdb_tables() WHERE lower(table_name) = lower(?) "
            f"AND {_IN_SEARCH_PATH} UNION ALL "
            "SELECT 1 FROM duckdb_views() WHERE lower(view_name) = lower(?) "
            f"AND {_IN_SEARCH_PATH} AND NOT internal",
            [name, self.database, name, self.database],
        )
        return bool(matches)

    def is_registered(self, name: str) -> bool:
        """True if the name is of a temporary table created from rows of Python."""
        query = "SELECT 1 FROM duckdb_tables() WHERE lower(table_name) = ? AND temporary"
        low = name.lower()
        return low in self.registered and bool(self.execute(query, [low]))

    def columns(self, name: str) -> list[tuple[str, str]]:
        """The columns of a table with DuckDB's names of their types.

        Raises:
            Error: The table does not exist.
        """
        with translated(""):
            quoted = name.replace('"', '""')
            relation = self.con.sql(f'FROM "{quoted}"')
            return [(c, str(t)) for c, t in zip(relation.columns, relation.types, strict=True)]

    def rows(self, name: str) -> int:
        """The number of rows of a table."""
        quoted = name.replace('"', '""')
        return int(self.execute(f'SELECT count(*) FROM "{quoted}"')[0][0])

    def arrays(self, sql: str) -> list[np.ndarray]:
        """The columns of a query's result in order, masked arrays where there are NULLs.

        Raises:
            Error: DuckDB refuses the statement, or fails.
        """
        try:
            with translated(sql):
                return list(self.con.execute(sql).fetchnumpy().values())
        except (Error, KeyboardInterrupt):
            self._abort()
            raise

    @cached_property
    def aggregates(self) -> frozenset[str]:
        """The lower-case names of DuckDB's aggregates."""
        # Not in the running transaction: it would not see functions that are registered later.
        listed = "SELECT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'"
        rows = self._registering(lasts=True).cursor().execute(listed).fetchall()
        return frozenset(name.lower() for (name,) in rows)

    def holds_catalog(self, database: str) -> bool:
        """True if an attached database has objects of einsql."""
        return bool(
            self.execute(
                "SELECT 1 FROM duckdb_tables() WHERE lower(database_name) = lower(?) "
                "AND schema_name = '__einsql' AND table_name = 'objects' AND estimated_size > 0",
                [database],
            )
        )

    def attached(self) -> list[str]:
        """The paths of the attached database files that are writable."""
        rows = self.execute(
            "SELECT path FROM duckdb_databases() "
            "WHERE path IS NOT NULL AND NOT readonly AND NOT internal AND database_name <> ?",
            [self.database],
        )
        return [str(path) for (path,) in rows]

    def leave_catalog(self) -> None:
        """Refuses a search path with einsql's catalog, and resets it.

        Raises:
            ProgrammingError: The search path contains the catalog's schema.
        """
        if self.execute("SELECT 1 WHERE list_contains(current_schemas(false), '__einsql')"):
            name = self.database.replace('"', '""')
            self.execute(f'USE "{name}"')
            raise ProgrammingError("__einsql is einsql's own schema", hint="USE another one.")

    def has_setting(self, name: str) -> bool:
        """True if DuckDB has a setting of the name."""
        return bool(self.execute("SELECT 1 FROM duckdb_settings() WHERE name = lower(?)", [name]))

    def refuse(self, name: str) -> None:
        """Refuses the name of a table for an object of einsql.

        Raises:
            ProgrammingError: A table has the name.
        """
        if self.has(name):
            raise ProgrammingError(
                f'There is a table "{name}" already',
                hint="DROP TABLE removes it, or take another name.",
            )

    def show(self, name: str, rows: object) -> None:
        """Registers a table of `readable_table` as a temporary view.

        Raises:
            InterfaceError: DuckDB cannot read it.
        """
        try:
            with translated(""):
                self.con.register(name, rows)
        except Error as error:
            kind = type(rows).__name__
            raise InterfaceError(f"The {kind} {name} is no table: {error.reason}") from None

    def hide(self, name: str) -> None:
        """Removes a view of `show`."""
        import duckdb  # already loaded, as the connection is open

        with suppress(duckdb.Error):  # an aborted transaction has dropped it
            self.con.unregister(name)

    @contextmanager
    def showing(self, relations: Mapping[str, object]) -> Iterator[None]:
        """Registers Arrow streams as views within the context."""
        shown = []
        try:
            for name, stream in relations.items():
                self.con.register(name, stream)
                shown.append(name)
            yield
        finally:
            for name in shown:
                self.hide(name)

    def run(self, work: Callable[[], T], tick: Callable[[float], None]) -> T:
        """Runs work on the connection in a thread, calling `tick` every `POLL` seconds.

        Args:
            work: A function that uses the connection.
            tick: Callback with DuckDB's completed fraction, 0 to 1; raises to cancel.

        Raises:
            Error: DuckDB fails, or is interrupted.
        """
        con, begun, done = self.con, threading.Event(), threading.Event()
        cancelled, gate = threading.Event(), threading.Lock()
        returned: list[T] = []
        failed: list[BaseException] = []

        def worker() -> None:
            with gate:
                if cancelled.is_set():
                    return
                begun.set()
            try:
                returned.append(work())
            except BaseException as error:
                failed.append(error)
            finally:
                done.set()

        try:  # Ctrl-C may come while the thread starts
            threading.Thread(target=worker, daemon=True).start()
            while not done.wait(POLL):
                tick(max(0.0, con.query_progress() / 100))
        except BaseException:
            with gate:
                cancelled.set()
            # The thread does not exist in a child process that `tick` has forked.
            while begun.is_set() and self._con is con and not done.wait(POLL):
                con.interrupt()
            raise
        if failed:
            raise failed[0]
        self._persist()
        return returned[0]

    def close(self) -> None:
        """Closes the connection."""
        if self._con is not None:
            self._con.close()
            self._con = self._guarded = None
