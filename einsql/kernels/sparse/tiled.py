"""Sums over dense arrays with flags: skipped tiles, and the method for the other tiles."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from math import inf, prod

import numpy as np

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import TRUE, EinSum
from einsql.kernels.kernel import Arrays, Tick, share
from einsql.kernels.matmul.pieces import FLOPS
from einsql.kernels.runtime import thread_pool
from einsql.kernels.sparse.multiply import (
    PER_POINT,
    compressed,
    count_pairs,
    harmless,
    multiply_all,
    multiply_rows,
    multiply_tiles,
)
from einsql.kernels.sparse.sides import (
    Compile,
    Groups,
    Joined,
    Matrices,
    Reader,
    counts_pairs,
    groups_of,
)
from einsql.kernels.sparse.stored import Run, Sums
from einsql.kernels.sparse.tiles import TILE, Grid, filled, grid_of

LEAST = 2**21
"""Points of a matrix product from which tiles are inspected."""
SIDES, TERMS = 8, 16
"""Least rows and columns of such a product, and least terms of its sums."""
BATCHES = 64
"""Greatest number of such products."""
WHOLE = 0.6
"""Fraction of present points above which skipping absent tiles does not pay."""
PER_TILE = 1.25
"""Time per point tile by tile, relative to one product."""
PER_FLAG, PER_ELEMENT = 4.5e-10, 1.8e-8
"""Seconds to read a flag, and to copy a present element to a sparse row."""
PER_ZERO = 4e-9
"""Seconds per element of a copy with zeros on one thread."""

COUNTED = 2**24
"""Greatest number of terms that FLOAT counts exactly."""


def by_tiles(node: EinSum, joined: Joined, compile_node: Compile) -> Run | None:
    """Creates a runner for a node of few large matrix products; None for other nodes.

    Args:
        node: The node.
        joined: Its sums.
        compile_node: Compiles a node that computes which elements are present.
    """
    if len(joined.sides) != 2 or not joined.terms or all(s.guard == TRUE for s in joined.sides):
        return None
    groups = groups_of(node, joined)
    sizes = [
        prod(node.axis(x).extent for x in group)
        for group in (groups.batch, groups.rows, groups.columns, groups.terms)
    ]
    batch, m, n, k = sizes
    large = batch <= BATCHES and min(m, n) >= SIDES and k >= TERMS and m * n * k >= LEAST
    if not large or (counts_pairs(joined) and any(groups.gone)):
        return None
    return _Tiled(node, joined, groups, compile_node).run


class _Tiled:
    def __init__(self, node: EinSum, joined: Joined, groups: Groups, compile_node: Compile) -> None:
        self.joined = joined
        self.gone = groups.gone
        axes = (
            (groups.batch, groups.rows, groups.terms),
            (groups.batch, groups.terms, groups.columns),
        )
        self.readers = [
            Reader(node, joined, n, axes[n], groups.gone[n], compile_node) for n in (0, 1)
        ]
        order = (*groups.batch, *groups.rows, *groups.columns)
        self.extents = tuple(node.axis(x).extent for x in order)
        self.turn = tuple(order.index(k) for k in node.keys)
        self.shape = (*self.readers[0].shape[:2], self.readers[1].shape[2])

    def run(self, operands: Sequence[Arrays], tick: Tick) -> Sums | None:
        """Computes the sums; None if an absent element is multiplied by infinity or NaN."""
        left = self.readers[0].read(operands)
        tick(0.0)  # these passes are short, but there are several before the product
        right = self.readers[1].read(operands)
        tick(0.0)
        for gone, other in zip(self.gone, (right, left), strict=True):
            if gone and not other.is_finite():
                return None  # x·∞ + y·∞ need not be (x + y)·∞
        terms, batch = len(self.joined.terms), self.shape[0]
        steps = terms + bool(self.joined.counts)
        products: list[list[np.ndarray]] = [[] for _ in range(terms)]
        counts: list[np.ndarray] = []
        for b in range(batch):
            pair = _Pair(_grid(left, b), _grid(right, b))
            for n, work in enumerate(self.readers[0].types):
                part = share(tick, b * steps + n, batch * steps)
                product = pair.product(left.values[n][b], right.values[n][b], work, part)
                if product is None:
                    return None
                products[n].append(product)
            if self.joined.counts:
                part = share(tick, b * steps + terms, batch * steps)
                counted = pair.counts(counts_pairs(self.joined), part)
                counts.append(np.broadcast_to(counted, self.shape[1:]))
        sums = [self.arranged(parts) for parts in products]
        return sums, self.arranged(counts) if counts else np.zeros(())

    def arranged(self, products: Sequence[np.ndarray]) -> np.ndarray:
        stack = products[0][None] if len(products) == 1 else np.stack(products)
        return stack.reshape(self.extents).transpose(self.turn)


def _grid(matrices: Matrices, b: int) -> Grid:
    here = None if matrices.present is None else matrices.present[b]
    rows, columns = matrices.values[0].shape[1:]
    return grid_of(here, (rows, columns))


class _Way(enum.Enum):
    """The method of a product: complete, by tiles, or by the elements of one matrix."""

    WHOLE = enum.auto()
    TILES = enum.auto()
    LEFT = enum.auto()
    RIGHT = enum.auto()


@dataclass(frozen=True, slots=True)
class _Pair:
    """The presence of two matrices' elements.

    Attributes:
        a: The grid of the left matrix, `[rows, terms]`.
        b: The grid of the right matrix, `[terms, columns]`.
    """

    a: Grid
    b: Grid

    @property
    def points(self) -> int:
        """The points of pairs of present tiles."""
        rows, columns = self.a.heights @ self.a.some, self.b.some @ self.b.widths
        return int((rows * columns * self.a.widths).sum())

    def way(self, work: np.dtype) -> _Way:
        """The fastest method."""
        m, k, n = (int(x.sum()) for x in (self.a.heights, self.a.widths, self.b.widths))
        most, points = m * n * k, self.points
        each = 2.0 * work.itemsize / FLOPS / thread_pool.threads()
        zeros = sum(int(g.some.sum()) * TILE**2 for g in (self.a, self.b) if g.mixed.any())
        copies = PER_ZERO * zeros / thread_pool.threads()
        dense = points >= WHOLE * most
        return min(
            (
                copies + each * (most if dense else points * PER_TILE),
                _Way.WHOLE if dense else _Way.TILES,
            ),
            (_by_one(self.a, n, work), _Way.LEFT),
            (_by_one(self.b, m, work), _Way.RIGHT),
            key=lambda seconds_and_way: seconds_and_way[0],
        )[1]

    def product(
        self, a: np.ndarray, b: np.ndarray, work: np.dtype, tick: Tick
    ) -> np.ndarray | None:
        """The product; None if an absent element is multiplied by infinity or NaN."""
        way = self.way(work)
        if way is _Way.LEFT:
            return _thin(a, self.a, b, self.b, work, tick)
        if way is _Way.RIGHT:
            thin = _thin(b.T, self.b.turned, a.T, self.a.turned, work, tick)
            return None if thin is None else thin.T
        dense = way is _Way.WHOLE
        a = filled(a, self.a, work, dense)
        tick(0.0)
        b = filled(b, self.b, work, dense)
        tick(0.0)
        if not harmless(a, self.a, b, self.b, dense):
            return None
        tick(0.0)
        if dense:
            return multiply_all(a, b, tick)
        return multiply_tiles(a, self.a.some, b, self.b.some, tick)

    def counts(self, exact: bool, tick: Tick) -> np.ndarray:
        """The number of present pairs per element of the product, or only whether there are any."""
        here_a, here_b = self.a.present, self.b.present
        if here_a is not None and here_b is not None:
            work = np.dtype(np.float64 if exact and here_a.shape[1] > COUNTED else np.float32)
            way = self.way(work)
            if way is _Way.LEFT:
                return _thin_counts(self.a, self.b, work, tick)
            if way is _Way.RIGHT:
                return _thin_counts(self.b.turned, self.a.turned, work, tick).T
            if way is _Way.WHOLE:
                return multiply_all(here_a.astype(work), here_b.astype(work), tick)
            return count_pairs(self.a, self.b, work, tick)
        count = np.count_nonzero if exact else np.any
        if here_a is not None:
            return np.asarray(count(here_a, axis=1))[:, None]
        assert here_b is not None
        return np.asarray(count(here_b, axis=0))


def _thin_counts(grid: Grid, other: Grid, work: np.dtype, tick: Tick) -> np.ndarray:
    """The same as `count_pairs`, by the present elements of the left matrix."""
    assert grid.present is not None
    assert other.present is not None
    ones = np.broadcast_to(np.ones((), work), grid.present.shape)
    flags = other.present.astype(work)
    return multiply_rows(compressed(ones, grid, work), flags, tick)


def _by_one(grid: Grid, columns: int, work: np.dtype) -> float:
    """Seconds of a product by the present elements of a matrix."""
    if grid.present is None:
        return inf
    point = PER_POINT * work.itemsize / 4 / thread_pool.threads()
    return grid.present.size * PER_FLAG + grid.total * (PER_ELEMENT + columns * point)


def _thin(
    values: np.ndarray, grid: Grid, dense: np.ndarray, other: Grid, work: np.dtype, tick: Tick
) -> np.ndarray | None:
    """The product by the elements of a sparse matrix; None as in `product`."""
    few = compressed(values, grid, work)
    if other.present is not None and not np.isfinite(few.values).all():
        return None
    return multiply_rows(few, filled(dense, other, work, True), tick)
