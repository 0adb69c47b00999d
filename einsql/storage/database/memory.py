"""The committed objects of a database, shared by its sessions; this one is in memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from einsql.core import forks
from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.errors import OperationalError
from einsql.storage.duckdb.guarded_connection import Access
from einsql.storage.memory.temp_directory import default_directory
from einsql.storage.objects import Object

if TYPE_CHECKING:
    import duckdb

    from einsql.storage.database import directory_sync as _sync
    from einsql.storage.database.directory_sync import Names
    from einsql.storage.database.integrity_check import Finding
    from einsql.storage.duckdb.connection import Duck
else:  # loaded for databases in files
    _sync = LazyModule("einsql.storage.database.directory_sync")


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The content of a database after a commit.

    Attributes:
        objects: The objects by lower-case name; immutable.
        generation: Number of the commit.
    """

    objects: Mapping[str, Object]
    generation: int


Written = Mapping[str, Object | None]
"""The objects that a transaction wrote, by lower-case name; None for a removed one."""


class Database:
    """The committed state of a database and its changes by transactions.

    Attributes:
        path: The file's path as the user wrote it, or None in memory.
        read_only: Whether nothing can be committed.
        state: The newest commit; replaced atomically, so that any thread may read it.
        tables: A token that is replaced when the tables or their columns may have changed.
        scratch: The name of DuckDB's own temporary directory.
        access: Whether SQL may access files.
        failure: The reason why the file must be reopened before it is used, or None.
        lock: Held while a transaction commits, and while one takes its snapshot of tensors
            and tables.
    """

    path: str | None = None
    read_only = False
    failure: str | None = None

    @property
    def catalogued(self) -> bool:
        """True if the DuckDB file contains the catalog; False in memory."""
        return False

    def __init__(self) -> None:
        self.state = State({}, 0)
        self.lock = threading.RLock()
        self.tables = object()
        self.access = Access()
        self._root: duckdb.DuckDBPyConnection | None = None
        self.scratch = f"einsql-duckdb-{os.getpid()}-{os.urandom(4).hex()}"
        self._limits: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self._refusal: forks.Refusal | None = None
        self._attached: dict[str, Names] = {}
        forks.register(self)

    def forked(self, refusal: forks.Refusal) -> None:
        """Disables the database in a forked child, which must not use DuckDB's instance."""
        self._refusal = refusal
        if self._root is not None:
            forks.never_destroy(self._root)
            self._root = None
        self.lock = threading.RLock()

    def refuse_inherited(self) -> None:
        """Refuses to use a database that belongs to a parent process.

        Raises:
            OperationalError: The database belongs to a parent process.
        """
        if self._refusal is not None:
            raise self._refusal()

    def temp_directory(self) -> str:
        """The directory of temporary files with which DuckDB opens the database."""
        return os.path.join(default_directory(None), self.scratch)

    def connection(self) -> duckdb.DuckDBPyConnection:
        """A new DuckDB connection to the database's tables."""
        with self.lock:
            self.refuse_inherited()
            if self._root is None:
                import duckdb  # loaded for databases with tables only

                # DuckDB's default is the working directory.
                # That errors inside it end no database would let those of users end no transaction.
                where = self.temp_directory()
                self._root = duckdb.connect(":memory:", config={"temp_directory": where})
            return self._root.cursor()

    def root(self) -> duckdb.DuckDBPyConnection:
        """The connection that stays open until the database is closed."""
        assert self._root is not None
        return self._root

    def least(self, session: object, limit: int | None) -> int | None:
        """The least memory limit of all sessions, which share one DuckDB instance.

        Args:
            session: The session that sets its limit.
            limit: Bytes; None for no limit.
        """
        with self.lock:
            self._limits.pop(session, None)
            if limit is not None:
                self._limits[session] = limit
            return min(self._limits.values(), default=None)

    def touch(self, duck: Duck) -> None:
        """Makes DuckDB take its snapshot now; in memory no other session commits."""

    def invalidate(self, reason: str) -> None:
        """Disables the database, as the outcome of the last write is unknown.

        Raises:
            OperationalError: The database is in a file, and is closed.
        """

    def refuse_invalidated(self) -> None:
        """Refuses to use a database that `invalidate` has disabled.

        Raises:
            OperationalError: It is disabled.
        """

    def persist(self) -> None:
        """Makes DuckDB's commits durable against a power loss.

        Raises:
            OperationalError: The sync fails.
        """
        for path, names in tuple(self._attached.items()):
            try:
                names.persist()
            except FileNotFoundError:  # its directory was removed
                self._attached.pop(path, None)
            except OSError as error:
                raise OperationalError(
                    f"The directory of '{path}' cannot be written: {error.strerror}",
                    hint="Whether the last change of its tables is kept is not known. DETACH it "
                    "and ATTACH it again.",
                ) from error

    def attached(self, paths: Collection[str]) -> None:
        """Registers attached files that DuckDB may write; `persist` syncs their entries, too.

        Args:
            paths: The paths of all attached files.
        """
        with self.lock:
            before = self._attached
            self._attached = {path: before.get(path) or _sync.Names(path) for path in paths}
            for path in before.keys() - self._attached.keys():
                before[path].close()
        self.persist()

    def prepare(self) -> None:
        """Prepares storage for a transaction's commit, before its snapshot is taken."""

    def commit(self, base: State, written: Written, duck: Duck) -> State:
        """Commits a transaction's changes of tables and tensors.

        Args:
            base: The state in which the transaction began.
            written: Its changes of persistent objects.
            duck: The session's DuckDB connection, which may be in a transaction.

        Raises:
            OperationalError: Another transaction changed the same objects first.
        """
        with self.lock:
            self.refuse_inherited()
            self.refuse_conflicts(base, written)
            self.refuse_clashes(base, written, duck)
            if duck.in_transaction:
                duck.commit()
            return self._follow(written)

    def refuse_conflicts(self, base: State, written: Written) -> None:
        """Refuses to replace objects that other sessions have committed since `base`.

        Raises:
            OperationalError: Another session has committed one of them.
        """
        now = self.state.objects
        for low in written:
            if now.get(low) is not base.objects.get(low):
                raise OperationalError(
                    f'Another connection has committed a change of "{low}" first',
                    hint="The transaction is rolled back; run it again.",
                )

    def refuse_clashes(self, base: State, written: Written, duck: Duck) -> None:
        """Refuses to give a table and an object the same name; the caller has the lock.

        Raises:
            OperationalError: A name would be used twice.
        """
        created = {k for k, item in written.items() if item is not None and k not in base.objects}
        if not created and not duck.names_changed:
            return
        after = {**self.state.objects, **written}
        objects = {low for low, item in after.items() if item is not None}
        if not objects:  # DuckDB's first list of names takes 15 ms: it parses its own views
            return
        mine, others = duck.names(), self._tables(duck)
        both = others & set(base.objects)  # DuckDB alone has made these
        for low in sorted((mine & objects | (others - duck.dropped) & created) - both):
            raise OperationalError(
                f'"{low}" would be the name of a table and of something else',
                hint="The earlier object keeps the name; the transaction is rolled back.",
            )

    def _tables(self, duck: Duck) -> set[str]:
        """Names of committed tables; in memory no other session creates any."""
        return set()

    def _follow(self, written: Written) -> State:
        if not written:
            return self.state
        objects = {**self.state.objects}
        for low, item in written.items():
            if item is None:
                objects.pop(low, None)
            else:
                objects[low] = item
        self.state = State(objects, self.state.generation + 1)
        return self.state

    def inspect(self, tick: Callable[[float], None]) -> list[Finding]:
        """Verifies everything stored and returns the faults; none in memory.

        Args:
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.
        """
        return []

    def vacuum(self, duck: Duck) -> None:
        """Frees unused storage; does nothing in memory.

        Args:
            duck: The session's DuckDB connection, in no transaction.
        """

    def join(self, session: object) -> None:
        """Registers a session."""

    def leave(self, session: object) -> None:
        """Unregisters a session; the last one closes the database."""
        self._limits.pop(session, None)
        self.state = State({}, self.state.generation + 1)
        if self._root is not None:
            self._root.close()
            self._root = None
        with suppress(OperationalError):  # a log that comes back is known to be in its file
            self.persist()
        for names in self._attached.values():
            names.close()
        self._attached = {}
