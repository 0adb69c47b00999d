"""BLAS: the choice of a library, its GEMM by address, and its number of threads.

NumPy and SciPy each include a BLAS with separate threads and buffers. All products here use the
library that NumPy has loaded, or MKL if it is installed and faster. GEMM by address has three
advantages over `numpy.matmul`: it can add to an array (beta), compiled loops can call it, and the
library may differ from NumPy's.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from einsql.core import forks
from einsql.core.records import dataclass
from einsql.errors import OperationalError, ProgrammingError
from einsql.kernels.runtime import mkl

CHOICE = "EINSQL_BLAS"
"""The environment variable that selects the library."""
_CHOICES = "auto", "numpy", "mkl"
BIG = 2**19
"""Points of a matrix from which `multiply` calls BLAS directly; NumPy's calls are shorter."""

_ROW_MAJOR = 101  # the constant of CBLAS for C order
PLAIN, TRANSPOSED = 111, 112
"""Transpositions as returned by `stepped`: the constants of CBLAS."""
_NAMES = (
    ("scipy_cblas_{}64_", "scipy_openblas_{}_num_threads64_", True),
    ("cblas_{}64_", "openblas_{}_num_threads64_", True),
    ("scipy_cblas_{}", "scipy_openblas_{}_num_threads", False),
    ("cblas_{}", "openblas_{}_num_threads", False),
)
"""Names of functions and of the thread count, and 64-bit integers or not, per build of NumPy."""

Gemm = Callable[..., None]
undisturbed = forks.Undisturbed("computed a matrix product")
"""Context of calls in which NumPy's BLAS uses, starts or ends its threads."""
VECTORS, MATRICES = 2**13, 2**18
"""Points of products from which OpenBLAS may use several threads."""


@dataclass(frozen=True)
class Blas:
    """The functions of a BLAS library.

    Attributes:
        name: The name of the library, for messages.
        gemm, gemv: Addresses of `cblas_sgemm` and `cblas_dgemm`, and of the products of a matrix
            and a vector, by item size of their elements.
        wide: True for 64-bit integers, False for 32-bit integers.
        calls: The GEMM functions for Python, by item size.
        set_threads, get_threads: Access to the number of threads of a call; None if unknown.
    """

    name: str
    gemm: dict[int, int]
    gemv: dict[int, int]
    wide: bool
    calls: dict[int, Gemm]
    set_threads: Callable[[int], None] | None
    get_threads: Callable[[], int] | None


@cache
def library() -> Blas | None:
    """The BLAS that computes products; None if only NumPy can call it.

    Raises:
        ProgrammingError: EINSQL_BLAS does not name a library.
        OperationalError: EINSQL_BLAS names MKL, which cannot be loaded.
    """
    choice = os.environ.get(CHOICE) or "auto"
    if choice not in _CHOICES:
        raise ProgrammingError(
            f"The environment's {CHOICE} cannot be {choice}",
            hint=f"Values are {', '.join(_CHOICES)}.",
        )
    if choice == "numpy" or (choice == "auto" and not _prefers_mkl()):
        return numpys()
    try:
        mkl_library = mkl.load()
    except OSError as error:
        if choice == "auto":
            return numpys()
        raise OperationalError(
            f"{CHOICE} is mkl, and MKL cannot be loaded: {error}",
            hint="pip install 'einsql[mkl]' brings it; auto and numpy do without.",
        ) from error
    return _blas(mkl_library, "MKL", "cblas_{}", True)


def _prefers_mkl() -> bool:
    """True if MKL is installed and faster; NumPy's BLAS may be MKL already."""
    return mkl.is_intel() and bool(mkl.parts()) and not hasattr(_linked(), "MKL_Get_Max_Threads")


@cache
def numpys() -> Blas | None:
    """The BLAS that NumPy is linked to; None if it exports no C interface."""
    linked = _linked()
    if linked is None:
        return None
    for name, count, wide in _NAMES:
        numpy_blas = _blas(linked, "NumPy's", name, wide, count)
        if numpy_blas is not None:
            return numpy_blas
    return None


@cache
def _linked() -> ctypes.CDLL | None:
    """The libraries that NumPy is linked to, with all of their symbols."""
    path = importlib.import_module("numpy._core._multiarray_umath").__file__
    try:
        return ctypes.CDLL(path)
    except OSError:
        return None


def _blas(
    library_file: ctypes.CDLL, called: str, name: str, wide: bool, count: str = ""
) -> Blas | None:
    """Loads a library with these names of functions; None if it lacks them."""
    try:
        single, double = (getattr(library_file, name.format(f"{t}gemm")) for t in "sd")
        vectors = {
            n: getattr(library_file, name.format(f"{t}gemv")) for n, t in ((4, "s"), (8, "d"))
        }
    except AttributeError:
        return None
    size = ctypes.c_int64 if wide else ctypes.c_int32
    for function, scalar in ((single, ctypes.c_float), (double, ctypes.c_double)):
        function.restype = None
        function.argtypes = [
            *[ctypes.c_int32] * 3, *[size] * 3,
            scalar, ctypes.c_void_p, size, ctypes.c_void_p, size,
            scalar, ctypes.c_void_p, size,
        ]  # fmt: skip
    setter = getattr(library_file, count.format("set"), None) if count else None
    getter = getattr(library_file, count.format("get"), None) if count else None
    if setter is not None:
        setter.restype, setter.argtypes = None, [ctypes.c_int]
    calls = {4: single, 8: double}
    return Blas(
        name=called,
        gemm=_addresses(calls),
        gemv=_addresses(vectors),
        wide=wide,
        calls=calls,
        set_threads=setter,
        get_threads=getter,
    )


def is_numpys() -> bool:
    """True if NumPy's BLAS computes products."""
    return library() is numpys()


def _addresses(functions: dict[int, Any]) -> dict[int, int]:
    return {n: ctypes.cast(f, ctypes.c_void_p).value or 0 for n, f in functions.items()}


def gemm(a: np.ndarray, b: np.ndarray, out: np.ndarray, alpha: float, beta: float) -> None:
    """Sets `out` to alpha · a b + beta · out, without copies.

    Args:
        a: `[M, K]`, FLOAT or DOUBLE, not empty; its rows or columns are contiguous, as
            `stepped` says.
        b: `[K, N]`, with the same conditions.
        out: `[M, N]` of the same type, with contiguous rows and any row stride.
        alpha: The factor of the product.
        beta: The factor of the old values; if it is 0, `out` may be uninitialised.
    """
    blas = library()
    assert blas is not None
    flip_a, lead_a = stepped(a)
    flip_b, lead_b = stepped(b)
    blas.calls[out.itemsize](
        _ROW_MAJOR,
        flip_a,
        flip_b,
        out.shape[0],
        out.shape[1],
        a.shape[1],
        alpha,
        a.ctypes.data,
        lead_a,
        b.ctypes.data,
        lead_b,
        beta,
        out.ctypes.data,
        max(out.strides[0] // out.itemsize, out.shape[1]),
    )


def multiply(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """Sets `out` to the products of matrices, by the selected library.

    Args:
        left: `[stack …, M, K]`, with any strides; extents of the stack may be 1 to broadcast.
        right: `[stack …, K, N]`, of the same type.
        out: `[stack …, M, N]`, of the same type.
    """
    m, n = out.shape[-2:]
    big = min(m, n) > 1 and m * n * left.shape[-1] >= BIG and not is_numpys()
    if not (big and _by_address(left, right, out, 0.0)):
        np.matmul(left, right, out=out)


def add_products(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
    """Adds the products of matrices to the result.

    Args:
        left: `[stack …, M, K]`, as in `multiply`.
        right: `[stack …, K, N]`, as in `multiply`.
        out: `[stack …, M, N]`, the result.
    """
    if min(out.shape[-2:]) > 1 and _by_address(left, right, out, 1.0):
        return
    out += np.matmul(left, right)


def _by_address(left: np.ndarray, right: np.ndarray, out: np.ndarray, beta: float) -> bool:
    """Multiplies stacks of matrices by calls of GEMM; False if strides are unsuitable."""
    stack = out.shape[:-2]
    if library() is None:
        return False
    if out.strides[-1] != out.itemsize:  # the transposed product is in C order
        left, right, out = right.swapaxes(-1, -2), left.swapaxes(-1, -2), out.swapaxes(-1, -2)
    every = (0,) * len(stack)
    if not (stepped(left[every])[1] and stepped(right[every])[1] and in_rows(out[every])):
        return False
    left = np.broadcast_to(left, (*stack, *left.shape[-2:]))
    right = np.broadcast_to(right, (*stack, *right.shape[-2:]))
    for at in np.ndindex(stack):
        gemm(left[at], right[at], out[at], 1.0, beta)
    return True


def is_shared(m: int, n: int, k: int) -> bool:
    """True if BLAS may compute a product of `[m, k]` and `[k, n]` on several threads."""
    return m * n * k >= (VECTORS if min(m, n) == 1 else MATRICES)


def in_rows(out: np.ndarray) -> bool:
    """True for a matrix that BLAS can write: contiguous rows with any row stride."""
    rows, columns = out.shape
    down, across = (s // out.itemsize for s in out.strides)
    return bool((across == 1 or columns == 1) and (down >= columns or rows == 1))


def stepped(a: np.ndarray) -> tuple[int, int]:
    """The layout in which BLAS reads a matrix in place.

    Returns:
        The transposition and the leading dimension, which is 0 if a copy is needed.
    """
    rows, columns = a.shape
    down, across = (s // a.itemsize for s in a.strides)
    if across == 1 or columns == 1:
        if (down >= columns or rows == 1) and (across == 1 or down >= 1):
            return PLAIN, max(down, columns)
    elif (down == 1 or rows == 1) and across >= rows:
        return TRANSPOSED, max(across, rows)
    return PLAIN, 0


class _Here(threading.local):
    statements = 0


_lock = threading.Lock()
_here = _Here()
_limits = 0
"""The number of running kernels that require one thread."""
_before = 0
"""The number of BLAS threads to restore; 0 if it is unchanged."""


class OneThread:
    """Context that limits NumPy's BLAS to one thread, for kernels that call it on several threads.

    The limit applies to other statements of the process too. The last kernel restores the old
    number when it exits, or at the end of its `Statement`.
    """

    def __enter__(self) -> None:
        global _limits, _before
        with _lock:
            numpy_blas = numpys()
            if (
                not _before
                and numpy_blas is not None
                and numpy_blas.set_threads
                and numpy_blas.get_threads
            ):
                _before = numpy_blas.get_threads()
                with undisturbed:
                    numpy_blas.set_threads(1)
            _limits += 1

    def __exit__(self, *_: object) -> None:
        global _limits
        with _lock:
            _limits -= 1
        if not _here.statements:
            all_threads()


class Statement:
    """Context of a statement of this thread; the number of threads is restored only at its end."""

    def __enter__(self) -> None:
        _here.statements += 1

    def __exit__(self, *_: object) -> None:
        _here.statements -= 1
        if not _here.statements:
            all_threads()


def all_threads() -> None:
    """Restores the threads of NumPy's BLAS, unless a kernel requires one thread."""
    global _before
    with _lock:
        if _limits or not _before:
            return
        numpy_blas = numpys()
        if numpy_blas is not None and numpy_blas.set_threads is not None:
            with undisturbed:
                numpy_blas.set_threads(_before)
        _before = 0


def _forget() -> None:
    """Resets the state in a forked child, which runs none of its parent's kernels."""
    global _lock, _limits
    _lock, _limits = threading.Lock(), 0


forks.at_fork(_forget)
