"""Products by one call of NumPy with precomputed views, for small products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.kernels.kernel import Tick
from einsql.kernels.matmul.long_sums import Product, dots, multiply_long
from einsql.kernels.matmul.product_views import ProductViews
from einsql.kernels.runtime import blas

Multiply = Callable[[np.ndarray, np.ndarray, Tick], np.ndarray]


def at_once(plan: ProductViews) -> Multiply:
    """A product by one call with precomputed views."""
    stack = plan.extents[: plan.free]
    if plan.layout.left.copied or plan.layout.right.copied:
        return plan.by_piece
    work, shape, turn = plan.dtype, plan.shape, unless_same(plan.turn)
    arranged = unless_same(plan.arranged)
    (order_a, shape_a), (order_b, shape_b) = (r.whole() for r in plan.reads)
    turn_a, turn_b = unless_same(order_a), unless_same(order_b)
    if plan.m == plan.n == 1:
        return _vectors_at_once(plan)
    matrix = (*stack, plan.m, plan.n)
    vectors = plan.vectors
    product: Product = blas.multiply if plan.other else np.matmul
    shared = blas.is_shared(plan.m, plan.n, plan.k)
    if plan.k > plan.terms:
        product, vectors = partial(multiply_long, product=product), False

    def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        left = (a if turn_a is None else a.transpose(turn_a)).reshape(shape_a)
        right = (b if turn_b is None else b.transpose(turn_b)).reshape(shape_b)
        array = empty(shape, work)
        out = (array if arranged is None else array.transpose(arranged)).reshape(matrix)
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


def _vectors_at_once(plan: ProductViews) -> Multiply:
    """Inner products that are shorter than the overhead of NumPy calls."""
    stack, work = tuple(plan.extents[: plan.free]), plan.dtype
    turns, shapes = [], []
    for read in plan.reads:
        order, read_shape = read.whole()
        turns.append(unless_same(order))
        shapes.append((*read_shape[:-2], plan.k))
    (turn_a, turn_b), (shape_a, shape_b) = turns, shapes
    shape, turn, arranged = plan.shape, unless_same(plan.turn), unless_same(plan.arranged)
    plain = arranged is None and shape == stack
    shared = blas.is_shared(1, 1, plan.k)
    dot = _long_dots if plan.k > plan.terms else np.vecdot

    def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        left = a if turn_a is None else a.transpose(turn_a)
        right = b if turn_b is None else b.transpose(turn_b)
        if left.shape != shape_a:
            left = left.reshape(shape_a)
        if right.shape != shape_b:
            right = right.reshape(shape_b)
        array = empty(shape, work)
        if plain:
            out = array
        else:
            out = (array if arranged is None else array.transpose(arranged)).reshape(stack)
        if shared:
            with blas.undisturbed:
                dot(left, right, out)
        else:
            dot(left, right, out)
        return array if turn is None else array.transpose(turn)

    return run


def unless_same(turn: tuple[int, ...]) -> tuple[int, ...] | None:
    """A transposition, or None if it is the identity."""
    return None if turn == tuple(range(len(turn))) else turn


def _long_dots(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """Writes the inner products of stacks of vectors, `[stack …, K]`, block by block."""
    multiply_long(left[..., None, :], right[..., None], out[..., None, None], dots)
