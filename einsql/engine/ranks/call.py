"""One command to some ranks, and their answers. Each rank answers, also after a cancellation."""

from __future__ import annotations

import contextlib
import select
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from einsql.engine.ranks.framing import Unread, Withdrawn, receive, send
from einsql.engine.ranks.messages import (
    Answers,
    Cancel,
    Command,
    Decline,
    Done,
    Failed,
    Fallen,
    Handle,
    Order,
    Progress,
    Regroup,
)
from einsql.engine.ranks.processes import Processes
from einsql.errors import Error, InternalError, InterruptedError
from einsql.storage.out_of_memory import enough_memory

Tick = Callable[[float], None]

Unused = tuple[tuple[Handle, ...], tuple[int, ...]]
"""Handles of tiles and numbers of programs that a rank may release."""

STUBBORN = 10.0
"""Seconds within which ranks must answer after a cancellation."""

APART = 3.0
"""Seconds for the answers of the other ranks after MPI failed at a rank; they may never answer."""

GLANCE = 0.05
"""Seconds between two checks for a cancellation."""


class Gone(Exception):  # noqa: N818 - an expected event, handled by the caller
    """A rank has ended."""


class Stubborn(Exception):  # noqa: N818 - as above
    """Some ranks do not answer a cancellation.

    Attributes:
        ranks: Their numbers; some of them may only be waiting for the other ranks.
    """

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(ranks)
        self.ranks = ranks


class Call:
    """One command.

    Attributes:
        number: The command's number.
        last: The number of the last command that a cancellation of this one cancels.
        interrupted: Calls the handlers of received signals, which may raise.
        stopped: The exception that cancelled the call, or None.
        complete: Whether all ranks have answered, so that the connections are free for a new call.
    """

    def __init__(
        self,
        job: Processes,
        number: int,
        commands: Mapping[int, Command],
        tick: Tick | None = None,
        interrupted: Callable[[], None] = lambda: None,
        into: Mapping[int, Sequence[np.ndarray]] | None = None,
        others: Mapping[int, Call] | None = None,
    ) -> None:
        """Prepares a call.

        Args:
            job: The ranks.
            number: The command's number.
            commands: The command of each rank.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.
            interrupted: Calls the handlers of received signals, which may raise.
            into: By rank the target arrays of its answer, see `framing.receive`.
            others: Other unanswered calls by number; a message may have their answers, too.
        """
        self.number = self.last = number
        self.interrupted = interrupted
        self.stopped: BaseException | None = None
        self.complete = False
        self._job = job
        self._commands = commands
        self._tick = tick
        self._into = into or {}
        self._others = {} if others is None else others
        self._told: list[int] = []
        self._answers: dict[int, Done | Failed] = {}
        self._fraction = 0.0
        self._until = float("inf")

    @property
    def apart(self) -> bool:
        """Whether MPI failed at a rank."""
        return any(isinstance(a, Failed) and a.apart for a in self._answers.values())

    @property
    def succeeded(self) -> bool:
        """Whether all ranks have executed the command."""
        return len(self._answers) == len(self._commands) and all(
            isinstance(a, Done) for a in self._answers.values()
        )

    def tell(self, unused: Mapping[int, Unused], after: int = 0) -> None:
        """Sends the command. After a cancellation the remaining ranks get `Decline` instead.

        Args:
            unused: By rank the data that the driver no longer needs.
            after: The number of the run on whose success the command depends, or 0.

        Raises:
            Gone: A rank has ended.
        """
        # A rank that gets a message may take the core of this process; rank 0 often has most work.
        for rank, command in reversed(list(self._commands.items())):
            released, forgotten = unused[rank]
            order = Order(self.number, command, released, forgotten, after)
            if not self._goes_on() or not self._send(rank, order):
                declined = Decline(None, order.together)
                self._send(rank, Order(self.number, declined, released, forgotten, after))
            self._told.append(rank)

    def regroup(self) -> None:
        """Sends `Regroup` to all ranks instead of the command.

        Raises:
            Gone: A rank has ended.
        """
        self._until = time.monotonic() + STUBBORN
        for rank in self._commands:
            self._send(rank, Regroup(self.number))
            self._told.append(rank)

    def poll(self) -> bool:
        """Takes the answers that have arrived; returns whether all ranks have answered.

        Raises:
            Gone: A rank has ended.
        """
        while waiting := self._waiting():
            if not self._receive(waiting, 0.0):
                return False
        return True

    def wait(self) -> None:
        """Waits until all ranks have answered.

        Raises:
            Gone: A rank has ended.
            Stubborn: Some ranks do not answer.
        """
        while waiting := self._waiting():
            received = self._receive(waiting, GLANCE)
            self._look()
            # The line of a rank that ends is closed, as a rule; another process may keep it open.
            if not received and not self._commands.keys().isdisjoint(self._job.ended()):
                raise Gone
            if time.monotonic() > self._until:
                if self.apart:
                    break
                raise Stubborn(waiting)
        self.complete = not waiting

    def values(self) -> list[Any]:
        """Waits for all ranks, and returns their answers.

        Raises:
            Error: The command failed; if several ranks failed, the error of the first rank.
            InterruptedError: The command was cancelled.
            BaseException: An exception of `tick` or of a signal handler.
            Gone: A rank has ended.
            Stubborn: Some ranks do not answer.
        """
        self.wait()
        if self.stopped is not None:
            raise self.stopped
        return self.answers()

    def answers(self) -> list[Any]:
        """Returns the answers of the ranks, which have all answered.

        Raises:
            Error: The command failed; if several ranks failed, the error of the first rank.
            InterruptedError: The command was cancelled.
        """
        answers = [self._answers[r] for r in self._commands if r in self._answers]
        failures = [a for a in answers if isinstance(a, Failed)]
        for failure in failures:
            if failure.error is not None:
                raise _error(failure.error)
        if failures:
            raise InterruptedError("The statement was cancelled")
        return [a.value for a in answers if isinstance(a, Done)]

    # ---- messages

    def _waiting(self) -> list[int]:
        return [r for r in self._told if r not in self._answers]

    def _receive(self, waiting: Sequence[int], seconds: float) -> bool:
        """Takes the messages that arrive within some seconds; returns whether any did."""
        poll = select.poll()
        lines = {self._job.ranks[r].line.fileno(): r for r in waiting}
        for line in lines:
            poll.register(line, select.POLLIN)
        ready = poll.poll(seconds * 1000)
        for line, _ in ready:
            self._take(lines[line])
        return bool(ready)

    def _send(self, rank: int, message: object) -> bool:
        line = self._job.ranks[rank].line
        try:
            if isinstance(message, Order) and not isinstance(message.command, Decline):
                return send(line, message, self._goes_on)
            return send(line, message)
        except OSError:
            raise Gone from None
        except Exception as error:  # pickling failed, so no byte was sent
            if self.stopped is not None:
                raise
            self.stop(error)
            return False

    def _take(self, rank: int) -> None:
        try:
            message = receive(self._job.ranks[rank].line, self._look, self._into.get(rank, ()))
        except Withdrawn:
            return
        except Unread as unread:  # it may have the answers to several commands
            numbers = [n for n in self._others if n > unread.number]
            failures = (Failed(n, unread.reason) for n in (unread.number, *numbers))
            message = Answers(unread.number, tuple(failures))
        except (EOFError, OSError):
            raise Gone from None
        if isinstance(message, Fallen):
            self._job.note(self._job.ranks[rank], message)
            raise Gone
        if isinstance(message, Progress):
            self._fraction = message.fraction
        else:
            for answer in message.answers if isinstance(message, Answers) else (message,):
                call = self._others.get(answer.number)
                if answer.number == self.number:
                    self.answered(rank, answer)
                elif call is not None:
                    call.answered(rank, answer)

    def answered(self, rank: int, answer: Done | Failed) -> None:
        """Records the answer of a rank."""
        self._answers[rank] = answer
        if self.apart:
            self._until = min(self._until, time.monotonic() + APART)

    # ---- cancelling

    def _goes_on(self) -> bool:
        self._look()
        return self.stopped is None

    def _look(self) -> None:
        """Checks for a cancellation, and passes it on to the ranks."""
        try:
            self.interrupted()
            if self._tick is not None and self.stopped is None:
                self._tick(self._fraction)
        except BaseException as error:  # after any error the order of messages must hold
            if self.stopped is None:
                self.stop(error)
            else:
                self._until = 0.0  # a second Ctrl-C: do not wait for the ranks

    def stop(self, reason: BaseException) -> None:
        """Cancels the call, and those up to `last`."""
        self.stopped = reason
        self._until = time.monotonic() + STUBBORN
        for rank in self._told:
            with contextlib.suppress(OSError):  # the end of a rank is detected elsewhere
                send(self._job.ranks[rank].line, Cancel(self.number, self.last))


def _error(reason: BaseException) -> Error:
    try:
        with enough_memory:
            raise reason
    except Error as error:
        return error
    except BaseException as error:
        return InternalError(f"The answer of a rank cannot be read: {error}")
