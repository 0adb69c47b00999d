"""Products over windows: one operand is read in place, the other is packed.

A register tile reads its rows element by element at any address, so overlapping windows are never
copied. Labels may be strided, dilated or mixed: a table contains the offset of each term from the
first term of its row. Another table contains the addresses of the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from math import ceil, prod

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.ir.einsum.graph import EinSum, Operand, Value
from einsql.kernels.convolutions.affine import Reading, reading_of
from einsql.kernels.convolutions.match import Product, product_of
from einsql.kernels.kernel import Arrays, Runner, Tick
from einsql.kernels.loops import compile_loops
from einsql.kernels.matmul.unpacked_tiles import TERMS, Tile, sums_of, tile_for
from einsql.kernels.runtime import compile_cache, thread_pool

PIECE = 2**28
"""Products of one piece, a few milliseconds."""
LEAST = 2**22
"""Least products of a piece that is cut for more threads."""
TABLE = 2**16
"""Greatest number of rows of a table of offsets; loops iterate over further labels."""

Labels = tuple[str, ...]
DEPTH_BYTES = 2**18
"""Greatest bytes of a packed panel, so that it stays in the L2 cache for all rows."""
HELD = 8
"""Tiles that are written together, for longer contiguous runs in the result."""
_TEXT = """\
from einsql.kernels.runtime.compiled_functions import at, borrow, give_back, rounded_off
from einsql.kernels.runtime.register_tiles import multiply_tile

ROWS, BYTES, WIDTH, COLUMNS, SIZE, DEPTH = {rows}, {nbytes}, {width}, {columns}, {size}, {depth}
TILE, LINE, HELD = ROWS * COLUMNS, COLUMNS * SIZE, {held}


@njit
def write(sums, low, high, first, last, out, origin, places, columns):
    held, begin = at(sums, np.{dtype}), origin + places[low]
    for n in range(first, last):
        column = columns[n]
        if places[high - 1] - places[low] == high - 1 - low:
            for m in range(high - low):
                out[np.uintp(begin + column + m)] = held[np.uintp(m * COLUMNS + n - first)]
        else:
            for m in range(high - low):
                place = np.uintp(origin + column + places[low + m])
                out[place] = held[np.uintp(m * COLUMNS + n - first)]


@njit
def collect(tile, totals, before):
    sums, total, lost = at(tile, np.{dtype}), at(totals, np.float64), at(totals, np.float64)
    for n in range(TILE):
        old, off = np.float64(0), np.float64(0)
        if before > 0:
            old, off = total[n], lost[TILE + n]
        y = old + sums[n]
        off += rounded_off(old, np.float64(sums[n]), y)
        total[n], lost[TILE + n] = y, off
        sums[n] = np.{dtype}(y + off if y - y == 0 else y)


@njit("void(int64, int64[::1], int64[::1], int64, {dtype}[::1], int64, int64[::1], "
      "int64[::1])")
def kernel(base, rows, steps, panels, out, origin, places, columns):
    count, terms, across = rows.shape[0], steps.shape[0], columns.shape[0]
    high = (count + ROWS - 1) // ROWS
    deep = (terms + DEPTH - 1) // DEPTH
    starts, held = borrow(8 * ROWS), borrow(HELD * TILE * SIZE)
    totals = borrow(high * 16 * TILE if deep > 1 else 8)
    begins = at(starts, np.int64)
    for first in range(0, across, COLUMNS):
        last = min(first + COLUMNS, across)
        for d in range(deep):
            start = d * DEPTH
            stop = min(start + DEPTH, terms)
            panel = panels + first * terms * SIZE + start * LINE
            for h in range(high):
                for m in range(ROWS):
                    begins[m] = base + rows[min(h * ROWS + m, count - 1)]
                tile = held + h % HELD * TILE * SIZE
                multiply_tile(
                    ROWS, BYTES, WIDTH, stop - start, (starts, steps.ctypes.data + start * 8),
                    (panel, LINE, 0, LINE), (tile, LINE), np.{dtype}(1), False,
                )
                if deep > 1:
                    collect(tile, totals + h * 16 * TILE, d)
                if d == deep - 1 and (h % HELD == HELD - 1 or h == high - 1):
                    low = h // HELD * HELD * ROWS
                    stop_row = min(count, (h + 1) * ROWS)
                    write(held, low, stop_row, first, last, out, origin, places, columns)
    give_back(starts)
    give_back(held)
    give_back(totals)
"""


def compile_windows(node: EinSum) -> Runner | None:
    """Matches nodes with a product over windows as only output."""
    if len(node.outputs) != 1:
        return None
    product = product_of(node, node.outputs[0])
    return None if product is None else _Multiply(node, product).run


@dataclass(frozen=True, slots=True)
class _Piece:
    """Rows of a batch: positions of the outer labels, and a range of the inner table."""

    outer: tuple[int, ...]
    lo: int
    hi: int


class _Multiply:
    def __init__(self, node: EinSum, product: Product) -> None:
        self.node, self.product = node, product
        self.extent = {a.label: a.extent for a in node.axes}
        self.name, self.dtype = node.outputs[0].name, node.outputs[0].dtype.numpy
        self.rows = self.reading(product.rows)
        self.columns = self.reading(product.columns)
        inner = len(product.m)
        while inner and self.size(product.m[inner - 1 :]) <= TABLE:
            inner -= 1
        inner = min(inner, len(product.m) - 1)
        self.outer: Labels = (*product.batch, *product.m[:inner])
        self.inner: Labels = product.m[inner:]
        self.fallback: Runner | None = None

    def size(self, labels: Sequence[str]) -> int:
        return prod(self.extent[x] for x in labels)

    def reading(self, value: Value) -> Reading:
        operand: Operand = self.node.operands[value.operand]
        return reading_of(self.node, operand, self.product.derived)

    def run(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        product = self.product
        left, right = (operands[v.operand][v.field] for v in (product.rows, product.columns))
        padded = [(self.rows, left, right), (self.columns, right, left)]
        for reading, _, other in padded:
            if not reading.inside and not np.isfinite(other).all():
                return self.elsewhere(operands, tick)  # absent elements must not become 0 · inf
        left = self.widened(self.rows, left, product.rows, tick)
        right = self.widened(self.columns, right, product.columns, tick)
        return {self.name: self.multiply(self.rows.look(left), self.columns.look(right), tick)}

    def multiply(self, left: np.ndarray, right: np.ndarray, tick: Tick) -> np.ndarray:
        product = self.product
        shape = self.node.schema.shape
        out = empty(shape, self.dtype)
        places = dict(zip(self.node.keys, _contiguous(shape), strict=True))
        strides = dict(zip(self.rows.labels, left.strides, strict=True))
        # Labels are ordered so that consecutive terms are close in memory.
        terms = sorted(product.k, key=lambda x: -abs(strides[x]))
        tile = tile_for(self.size(product.m), self.size(product.n), self.dtype.itemsize)
        panels = self.packed(right, terms, tile)
        kernel = compile_cache.load(source_of(tile), tick)
        rows, steps = self.table(self.inner, strides), self.table(terms, strides)
        row_places = self.table(self.inner, places)
        column_places = self.table(product.n, places)
        flat, start = out.reshape(-1), left.ctypes.data
        batches = len(product.batch)

        def work(piece: _Piece) -> None:
            base, origin = start, 0
            for x, at in zip(self.outer, piece.outer, strict=True):
                base += strides[x] * at
                origin += places[x] * at
            part = slice(piece.lo, piece.hi)
            panel = panels[piece.outer[:batches]].ctypes.data
            kernel(base, rows[part], steps, panel, flat, origin, row_places[part], column_places)

        pieces = self.pieces(tile)
        count = self.size(self.outer) * ceil(len(rows) / pieces)
        thread_pool.run(work, self.cut(len(rows), pieces), count, tick)
        return out

    def pieces(self, tile: Tile) -> int:
        """The number of rows of the inner table in a piece."""
        each = self.size(self.product.n) * self.size(self.product.k)
        total = self.size((*self.outer, *self.inner)) * each
        share = max(LEAST, min(PIECE, total // (8 * thread_pool.threads())))
        return max(1, share // (each * tile.rows)) * tile.rows

    def cut(self, rows: int, step: int) -> Iterator[_Piece]:
        for outer in np.ndindex(*(self.extent[x] for x in self.outer)):
            for lo in range(0, rows, step):
                yield _Piece(outer, lo, min(lo + step, rows))

    def table(self, labels: Sequence[str], steps: dict[str, int]) -> np.ndarray:
        """Σ stride · position of labels; the last label varies fastest."""
        return sums_of([np.arange(self.extent[x]) * steps[x] for x in labels])

    def packed(self, right: np.ndarray, terms: Sequence[str], tile: Tile) -> np.ndarray:
        """The right operand as `[batch …, panel, term, column]`, short panels filled with 0."""
        product = self.product
        order = [*product.batch, *terms, *product.n]
        turned = right.transpose([self.columns.labels.index(x) for x in order])
        stack = tuple(self.extent[x] for x in product.batch)
        deep, wide = self.size(terms), self.size(product.n)
        count = ceil(wide / tile.columns)
        panels = empty((*stack, count, deep, tile.columns), self.dtype)
        values = turned.reshape(*stack, deep, wide)
        for p in range(count):
            part = values[..., p * tile.columns : (p + 1) * tile.columns]
            panels[..., p, :, : part.shape[-1]] = part
            panels[..., p, :, part.shape[-1] :] = 0
        if product.scale != 1.0:
            panels *= self.dtype.type(product.scale)
        return panels

    def widened(self, reading: Reading, field: np.ndarray, value: Value, tick: Tick) -> np.ndarray:
        """Pads a field with zeros where labels exceed its bounds."""
        if reading.inside:
            return field
        operand = self.node.operands[value.operand]
        part, room, shape = [], [], []
        for x, key, (before, behind) in zip(
            operand.labels, operand.source.schema.keys, reading.width, strict=True
        ):
            a = self.node.axis(x)
            if before or behind:
                part.append(slice(a.lo - key.lo, a.hi - key.lo))
                shape.append(before + a.extent + behind)
                room.append(slice(before, before + a.extent))
            else:
                part.append(slice(None))
                shape.append(key.extent)
                room.append(slice(None))
        wide, inside = empty(tuple(shape), self.dtype), field[tuple(part)]

        def fill(n: int) -> None:
            wide[n] = 0
            wide[n][tuple(room[1:])] = inside[n]

        if room[0] != slice(None):
            wide[...] = 0
            wide[tuple(room)] = inside
        else:
            thread_pool.run(fill, range(shape[0]), shape[0], lambda done: tick(0.0))
        return wide

    def elsewhere(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        if self.fallback is None:
            self.fallback = compile_loops(self.node)
        return self.fallback(operands, tick)


def _contiguous(shape: tuple[int, ...]) -> list[int]:
    """The strides of an array in C order, in elements."""
    return [prod(shape[n + 1 :]) for n in range(len(shape))]


def depth_of(tile: Tile) -> int:
    """The terms of a partial sum; partial sums are added in DOUBLE."""
    return max(64, min(TERMS, DEPTH_BYTES // (tile.columns * tile.size)))


@cache
def source_of(tile: Tile) -> str:
    """The kernel's module.

    The arguments of its `kernel(base, rows, steps, panels, out, origin, places, columns)` are the
    address of an element, the byte offsets of each row's first term, the byte offsets of each
    term from the first, the address of the panels `[panel, term, column]`, the flat result, the
    position of the piece's first element in it, and the relative positions of each row and of each
    column.
    """
    return _TEXT.format(columns=tile.columns, depth=depth_of(tile), held=HELD, **tile.spelled)
