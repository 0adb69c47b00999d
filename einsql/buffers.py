"""Memory for large results, used again once nobody holds the result it was lent for.

The system hands out large blocks page by page, zeroed, at every first touch: a few
percent of a matrix product. A repeated statement gets the blocks of its last run instead.
Blocks begin at a cache line, which is worth as much again.
"""

from __future__ import annotations

import sys
import threading
from math import prod

import numpy as np

LARGE = 1 << 18
"""Bytes from which a block is worth keeping; smaller ones the allocator keeps itself."""
KEPT = 1 << 27
"""Most bytes of all blocks that are remembered, lent or free; `keep` changes it."""

_blocks: dict[int, list[np.ndarray]] = {}
"""Blocks that may be lent or free by their size; what was lent most recently is last."""

_lock = threading.Lock()

_LINE = 64

_FREE = 2
"""References to a block that is held by one list alone, counted by `getrefcount`."""


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array in C order; it may show memory of a result that is gone."""
    nbytes = prod(shape) * dtype.itemsize
    if not LARGE <= nbytes < KEPT:
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
    """Sets how many bytes are remembered; a process that does nothing else may keep more."""
    global KEPT
    KEPT = nbytes


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
    """All of a block from its first cache line on, but for what one more line would take."""
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
