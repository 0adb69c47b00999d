"""A database in a file: DuckDB's with tables and the catalog, payloads of tensors beside it.

DuckDB's commit is the commit. Before it, payloads are on the disk under their final names;
after it, the state in memory follows, and payloads that nobody can ask for any more go.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from einsql.engine.database import rows
from einsql.engine.database.directory import Directory
from einsql.engine.database.memory import Database, State, Written
from einsql.engine.database.payload import Layout
from einsql.engine.database.rows import Define, Row
from einsql.engine.database.stored import StoredFields
from einsql.engine.duck.connection import names
from einsql.engine.duck.failures import is_stopped
from einsql.engine.files.mapped import refusing
from einsql.engine.files.regular import check_regular
from einsql.engine.objects import Object, Tensor
from einsql.errors import Error, OperationalError

if TYPE_CHECKING:
    import duckdb

    from einsql.engine.duck.connection import Duck


class FileDatabase(Database):
    """An open database file, shared by every session of the process that uses it."""

    def __init__(self, path: str, read_only: bool, define: Define) -> None:
        """Opens a file, or makes it.

        Args:
            path: As the user named it.
            read_only: Whether other processes may read it too, and none may write.
            define: Makes definitions of their texts.

        Raises:
            OperationalError: Another process has it, it is no database, it has a newer format,
                or its payload directory is missing or another one's.
        """
        super().__init__()
        self.path: str = path
        self.read_only = read_only
        self.real = os.path.realpath(path)
        self._define = define
        self._directory = Directory(self.real)
        self._sessions: WeakSet[object] = WeakSet()
        self._pending: set[str] = set()
        self._held: WeakValueDictionary[int, StoredFields] = WeakValueDictionary()
        self._rows: dict[str, Row] = {}
        self._doubtful = False
        """Whether the state may be another one than the file's newest commit."""
        fresh = not read_only and not _there(self.real)
        self._root = _connected(path, self.real, read_only)
        try:
            with _refusing(path, "cannot be opened"):
                self._root.execute("SET enable_progress_bar = false")
                self._home = rows.home(self._root)
                self._identity = rows.identity_of(self._root, self._home, path, read_only)
                if self._identity is None and fresh:
                    self._directory.check("", False)
                    self._identity = rows.create(self._root, self._home)
                if self._identity is not None:
                    self._reread()
            if self._identity is not None:
                named = any(r.kind == "tensor" for r in self._rows.values())
                self._directory.check(self._identity, named)
                if not read_only:
                    self._sweep()
        except BaseException:
            self._root.close()
            raise

    # ---- sessions

    def join(self, session: object) -> None:
        """A session uses the database from now on."""
        with self.lock:
            self._opened()
            self._sessions.add(session)

    def leave(self, session: object) -> None:
        """A session is closed; the last one closes the file, which is free for others then."""
        with self.lock:
            self._sessions.discard(session)
            self._limits.pop(session, None)
            if not self._sessions:
                super().leave(session)

    def joined(self, session: object) -> bool:
        """As `join`; False if the last session is closed already."""
        with self.lock:
            if self._root is None:
                return False
            self._sessions.add(session)
            return True

    def connection(self) -> duckdb.DuckDBPyConnection:
        """A new DuckDB connection to the database's tables."""
        return self._cursor()

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        cursor = self._opened().cursor()
        cursor.execute("SET enable_progress_bar = false")  # it would write to the standard output
        return cursor

    def _opened(self) -> duckdb.DuckDBPyConnection:
        if self._root is None:
            raise OperationalError(f"'{self.path}' is closed")
        return self._root

    def touch(self, duck: Duck) -> None:
        """Has DuckDB take a transaction's snapshot of this database, whatever USE says."""
        known = self._identity is not None
        duck.execute(f"FROM {self._home}.format LIMIT 0" if known else "FROM duckdb_schemas()")

    # ---- commits

    def prepare(self) -> None:
        """Adds the catalog to a DuckDB file of others, which no running transaction would see.

        Raises:
            OperationalError: DuckDB's file cannot be written.
        """
        with self.lock:
            if self._identity is None and not self.read_only:
                self._directory.check("", False)
                with _refusing(self.path, "cannot be written"), self._cursor() as con:
                    # It is there already if who made it was interrupted.
                    known = rows.identity_of(con, self._home, self.path, False)
                    self._identity = known or rows.create(con, self._home)

    def commit(self, base: State, written: Written, duck: Duck) -> State:
        """Makes what a transaction did the newest state; see `Database.commit`.

        Raises:
            OperationalError: Another transaction changed the same objects first, or a payload
                or DuckDB's file cannot be written.
        """
        with self.lock:
            if self._doubtful:
                self._settle()
            self.refuse_conflicts(base, written)
        layouts: dict[str, Layout] = {}
        try:
            self._write(written, layouts)
            with self.lock:
                self.refuse_conflicts(base, written)
                if written or duck.in_transaction:
                    self._commit(base, written, layouts, duck)
                return self.state
        finally:
            with self.lock:
                self._pending.difference_update(x.file for x in layouts.values())
                if not self.read_only and written:
                    self._sweep()

    def _write(self, written: Written, layouts: dict[str, Layout]) -> None:
        """Writes payloads; nobody waits meanwhile."""
        if not written:
            return
        with self.lock:
            self.prepare()
            assert self._identity is not None
            if any(isinstance(item, Tensor) for item in written.values()):
                self._directory.make(self._identity)
        version = self.state.generation + 1
        for low, item in written.items():
            if not isinstance(item, Tensor):
                continue
            fields = item.relation.fields
            if isinstance(fields, StoredFields):
                layouts[low] = fields.layout  # something else of the tensor has changed
                continue
            layouts[low] = self._directory.write(item, version, self._pending)
        if layouts:
            self._directory.sync()

    def _tables(self, duck: Duck) -> set[str]:
        """Names of tables that are committed."""
        with self._cursor() as con:
            return names(con, duck.database)

    def _commit(
        self, base: State, written: Written, layouts: dict[str, Layout], duck: Duck
    ) -> None:  # fmt: skip
        """Commits rows and tables in one transaction of DuckDB."""
        made: dict[str, Row] = {}
        version = self.state.generation + 1
        try:
            if not duck.in_transaction:
                duck.begin()
            self.refuse_clashes(base, written, duck)
            # Named in full: the session may USE another database, which may have a catalog, too.
            objects = f"{self._home}.objects"
            for low, item in written.items():
                duck.execute(f"DELETE FROM {objects} WHERE name = ?", [low])
                if item is not None:
                    made[low] = row = rows.row_of(item, version, layouts.get(low))
                    duck.execute(
                        f"INSERT INTO {objects} VALUES (?, ?, ?, ?)",
                        [row.name, row.version, row.kind, row.told],
                    )
            self._doubtful = True  # an interrupt may come between the commit and the state
            duck.commit()
            if written:
                kept = {k: r for k, r in self._rows.items() if k not in written}
                self._follow_rows({**kept, **made})
            self._doubtful = False
        except BaseException as error:
            if duck.in_transaction:
                with suppress(Exception):  # DuckDB has done so already
                    duck.rollback()
            self._settle()
            if isinstance(error, Error) or not isinstance(error, Exception):
                raise
            raise OperationalError(
                f"'{self.path}' cannot be written: {_first(error)}",
                hint="The transaction is rolled back.",
            ) from error

    def _settle(self) -> None:
        """A commit has failed, or somebody has interrupted it: the file says what is true.

        Raises:
            OperationalError: It cannot be read any more.
        """
        self._doubtful = True
        try:
            self._reread()
            self._doubtful = False
        except Exception as error:
            raise OperationalError(
                f"'{self.path}' cannot go on after a commit that has failed: {_first(error)}",
                hint="Close every connection to it and open it again; it holds its last commit.",
            ) from error

    def _reread(self) -> None:
        """Reads the newest commit from the file."""
        with self._cursor() as con:
            found = {r.name: r for r in rows.read(con, self._home)}
        if found != self._rows or not self.state.generation:
            self._follow_rows(found)

    def _follow_rows(self, found: dict[str, Row]) -> None:
        """The next state; what has not changed stays the same object."""
        objects: dict[str, Object] = {}
        before = self.state.objects
        for low, row in found.items():
            if self._rows.get(low) == row:
                objects[low] = before[low]
                continue
            objects[low] = item = rows.object_of(row, self._directory, self._define)
            if isinstance(item, Tensor) and isinstance(item.relation.fields, StoredFields):
                self._held[id(item.relation.fields)] = item.relation.fields
        newest = max((r.version for r in found.values()), default=0)
        # In this order: rows that came first would hide from `_reread` that the state is old.
        self.state = State(objects, max(self.state.generation + 1, newest))
        self._rows = found

    # ---- files that nobody needs any more

    def _sweep(self) -> None:
        """Removes what is in no newest catalog and not still to be opened by a snapshot.

        What a cursor or a snapshot has opened stays readable until it lets go, for a file
        without a name lives on while it is mapped.
        """
        if self._doubtful:
            return
        self._directory.sweep(self._kept)

    def _kept(self) -> set[str]:
        named = {p for p in map(rows.payload_of, self.state.objects.values()) if p is not None}
        unopened = {fields.layout.file for fields in self._held.values() if not fields.here}
        return named | unopened | self._pending

    def vacuum(self) -> None:
        """Removes files that nobody needs, and lets DuckDB do the same in its file.

        DuckDB's part is left to its own time while transactions of other connections run.

        Raises:
            OperationalError: DuckDB cannot write.
        """
        with self.lock:
            if self._identity is not None:
                self._sweep()
            try:
                with self._cursor() as con:
                    con.execute("CHECKPOINT " + self._home.removesuffix(".__einsql"))
            except Exception as error:
                if is_stopped(error):
                    raise
                if "Cannot CHECKPOINT" not in str(error):
                    raise OperationalError(f"'{self.path}': {_first(error)}") from error


def _there(path: str) -> bool:
    """True if there is a file that holds something."""
    try:
        return os.stat(path).st_size > 0
    except OSError:
        return False


_BESIDE = ("", ".wal", ".wal.checkpoint", ".wal.recovery")
"""Ends of the names of what DuckDB opens."""


def _check_regular(path: str, real: str) -> None:
    """Refuses what DuckDB would wait for."""
    for end in _BESIDE:
        with suppress(OSError):  # DuckDB says why a file cannot be found
            mode = os.stat(f"{real}{end}").st_mode
            with refusing(f"{path}{end}"):
                check_regular(mode, path)


def _connected(path: str, real: str, read_only: bool) -> duckdb.DuckDBPyConnection:
    import duckdb  # only who has a file or tables needs it

    _check_regular(path, real)
    try:
        return duckdb.connect(real, read_only=read_only)
    except Exception as error:  # DuckDB's own errors of several kinds
        if is_stopped(error):
            raise
        text = _first(error)
        if "Conflicting lock" in text:
            holder = re.search(r"PID (\d+)", text)
            who = f" (process {holder[1]})" if holder else ""
            raise OperationalError(
                f"'{path}' is open in another process{who}",
                hint="One process may write to a database, or any number may read it: close it "
                "there, or open it with read_only=True in all of them.",
            ) from None
        raise OperationalError(f"'{path}' cannot be opened: {text}") from None


@contextmanager
def _refusing(path: str, what: str) -> Iterator[None]:
    """Makes OperationalErrors of DuckDB's."""
    import duckdb  # it is open

    try:
        yield
    except duckdb.Error as error:
        raise OperationalError(f"'{path}' {what}: {_first(error)}") from error


def _first(error: BaseException) -> str:
    """What an error of DuckDB's says, without its kind."""
    lines = str(error).splitlines() or [type(error).__name__]
    return re.sub(r"^[\w ]+ Error: ", "", lines[0])
