"""Products of two operands by BLAS, on all threads.

Each thread runs single-threaded BLAS over separate pieces. BLAS's own threads synchronize
within a product, which takes 8 to 25 % longer, and many times longer if a core is busy.
Afterwards they spin for a tenth of a second on cores that the next kernel needs.

Two kinds of products use BLAS's threads: large products, because the threads share packed
panels, and single products of 30 µs to a millisecond while no other kernel runs, because
spinning threads start sooner than sleeping ones. If products follow each other, the threads of
`thread_team` spin, too, and take each other's pieces where a core is busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import ceil, inf, prod
from time import monotonic
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.lazy_module import LazyModule
from einsql.kernels.kernel import Tick
from einsql.kernels.matmul import long_sums
from einsql.kernels.matmul.layout import Labels, Layout, lay_out
from einsql.kernels.matmul.numpy_call import Multiply, at_once, unless_same
from einsql.kernels.matmul.pieces import (
    BETWEEN,
    COPIES,
    LEAST,
    LITTLE,
    LONG,
    LONG_PRODUCT,
    MOST,
    Work,
    cut,
    slices,
    spread_copy,
    wanted,
)
from einsql.kernels.matmul.product_views import ProductViews
from einsql.kernels.matmul.unpacked_tiles import Matrices, unpacked
from einsql.kernels.runtime import blas, thread_pool, thread_team

if TYPE_CHECKING:
    from einsql.kernels.matmul import few_rows, rows
    from einsql.kernels.matmul import thread_pool_gemm as _gemm
    from einsql.kernels.matmul.thread_pool_gemm import Calls
else:  # loaded for products in pieces, and with rows of few terms
    _gemm = LazyModule("einsql.kernels.matmul.thread_pool_gemm")
    rows = LazyModule("einsql.kernels.matmul.rows")
    few_rows = LazyModule("einsql.kernels.matmul.few_rows")

ALONE, SHORT = 2**18, 2**13
"""Points up to which BLAS uses one thread for a matrix product, or a matrix-vector product."""
ADDED = 2**18
"""Elements of a result up to which its sum may be cut into partial sums."""
LARGE = 2e-1
"""Seconds on one thread from which BLAS's own threads are faster."""
ELSE = 1.0
"""Seconds without other kernels after which only products are expected."""
SPIN = 0.1
"""Seconds for which BLAS's own threads spin after a product."""
SEVERAL, PIECE = 8, 1e-5
"""Greatest number of pieces per thread, and least seconds per piece."""
LONG_SUM = 2**12
"""Terms from which a sum is cut if the result is too small for all threads."""
LONG_SUMS, SHORT_SIDE = 2**13, 2**4
"""Terms from which sums are cut instead of the result, and least rows and columns: pieces of a
result pack an operand each, pieces of sums do not (benchmarks/long_sums.py)."""
COMPILED = 2**21
"""Points from which a compiled kernel pays for its compilation."""
IN_ORDER = 2**11
"""Terms up to which np.einsum adds rows to each other."""


class Multiplied:
    """A product of arrays with fixed labels; plans are cached by strides.

    Args:
        labels: The labels; a summed label is in both operands.
        work: The computation dtype.
        compiles: Whether kernels may be compiled if BLAS is slow.
    """

    def __init__(self, labels: Labels, work: np.dtype, compiles: bool = True) -> None:
        self.labels = labels
        self.work = work
        self.compiles = compiles
        self._plans: dict[object, Multiply] = {}

    def __call__(self, a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        """Computes the product, with axes in the order of the keys and any memory order.

        Args:
            a: The left operand, one axis per label, of any strides and type.
            b: The right operand.
            tick: Callback with the completed fraction, 0 to 1, between pieces.
        """
        key = (a.strides, b.strides, a.dtype, b.dtype, a.flags.aligned, b.flags.aligned)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) >= 64:  # strides that vary do not pay for caching
                self._plans.clear()
            plan = self._plans[key] = self._plan(a, b)
        return plan(a, b, tick)

    def _plan(self, a: np.ndarray, b: np.ndarray) -> Multiply:
        labels = self.labels
        steps = _steps(labels.left, a, self.work), _steps(labels.right, b, self.work)
        same = [x.dtype == self.work and x.flags.aligned for x in (a, b)]
        layout = lay_out(labels, *steps).converting(*same)
        copied = sum(x.size for x, side in ((a, layout.left), (b, layout.right)) if side.copied)
        points = labels.size(labels.extent)
        if copied and self._in_line(steps, layout) and points * rows.IN_LINE < copied / COPIES:
            return rows.by_rows(labels, self.work)
        size = a.size + b.size + labels.size(labels.keys)
        work = Work(2.0 * points, size * self.work.itemsize, self.work.itemsize, copied)
        last = next((x for x in reversed(layout.k) if labels.extent[x] > 1), None)
        contiguous = not copied and all(last is None or step[last] == 1 for step in steps)
        plan = Plan(self, layout, work, contiguous)
        is_same = a.dtype == b.dtype == self.work
        if self.compiles and is_same and not layout.right.copied and few_rows.is_suited(plan):
            if copied:
                return plan.copied_first(0)
            few = few_rows.multiply_few(plan, a, b, plan.choose())
            if few is not None:
                return few
        if self.compiles and is_same and not copied and points >= COMPILED:
            return plan.in_place(a, b) or plan.choose()
        return plan.choose()

    def _in_line(self, steps: Sequence[dict[str, int]], layout: Layout) -> bool:
        """True if a label has stride 1 in every array that has it."""
        labels = self.labels
        if labels.size(layout.k) > IN_ORDER:
            return False
        last = labels.keys[-1:]
        near = [{x for x, s in step.items() if s == 1} for step in steps]
        for x in near[0] | near[1]:
            if all(x in n or x not in step for n, step in zip(near, steps, strict=True)):
                return x not in labels.keys or (x,) == last
        return False


class Plan(ProductViews):
    """The plan of a product for operands with specific strides.

    Args:
        product: The product.
        layout: The layout.
        work: The amount of work.
        contiguous: Whether consecutive terms are adjacent in both operands' memory.
    """

    def __init__(self, product: Multiplied, layout: Layout, work: Work, contiguous: bool) -> None:
        super().__init__(product.labels, product.work, layout, work, contiguous)
        self.product = product
        self.numpy_call = at_once(self)

    def choose(self) -> Multiply:
        """Chooses between one call, pieces of the result and pieces of the sum."""
        stack = prod(self.extents[: self.free])
        copied = self.layout.left.copied, self.layout.right.copied
        own = stack > 1 or any(copied) or self.other
        long = LONG if stack > 1 else LONG_PRODUCT
        most = BETWEEN if self.other and stack == 1 and not any(copied) else MOST
        pieces = wanted(self.work.seconds, long, most)
        by_us: Multiply = self._at_hand(self.on_one)
        if pieces > 1:
            by_us = self._cut(pieces, copied)
        elif self.m * self.n * self.k <= (ALONE if min(self.m, self.n) > 1 else SHORT):
            # Each matrix of a stack separately.
            return self._at_hand(self.numpy_call) if stack > 1 and self.vectors else self.numpy_call
        if own or thread_pool.threads() == 1 or self.work.seconds < thread_team.LEAST:
            return by_us
        by_blas = self._by_blas()
        if self.work.seconds >= LARGE:
            return by_blas
        matrices = min(self.m, self.n) > 1 and max(self.m, self.n) >= pieces * LEAST
        least = inf if self.work.seconds >= LITTLE and matrices else ELSE
        seconds, compiles = self.work.seconds, self.product.compiles

        def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
            if (compiles and thread_team.is_streaming(seconds)) or not _left_to_blas(least):
                return by_us(a, b, tick)
            array = by_blas(a, b, tick)
            thread_team.ended()
            return array

        return run

    def in_place(self, a: np.ndarray, b: np.ndarray) -> Multiply | None:
        """Chooses a kernel without packing if it is faster.

        Args:
            a: A left operand of the plan's type and strides.
            b: A right operand of the plan's type and strides.
        """
        row = prod(self.shape) == self.n
        if self.n == 1 or (row and self.work.seconds < thread_team.LONG):
            return None
        everything = [slice(None)] * len(self.units)

        def matrices(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> Matrices:
            views = self.views(a, b)
            left = self.reads[0].matrices(views[0], everything, out.dtype)
            right = self.reads[1].matrices(views[1], everything, out.dtype)
            return left, right, out.reshape(*out.shape[: self.free], self.m, self.n)

        multiply = unpacked(*matrices(a, b, self.result()[1]))
        if multiply is None:
            return None

        def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
            array, out = self.result()
            multiply(*matrices(a, b, out), tick)
            return array.transpose(self.turn)

        return run

    def _cut(self, pieces: int, copied: tuple[bool, bool]) -> Multiply:
        """Runs pieces of the result, or of the sum, on threads of the pool."""
        stack = prod(self.extents[: self.free])
        parts = cut(self.extents[: self.kept], self.free, pieces, self.blocks)
        packed = self.k >= LONG_SUMS and min(self.m, self.n) >= SHORT_SIDE
        short = prod(parts) < pieces and self.k >= LONG_SUM
        if (packed or short) and stack * self.m * self.n <= ADDED:
            return self._by_sum(pieces)
        for n, read in enumerate(self.reads):
            again = [p for x, p in enumerate(parts) if x not in read.cuts]
            if copied[n] and prod(again) > 1:
                return self.copied_first(n)
        all_parts = [*parts, *[1] * (len(self.units) - self.kept)]
        return self._at_hand(lambda a, b, tick: self.in_pieces(a, b, all_parts, tick))

    def _at_hand(self, otherwise: Multiply) -> Multiply:
        """Runs short work as calls that spinning threads share."""
        seconds = self.work.seconds
        few = prod(self.extents[: self.kept]) < long_sums.FEW and self.k >= LONG_SUM
        copied = self.layout.left.copied or self.layout.right.copied
        if (
            copied
            or few
            or not thread_team.LEAST <= seconds < thread_team.LONG
            or not self.product.compiles
        ):
            return otherwise
        pieces = thread_pool.threads()
        if min(self.m, self.n) == 1:  # no packing: idle threads take calls from others
            pieces *= max(1, min(SEVERAL, int(seconds / pieces / PIECE)))
        parts = cut(self.extents[: self.kept], self.free, pieces, self.blocks)
        if prod(parts) == 1:
            return otherwise
        known: list[tuple[Calls | None, int]] = []
        work, shape, turn = self.dtype, self.shape, unless_same(self.turn)

        def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
            threads = thread_team.at_hand(seconds)
            if threads == 1:
                return otherwise(a, b, tick)
            if not known:
                try:
                    known.append(self._calls(a, b, parts))
                except _gemm.NotAtHandError:
                    return otherwise(a, b, tick)
            calls, blocks = known[0]  # the first of two concurrent threads' calls
            if calls is None:
                return otherwise(a, b, tick)
            array = empty((blocks, *shape) if blocks > 1 else shape, work)
            if calls.blas:
                with blas.OneThread():
                    calls.run(a, b, array, threads)
            else:
                calls.run(a, b, array, threads)
            if blocks > 1:
                array = long_sums.add_blocks(array, 0, empty(shape, work))
            return array if turn is None else array.transpose(turn)

        return run

    def _calls(
        self, a: np.ndarray, b: np.ndarray, parts: Sequence[int]
    ) -> tuple[Calls | None, int]:
        """Creates the calls of the pieces of the result, for operands with these strides.

        Returns:
            The calls, and the number of blocks of terms; the calls write to an array with an
            axis of blocks before the result's axes.
        """
        unblocked = self._calls_of(a, b, parts, 1)
        if self.k <= self.terms or unblocked is None or not unblocked.blas:
            return unblocked, 1  # compiled calls take blocks of terms themselves
        if min(self.m, self.n) > 1 and self.terms == long_sums.PACKED:
            return None, 1  # blocks are added to the result one after another
        blocks = ceil(self.k / self.terms)
        return self._calls_of(a, b, parts, blocks), blocks

    def _calls_of(
        self, a: np.ndarray, b: np.ndarray, parts: Sequence[int], blocks: int
    ) -> Calls | None:
        array = empty((blocks, *self.shape), self.dtype)
        views = self.views(a, b)
        # Without copies the terms are one axis, or none if each sum has one term.
        pieces = slices(self.extents, [*parts, *[1] * (len(self.units) - self.kept)])
        terms = [slice(n * self.terms, min((n + 1) * self.terms, self.k)) for n in range(blocks)]
        stacks: list[_gemm.Stack] = []
        for part, block in product(pieces, range(blocks)):
            piece = part if blocks == 1 else (*part[:-1], terms[block])
            out = array[block].transpose(self.arranged).reshape(self.extents[: self.kept])
            x, y, z = self.matrices(*views, out, piece)
            single = self.vectors and y.strides[-2] == y.itemsize
            if self.free and self.vectors and not single:
                return None  # too small for calls of matrices
            stacks.append(_gemm.stack_of(x, y, z, by_row=single))
        return _gemm.calls_for(stacks, (a, b, array))

    def on_one(self, a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        """Computes the complete product on one thread."""
        with blas.OneThread():
            return self.numpy_call(a, b, tick)

    def in_pieces(
        self, a: np.ndarray, b: np.ndarray, parts: Sequence[int], tick: Tick
    ) -> np.ndarray:
        """Computes pieces of the result on all threads."""
        array, out = self.result()
        views = self.views(a, b)
        with blas.OneThread():
            thread_pool.run(
                lambda piece: self.multiply_piece(*views, out, piece),
                slices(self.extents, parts),
                prod(parts),
                tick,
                blas=self.work.seconds < LITTLE or min(self.m, self.n) == 1,
            )
        return array.transpose(self.turn)

    def _by_blas(self) -> Multiply:
        """Computes one piece after another, each on all threads of BLAS."""
        pieces = ceil(self.work.seconds / (thread_pool.threads() * BETWEEN))
        parts = cut(self.extents[: self.kept], self.free, pieces, self.blocks)
        all_parts = [*parts, *[1] * (len(self.units) - self.kept)]

        def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
            blas.all_threads()
            array, out = self.result()
            views = self.views(a, b)
            for done, piece in enumerate(slices(self.extents, all_parts), start=1):
                with blas.undisturbed:
                    self.multiply_piece(*views, out, piece)
                tick(done / prod(all_parts))
            self._leave_spinning()
            return array.transpose(self.turn)

        def at_once(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
            blas.all_threads()
            array = self.numpy_call(a, b, tick)
            self._leave_spinning()
            return array

        return at_once if prod(all_parts) == 1 else run

    def _leave_spinning(self) -> None:
        """Records that BLAS's threads spin after a product that surely used them."""
        if self.work.seconds >= LARGE:
            _spun[0] = monotonic()

    def _by_sum(self, pieces: int) -> Multiply:
        """Cuts K into pieces with separate sums, and adds the sums."""
        units = self.extents[self.kept :]
        axis = max(range(len(units)), key=units.__getitem__)
        parts = [1] * len(self.units)
        parts[self.kept + axis] = min(units[axis], pieces)
        cuts = list(slices(self.extents, parts))

        def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
            array, out = self.result()
            sums = np.empty((len(cuts), *out.shape), out.dtype)
            views = self.views(a, b)
            with blas.OneThread():
                thread_pool.run(
                    lambda n: self.multiply_piece(*views, sums[n, ...], cuts[n]),
                    range(len(cuts)),
                    len(cuts),
                    tick,
                    blas=True,
                )
            out[...] = np.add.reduce(sums, axis=0, dtype=np.float64)
            return array.transpose(self.turn)

        return run

    def copied_first(self, number: int) -> Multiply:
        """Copies an operand that several pieces need."""
        read = self.reads[number]
        labels = (self.labels.left, self.labels.right)[number]
        order = read.side.labels
        turn = tuple(labels.index(x) for x in order)
        back = tuple(order.index(x) for x in labels)

        def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
            sides = [a, b]
            sides[number] = spread_copy(sides[number].transpose(turn), self.dtype)
            sides[number] = sides[number].transpose(back)
            return self.product(sides[0], sides[1], tick)

        return run


_spun = [-inf]
"""The time of the last large product on BLAS's own threads."""


def _left_to_blas(least: float) -> bool:
    """Whether BLAS's threads should be used: they spin, or no other kernel needs the cores.

    Args:
        least: Seconds without other kernels after which none is expected.
    """
    return monotonic() - _spun[0] < SPIN or thread_pool.idle() > least


def _steps(labels: tuple[str, ...], array: np.ndarray, work: np.dtype) -> dict[str, int]:
    """The stride of each label in elements; 0 if a copy is always needed."""
    usable = array.dtype == work and array.flags.aligned
    size = work.itemsize
    return {
        x: s // size if usable and s > 0 and s % size == 0 else 0
        for x, s in zip(labels, array.strides, strict=True)
    }
