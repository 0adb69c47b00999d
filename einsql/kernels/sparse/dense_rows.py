"""Products of sparse matrices by BLAS, over dense copies of blocks of their rows.

A dense copy has 0 for elements that are not stored. It is made for some rows at a time, in memory
that the next block reuses, so it takes a few MiB whatever the size of the matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.sparse.compressed import Compressed
from einsql.kernels.kernel import Tick, share
from einsql.kernels.matmul.layout import Labels
from einsql.kernels.matmul.multiply import Multiplied
from einsql.kernels.runtime import thread_pool
from einsql.kernels.sparse.multiply import balanced, multiply_rows

BLOCK = 2**22
"""Elements of a dense copy: 16 MiB in FLOAT. A block of 1,000 rows of 4,000 elements takes 3 %
longer than one product; smaller blocks pack the right matrix too often."""
LEAST = 128
"""The least number of rows of a block."""
COUNTED = 2**24
"""The greatest number of terms that FLOAT counts exactly."""
TESTED = 14
"""A product of flags takes as long as tests of 1/14 of its elements for a pair."""
PIECE = 2**18
"""Elements of a copy from which several threads pay."""

Copy = Callable[[Compressed, np.ndarray], None]
"""Writes the stored elements of a matrix into an array of its shape that has zeros."""


def multiply_copy(matrix: Compressed, dense: np.ndarray, tick: Tick) -> np.ndarray:
    """The product of a sparse matrix and a dense one, by BLAS over a dense copy.

    Sums are as accurate as those of dense matrices. Stored elements are multiplied if the dense
    matrix is not finite, because the zeros of the copy would be multiplied by it.

    Args:
        matrix: `[rows, terms]`, of the result's type.
        dense: `[terms, columns]`, of the result's type.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.
    """
    (rows, terms), columns = matrix.shape, dense.shape[1]
    if not np.isfinite(dense).all():
        return multiply_rows(matrix, dense, tick)
    blocks = blocks_of(rows, terms)
    buffer = empty((blocks[0].stop, terms), matrix.values.dtype)
    copy = _copier()
    products: dict[int, Multiplied] = {}
    joined: np.ndarray | None = None
    for n, block in enumerate(blocks):
        count = block.stop - block.start
        few = buffer[:count]
        fill(matrix.part_of_rows(block), few, copy)
        tick(n / len(blocks))
        if count not in products:
            extent = {"m": count, "k": terms, "n": columns}
            labels = Labels(("m", "k"), ("k", "n"), ("m", "n"), extent)
            products[count] = Multiplied(labels, few.dtype)
        product = products[count](few, dense, share(tick, n, len(blocks)))
        if len(blocks) == 1:
            return product
        if joined is None:
            joined = empty((rows, columns), few.dtype)
        joined[block] = product
    assert joined is not None
    return joined


def dense_copy(matrix: Compressed) -> np.ndarray:
    """A matrix with zeros for absent elements."""
    array = empty(matrix.shape, matrix.values.dtype)
    fill(matrix, array, _copier())
    return array


def counts_by_copies(left: Compressed, right: Compressed, tick: Tick) -> np.ndarray:
    """The number of pairs of elements for each element of a product of two sparse matrices."""
    work = np.float32 if left.shape[1] <= COUNTED else np.float64
    first, second = (m.of(np.ones(m.stored, work)) for m in (left, right))
    return multiply_copy(first, dense_copy(second), tick)


def with_pairs(nonzero: np.ndarray, left: Compressed, right: Compressed, tick: Tick) -> np.ndarray:
    """The flags of the elements of a product that have a pair of elements.

    Args:
        nonzero: Flags of the sums that are not 0. These have a pair; the others are tested.
        left: The left matrix.
        right: The right matrix.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.
    """
    rows, columns = left.occupied(0), right.occupied(1)
    most = int(np.count_nonzero(rows)) * int(np.count_nonzero(columns))
    zeros = most - int(np.count_nonzero(nonzero))
    if not zeros:
        return nonzero
    if zeros * TESTED > nonzero.size:
        return counts_by_copies(left, right, tick) > 0
    there = nonzero.copy()
    at, across = np.nonzero(~nonzero & rows[:, None] & columns)
    first, second = (dense_copy(m.of(np.ones(m.stored, np.bool_))) for m in (left, right))
    second = np.ascontiguousarray(second.T)
    each = max(1, BLOCK // max(1, left.shape[1]))
    for n in range(0, zeros, each):
        part = slice(n, n + each)
        met = (first[at[part]] & second[across[part]]).any(axis=1)
        there[at[part], across[part]] = met
        tick(min(1.0, (n + each) / zeros))
    return there


def copy_bytes(rows: int, terms: int, itemsize: int) -> int:
    """The bytes of a dense copy of a block of rows."""
    block = blocks_of(rows, terms)[0]
    return int(block.stop) * terms * itemsize


def blocks_of(rows: int, terms: int) -> Sequence[slice]:
    """Ranges of rows of which a dense copy is made at once, of nearly equal length."""
    count = max(1, min(rows // LEAST, -(-rows * terms // BLOCK)))
    each = max(1, -(-rows // count))
    return [slice(n, min(n + each, rows)) for n in range(0, max(1, rows), each)]


def fill(matrix: Compressed, into: np.ndarray, copy: Copy) -> None:
    """Writes a matrix into an array with any values, on all threads."""
    pieces = balanced(matrix, thread_pool.threads() if into.size >= PIECE else 1)

    def piece(rows: slice) -> None:
        into[rows] = 0
        copy(matrix.part_of_rows(rows), into[rows])

    thread_pool.run(piece, pieces, len(pieces), lambda _: None)


def _copier() -> Copy:
    """The function that copies stored elements: SciPy's in C, or NumPy's."""
    try:
        from scipy.sparse._sparsetools import csr_todense
    except ImportError:  # it is not public
        return lambda matrix, array: matrix.into(array)

    def copy(matrix: Compressed, array: np.ndarray) -> None:
        starts, columns, values = matrix.starts, matrix.columns, matrix.values
        csr_todense(*matrix.shape, starts, columns, values, array.reshape(-1))

    return copy
