"""The processes behind a session's ranks, however they were started, and the lines to them."""

from __future__ import annotations

import contextlib
import os
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from weakref import WeakSet

from einsql.cluster.meeting import Meeting
from einsql.cluster.messages import Hello, Started
from einsql.cluster.wire import receive
from einsql.errors import OperationalError

START = 60.0
"""Seconds the ranks have to report."""


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """A rank's process and the line to it."""

    line: Connection
    started: Started

    def __str__(self) -> str:
        return str(self.started)


class Processes(ABC):
    """Ranks and the lines to them.

    Attributes:
        ranks: The process of each, by its number.
        tolerant: Whether the others go on when one ends (Open MPI with ULFM).
        owner: The process that they work for; a fork of it has no part in them.
    """

    tolerant = False

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.ranks: list[Process] = []
        self._connected: list[Process] = []
        self._ends = select.epoll()
        _known.add(self)

    # ---- they report

    def _gather(self, meeting: Meeting, ranks: int, check: Callable[[], None]) -> None:
        """Waits for every rank's Hello.

        Args:
            meeting: Where they call.
            ranks: How many there will be.
            check: Called meanwhile; raises to stop.

        Raises:
            OperationalError: They do not come.
        """
        found: dict[int, Process] = {}
        deadline = time.monotonic() + START
        with meeting.accepting(ranks, self._note):
            while len(found) < ranks:
                check()
                ready = {p.line: p for p in self._connected if p not in found.values()}
                for line in wait(list(ready), 0.02):
                    process = ready[line]  # type: ignore[index]  # only connections were given
                    try:
                        hello = receive(process.line)
                    except (EOFError, OSError):
                        raise self._failed(f"{len(found)} of {ranks} have reported") from None
                    assert isinstance(hello, Hello)
                    if hello.ranks != ranks:
                        raise self._failed(
                            f"the launcher and mpi4py are of different MPIs: of {ranks} "
                            f"processes one says that it is rank {hello.rank} of {hello.ranks}"
                        )
                    found[hello.rank] = process
                if len(found) < ranks and (time.monotonic() > deadline or not self._coming()):
                    raise self._failed(f"{len(found)} of {ranks} have reported")
        self.ranks = [found[n] for n in range(ranks)]

    def _note(self, line: Connection, started: Started) -> None:
        self._ends.register(line.fileno(), select.EPOLLRDHUP)
        self._connected.append(Process(line, started))

    @abstractmethod
    def _coming(self) -> bool:
        """True as long as those that are missing may still report."""

    @abstractmethod
    def _failed(self, reason: str) -> OperationalError:
        """Why they have not started, with all that is known."""

    # ---- they end

    def ended(self) -> list[int]:
        """The ranks that have ended, in the order in which they did."""
        return [self.ranks.index(p) for p in self._closed_lines() if p in self.ranks]

    def _closed_lines(self) -> list[Process]:
        # The kernel lists lines in the order in which they were closed.
        closed = [number for number, _ in self._ends.poll(0)]
        known = {p.line.fileno(): p for p in self._connected if not p.line.closed}
        return [known[number] for number in closed if number in known]

    def named(self, rank: int) -> str:
        """A rank in words."""
        return f"rank {rank} ({self.ranks[rank]})"

    def end_of(self, rank: int) -> str:
        """How a rank ended, as far as that is known."""
        return "has ended"

    def keep(self, ranks: Sequence[int]) -> None:
        """Goes on with some of the ranks, numbered anew in the given order."""
        kept = [self.ranks[n] for n in ranks]
        for process in self.ranks:
            if process not in kept:
                self._forget(process)
        self.ranks = kept

    def _forget(self, process: Process) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._ends.unregister(process.line.fileno())
        process.line.close()

    @abstractmethod
    def close(self) -> None:
        """Waits for the ranks, which were told to leave, and ends what stays."""

    @abstractmethod
    def end(self) -> None:
        """Ends the ranks at once."""

    def orphaned(self) -> None:
        """In a fork of the owner: lets go of the lines, which must close with the owner."""
        self._close_lines()

    def _close_lines(self) -> None:
        for process in self._connected:
            process.line.close()
        self._ends.close()


_known: WeakSet[Processes] = WeakSet()


def _forked() -> None:
    for processes in list(_known):
        processes.orphaned()


os.register_at_fork(after_in_child=_forked)
