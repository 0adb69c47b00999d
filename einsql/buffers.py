"""Memory for large results, used again once nobody holds the result it was lent for.

The system hands out large blocks page by page, zeroed, at every first touch: a few
percent of a matrix product. A repeated statement gets the blocks of its last run instead.
Blocks begin at a cache line, which is worth as much again.
"""

from __future__ import annotations

import sys
from math import prod

import numpy as np

LARGE = 1 << 22
"""Bytes from which a block is worth keeping; smaller ones the allocator keeps itself."""
KEPT = 1 << 27
"""Most bytes of all blocks that are remembered, lent or free; `keep` changes it."""

_blocks: list[np.ndarray] = []
"""Blocks that may be lent or free; the one lent most recently is last."""

_LINE = 64

_FREE = 2
"""References to a block that is held by one list alone, counted by `getrefcount`."""


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array in C order; it may show memory of a result that is gone."""
    nbytes = prod(shape) * dtype.itemsize
    if not LARGE <= nbytes < KEPT:
        return np.empty(shape, dtype)
    return _lend(nbytes).view(dtype).reshape(shape)


def keep(nbytes: int) -> None:
    """Sets how many bytes are remembered; a process that does nothing else may keep more."""
    global KEPT
    KEPT = nbytes


def _lend(nbytes: int) -> np.ndarray:
    """A view of a free block of that size, which counts as lent while a view of it lives.

    The block lent last is tried first, as it may still be in a cache. A block is out of
    `_blocks`, so that no other thread sees it, until its view is made.
    """
    for n in reversed(range(len(_blocks))):
        try:
            held = [_blocks.pop(n)]
        except IndexError:  # another thread is looking at one
            continue
        if held[0].nbytes == nbytes + _LINE and sys.getrefcount(held[0]) == _FREE:
            view = _aligned(held[0])
            _blocks.append(held.pop())
            return view
        _blocks.insert(n, held.pop())
    block = np.empty(nbytes + _LINE, np.uint8)
    view = _aligned(block)
    _blocks.append(block)
    _forget()
    return view


def _aligned(block: np.ndarray) -> np.ndarray:
    """All of a block from its first cache line on, but for what one more line would take."""
    start = -block.ctypes.data % _LINE
    return block[start : start + len(block) - _LINE]


def _forget() -> None:
    """Lets blocks go, the one lent least recently first, until few enough bytes are kept."""
    total = sum(b.nbytes for b in tuple(_blocks))
    while total > KEPT:
        try:
            total -= _blocks.pop(0).nbytes
        except IndexError:  # as above
            return
