"""Products as calls of BLAS by addresses, which threads at hand take from each other.

What a call needs besides the addresses of its matrices depends on strides alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache as cached

import numpy as np

from einsql.kernels import blas, cache, team

_TEXT = """\
from numba import njit
from einsql.kernels.calls import {name}


@njit("int64({types})", cache=True, nogil=True)
def kernel(function, {args}):
    {name}(function, {size}, {wide}, {args})
    return 0
"""
_GEMM = "flip_a, flip_b, m, n, k, a, lead_a, b, lead_b, c, lead_c"
_GEMV = "flip, rows, columns, a, lead, x, step, y, apart"

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Two operands `[M, K]` and `[K, N]` and their product `[M, N]`."""


class Calls:
    """Calls for the pieces of a product.

    Args:
        function: The address of the compiled function that makes a call.
        table: `[calls, arguments]`: its arguments, addresses as distances from those of the
            whole.
        places: The arguments that are addresses in the left operand, the right one and the
            result.
    """

    def __init__(self, function: int, table: np.ndarray, places: tuple[int, int, int]) -> None:
        self._function, self._table, self._places = function, table, places
        self._zeros = np.zeros(table.shape[1], np.int64)

    def run(self, a: np.ndarray, b: np.ndarray, out: np.ndarray, threads: int) -> None:
        """Makes them all, BLAS using one thread for each.

        Args:
            a: The left operand, of the strides that they are for.
            b: The right one.
            out: The result.
            threads: How many work.
        """
        bases = self._zeros.copy()
        for place, whole in zip(self._places, (a, b, out), strict=True):
            bases[place] = team.address(whole)
        team.run(self._function, self._table + bases, threads)


def calls_for(pieces: Sequence[Matrices], whole: Matrices) -> Calls | None:
    """The calls for pieces of a product.

    Args:
        pieces: Their matrices, FLOAT or DOUBLE and not empty, as they lie.
        whole: The arrays that they are parts of.

    Returns:
        The calls, or None where BLAS does not read the matrices as they lie.
    """
    found = blas.library()
    if found is None:
        return None
    turned = blas.stepped(pieces[0][2])[0] != blas.PLAIN
    if turned:  # the transposed product is in C order
        pieces = [(b.T, a.T, out.T) for a, b, out in pieces]
        whole = whole[1], whole[0], whole[2]
    size = whole[2].itemsize
    bases = [x.ctypes.data for x in whole]
    vectors = all(1 in out.shape for _, _, out in pieces)
    table = []
    for piece in pieces:
        row = _vector_row(*piece, bases) if vectors else _matrix_row(*piece, bases)
        if row is None:
            return None
        table.append(row)
    if vectors:
        left = pieces[0][2].shape[0] == 1  # the left operand is the vector
        places = (6, 4, 8) if left else (4, 6, 8)
        named, address = "gemv", found.gemv[size]
    else:
        places, named, address = (6, 8, 10), "gemm", found.gemm[size]
    if turned:
        places = places[1], places[0], places[2]
    rows = np.array([[address, *row] for row in table], np.int64)
    return Calls(_caller(named, size, found.wide), rows, places)


def _matrix_row(
    a: np.ndarray, b: np.ndarray, out: np.ndarray, bases: Sequence[int]
) -> list[int] | None:  # fmt: skip
    flip_a, lead_a = blas.stepped(a)
    flip_b, lead_b = blas.stepped(b)
    flip_c, lead_c = blas.stepped(out)
    if not (lead_a and lead_b and lead_c) or flip_c != blas.PLAIN:
        return None
    at = [x.ctypes.data - base for x, base in zip((a, b, out), bases, strict=True)]
    return [
        flip_a, flip_b, len(a), out.shape[1], a.shape[1],
        at[0], lead_a, at[1], lead_b, at[2], lead_c,
    ]  # fmt: skip


def _vector_row(
    a: np.ndarray, b: np.ndarray, out: np.ndarray, bases: Sequence[int]
) -> list[int] | None:  # fmt: skip
    left = out.shape[0] == 1
    matrix, x, y = (b.T, a[0], out[0]) if left else (a, b[:, 0], out[:, 0])
    flip, lead = blas.stepped(matrix)
    size = out.itemsize
    step, apart = x.strides[0] // size, y.strides[0] // size
    if not lead or step < 1 or apart < 1:
        return None
    lies = matrix.shape if flip == blas.PLAIN else matrix.shape[::-1]
    at = [v.ctypes.data - base for v, base in zip((a, b, out), bases, strict=True)]
    places = (at[1], at[0]) if left else (at[0], at[1])
    return [flip, *lies, places[0], lead, places[1], step, at[2], apart]


@cached
def _caller(name: str, size: int, wide: bool) -> int:
    """The address of a compiled function that calls BLAS."""
    args = _GEMM if name == "gemm" else _GEMV
    types = ", ".join(["int64"] * (2 + args.count(",")))
    text = _TEXT.format(name=name, size=size, wide=int(wide), args=args, types=types)
    return cache.address(cache.load(text))
