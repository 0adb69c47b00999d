"""Context: the services for planning and running a statement."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from types import FrameType
from typing import TYPE_CHECKING

from einsql.core.records import dataclass
from einsql.core.settings import Settings
from einsql.engine.cancellation import Progress
from einsql.errors import Error, RanksLost
from einsql.planner.plan_cache import PlanCache
from einsql.planner.target import ExecutionTarget, target_of
from einsql.storage.host_arrays import in_scope, is_array, is_table, readable_table
from einsql.storage.memory import Memory
from einsql.storage.objects import Definition, Tensor
from einsql.storage.session_store import Store

if TYPE_CHECKING:
    from einsql.engine.ranks.driver import Cluster
    from einsql.engine.step import Tick
    from einsql.storage.duckdb.connection import Duck


class CallerScope:
    """The variables of the Python function that runs a statement."""

    __slots__ = ("_frame", "_is_hidden", "captured")

    captured: dict[str, object] | None
    """Variables that precede those of the frame, by their names in FROM; it records reads."""

    def __init__(self) -> None:
        self._frame: FrameType | None = None
        self.captured = None
        self._is_hidden = False

    def enter(self, frame: FrameType | None) -> FrameType | None:
        """Makes the variables of a frame visible to FROM.

        Returns:
            The previous frame, for `leave`. The callback of a loop's step may run a statement
            while the loop runs.
        """
        before, self._frame = self._frame, frame
        return before

    def leave(self, before: FrameType | None) -> None:
        """Restores a previous frame."""
        self._frame = before

    @property
    def frame(self) -> FrameType | None:
        """The frame whose variables FROM may name."""
        return self._frame

    def array(self, name: str, readable: bool) -> object | None:
        """Returns the array of a variable, or None.

        Args:
            name: The variable's name in FROM.
            readable: Whether settings allow to read variables.
        """
        return self._variable(name, is_array) if readable else None

    def find(self, name: str) -> object | None:
        """Returns the array or table of a variable, also of one that is hidden."""
        known = self.captured or {}
        if name in known:
            return known[name]
        variable = in_scope(self._frame, name)
        if variable is not None:
            return variable
        return next((v for n, v in known.items() if n.lower() == name.lower()), None)

    def table(self, name: str) -> object | None:
        """Returns the DataFrame or Arrow table of a variable, or None."""
        return self._variable(name, is_table)

    def _variable(self, name: str, is_wanted: Callable[[object], bool]) -> object | None:
        variable = None if self._is_hidden else self.find(name)
        if not is_wanted(variable):
            return None
        if self.captured is not None:
            if type(variable).__name__ == "RecordBatchReader":  # which can be read once
                variable = readable_table(variable)
            self.captured[name] = variable
        return variable

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hides all variables within the context, in which a stored definition is read."""
        before, self._is_hidden = self._is_hidden, True
        try:
            yield
        finally:
            self._is_hidden = before


@dataclass(slots=True, eq=False, weakref_slot=True)
class Context:
    """The services of one connection for planning and running its statements.

    A connection creates one. EXPLAIN derives another one with other settings.

    Attributes:
        settings: The session's settings. SET replaces them.
        store: The names of the session: tensors, views, macros, DuckDB's tables.
        cluster: The MPI ranks, or None.
        memory: The budget of the session and its spill files.
        parameters: Values of the running statement's parameters.
        notices: Messages of successful statements; the console prints and clears them.
        progress: Reports progress and checks for cancellation.
        scope: The caller's variables.
        shown: The caller's tables that the statement reads, by the lower-case names of their
            views in DuckDB.
        plans: Prepared statements that may run again.
        lock: The lock of the running statement; a connection runs one at a time.
    """

    settings: Settings
    store: Store
    memory: Memory
    cluster: Cluster | None = None
    parameters: Sequence[object] = ()
    notices: list[str] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)
    scope: CallerScope = field(default_factory=CallerScope)
    plans: PlanCache = field(default_factory=PlanCache)
    shown: dict[str, object] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _tables: tuple[object, dict[str, bool]] = (None, {})
    """Whether DuckDB has tables of the names of variables, since its tables last changed."""

    @property
    def duck(self) -> Duck:
        """The session's connection to DuckDB."""
        return self.store.duck

    @property
    def target(self) -> ExecutionTarget:
        """The hardware for which plans are made."""
        return target_of(self.settings, self.cluster)

    @property
    def tick(self) -> Tick:
        """Callback with the completed fraction, 0 to 1; raises InterruptedError to cancel."""
        return self.progress.tick

    def derive(self, settings: Settings) -> Context:
        """Returns the same services with other settings."""
        return replace(self, settings=settings)

    def ask_duckdb(self) -> None:
        """Records that DuckDB will run a statement; runs on ranks must have succeeded before.

        Raises:
            AheadError: A run that started ahead has failed.
        """
        if self.cluster is not None:
            self.cluster.hear(all_runs=True)
        self.duck.asked = True

    def in_scope(self, name: str) -> object | None:
        """Returns an array among the caller's variables; None if settings exclude them."""
        return self.scope.array(name, self.settings.reads_variables)

    def array_named(self, name: str) -> object | None:
        """Returns an array among the caller's variables, unless DuckDB has a table of that name."""
        array = self.in_scope(name)
        if array is not None and self._has_table(name):
            self.note_hidden(name)
            return None
        return array

    def array_again(self, name: str) -> object | None:
        """`array_named` for a prepared statement: asks DuckDB only after its tables changed."""
        array, (tables, known) = self.in_scope(name), self._tables
        hides = known.get(name.lower()) if tables is self.store.database.tables else None
        if array is not None and hides is None:
            hides = self._has_table(name)
        return None if hides else array

    def _has_table(self, name: str) -> bool:
        """Asks DuckDB for a table or view of the name, and keeps the answer."""
        hides, tables = self.duck.has(name), self.store.database.tables
        if self._tables[0] is not tables:
            self._tables = tables, {}
        self._tables[1][name.lower()] = hides
        return hides

    def is_stored(self, name: str) -> bool:
        """True for a view or macro in a database file, whose later readers have other variables."""
        known = self.store.get(name)
        is_lasting = isinstance(known, Definition) and not known.temporary
        return is_lasting and self.store.database.path is not None

    def is_variable(self, name: str) -> bool:
        """True if FROM would read a variable of the caller by this name."""
        if self.store.get(name) is not None or not self.settings.reads_variables:
            return False
        return self.scope.find(name) is not None and not self.duck.has(name)

    def note_hidden(self, name: str) -> None:
        """Adds a notice if a stored object hides a variable of its name."""
        stored = self.store.get(name)
        is_ours = isinstance(stored, Tensor) and stored.borrowed
        if is_ours or not self.settings.reads_variables or self.scope.find(name) is None:
            return
        notice = f'"{name}" is read from the database, which hides the variable of this name'
        if notice not in self.notices:
            self.notices.append(notice)

    def has_table(self, name: str) -> bool:
        """True if DuckDB has a table or view of the name, or the caller a table."""
        return self.duck.has(name) or self.show_table(name)

    def show_table(self, name: str) -> bool:
        """Shows a table among the caller's variables to DuckDB until the statement ends.

        Returns:
            True if the name refers to such a table.

        Raises:
            InterfaceError: DuckDB cannot read the table.
        """
        if name.lower() in self.shown:
            return True
        rows = self.scope.table(name) if self.settings.reads_variables else None
        if rows is None or self.store.get(name) is not None:
            return False
        if self.duck.has(name):
            self.note_hidden(name)
            return False
        self.shown[name.lower()] = readable = readable_table(rows)
        self.duck.show(name, readable)
        return True

    def change_shown(self, tables: Mapping[str, object]) -> dict[str, object]:
        """Replaces the tables that are shown to DuckDB.

        Returns:
            The tables before. A statement sees none of those of an enclosing statement.
        """
        before = self.shown
        for name in before:
            self.duck.hide(name)
        for name, rows in tables.items():
            self.duck.show(name, rows)
        self.shown = dict(tables)
        return before

    def change_settings(self, settings: Settings) -> None:
        """Replaces the session's settings and drops the plans for the old settings.

        Raises:
            Error: DuckDB rejects the settings; the old ones stay.
        """
        before, self.settings = self.settings, settings
        try:
            self.duck.apply()
        except Error:
            self.settings = before
            raise
        self.memory.change(settings)
        self.plans.clear()

    def regrouped(self, lost: RanksLost) -> None:
        """Adapts settings and plans to the remaining ranks."""
        self.plans.clear()
        if self.settings.sites == lost.before:
            self.settings = replace(self.settings, sites=lost.left)
        self.notices.append(f"{lost.reason}; {lost.left} ranks continue")
