"""Small products of long rows, within which numpy.matmul would let no other thread run."""

from __future__ import annotations

import numpy as np

from einsql.kernels import blas


def multiply_long(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """Multiplies two matrices into a third, all of one type, FLOAT or DOUBLE.

    Args:
        left: `[M, K]`, of any strides.
        right: `[K, N]`.
        out: `[M, N]`; it may hold anything.
    """
    if out.size == 1:
        out[0, 0] = np.dot(left[0], right[:, 0])
    elif blas.library() and blas.stepped(left)[1] and blas.stepped(right)[1] and blas.in_rows(out):
        blas.gemm(left, right, out, 1.0, 0.0)
    else:
        np.matmul(left, right, out=out)
