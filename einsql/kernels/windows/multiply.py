"""Products over windows: one operand is read in place, the other is packed.

A register tile reads its rows element by element at any address, so overlapping windows are never
copied. Labels may be strided, dilated or mixed: a table has the distance of each term from the
first one of its row. Results are written to a table of addresses as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.ir.einsum.graph import EinSum, Operand, Value
from einsql.kernels.kernel import Arrays, Runner, Tick
from einsql.kernels.loops import compile_loops
from einsql.kernels.runtime import compile_cache, thread_pool
from einsql.kernels.windows.affine import Reading, reading_of
from einsql.kernels.windows.match import Product, product_of
from einsql.kernels.windows.source import Tile, source_of, tile_for

PIECE = 2**28
"""Products of one piece: some milliseconds."""
LEAST = 2**22
"""Products below which a piece is not made smaller for the sake of more threads."""
TABLE = 2**16
"""Rows whose places are in one table; further labels are looped over."""

Labels = tuple[str, ...]


def compile_windows(node: EinSum) -> Runner | None:
    """Matches nodes whose one output is a product over windows."""
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
    """A product with its plan."""

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
        # Neighbouring terms are near each other, as far as labels can be exchanged.
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
        """How many rows of the inner table make a piece."""
        each = self.size(self.product.n) * self.size(self.product.k)
        total = self.size((*self.outer, *self.inner)) * each
        share = max(LEAST, min(PIECE, total // (8 * thread_pool.threads())))
        return max(1, share // (each * tile.rows)) * tile.rows

    def cut(self, rows: int, step: int) -> Iterator[_Piece]:
        for outer in np.ndindex(*(self.extent[x] for x in self.outer)):
            for lo in range(0, rows, step):
                yield _Piece(outer, lo, min(lo + step, rows))

    def table(self, labels: Sequence[str], steps: dict[str, int]) -> np.ndarray:
        """Σ step · position of labels, the last label fastest."""
        offsets = np.zeros(1, np.int64)
        for x in labels:
            offsets = (offsets[:, None] + np.arange(self.extent[x]) * steps[x]).reshape(-1)
        return offsets

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
        """The field among zeros, as far as labels leave its bounds."""
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
        """Runs the node as loops."""
        if self.fallback is None:
            self.fallback = compile_loops(self.node)
        return self.fallback(operands, tick)


def _contiguous(shape: tuple[int, ...]) -> list[int]:
    """Elements from one to the next along each axis of an array in C order."""
    return [prod(shape[n + 1 :]) for n in range(len(shape))]
