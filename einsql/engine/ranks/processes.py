"""The processes of a session's ranks, for each way to start them, and the connections to them."""

from __future__ import annotations

import contextlib
import select
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait

from einsql.core import forks
from einsql.core.records import dataclass
from einsql.engine.ranks.failure_diagnosis import Ended, Loss, each, listed, loss
from einsql.engine.ranks.framing import Unread, Withdrawn, receive
from einsql.engine.ranks.messages import Fallen, Hello, Started
from einsql.engine.ranks.rendezvous import Meeting, patience
from einsql.errors import OperationalError

START = 60.0
"""Seconds for the ranks to report."""


_NAMED = 8
"""Greatest number of ranks that an error lists; it counts the remaining ones."""


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """A rank's process and the connection to it."""

    line: Connection
    started: Started

    def __str__(self) -> str:
        return str(self.started)


class Processes(ABC):
    """Ranks and the connections to them.

    Attributes:
        ranks: The process of each rank, by its number.
        tolerant: Whether the others continue after the end of a rank (Open MPI with ULFM).
        ordered: Whether the connections close in the order in which the ranks end.
    """

    tolerant = False
    ordered = False

    def __init__(self) -> None:
        self.ranks: list[Process] = []
        self._connected: list[Process] = []
        self._closed: list[Process] = []
        self._words: dict[Process, BaseException] = {}
        self._ends = select.epoll()
        forks.register(self)

    # ---- start

    def _gather(self, meeting: Meeting, ranks: int, check: Callable[[], None]) -> None:
        """Waits for every rank's Hello.

        Args:
            meeting: The listener for their connections.
            ranks: The expected number of ranks.
            check: Called during the wait; raises to stop.

        Raises:
            OperationalError: Some ranks do not connect.
        """
        reported: dict[int, Process] = {}
        deadline = time.monotonic() + START
        with meeting.accepting(ranks, self._note):
            while len(reported) < ranks:
                check()
                ready = {p.line: p for p in self._connected if p not in reported.values()}
                for line in wait(list(ready), 0.02):
                    process = ready[line]  # type: ignore[index]  # connections only
                    try:
                        patience(process.line, max(0.1, deadline - time.monotonic()))
                        hello = receive(process.line)
                        patience(process.line, 0.0)
                    except (EOFError, OSError):
                        raise self._failed(self._reported(reported, ranks)) from None
                    if isinstance(hello, Fallen):
                        self.note(process, hello)
                        raise self._failed(self._reported(reported, ranks))
                    assert isinstance(hello, Hello)
                    if hello.ranks != ranks:
                        raise self._failed(
                            f"the launcher and mpi4py use different MPIs: of {ranks} "
                            f"processes one reports rank {hello.rank} of {hello.ranks}"
                        )
                    reported[hello.rank] = process
                if len(reported) < ranks and (time.monotonic() > deadline or not self._coming()):
                    raise self._failed(self._reported(reported, ranks))
        self.ranks = [reported[n] for n in range(ranks)]

    def _reported(self, reported: Mapping[int, Process], ranks: int) -> str:
        """Describes how many ranks have reported, and which have not."""
        called = [p for p in self._connected if p not in reported.values()]
        numbers = {p.started.rank for p in called}
        text = f"{len(reported)} of {ranks} have reported"
        if called:
            names = [self._known(p) for p in called[:_NAMED]]
            text += f"; {listed(names)}{_and_more(called)} called, but MPI has not started there"
        absent = [n for n in range(ranks) if n not in reported and n not in numbers]
        if None in numbers:  # the launcher assigns no numbers
            absent = absent[len(called) :]
            text += f"; {len(absent)} ranks have not called" if absent else ""
        elif absent:
            some = [str(n) for n in absent[:_NAMED]]
            which = " and ".join(filter(None, [", ".join(some[:-1]), some[-1]]))
            word = "rank" if len(absent) == 1 else "ranks"
            verb = "has" if len(absent) == 1 else "have"
            text += f"; {word} {which}{_and_more(absent)} {verb} not called"
        return text

    def _note(self, line: Connection, started: Started) -> None:
        self._connected.append(Process(line, started))
        # Level-triggered events would report a closed connection again, in another order.
        self._ends.register(line.fileno(), select.EPOLLRDHUP | select.EPOLLET)

    @abstractmethod
    def _coming(self) -> bool:
        """Whether the missing ranks may still report."""

    @abstractmethod
    def _failed(self, reason: str) -> OperationalError:
        """Describes why the ranks have not started, with all known causes."""

    # ---- end

    def ended(self) -> list[int]:
        """Returns the ranks that have ended or announced their end, in the order of their ends."""
        return [self.ranks.index(p) for p in self._gone() if p in self.ranks]

    def _gone(self) -> list[Process]:
        # The kernel lists connections in the order in which they were closed.
        closed = [number for number, _ in self._ends.poll(0)]
        known = {p.line.fileno(): p for p in self._connected if not p.line.closed}
        ended = [known[number] for number in closed if number in known]
        self._closed += [p for p in dict.fromkeys(ended) if p not in self._closed]
        return [*(p for p in self._words if p not in self._closed), *self._closed]

    def note(self, process: Process, last: Fallen) -> None:
        """Records the reason of a rank's end."""
        self._words[process] = last.reason

    def loss(self) -> Loss:
        """Determines which rank ended first, and how, as far as known."""
        ended = [self._known(p) for p in self._gone()]
        if self.tolerant and not any(e.words for e in ended):
            return each(ended)
        return self._judged(ended)

    def _judged(self, ended: Sequence[Ended]) -> Loss:
        return loss(ended, self._left(), self.ordered)

    def _left(self) -> list[Ended]:
        gone = self._gone()
        return [self._known(p) for p in list(self._connected) if p not in gone]

    def _known(self, process: Process) -> Ended:
        """Returns the state of a rank, with the last message if it has ended."""
        with contextlib.suppress(EOFError, OSError):
            while process in self._closed and process not in self._words and process.line.poll():
                with contextlib.suppress(Withdrawn, Unread):
                    message = receive(process.line)
                    if isinstance(message, Fallen):
                        self.note(process, message)
        number = self.ranks.index(process) if process in self.ranks else process.started.rank
        return Ended(number, process.started, self._words.get(process))

    def named(self, ranks: Sequence[int]) -> str:
        """Returns text that lists ranks."""
        return listed([self._known(self.ranks[n]) for n in ranks])

    def keep(self, ranks: Sequence[int]) -> None:
        """Continues with some of the ranks, renumbered in the given order."""
        kept = [self.ranks[n] for n in ranks]
        for process in self.ranks:
            if process not in kept:
                self._forget(process)
        self.ranks = kept

    def _forget(self, process: Process) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._ends.unregister(process.line.fileno())
        process.line.close()
        self._connected.remove(process)
        self._closed = [p for p in self._closed if p is not process]
        self._words.pop(process, None)

    @abstractmethod
    def close(self) -> None:
        """Waits for the ranks to exit after `Shutdown`, and kills the remaining ones."""

    @abstractmethod
    def end(self) -> None:
        """Ends the ranks at once."""

    def forked(self, _: forks.Refusal) -> None:
        """In a forked child: closes its copies of the connections."""
        self._close_lines()

    def _close_lines(self) -> None:
        for process in self._connected:
            process.line.close()
        self._ends.close()


def _and_more(ranks: Sequence[object]) -> str:
    return f" and {len(ranks) - _NAMED} more" if len(ranks) > _NAMED else ""
