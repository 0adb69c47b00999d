"""Products that are too small or narrow for packing: register tiles over matrices in place.

BLAS copies both operands into panels, which pays if each element is used often. It does not
pay for a stack of small matrices, for a long matrix times a narrow matrix, or for a sum of many
terms for few elements. This kernel reads rows element by element and columns in vectors, with any
strides. One compiled kernel computes every product with the same tile: it iterates over a table
of addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod

import numpy as np

from einsql.core.records import dataclass
from einsql.kernels.compiler.cpu_features import machine
from einsql.kernels.kernel import Tick
from einsql.kernels.matmul.long_sums import as_stack
from einsql.kernels.runtime import compile_cache, thread_pool

PIECE = 2**27
"""Products of elements in a piece of a few milliseconds."""
LEAST = 2**20
"""Least products of elements in a piece that is cut for more threads."""
_TEXT = """\
from einsql.kernels.runtime.compiled_functions import at, borrow, give_back
from einsql.kernels.runtime.register_tiles import multiply_tile


@njit("void(int64[:, ::1], int64, int64, int64, int64[::1])")
def kernel(table, a, b, out, p):
    columns, depth, down, along = p[0], p[1], p[2], p[3]
    below, beside, under = p[4], p[5], p[6]
    turned = beside != {size}
    room = borrow((columns * depth if turned else 1) * {size})
    panel = at(room, np.{dtype})
    packed = -1
    for t in range(table.shape[0]):
        left, right, to = a + table[t, 0], b + table[t, 1], out + table[t, 2]
        if turned:
            if right != packed:
                for n in range(columns):
                    for k in range(depth):
                        term = at(right + n * beside + k * below, np.{dtype})
                        panel[k * columns + n] = term[0]
                packed = right
            right, step = room, columns * {size}
        else:
            step = below
        for column in range(0, columns * {size}, {step}):
            multiply_tile(
                {rows}, {nbytes}, {width}, depth, (left, down, along, {rows}),
                (right, step, column, columns * {size} - {nbytes}), (to, under),
                np.{dtype}(1), False,
            )
    give_back(room)
"""
MANY, SMALL = 64, 64
"""Least matrices of a `SMALL` stack, and greatest rows, columns and terms of each."""
NARROW, TERMS = 16, 1024
"""Greatest columns of a narrow matrix, and greatest terms that are added one after another."""
SHALLOW, PANEL = 64, 2**17
"""Greatest terms of a shallow product, and greatest elements of a matrix that stays in cache."""
LONG, SQUARES = 2**14, (2**9, 2**16)
"""Least terms of a sum that is cut, and least and greatest elements of its result (benchmark
`long_sums`)."""
BLOCK = 2**19
"""Greatest bytes of the columns of a block of `TERMS` terms, which stays in the L2 cache
(benchmarks/long_sums.py)."""
Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]
Multiply = Callable[[np.ndarray, np.ndarray, np.ndarray, Tick], None]


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile.

    Attributes:
        size: Bytes of an element, 4 for FLOAT and 8 for DOUBLE.
        rows: The number of rows.
        lanes: The elements of a register.
        width: The registers of a row.
    """

    size: int
    rows: int
    lanes: int
    width: int

    @property
    def columns(self) -> int:
        """The elements of a row."""
        return self.lanes * self.width

    @property
    def spelled(self) -> dict[str, object]:
        """The fields of the kernel's source that depend on the tile."""
        return {
            "rows": self.rows,
            "nbytes": self.lanes * self.size,
            "width": self.width,
            "size": self.size,
            "dtype": f"float{8 * self.size}",
        }


def tile_for(m: int, n: int, size: int) -> Tile:
    """The tile for a matrix with m rows times a matrix with n columns."""
    lanes, count = machine().width // size, machine().registers
    while lanes > n:
        lanes //= 2
    needed = ceil(n / lanes)
    width = ceil(needed / ceil(needed / (4 if count == 32 else 2)))
    # Registers of the rows, of the columns, and one for the broadcast element.
    most = min(12, (count - 2 - width) // width)
    return Tile(size, ceil(m / ceil(m / most)), lanes, width)


def source_of(tile: Tile) -> str:
    """The kernel's module.

    The arguments of its `kernel(table, a, b, out, p)` are the offsets of each tile's rows, columns
    and result from the following three addresses, and integers: the number of columns, the number
    of terms, the strides of a row and a term in `a`, of a term and a column in `b`, and of a row
    in the result.
    """
    return _TEXT.format(step=tile.columns * tile.size, **tile.spelled)


class UnpackedTiles:
    """Multiplies stacks of matrices of one form.

    Args:
        left: `[stack …, M, K]`, of any strides; extents of the stack may be 1 for all.
        right: `[stack …, K, N]`; a matrix is copied if its rows are not contiguous.
        out: `[stack …, M, N]`, the result.
    """

    def __init__(self, left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
        m, k = left.shape[-2:]
        n = right.shape[-1]
        self.tile = tile_for(m, n, out.itemsize)
        rows = self.tile.rows
        # The last tile starts earlier if rows remain; some rows are computed twice.
        first = np.minimum(np.arange(0, m, rows), m - rows)
        stacked = [
            (*_steps(x, out.shape[:-2]), first * x.strides[-2] if n_ != 1 else first * 0)
            for n_, x in enumerate((left, right, out))
        ]
        self.table = np.stack([sums_of(steps) for steps in stacked], axis=1)
        steps = *left.strides[-2:], *right.strides[-2:], out.strides[-2]
        self.numbers = np.array([n, k, *steps], np.int64)
        self.work = rows * n * k

    def __call__(self, left: np.ndarray, right: np.ndarray, out: np.ndarray, tick: Tick) -> None:
        """Multiplies matrices with this form; `out` may be uninitialised."""
        kernel = compile_cache.load(source_of(self.tile), tick)
        addresses = left.ctypes.data, right.ctypes.data, out.ctypes.data
        count = len(self.table)
        share = max(LEAST, min(PIECE, count * self.work // (4 * thread_pool.threads())))
        step = max(1, share // self.work)

        def some(start: int) -> None:
            kernel(self.table[start : start + step], *addresses, self.numbers)

        thread_pool.run(some, range(0, count, step), ceil(count / step), tick)


def _steps(x: np.ndarray, stack: Sequence[int]) -> list[np.ndarray]:
    """The byte offsets of the positions along each axis of a stack."""
    return [
        np.arange(n) * (step if extent > 1 else 0)
        for n, extent, step in zip(stack, x.shape, x.strides, strict=False)
    ]


def sums_of(steps: Sequence[np.ndarray]) -> np.ndarray:
    """All sums of one element of each array; the last array varies fastest."""
    sums = np.zeros(1, np.int64)
    for s in steps:
        sums = (sums[:, None] + s).reshape(-1)
    return sums


def unpacked(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> Multiply | None:
    """Creates a function that multiplies matrices if packing does not pay for them, else None.

    Args:
        left: `[stack …, M, K]`, with the strides of later calls, like the other arrays.
        right: `[stack …, K, N]`.
        out: `[stack …, M, N]`.
    """
    (m, k), n, stack = left.shape[-2:], right.shape[-1], prod(out.shape[:-2])
    size = out.itemsize
    many = stack >= MANY and max(m, n, k) <= SMALL
    narrow = n <= NARROW and m >= MANY * n and (k <= TERMS or stack == 1)
    shallow = stack == 1 and k <= SHALLOW and m >= MANY and k * n <= PANEL
    long = stack == 1 and k >= LONG and SQUARES[0] <= m * n <= SQUARES[1]
    long = long and n * size * TERMS <= BLOCK
    if n == 1 or not (many or narrow or shallow or long) or out.strides[-1] != size:
        return None
    if narrow and not many and left.strides[-1] != size:
        return None  # each term of a row is in another cache line, possibly on another page
    if m == 1 and right.strides[-1] != size:
        return None  # a copy takes longer than the product
    return _long if k > TERMS else UnpackedTiles(left, right, out)


def _long(left: np.ndarray, right: np.ndarray, out: np.ndarray, tick: Tick) -> None:
    """Multiplies blocks of `TERMS` terms, which tiles add one after another."""

    def product(rows: np.ndarray, columns: np.ndarray, sums: np.ndarray) -> None:
        UnpackedTiles(rows, columns, sums)(rows, columns, sums, tick)

    as_stack(left, right, out, TERMS, product)
