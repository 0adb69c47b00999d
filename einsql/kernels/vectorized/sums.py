"""Float sums over axes, fast and at least as accurate as pairwise summation.

NumPy sums pairwise only along the innermost axis in memory, adds rows to each other otherwise,
and is slow for short rows. This module adds at most `SHORT` terms one after another in the
array's type. The partial sums, which are much fewer, are added in float64.
"""

from __future__ import annotations

from math import prod

import numpy as np

from einsql.core.source_writer import Page
from einsql.kernels.runtime import blas, thread_pool

SPREAD = 2**20
"""Elements from which several threads pay."""
PIECE = 2**24
"""Greatest number of elements of a thread's piece."""
SMALL = 2**12
"""Elements below which one NumPy call sums in float64."""
ORDERED = 2**11
"""Greatest number of DOUBLE terms that are added one after another, to bound the error."""
CHAIN = 2**9
"""DOUBLE terms added one after another in long sums over distant rows."""
PLANES = 16
"""Number of rows that are added one after another in float32."""
SHORT = 64
"""Row length up to which BLAS sums rows, in several lanes."""
MIDDLE = 2**11
"""Row bytes up to which np.einsum is faster than BLAS; it is less accurate for longer rows."""


def accurate_sum(array: np.ndarray, axes: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Sums an array over axes.

    Args:
        array: Any real array, of any strides.
        axes: The summed axes, at least one.
        dtype: The type of the result, float32 or float64.

    Returns:
        The sums over the remaining axes, which keep their order; no sum is -0.0.
    """
    spread = array.size >= SPREAD and thread_pool.threads() > 1
    sums = (_spread if spread else _sum)(array, axes, dtype).astype(dtype, copy=False)
    return from_zero(sums, out=sums)  # NumPy's sum of -0.0 alone is -0.0


def _spread(array: np.ndarray, axes: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
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
        return _sum(array, axes, dtype)
    out = np.empty((parts, *shape) if cuts_sum else shape, np.float64 if cuts_sum else dtype)

    def work(n: int) -> None:
        piece = slice(edges[n], edges[n + 1])
        part = _sum(array[(slice(None),) * axis + (piece,)], axes, dtype)
        if cuts_sum:
            out[n] = part
        else:
            out[(slice(None),) * kept.index(axis) + (piece,)] = part

    with blas.OneThread():
        thread_pool.run(work, range(parts), parts, lambda done: None)
    if not cuts_sum:
        return out
    return np.asarray(np.add.reduce(out, axis=0))


def _sum(array: np.ndarray, axes: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """The same as `accurate_sum` on the calling thread, before rounding to the type."""
    exact = dtype == np.float64
    if array.size < SMALL and (not exact or array.size <= ORDERED or _is_pairwise(array, axes)):
        return np.asarray(np.add.reduce(array, axis=axes, dtype=np.float64, initial=0.0))
    if array.dtype != dtype:
        return add_up(array, axes, exact)
    order = sorted(range(array.ndim), key=lambda n: (-abs(array.strides[n]), n))
    flat = array.transpose(order)
    gone = [n in axes for n in order]
    if flat.flags.c_contiguous and flat.flags.aligned:
        sums = _contiguous(flat, gone, exact)
    else:
        sums = _strided(flat, gone, exact)
    kept = [n for n in order if n not in axes]
    turn = sorted(range(len(kept)), key=kept.__getitem__)
    return sums.transpose(turn)


def _is_pairwise(array: np.ndarray, axes: tuple[int, ...]) -> bool:
    """True if NumPy reads the array as one row, which it sums pairwise."""
    return len(axes) == array.ndim and array.flags.c_contiguous


def _contiguous(array: np.ndarray, gone: list[bool], exact: bool) -> np.ndarray:
    """Sums the axes marked `gone` of an array in C order."""
    rows = array.ndim  # the axes from here on are all summed
    while rows and gone[rows - 1]:
        rows -= 1
    if rows < array.ndim:
        part = _rows(array.reshape(-1, prod(array.shape[rows:])))
        return _rest(part.reshape(array.shape[:rows]), gone[:rows], exact)
    stop = rows  # the last axes that are summed are those from start to stop
    while not gone[stop - 1]:
        stop -= 1
    start = stop
    while start and gone[start - 1]:
        start -= 1
    shape = array.shape
    stacks = array.reshape(prod(shape[:start]), prod(shape[start:stop]), prod(shape[stop:]))
    part = _planes(stacks).reshape(shape[:start] + shape[stop:])
    return _rest(part, gone[:start] + gone[stop:], exact)


def _rows(matrix: np.ndarray) -> np.ndarray:
    if matrix.shape[1] <= SHORT:
        with blas.undisturbed:
            return np.asarray(matrix @ np.ones(matrix.shape[1], matrix.dtype))
    if matrix.shape[1] * matrix.itemsize <= MIDDLE:
        return np.asarray(np.einsum("ij->i", matrix))
    return np.asarray(np.add.reduce(matrix, axis=1))


def _planes(stacks: np.ndarray) -> np.ndarray:
    """Sums along the middle axis by adding complete planes of rows."""
    lead, rows, width = stacks.shape
    exact = stacks.dtype == np.float64
    if exact and rows > 2 * CHAIN:  # planes of partial sums
        even = rows // CHAIN * CHAIN
        blocks = stacks[:, :even].reshape(lead, -1, CHAIN, width, copy=False)
        part = np.empty((lead, even // CHAIN, width))
        for n in range(lead):
            part[n] = _planes(blocks[n])
        sums = _planes(part)
        return sums + _planes(stacks[:, even:]) if even < rows else sums
    if rows <= PLANES or exact:
        return np.asarray(np.add.reduce(stacks, axis=1))
    even = rows // PLANES * PLANES
    # A copy of an incomplete stack costs less than adding short rows.
    planes = stacks[:, :even].reshape(lead, PLANES, even // PLANES, width)
    part = np.add.reduce(np.add.reduce(planes, axis=1), axis=1, dtype=np.float64)
    if even < rows:
        part += np.add.reduce(stacks[:, even:], axis=1, dtype=np.float64)
    return np.asarray(part)


def _strided(array: np.ndarray, gone: list[bool], exact: bool) -> np.ndarray:
    """Sums over rows that are not adjacent in memory; the last axis is innermost."""
    if gone[-1] and array.shape[-1] >= PLANES:
        array, gone = np.add.reduce(array, axis=-1), gone[:-1]
    return _rest(array, gone, exact)


def _rest(array: np.ndarray, gone: list[bool], exact: bool) -> np.ndarray:
    axes = tuple(n for n, summed in enumerate(gone) if summed)
    return add_up(array, axes, exact) if axes else array


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
