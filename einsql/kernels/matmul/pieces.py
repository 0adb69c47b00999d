"""How a product is cut: into pieces for threads, short enough to stop between two of them.

Strided operands are copied into C order in blocks that stay in cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.kernels.runtime import thread_pool

FLOPS = 8e10 * 4
"""Operations × bytes of an element that one thread does in a second."""
TRAFFIC = 1.2e10
"""Bytes that one thread reads or writes in a second."""
COPIES = 6e8
"""Elements that one thread copies in another order in a second."""
SPREAD = 4e-4
"""Seconds from which threads are worth starting."""
LITTLE = 1.2e-3
"""Seconds on one thread up to which BLAS's own threads are faster."""
LONG = 4e-3
"""Seconds from which there are more pieces than threads, so that a slow thread has fewer."""
MOST = 5e-2
"""Seconds that a piece may take where threads wait for each other."""
BETWEEN = 0.45
"""Seconds that a piece may take where none waits: a statement can be cancelled after it.

BLAS packs an operand anew for every piece, which takes 5 % of pieces of 0.05 s.
"""
LONG_PRODUCT = 5e-2
"""The same of one product of matrices, whose pieces each pack an operand anew."""
LEAST = 32
"""Rows or columns of a piece below which BLAS is slower."""
WIDE = 4
"""How many times as many columns as rows a piece has where columns are cut.

BLAS packs the columns in smaller parts, again and again: pieces of rows are faster.
"""
BLOCK = 2**17
"""Elements that are copied at a time: all lines they touch stay in the second cache."""
LINE = 16
"""Elements that a copy reads side by side at least."""


@dataclass(frozen=True, slots=True)
class Work:
    """How much there is to do.

    Attributes:
        flops: Multiplications and additions.
        nbytes: Bytes of the operands and the result.
        itemsize: Bytes of an element.
        copied: Elements that are copied in another order.
    """

    flops: float
    nbytes: float
    itemsize: int
    copied: int = 0

    @property
    def seconds(self) -> float:
        """Seconds on one thread, roughly."""
        least = max(self.flops * self.itemsize / FLOPS, self.nbytes / TRAFFIC)
        return least + self.copied / COPIES


def wanted(seconds: float, long: float = LONG, most: float = MOST) -> int:
    """The number of pieces for work of so many seconds on one thread; 1 for one thread.

    Args:
        seconds: Time on one thread.
        long: Seconds from which there are more pieces than threads.
        most: Seconds that a piece may take on one thread of several.
    """
    threads = thread_pool.threads() if seconds >= SPREAD else 1
    several = 2 if seconds >= long and threads > 1 else 1
    return max(threads * several, ceil(seconds / (most if thread_pool.threads() > 1 else BETWEEN)))


def cut(
    extents: Sequence[int], free: int, pieces: int, blocks: Sequence[tuple[int, int]] = ()
) -> tuple[int, ...]:
    """How many parts each axis of a result is cut into.

    Args:
        extents: The axes' extents.
        free: The leading axes, which may be cut as finely as need be: elements of a stack.
        pieces: How many pieces are wanted.
        blocks: Other axes that may be cut, with the rows or columns they lead: where there are
            two, the rows of the result in memory come first.
    """
    parts = [1] * len(extents)
    for axis in range(free):
        parts[axis] = max(1, min(extents[axis], ceil(pieces / prod(parts))))
    while prod(parts) < pieces:
        able = [
            (size / parts[axis] * (1 if n else WIDE), -n, axis)
            for n, (axis, size) in enumerate(blocks)
            if size / (parts[axis] + 1) >= LEAST and parts[axis] < extents[axis]
        ]
        if not able:
            break
        parts[max(able)[-1]] += 1
    return tuple(parts)


def slices(extents: Sequence[int], parts: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """The pieces, the last axis running fastest."""
    for at in product(*(range(p) for p in parts)):
        yield tuple(
            slice(e * i // p, e * (i + 1) // p) for e, i, p in zip(extents, at, parts, strict=True)
        )


def contiguous(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array in C order and of a type; itself if it is that already."""
    if array.flags.c_contiguous and array.dtype == dtype:
        return array
    out = np.empty(array.shape, dtype)  # of this thread's own: lines that change cores are slow
    _copy(array, out)
    return out


def _copy(array: np.ndarray, out: np.ndarray) -> None:
    steps = [abs(s) for s in array.strides]
    turned = array.ndim > 1 and 0 < min(steps) < steps[-1]
    if array.size <= BLOCK or not turned:
        np.copyto(out, array, casting="unsafe")
        return
    near = min(range(array.ndim), key=lambda n: (steps[n], array.shape[n]))
    sizes = list(array.shape)
    sizes[near] = _fitted(sizes, near, LINE)
    for axis in range(array.ndim):
        if axis != near:
            sizes[axis] = _fitted(sizes, axis, 1 if axis < array.ndim - 1 else LINE)
    grid = [range(ceil(n / s)) for n, s in zip(array.shape, sizes, strict=True)]
    for at in product(*grid):
        block = tuple(slice(i * s, (i + 1) * s) for i, s in zip(at, sizes, strict=True))
        np.copyto(out[block], array[block], casting="unsafe")


def _fitted(sizes: list[int], axis: int, least: int) -> int:
    """How long a block may be along an axis, given its other sizes."""
    rest = int(np.prod([s for n, s in enumerate(sizes) if n != axis]))
    return max(1, min(sizes[axis], max(least, BLOCK // rest)))


def spread_copy(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A copy in C order, made by all threads."""
    pieces = wanted(array.size / COPIES)
    if pieces == 1:
        return contiguous(array, dtype)
    out = empty(array.shape, dtype)

    def copy(piece: tuple[slice, ...]) -> None:
        _copy(array[piece], out[piece])

    parts = cut(array.shape, array.ndim, pieces)
    thread_pool.run(copy, slices(array.shape, parts), prod(parts), lambda done: None)
    return out
