"""The threads that kernels share: pieces of one kernel's work, several at a time.

A kernel cuts its work into pieces that take less than 0.1 s each and write to different
places. The thread that runs the statement works too, and reports progress in between.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache
from typing import Generic, TypeVar

import numpy as np

from einsql.kernels.kernel import Tick

T = TypeVar("T")

_state = threading.local()
_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def threads() -> int:
    """How many threads a kernel runs on: NUMBA_NUM_THREADS, else the cores allowed.

    One within a piece, so that a kernel made of kernels does not start them twice.
    """
    if getattr(_state, "working", False):
        return 1
    allowed = os.environ.get("NUMBA_NUM_THREADS", "")
    if allowed.isdigit() and int(allowed) > 0:
        return int(allowed)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def alone() -> Iterator[None]:
    """Within it there is one thread: for work, or plans of work, too short to wake another."""
    outer, _state.working = getattr(_state, "working", False), True
    try:
        yield
    finally:
        _state.working = outer


def run(work: Callable[[T], None], pieces: Iterable[T], total: int, tick: Tick) -> None:
    """Does every piece, as many at a time as there are threads.

    Args:
        work: Does a piece; floating-point conditions are not reported within.
        pieces: The pieces; they are begun in this order.
        total: How many there are.
        tick: Told the fraction done by the calling thread; raises to cancel.

    Raises:
        Exception: The first that a piece or `tick` raised; no piece is running any more.
    """
    workers = min(threads(), total)
    if workers <= 1:
        with np.errstate(all="ignore"):
            for done, piece in enumerate(pieces, start=1):
                work(piece)
                tick(done / total)
        return
    queue = _Queue(work, pieces)
    pool = _threads()
    _make_way()
    helpers = [pool.submit(queue.drain) for _ in range(workers - 1)]
    try:
        queue.drain(lambda: tick(queue.done / total))
        _await(helpers, lambda: tick(queue.done / total))
        tick(queue.done / total)
    finally:
        queue.stop()
        wait([h for h in helpers if not h.cancel()])
        queue.forget()
    for helper in helpers:
        if not helper.cancelled():
            helper.result()
    tick(1.0)  # the caller may have done its last piece before the helpers did theirs


def _await(helpers: list[Future[None]], tick: Callable[[], None]) -> None:
    """Waits for helpers that have begun; those that have not find nothing left."""
    begun = [h for h in helpers if not h.cancel()]
    while wait(begun, timeout=0.25).not_done:
        tick()


class _Queue(Generic[T]):
    """Pieces that several threads take from.

    Attributes:
        done: How many have been done.
    """

    def __init__(self, work: Callable[[T], None], pieces: Iterable[T]) -> None:
        self.work = work
        self.done = 0
        self._pieces: Iterator[T] = iter(pieces)
        self._lock = threading.Lock()
        self._stopped = False

    def drain(self, between: Callable[[], None] = lambda: None) -> None:
        """Does pieces until none is left; calls `between` after each."""
        try:
            with alone(), np.errstate(all="ignore"):
                for piece in self._taken():
                    self.work(piece)
                    self.done += 1
                    between()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Lets no further piece begin."""
        self._stopped = True

    def forget(self) -> None:
        """Lets go of what the work holds; a thread may hold the queue a little longer."""
        self.work = lambda piece: None
        self._pieces = iter(())

    def _taken(self) -> Iterator[T]:
        while not self._stopped:
            with self._lock:
                try:
                    piece = next(self._pieces)
                except StopIteration:
                    return
            yield piece


def _threads() -> ThreadPoolExecutor:
    """The pool, whose threads start when they are needed and stay."""
    global _pool
    with _lock:
        if _pool is None:
            size = max(1, os.cpu_count() or 1)
            _pool = ThreadPoolExecutor(
                size, "einsql-kernels", lambda: _ids.append(threading.get_native_id())
            )
        return _pool


_ids: list[int] = []
"""The system's numbers of the pool's threads."""


def _make_way() -> None:
    """Keeps the pool's threads off the core that the caller runs on.

    Linux often wakes a thread on the core of the one that woke it, and moves it only after
    milliseconds: work of that length would then be done by one core.
    """
    core = _core()
    if core is None:
        return
    with suppress(OSError):  # a thread that has ended, or a core that was taken away
        others = os.sched_getaffinity(0) - {core()}
        for thread in _ids if others else ():
            os.sched_setaffinity(thread, others)


@cache
def _core() -> Callable[[], int] | None:
    """What tells the number of the core that the calling thread runs on."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    found: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    return found


def _forget() -> None:
    """A forked child has none of its parent's threads."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()
    _ids.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
