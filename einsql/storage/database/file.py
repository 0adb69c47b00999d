"""A database in a file: a DuckDB file with tables and the catalog, and a payload directory.

DuckDB's commit is the commit. Before it, payloads are synced under their final names. After it,
the state in memory is replaced, and payloads that no snapshot can read any more are removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary

from einsql.core import forks
from einsql.errors import Error, OperationalError
from einsql.storage.database import integrity_check, rows
from einsql.storage.database.catalog_reader import Define, object_of, payloads_of
from einsql.storage.database.directory import Directory
from einsql.storage.database.directory_sync import Names
from einsql.storage.database.duckdb_file import (
    check_kinds,
    is_there,
    make_empty,
    open_duckdb,
    reason_of,
    translating,
)
from einsql.storage.database.layout import Layout
from einsql.storage.database.memory import Database, State, Written
from einsql.storage.database.rows import Row
from einsql.storage.duckdb.connection import names
from einsql.storage.duckdb.failures import is_cancelled
from einsql.storage.fields import Fields
from einsql.storage.memory.temp_directory import default_directory
from einsql.storage.objects import Damaged, Object, Tensor

if TYPE_CHECKING:
    import duckdb

    from einsql.storage.database.integrity_check import Finding
    from einsql.storage.duckdb.connection import Duck


class FileDatabase(Database):
    """An open database file, shared by every session of the process that uses it."""

    def __init__(self, path: str, read_only: bool, define: Define) -> None:
        """Opens a file, or creates it.

        Args:
            path: The path as the user wrote it.
            read_only: Opens the file for reading only, as several processes may at once.
            define: Creates a definition from its kind, name and unparsed text.

        Raises:
            OperationalError: Another process has opened it, it is no database, its format is newer,
                or its payload directory is missing or belongs to another database.
        """
        super().__init__()
        self.path: str = path
        self.read_only = read_only
        self.real = os.path.realpath(path)
        self._define = define
        self._directory = Directory(self.real)
        self._sessions: WeakSet[object] = WeakSet()
        self._pending: set[str] = set()
        self._held: WeakValueDictionary[int, Fields] = WeakValueDictionary()
        self._rows: dict[str, Row] = {}
        self._leaving: set[str] = set()
        """Payloads of earlier commits that a snapshot still used at the last sweep."""
        self._doubtful = False
        """Whether the state in memory may differ from the file's newest commit."""
        self._names = Names(self.real)
        check_kinds(path, self.real)
        fresh = not read_only and not is_there(self.real)
        if fresh:
            self._directory.check("", False)  # before the file exists
            make_empty(path, self.real)
        self._root = open_duckdb(path, self.real, read_only)
        try:
            with translating(path, "cannot be opened"):
                self._root.execute("SET enable_progress_bar = false")
                self._home = rows.home(self._root)
                self._identity = rows.identity_of(self._root, self._home, path, read_only)
                if self._identity is None and fresh:
                    self._identity = rows.create(self._root, self._home)
                if self._identity is not None:
                    self._reread()
            if self._identity is not None:
                named = any(isinstance(item, Tensor) for item in self.state.objects.values())
                self._directory.check(self._identity, named)
            self.persist()
            if self._identity is not None and not read_only:
                self._sweep()
        except BaseException:
            self._root.close()
            self._names.close()
            raise

    @property
    def catalogued(self) -> bool:
        """True if the file has the catalog."""
        return self._identity is not None

    # ---- sessions

    def join(self, session: object) -> None:
        """Registers a session."""
        with self.lock:
            self._opened()
            self._sessions.add(session)

    def leave(self, session: object) -> None:
        """Unregisters a session; the last one closes the file and releases its lock."""
        with self.lock:
            self._sessions.discard(session)
            self._limits.pop(session, None)
            if not self._sessions and self._root is not None:
                super().leave(session)  # DuckDB writes its log into its file
                self._names.close()

    def joined(self, session: object) -> bool:
        """Registers a session; returns False if the last session has closed the file."""
        with self.lock:
            if self._root is None:
                return False
            self.refuse_invalidated()
            self._sessions.add(session)
            return True

    def temp_directory(self) -> str:
        """See `Database.temp_directory`."""
        return default_directory(self.real)

    def connection(self) -> duckdb.DuckDBPyConnection:
        """A new DuckDB connection to the database's tables."""
        return self._cursor()

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        cursor = self._opened().cursor()
        cursor.execute("SET enable_progress_bar = false")  # it would write to the standard output
        return cursor

    def forked(self, refusal: forks.Refusal) -> None:
        """See `Database.forked`; the child writes and removes no payload."""
        super().forked(refusal)
        self._doubtful = True
        self._directory.abandon()

    def _opened(self) -> duckdb.DuckDBPyConnection:
        self.refuse_inherited()
        self.refuse_invalidated()
        if self._root is None:
            raise OperationalError(f"'{self.path}' is closed")
        return self._root

    def touch(self, duck: Duck) -> None:
        """Makes DuckDB take a transaction's snapshot of this database, independent of USE."""
        known = self._identity is not None
        duck.execute(f"FROM {self._home}.format LIMIT 0" if known else "FROM duckdb_schemas()")

    # ---- commits

    def persist(self) -> None:
        """Syncs the directory entries of DuckDB's files; see `Database.persist`."""
        if self.failure is not None:
            return
        try:
            if not self.read_only:
                self._names.persist()
            super().persist()
        except OSError as error:
            self.invalidate(f"its directory cannot be written: {error.strerror}")
        except OperationalError as error:  # an attached file's
            self.invalidate(error.reason)

    def invalidate(self, reason: str) -> None:
        """Closes the file for use: after a failed fsync the system may have dropped pages.

        Its content is known again once it has been reopened.

        Raises:
            OperationalError: Always.
        """
        with self.lock:
            if self.failure is None:
                self.failure = reason
                # A new state object invalidates plans of the newest state.
                self.state = State(self.state.objects, self.state.generation + 1)
        self.refuse_invalidated()

    def refuse_invalidated(self) -> None:
        """See `Database.refuse_invalidated`."""
        if self.failure is not None:
            raise OperationalError(
                f"'{self.path}' was closed: {self.failure}",
                hint="Whether the commit that failed is kept is not known. Close every connection "
                "to the file and open it again: it holds that commit or the one before, whole.",
            )

    def prepare(self) -> None:
        """Adds the catalog to a foreign DuckDB file, before a transaction takes its snapshot.

        Raises:
            OperationalError: DuckDB's file cannot be written.
        """
        with self.lock:
            if self._identity is None and not self.read_only:
                self._directory.check("", False)
                with translating(self.path, "cannot be written"), self._cursor() as con:
                    # It exists already if an earlier attempt was interrupted.
                    known = rows.identity_of(con, self._home, self.path, False)
                    self._identity = known or rows.create(con, self._home)

    def commit(self, base: State, written: Written, duck: Duck) -> State:
        """Commits the changes of a transaction; see `Database.commit`.

        Raises:
            OperationalError: Another transaction changed the same objects first, or a payload
                or DuckDB's file cannot be written.
        """
        with self.lock:
            self.refuse_inherited()
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
                self._pending.difference_update(*(x.files for x in layouts.values()))
                if not self.read_only and written:
                    self._sweep()

    def _write(self, written: Written, layouts: dict[str, Layout]) -> None:
        """Writes payloads without blocking other sessions."""
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
            if item.relation.fields.layout is None:
                layouts[low] = self._directory.write(item, version, self._pending)
            else:
                layouts[low] = self._directory.write_changes(item, version, self._pending)
        if layouts:
            self._sync()

    def _sync(self) -> None:
        """Makes the names of new segments durable."""
        try:
            self._directory.sync()
        except OperationalError as error:
            self.invalidate(error.reason)

    def _tables(self, duck: Duck) -> set[str]:
        with self._cursor() as con:
            return names(con, duck.database)

    def _commit(
        self, base: State, written: Written, layouts: dict[str, Layout], duck: Duck
    ) -> None:
        new_rows: dict[str, Row] = {}
        version = self.state.generation + 1
        try:
            if not duck.in_transaction:
                duck.begin()
            self.refuse_clashes(base, written, duck)
            for low, item in written.items():
                if item is not None:
                    assert not isinstance(item, Damaged)  # no statement writes one
                    new_rows[low] = rows.row_of(item, version, layouts.get(low))
                old, new = self._rows.get(low), new_rows.get(low)
                rows.replace(duck.execute, self._home, low, old, new)
            self._doubtful = True  # an interrupt may come between the commit and the state
            duck.commit()  # then calls `persist`, which syncs the directory of DuckDB's files
            if written:
                kept = {k: r for k, r in self._rows.items() if k not in written}
                self._follow_rows({**kept, **new_rows})
            self._doubtful = False
        except BaseException as error:
            if duck.in_transaction:
                with suppress(Exception):  # DuckDB has done so already
                    duck.rollback()
            self._settle()
            if isinstance(error, Error) or not isinstance(error, Exception):
                raise
            raise OperationalError(
                f"'{self.path}' cannot be written: {reason_of(error)}",
                hint="The transaction is rolled back.",
            ) from error

    def _settle(self) -> None:
        """Rereads the file after a commit failed or was interrupted.

        Raises:
            OperationalError: It cannot be read any more.
        """
        self._doubtful = True
        try:
            self._reread()
            self._doubtful = False
        except Exception as error:
            self.invalidate(reason_of(error))

    def _reread(self) -> None:
        with self._cursor() as con:
            stored_rows = rows.read(con, self._home)
        if stored_rows != self._rows or not self.state.generation:
            self._follow_rows(stored_rows)

    def _follow_rows(self, stored_rows: dict[str, Row]) -> None:
        """The next state, in which unchanged objects stay identical."""
        objects: dict[str, Object] = {}
        before = self.state.objects
        for low, row in stored_rows.items():
            if self._rows.get(low) == row:
                objects[low] = before[low]
                continue
            objects[low] = item = object_of(row, self._directory, self._define)
            if isinstance(item, Tensor):
                self._held[id(item.relation.fields)] = item.relation.fields
        newest = max((r.version for r in stored_rows.values()), default=0)
        # In this order: rows that came first would hide from `_reread` that the state is old.
        self.state = State(objects, max(self.state.generation + 1, newest))
        self._rows = stored_rows

    # ---- unused files

    def _sweep(self) -> None:
        """Removes payloads that neither the newest catalog nor a snapshot refers to.

        Nothing is removed while a damaged row may name any payload.

        A payload that a cursor or a snapshot has mapped stays readable until it is released:
        an unlinked file exists while it is mapped.
        """
        if self._doubtful or self.failure is not None:
            return
        self.persist()  # else an older catalog may come back after a power loss
        self._directory.sweep(self._kept)
        self._leaving = self._unopened()

    def _kept(self) -> set[str] | None:
        """Names of the payloads that stay; None for all."""
        kept = self._unopened() | self._pending
        for item in self.state.objects.values():
            named = payloads_of(item)
            if named is None:
                return None
            kept |= named
        return kept

    def _unopened(self) -> set[str]:
        return {name for f in self._held.values() for name in f.unmapped}

    def inspect(self, tick: Callable[[float], None]) -> list[Finding]:
        """Verifies the newest commit on the disk, with every payload.

        Other sessions may commit meanwhile. Nothing is changed.

        Args:
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.
        """
        try:
            with self.lock:
                objects = self._stored_objects()
        except Exception as error:  # DuckDB's own, of several kinds
            remedy = "Restore the database from a copy."
            return [
                integrity_check.Finding(self.path, f"cannot be read: {reason_of(error)}", remedy)
            ]
        findings = list(
            integrity_check.findings(
                objects, lambda low, item: self.state.objects.get(low) is item, tick
            )
        )
        with self.lock:
            strays = self._directory.strays(self._kept, self._leaving)
        return [*findings, *map(integrity_check.stray, strays)]

    def _stored_objects(self) -> dict[str, Object]:
        """The objects of the file's newest commit, reread; under the lock."""
        if self._identity is None:
            return {}
        with self._cursor() as con:
            stored = rows.read(con, self._home)
        known = self.state.objects
        return {
            low: known[low]
            if self._rows.get(low) == row
            else object_of(row, self._directory, self._define)
            for low, row in stored.items()
        }

    def vacuum(self, duck: Duck) -> None:
        """Removes unused segments, merges newer tiles, and makes DuckDB reclaim space in its file.

        DuckDB's checkpoint is postponed while transactions of other connections run.

        Args:
            duck: The session's DuckDB connection, in no transaction.

        Raises:
            OperationalError: DuckDB cannot write, or a segment is damaged or cannot be written.
        """
        import duckdb  # it is open

        with self.lock:
            self.refuse_inherited()
            if self._identity is not None:
                self._sweep()
            try:
                with self._cursor() as con:
                    con.execute("CHECKPOINT " + self._home.removesuffix(".__einsql"))
            except Exception as error:
                if is_cancelled(error):
                    raise
                if isinstance(error, duckdb.FatalException):
                    self.invalidate(reason_of(error))
                if "Cannot CHECKPOINT" not in str(error):
                    raise OperationalError(f"'{self.path}': {reason_of(error)}") from error
            self.persist()
        for low in sorted(self.state.objects):
            item = self.state.objects.get(low)
            if isinstance(item, Tensor):
                self._rewrite(low, item, duck)

    def _rewrite(self, low: str, item: Tensor, duck: Duck) -> None:
        """Commits a tensor in one segment of the present format, unless it is so already."""
        layout = self._directory.rewrite(item, self.state.generation + 1, self._pending)
        if layout is None:
            return
        try:
            self._sync()
            with self.lock:
                if self.state.objects.get(low) is item:
                    self._commit(self.state, {low: item}, {low: layout}, duck)
        finally:
            with self.lock:
                self._pending.difference_update(layout.files)
                self._sweep()
