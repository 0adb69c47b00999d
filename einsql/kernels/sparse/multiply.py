"""Products of matrices that lack elements, tile by tile by BLAS: absent tiles are skipped."""

from __future__ import annotations

from math import ceil

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.kernels.kernel import Tick
from einsql.kernels.matmul.layout import Labels
from einsql.kernels.matmul.long_sums import ADDED, TERMS
from einsql.kernels.matmul.multiply import Multiplied
from einsql.kernels.matmul.pieces import FLOPS
from einsql.kernels.runtime import blas, thread_pool
from einsql.kernels.sparse.tiles import TILE, Grid, edges, filled, finite, parts
from einsql.kernels.vectorized.sums import RunningSum

WIDE = 4096
"""Columns multiplied at once where no tile of the right matrix is skipped."""
MOST_TILES = TERMS // TILE
"""Tiles whose terms BLAS may add one after another."""
MOST = 3e-2
"""Seconds that a piece may take."""


def harmless(a: np.ndarray, of_a: Grid, b: np.ndarray, of_b: Grid, all_tiles: bool) -> bool:
    """True if zeros in the place of absent elements meet neither NaN nor infinity.

    Args:
        a: The left matrix as `filled` made it.
        of_a: Which elements of it are there.
        b: The right matrix.
        of_b: Likewise.
        all_tiles: Whether absent tiles are multiplied too.
    """
    zeros_a = (of_a.lacking if all_tiles else of_a.mixed).any(axis=0)
    zeros_b = (of_b.lacking if all_tiles else of_b.mixed).any(axis=1)
    if zeros_a.any() and not finite(b, of_b.some)[zeros_a].all():
        return False
    return not zeros_b.any() or bool(finite(a.T, of_a.some.T)[zeros_b].all())


def multiply_all(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
    """The product of matrices that hold 0 wherever an element is absent."""
    extent = {"m": a.shape[0], "k": a.shape[1], "n": b.shape[1]}
    labels = Labels(("m", "k"), ("k", "n"), ("m", "n"), extent)
    return Multiplied(labels, a.dtype)(a, b, tick)


def multiply_tiles(
    a: np.ndarray, some_a: np.ndarray, b: np.ndarray, some_b: np.ndarray, tick: Tick
) -> np.ndarray:
    """The product of matrices of which some tiles are absent.

    Args:
        a: The left matrix as `filled` made it; absent tiles are not read.
        some_a: Which tiles are there.
        b: The right matrix.
        some_b: Likewise.
        tick: Told the fraction done.
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
    """How many pairs of present elements each element of a product has.

    Args:
        of_a: Which elements of the left matrix are there; some are not.
        of_b: Which of the right one are.
        work: FLOAT or DOUBLE; the counts are exact as far as it counts.
        tick: Told the fraction done.

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
    """Sets `into` to a b + beta · into; where beta is 0 it may hold anything."""
    if blas.library() is not None:
        blas.gemm(a, b, into, 1.0, beta)
    elif beta:
        into += a @ b
    else:
        np.matmul(a, b, out=into)


def runs(flags: np.ndarray, most: int) -> list[tuple[int, int]]:
    """First and last positions of each run of true flags, of at most so many of them."""
    stretches: list[tuple[int, int]] = []
    for n in np.flatnonzero(flags).tolist():
        if stretches and stretches[-1][1] == n - 1 and n - stretches[-1][0] < most:
            stretches[-1] = (stretches[-1][0], n)
        else:
            stretches.append((n, n))
    return stretches
