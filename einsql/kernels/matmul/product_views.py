"""The geometry of a product: its sizes, the views of its operands and result, and pieces of it.

Operands are stacks of matrices, which are cut along the axes of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.kernels.kernel import Tick
from einsql.kernels.matmul import long_sums
from einsql.kernels.matmul.layout import Labels, Layout, Side
from einsql.kernels.matmul.pieces import LITTLE, Work, contiguous
from einsql.kernels.matmul.unpacked_tiles import Matrices
from einsql.kernels.runtime import blas

Unit = tuple[str, ...]
"""The labels that are merged into one axis."""

ROWS, CACHED, PACKED = 4, 2**17, 10**5
"""Limits for single rows times a matrix with contiguous columns: greatest number of rows, greatest
elements of a matrix that stays in cache, and points above which BLAS packs the matrix, which takes
up to twice as long."""


class ProductViews:
    """Operands and result of a product as stacks of matrices, complete or in pieces.

    Args:
        labels: The labels of the operands and of the result.
        dtype: The computation dtype.
        layout: The layout.
        work: The amount of work.
        contiguous: Whether consecutive terms are adjacent in both operands' memory.
    """

    def __init__(
        self, labels: Labels, dtype: np.dtype, layout: Layout, work: Work, contiguous: bool
    ) -> None:
        self.labels = labels
        self.dtype = dtype
        self.layout = layout
        self.work = work
        left, right = layout.left, layout.right
        m = _units(layout.m, left.copied)
        n = _units(layout.n, right.copied)
        k = _units(layout.k, left.copied or right.copied)
        self.units: list[Unit] = [*((x,) for x in layout.batch), *m, *n, *k]
        self.free = len(layout.batch)
        self.kept = self.free + len(m) + len(n)
        self.extents = [labels.size(u) for u in self.units]
        self.m, self.n = labels.size(layout.m), labels.size(layout.n)
        self.k = labels.size(layout.k)
        self.terms = long_sums.most_terms(self.m, self.n, self.k, contiguous, work.itemsize)
        self.reads = (
            self._read(left, labels.left, (m, k) if not left.flipped else (k, m)),
            self._read(right, labels.right, (k, n) if not right.flipped else (n, k)),
        )
        sides = [(self.free, self.m, m), (self.free + len(m), self.n, n)]
        by_columns = bool(layout.result) and layout.result[-1] in layout.m
        if left.copied != right.copied:  # so that each thread copies only its own part
            by_columns = right.copied
        if by_columns:
            sides.reverse()
        self.blocks = [(start, size) for start, size, group in sides if group]
        few = 1 < self.m <= ROWS and self.n * self.k <= CACHED
        self.vectors = few and self.m * self.n * self.k > PACKED
        self.shape = tuple(labels.extent[x] for x in layout.result)
        self.turn = tuple(layout.result.index(x) for x in labels.keys)
        order = (*layout.batch, *layout.m, *layout.n)
        self.arranged = tuple(layout.result.index(x) for x in order)
        # NumPy computes short products and vectors; its BLAS has separate threads.
        long = self.work.seconds >= LITTLE and min(self.m, self.n) > 1
        self.other = long and not blas.is_numpys()

    def _read(
        self, side: Side, labels: tuple[str, ...], groups: tuple[list[Unit], list[Unit]]
    ) -> Read:
        units = [*((x,) for x in side.batch), *groups[0], *groups[1]]
        return Read(
            turn=tuple(labels.index(x) for x in (x for u in units for x in u)),
            shape=tuple(self.labels.size(u) for u in units),
            cuts=tuple(self.units.index(u) for u in units),
            batch=tuple(x in side.batch for x in self.layout.batch),
            rows=len(groups[0]),
            side=side,
        )

    def by_piece(self, a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        """The only piece, the complete product."""
        array, out = self.result()
        with blas.undisturbed:
            self.multiply_piece(*self.views(a, b), out, [slice(None)] * len(self.units))
        return array.transpose(self.turn)

    def views(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The operands with one axis per unit."""
        return self.reads[0].view(a), self.reads[1].view(b)

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Allocates a result in memory order; returns it and the view from which pieces are cut."""
        array = empty(self.shape, self.dtype)
        return array, array.transpose(self.arranged).reshape(self.extents[: self.kept])

    def matrices(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray, piece: Sequence[slice]
    ) -> Matrices:
        """The stacks of matrices of a piece, for the operands and the result."""
        left, right = (
            read.matrices(x, piece, self.dtype) for read, x in zip(self.reads, (a, b), strict=True)
        )
        into: tuple[Any, ...] = (*piece[: self.kept], ...)  # a view, even without axes
        part = out[into]
        return left, right, part.reshape(*part.shape[: self.free], left.shape[-2], right.shape[-1])

    def multiply_piece(
        self, a: np.ndarray, b: np.ndarray, out: np.ndarray, piece: Sequence[slice]
    ) -> None:
        """Computes one piece of the result.

        Args:
            a: The left operand, as `views` returns it.
            b: The right operand.
            out: The result, as `result` returns its view.
            piece: A slice for each unit.
        """
        left, right, part = self.matrices(a, b, out, piece)
        long_sums.multiply_long(
            left, right, part, long_sums.dots if self.m == self.n == 1 else self._product
        )

    @property
    def _product(self) -> long_sums.Product:
        return blas.multiply if self.other else np.matmul


def _units(group: tuple[str, ...], apart: bool) -> list[Unit]:
    """The units of a group: one axis, or one axis per label if a copy merges them later."""
    return [(x,) for x in group] if apart else [group] if group else []


@dataclass(frozen=True, slots=True)
class Read:
    """The mapping from a piece of the result to an operand's stack of matrices.

    Attributes:
        turn: The transposition of the operand's axes.
        shape: The extents of the merged axes, before cutting.
        cuts: The axis of the pieces that cuts each merged axis.
        batch: For each axis of the stack, whether the operand has it.
        rows: The number of axes that are merged to rows; the remaining ones are columns.
        side: The layout of the operand.
    """

    turn: tuple[int, ...]
    shape: tuple[int, ...]
    cuts: tuple[int, ...]
    batch: tuple[bool, ...]
    rows: int
    side: Side

    def view(self, array: np.ndarray) -> np.ndarray:
        """The complete array with transposed and merged axes."""
        return array.transpose(self.turn).reshape(self.shape)

    def whole(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The transposition and shape with which `matrices` returns the complete operand.

        An operand that is copied has C order after the transposition. A flipped one is then
        transposed.
        """
        batch_axes = sum(self.batch)
        sizes, rest = iter(self.shape[:batch_axes]), self.shape[batch_axes:]
        stack = [next(sizes) if has else 1 for has in self.batch]
        return self.turn, (*stack, prod(rest[: self.rows]), prod(rest[self.rows :]))

    def matrices(self, array: np.ndarray, piece: Sequence[slice], work: np.dtype) -> np.ndarray:
        """The stack of matrices that a piece needs."""
        part = array[tuple(piece[n] for n in self.cuts)]
        if self.side.copied:
            part = contiguous(part, work)
        batch_axes = sum(self.batch)
        sizes = iter(part.shape[:batch_axes])
        stack = [next(sizes) if has else 1 for has in self.batch]
        rest = part.shape[batch_axes:]
        part = part.reshape(*stack, prod(rest[: self.rows]), prod(rest[self.rows :]))
        return part.swapaxes(-1, -2) if self.side.flipped else part
