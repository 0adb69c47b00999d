"""Products by one call of NumPy with precomputed views, for small products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.kernels.kernel import Tick
from einsql.kernels.matmul.long_sums import Product, dots, multiply_long
from einsql.kernels.matmul.pieces import BLOCK
from einsql.kernels.matmul.product_views import ProductViews
from einsql.kernels.runtime import blas

Multiply = Callable[[np.ndarray, np.ndarray, Tick], np.ndarray]


def at_once(plan: ProductViews) -> Multiply:
    """A product by one call with precomputed views, after copies of few elements."""
    copied_a, copied_b = (r.side.copied for r in plan.reads)
    if (copied_a or copied_b) and (plan.work.copied > BLOCK or plan.vectors):
        return plan.by_piece
    work, shape, turn = plan.dtype, plan.shape, unless_same(plan.turn)
    arranged, long = unless_same(plan.arranged), plan.k > plan.terms
    (order_a, shape_a), (order_b, shape_b) = (r.whole() for r in plan.reads)
    turn_a, turn_b = unless_same(order_a), unless_same(order_b)
    stack = tuple(plan.extents[: plan.free])
    matrix: tuple[int, ...] = (*stack, plan.m, plan.n)
    vectors = plan.vectors and not long
    product: Product = blas.multiply if plan.other else np.matmul
    if plan.m == plan.n == 1:  # inner products, without axes of one element
        shape_a, shape_b, matrix = (*shape_a[:-2], plan.k), (*shape_b[:-2], plan.k), stack
        product = _long_dots if long else np.vecdot
    elif long:
        product = partial(multiply_long, product=product)
    flip_a, flip_b = (r.side.flipped and len(matrix) > plan.free for r in plan.reads)
    shared = blas.is_shared(plan.m, plan.n, plan.k)

    def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        left = a if turn_a is None else a.transpose(turn_a)
        right = b if turn_b is None else b.transpose(turn_b)
        if copied_a:
            left = np.ascontiguousarray(left, work)
        if copied_b:
            right = np.ascontiguousarray(right, work)
        array = empty(shape, work)
        out = array if arranged is None else array.transpose(arranged)
        # A comparison of shapes is shorter than NumPy's reshape.
        left = left if left.shape == shape_a else left.reshape(shape_a)
        right = right if right.shape == shape_b else right.reshape(shape_b)
        out = out if out.shape == matrix else out.reshape(matrix)
        if flip_a:
            left = left.swapaxes(-1, -2)
        if flip_b:
            right = right.swapaxes(-1, -2)
        if vectors and right.strides[-2] == work.itemsize:
            left, right = left[..., None, :], right[..., None, :, :]
            out = out[..., None, :]
        if shared:
            with blas.undisturbed:
                product(left, right, out)
        else:
            product(left, right, out)
        return array if turn is None else array.transpose(turn)

    return run


def unless_same(turn: tuple[int, ...]) -> tuple[int, ...] | None:
    """A transposition, or None if it is the identity."""
    return None if turn == tuple(range(len(turn))) else turn


def _long_dots(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """Writes the inner products of stacks of vectors, `[stack …, K]`, block by block."""
    multiply_long(left[..., None, :], right[..., None], out[..., None, None], dots)
