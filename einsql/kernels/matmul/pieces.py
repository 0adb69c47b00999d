"""The partition of a product into pieces for threads, short enough for cancellation.

Strided operands are copied into C order in blocks that stay in cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import ceil, prod

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.kernels.runtime import thread_pool

FLOPS = 8e10 * 4
"""Operations × bytes of an element per second of one thread."""
TRAFFIC = 1.2e10
"""Bytes that one thread reads or writes per second."""
COPIES = 6e8
"""Elements that one thread copies in another order per second."""
SPREAD = 4e-4
"""Seconds on one thread from which several threads pay."""
LITTLE = 1.2e-3
"""Seconds on one thread up to which BLAS's own threads are faster."""
LONG = 4e-3
"""Seconds from which there are more pieces than threads, to balance slow threads."""
MOST = 5e-2
"""Greatest seconds of a piece if threads wait for each other."""
BETWEEN = 0.45
"""Greatest seconds of a piece if no thread waits; a statement can be cancelled after it.

BLAS packs an operand again for every piece, which takes 5 % of pieces of 0.05 s.
"""
LONG_PRODUCT = 5e-2
"""The same limit for one matrix product, where every piece packs an operand."""
LEAST = 32
"""Rows or columns of a piece below which BLAS is slower."""
WIDE = 4
"""Ratio of columns to rows of a piece if columns are cut.

BLAS packs the columns repeatedly in smaller parts, so pieces of rows are faster.
"""
MANY = 2**8
"""Rows of a piece from which that holds. Products of fewer rows are cut along the longer side: each
piece of rows packs all columns again, which takes 128 × 384 times 384 × 1536 from 0.65 to 0.77 ms
(benchmark `encoder`)."""
BLOCK = 2**17
"""Elements of a block of a copy, so that all its cache lines stay in the L2 cache."""
LINE = 16
"""Least number of adjacent elements that a copy reads: a cache line of FLOAT."""


@dataclass(frozen=True, slots=True)
class Work:
    """The amount of work of a product.

    Attributes:
        flops: The number of multiplications and additions.
        nbytes: Bytes of the operands and the result.
        itemsize: Bytes of an element.
        copied: The number of elements that are copied in another order.
    """

    flops: float
    nbytes: float
    itemsize: int
    copied: int = 0

    @property
    def seconds(self) -> float:
        """Estimated seconds on one thread."""
        least = max(self.flops * self.itemsize / FLOPS, self.nbytes / TRAFFIC)
        return least + self.copied / COPIES


def wanted(seconds: float, long: float = LONG, most: float = MOST) -> int:
    """The number of pieces for an amount of work; 1 for a single thread.

    Args:
        seconds: Estimated seconds on one thread.
        long: Seconds from which there are more pieces than threads.
        most: Greatest seconds of a piece on one of several threads.
    """
    threads = thread_pool.threads() if seconds >= SPREAD else 1
    several = 2 if seconds >= long and threads > 1 else 1
    return max(threads * several, ceil(seconds / (most if thread_pool.threads() > 1 else BETWEEN)))


def cut(
    extents: Sequence[int], free: int, pieces: int, blocks: Sequence[tuple[int, int]] = ()
) -> tuple[int, ...]:
    """The number of parts of each axis of a result.

    Args:
        extents: The axes' extents.
        free: The number of leading axes, of stacks, which may be cut to single elements.
        pieces: The target number of pieces.
        blocks: Other axes that may be cut, with their rows or columns; of two axes, the rows of
            the result in memory are first.
    """
    parts = [1] * len(extents)
    for axis in range(free):
        parts[axis] = max(1, min(extents[axis], ceil(pieces / prod(parts))))
    while prod(parts) < pieces:
        able = [
            (size / parts[axis] * (1 if n or size / parts[axis] < 2 * MANY else WIDE), -n, axis)
            for n, (axis, size) in enumerate(blocks)
            if size / (parts[axis] + 1) >= LEAST and parts[axis] < extents[axis]
        ]
        if not able:
            break
        parts[max(able)[-1]] += 1
    return tuple(parts)


def slices(extents: Sequence[int], parts: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Generates the pieces; the last axis varies fastest."""
    for at in product(*(range(p) for p in parts)):
        yield tuple(
            slice(e * i // p, e * (i + 1) // p) for e, i, p in zip(extents, at, parts, strict=True)
        )


def contiguous(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Converts an array to C order and a type; returns the same array if nothing changes."""
    if array.flags.c_contiguous and array.dtype == dtype:
        return array
    out = np.empty(
        array.shape, dtype
    )  # allocated by this thread, as cache lines that change cores are slow
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
    """The length of a block along an axis, given its other extents."""
    rest = int(np.prod([s for n, s in enumerate(sizes) if n != axis]))
    return max(1, min(sizes[axis], max(least, BLOCK // rest)))


def spread_copy(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Copies an array to C order on all threads."""
    pieces = wanted(array.size / COPIES)
    if pieces == 1:
        return contiguous(array, dtype)
    out = empty(array.shape, dtype)

    def copy(piece: tuple[slice, ...]) -> None:
        _copy(array[piece], out[piece])

    parts = cut(array.shape, array.ndim, pieces)
    thread_pool.run(copy, slices(array.shape, parts), prod(parts), lambda done: None)
    return out
