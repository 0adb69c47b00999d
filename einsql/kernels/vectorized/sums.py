"""Float sums over axes, at least as accurate as pairwise summation.

FLOAT is added in float64. NumPy sums pairwise only along the innermost axis in memory, and adds
rows to each other otherwise, so long sums of DOUBLE are split.
"""

from __future__ import annotations

from math import prod

import numpy as np

from einsql.core.source_writer import Page
from einsql.kernels.kernel import no_progress
from einsql.kernels.runtime import thread_pool

SPREAD = 2**20
"""Elements from which several threads pay."""
PIECE = 2**24
"""Greatest number of elements of a thread's piece."""
SMALL = 2**12
"""Elements below which one NumPy call sums in float64."""
CHAIN = 2**9
"""DOUBLE terms added one after another in long sums over distant rows."""


def accurate_sum(array: np.ndarray, axes: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Sums an array over axes.

    Args:
        array: Any real array, of any strides.
        axes: The summed axes, at least one.
        dtype: The type of the result, float32 or float64.

    Returns:
        The sums over the remaining axes, which keep their order; no sum is -0.0.
    """
    exact = dtype == np.float64
    spread = array.size >= SPREAD and thread_pool.threads() > 1
    sums = (_spread if spread else add_up)(array, axes, exact).astype(dtype, copy=False)
    return from_zero(sums, out=sums)  # NumPy's sum of -0.0 alone is -0.0


def _spread(array: np.ndarray, axes: tuple[int, ...], exact: bool) -> np.ndarray:
    """Sums on all threads: cuts the result, or the sum if the result is small."""
    kept = [n for n in range(array.ndim) if n not in axes]
    # The slowest axis in memory, so that pieces are contiguous.
    slowest = sorted(range(array.ndim), key=lambda n: -abs(array.strides[n]))
    long = [n for n in slowest if array.shape[n] >= 2 * thread_pool.threads()]
    axis = next(iter(long), slowest[0])
    parts = min(array.shape[axis], max(2 * thread_pool.threads(), array.size // PIECE))
    edges = [array.shape[axis] * n // parts for n in range(parts + 1)]
    shape = tuple(array.shape[n] for n in kept)
    cuts_sum = axis in axes
    if cuts_sum and prod(shape) * parts > array.size // 8:
        return add_up(array, axes, exact)
    out = np.empty((parts, *shape) if cuts_sum else shape)

    def work(n: int) -> None:
        piece = slice(edges[n], edges[n + 1])
        part = add_up(array[(slice(None),) * axis + (piece,)], axes, exact)
        if cuts_sum:
            out[n] = part
        else:
            out[(slice(None),) * kept.index(axis) + (piece,)] = part

    thread_pool.run(work, range(parts), parts, no_progress)
    return np.asarray(np.add.reduce(out, axis=0)) if cuts_sum else out


def add_up(array: np.ndarray, axes: tuple[int, ...], exact: bool) -> np.ndarray:
    """Sums over axes in DOUBLE.

    Args:
        array: Any real array, of any strides.
        axes: The summed axes, at least one.
        exact: Whether the sums have to be accurate in DOUBLE instead of FLOAT. At most twice
            `CHAIN` terms are then added one after another, and their sums likewise.

    Returns:
        float64 sums over the remaining axes, which keep their order.
    """
    terms = prod(array.shape[n] for n in axes)
    if not exact or terms <= 2 * CHAIN:
        return np.asarray(np.add.reduce(array, axis=axes, dtype=np.float64))
    axis = max(axes, key=lambda n: array.shape[n])
    length = array.shape[axis]
    if length <= CHAIN:
        sums = np.add.reduce(array, axis=axis, dtype=np.float64)
        return add_up(sums, tuple(n - (n > axis) for n in axes if n != axis), exact)
    even = length // CHAIN * CHAIN
    before = (slice(None),) * axis
    shape = *array.shape[:axis], even // CHAIN, CHAIN, *array.shape[axis + 1 :]
    blocks = array[(*before, slice(even))].reshape(shape, copy=False)
    sums = add_up(np.add.reduce(blocks, axis=axis + 1, dtype=np.float64), axes, exact)
    if even < length:
        sums = sums + add_up(array[(*before, slice(even, None))], axes, exact)
    return np.asarray(sums)


class RunningSum:
    """The sum in DOUBLE of arrays that are added one after another.

    Sums of DOUBLE are corrected by their rounding errors, so that the error does not grow with the
    number of arrays.
    """

    def __init__(self, first: np.ndarray) -> None:
        """Copies the first array, FLOAT or DOUBLE."""
        self._total = first.astype(np.float64)
        self._lost = np.zeros_like(self._total) if first.dtype == np.float64 else None

    def add(self, values: np.ndarray) -> RunningSum:
        """Adds an array of the same shape; returns the sum."""
        if self._lost is None:
            self._total += values
            return self
        before = self._total
        with np.errstate(all="ignore"):
            self._total = before + values
            added = self._total - before
            self._lost += (before - (self._total - added)) + (values - added)
        return self

    def result(self) -> np.ndarray:
        """The sum, float64."""
        if self._lost is None:
            return self._total
        # An infinite sum needs no correction, and its correction is NaN.
        return np.where(np.isfinite(self._total), self._total + self._lost, self._total)


def write_small_sum(page: Page, array: str, axes: tuple[int, ...], dtype: np.dtype) -> str:
    """Writes `accurate_sum` of fewer than `SMALL` elements; returns the name of the sums.

    Args:
        page: The generated function.
        array: The array's name.
        axes: The summed axes.
        dtype: The type of the result, float32 or float64.
    """
    reduce, wide = page.held(np.add.reduce, "f"), page.held(np.dtype(np.float64))
    text = f"asarray({reduce}({array}, {axes!r}, {wide}, None, False, 0.0))"
    if dtype != np.float64:
        text += f".astype({page.held(dtype)})"
    sums = page.line(text)
    page.lines.append(f"{page.held(np.add, 'f')}({sums}, {page.held(dtype.type(0))}, {sums})")
    return sums


def from_zero(values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """Returns 0 + values: a sum starts at 0, so the sum of a single -0.0 is 0.0.

    Args:
        values: The terms of the sum.
        out: The target array, possibly `values` itself.
    """
    return np.asarray(np.add(values, values.dtype.type(0), out=out))
