"""Products of few rows with a large matrix, which is read once, in place and at bandwidth.

BLAS copies a matrix into panels before it multiplies. With few rows on the other side the copy
takes longer than the product. A layer of a network applied to one sentence is such a product. The
terms of the rows and of the columns have to be contiguous.
"""

from __future__ import annotations

from functools import cache as cached
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.kernels.compiler.cpu_features import machine
from einsql.kernels.kernel import Tick
from einsql.kernels.matmul.numpy_call import Multiply, unless_same
from einsql.kernels.matmul.product_views import ProductViews
from einsql.kernels.runtime import compile_cache, thread_team

if TYPE_CHECKING:
    from einsql.kernels.runtime.machine_code import Kernel

_TEXT = """\
from einsql.kernels.matmul.dot_tile import dot_tile


@njit("int64(int64, int64, int64, int64, int64, int64, int64, int64, int64)")
def kernel(rows, columns, depth, left, down, right, beside, out, under):
    tiles = rows // {rows}
    for n in range(0, columns, {columns}):
        first = 0
        while first < depth:
            terms = depth - first
            if terms >= {terms} + {lanes}:
                terms = {terms}
            begin = left + first * {size}
            for m in range(tiles):
                dot_tile({size}, {rows}, {lanes}, {columns}, terms, begin + m * {rows} * down, down,
                         right + n * beside + first * {size}, beside, {columns} * beside,
                         out + m * {rows} * under + n * {size}, under, first > 0)
            for m in range(tiles * {rows}, rows):
                dot_tile({size}, 1, {lanes}, {columns}, terms, begin + m * down, down,
                         right + n * beside + first * {size}, beside, {columns} * beside,
                         out + m * under + n * {size}, under, first > 0)
            first += terms
    return 0
"""
TERMS = 2**9
"""Terms of a part of the sums, so that the columns of a tile stay in the L1 cache."""
COLUMNS = 4
"""Columns of a tile, which are read side by side."""
TALL = 3 if machine().registers < 32 else 6
"""Rows of a tile: with the columns, their sums fill the registers."""
_LEFT, _RIGHT, _OUT = 3, 5, 7
"""The numbers of the arguments that are addresses."""
MOST = 40
"""Greatest number of rows; with more BLAS is faster (`python -m benchmarks.encoder`)."""
LEAST = 2**16
"""Least elements of the matrix: one in a nearer cache is packed in little time."""
DEEPEST = 2**12
"""Greatest number of terms. Each lane of a register adds an eighth or less of them in sequence."""
SHARE = 2**16
"""Elements of the matrix in a piece, which takes 10 µs."""


def is_suited(plan: ProductViews) -> bool:
    """True if reading the right operand in place is faster than BLAS, by the extents alone."""
    m, n, k = plan.m, plan.n, plan.k
    lanes = machine().width // plan.dtype.itemsize
    stack = prod(plan.extents[: plan.free])
    large = n * k >= LEAST and n % COLUMNS == 0 and COLUMNS <= lanes <= k <= DEEPEST
    return stack == 1 and 1 < m <= MOST and large


def multiply_few(
    plan: ProductViews, a: np.ndarray, b: np.ndarray, otherwise: Multiply
) -> Multiply | None:
    """Returns a function that multiplies in place; None if the strides are unsuitable.

    Args:
        plan: A product that is suited, without copies.
        a: A left operand of the plan's type and strides.
        b: A right operand.
        otherwise: Multiplies while the kernel is being compiled.
    """
    left, right, into = _matrices(plan, a, b, plan.result()[1])
    size = plan.dtype.itemsize
    if not left.strides[1] == right.strides[0] == into.strides[1] == size:
        return None
    (m, k), n = left.shape, right.shape[1]
    down, beside, under = left.strides[0], right.strides[1], into.strides[0]
    source = _source(size, min(m, TALL))
    pieces = max(1, n * k // SHARE)
    ends = [n // COLUMNS * piece // pieces * COLUMNS for piece in range(pieces + 1)]
    table = np.array(
        [
            [m, end - start, k, 0, down, start * beside, beside, start * size, under]
            for start, end in pairwise(ends)
        ],
        np.int64,
    )
    seconds = plan.work.seconds
    known: list[tuple[Kernel, tuple[int, ...]]] = []
    dtype, shape, turn = plan.dtype, plan.shape, unless_same(plan.turn)

    def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        if not known:
            kernel = compile_cache.at_hand(source)
            if kernel is None:
                return otherwise(a, b, tick)
            known.append((kernel, (*thread_team.job_of(kernel.address, table), 0, 0, 0)))
        kernel, job = known[0]  # the first of two concurrent threads' jobs
        threads = thread_team.at_hand(seconds)
        array = empty(shape, dtype)
        at_a, at_b, at_out = (thread_team.address(x) for x in (a, b, array))
        if threads == 1:
            kernel(m, n, k, at_a, down, at_b, beside, at_out, under)
        else:
            bases = _LEFT, at_a, _RIGHT, at_b, _OUT, at_out
            thread_team.start(job, threads, (at_b, b.nbytes), bases)
        return array if turn is None else array.transpose(turn)

    return run


def _matrices(
    plan: ProductViews, a: np.ndarray, b: np.ndarray, out: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The operands and the result as matrices `[M, K]`, `[K, N]` and `[M, N]`, in place."""
    everything = [slice(None)] * len(plan.units)
    left, right, into = plan.matrices(*plan.views(a, b), out, everything)
    return left.reshape(plan.m, plan.k), right.reshape(plan.k, plan.n), into.reshape(plan.m, plan.n)


@cached
def _source(size: int, rows: int) -> str:
    """The source of the function that multiplies a piece."""
    return _TEXT.format(
        size=size, rows=rows, lanes=machine().width // size, columns=COLUMNS, terms=TERMS
    )
