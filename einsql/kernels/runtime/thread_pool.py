"""The thread pool of kernels: runs several pieces of one kernel's work at a time.

A kernel divides its work into pieces that take less than 0.1 s each and write to disjoint
memory. The statement's thread also runs pieces, and reports progress between them.
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
"""The seconds for which a caller polls its helpers before it sleeps."""

_state = threading.local()
_lock = threading.Lock()


def threads() -> int:
    """Returns the number of threads of a kernel.

    It is NUMBA_NUM_THREADS, otherwise the number of allowed cores. Inside a piece it is 1, so
    that kernels inside a kernel do not start threads again.
    """
    if is_piece():
        return 1
    allowed = os.environ.get("NUMBA_NUM_THREADS", "")
    if allowed.isdigit() and int(allowed) > 0:
        return int(allowed)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_piece() -> bool:
    """Returns True inside a piece and inside `alone`."""
    return getattr(_state, "working", False)


@contextmanager
def alone() -> Iterator[None]:
    """Limits kernels to one thread, for work that is too short for waking another thread."""
    outer, _state.working = getattr(_state, "working", False), True
    try:
        yield
    finally:
        _state.working = outer


def run(
    work: Callable[[T], None], pieces: Iterable[T], total: int, tick: Tick, *, blas: bool = False
) -> None:
    """Runs all pieces on all threads.

    Args:
        work: Callback that runs a piece; its floating-point warnings are ignored.
        pieces: The pieces, in the order of their start.
        total: The number of pieces.
        tick: Callback with the completed fraction, on the calling thread; raises to cancel.
        blas: Whether BLAS, which has separate threads, computes the pieces.

    Raises:
        Exception: An exception of a piece or of `tick`, raised after all running pieces end.
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
    before = _allowed()  # before the caller is bound, because an interrupt may follow immediately
    try:
        _hand_out(turns, before)
        queue.drain(lambda: tick(queue.done / total))
        _await(turns, lambda: tick(queue.done / total))
        tick(queue.done / total)
    finally:
        try:
            queue.stop()
            _take_back(turns)
        finally:  # a second interrupt may occur while helpers end
            queue.forget()
            if before is not None:
                with suppress(OSError):  # the process may no longer use any of these cores
                    os.sched_setaffinity(0, before)
    for turn in turns:
        if turn.error is not None:
            raise turn.error
    tick(1.0)  # the helpers may have ended after the caller's last piece


def used() -> None:
    """Records the time of a kernel's request for several threads."""
    _used[0] = monotonic()


def idle() -> float:
    """Returns the seconds since a kernel, other than BLAS, last requested several threads."""
    return monotonic() - _used[0]


def _await(turns: Sequence[_Turn], tick: Callable[[], None]) -> None:
    """Cancels turns that have not started, as no pieces remain, and waits for the others."""
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
    """A request to a thread of the pool: run pieces of a queue.

    Attributes:
        error: The exception that the turn raised, or None.
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
        """Runs pieces of the queue, unless the turn is cancelled."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            self._queue.drain()
        except BaseException as error:  # the caller raises it
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
    """A queue of pieces for several threads.

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
        """Runs the remaining pieces; calls `between` after each piece."""
        try:
            with alone(), np.errstate(all="ignore"):
                for piece in self._taken():
                    self.work(piece)
                    self.done += 1  # only for progress, so that a lost update is harmless
                    between()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Cancels the remaining pieces."""
        self._stopped = True

    def forget(self) -> None:
        """Releases the work and the pieces; a thread may still refer to the queue."""
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
"""The time of the last request for several threads."""
_turns: SimpleQueue[_Turn | None] = SimpleQueue()
"""Turns that no thread has read; None wakes a thread for other work."""
_wanted = 0
"""The number of turns of all running calls of `run`."""
_ids: list[int] = []
"""The system's ids of the pool's threads, which start on demand and do not end."""


def _sleep(_: int) -> None:
    """Does nothing, so that a thread waits for its next turn immediately."""


_stay: Callable[[int], None] = _sleep
"""The function that a thread calls after a turn, with its number."""
_leave: Callable[[bool], None] = _sleep
"""The function that requests the return of threads from `_stay`, or ends the request."""
_away: tuple[int, int, frozenset[int]] | None = None
"""The core from which the pool's threads were last excluded, their number and the allowed cores."""


def _hand_out(turns: Sequence[_Turn], allowed: set[int] | None) -> None:
    """Adds turns for the pool's threads, which run on other cores than the caller if possible."""
    global _wanted
    with _lock:
        _wanted += len(turns)
        _start(_wanted)
        if allowed is not None and _wanted == len(turns):  # only without other callers
            _make_way(allowed)
    _leave(True)
    for turn in turns:
        _turns.put(turn)


def _start(count: int) -> None:
    """Starts threads up to a number, at most one for each core; the caller has the lock."""
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
        turn = None  # releases the frames of the turn's error while the thread waits
        _stay(number)


def stay(stays: Callable[[int], None], leave: Callable[[bool], None]) -> None:
    """Registers other work for the pool's threads before they sleep.

    Args:
        stays: Callback that a thread calls before it sleeps, with its number, from 1.
        leave: Callback with True if the pool needs the threads, and False afterwards.
    """
    global _stay, _leave
    _stay, _leave = stays, leave


def call_up(count: int, awake: int) -> None:
    """Wakes threads of the pool for other work, on other cores than the caller's.

    Args:
        count: The number of requested threads.
        awake: The number of threads that do other work already.
    """
    if _wanted:  # the threads run pieces, and do other work afterwards
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
    """Cancels pending turns and waits for running turns."""
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
    """Returns the allowed cores of the caller; None if the caller cannot be bound to a core."""
    if _core() is None:
        return None
    allowed = os.sched_getaffinity(0)
    return allowed if len(allowed) > 1 else None


def _make_way(allowed: set[int]) -> None:
    """Binds the caller to its core, and excludes the pool's threads from this core.

    Linux often wakes a thread on the core of the waking thread, and moves it only after
    milliseconds. Without binding, one core would do work of this length.

    Args:
        allowed: The allowed cores of the caller.
    """
    core = _core()
    with suppress(OSError):  # the core may no longer be allowed
        here = -1 if core is None else core()
        if _keep_off(here, allowed):
            os.sched_setaffinity(0, {here})


def _keep_off(here: int, allowed: set[int]) -> bool:
    """Excludes the pool's threads from a core. Returns False if the core is not allowed."""
    global _away
    if here not in allowed:
        return False
    away = here, len(_ids), frozenset(allowed)
    with suppress(OSError):  # a thread may have ended
        if _away != away:
            for thread in _ids:
                os.sched_setaffinity(thread, allowed - {here})
            _away = away
    return True


@cache
def _core() -> Callable[[], int] | None:
    """Returns the function that returns the core of the calling thread; None without one."""
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
