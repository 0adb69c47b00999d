"""Cancellation and progress of a connection's statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from einsql.errors import InterruptedError

Check = Callable[[float], None]
"""Asked whether to go on, with the fraction done; raises to stop."""

_watch: ContextVar[Check | None] = ContextVar("_watch", default=None)


class Interrupts:
    """The cancellation token of a connection, shared by the threads that use it."""

    def __init__(self) -> None:
        self._latest = object()

    def send(self) -> None:
        """Cancels everything that has begun."""
        self._latest = object()

    def begin(self) -> Check:
        """Begins something that can be cancelled.

        Returns:
            A check that raises InterruptedError, once, after an interrupt.
        """
        seen = self._latest

        def check(_: float) -> None:
            nonlocal seen
            if self._latest is not seen:
                seen = self._latest
                raise InterruptedError("The statement was cancelled")

        return check


class Progress:
    """The progress of the running statement, and whether it is cancelled.

    Attributes:
        interrupts: The token by which another thread cancels the statement.
        report: Called with the fraction done, from the thread that runs the statement, or None.
        report_step: Called with the description and the row of each step of a FOR that is
            complete, from the same thread, or None.
        stage: Where the running part of a script or loop begins, as a fraction of the whole,
            and its share.
        partial: What a loop that failed gave before; None if there is nothing.
    """

    __slots__ = ("_check", "interrupts", "partial", "report", "report_step", "stage")

    def __init__(self) -> None:
        self.interrupts = Interrupts()
        self.report: Callable[[float], None] | None = None
        self.report_step: Callable[[Sequence[Sequence[Any]], tuple[Any, ...]], None] | None = None
        self.stage = (0.0, 1.0)
        self.partial: object = None
        self._check = self.interrupts.begin()

    def begin(self) -> Check:
        """Begins a statement: from now on an interrupt cancels it.

        Returns:
            The check for threads and ranks that bring data to it.
        """
        self.partial = None
        self._check = self.interrupts.begin()
        return self._check

    def stop(self, check: Check) -> None:
        """Makes the running statement stop by an error that `check` raises."""
        self._check = check

    def tick(self, fraction: float) -> None:
        """Reports progress.

        Raises:
            InterruptedError: The statement is cancelled.
        """
        self._check(fraction)
        if self.report is not None:
            begin, share = self.stage
            self.report(begin + share * fraction)


@contextmanager
def watched(check: Check) -> Iterator[None]:
    """Meanwhile, in this thread, whoever brings data here asks `check` whether to go on.

    A field is asked for by its name alone, deep inside of what computes with it.
    """
    token = _watch.set(check)
    try:
        yield
    finally:
        _watch.reset(token)


def watch() -> Check | None:
    """What to ask, if anything."""
    return _watch.get()
