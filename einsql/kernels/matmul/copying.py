"""Copies of strided arrays into C order, in blocks that stay in cache."""

from __future__ import annotations

from itertools import product
from math import ceil, prod

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.kernels.matmul.pieces import COPIES, cut, slices, wanted
from einsql.kernels.runtime import thread_pool

BLOCK = 2**17
"""Elements of a block: all lines it touches stay in the second cache."""
LINE = 16
"""Elements that are read side by side at least."""


def contiguous(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The array in C order and of a type; itself if it is that already."""
    if array.flags.c_contiguous and array.dtype == dtype:
        return array
    out = np.empty(array.shape, dtype)  # of this thread's own: lines that change cores are slow
    _copy(array, out)
    return out


def _copy(array: np.ndarray, out: np.ndarray) -> None:
    """Copies an array to one in C order, or to a part of such a one."""
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
