"""Cancellation and progress of a connection's statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from einsql.errors import InterruptedError

Check = Callable[[float], None]
"""Callback with the completed fraction, 0 to 1; raises to stop."""

_watch: ContextVar[Check | None] = ContextVar("_watch", default=None)


class Interrupts:
    """The cancellation token of a connection, shared by the threads that use it."""

    def __init__(self) -> None:
        self._latest = object()

    def send(self) -> None:
        """Cancels everything that is running."""
        self._latest = object()

    def begin(self) -> Check:
        """Begins an operation that can be cancelled.

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
    """The progress of the running statement, and its cancellation.

    Attributes:
        interrupts: The token by which another thread cancels the statement.
        report: Callback with the completed fraction, from the statement's thread, or None.
        report_step: Callback with the description and the row of each completed step of a FOR,
            from the same thread, or None.
        stage: The start of the running part of a script or loop as a fraction of the total, and
            its share.
        partial: The rows of a loop before it failed, or None.
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
        """Begins a statement, which an interrupt cancels from now on.

        Returns:
            The check for threads and ranks that fetch data for the statement.
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
    """Makes `check` available in this thread to the code that fetches data.

    A field is read by name deep inside of the code that uses it, which has no `tick` argument.
    """
    token = _watch.set(check)
    try:
        yield
    finally:
        _watch.reset(token)


def watch() -> Check | None:
    """Returns the check of this thread, or None."""
    return _watch.get()
