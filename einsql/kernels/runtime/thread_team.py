"""Threads that spin between short pieces of compiled kernels.

Waking a thread takes about 50 µs, and the same time again when two threads request Python's lock
at the same time. `thread_pool.run` is therefore too slow for work of less than half a millisecond.
In this module the threads of the pool spin for a while after each work, in compiled code without
the lock, and take pieces from each other within a microsecond. They share the words of one block
of memory.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
from collections.abc import Callable
from math import inf
from struct import Struct
from time import perf_counter, sleep

import numpy as np

from einsql.core import forks
from einsql.kernels.runtime import compile_cache, thread_pool
from einsql.kernels.runtime.machine_code import address as address
from einsql.kernels.runtime.machine_code import array_words as array_words

LEAST, LONG = 3e-5, 2e-2
"""The least seconds on one thread for which several threads are faster, and the least seconds of
work for the pool, which reports progress."""
WAKE = 4e-4
"""The least seconds of work for which waking a thread only for this work is faster."""
STREAM = 4e-3
"""The greatest seconds since the last query for which work shorter than `WAKE` wakes threads."""
SEVERAL = 8
"""The number of queries in sequence from which short work, too, creates the team. It takes up to
30 ms in a process without other kernels."""
SPIN = 2e-3
"""The seconds for which a thread polls for work before it sleeps."""
PATIENCE = 2e-3
"""The seconds for which a caller polls for the end of other threads' pieces before it sleeps."""
_POLITE = 32
"""The number of polls, of some microseconds, after which a thread yields its core."""
_TRIALS = 20_000
"""The number of polls for the measurement of a poll's time."""

_LINE = 8
"""The words of a cache line; only one thread should write to a line."""
_DONE, _AWAKE, _FAILED, _LEAVE, _JOB, _TICKETS = (n * _LINE for n in (0, 1, 2, 3, 4, 6))
"""The offsets of words: a job has two lines, and each thread's ticket has one."""
_BASES = 3
"""The number of arguments relative to an array: two operands and a result."""
_PACK = Struct(f"{10 + 2 * _BASES}q").pack_into
"""Writes a job: the number of pieces, the function, the address and length of the rows, the
address, position and number of the threads' own words, the number of threads, the address and
length of the next read, and numbers of arguments, each with its increment."""
_STRIDE = 2**10
"""The bytes that a thread prefetches between two polls."""
_NEARER = 3 * 2**19
"""The most bytes that a thread prefetches: the capacity of its L2 cache."""

_TEXT = f"""\
from einsql.kernels.runtime.atomics import add, load, pause, replace, store, unite
from einsql.kernels.runtime.atomics import ARGUMENTS, call, give_way
from einsql.kernels.runtime.compiled_functions import at, borrow, give_back, prefetch


@njit("int64(int64, int64, int64, int64, int64)")
def kernel(state, worker, looks, begins, others):
    done, awake, failed, leave, job, tickets = (
        state + {8 * _DONE}, state + {8 * _AWAKE}, state + {8 * _FAILED},
        state + {8 * _LEAVE}, state + {8 * _JOB}, state + {8 * _TICKETS},
    )
    room = borrow(8 * (ARGUMENTS + 1))
    args = at(room, np.int64)
    if begins:
        store(done, 0)
        store(failed, 0)
        pieces, threads = load(job), load(job + 56)
        for n in range(threads):
            ticket = tickets + {8 * _LINE} * n
            number = ((load(ticket) >> 40) + 1) & 0x3FFFFF
            first, end = pieces * n // threads, pieces * (n + 1) // threads
            store(ticket, number << 40 | end << 20 | first)
    elif worker:
        add(awake, 1)
    seen, found, length = 0, load(job + 64), 0
    near = until = over = 0
    while seen < looks:
        threads = load(job + 56)
        for n in range(threads if worker < threads else 0):
            # A ticket is the work's number, and the end and begin of the pieces that are left of
            # a thread's own. It takes them from the begin, others from the end: who replaces the
            # ticket has the piece, and the work is not over before the piece is.
            ticket = tickets + {8 * _LINE} * ((worker + n) % threads)
            now = load(ticket)
            end, piece = (now >> 20) & 0xFFFFF, now & 0xFFFFF
            if piece >= end:
                continue
            if n:
                piece = end - 1
            if replace(ticket, now, now - {1 << 20} if n else now + 1):
                width, row = load(job + 24), load(job + 16) + 8 * piece * load(job + 24)
                for m in range(width):
                    args[m] = load(row + 8 * m)
                first, count = load(job + 40), load(job + 48)
                for m in range({_BASES}):
                    args[load(job + 80 + 16 * m)] += load(job + 88 + 16 * m)
                for m in range(count):
                    args[first + m] = load(load(job + 32) + 8 * (worker * count + m))
                args[ARGUMENTS] = 0
                call(load(job + 8), room, room + 8 * ARGUMENTS)
                unite(failed, args[ARGUMENTS])
                add(done, 1)
            seen = -1
            break
        if seen < 0:
            seen = 0
            continue
        if not worker:
            if load(done) == load(job):
                over = 1
                break
        elif load(leave):
            break
        elif load(job + 64) != found and worker < threads:
            found, length = load(job + 64), load(job + 72)
            near = length * worker // threads
            until = near + min(length, {_NEARER})
        if near < until:  # prefetches likely reads: first its own pieces
            for _ in range({_STRIDE} // 64):
                prefetch(found + (near - length if near >= length else near))
                near += 64
        else:
            pause()
        seen += 1
        if others and not seen % {_POLITE}:
            give_way(others)
    give_back(room)
    if worker:
        add(awake, -1)
    return over
"""
"""The kernel that takes pieces. The caller, number 0, takes pieces until all are complete; a
thread of the pool stops if the pool requests it. Each of them stops after `looks` polls without a
piece. `others` is the address of a function that yields the core, or 0. The kernel returns 1 to
the caller if all pieces are complete, otherwise 0."""


class _Words:
    """The words that threads share.

    Args:
        shared: Whether threads other than the caller read them.
    """

    def __init__(self, shared: bool) -> None:
        self.threads = 1 + (os.cpu_count() or 1) if shared else 1
        count = _TICKETS + self.threads * _LINE
        words = np.zeros(count + _LINE, np.int64)
        if shared:  # never freed: threads read it until the process ends
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(words))
        start = -words.ctypes.data % (8 * _LINE) // 8
        self.words = words[start : start + count]
        self.at = self.words.ctypes.data
        self.bytes = self.words.data.cast("B")
        self.ints: memoryview[int] = self.bytes.cast("q")

    def lead(self, kernel: _Kernel, job: tuple[int, ...], patience: int, others: int) -> int:
        """Runs a job's pieces with the spinning threads; returns the union of the result bits."""
        _PACK(self.bytes, 8 * _JOB, *job)
        over = 0
        try:
            over = kernel(self.at, 0, patience, 1, others)
        finally:
            while not over:  # despite interrupts, because threads use the memory of pieces
                over = kernel(self.at, 0, patience, 0, others)
                if not over:
                    sleep(1e-4)
        return self.ints[_FAILED]


class _Team:
    """The threads and their shared words."""

    def __init__(self, kernel: _Kernel) -> None:
        self.kernel = kernel
        self.lock = threading.Lock()
        self.words = _Words(shared=True)
        others = getattr(ctypes.CDLL(None), "sched_yield", None) if os.name == "posix" else None
        self.others = ctypes.cast(others, ctypes.c_void_p).value or 0 if others else 0
        self.before = 0
        self.followers: dict[int, tuple[int, int]] = {}
        start = perf_counter()
        self.kernel(self.words.at, 1, _TRIALS, 0, self.others)
        look = (perf_counter() - start) / _TRIALS
        self.looks, self.patience = int(SPIN / look) + 1, int(PATIENCE / look) + 1
        thread_pool.stay(self.stay, self.leave)
        atexit.register(self.leave, True)

    def stay(self, worker: int) -> None:
        """Takes pieces for a while, on a thread of the pool after its other work."""
        self.kernel(self.words.at, worker, self.looks, 0, self.others)

    def leave(self, now: bool) -> None:
        """Stops the polling of threads, or permits it again."""
        self.words.words[_LEAVE] = now

    def follow(self, reads: tuple[int, int]) -> tuple[int, int]:
        """Returns the address and length of the read that last followed this one, or an empty read.

        The memory may be freed: prefetching an invalid address has no effect.
        """
        if not reads[1]:
            return _NOTHING
        if len(self.followers) >= _KNOWN:
            self.followers.clear()
        self.followers[self.before] = reads
        self.before = reads[0]
        return self.followers.get(reads[0], _NOTHING)

    def awake(self) -> int:
        """Returns the number of threads that poll for work or run pieces."""
        return self.words.ints[_AWAKE]

    def run(
        self, job: tuple[int, ...], threads: int, reads: tuple[int, int], bases: tuple[int, ...]
    ) -> int:
        """Runs the pieces of a job on up to `threads` idle threads."""
        if threads > 1 and self.lock.acquire(blocking=False):
            try:
                thread_pool.used()
                thread_pool.call_up(threads - 1, self.awake())
                threads = min(threads, self.words.threads)
                job = (*job, threads, *self.follow(reads), *bases)
                return self.words.lead(self.kernel, job, self.patience, self.others)
            finally:
                self.lock.release()
        job = (*job, 1, *_NOTHING, *bases)
        return _Words(shared=False).lead(self.kernel, job, self.patience, 0)


_NOTHING = 0, 0
"""The address and bytes of an empty read."""
_NOWHERE = (0,) * (2 * _BASES)
"""The numbers and increments of arguments for a job without relative arguments."""
_KNOWN = 2**12
"""The most addresses with a cached successor."""
_Kernel = Callable[[int, int, int, int, int], int]
_team: _Team | None = None
_asked = -inf
"""The time of the last query about work."""
_threads = 1
"""The number of threads, read again when work follows no recent work."""
_followed = 0
"""The number of queries that each followed another within `STREAM`."""
_long = 0
"""The number of queries about work of `WAKE` or more."""


def at_hand(seconds: float) -> int:
    """Returns the fastest number of threads for an amount of work: all threads or one.

    Args:
        seconds: The estimated seconds on one thread.
    """
    global _asked, _followed, _long, _threads
    if not LEAST <= seconds < LONG or thread_pool.is_piece():
        return 1
    now, before = perf_counter(), _asked
    _asked = now
    follows = now - before < STREAM
    _followed = _followed + 1 if follows else 0
    if not follows:  # reading the environment takes 10 µs
        _threads = thread_pool.threads()
    if seconds >= WAKE:
        _long += 1
        # A process that multiplies once compiles nothing for it.
        used = compile_cache.is_used() or _long > SEVERAL
        return _threads if used and _present() is not None else 1
    if _team is None and (_followed < SEVERAL or _threads == 1 or _present() is None):
        return 1
    return _threads if follows or (_team is not None and _team.awake()) else 1


def is_streaming(seconds: float) -> bool:
    """Whether products follow each other, so that the team's threads spin; counts as a query.

    Args:
        seconds: The estimated seconds of a product, as of `at_hand`.
    """
    return at_hand(seconds) > 1 and _followed >= SEVERAL


def ended() -> None:
    """Records the end of a product that others computed, which may take long on busy cores."""
    global _asked
    _asked = perf_counter()


def _present() -> _Team | None:
    """The team; None while its kernel is being compiled."""
    global _team
    if _team is None:
        kernel = compile_cache.at_hand(_TEXT)
        _team = None if kernel is None else _Team(kernel)
    return _team


def run(
    function: int, rows: np.ndarray, threads: int, own: np.ndarray | None = None, first: int = 0
) -> int:
    """Calls a compiled function for every row of arguments.

    Args:
        function: The function's address, from `Kernel.address`.
        rows: The arguments `[pieces, arguments]`, int64, in C order: integers and addresses, with
            arrays as in `array_rows`. At most 2^20 - 1 pieces, which write to disjoint memory.
        threads: The number of threads that take pieces if they have no other work.
        own: The values `[threads, arguments]` that each thread passes instead of some arguments.
        first: The number of the first replaced argument.

    Returns:
        The union of the bits that the pieces returned.
    """
    theirs = (0, first, 0) if own is None else (address(own), first, own.shape[1])
    return start((*job_of(function, rows), *theirs), threads, _NOTHING, _NOWHERE)


def job_of(function: int, rows: np.ndarray) -> tuple[int, ...]:
    """Returns the first words of a job, for a function and rows of arguments as in `run`."""
    return len(rows), function, address(rows), rows.shape[1]


def start(
    job: tuple[int, ...], threads: int, reads: tuple[int, int], bases: tuple[int, ...]
) -> int:
    """Runs a cached job; returns the union of the pieces' bits as `run` does.

    Args:
        job: The words of the job: the words of `job_of` and the threads' own words. The caller
            keeps a reference to the rows.
        threads: The number of threads that take pieces.
        reads: The address and bytes of the memory that the pieces read consecutively. Threads
            without work prefetch the memory that the job after this read used last time.
        bases: The numbers of three arguments, each followed by its increment, the same for all
            rows.
    """
    team = _present()
    return _in_turn(job, bases) if team is None else team.run(job, threads, reads, bases)


def _in_turn(job: tuple[int, ...], bases: tuple[int, ...]) -> int:
    """Calls the function of a job for every row on this thread; returns the union of the bits."""
    pieces, function, start, width, own, first, count = job
    call = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_int64] * (width + 2))(function)
    rows = np.ctypeslib.as_array(
        ctypes.cast(start, ctypes.POINTER(ctypes.c_int64)), (pieces, width)
    )
    bits = ctypes.c_int64(0)
    failures = 0
    mine = (ctypes.c_int64 * count).from_address(own) if count else ()
    for row in rows.tolist():
        for n in range(_BASES):
            row[bases[2 * n]] += bases[2 * n + 1]
        row[first : first + count] = mine
        bits.value = 0
        at = ctypes.addressof(bits)
        call(at, at, *row)
        failures |= bits.value
    return failures


def array_rows(arrays: np.ndarray) -> np.ndarray:
    """Returns the arguments for each row of a table in C order; the caller keeps a reference."""
    rows = np.zeros((len(arrays), 7), np.int64)
    rows[:, 2] = rows[:, 5] = arrays.shape[1]
    rows[:, 3] = rows[:, 6] = arrays.itemsize
    rows[:, 4] = address(arrays) + arrays.strides[0] * np.arange(len(arrays))
    return rows


def _forget() -> None:
    """Resets the team in a forked child, which has no threads of its parent."""
    global _team
    if _team is not None:
        atexit.unregister(_team.leave)
        _team = None


forks.at_fork(_forget)
