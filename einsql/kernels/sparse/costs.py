"""Predicted seconds of products of sparse matrices: by stored elements, and by dense copies.

All are seconds on one thread. Both methods run on all threads, so their ratio does not depend on
the number of threads.
"""

from __future__ import annotations

from math import expm1

from einsql.kernels.matmul.pieces import FLOPS, TRAFFIC
from einsql.kernels.storage_choice import Predicted

ELEMENT, POINT = 3e-9, 2.3e-10
"""Seconds per stored element of a product with a dense matrix, and per element and column in FLOAT.
`copies` in benchmarks/sparse.py set these constants and the next ones. A point took 0.21 to 0.34 ns
on a machine whose caches other programs used (load average 5 to 19), and 0.15 ns on a quiet one."""
VECTOR = 1.3e-9
"""Seconds per stored element of a product with a vector, in any type."""
WIDE, FAR = 2**23, 1.25
"""Bytes of a dense matrix from which reading it takes longer, and how much."""
COPY = 7e-10
"""Seconds per element in FLOAT of a dense copy, most of which is zeros."""
CALL = 2e-3
"""Seconds of a short product by BLAS, whose threads spin."""
PAIR, RESULT = 2.8e-9, 4.8e-8
"""Seconds of a pair of stored elements, and per element of the result, of a product of two sparse
matrices."""
CHECK = 5e-10
"""Seconds to test whether an element is finite or 0."""
TEST, TESTS = 3.6e-10, 8e-9
"""Seconds per term of a test whether an element of a product has a pair of elements, and per
element of the product to find those to test."""


def times_dense(rows: int, terms: int, columns: int, stored: float, itemsize: int) -> Predicted:
    """The product of a sparse matrix with a dense one.

    Args:
        rows: The rows of the sparse matrix.
        terms: Its columns.
        columns: The columns of the dense matrix.
        stored: The number of stored elements.
        itemsize: The bytes of an element.
    """
    wide = itemsize / 4
    point = POINT * (FAR if terms * columns * itemsize >= WIDE else 1.0)
    by_elements = stored * (VECTOR if columns == 1 else ELEMENT + columns * point * wide)
    by_copy = copying(rows * terms, itemsize) + terms * columns * CHECK
    by_copy += by_blas(rows, terms, columns, itemsize)
    return Predicted(share_of(stored, rows * terms), by_elements, by_copy)


def times_sparse(
    sizes: tuple[int, int, int],
    stored: tuple[float, float],
    itemsize: int,
    pairs: float | None = None,
    results: float | None = None,
    counts: bool = False,
) -> Predicted:
    """The product of two sparse matrices.

    Args:
        sizes: The rows of the left matrix, its columns, and the columns of the right one.
        stored: The number of stored elements of each matrix.
        itemsize: The bytes of an element.
        pairs: The number of pairs of elements; None for elements in random places.
        results: The number of elements of the result; None for the same places.
        counts: Whether the number of pairs of each element of the result is a result.
    """
    rows, terms, columns = sizes
    if pairs is None:
        pairs = stored[0] * stored[1] / max(1, terms)
    elements = rows * columns
    if results is None:
        results = -expm1(-pairs / max(1, elements)) * elements
    by_elements = pairs * PAIR + results * RESULT
    by_copy = copying(rows * terms + terms * columns, itemsize) + elements * CHECK
    by_copy += by_blas(rows, terms, columns, itemsize)
    flags = copying(rows * terms + terms * columns, 4) + by_blas(rows, terms, columns, 4)
    zeros = elements - results
    tests = zeros * terms * TEST + min(1.0, zeros) * elements * TESTS
    by_copy += flags if counts else min(flags, tests)
    share = max(share_of(stored[0], rows * terms), share_of(stored[1], terms * columns))
    return Predicted(share, by_elements, by_copy)


def copying(elements: int, itemsize: int) -> float:
    """Seconds of a dense copy."""
    return elements * COPY * itemsize / 4


def by_blas(rows: int, terms: int, columns: int, itemsize: int) -> float:
    """Seconds of a product of dense matrices."""
    arithmetic = 2.0 * columns * itemsize / FLOPS
    return CALL + rows * terms * (arithmetic + itemsize / TRAFFIC)


def share_of(stored: float, elements: int) -> float:
    """The fraction of elements that are stored."""
    return stored / max(1, elements)
