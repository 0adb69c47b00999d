"""Products with long sums, as sums of blocks of terms, which bounds rounding errors.

BLAS adds in the operands' type. The number of terms that it adds one after another depends on
the function: a few hundred in products of packed matrices, all terms in other functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.lazy_module import LazyModule
from einsql.kernels.runtime import blas

if TYPE_CHECKING:
    from einsql.kernels.vectorized import sums as array_sums
else:  # loaded for long sums
    array_sums = LazyModule("einsql.kernels.vectorized.sums")

TERMS = 2**11
"""Greatest number of terms of a call that may add all of them one after another."""
PACKED = 2**12
"""Greatest number of terms of two kinds of BLAS calls: calls that pack matrices, which add at most
512 terms and then the sums; and matrix-vector products, which use at least 4 lanes."""
LANES = 2**16
"""Greatest bytes of a vector in a BLAS call for an inner product, which has lanes of at least
64 bytes: 16 FLOATs or 8 DOUBLEs."""
UNPACKED = 2**20
"""Points of a matrix product up to which OpenBLAS may multiply without packing."""
ADDED = 2**6
"""Greatest number of blocks that are added to each other in the operands' type."""
FEW = 2**9
"""Elements of a result below which all blocks are multiplied by one call, as a stack."""

Product = Callable[[np.ndarray, np.ndarray, np.ndarray], object]
"""Writes the products of two stacks of matrices to a third."""


def most_terms(m: int, n: int, k: int, contiguous: bool, size: int) -> int:
    """The greatest number of terms of a matrix product per BLAS call.

    Args:
        m: The rows of the product.
        n: The columns of the product.
        k: The terms of the product.
        contiguous: Whether consecutive terms are adjacent in both operands' memory.
        size: Bytes of an element.
    """
    if contiguous and min(m, n) == 1:
        return LANES // size if m == n else PACKED
    if min(m, n) > 1 and m * n * min(k, PACKED) > UNPACKED:
        return PACKED
    if k <= TERMS:
        return TERMS
    few = size == 4 or k <= ADDED * (TERMS - ADDED)
    return TERMS - ADDED if few else TERMS // 2  # for many blocks of DOUBLE half of the additions


def multiply_long(left: np.ndarray, right: np.ndarray, out: np.ndarray, product: Product) -> None:
    """Multiplies stacks of matrices in blocks of terms.

    Every term is part of at most 2,048 additions in the operands' type: the additions within a
    block and 64 additions of blocks. Further blocks are added in DOUBLE, up to 1,024 blocks.

    Args:
        left: `[stack …, M, K]`, FLOAT or DOUBLE, of any strides; extents of the stack may be 1
            for all.
        right: `[stack …, K, N]`, of the same type.
        out: `[stack …, M, N]`, possibly uninitialised.
        product: Multiplies blocks.
    """
    (m, k), n = left.shape[-2:], right.shape[-1]
    contiguous = left.strides[-1] == right.strides[-2] == left.itemsize
    terms = most_terms(m, n, k, contiguous, left.itemsize)
    if k <= terms:
        product(left, right, out)
    elif m * n < FEW:
        as_stack(left, right, out, terms, product)
    else:
        _one_by_one(left, right, out, terms, product)


def as_stack(
    left: np.ndarray, right: np.ndarray, out: np.ndarray, terms: int, product: Product
) -> None:
    """Multiplies blocks of terms as the matrices of a stack, then adds the products."""
    k = left.shape[-1]
    count, even = k // terms, k // terms * terms
    *stack_a, m, _ = left.shape
    *stack_b, _, n = right.shape
    rows = left[..., :even].reshape(*stack_a, m, count, terms, copy=False).swapaxes(-2, -3)
    columns = right[..., :even, :].reshape(*stack_b, count, terms, n, copy=False)
    sums = np.empty((*out.shape[:-2], count + (even < k), m, n), out.dtype)
    product(rows, columns, sums[..., :count, :, :])
    if even < k:
        product(left[..., even:], right[..., even:, :], sums[..., count, :, :])
    add_blocks(sums, out.ndim - 2, out)


def add_blocks(sums: np.ndarray, axis: int, out: np.ndarray) -> np.ndarray:
    """Writes the sums over the axis of blocks to an array; returns the array."""
    if sums.shape[axis] <= ADDED:
        np.add.reduce(sums, axis=axis, out=out)
    else:
        out[...] = array_sums.add_up(sums, (axis,), out.dtype == np.float64)
    return out


def _one_by_one(
    left: np.ndarray, right: np.ndarray, out: np.ndarray, terms: int, product: Product
) -> None:
    """Multiplies blocks one after another and adds each to the result."""
    k = left.shape[-1]
    total: array_sums.RunningSum | None = None
    for number, start in enumerate(range(0, k, terms)):
        block = slice(start, min(start + terms, k))
        rows, columns = left[..., block], right[..., block, :]
        if number % ADDED:
            blas.add_products(rows, columns, out)
            continue
        if number:
            total = array_sums.RunningSum(out) if total is None else total.add(out)
        product(rows, columns, out)
    if total is not None:
        out[...] = total.add(out).result()


def dots(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """Writes the products of single rows and columns, which are stacks of matrices."""
    np.vecdot(left[..., 0, :], right[..., 0], out[..., 0, 0])
