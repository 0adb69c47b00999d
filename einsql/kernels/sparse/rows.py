"""Products of stored elements with dense matrices, by SciPy's kernels on all threads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import ceil

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.sparse_matrix import Compressed
from einsql.kernels.kernel import Tick
from einsql.kernels.matmul.copying import spread_copy
from einsql.kernels.runtime import thread_pool
from einsql.kernels.sparse.tiles import Grid, share
from einsql.kernels.vectorized.sums import add_up

PER_POINT = 2e-10
"""Seconds per stored element and column on one thread, in FLOAT; DOUBLE takes twice that."""
SPREAD = 2e-4
"""Seconds from which threads are worth starting."""
MOST = 3e-2
"""Seconds that a piece may take."""
NEAR, LEAST = 2**24, 64
"""Bytes of a dense matrix that stay in a cache, and columns that are read at once at least."""
OFTEN = 16
"""How often each row of a dense matrix is read if it pays to read it in parts."""
IN_ORDER = 2**11
"""Elements of a row that may be added one after another, in the type of the result as SciPy does;
a longer one is taken in parts of a quarter of them."""


def multiply_rows(matrix: Compressed, dense: np.ndarray, tick: Tick) -> np.ndarray:
    """The product of a sparse matrix and a dense one.

    Args:
        matrix: `[rows, terms]`, of the type of the result.
        dense: `[terms, columns]` of that type.
        tick: Told the fraction done.

    Returns:
        A C-contiguous array `[rows, columns]`. Sums start at 0, so none is -0.0.
    """
    longest = matrix.counts.max(initial=0) if matrix.stored > IN_ORDER else 0
    if longest > IN_ORDER:
        return _in_parts(matrix, dense, tick)
    work = matrix.values.dtype
    multiply = _multiplier()
    width = dense.shape[1]
    out = empty((matrix.shape[0], width), work)
    ranges = _columns(matrix, width)
    seconds = (matrix.stored * width + out.size) * PER_POINT * work.itemsize / 4 / len(ranges)
    wanted = 1
    if seconds >= SPREAD:
        wanted = max(
            2 * thread_pool.threads() if thread_pool.threads() > 1 else 1, ceil(seconds / MOST)
        )
    pieces = balanced(matrix, wanted)
    for n, columns in enumerate(ranges):
        read = dense[:, columns]
        read = read if read.flags.c_contiguous else spread_copy(read, work)

        def piece(rows: slice, columns: slice = columns, read: np.ndarray = read) -> None:
            into = out[rows, columns]
            part = into if into.flags.c_contiguous else np.empty(into.shape, work)
            starts = matrix.starts[rows.start : rows.stop + 1]
            multiply(starts, matrix, read, part)
            if part is not into:
                into[...] = part

        thread_pool.run(piece, pieces, len(pieces), share(tick, n, len(ranges)))
    return out


def _in_parts(matrix: Compressed, dense: np.ndarray, tick: Tick) -> np.ndarray:
    """The product by parts of rows, which are rows of their own, and added in DOUBLE."""
    size, kind = IN_ORDER // 4, matrix.starts.dtype
    parts = np.maximum(1, -(-matrix.counts // size))
    first = np.cumsum(parts) - parts
    starts = np.repeat(matrix.starts[:-1], parts)
    starts += (size * (np.arange(len(starts)) - np.repeat(first, parts))).astype(kind)
    ends = np.append(starts, matrix.starts[-1]).astype(kind)
    cut = Compressed((len(starts), matrix.shape[1]), ends, matrix.columns, matrix.values)
    sums = multiply_rows(cut, dense, tick)
    out = np.add.reduceat(sums, first, axis=0, dtype=np.float64)
    for row in np.flatnonzero(parts > IN_ORDER // 2).tolist():
        out[row] = add_up(sums[first[row] : first[row] + parts[row]], (0,), exact=True)
    return out.astype(sums.dtype, copy=False)


def _multiplier() -> Callable[[np.ndarray, Compressed, np.ndarray, np.ndarray], None]:
    """A function that multiplies rows of a matrix, by their starts, into a C-contiguous array."""
    from scipy.sparse import csr_array  # 0.2 s, and few statements need it

    try:
        # The functions behind SciPy's `@`. Called directly, they write to an existing result.
        from scipy.sparse._sparsetools import csr_matvec, csr_matvecs
    except ImportError:  # they are no part of its interface

        def multiply(
            starts: np.ndarray, matrix: Compressed, dense: np.ndarray, into: np.ndarray
        ) -> None:
            stored = slice(int(starts[0]), int(starts[-1]))
            arrays = matrix.values[stored], matrix.columns[stored], starts - starts[0]
            into[...] = csr_array(arrays, shape=(len(into), matrix.shape[1])) @ dense

        return multiply

    def add(starts: np.ndarray, matrix: Compressed, dense: np.ndarray, into: np.ndarray) -> None:
        into[...] = 0
        (terms, width), flat = dense.shape, dense.reshape(-1)
        matrix_args = starts, matrix.columns, matrix.values, flat, into.reshape(-1)
        if width == 1:
            csr_matvec(len(into), terms, *matrix_args)
        else:
            csr_matvecs(len(into), terms, width, *matrix_args)

    return add


def _columns(matrix: Compressed, width: int) -> list[slice]:
    """The columns of a dense matrix that are multiplied at once: those that stay in a cache."""
    nbytes = matrix.shape[1] * matrix.values.itemsize
    at_once = max(LEAST, NEAR // max(1, nbytes))
    if nbytes * width < 2 * NEAR or matrix.stored < OFTEN * matrix.shape[1]:
        at_once = max(1, width)
    return [slice(n, min(n + at_once, width)) for n in range(0, width, at_once)]


def balanced(matrix: Compressed, wanted: int) -> list[slice]:
    """Ranges of rows with about as many elements each, but no more rows than twice the mean."""
    rows, starts = matrix.shape[0], matrix.starts
    marks = matrix.stored * np.arange(1, wanted) // wanted
    even = rows * np.arange(wanted + 1) // wanted
    cuts = np.searchsorted(starts, marks.astype(starts.dtype))
    ends = np.unique(np.concatenate((cuts, even))).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


def compressed(values: np.ndarray, grid: Grid, work: np.dtype) -> Compressed:
    """The present elements of a matrix, row by row.

    Args:
        values: `[rows, columns]`, of any strides and type.
        grid: Which of them are there; not all are.
        work: The type of the result.
    """
    present = grid.present
    assert present is not None
    rows, columns = present.shape
    counts = np.count_nonzero(present, axis=1)
    starts = np.concatenate(([0], np.cumsum(counts)))
    positions = np.flatnonzero(present)
    across = positions % columns
    if values.flags.c_contiguous:
        elements = values.reshape(-1)[positions]
    else:
        elements = values[positions // columns, across]
    size = np.int32 if max(len(positions), columns) < 2**31 else np.int64
    return Compressed(
        (rows, columns), starts.astype(size), across.astype(size), elements.astype(work, copy=False)
    )
