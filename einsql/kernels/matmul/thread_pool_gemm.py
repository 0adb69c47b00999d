"""Products as calls by address, which spinning threads take from each other.

The calls go to BLAS. Where the rows of a matrix meet a vector, they may go to compiled code that
is limited by memory alone. The arguments of a call, but for the addresses of its matrices, depend
on strides alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache as cached

import numpy as np

from einsql.kernels.runtime import blas, compile_cache, thread_team
from einsql.kernels.runtime.cpu_features import machine

_TEXT = """\
from numba import njit
from einsql.kernels.runtime.atomics import {name}


@njit("int64({types})", cache=True, nogil=True)
def kernel(function, {args}):
    {name}(function, {size}, {wide}, {args})
    return 0
"""
_DOTS = """\
from numba import njit
from einsql.kernels.matmul.registers import dots


@njit("int64({types})", cache=True, nogil=True)
def kernel({args}):
    long = terms * {size} >= {near} or down == terms * {size}
    ahead = {near} if long else down * ({near} // (terms * {size}) + 1)
    apart = rows // {streams}
    first = 0
    while first < terms:
        count = terms - first
        if count >= {most} + {lanes}:
            count = {most}
        left, right = a + first * {size}, x + first * {size}
        for n in range(apart):
            dots({size}, {streams}, {lanes}, {width}, left + n * down, apart * down, right, count,
                 ahead, first > 0, y + n * under, apart * under)
        for n in range({streams} * apart, rows):
            dots({size}, 1, {lanes}, {width}, left + n * down, 0, right, count,
                 ahead, first > 0, y + n * under, 0)
        first += count
    return 0
"""
"""Multiplies rows with a vector, all distances in bytes. It reads several distant rows at a time,
so that the processor prefetches each as a stream of its own."""
_GEMM = "flip_a, flip_b, m, n, k, a, lead_a, b, lead_b, c, lead_c"
_GEMV = "flip, rows, columns, a, lead, x, step, y, apart"
_DOTS_ARGS = "rows, terms, a, down, x, y, under"
STREAMS, WIDTH = 4, 2
"""Rows that are read at a time, and registers of running sums of each."""
NEAR = 2**12
"""Bytes from the element that is read to the address that is prefetched."""
LONG = 4
"""Registers of a row from which it is worth reading in this way."""
MOST = 2**12
"""Terms that are added up by themselves, for which the vector stays in the first cache."""

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
        streamed: Which of the first two is read once, and takes most of the time; if any.
        blas: Whether BLAS makes them, which is to use one thread for each.
    """

    def __init__(
        self,
        function: int,
        table: np.ndarray,
        places: tuple[int, int, int],
        streamed: int | None,
        blas: bool = True,
    ) -> None:
        self.blas = blas
        self._table, self._places, self._streamed = table, places, streamed
        self._job = (*thread_team.job_of(function, table), 0, 0, 0)

    def run(self, a: np.ndarray, b: np.ndarray, out: np.ndarray, threads: int) -> None:
        """Makes them all.

        Args:
            a: The left operand, of the strides that they are for.
            b: The right one.
            out: The result.
            threads: How many work.
        """
        in_a, in_b, in_out = self._places
        at_a, at_b = thread_team.address(a), thread_team.address(b)
        reads = (at_b, b.nbytes) if self._streamed else (at_a, a.nbytes)
        if self._streamed is None:
            reads = 0, 0
        bases = in_a, at_a, in_b, at_b, in_out, thread_team.address(out)
        thread_team.start(self._job, threads, reads, bases)


def calls_for(pieces: Sequence[Matrices], arrays: Matrices) -> Calls | None:
    """The calls for pieces of a product.

    Args:
        pieces: Their matrices, FLOAT or DOUBLE and not empty, with their strides.
        arrays: The two operands and the result that they are parts of.

    Returns:
        The calls, or None where BLAS cannot read the matrices in place.
    """
    library = blas.library()
    if library is None:
        return None
    turned = blas.stepped(pieces[0][2])[0] != blas.PLAIN
    if turned:  # the transposed product is in C order
        pieces = [(b.T, a.T, out.T) for a, b, out in pieces]
        arrays = arrays[1], arrays[0], arrays[2]
    size = arrays[2].itemsize
    bases = [x.ctypes.data for x in arrays]
    vectors = all(1 in out.shape for _, _, out in pieces)
    form = _MATRICES if not vectors else _ROWS if _in_rows(pieces) else _VECTORS
    table = [form.row(*piece, bases) for piece in pieces]
    if any(not row for row in table):
        return None
    left, right, target = form.places
    # A vector may be the left operand.
    if turned != (vectors and pieces[0][2].shape[0] == 1):
        left, right = right, left
    places = left, right, target
    streamed = places.index(form.places[0]) if vectors else None
    if form is _ROWS:
        return Calls(_dots(size), np.array(table, np.int64), places, streamed, blas=False)
    address = (library.gemv if vectors else library.gemm)[size]
    rows = np.array([[address, *row] for row in table], np.int64)
    return Calls(_caller(form.name, size, library.wide), rows, places, streamed)


def _distances(piece: Matrices, bases: Sequence[int]) -> list[int]:
    """Bytes from the operands and the result to their parts; a matrix comes before a vector."""
    left, right, target = (x.ctypes.data - base for x, base in zip(piece, bases, strict=True))
    return [right, left, target] if piece[2].shape[0] == 1 else [left, right, target]


def _matrix_row(a: np.ndarray, b: np.ndarray, out: np.ndarray, bases: Sequence[int]) -> list[int]:
    flip_a, lead_a = blas.stepped(a)
    flip_b, lead_b = blas.stepped(b)
    flip_c, lead_c = blas.stepped(out)
    if not (lead_a and lead_b and lead_c) or flip_c != blas.PLAIN:
        return []
    at = [x.ctypes.data - base for x, base in zip((a, b, out), bases, strict=True)]
    return [
        flip_a,
        flip_b,
        len(a),
        out.shape[1],
        a.shape[1],
        at[0],
        lead_a,
        at[1],
        lead_b,
        at[2],
        lead_c,
    ]


def _vectors(piece: Matrices) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The matrix, the vector and the result of the product with a vector."""
    a, b, out = piece
    return (b.T, a[0], out[0]) if out.shape[0] == 1 else (a, b[:, 0], out[:, 0])


def _vector_row(a: np.ndarray, b: np.ndarray, out: np.ndarray, bases: Sequence[int]) -> list[int]:
    matrix, x, y = _vectors((a, b, out))
    flip, lead = blas.stepped(matrix)
    size = out.itemsize
    step, apart = x.strides[0] // size, y.strides[0] // size
    if not lead or step < 1 or apart < 1:
        return []
    extents = matrix.shape if flip == blas.PLAIN else matrix.shape[::-1]
    at = _distances((a, b, out), bases)
    return [flip, *extents, at[0], lead, at[1], step, at[2], apart]


def _in_rows(pieces: Sequence[Matrices]) -> bool:
    """True if rows of the matrices and the vectors are contiguous, and rows worth a register."""
    for piece in pieces:
        matrix, x, y = _vectors(piece)
        terms, size = len(x), y.itemsize
        if terms < LONG * _lanes(size) or matrix.strides[1] != size or x.strides[0] != size:
            return False
    return True


def _dots_row(a: np.ndarray, b: np.ndarray, out: np.ndarray, bases: Sequence[int]) -> list[int]:
    matrix, _, y = _vectors((a, b, out))
    at = _distances((a, b, out), bases)
    return [*matrix.shape, at[0], matrix.strides[0], at[1], at[2], y.strides[0]]


@dataclass(frozen=True, slots=True)
class _Form:
    """A kind of calls.

    Attributes:
        name: The function that makes them.
        row: The arguments of the call for a piece; none where strides are unsuitable.
        places: The arguments that are addresses: the left operand or the matrix, the right one or
            the vector, and the result.
    """

    name: str
    row: Callable[[np.ndarray, np.ndarray, np.ndarray, Sequence[int]], list[int]]
    places: tuple[int, int, int]


_MATRICES = _Form("gemm", _matrix_row, (6, 8, 10))
_VECTORS = _Form("gemv", _vector_row, (4, 6, 8))
_ROWS = _Form("dots", _dots_row, (2, 4, 5))


def _lanes(size: int) -> int:
    return machine().width // size


@cached
def _dots(size: int) -> int:
    """The address of the compiled function that multiplies rows with a vector."""
    numbers = {"size": size, "lanes": _lanes(size), "streams": STREAMS, "width": WIDTH}
    types = ", ".join(["int64"] * (1 + _DOTS_ARGS.count(",")))
    text = _DOTS.format(types=types, args=_DOTS_ARGS, near=NEAR, most=MOST, **numbers)
    return compile_cache.address(compile_cache.load(text))


@cached
def _caller(name: str, size: int, wide: bool) -> int:
    """The address of a compiled function that calls BLAS."""
    args = _GEMM if name == "gemm" else _GEMV
    types = ", ".join(["int64"] * (2 + args.count(",")))
    text = _TEXT.format(name=name, size=size, wide=int(wide), args=args, types=types)
    return compile_cache.address(compile_cache.load(text))
