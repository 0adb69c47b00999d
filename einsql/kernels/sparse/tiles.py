"""Tiles of matrices: absent tiles, complete tiles, and copies with zeros."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import ceil

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.kernels.kernel import no_progress
from einsql.kernels.matmul.pieces import contiguous
from einsql.kernels.runtime import blas, thread_pool

TILE = 128
"""Rows and columns of a tile; a row's count fits a byte."""
SPREAD = 2**18
"""Elements from which several threads pay."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The number of present elements of each tile of a matrix.

    Attributes:
        present: The presence flags of the elements; None if all are present.
        counts: The number of present elements of each tile.
        heights, widths: The extents of the tiles along both axes.
    """

    present: np.ndarray | None
    counts: np.ndarray
    heights: np.ndarray
    widths: np.ndarray

    @property
    def some(self) -> np.ndarray:
        """Flags of the tiles with present elements."""
        return np.asarray(self.counts > 0)

    @property
    def lacking(self) -> np.ndarray:
        """Flags of the tiles with absent elements."""
        return np.asarray(self.counts < self.heights[:, None] * self.widths)

    @property
    def mixed(self) -> np.ndarray:
        """Flags of the tiles with both present and absent elements."""
        return np.asarray(self.some & self.lacking)

    @property
    def total(self) -> int:
        """The number of present elements."""
        return int(self.counts.sum())

    @property
    def turned(self) -> Grid:
        """The grid of the transposed matrix."""
        flags = None if self.present is None else self.present.T
        return Grid(flags, self.counts.T, self.widths, self.heights)


def edges(extent: int) -> list[slice]:
    """The slices of the tiles of an axis."""
    return [slice(n, min(n + TILE, extent)) for n in range(0, extent, TILE)]


def grid_of(present: np.ndarray | None, shape: tuple[int, int]) -> Grid:
    """Counts the elements of each tile.

    Args:
        present: BOOLEAN `[rows, columns]`, with any strides; None if all are present.
        shape: The shape of the matrix.
    """
    heights, widths = (np.array([e.stop - e.start for e in edges(n)], np.int64) for n in shape)
    if present is None:
        return Grid(None, heights[:, None] * widths, heights, widths)
    if abs(present.strides[0]) < abs(present.strides[1]):
        return grid_of(present.T, shape[::-1]).turned
    counts = np.empty((len(heights), len(widths)), np.int64)
    starts = np.arange(0, shape[1], TILE)
    flags = present.view(np.uint8)
    rows = edges(shape[0])

    def count(n: int) -> None:
        columns = np.add.reduce(flags[rows[n]], axis=0, dtype=np.uint8)
        counts[n] = np.add.reduceat(columns, starts, dtype=np.int64)

    spread(count, len(rows), present.size)
    return Grid(present, counts, heights, widths)


def filled(values: np.ndarray, grid: Grid, work: np.dtype, absent: bool) -> np.ndarray:
    """The matrix in a layout for BLAS, with 0 for absent elements.

    Args:
        values: `[rows, columns]`, with any strides and type.
        grid: The presence of the elements.
        work: The result's type.
        absent: Whether absent tiles are set to 0 too; otherwise they are undefined.

    Returns:
        The matrix itself if no copy is needed.
    """
    lacking = grid.lacking if absent else grid.mixed
    if not lacking.any():
        usable = values.dtype == work and values.flags.aligned
        usable = usable and all(s % work.itemsize == 0 for s in values.strides)
        if usable and blas.stepped(values)[1]:
            return values
        return contiguous(values, work)
    if abs(values.strides[0]) < abs(values.strides[1]):
        return filled(values.T, grid.turned, work, absent).T
    assert grid.present is not None
    present, out = grid.present, empty(values.shape, work)
    rows, columns = (edges(n) for n in values.shape)

    def fill(i: int) -> None:
        for j in np.flatnonzero(grid.some[i] | absent):
            at = rows[i], columns[j]
            if not lacking[i, j]:
                out[at] = values[at]
                continue
            out[at] = 0
            if grid.counts[i, j]:
                np.copyto(out[at], values[at], where=present[at], casting="same_kind")

    spread(fill, len(rows), values.size)
    return out


def finite(values: np.ndarray, some: np.ndarray) -> np.ndarray:
    """Flags of the tile rows of a matrix without NaN and infinity.

    Args:
        values: `[rows, columns]`.
        some: Flags of the inspected tiles.
    """
    rows, columns = (edges(n) for n in values.shape)
    flags = np.ones(len(rows), np.bool_)

    def look(i: int) -> None:
        if some[i].all():
            flags[i] = np.isfinite(values[rows[i]]).all()
            return
        flags[i] = all(
            np.isfinite(values[rows[i], columns[j]]).all() for j in np.flatnonzero(some[i])
        )

    spread(look, len(rows), values.size)
    return flags


def spread(work: Callable[[int], None], pieces: int, size: int) -> None:
    """Runs numbered pieces of a pass over `size` elements, on all threads if `size` is large."""
    if size < SPREAD:
        for n in range(pieces):
            work(n)
        return
    thread_pool.run(work, range(pieces), pieces, no_progress)


def parts(extent: int, wanted: int) -> list[slice]:
    """Cuts an axis into a greatest number of ranges of complete tiles."""
    tiles = ceil(extent / TILE)
    wanted = max(1, min(wanted, tiles))
    ends = [tiles * n // wanted * TILE for n in range(wanted + 1)]
    return [slice(a, min(b, extent)) for a, b in pairwise(ends)]
