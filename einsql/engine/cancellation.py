"""Cancellation and progress of a connection's statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from einsql.errors import InterruptedError, OperationalError

Check = Callable[[float], None]
"""Callback with the completed fraction, 0 to 1; raises to stop."""

_watch: ContextVar[Check | None] = ContextVar("_watch", default=None)


class AheadError(Exception):
    """A run failed after later statements have begun; its results and theirs do not exist.

    It is no `einsql.Error`, so that no statement handles it.

    Attributes:
        reason: The error of the run.
    """

    def __init__(self, reason: BaseException) -> None:
        super().__init__(reason)
        self.reason = reason


def reason_of(error: BaseException) -> BaseException:
    """Returns the reason of an `AheadError`; other errors are their own reason."""
    return error.reason if isinstance(error, AheadError) else error


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
        report_reads: Whether `report_step` may read tensors, so that the next step waits for it.
        stage: The start of the running part of a script or loop as a fraction of the total, and
            its share.
        partial: The rows of a loop before it failed, or None.
        in_step: Whether `report_step` runs now.
    """

    __slots__ = (
        "_check", "in_step", "interrupts", "partial", "report", "report_reads", "report_step",
        "stage",
    )  # fmt: skip

    def __init__(self) -> None:
        self.interrupts = Interrupts()
        self.report: Callable[[float], None] | None = None
        self.report_step: Callable[[Sequence[Sequence[Any]], tuple[Any, ...]], None] | None = None
        self.report_reads = True
        self.stage = (0.0, 1.0)
        self.partial: object = None
        self.in_step = False
        self._check = self.interrupts.begin()

    def begin(self) -> Check:
        """Begins a statement, which an interrupt cancels from now on.

        Returns:
            The check for threads and ranks that fetch data for the statement.
        """
        self.partial = None
        self._check = self.interrupts.begin()
        return self._check

    def call_step(self, description: Sequence[Sequence[Any]], row: tuple[Any, ...]) -> None:
        """Calls `report_step`, which may run statements and other loops."""
        if self.report_step is None:
            return
        before, self.in_step = self.in_step, True
        try:
            self.report_step(description, row)
        finally:
            self.in_step = before

    def refuse_in_step(self) -> None:
        """Refuses to begin or end a transaction in `report_step`.

        Raises:
            OperationalError: The transaction is the running loop's.
        """
        if self.in_step:
            raise OperationalError(
                "A callback of a loop cannot begin or end a transaction: it is the loop's",
                hint="COMMIT as a statement of the loop's body commits each step.",
            )

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
