"""Products whose sums are long, as sums of blocks of terms: rounding errors stay small.

BLAS adds in the operands' type. How many terms it adds one after another depends on the
function: a few hundred in products of packed matrices, as many as it is given in others.
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
"""Terms of a call that may add all of them one after another."""
PACKED = 2**12
"""Terms of a call of BLAS that packs matrices, which adds at most 512 of them and then their sums;
and of one that multiplies rows with a vector, which adds at least 4 side by side."""
LANES = 2**16
"""Bytes of a vector in a call of BLAS that multiplies two, which adds at least 64 bytes, 16 FLOATs
or 8 DOUBLEs, side by side."""
UNPACKED = 2**20
"""Points of a product of matrices up to which OpenBLAS may not pack them."""
ADDED = 2**6
"""Blocks that are added to each other in the operands' type."""
FEW = 2**9
"""Elements of a result below which all blocks are multiplied by one call, as a stack."""

Product = Callable[[np.ndarray, np.ndarray, np.ndarray], object]
"""Writes the products of two stacks of matrices into a third."""


def most_terms(m: int, n: int, k: int, contiguous: bool, size: int) -> int:
    """Terms of a product of matrices that one call of BLAS may add.

    Args:
        m: Rows of the product.
        n: Its columns.
        k: Its terms.
        contiguous: Whether terms that follow each other do so in both operands' memory.
        size: Bytes of an element.
    """
    if contiguous and min(m, n) == 1:
        return LANES // size if m == n else PACKED
    if min(m, n) > 1 and m * n * min(k, PACKED) > UNPACKED:
        return PACKED
    if k <= TERMS:
        return TERMS
    few = size == 4 or k <= ADDED * (TERMS - ADDED)
    return TERMS - ADDED if few else TERMS // 2  # many blocks of DOUBLE: half of the additions


def multiply_long(left: np.ndarray, right: np.ndarray, out: np.ndarray, product: Product) -> None:
    """Multiplies stacks of matrices, block of terms by block of terms.

    No term takes part in more than 2,048 additions in the operands' type: those within a block and
    those of blocks, which are 64 in this type. More are added in DOUBLE, up to 1,024 there.

    Args:
        left: `[stack …, M, K]`, FLOAT or DOUBLE, of any strides; extents of the stack may be 1
            for all.
        right: `[stack …, K, N]`, of the same type.
        out: `[stack …, M, N]`; it may hold anything.
        product: Multiplies blocks.
    """
    (m, k), n = left.shape[-2:], right.shape[-1]
    contiguous = left.strides[-1] == right.strides[-2] == left.itemsize
    terms = most_terms(m, n, k, contiguous, left.itemsize)
    if k <= terms:
        product(left, right, out)
    elif m * n < FEW:
        _as_stack(left, right, out, terms, product)
    else:
        _one_by_one(left, right, out, terms, product)


def _as_stack(
    left: np.ndarray, right: np.ndarray, out: np.ndarray, terms: int, product: Product
) -> None:
    """Blocks as matrices of a stack, whose products are then added in DOUBLE."""
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
    """Writes the sums of blocks, which an axis counts, to an array; returns that."""
    if sums.shape[axis] <= ADDED:
        np.add.reduce(sums, axis=axis, out=out)
    else:
        out[...] = array_sums.add_up(sums, (axis,), out.dtype == np.float64)
    return out


def _one_by_one(
    left: np.ndarray, right: np.ndarray, out: np.ndarray, terms: int, product: Product
) -> None:
    """Blocks one after another, each added to the result."""
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
    """Writes the products of single rows with single columns, each as stacks of matrices."""
    np.vecdot(left[..., 0, :], right[..., 0], out[..., 0, 0])
