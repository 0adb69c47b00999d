"""Products too small or too narrow for BLAS to pack: register tiles over matrices in place.

BLAS copies both operands into panels, which pays where each element is used often. It does not
pay in a stack of small matrices, in a long matrix times one of few columns, or in a sum of many
terms for few elements. Here rows are read element by element and columns in vectors, with any
strides. One compiled kernel serves every product with the same tile: it works down a table of
addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache as cached
from math import ceil

import numpy as np

from einsql.kernels.kernel import Tick
from einsql.kernels.runtime import compile_cache, thread_pool
from einsql.kernels.runtime.cpu_features import machine

PIECE = 2**27
"""Products of elements that make a piece, of some milliseconds."""
LEAST = 2**20
"""Those below which a piece is not made smaller for the sake of more threads."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile.

    Attributes:
        size: Bytes of an element.
        rows: Its rows.
        lanes: Elements of a register.
        width: Registers of a row.
    """

    size: int
    rows: int
    lanes: int
    width: int


def tile_for(m: int, n: int, size: int) -> Tile:
    """The tile for matrices of m rows times such of n columns."""
    nbytes, count = _registers()
    lanes = nbytes // size
    while lanes > n:
        lanes //= 2
    needed = ceil(n / lanes)
    width = 3 if needed == 3 and count == 32 else min(2, needed)
    most = min(14, 24 // width if count == 32 else (count - 3 - width) // width)
    return Tile(size, ceil(m / ceil(m / most)), lanes, width)


@cached
def _registers() -> tuple[int, int]:
    """Bytes and number of the machine's vector registers."""
    return machine().width, machine().registers


_TEXT = """\
import numpy as np
from numba import njit
from einsql.kernels.matmul.registers import tile
from einsql.kernels.runtime.compiled_functions import at


@njit("void(int64[:, ::1], int64, int64, int64, int64[::1])", cache=True, nogil=True)
def kernel(table, a, b, out, p):
    columns, depth, down, along, below, beside, under = p
    turned = beside != {size}
    panel = np.empty(columns * depth if turned else 1, np.{dtype})
    packed = -1
    for t in range(table.shape[0]):
        left, right, to = a + table[t, 0], b + table[t, 1], out + table[t, 2]
        if turned:
            if right != packed:
                for n in range(columns):
                    for k in range(depth):
                        term = at(right + n * beside + k * below, panel)
                        panel[k * columns + n] = term[0]
                packed = right
            right, step = panel.ctypes.data, columns * {size}
        else:
            step = below
        for column in range(0, columns * {size}, {step}):
            tile({size}, {rows}, {lanes}, {width}, left, down, along, right, step, depth,
                 column, (columns - {lanes}) * {size}, to, under)
"""


def source_of(tile: Tile) -> str:
    """The kernel's module.

    Its `kernel(table, a, b, out, p)` takes the distances of each tile's rows, columns and
    result from the addresses that follow; and the number of columns, that of the terms, and
    the distances from a row and from a term to the next in `a`, from a term and from a column
    to the next in `b`, and from a row to the next in the result.
    """
    return _TEXT.format(
        size=tile.size,
        dtype=f"float{8 * tile.size}",
        rows=tile.rows,
        lanes=tile.lanes,
        width=tile.width,
        step=tile.width * tile.lanes * tile.size,
    )


class UnpackedTiles:
    """Multiplies stacks of matrices of one form.

    Args:
        left: `[stack …, M, K]`, of any strides; extents of the stack may be 1 for all.
        right: `[stack …, K, N]`; each is copied if neighbours in a row are not so in memory.
        out: `[stack …, M, N]`, where they are.
    """

    def __init__(self, left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
        m, k = left.shape[-2:]
        n = right.shape[-1]
        self.tile = tile_for(m, n, out.itemsize)
        rows = self.tile.rows
        # The last tile begins earlier where rows are left over; some are computed twice.
        first = np.minimum(np.arange(0, m, rows), m - rows)
        stacked = [
            (*_steps(x, out.shape[:-2]), first * x.strides[-2] if n_ != 1 else first * 0)
            for n_, x in enumerate((left, right, out))
        ]
        self.table = np.stack([_sums(steps) for steps in stacked], axis=1)
        steps = *left.strides[-2:], *right.strides[-2:], out.strides[-2]
        self.numbers = np.array([n, k, *steps], np.int64)
        self.work = rows * n * k

    def __call__(self, left: np.ndarray, right: np.ndarray, out: np.ndarray, tick: Tick) -> None:
        """Multiplies matrices of the form that it was made for; `out` may hold anything."""
        kernel = compile_cache.load(source_of(self.tile), tick)
        addresses = left.ctypes.data, right.ctypes.data, out.ctypes.data
        count = len(self.table)
        share = max(LEAST, min(PIECE, count * self.work // (4 * thread_pool.threads())))
        step = max(1, share // self.work)

        def some(start: int) -> None:
            kernel(self.table[start : start + step], *addresses, self.numbers)

        thread_pool.run(some, range(0, count, step), ceil(count / step), tick)


def _steps(x: np.ndarray, stack: Sequence[int]) -> list[np.ndarray]:
    """Distances in bytes of the positions along each axis of a stack."""
    return [
        np.arange(n) * (step if extent > 1 else 0)
        for n, extent, step in zip(stack, x.shape, x.strides, strict=False)
    ]


def _sums(steps: Sequence[np.ndarray]) -> np.ndarray:
    """Every sum of one element of each, the last varying fastest."""
    sums = np.zeros(1, np.int64)
    for s in steps:
        sums = (sums[:, None] + s).reshape(-1)
    return sums
