"""The thread pool of kernels: runs several pieces of one kernel's work at a time.

A kernel cuts its work into pieces that take less than 0.1 s each and write to disjoint
memory. The statement's thread runs pieces too, and reports progress between them.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from math import inf
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

import numpy as np

from einsql.core import forks
from einsql.kernels.kernel import Tick

T = TypeVar("T")

SOON = 2e-4
"""Seconds for which a caller polls its helpers before it sleeps."""

_state = threading.local()
_lock = threading.Lock()


def threads() -> int:
    """The number of threads of a kernel: NUMBA_NUM_THREADS, else the number of allowed cores.

    One within a piece, so that a kernel made of kernels does not start them twice.
    """
    if is_piece():
        return 1
    allowed = os.environ.get("NUMBA_NUM_THREADS", "")
    if allowed.isdigit() and int(allowed) > 0:
        return int(allowed)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_piece() -> bool:
    """True within a piece, and within `alone`."""
    return getattr(_state, "working", False)


@contextmanager
def alone() -> Iterator[None]:
    """Within it there is one thread: for work, or plans of work, too short to wake another."""
    outer, _state.working = getattr(_state, "working", False), True
    try:
        yield
    finally:
        _state.working = outer


def run(
    work: Callable[[T], None], pieces: Iterable[T], total: int, tick: Tick, *, blas: bool = False
) -> None:
    """Runs every piece, on all threads.

    Args:
        work: Runs a piece; floating-point conditions are ignored in it.
        pieces: The pieces, in the order of their start.
        total: The number of pieces.
        tick: Callback with the completed fraction, on the calling thread; raises to cancel.
        blas: Whether BLAS computes the pieces, which has separate threads.

    Raises:
        Exception: The first exception of a piece or `tick`, after all running pieces ended.
    """
    workers = min(threads(), total)
    if workers <= 1:
        with np.errstate(all="ignore"):
            for done, piece in enumerate(pieces, start=1):
                work(piece)
                tick(done / total)
        return
    if not blas:
        used()
    queue = _Queue(work, pieces)
    turns = [_Turn(queue) for _ in range(workers - 1)]
    before = _allowed()  # read before the caller is bound, as an interrupt may follow at once
    try:
        _hand_out(turns, before)
        queue.drain(lambda: tick(queue.done / total))
        _await(turns, lambda: tick(queue.done / total))
        tick(queue.done / total)
    finally:
        try:
            queue.stop()
            _take_back(turns)
        finally:  # a second interrupt comes while helpers end
            queue.forget()
            if before is not None:
                with suppress(OSError):  # none of these cores is left
                    os.sched_setaffinity(0, before)
    for turn in turns:
        if turn.error is not None:
            raise turn.error
    tick(1.0)  # the caller may have done its last piece before the helpers did theirs


def used() -> None:
    """Records that a kernel needs several threads."""
    _used[0] = monotonic()


def idle() -> float:
    """Seconds for which no kernel has wanted several threads, but for those of BLAS."""
    return monotonic() - _used[0]


def _await(turns: Sequence[_Turn], tick: Callable[[], None]) -> None:
    """Waits for started turns and cancels the others, which would have no pieces left."""
    for turn in turns:
        turn.revoke()
    end = monotonic() + SOON
    while running := [turn for turn in turns if not turn.ended]:
        if monotonic() < end:  # sleep and wake-up take longer than a short piece
            sleep(0)
        else:
            running[0].wait(0.25)
            tick()


class _Turn:
    """A request to one thread of the pool: to help with a queue.

    Attributes:
        error: The exception that it raised, or None.
    """

    def __init__(self, queue: _Queue[Any]) -> None:
        self.error: BaseException | None = None
        self._queue = queue
        self._claim = threading.Lock()
        self._end = threading.Lock()
        self._end.acquire()

    @property
    def ended(self) -> bool:
        return not self._end.locked()

    def take(self) -> None:
        """Helps, unless it is too late."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._queue.drain()
        except BaseException as error:  # any exception goes to the caller
            self.error = error
        finally:
            self._end.release()

    def revoke(self) -> None:
        """Cancels the turn if it has not started."""
        if self._claim.acquire(blocking=False):
            self._end.release()

    def wait(self, seconds: float = -1) -> None:
        if self._end.acquire(timeout=seconds):
            self._end.release()


class _Queue(Generic[T]):
    """Pieces that several threads take from.

    Attributes:
        done: The number of completed pieces.
    """

    def __init__(self, work: Callable[[T], None], pieces: Iterable[T]) -> None:
        self.work = work
        self.done = 0
        self._pieces: Iterator[T] = iter(pieces)
        self._lock = threading.Lock()
        self._stopped = False

    def drain(self, between: Callable[[], None] = lambda: None) -> None:
        """Runs the remaining pieces; calls `between` after each."""
        try:
            with alone(), np.errstate(all="ignore"):
                for piece in self._taken():
                    self.work(piece)
                    self.done += 1  # for progress alone: an update may be lost
                    between()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Cancels the remaining pieces."""
        self._stopped = True

    def forget(self) -> None:
        """Releases the references of the work; a thread may keep the queue a little longer."""
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


_used = [-inf]
"""The time of the last request for threads."""
_turns: SimpleQueue[_Turn | None] = SimpleQueue()
"""Turns that no thread has looked at yet; None wakes a thread for other work."""
_wanted = 0
"""The number of turns that are not withdrawn."""
_ids: list[int] = []
"""The system's ids of the pool's threads, which start on demand and never end."""


def _sleep(_: int) -> None:
    """Has a thread wait for its next turn at once."""


_stay: Callable[[int], None] = _sleep
"""The function that a thread calls after a turn, with its number."""
_leave: Callable[[bool], None] = _sleep
"""The function that calls threads back from there."""
_away: tuple[int, int, frozenset[int]] | None = None
"""The core that the pool's threads were kept off last, how many of them, and their others."""


def _hand_out(turns: Sequence[_Turn], allowed: set[int] | None) -> None:
    """Gives turns to the pool's threads, on other cores than the caller if some are known."""
    global _wanted
    with _lock:
        _wanted += len(turns)
        _start(_wanted)
        if allowed is not None and _wanted == len(turns):  # another caller has no better core
            _make_way(allowed)
    _leave(True)
    for turn in turns:
        _turns.put(turn)


def _start(count: int) -> None:
    """Sees to it that there are so many threads, of at most one for each core; under the lock."""
    while len(_ids) < count and len(_ids) < (os.cpu_count() or 1):
        thread = threading.Thread(
            target=_serve, args=(_turns, len(_ids) + 1), name="einsql-kernels", daemon=True
        )
        thread.start()
        _ids.append(thread.native_id or 0)


def _serve(turns: SimpleQueue[_Turn | None], number: int) -> None:
    while True:
        turn = turns.get()
        if turn is not None:
            turn.take()
        turn = None  # holds none while it waits, for a turn knows its error's frames
        _stay(number)


def stay(stays: Callable[[int], None], leave: Callable[[bool], None]) -> None:
    """Has threads of the pool look for other work before they sleep.

    Args:
        stays: Called by each thread then with its number, from 1 on.
        leave: Tells threads whether the pool wants them back.
    """
    global _stay, _leave
    _stay, _leave = stays, leave


def call_up(count: int, awake: int) -> None:
    """Wakes threads of the pool for other work, which are kept off the caller's core.

    Args:
        count: The number of requested threads.
        awake: The number of threads at such work.
    """
    if _wanted:  # the threads have pieces, and join later
        return
    away = _away
    core = _core()
    if awake >= count and (core is None or away is None or core() == away[0]):
        return
    with _lock:
        _start(count)
        allowed = _allowed()
        if allowed is not None and core is not None:
            _keep_off(core(), allowed)
    for _ in range(count - awake - _turns.qsize()):
        _turns.put(None)


def _take_back(turns: Sequence[_Turn]) -> None:
    """Waits until no turn is running or pending."""
    global _wanted
    for turn in turns:
        turn.revoke()
    for turn in turns:
        turn.wait()
    with _lock:
        _wanted -= len(turns)
        if not _wanted:
            _leave(False)


def _allowed() -> set[int] | None:
    """The cores that the caller is allowed; None if it cannot be bound to one of them."""
    if _core() is None:
        return None
    allowed = os.sched_getaffinity(0)
    return allowed if len(allowed) > 1 else None


def _make_way(allowed: set[int]) -> None:
    """Keeps the caller on its core, and the pool's threads off it.

    Linux often wakes a thread on the core of the one that woke it, and moves it only after
    milliseconds: work of that length would then be done by one core.

    Args:
        allowed: The cores that the caller is allowed, and will be again.
    """
    core = _core()
    with suppress(OSError):  # a core that was taken away
        here = -1 if core is None else core()
        if _keep_off(here, allowed):
            os.sched_setaffinity(0, {here})


def _keep_off(here: int, allowed: set[int]) -> bool:
    """Keeps the pool's threads off a core, if it is one of those allowed; whether it is."""
    global _away
    if here not in allowed:
        return False
    away = here, len(_ids), frozenset(allowed)
    with suppress(OSError):  # a thread that has ended
        if _away != away:
            for thread in _ids:
                os.sched_setaffinity(thread, allowed - {here})
            _away = away
    return True


@cache
def _core() -> Callable[[], int] | None:
    """A function that returns the core on which the calling thread runs."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    sched_getcpu: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    return sched_getcpu


def _forget() -> None:
    """Resets the pool in a forked child, which has no threads of its parent."""
    global _turns, _wanted, _away, _lock
    _turns, _wanted, _away, _lock = SimpleQueue(), 0, None, threading.Lock()
    _ids.clear()
    stay(_sleep, _sleep)


forks.at_fork(_forget)
