"""Source text of the kernel that multiplies windows: one per type and shape of tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import ceil

DEPTH_BYTES = 2**18
"""Bytes of a packed panel that stay in the second cache while rows pass by."""

ORDERED = 1024
"""Terms whose rounding errors may add up in a sum of the operands' type."""

HELD = 8
"""Tiles whose sums are written together, for longer runs in the result."""


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
        """Terms that are added one after another, before their sums are added in DOUBLE."""
        return max(64, min(ORDERED, DEPTH_BYTES // (self.columns * self.itemsize)))


@cache
def _registers() -> tuple[int, int]:
    """Bytes and number of the machine's vector registers."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    if features.get("avx512f"):
        return 64, 32
    if features.get("avx"):
        return 32, 16
    return 16, 32 if features.get("neon") else 16


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
from einsql.kernels.runtime.compiled_functions import rounded_off
from einsql.kernels.windows.registers import tile

ROWS, LANES, WIDTH, SIZE, DEPTH = {rows}, {lanes}, {width}, {itemsize}, {depth}
COLUMNS, HELD = LANES * WIDTH, {held}


@njit("void({dtype}[::1], {dtype}[::1], int64, int64[::1], int64[::1])", cache=True, nogil=True)
def write(sums, out, origin, places, columns):
    count = places.shape[0]
    if places[count - 1] - places[0] == count - 1:
        for n in range(columns.shape[0]):
            line = out[origin + columns[n] + places[0]:]
            for m in range(count):
                line[m] = sums[m * COLUMNS + n]
        return
    for n in range(columns.shape[0]):
        line = origin + columns[n]
        for m in range(count):
            out[line + places[m]] = sums[m * COLUMNS + n]


@njit("void({dtype}[::1], float64[:, ::1], int64)", cache=True, nogil=True)
def collect(sums, totals, before):
    if before == 0:
        totals[:] = 0.0
    for n in range(sums.shape[0]):
        y = totals[0, n] + sums[n]
        totals[1, n] += rounded_off(totals[0, n], np.float64(sums[n]), y)
        totals[0, n] = y
        sums[n] = y + totals[1, n] if np.isfinite(y) else y


@njit("void(int64, int64[::1], int64[::1], {dtype}[:, :, ::1], {dtype}[::1], int64, int64[::1], "
      "int64[::1])", cache=True, nogil=True)
def kernel(base, rows, steps, panels, out, origin, places, columns):
    count, terms = rows.shape[0], steps.shape[0]
    high = (count + ROWS - 1) // ROWS
    deep = (terms + DEPTH - 1) // DEPTH
    at = np.empty(ROWS, np.int64)
    held = HELD
    sums = np.empty((held, ROWS, COLUMNS), np.{dtype})
    totals = np.empty((high if deep > 1 else 0, 2, ROWS * COLUMNS))
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
                cell = h % held
                tile({kind}, {rows}, {lanes}, {width}, at.ctypes.data,
                     steps.ctypes.data + start * 8, stop - start, panel,
                     sums.ctypes.data + cell * ROWS * COLUMNS * SIZE)
                if deep > 1:
                    collect(sums[cell].reshape(-1), totals[h], d)
                if d < deep - 1 or (h % HELD < HELD - 1 and h < high - 1):
                    continue
                top = h // HELD * HELD
                write(sums[top % held:].reshape(-1), out, origin,
                      places[top * ROWS:min(count, (h + 1) * ROWS)], columns[first:last])
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
        held=HELD,
        dtype="float32" if tile.itemsize == 4 else "float64",
        kind=int(tile.itemsize == 8),
    )
