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
from einsql.kernels.matmul.unpacked_tiles import sums_of
from einsql.kernels.runtime import compile_cache, thread_pool
from einsql.kernels.runtime.cpu_features import machine

PIECE = 2**28
"""Products of one piece, a few milliseconds."""
LEAST = 2**22
"""Least products of a piece that is cut for more threads."""
TABLE = 2**16
"""Greatest number of rows of a table of offsets; loops iterate over further labels."""

Labels = tuple[str, ...]
DEPTH_BYTES = 2**18
"""Greatest bytes of a packed panel, so that it stays in the L2 cache for all rows."""
ORDERED = 1024
"""Greatest number of terms that are added one after another in the operands' type."""
HELD = 8
"""Tiles that are written together, for longer contiguous runs in the result."""
_TEXT = """\
from einsql.kernels.runtime.compiled_functions import at, borrow, give_back, rounded_off
from einsql.kernels.matmul.registers import window_tile

ROWS, LANES, WIDTH, SIZE, DEPTH = {rows}, {lanes}, {width}, {itemsize}, {depth}
COLUMNS, HELD = LANES * WIDTH, {held}


@njit()
def write(sums, out, places, count, columns, width):
    if places[count - 1] - places[0] == count - 1:
        for n in range(width):
            line = columns[n] + places[0]
            for m in range(count):
                out[line + m] = sums[m * COLUMNS + n]
        return
    for n in range(width):
        line = columns[n]
        for m in range(count):
            out[line + places[m]] = sums[m * COLUMNS + n]


@njit()
def collect(sums, totals, errors, count, before):
    if before == 0:
        for n in range(count):
            totals[n] = 0.0
            errors[n] = 0.0
    for n in range(count):
        y = totals[n] + sums[n]
        errors[n] += rounded_off(totals[n], np.float64(sums[n]), y)
        totals[n] = y
        sums[n] = y + errors[n] if np.isfinite(y) else y


@njit("void(int64, int64[::1], int64[::1], {dtype}[:, :, ::1], {dtype}[::1], int64, int64[::1], "
      "int64[::1])")
def kernel(base, rows, steps, panels, out, origin, places, columns):
    count, terms = rows.shape[0], steps.shape[0]
    high = (count + ROWS - 1) // ROWS
    deep = (terms + DEPTH - 1) // DEPTH
    rooms = borrow(8 * ROWS), borrow(HELD * ROWS * COLUMNS * SIZE), borrow(
        8 * (high if deep > 1 else 0) * 2 * ROWS * COLUMNS)
    begins = at(rooms[0], np.int64)
    held, tile = HELD, ROWS * COLUMNS
    for p in range(panels.shape[0]):
        first = p * COLUMNS
        last = min(first + COLUMNS, columns.shape[0])
        for d in range(deep):
            start = d * DEPTH
            stop = min(start + DEPTH, terms)
            panel = panels.ctypes.data + (p * terms + start) * COLUMNS * SIZE
            for h in range(high):
                for m in range(ROWS):
                    begins[m] = base + rows[min(h * ROWS + m, count - 1)]
                begin = rooms[1] + h % held * tile * SIZE
                window_tile({itemsize}, {rows}, {lanes}, {width}, rooms[0],
                            steps.ctypes.data + start * 8, stop - start, panel,
                            begin)
                if deep > 1:
                    totals = rooms[2] + h * 2 * tile * 8
                    collect(at(begin, np.{dtype}), at(totals, np.float64),
                            at(totals + tile * 8, np.float64), tile, d)
                if d < deep - 1 or (h % HELD < HELD - 1 and h < high - 1):
                    continue
                top = h // HELD * HELD
                begin = rooms[1] + top % held * tile * SIZE
                write(at(begin, np.{dtype}), at(out.ctypes.data + origin * SIZE, np.{dtype}),
                      at(places.ctypes.data + top * ROWS * 8, np.int64),
                      min(count, (h + 1) * ROWS) - top * ROWS,
                      at(columns.ctypes.data + first * 8, np.int64), last - first)
    for room in rooms:
        give_back(room)
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
        tile = tile_for(self.size(product.n), self.dtype.itemsize)
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
            panel = panels[piece.outer[:batches]]
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


@dataclass(frozen=True, slots=True)
class Tile:
    """A register tile.

    Attributes:
        rows: The number of rows.
        lanes: The elements of a register.
        width: The registers of a row.
        itemsize: Bytes of an element: 4 for FLOAT, 8 for DOUBLE.
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
        """The terms of a partial sum; partial sums are added in DOUBLE."""
        return max(64, min(ORDERED, DEPTH_BYTES // (self.columns * self.itemsize)))


def tile_for(columns: int, itemsize: int) -> Tile:
    """The tile for a number of columns."""
    lanes, count = machine().width // itemsize, machine().registers
    widest = 4 if count == 32 else 2
    needed = ceil(columns / lanes)
    width = ceil(needed / ceil(needed / widest))
    # Registers of the rows, of the panel, and one for the broadcast element.
    return Tile(min(12, (count - 2 - width) // width), lanes, width, itemsize)


@cache
def source_of(tile: Tile) -> str:
    """The kernel's module.

    The arguments of its `kernel(base, rows, steps, panels, out, origin, places, columns)` are the
    address of an element, the byte offsets of each row's first term, the byte offsets of each
    term from the first, the panels `[panel, term, column]`, the flat result, the position of the
    piece's first element in it, and the relative positions of each row and of each column.
    """
    return _TEXT.format(
        rows=tile.rows,
        lanes=tile.lanes,
        width=tile.width,
        itemsize=tile.itemsize,
        depth=tile.depth,
        held=HELD,
        dtype="float32" if tile.itemsize == 4 else "float64",
    )
