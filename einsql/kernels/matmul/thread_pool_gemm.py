"""Products as calls by address, which spinning threads share.

The calls use BLAS. Matrix-vector products may use compiled code that is limited only by memory
bandwidth. Except for the addresses of the matrices, the arguments of a call depend only on
strides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache as cached
from math import prod

import numpy as np

from einsql.core.records import dataclass
from einsql.kernels.compiler.cpu_features import machine
from einsql.kernels.runtime import blas, compile_cache, thread_team

_TEXT = """\
from einsql.kernels.runtime.atomics import {name}


@njit("int64({types})")
def kernel(function, {args}):
    {name}(function, {size}, {wide}, {args})
    return 0
"""
_DOTS = """\
from einsql.kernels.runtime.register_tiles import dots


@njit("int64({types})")
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
            dots({streams}, {lanes}, {width}, count, (left + n * down, apart * down, ahead), right,
                 (y + n * under, apart * under, first > 0), np.{dtype}(1))
        for n in range({streams} * apart, rows):
            dots(1, {lanes}, {width}, count, (left + n * down, 0, ahead), right,
                 (y + n * under, 0, first > 0), np.{dtype}(1))
        first += count
    return 0
"""
"""Multiplies rows with a vector, all distances in bytes. It reads several distant rows at a time,
so that the processor prefetches each as a stream of its own."""
_GEMM = "flip_a, flip_b, m, n, k, a, lead_a, b, lead_b, c, lead_c"
_GEMV = "flip, rows, columns, a, lead, x, step, y, apart"
_DOTS_ARGS = "rows, terms, a, down, x, y, under"
STREAMS, WIDTH = 4, 2
"""Rows that are read at a time, and registers of running sums per row."""
NEAR = 2**12
"""Distance in bytes from the current element to the prefetched address."""
LONG = 4
"""Registers per row from which the compiled code is faster than BLAS."""
MOST = 2**12
"""Terms of a partial sum, so that the vector stays in the L1 cache."""

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Two operands `[M, K]` and `[K, N]` and their product `[M, N]`."""


@dataclass(frozen=True, slots=True)
class Stack:
    """Products of matrices with equal extents and strides.

    Attributes:
        first: The matrices of the first product, FLOAT or DOUBLE and not empty.
        offsets: int64 (products, 3), the distance in bytes of each product's matrices from the
            first ones.
    """

    first: Matrices
    offsets: np.ndarray


def stack_of(a: np.ndarray, b: np.ndarray, out: np.ndarray, *, by_row: bool) -> Stack:
    """Returns the products of stacks of matrices.

    Args:
        a: `[…, M, K]`; its first axes are broadcast to those of the result.
        b: `[…, K, N]`, likewise.
        out: `[…, M, N]`.
        by_row: Whether each row of the left matrices is a product of its own.
    """
    stack, rows = out.shape[:-2], out.shape[-2]
    arrays = [np.broadcast_to(x, (*stack, *x.shape[-2:])) for x in (a, b, out)]
    left, right, target = (x[(0,) * len(stack)] for x in arrays)
    strides = np.array([x.strides[: len(stack)] for x in arrays], np.int64).T
    extents = stack
    if by_row:
        extents = (*stack, rows)
        strides = np.vstack([strides, [left.strides[0], 0, target.strides[0]]])
        left, target = left[:1], target[:1]
    places = np.indices(extents).reshape(len(extents), prod(extents))
    return Stack((left, right, target), places.T @ strides)


class NotAtHandError(Exception):
    """A function is being compiled, and the statement does not wait."""


class Calls:
    """The calls of the pieces of a product.

    Args:
        function: The address of the compiled function that executes a call.
        table: The arguments `[calls, arguments]`, with addresses relative to the complete
            arrays.
        places: The indices of the arguments that are addresses in the left operand, the right
            operand and the result.
        streamed: The operand that is read once and takes most of the time, 0 or 1, or None.
        blas: Whether BLAS executes the calls, with one thread each.
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
        """Executes all calls.

        Args:
            a: The left operand, with the strides of the calls.
            b: The right operand.
            out: The result.
            threads: The number of threads.
        """
        in_a, in_b, in_out = self._places
        at_a, at_b = thread_team.address(a), thread_team.address(b)
        reads = (at_b, b.nbytes) if self._streamed else (at_a, a.nbytes)
        if self._streamed is None:
            reads = 0, 0
        bases = in_a, at_a, in_b, at_b, in_out, thread_team.address(out)
        thread_team.start(self._job, threads, reads, bases)


def calls_for(stacks: Sequence[Stack], arrays: Matrices) -> Calls | None:
    """Creates the calls of the pieces of a product.

    Args:
        stacks: The products of the pieces.
        arrays: The two operands and the result that contain the pieces.

    Returns:
        The calls, or None if BLAS cannot read the matrices in place.

    Raises:
        NotAtHandError: The function that executes the calls is being compiled.
    """
    library = blas.library()
    if library is None:
        return None
    turned = blas.stepped(stacks[0].first[2])[0] != blas.PLAIN
    if turned:  # the transposed product is in C order
        stacks = [_transposed(s) for s in stacks]
        arrays = arrays[1], arrays[0], arrays[2]
    size = arrays[2].itemsize
    bases = [x.ctypes.data for x in arrays]
    pieces = [s.first for s in stacks]
    vectors = all(1 in out.shape for _, _, out in pieces)
    form = _MATRICES if not vectors else _ROWS if _in_rows(pieces) else _VECTORS
    tables = [_table(form, s, bases, vectors) for s in stacks]
    if not all(map(len, tables)):
        return None
    table = np.concatenate(tables)
    left, right, target = form.places
    # A vector may be the left operand.
    if turned != (vectors and pieces[0][2].shape[0] == 1):
        left, right = right, left
    places = left, right, target
    streamed = places.index(form.places[0]) if vectors else None
    by_rows = form is _ROWS
    source = _dots(size) if by_rows else _caller(form.name, size, library.wide)
    kernel = compile_cache.at_hand(source)
    if kernel is None:
        raise NotAtHandError
    if by_rows:
        return Calls(kernel.address, table, places, streamed, blas=False)
    address = (library.gemv if vectors else library.gemm)[size]
    rows = np.insert(table, 0, address, axis=1)
    return Calls(kernel.address, rows, places, streamed)


def _transposed(stack: Stack) -> Stack:
    a, b, out = stack.first
    return Stack((b.T, a.T, out.T), stack.offsets[:, [1, 0, 2]])


def _table(form: _Form, stack: Stack, bases: Sequence[int], vectors: bool) -> np.ndarray:
    """The arguments of the calls of a stack, int64 (calls, arguments); empty if BLAS cannot run."""
    row = form.row(*stack.first, bases)
    if not row:
        return np.empty((0, 0), np.int64)
    table = np.tile(np.array(row, np.int64), (len(stack.offsets), 1))
    swapped = vectors and stack.first[2].shape[0] == 1  # the matrix comes first, see `_distances`
    function = form is not _ROWS  # the first argument, which the row lacks
    columns = [place - function for place in form.places]
    table[:, columns] += stack.offsets[:, [1, 0, 2]] if swapped else stack.offsets
    return table


def _distances(piece: Matrices, bases: Sequence[int]) -> list[int]:
    """The byte offsets of a piece's arrays in the operands and the result, matrix before vector."""
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
    """True if vectors and rows of the matrices are contiguous, and rows fill registers."""
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
        name: The name of the function that executes them.
        row: Creates the arguments of a piece's call; None if strides are unsuitable.
        places: The indices of the arguments that are addresses: of the left operand or the
            matrix, the right operand or the vector, and the result.
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
def _dots(size: int) -> str:
    """The source of the function that multiplies rows with a vector."""
    numbers = {"size": size, "lanes": _lanes(size), "streams": STREAMS, "width": WIDTH}
    types = ", ".join(["int64"] * (1 + _DOTS_ARGS.count(",")))
    return _DOTS.format(
        types=types, args=_DOTS_ARGS, near=NEAR, most=MOST, dtype=f"float{8 * size}", **numbers
    )


@cached
def _caller(name: str, size: int, wide: bool) -> str:
    """The source of a function that calls BLAS."""
    args = _GEMM if name == "gemm" else _GEMV
    types = ", ".join(["int64"] * (2 + args.count(",")))
    return _TEXT.format(name=name, size=size, wide=int(wide), args=args, types=types)
