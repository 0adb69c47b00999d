"""Context: the services for planning and running a statement."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import field, replace
from types import FrameType
from typing import TYPE_CHECKING

from einsql.core.records import dataclass
from einsql.core.settings import Settings
from einsql.engine.cancellation import Progress
from einsql.errors import Error, RanksLost
from einsql.planner.plan_cache import PlanCache
from einsql.planner.target import ExecutionTarget, target_of
from einsql.storage.host_arrays import array_in_scope
from einsql.storage.memory import Memory
from einsql.storage.session_store import Store

if TYPE_CHECKING:
    from einsql.engine.ranks.driver import Cluster
    from einsql.engine.step import Tick
    from einsql.storage.duckdb.connection import Duck


class CallerScope:
    """The variables of the Python function that runs a statement."""

    __slots__ = ("_frame",)

    def __init__(self) -> None:
        self._frame: FrameType | None = None

    def enter(self, frame: FrameType) -> FrameType | None:
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

    def array(self, name: str, external: bool) -> object | None:
        """Returns the array of a variable, or None.

        Args:
            name: The variable's name in FROM.
            external: Whether external access is on.
        """
        return array_in_scope(self._frame, name) if external else None


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
    lock: threading.RLock = field(default_factory=threading.RLock)

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
        """Returns an array among the caller's variables; None while external access is off."""
        return self.scope.array(name, self.settings.enable_external_access)

    def array_named(self, name: str) -> object | None:
        """Returns an array among the caller's variables, unless DuckDB has a table of that name."""
        array = self.in_scope(name)
        return None if array is not None and self.duck.has(name) else array

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
