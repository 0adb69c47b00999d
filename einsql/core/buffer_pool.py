"""Memory for large results, reused once no reference to the result is left.

The operating system zeroes large blocks page by page at first touch, which costs a few percent
of a matrix product. A repeated statement reuses the blocks of its last run instead. Blocks
start at a cache line, which saves as much again.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod

import numpy as np

from einsql.core import forks

LARGE = 1 << 18
"""Bytes from which a block is worth keeping; smaller ones the allocator keeps itself."""
KEPT = 1 << 27
"""Most bytes of all blocks that are remembered, lent or free; `keep` changes it."""

Lend = Callable[[int], np.ndarray]
"""Gives a block of so many bytes."""

_bounds: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
"""How many bytes may be remembered while something lives."""

_most = KEPT
"""The number of bytes set by `keep`, before other bounds apply."""

_here = threading.local()
"""What lends blocks in this thread: `lend`, if anything does."""

_blocks: dict[int, list[np.ndarray]] = {}
"""All blocks, lent or free, by their size; the most recently lent is last."""

_lock = threading.Lock()

_LINE = 64

_FREE = 2
"""The `getrefcount` of a block that only the list of blocks refers to."""


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array in C order; it may show memory of a result that is gone."""
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < LARGE:
        return np.empty(shape, dtype)
    lend: Lend | None = getattr(_here, "lend", None)
    if lend is not None:
        return lend(nbytes).view(dtype).reshape(shape)
    if nbytes >= KEPT:
        return np.empty(shape, dtype)
    return _lend(nbytes).view(dtype).reshape(shape)


def contiguous(array: np.ndarray) -> np.ndarray:
    """The array in C order: itself, or a copy in such memory."""
    if array.flags.c_contiguous:
        return array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A copy of the array in another dtype, in such memory; its axes follow each other alike."""
    if array.flags.fnc:
        return converted(array.T, dtype).T
    copy = empty(array.shape, dtype)
    np.copyto(copy, array, casting="unsafe")
    return copy


def keep(nbytes: int) -> None:
    """Sets how many bytes are kept; a process that only runs einsql may keep more."""
    global _most
    with _lock:
        _most = nbytes
        _bound()


@contextmanager
def lending(lend: Lend) -> Iterator[None]:
    """Takes large blocks of this thread from elsewhere; none of them is remembered."""
    before: Lend | None = getattr(_here, "lend", None)
    _here.lend = lend
    try:
        yield
    finally:
        _here.lend = before


def bound(owner: object, nbytes: int | None) -> None:
    """Sets how many bytes may be remembered while an object lives; None for any number."""
    with _lock:  # sessions of several threads come and go
        if nbytes is None:
            _bounds.pop(owner, None)
        else:
            _bounds[owner] = nbytes
        _bound()


def release() -> None:
    """Gives free blocks back to the system."""
    with _lock:
        for size in list(_blocks):
            same = _blocks[size]
            same[:] = [same[n] for n in range(len(same)) if sys.getrefcount(same[n]) != _FREE]
            if not same:
                del _blocks[size]


def _bound() -> None:
    """Frees blocks beyond the smallest bound; the caller has acquired the lock."""
    global KEPT
    KEPT = min([_most, *_bounds.values()])
    _forget()


def _lend(nbytes: int) -> np.ndarray:
    """A view of a free block of that size, which counts as lent while a view of it lives.

    The block lent last is tried first, as it may still be in a cache.
    """
    size = nbytes + _LINE
    with _lock:
        same = _blocks[size] = _blocks.pop(size, [])
        for n in reversed(range(len(same))):
            if sys.getrefcount(same[n]) == _FREE:
                same.append(same.pop(n))
                return _aligned(same[-1])
    block = np.empty(size, np.uint8)  # without the lock, for memory may not suffice
    view = _aligned(block)
    with _lock:
        _blocks.setdefault(size, []).append(block)
        _forget()
    return view


def _aligned(block: np.ndarray) -> np.ndarray:
    """The block from its first cache line on, shortened by the size of a cache line."""
    start = -block.ctypes.data % _LINE
    return block[start : start + len(block) - _LINE]


def _forget() -> None:
    """Lets blocks go, those of the size lent least recently first, until few enough are kept."""
    total = sum(size * len(same) for size, same in _blocks.items())
    for size in list(_blocks):
        same = _blocks[size]
        while same and total > KEPT:
            del same[0]
            total -= size
        if not same:
            del _blocks[size]


def _unlock() -> None:
    """Replaces the lock in a forked child: the thread that held it does not exist there."""
    global _lock
    _lock = threading.Lock()


forks.at_fork(_unlock)
