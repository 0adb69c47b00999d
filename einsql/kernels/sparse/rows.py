"""Products of stored elements with dense matrices, by SciPy's kernels on all threads."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

import numpy as np

from einsql.buffers import empty
from einsql.kernels import pool
from einsql.kernels.kernel import Tick
from einsql.kernels.sparse.tiles import Grid
from einsql.sparse import Compressed

PER_POINT = 2e-10
"""Seconds per stored element and column on one thread, in FLOAT; DOUBLE takes twice that."""
SPREAD = 2e-4
"""Seconds from which threads are worth starting."""
MOST = 3e-2
"""Seconds that a piece may take."""
IN_ORDER = 2**16
"""Elements of a row that may be added one after another in FLOAT."""


def multiply_rows(matrix: Compressed, dense: np.ndarray, tick: Tick) -> np.ndarray:
    """The product of a sparse matrix and a dense one.

    Args:
        matrix: `[rows, terms]`, of the type of the result.
        dense: `[terms, columns]` of that type.
        tick: Told the fraction done.

    Returns:
        A C-contiguous array `[rows, columns]`. Sums start at 0, so none is -0.0.
    """
    work = matrix.values.dtype
    longest = matrix.counts.max(initial=0) if matrix.stored > IN_ORDER else 0
    if work == np.float32 and longest > IN_ORDER:
        wide = matrix.of(matrix.values.astype(np.float64))
        return multiply_rows(wide, dense.astype(np.float64), tick).astype(work)
    # What SciPy's `@` calls. Called directly, it writes rows of a result that is there.
    from scipy.sparse import _sparsetools as scipy  # 0.2 s, and few statements need it

    flat = np.ascontiguousarray(dense).reshape(-1)
    terms, width = dense.shape
    out = empty((matrix.shape[0], width), work)

    def piece(rows: slice) -> None:
        into = out[rows].reshape(-1)
        into[...] = 0
        starts = matrix.starts[rows.start : rows.stop + 1]
        of = rows.stop - rows.start, terms
        if width == 1:
            scipy.csr_matvec(*of, starts, matrix.columns, matrix.values, flat, into)
        else:
            scipy.csr_matvecs(*of, width, starts, matrix.columns, matrix.values, flat, into)

    seconds = (matrix.stored * dense.shape[1] + out.size) * PER_POINT * work.itemsize / 4
    wanted = 1
    if seconds >= SPREAD:
        wanted = max(2 * pool.threads() if pool.threads() > 1 else 1, ceil(seconds / MOST))
    pieces = balanced(matrix, wanted)
    pool.run(piece, pieces, len(pieces), tick)
    return out


def balanced(matrix: Compressed, wanted: int) -> list[slice]:
    """Ranges of rows with about as many elements each, but no more rows than twice the mean."""
    rows, starts = matrix.shape[0], matrix.starts
    marks = matrix.stored * np.arange(1, wanted) // wanted
    even = rows * np.arange(wanted + 1) // wanted
    found = np.searchsorted(starts, marks.astype(starts.dtype))
    ends = np.unique(np.concatenate((found, even))).tolist()
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
    found = np.flatnonzero(present)
    across = found % columns
    if values.flags.c_contiguous:
        held = values.reshape(-1)[found]
    else:
        held = values[found // columns, across]
    size = np.int32 if max(len(found), columns) < 2**31 else np.int64
    return Compressed(
        (rows, columns), starts.astype(size), across.astype(size), held.astype(work, copy=False)
    )
