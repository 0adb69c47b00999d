"""A stack for statements that nest deeper than a thread's own stack allows."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from einsql.errors import ProgrammingError

T = TypeVar("T")

SHALLOW = 20
"""Nesting depth of a text, with the definitions that it reads, that fits into any stack."""
_STACK = 512 * 2**20
"""Bytes of the deep stack: 2 KB for each of `_FRAMES`, and a reserve."""
_FRAMES = 200_000
"""Python's recursion limit on the deep stack: 200 frames for each of 999 nested expressions."""


class NeedsRoom(BaseException):
    """Planning may exceed the caller's stack; it is raised before planning has effects."""


class _Limits:
    """Python's recursion limit for all threads, which is raised while a deep thread runs."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._running = 0
        self._usual = 0

    def start(self, thread: threading.Thread) -> None:
        """Starts a thread with a deep stack."""
        with self._changing:
            if not self._running:
                self._usual = sys.getrecursionlimit()
                sys.setrecursionlimit(max(self._usual, _FRAMES))
            self._running += 1
            before = threading.stack_size(_STACK)
            try:
                thread.start()
            except BaseException:
                self._leave()
                raise
            finally:
                threading.stack_size(before)

    def end(self) -> None:
        """Restores the recursion limit when the last thread with a deep stack has ended."""
        with self._changing:
            self._leave()

    def _leave(self) -> None:
        self._running -= 1
        if not self._running:
            sys.setrecursionlimit(self._usual)


_limits = _Limits()
_here = threading.local()


class Inherited:
    """A lock of a connection that a thread with a deep stack does not acquire.

    The connection's thread holds the lock while it waits for the deep thread.
    """

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        if not is_deep():
            self._lock.__enter__()

    def __exit__(self, *exc: Any) -> None:
        if not is_deep():
            self._lock.__exit__(*exc)


def is_deep() -> bool:
    """True in a thread with a deep stack."""
    return getattr(_here, "deep", False)


def statement_thread() -> int:
    """Returns the thread of the running statement, which may wait for this thread."""
    caller: int = getattr(_here, "caller", threading.get_ident())
    return caller


def require_room(depth: int) -> None:
    """Makes planning restart on a deep stack if it would nest deeply on a normal one.

    Args:
        depth: The total nesting depth of the definitions being read.

    Raises:
        NeedsRoom: Planning has to restart.
    """
    if depth > SHALLOW and not is_deep():
        raise NeedsRoom


def with_room(run: Callable[[], T], depth: int = 0) -> T:
    """Runs a function on the caller's stack, or on a deep one if that may be too small.

    Args:
        run: The function, which is called a second time if it raises NeedsRoom.
        depth: The nesting depth of its text. Above `SHALLOW` the first call uses the deep stack.

    Raises:
        ProgrammingError: The deep stack is too small.
    """
    try:
        if depth <= SHALLOW:
            try:
                return run()
            except NeedsRoom:
                pass
        return with_deep_stack(run)
    except RecursionError:
        raise ProgrammingError("The statement nests too deeply") from None


def with_deep_stack(run: Callable[[], T]) -> T:
    """Runs on a thread whose stack fits expressions nested a thousand deep."""
    outcome: list[T] = []
    failure: list[BaseException] = []
    caller = statement_thread()

    def target() -> None:
        _here.deep, _here.caller = True, caller
        try:
            outcome.append(run())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=target, name="einsql-deep")
    _limits.start(thread)
    try:
        thread.join()
    finally:
        _limits.end()
    if failure:
        raise failure[0]
    return outcome[0]
