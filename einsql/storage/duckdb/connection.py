"""The DuckDB connection of a session."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar, cast

from einsql.core import forks
from einsql.core.settings import Settings
from einsql.errors import Error, OperationalError, ProgrammingError
from einsql.storage.duckdb.failures import is_given_up, translate, translated
from einsql.storage.duckdb.forwarded_settings import SETTINGS, passed_on
from einsql.storage.duckdb.guarded_connection import Access, Checked
from einsql.storage.duckdb.profiling import Profiling

if TYPE_CHECKING:
    import duckdb
    import numpy as np

T = TypeVar("T")

POLL = 0.05
"""Seconds between two looks at whether the session was interrupted."""

_REACHED = (
    "(database_name, schema_name) IN ((?, 'main'), ('temp', 'main'), "
    "(current_database(), current_schema()))"
)
"""Of tables that a name without a schema may mean."""


def names(con: duckdb.DuckDBPyConnection, database: str) -> set[str]:
    """Names, in small letters, of the tables and views in a database's main schema.

    Raises:
        Error: DuckDB cannot say.
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
    """A session's own connection to DuckDB, opened when something needs it.

    Args:
        open_: Gives the connection.
        settings: The session's, as they are at the moment.
        empty: Whether its database holds nothing before it is opened.
        least: Gives the least of the memory limits of all sessions of its database.
        scratch: The name of the directory for its temporary files.
        root: Gives the connection that lives as long as the database.
        access: Whether SQL may reach files, which all sessions of the database share.
        persist: Called when DuckDB may have committed something, before anybody is told.
        lose: Called with the reason when DuckDB has given its database up; may raise.

    Attributes:
        aborted: Whether a statement has failed so that the transaction can only be undone.
        names_changed: Whether the transaction may have made tables.
        dropped: Names of tables that it has dropped, perhaps, in small letters.
        registered: Names, in small letters, of temporary tables of rows that the session was given.
        asked: Whether DuckDB has run a statement of the user's since a loop last began to count.
        profiling: Whether the user's statements are profiled.
    """

    def __init__(
        self,
        open_: Callable[[], duckdb.DuckDBPyConnection],
        settings: Callable[[], Settings] = Settings,
        empty: bool = True,
        least: Callable[[int | None], int | None] = lambda limit: limit,
        scratch: str = "duckdb",
        root: Callable[[], duckdb.DuckDBPyConnection] | None = None,
        access: Access | None = None,
        persist: Callable[[], None] = lambda: None,
        lose: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._persist = persist
        self._lose = lose
        self._root = root or (lambda: self.con)
        self._open = open_
        self._settings = settings
        self._empty = empty
        self._least = least
        self._scratch = scratch
        self._told: set[str] = set()
        self._con: duckdb.DuckDBPyConnection | None = None
        self._access = access or Access()
        self._checked: Checked | None = None
        self._begun = False
        self._given: set[str] = set()
        self._name = ""
        self.aborted = self.names_changed = self.asked = False
        self.registered: set[str] = set()
        self.dropped: set[str] = set()
        self.profiling = Profiling()
        forks.register(self)

    def forked(self, refusal: forks.Refusal) -> None:
        """In a child of its process: leaves DuckDB's connection alone and opens no other."""
        forks.never_destroy(self._con)
        self._con, self._checked, self._empty = None, None, False
        self._open = self._root = refusal.refuse

    @property
    def database(self) -> str:
        """DuckDB's name for the session's own database, whatever USE selects."""
        _ = self.con
        return self._name

    @property
    def _holds_nothing(self) -> bool:
        return self._empty and self._con is None

    @property
    def con(self) -> duckdb.DuckDBPyConnection:
        """DuckDB's own connection; while external access is off, one that checks texts."""
        if self._con is None:
            con = self._open()
            self._name = str(con.execute("SELECT current_database()").fetchall()[0][0])
            for statement in SETTINGS:
                con.execute(statement)
            if self._begun:
                con.begin()
            self._con = con
            self.apply()
        if self._access.off:
            if self._checked is None:
                self._checked = Checked(self._con, self._access)
            return cast("duckdb.DuckDBPyConnection", self._checked)
        return self._con

    def apply(self) -> None:
        """Brings the session's settings to the connection, if it is open.

        Raises:
            Error: DuckDB cannot follow, as to another directory once it has used one.
        """
        if self._con is None:
            return
        settings = self._settings()
        wanted = passed_on(settings, self._least(settings.memory_limit), self._scratch)
        if settings.temp_directory:
            with suppress(OSError):  # DuckDB says so when it needs the directory
                os.makedirs(settings.temp_directory, exist_ok=True)
        for statement in wanted:
            if statement not in self._told:  # some cannot be said again
                with translated(statement):
                    self._con.execute(statement)
        self._told = set(wanted)
        self._access.off |= not settings.enable_external_access

    # ---- transactions

    @property
    def in_transaction(self) -> bool:
        """True between `begin` and `commit` or `rollback`."""
        return self._begun

    def begin(self) -> None:
        """Begins a transaction; one that needs DuckDB later begins there then.

        Whoever is interrupted here calls `rollback`.

        Raises:
            Error: DuckDB cannot.
        """
        self._begun = True  # before it is true: an interrupt must not leave DuckDB in one
        if self._con is not None:
            with translated(""):
                self._con.begin()

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
        if self._begun and self._con is not None:
            with translated(""):
                try:
                    if how == "commit":  # DuckDB's own hides that nothing is kept
                        self._refuse_lost()
                    getattr(self._con, how)()
                    self._persist()
                except Exception as error:
                    self._over()
                    with suppress(Exception):  # there is none any more
                        self._con.rollback()
                    self.failed(error)
                    raise
        self._over()  # after it is true, as in `begin`

    def _refuse_lost(self) -> None:
        self.failed()
        if self.aborted:
            raise OperationalError(
                "COMMIT has rolled the transaction back: a failed statement had aborted it",
                hint="BEGIN it anew.",
            )

    def _over(self) -> None:
        self.aborted = self.names_changed = False
        self.dropped = set()
        self._begun = False

    # ---- statements

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement and gives its rows.

        Raises:
            Error: DuckDB refuses it, or fails.
        """
        con = self.con
        with translated(sql):
            try:
                return con.execute(sql, list(parameters)).fetchall()
            except (Exception, KeyboardInterrupt) as error:
                self._abort()
                self.failed(error if isinstance(error, Exception) else None)
                raise

    def _abort(self) -> None:
        """Gives up a result of which not all is fetched; DuckDB runs nothing else beside it."""
        import duckdb  # it is open

        with suppress(duckdb.Error):
            self.con.abort()

    def failed(self, error: Exception | None = None) -> None:
        """A statement has failed: finds out whether the transaction is lost, or the database.

        Args:
            error: What DuckDB said.

        Raises:
            OperationalError: DuckDB could not write the file of the database, and gave it up.
        """
        import duckdb  # it is open

        if self._begun and self._con is not None:
            try:
                self._con.execute("SELECT 1").fetchall()
            except duckdb.Error:
                self.aborted = True
        if isinstance(error, duckdb.FatalException) and not is_given_up(error):
            self._lose(translate(error, "").reason)

    def refuse_aborted(self) -> None:
        """Refuses to go on in a transaction that can only be undone.

        Raises:
            OperationalError: It is one.
        """
        if self.aborted:
            raise OperationalError(
                "The transaction is aborted: a statement has failed in DuckDB",
                hint="ROLLBACK it; COMMIT would keep nothing of it.",
            )

    def give(self, name: str, function: Callable[[np.ndarray], np.ndarray]) -> None:
        """Gives DuckDB a function of a DOUBLE, once."""
        if name in self._given:
            return
        import pyarrow as pa  # only boundaries need it
        from duckdb.func import ARROW  # as `in_memory`

        def over_arrow(values: Any) -> Any:
            column = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
            mask = column.is_null().to_numpy(zero_copy_only=False)
            computed = function(column.fill_null(0.0).to_numpy(zero_copy_only=False))
            return pa.array(computed, type=pa.float64(), mask=mask)

        import duckdb  # it is open

        _ = self.con
        # Beside the transaction that may be running: what it made would go with a ROLLBACK.
        # DuckDB has the function for as long as the connection that gave it.
        with suppress(duckdb.CatalogException, duckdb.NotImplementedException):  # it is there
            self._root().create_function(name, over_arrow, ["double"], "double", type=ARROW)
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

    def names(self) -> set[str]:
        """Names, in small letters, of the tables and views in the session's own database."""
        return set() if self._holds_nothing else names(self.con, self.database)

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
        matches = self.execute(
            f"SELECT 1 FROM duckdb_tables() WHERE lower(table_name) = lower(?) AND {_REACHED} "
            "UNION ALL SELECT 1 FROM duckdb_views() WHERE lower(view_name) = lower(?) "
            f"AND {_REACHED} AND NOT internal",
            [name, self.database, name, self.database],
        )
        return bool(matches)

    def is_registered(self, name: str) -> bool:
        """True if a temporary table of the name was made of rows of Python's."""
        query = "SELECT 1 FROM duckdb_tables() WHERE lower(table_name) = ? AND temporary"
        low = name.lower()
        return low in self.registered and bool(self.execute(query, [low]))

    def columns(self, name: str) -> list[tuple[str, str]]:
        """The columns of a table with their types, as DuckDB writes these.

        Raises:
            Error: There is no such table.
        """
        with translated(""):
            quoted = name.replace('"', '""')
            relation = self.con.sql(f'FROM "{quoted}"')
            return [(c, str(t)) for c, t in zip(relation.columns, relation.types, strict=True)]

    def rows(self, name: str) -> int:
        """How many rows a table has."""
        quoted = name.replace('"', '""')
        return int(self.execute(f'SELECT count(*) FROM "{quoted}"')[0][0])

    def arrays(self, sql: str) -> list[np.ndarray]:
        """The columns that a query gives, in order; masked where there are NULLs.

        Raises:
            Error: DuckDB refuses it, or fails.
        """
        try:
            with translated(sql):
                return list(self.con.execute(sql).fetchnumpy().values())
        except (Error, KeyboardInterrupt):
            self._abort()
            raise

    @cached_property
    def aggregates(self) -> frozenset[str]:
        """Names of DuckDB's aggregates, in small letters."""
        rows = self.execute(
            "SELECT DISTINCT lower(function_name) FROM duckdb_functions() "
            "WHERE function_type = 'aggregate'"
        )
        return frozenset(row[0] for row in rows)

    def holds_catalog(self, database: str) -> bool:
        """True if another database that is attached holds objects of einsql's."""
        return bool(
            self.execute(
                "SELECT 1 FROM duckdb_tables() WHERE lower(database_name) = lower(?) "
                "AND schema_name = '__einsql' AND table_name = 'objects' AND estimated_size > 0",
                [database],
            )
        )

    def attached(self) -> list[str]:
        """Paths of the other files that are open for writing."""
        rows = self.execute(
            "SELECT path FROM duckdb_databases() "
            "WHERE path IS NOT NULL AND NOT readonly AND NOT internal AND database_name <> ?",
            [self.database],
        )
        return [str(path) for (path,) in rows]

    def leave_catalog(self) -> None:
        """Refuses a search path that leads into the catalog, and gives it up.

        Raises:
            ProgrammingError: It did.
        """
        if self.execute("SELECT 1 WHERE list_contains(current_schemas(false), '__einsql')"):
            name = self.database.replace('"', '""')
            self.execute(f'USE "{name}"')
            raise ProgrammingError("__einsql is einsql's own schema", hint="USE another one.")

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
        con, begun, done = self.con, threading.Event(), threading.Event()
        given_up, gate = threading.Event(), threading.Lock()
        returned: list[T] = []
        failed: list[BaseException] = []

        def worker() -> None:
            with gate:
                if given_up.is_set():
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
                given_up.set()
            # A child that `tick` has forked has no such thread.
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
            self._con = self._checked = None
