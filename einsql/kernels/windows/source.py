"""Source text of the kernel that multiplies windows: one per type and shape of tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil

DEPTH_BYTES = 2**18
"""Bytes of a packed panel that stay in the second cache while rows pass by."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile.

    Attributes:
        rows: How many rows it has.
        lanes: Elements of a register.
        width: Registers of a row.
        itemsize: 4 for FLOAT, 8 for DOUBLE.
    """

    rows: int
    lanes: int
    width: int
    itemsize: int

    @property
    def columns(self) -> int:
        """Columns of a panel."""
        return self.lanes * self.width

    @property
    def depth(self) -> int:
        """Terms that are summed before the sums are stored."""
        return max(64, DEPTH_BYTES // (self.columns * self.itemsize))


@cache
def _registers() -> tuple[int, int]:
    """Bytes and number of the machine's vector registers."""
    import llvmlite.binding as llvm

    found = llvm.get_host_cpu_features()
    if found.get("avx512f"):
        return 64, 32
    if found.get("avx"):
        return 32, 16
    return 16, 32 if found.get("neon") else 16


def tile_for(columns: int, itemsize: int) -> Tile:
    """The tile for products with so many columns."""
    nbytes, count = _registers()
    lanes = nbytes // itemsize
    widest = 4 if count == 32 else 2
    needed = ceil(columns / lanes)
    width = ceil(needed / ceil(needed / widest))
    # A row's registers, the panel's and one for the element that is spread over a register.
    return Tile(min(12, (count - 2 - width) // width), lanes, width, itemsize)


_TEXT = """\
import numpy as np
from numba import njit
from einsql.kernels.windows.registers import tile

ROWS, LANES, WIDTH, SIZE, DEPTH = {rows}, {lanes}, {width}, {itemsize}, {depth}
COLUMNS = LANES * WIDTH


@njit("void(int64, int64[::1], int64[::1], {dtype}[:, :, ::1], {dtype}[::1], int64, int64[::1], "
      "int64[::1])", cache=True, nogil=True)
def kernel(base, rows, steps, panels, out, origin, places, columns):
    count, terms = rows.shape[0], steps.shape[0]
    high = (count + ROWS - 1) // ROWS
    deep = (terms + DEPTH - 1) // DEPTH
    at = np.empty(ROWS, np.int64)
    held = high if deep > 1 else 1
    sums = np.empty((held, ROWS, COLUMNS), np.{dtype})
    for p in range(panels.shape[0]):
        first = p * COLUMNS
        last = min(first + COLUMNS, columns.shape[0])
        for d in range(deep):
            start = d * DEPTH
            stop = min(start + DEPTH, terms)
            panel = panels.ctypes.data + (p * terms + start) * COLUMNS * SIZE
            for h in range(high):
                for m in range(ROWS):
                    at[m] = base + rows[min(h * ROWS + m, count - 1)]
                cell = min(h, held - 1)
                tile({kind}, {rows}, {lanes}, {width}, at.ctypes.data,
                     steps.ctypes.data + start * 8, stop - start, panel,
                     sums.ctypes.data + cell * ROWS * COLUMNS * SIZE, d == 0)
                if d < deep - 1:
                    continue
                most = min(ROWS, count - h * ROWS)
                for n in range(last - first):
                    line = origin + columns[first + n]
                    for m in range(most):
                        out[line + places[h * ROWS + m]] = sums[cell, m, n]
"""


@cache
def source_of(tile: Tile) -> str:
    """The kernel's module.

    Its `kernel(base, rows, steps, panels, out, origin, places, columns)` takes the address of
    an element, the distances in bytes from there to the first term of each row and from the
    first term to each, `[panel, term, column]`, the flat result, and positions in it: of the
    first element, of each row and of each column relative to that.
    """
    return _TEXT.format(
        rows=tile.rows,
        lanes=tile.lanes,
        width=tile.width,
        itemsize=tile.itemsize,
        depth=tile.depth,
        dtype="float32" if tile.itemsize == 4 else "float64",
        kind=int(tile.itemsize == 8),
    )
