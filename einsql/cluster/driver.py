"""The process that holds the connection: it tells the ranks what to do and asks for tiles."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from multiprocessing.connection import wait
from typing import Any, Self

import numpy as np

from einsql.cluster.meeting import Processes
from einsql.cluster.messages import (
    Cancel,
    Command,
    Done,
    Failed,
    Handle,
    Order,
    Progress,
    Shutdown,
)
from einsql.cluster.wire import receive, send
from einsql.errors import Error, InternalError, InterruptedError, OperationalError

Tick = Callable[[float], None]

_GLANCE = 0.05
"""Seconds between two looks whether the statement was cancelled."""


class Lease:
    """Tiles or a program at the ranks; they may forget them once this is collected.

    Attributes:
        number: Its handle.
    """

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number


class Cluster:
    """The ranks of a session.

    Attributes:
        ranks: How many there are.
    """

    def __init__(self, start: Callable[[], Processes]) -> None:
        """Starts the ranks.

        Args:
            start: Gives their processes, which end when nobody needs the cluster any more.

        Raises:
            OperationalError: There is no MPI, or they do not start.
        """
        job = start()
        self.ranks = len(job.lines)
        self._users = 0
        self._numbers = count(1)
        self._released: list[Handle] = []
        self._forgotten: list[int] = []
        self._busy = threading.RLock()
        self._job = job
        self._end = weakref.finalize(self, _leave, job)

    def join(self) -> Self:
        """Counts one more connection that uses the ranks."""
        self._users += 1
        return self

    def part(self) -> None:
        """Counts one connection less; the ranks leave with the last one."""
        self._users -= 1
        if self._users == 0:
            self.close()

    def kill(self) -> None:
        """Ends the ranks at once, whatever they do."""
        self._end.detach()
        self._job.kill()

    def tiles(self) -> Lease:
        """A handle for tiles that ranks are about to make."""
        lease = Lease(next(self._numbers))
        weakref.finalize(lease, self._released.append, lease.number)
        return lease

    def plan(self) -> Lease:
        """A handle for a program."""
        lease = Lease(next(self._numbers))
        weakref.finalize(lease, self._forgotten.append, lease.number)
        return lease

    def close(self) -> None:
        """Ends the ranks."""
        self._end()

    def all(self, command: Command, tick: Tick | None = None) -> list[Any]:
        """Tells every rank the same and gives their answers in order.

        Raises:
            Error: As `call`.
        """
        return self.call(dict.fromkeys(range(self.ranks), command), tick)

    def call(
        self, commands: Mapping[int, Command], tick: Tick | None = None,
        into: Mapping[int, Sequence[np.ndarray]] | None = None,
    ) -> list[Any]:  # fmt: skip
        """Tells some ranks what to do and waits for all of their answers.

        Args:
            commands: By rank.
            tick: Told how far they are; raises to cancel.
            into: By rank where the arrays of its answer belong, as for `wire.receive`.

        Returns:
            What each of them gave, in the order of `commands`.

        Raises:
            InterruptedError: The work was cancelled.
            Error: It failed; the first rank's error, if several failed.
            OperationalError: A rank has gone.
        """
        with self._busy:
            number, self._fraction = next(self._numbers), 0.0
            released, forgotten = tuple(self._released), tuple(self._forgotten)
            del self._released[: len(released)], self._forgotten[: len(forgotten)]
            # Who gets no command must hear of what is released with a later one.
            quiet = set(range(self.ranks)) - set(commands)
            if quiet:
                self._released[:0], self._forgotten[:0] = released, forgotten
                released, forgotten = (), ()
            for rank, command in commands.items():
                self._send(rank, Order(number, command, released, forgotten))
            return self._answers(number, list(commands), tick, into or {})

    def _answers(
        self, number: int, ranks: Sequence[int], tick: Tick | None,
        into: Mapping[int, Sequence[np.ndarray]],
    ) -> list[Any]:  # fmt: skip
        lines = {self._job.lines[rank]: rank for rank in ranks}
        answers: dict[int, Done | Failed] = {}
        stopped: BaseException | None = None
        while len(answers) < len(ranks):
            for line in wait([line for line, r in lines.items() if r not in answers], _GLANCE):
                rank = lines[line]  # type: ignore[index]  # only connections were given
                message = self._receive(rank, into.get(rank, ()))
                if isinstance(message, Progress):
                    self._progress(message.fraction, tick)
                elif message.number == number:
                    answers[rank] = message
            if tick is not None and stopped is None:
                try:
                    tick(self._fraction)
                except BaseException as error:  # Ctrl-C may come as well
                    stopped = error
                    for rank in ranks:
                        self._send(rank, Cancel(number))
        failed = [a for a in answers.values() if isinstance(a, Failed)]
        if stopped is not None:
            raise stopped
        for failure in failed:
            if failure.error is not None:
                raise _error(failure)
        if failed:
            raise InterruptedError("The statement was cancelled")
        return [a.value for r in ranks if isinstance(a := answers[r], Done)]

    _fraction = 0.0

    def _progress(self, fraction: float, tick: Tick | None) -> None:
        self._fraction = fraction

    def _send(self, rank: int, message: object) -> None:
        try:
            send(self._job.lines[rank], message)
        except OSError:
            raise self._lost(rank) from None

    def _receive(self, rank: int, into: Sequence[np.ndarray]) -> Any:
        try:
            return receive(self._job.lines[rank], into)
        except (EOFError, OSError):
            raise self._lost(rank) from None

    def _lost(self, rank: int) -> OperationalError:
        """The ranks have ended; the reason, in words."""
        hello = self._job.ranks[rank]
        self._job.kill()
        return OperationalError(
            f"Rank {rank} (process {hello.pid} on {hello.host}) has ended, and the others with it"
        )


def _leave(job: Processes) -> None:
    for line in job.lines:
        try:
            send(line, Order(0, Shutdown()))
        except OSError:
            break
    job.close()


def _error(failure: Failed) -> Error:
    if isinstance(failure.error, Error):
        return failure.error
    return InternalError(f"A rank failed: {failure.trace.strip()}")
