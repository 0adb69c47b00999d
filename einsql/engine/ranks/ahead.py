"""Runs that ranks get before they have answered the previous ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from einsql.core.big_stack import statement_thread
from einsql.core.records import dataclass
from einsql.engine.ranks.call import Call, Tick

MOST = 64
"""Greatest number of unanswered runs: more hide no more time, and all are repeated on a failure."""

MOST_BYTES = 2**26
"""Bytes of unanswered results from which only `LEAST` runs wait: ranks keep them all."""

LEAST = 2
"""Number of unanswered runs of any size: one that runs, and one that the ranks begin next."""


@dataclass(frozen=True, slots=True, eq=False)
class Started:
    """A run whose answer is awaited.

    Attributes:
        call: The run.
        hear: Callback with the answer of each rank.
        nbytes: Bytes of its results.
    """

    call: Call
    hear: Callable[[list[Any]], None]
    nbytes: int


class Ahead:
    """The unanswered runs of a cluster, oldest first.

    Attributes:
        owner: The thread of the loop that starts runs ahead; 0 without such a loop.
        begun: The number of runs that were started since `reset`.
        done: The number of these that all ranks have completed, in order.
        allowed: Whether runs may start ahead.
        stopping: The exception that cancels all runs, in whichever thread takes their answers.
        error: The error of a run; no call is possible until `reset`.
        lost: Whether ranks have ended.
    """

    def __init__(self) -> None:
        self.owner = self.begun = self.done = 0
        self.allowed = False
        self.stopping: BaseException | None = None
        self.error: BaseException | None = None
        self.lost = False
        self.calls: dict[int, Call] = {}
        self._runs: deque[Started] = deque()
        self._hearing: Call | None = None

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def is_own(self) -> bool:
        """Whether the statement of this thread starts runs ahead."""
        return self.owner == statement_thread()

    @property
    def is_full(self) -> bool:
        """Whether the oldest run must be answered before another one starts."""
        count = len(self._runs)
        return count >= MOST or (
            count >= LEAST and sum(run.nbytes for run in self._runs) > MOST_BYTES
        )

    @property
    def oldest(self) -> Call:
        """The oldest call."""
        return self._hearing or self._runs[0].call

    @property
    def latest(self) -> int:
        """The number of the newest run; 0 without runs."""
        return self._runs[-1].call.number if self._runs else 0

    def add(self, run: Started) -> None:
        """Adds the newest run; a cancellation of an older one cancels it, too."""
        self._runs.append(run)
        self.begun += 1
        self.calls[run.call.number] = run.call
        for older in self._runs:
            older.call.last = run.call.number

    def hear(self, interrupted: Callable[[], None], *, all_runs: bool, at_once: bool) -> None:
        """Takes the answers to the oldest runs, in order.

        Args:
            interrupted: Calls the handlers of received signals, which may raise.
            all_runs: Whether to wait for all runs, not only for the oldest.
            at_once: Whether to take only answers that have arrived.

        Raises:
            Gone: A rank has ended.
            Stubborn: Some ranks do not answer a cancellation.
        """
        while self._runs:
            self._hearing = None
            run = self._runs[0]
            run.call.interrupted = interrupted
            if at_once and self.error is None and not run.call.poll():
                return
            run.call.wait()
            self._hearing = run.call
            self._runs.popleft()
            del self.calls[run.call.number]
            if run.call.stopped is not None and self._runs:
                self._runs[0].call.stop(run.call.stopped)
            if self.error is None:
                self._ended(run)
            self._hearing = None
            if self.error is None and not all_runs and not at_once:
                return

    def _ended(self, run: Started) -> None:
        if run.call.succeeded:
            run.hear(run.call.answers())
            self.done += 1
            if not self._runs:
                self.error = run.call.stopped
            return
        try:
            run.call.values()
        except BaseException as error:
            self.error = error
            if run.call.apart:
                raise

    def checked(self, tick: Tick) -> Tick:
        """Returns the tick of a run, which also raises `stopping`."""

        def check(fraction: float) -> None:
            if self.stopping is not None:
                raise self.stopping
            tick(fraction)

        return check

    def drop(self, reason: BaseException) -> None:
        """Drops all runs, because the ranks have ended."""
        self._runs.clear()
        self.calls.clear()
        self.error, self.lost = reason, True

    def reset(self) -> None:
        """Forgets all runs and their error."""
        self.error, self.stopping, self.lost = None, None, False
        self.begun = self.done = 0
