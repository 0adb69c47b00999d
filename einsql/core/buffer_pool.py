"""A pool of memory blocks for large results; a block is reused when no reference to it is left.

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
"""Least bytes of a pooled block; the allocator reuses smaller blocks itself."""
KEPT = 1 << 27
"""Most bytes of all pooled blocks, lent or free, by default; `keep` changes it."""

Lend = Callable[[int], np.ndarray]
"""Returns a block of a number of bytes."""

_bounds: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
"""Bounds of the pool's size in bytes, by the object during whose life each applies."""

_most = KEPT
"""The pool's size in bytes set by `keep`, before other bounds apply."""

_here = threading.local()
"""The function that lends blocks in this thread, in the attribute `lend`, if it is set."""

_blocks: dict[int, list[np.ndarray]] = {}
"""All blocks, lent or free, by their size; the most recently lent is last."""

_lock = threading.Lock()

_LINE = 64  # bytes of a cache line; blocks are aligned to it

_FREE = 2
"""The `getrefcount` of a block that only the list of blocks refers to."""


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array in C order; its memory may contain values of a former result."""
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
    """The array in C order: itself, or a copy in pooled memory."""
    if array.flags.c_contiguous:
        return array
    copy = empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def converted(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A copy of the array in another dtype, in pooled memory; the order of its axes is kept."""
    if array.flags.fnc:
        return converted(array.T, dtype).T
    copy = empty(array.shape, dtype)
    np.copyto(copy, array, casting="unsafe")
    return copy


def keep(nbytes: int) -> None:
    """Sets the pool's size in bytes; a process that only runs einsql may use a larger one."""
    global _most
    with _lock:
        _most = nbytes
        _bound()


@contextmanager
def lending(lend: Lend) -> Iterator[None]:
    """Allocates this thread's large blocks by another function; the pool does not keep them."""
    before: Lend | None = getattr(_here, "lend", None)
    _here.lend = lend
    try:
        yield
    finally:
        _here.lend = before


def bound(owner: object, nbytes: int | None) -> None:
    """Bounds the pool's size in bytes during an object's life; None removes its bound."""
    with _lock:  # sessions of several threads set bounds
        if nbytes is None:
            _bounds.pop(owner, None)
        else:
            _bounds[owner] = nbytes
        _bound()


def release() -> None:
    """Returns free blocks to the system."""
    with _lock:
        for size in list(_blocks):
            same = _blocks[size]
            same[:] = [same[n] for n in range(len(same)) if sys.getrefcount(same[n]) != _FREE]
            if not same:
                del _blocks[size]


def _bound() -> None:
    """Frees blocks above the smallest bound; the caller has acquired the lock."""
    global KEPT
    KEPT = min([_most, *_bounds.values()])
    _forget()


def _lend(nbytes: int) -> np.ndarray:
    """A view of a free block of that size; the block counts as lent while a view of it exists.

    The block lent last is tried first, as it may still be in a cache.
    """
    size = nbytes + _LINE
    with _lock:
        same = _blocks[size] = _blocks.pop(size, [])
        for n in reversed(range(len(same))):
            if sys.getrefcount(same[n]) == _FREE:
                same.append(same.pop(n))
                return _aligned(same[-1])
    block = np.empty(size, np.uint8)  # without the lock: memory may not suffice
    view = _aligned(block)
    with _lock:
        _blocks.setdefault(size, []).append(block)
        _forget()
    return view


def _aligned(block: np.ndarray) -> np.ndarray:
    """The part of a block from its first cache line on, one line shorter than the block."""
    start = -block.ctypes.data % _LINE
    return block[start : start + len(block) - _LINE]


def _forget() -> None:
    """Frees blocks, of the least recently lent size first, until the pool is within its bound."""
    total = sum(size * len(same) for size, same in _blocks.items())
    for size in list(_blocks):
        same = _blocks[size]
        while same and total > KEPT:
            del same[0]
            total -= size
        if not same:
            del _blocks[size]


def _unlock() -> None:
    """Replaces the lock in a forked child, where the thread that acquired it does not exist."""
    global _lock
    _lock = threading.Lock()


forks.at_fork(_unlock)
