"""Products of matrices with absent elements.

BLAS multiplies tile by tile and skips absent tiles. SciPy multiplies stored elements with dense
matrices, on all threads.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import ceil

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.sparse.compressed import Compressed
from einsql.kernels.kernel import Tick, share
from einsql.kernels.matmul.layout import Labels
from einsql.kernels.matmul.long_sums import ADDED, TERMS
from einsql.kernels.matmul.multiply import Multiplied
from einsql.kernels.matmul.pieces import FLOPS, spread_copy
from einsql.kernels.runtime import blas, thread_pool
from einsql.kernels.sparse.tiles import TILE, Grid, edges, filled, finite, parts
from einsql.kernels.vectorized.sums import RunningSum, add_up

WIDE = 4096
"""Columns that are multiplied at once if no tile of the right matrix is skipped."""
MOST_TILES = TERMS // TILE
"""Greatest number of tiles whose terms BLAS adds one after another."""
MOST = 3e-2
"""Greatest seconds of a piece."""
PER_POINT = 2e-10
"""Seconds per stored element and column on one thread, in FLOAT; DOUBLE takes twice that."""
SPREAD = 2e-4
"""Seconds from which several threads pay."""
NEAR, LEAST = 2**24, 64
"""Bytes of a dense matrix that stay in a cache, and least columns that are read at once."""
OFTEN = 16
"""Least number of reads per row of a dense matrix that is multiplied in parts."""
IN_ORDER = 2**11
"""Greatest number of elements of a row that SciPy adds one after another in the result's type.
Longer rows are cut into parts of a quarter of this."""


def harmless(a: np.ndarray, of_a: Grid, b: np.ndarray, of_b: Grid, all_tiles: bool) -> bool:
    """True if zeros for absent elements are not multiplied by NaN or infinity.

    Args:
        a: The left matrix as `filled` returns it.
        of_a: The presence of its elements.
        b: The right matrix.
        of_b: The presence of the right matrix's elements.
        all_tiles: Whether absent tiles are multiplied too.
    """
    zeros_a = (of_a.lacking if all_tiles else of_a.mixed).any(axis=0)
    zeros_b = (of_b.lacking if all_tiles else of_b.mixed).any(axis=1)
    if zeros_a.any() and not finite(b, of_b.some)[zeros_a].all():
        return False
    return not zeros_b.any() or bool(finite(a.T, of_a.some.T)[zeros_b].all())


def multiply_all(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
    """The product of matrices with 0 for absent elements."""
    extent = {"m": a.shape[0], "k": a.shape[1], "n": b.shape[1]}
    labels = Labels(("m", "k"), ("k", "n"), ("m", "n"), extent)
    return Multiplied(labels, a.dtype)(a, b, tick)


def multiply_tiles(
    a: np.ndarray, some_a: np.ndarray, b: np.ndarray, some_b: np.ndarray, tick: Tick
) -> np.ndarray:
    """The product of matrices with absent tiles.

    Args:
        a: The left matrix as `filled` returns it; absent tiles are not read.
        some_a: The presence of its tiles.
        b: The right matrix.
        some_b: The presence of the right matrix's tiles.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.
    """
    out = empty((a.shape[0], b.shape[1]), a.dtype)
    width = WIDE if some_b.all() else TILE
    rows, terms = edges(a.shape[0]), edges(a.shape[1])
    heaviest = int(some_a.sum(axis=1).max()) * TILE * TILE * b.shape[1]
    seconds = 2.0 * heaviest * out.itemsize / FLOPS
    wanted = max(ceil(seconds / MOST), ceil(4 * thread_pool.threads() / len(rows)))
    pieces = [(i, columns) for i in range(len(rows)) for columns in parts(b.shape[1], wanted)]

    def piece(of: tuple[int, slice]) -> None:
        i, columns = of
        for start in range(columns.start, columns.stop, width):
            place = slice(start, min(start + width, columns.stop))
            met = some_a[i] & some_b[:, start // TILE] if width == TILE else some_a[i]
            into, stretches = out[rows[i], place], runs(met, MOST_TILES)
            total: RunningSum | None = None
            for n, (first, last) in enumerate(stretches):
                at, fresh = slice(terms[first].start, terms[last].stop), n % ADDED == 0
                if n and fresh:
                    total = RunningSum(into) if total is None else total.add(into)
                add_product(a[rows[i], at], b[at, place], into, 0.0 if fresh else 1.0)
            if total is not None:
                into[...] = total.add(into).result()
            if not stretches:
                into[...] = 0

    with blas.OneThread():
        thread_pool.run(piece, pieces, len(pieces), tick)
    return out


def count_pairs(of_a: Grid, of_b: Grid, work: np.dtype, tick: Tick) -> np.ndarray:
    """The number of pairs of present elements for each element of a product.

    Args:
        of_a: The presence of the left matrix's elements; some are absent.
        of_b: The presence of the right matrix's elements.
        work: FLOAT or DOUBLE; counts are exact up to the type's exact integers.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.

    Returns:
        `[rows, columns]` of that type.
    """
    assert of_a.present is not None
    assert of_b.present is not None
    here_a, here_b = of_a.present, of_b.present
    some_a, some_b, lacking_a, lacking_b = of_a.some, of_b.some, of_a.lacking, of_b.lacking
    flags_a, flags_b = filled(here_a, of_a, work, False), filled(here_b, of_b, work, False)
    out = np.zeros((here_a.shape[0], here_b.shape[1]), work)
    rows, terms, columns = edges(out.shape[0]), edges(here_a.shape[1]), edges(out.shape[1])

    def piece(i: int) -> None:
        for n, across in enumerate(columns):
            into = out[rows[i], across]
            for k in np.flatnonzero(some_a[i] & some_b[:, n]):
                whole_a, whole_b = not lacking_a[i, k], not lacking_b[k, n]
                if whole_a and whole_b:
                    into += terms[k].stop - terms[k].start
                elif whole_a:
                    into += np.count_nonzero(here_b[terms[k], across], axis=0)
                elif whole_b:
                    into += np.count_nonzero(here_a[rows[i], terms[k]], axis=1)[:, None]
                else:
                    add_product(flags_a[rows[i], terms[k]], flags_b[terms[k], across], into, 1.0)

    with blas.OneThread():
        thread_pool.run(piece, range(len(rows)), len(rows), tick)
    return out


def add_product(a: np.ndarray, b: np.ndarray, into: np.ndarray, beta: float) -> None:
    """Sets `into` to a b + beta · into; `into` may be uninitialised if beta is 0."""
    if blas.library() is not None:
        blas.gemm(a, b, into, 1.0, beta)
    elif beta:
        into += a @ b
    else:
        np.matmul(a, b, out=into)


def runs(flags: np.ndarray, most: int) -> list[tuple[int, int]]:
    """The start and exclusive end of each run of true flags, cut to a greatest length."""
    stretches: list[tuple[int, int]] = []
    for n in np.flatnonzero(flags).tolist():
        if stretches and stretches[-1][1] == n - 1 and n - stretches[-1][0] < most:
            stretches[-1] = (stretches[-1][0], n)
        else:
            stretches.append((n, n))
    return stretches


def multiply_rows(matrix: Compressed, dense: np.ndarray, tick: Tick) -> np.ndarray:
    """The product of a sparse matrix and a dense one.

    Args:
        matrix: `[rows, terms]`, of the result's type.
        dense: `[terms, columns]`, of the result's type.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.

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
    """The product in parts of rows, which are added in DOUBLE."""
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
    """Creates a function that multiplies rows, given by their starts, into a C-contiguous array."""
    from scipy.sparse import csr_array  # takes 0.2 s, and few statements need it

    try:
        # The functions behind SciPy's `@`. Called directly, they write to an existing result.
        from scipy.sparse._sparsetools import csr_matvec, csr_matvecs
    except ImportError:  # the functions are not public

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
    """The number of columns of a dense matrix that are multiplied at once, to stay in a cache."""
    nbytes = matrix.shape[1] * matrix.values.itemsize
    at_once = max(LEAST, NEAR // max(1, nbytes))
    if nbytes * width < 2 * NEAR or matrix.stored < OFTEN * matrix.shape[1]:
        at_once = max(1, width)
    return [slice(n, min(n + at_once, width)) for n in range(0, width, at_once)]


def balanced(matrix: Compressed, wanted: int) -> list[slice]:
    """Ranges of rows with similar numbers of elements, and at most twice the mean of rows."""
    rows, starts = matrix.shape[0], matrix.starts
    marks = matrix.stored * np.arange(1, wanted) // wanted
    even = rows * np.arange(wanted + 1) // wanted
    cuts = np.searchsorted(starts, marks.astype(starts.dtype))
    ends = np.unique(np.concatenate((cuts, even))).tolist()
    return [slice(a, b) for a, b in pairwise(ends)]


def compressed(values: np.ndarray, grid: Grid, work: np.dtype) -> Compressed:
    """The present elements of a matrix, row by row.

    Args:
        values: `[rows, columns]`, with any strides and type.
        grid: The presence of the elements; some are absent.
        work: The result's type.
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
