"""Interrupts, and how they reach those who bring data here without being handed a tick."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from einsql.errors import InterruptedError

Check = Callable[[float], None]
"""Asked whether to go on, with the fraction done; raises to stop."""

_watch: ContextVar[Check | None] = ContextVar("_watch", default=None)


class Interrupts:
    """The interrupts of a connection; each stops whatever it is doing at that moment."""

    def __init__(self) -> None:
        self._latest = object()

    def send(self) -> None:
        """Stops everything that has begun."""
        self._latest = object()

    def begin(self) -> Check:
        """Begins something: gives what raises InterruptedError, once, if an interrupt comes."""
        seen = self._latest

        def check(_: float) -> None:
            nonlocal seen
            if self._latest is not seen:
                seen = self._latest
                raise InterruptedError("The statement was cancelled")

        return check


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
