"""A session's view of its database: a snapshot with the session's changes and arrays over it.

Outside of a transaction every statement sees the newest commit, within one the commit at its
begin. Objects that other sessions may see are never changed in place, so a snapshot is a mapping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace

import numpy as np

from einsql.core.settings import Settings
from einsql.errors import OperationalError, ProgrammingError, suggest
from einsql.storage import array_ownership
from einsql.storage.database.memory import Database, State
from einsql.storage.duckdb.connection import Duck
from einsql.storage.fields import Fields, PlacedFields
from einsql.storage.objects import (
    Damaged,
    Object,
    Tensor,
    damage_error,
    is_local,
    kind_of,
    same_but_inputs,
    same_form,
)
from einsql.storage.out_of_memory import Room
from einsql.storage.undo_log import Index, UndoLog
from einsql.storage.value_ranges import KnownRanges

_INSTEAD = "CREATE TEMP TENSOR makes one of the session; connect without read_only=True to write."


class Store:
    """The objects of one session by name, in any letter case.

    Attributes:
        database: The database, shared by all its sessions.
        duck: This session's DuckDB connection.
        objects: The current objects by lower-case name.
        version: Incremented when the form of a name's object changes.
        names: Incremented when `version` is, unless only the bounds of a tensor's keys or its
            placement over sites change. Plans depend on it, and compare both themselves.
        seen: The commit of this session's snapshot.
        memory: The session's memory budget; None for no limit.
        settle: Moves fields to be stored to files if they do not fit in memory.
        lent: Returns the fields of a tensor for plans.
        ranges: The known ranges of values of stored tensors.
    """

    def __init__(
        self, database: Database | None = None, settings: Callable[[], Settings] = Settings
    ) -> None:
        self.database = database or Database()
        self.duck = Duck(
            open_=self.database.connection,
            settings=settings,
            empty=self.database.path is None,
            least=lambda limit: self.database.least(self, limit),
            scratch=self.database.scratch,
            temp_directory=self.database.temp_directory,
            root=self.database.root,
            access=self.database.access,
            persist=self.database.persist,
            on_invalidated=self.database.invalidate,
        )
        self.version = 0
        self.names = 0
        self.seen = self.database.state
        self.objects: dict[str, Object] = dict(self.seen.objects)
        self._written: dict[str, Object | None] = {}
        self._saved: dict[str, Object] | None = None
        self._changes = 0
        self._pinned = False
        self._since = object()
        self._undo = UndoLog()
        self.ranges = KnownRanges()
        self.memory: Room | None = None
        self.settle: Callable[[Fields], Fields] = lambda fields: fields
        self.lent: Callable[[Tensor], Fields] = lambda tensor: tensor.relation.fields
        self.database.join(self)
        if self.database.path is not None:
            _ = self.duck.con  # the file may have tables

    # ---- names

    def get(self, name: str) -> Object | None:
        """The object with a name, or None."""
        return self.objects.get(name.lower())

    def lasts(self, name: str, fields: Mapping[str, np.ndarray]) -> bool:
        """True if the fields are those of a stored tensor, so that they never change.

        A change in place replaces the fields by new ones over the same memory.
        """
        stored = self.get(name)
        return (
            isinstance(stored, Tensor) and not stored.borrowed and stored.relation.fields is fields
        )

    def writable(self, name: str) -> Tensor:
        """The tensor with a name, to be changed.

        Raises:
            ProgrammingError: There is no such tensor, or the name is of a registered array or a
                view.
            OperationalError: The database is open for reading only.
        """
        stored = self.get(name)
        if isinstance(stored, Tensor) and not stored.borrowed:
            if not stored.temporary:
                self._refuse_reader()
            return stored
        if isinstance(stored, Damaged):
            raise damage_error(stored)
        if stored is None:
            tensors = (o.name for o in self.objects.values() if isinstance(o, Tensor))
            hint = suggest(name, [*tensors, *(t for t, _ in self.duck.tables())], "names")
            raise ProgrammingError(f'There is no tensor "{name}"', hint=hint)
        what = "a registered array" if isinstance(stored, Tensor) else f"a {stored.kind}"
        raise ProgrammingError(
            f'"{name}" is {what} and cannot be changed', hint="CREATE TENSOR … AS SELECT copies it."
        )

    def put(self, item: Object) -> None:
        """Stores an object under its name, replacing an earlier one; a TEMP object hides others.

        Raises:
            OperationalError: The object is not local to the session, and the database is open for
                reading only.
        """
        low = item.name.lower()
        if isinstance(item, Tensor) and not item.borrowed:
            fields = self.settle(item.relation.fields)
            if fields is not item.relation.fields:
                item = replace(item, relation=replace(item.relation, fields=fields))
        if not is_local(item):
            self._refuse_reader()
        self._changes += 1  # before the change, so that an interrupted statement is rolled back
        if not is_local(item):
            self._written[low] = item
        if is_local(item) or not (low in self.objects and self.objects[low].temporary):
            self._bind(low, item)

    # ---- changes in place

    @property
    def mark(self) -> object:
        """The present mark: changes may overwrite memory that was allocated since it was set."""
        return self._since

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An uninitialised array of a tensor, which later changes may overwrite."""
        return array_ownership.allocate(shape, dtype, self._since)

    def overwritable(self, array: np.ndarray) -> np.ndarray | None:
        """A writable view of a stored array, or None if it is visible elsewhere."""
        return array_ownership.writable(array, self._since)

    def overwrite(self, array: np.ndarray, at: Index, values: np.ndarray | np.bool_) -> None:
        """Writes into an array from `overwritable`; undone if the running statement fails."""
        self._undo.overwrite(array, at, values)

    def placed(self, name: str, before: Mapping[str, np.ndarray], now: PlacedFields) -> None:
        """Replaces the arrays of a stored tensor by the same elements on sites.

        Args:
            name: The tensor's lower-case name.
            before: The fields from which the elements were placed; a changed tensor is kept.
            now: The placed fields.
        """
        stored = self.objects.get(name)
        if isinstance(stored, Tensor) and not stored.borrowed and stored.relation.fields is before:
            relation = replace(stored.relation, fields=now)
            self.objects[name] = replace(stored, relation=relation)
            self.ranges.move(name, before, now)

    def remove(self, name: str) -> None:
        """Removes a name; an object that a TEMP tensor or a registered array has hidden reappears.

        Raises:
            OperationalError: The object is not local to the session, and the database is open for
                reading only.
        """
        low = name.lower()
        local = is_local(self.objects[low])
        if not local:
            self._refuse_reader()
        self._changes += 1  # as in `put`
        if not local:
            self._written[low] = None
        self._bind(low, self.beneath(low))

    def beneath(self, low: str) -> Object | None:
        """The object that one of this session alone, of a lower-case name, hides; else None."""
        return self._written.get(low, self.seen.objects.get(low))

    def _bind(self, low: str, item: Object | None) -> None:
        before = self.objects.get(low)
        if not same_form(before, item):
            self.version += 1
            self.names += not same_but_inputs(before, item)
        if item is None:
            self.objects.pop(low, None)
        else:
            self.objects[low] = item

    def _refuse_reader(self, hint: str = _INSTEAD) -> None:
        if self.database.read_only:
            raise OperationalError(f"'{self.database.path}' is open for reading only", hint=hint)

    # ---- registered arrays, which are independent of transactions

    def register(self, item: Tensor) -> None:
        """Registers an array under its name, independent of a running transaction.

        Raises:
            ProgrammingError: A tensor or view has the name, or would have it after a ROLLBACK.
        """
        self.refresh()
        low = item.name.lower()
        for objects in self.states():
            stored = objects.get(low)
            if stored is not None and not (isinstance(stored, Tensor) and stored.borrowed):
                raise ProgrammingError(
                    f'There is a {kind_of(stored)} "{stored.name}" already',
                    hint="DROP it and COMMIT, or register the array under another name.",
                )
        self._bind(low, item)
        if self._saved is not None:
            self._saved[low] = item

    def unregister(self, name: str) -> None:
        """Removes a registered array, independent of a running transaction.

        Raises:
            ProgrammingError: No registered array has the name.
        """
        stored = self.get(name)
        if not isinstance(stored, Tensor) or not stored.borrowed:
            raise ProgrammingError(f'No array is registered as "{name}"')
        self.remove(name)
        if self._saved is not None:
            self._saved.pop(name.lower(), None)

    def states(self) -> list[dict[str, Object]]:
        """The current objects by name, and the objects after a ROLLBACK."""
        return [self.objects, *([] if self._saved is None else [self._saved])]

    # ---- snapshots and transactions

    def refresh(self) -> None:
        """Outside of a transaction, updates the snapshot to the newest commit.

        Raises:
            OperationalError: The file was closed after a failure of the disk.
        """
        if self.database.failure is not None:
            self.duck.close()
            self.database.leave(self)
            self.database.refuse_invalidated()
        state = self.database.state
        if self.seen is not state and self._saved is None and not self._pinned:
            self._show(state)

    def _show(self, state: State) -> None:
        old, new = self.seen.objects, state.objects
        # Unchanged objects are kept, as this session may have placed them on its sites.
        differ = [low for low, item in new.items() if old.get(low) is not item]
        differ += [low for low in old if low not in new]
        for low in differ:
            present = self.objects.get(low)
            if present is None or not is_local(present):
                self._bind(low, new.get(low))
        self.seen = state

    @contextmanager
    def statement(self, tables: bool = False, makes_tables: bool = False) -> Iterator[None]:
        """Runs a statement that may write, atomically and in a transaction of its own if none runs.

        Args:
            tables: Whether the statement may read tables, which must be of the same commit as
                the tensors that it reads.
            makes_tables: Whether the statement may create tables, which must be committed with
                the tensors that it creates.
        """
        pins = makes_tables or (tables and self.database.path is not None)
        pins = pins and self._saved is None and not self._pinned
        with self.newest() if pins else nullcontext(), self._atomic():
            yield

    @contextmanager
    def _atomic(self) -> Iterator[None]:
        self.refresh()
        before, written, changes = dict(self.objects), dict(self._written), self._changes
        state = self.database.state
        self._undo.clear()
        try:
            yield
            if self._saved is None and self._written:
                self._commit()
        except BaseException:
            if self.database.path is None and self.database.state is not state:
                self._written = {}  # committed, as no other session commits in memory
                self._show(self.database.state)
            else:
                self._undo.undo()
                if self._changes != changes:
                    self._restore(before, written)
            raise
        finally:
            self._undo.clear()

    def savepoint(self) -> Callable[[], None]:
        """Records the current objects, and returns a function that restores them."""
        objects, written, changes = dict(self.objects), dict(self._written), self._changes
        overwritten = self._undo.savepoint()  # recorded until the function is dropped

        def restore() -> None:
            overwritten.undo()
            if self._changes != changes:
                self._restore(dict(objects), dict(written))

        return restore

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Runs a statement and always undoes its changes."""
        self.refresh()
        before, written = dict(self.objects), dict(self._written)
        self._undo.clear()
        try:
            yield
        finally:
            self._undo.undo()
            self._restore(before, written)

    @contextmanager
    def snapshot(self, makes_tables: bool = False) -> Iterator[None]:
        """Runs a statement over tables and tensors in a snapshot of one commit.

        Changes of tables are committed when the block ends, unless a transaction runs.

        Args:
            makes_tables: Whether the statement may create tables, so that names are checked.

        Raises:
            OperationalError: The statement has created a table with the name of another object.
        """
        if self._saved is not None or self._pinned:
            self.duck.names_changed |= makes_tables
            yield
            return
        if self.database.path is None and not makes_tables:  # no other session commits in memory
            self.refresh()
            yield
            return
        with self._one_commit():
            self.duck.names_changed |= makes_tables
            yield
            if self.duck.names_changed:
                self.database.commit(self.seen, {}, self.duck)

    @contextmanager
    def _one_commit(self) -> Iterator[None]:
        """Makes DuckDB see the tables of the commit whose tensors the session sees."""
        try:
            self._begin_duck()
            self._pinned = True
            yield
            if self.duck.in_transaction:
                self.duck.commit()
        except BaseException:
            self._roll_back_duck()
            raise
        finally:
            self._pinned = False

    @contextmanager
    def newest(self) -> Iterator[State]:
        """Pins the newest commit, whose tables DuckDB then sees; no transaction may run."""
        self.database.prepare()
        with self._one_commit():
            yield self.seen

    def _begin_duck(self) -> None:
        with self.database.lock:
            self.refresh()
            self.duck.begin()
            # DuckDB takes its snapshot at the transaction's first access to the database.
            self.database.touch(self.duck)

    def _roll_back_duck(self) -> None:
        if self.duck.in_transaction:
            with suppress(Exception):  # a failed commit has rolled it back already
                self.duck.rollback()

    def _restore(self, objects: dict[str, Object], written: dict[str, Object | None]) -> None:
        pairs = [(o, objects.get(n)) for n, o in self.objects.items()]
        same_keys = objects.keys() == self.objects.keys()
        if not same_keys or not all(same_form(*pair) for pair in pairs):
            self.version += 1
            self.names += not same_keys or not all(same_but_inputs(*pair) for pair in pairs)
        self.objects, self._written = objects, written

    @property
    def in_transaction(self) -> bool:
        """True between BEGIN and COMMIT or ROLLBACK."""
        return self._saved is not None

    def begin(self) -> None:
        """Starts a transaction.

        Raises:
            OperationalError: One is running.
        """
        if self._saved is not None:
            raise OperationalError(
                "A transaction is running already", hint="COMMIT or ROLLBACK it first."
            )
        try:
            with self.database.lock:
                self.database.prepare()
                self._begin_duck()
            self._since = object()  # from here on ROLLBACK may restore the present arrays
            self._saved = dict(self.objects)
        except BaseException:
            if self._saved is None:
                self._roll_back_duck()
            raise

    def commit(self) -> None:
        """Commits the transaction atomically.

        Raises:
            OperationalError: No transaction is running; or another connection has changed the
                same objects first, or the changes cannot be written: then it is rolled back.
        """
        if self._saved is None:
            raise OperationalError("No transaction is running", hint="Start one with BEGIN.")
        seen = self.seen
        try:
            self._commit()
            self._saved = None
        except BaseException:
            if self._saved is not None:
                self.seen = seen  # the commit of the restored objects
                self.rollback()
            raise
        self.database.tables = object()

    def _commit(self) -> None:
        state = self.database.commit(self.seen, self._written, self.duck)
        self._written = {}
        self._show(state)

    def rollback(self) -> None:
        """Rolls the transaction back.

        Raises:
            OperationalError: No transaction is running.
        """
        if self._saved is None:
            raise OperationalError("No transaction is running", hint="Start one with BEGIN.")
        self._restore(dict(self._saved), {})
        self._roll_back_duck()
        self.database.tables = object()
        self._saved = None  # last, so that an interrupted rollback can be repeated
        if self.database.failure is None:
            self.refresh()

    def vacuum(self) -> None:
        """Frees unused files and space.

        Raises:
            OperationalError: A transaction is running, or the database is open for reading only.
        """
        if self._saved is not None:
            raise OperationalError(
                "VACUUM cannot run in a transaction", hint="COMMIT or ROLLBACK it first."
            )
        self._refuse_reader("Connect without read_only=True to VACUUM.")
        self.database.vacuum(self.duck)
        self.refresh()

    def close(self) -> None:
        """Rolls a running transaction back and leaves the database."""
        try:
            if self._saved is not None:
                self.rollback()
        finally:
            self.duck.close()
            self.database.leave(self)
            self.seen, self.objects = self.database.state, {}
