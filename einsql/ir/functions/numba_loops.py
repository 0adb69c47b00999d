"""Python functions of numbers, compiled by Numba for many points where it is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from einsql.core.schema import DType
from einsql.ir.functions.law_tests import rows

LEAST = 2**21
"""Points that a function computes in Python before it is compiled. They take about as long as the
import of Numba and the compilation, a second."""
_CLOSE = 4 * float(np.finfo(np.float64).eps)
"""The relative difference up to which mathematical functions of Python and Numba are the same."""


class NumbaLoop:
    """A function over arrays, compiled when it has computed many points.

    Numba's integers wrap around and some of its functions raise nothing. So a compiled function is
    used only if it returns and raises on samples, edge values included, what Python does.

    Args:
        fn: The function of numbers.
        types: The types of its arguments.
    """

    def __init__(self, fn: Callable[..., Any], types: Sequence[DType]) -> None:
        self._fn = fn
        self._types = types
        self._compiled: Callable[..., Any] | None = None
        self._seen = 0

    def __call__(self, *args: np.ndarray) -> np.ndarray | None:
        """The values at some points; None if they have to be computed in Python."""
        before, self._seen = self._seen, self._seen + len(args[0])
        if before < LEAST <= self._seen:
            self._compiled = self._checked()
        if self._compiled is None:
            return None
        try:
            with np.errstate(all="ignore"):
                return np.asarray(self._compiled(*map(_plain, args)))
        except Exception:  # Python raises it again, with the arguments
            return None

    def _checked(self) -> Callable[..., Any] | None:
        try:
            import numba

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                vectorize: Any = numba.vectorize
                compiled: Callable[..., Any] = vectorize(self._fn)
                for row in rows(self._types, 300):
                    if not _same(_outcome(self._fn, row), _outcome(_of_one(compiled), row)):
                        return None
        except Exception:  # Numba is not installed, or does not know an operation
            return None
        return compiled


def _plain(array: np.ndarray) -> np.ndarray:
    """The array in the type of Python's numbers."""
    return array.astype({"f": np.float64, "b": np.bool_}.get(array.dtype.kind, np.int64))


def _of_one(compiled: Callable[..., Any]) -> Callable[..., Any]:
    def run(*row: Any) -> Any:
        with np.errstate(all="ignore"):
            return compiled(*(_plain(np.asarray([x])) for x in row))[0].item()

    return run


def _outcome(fn: Callable[..., Any], row: Sequence[Any]) -> Any:
    try:
        return fn(*row)
    except (ArithmeticError, ValueError) as error:
        return type(error)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, type) or isinstance(b, type):
        return a is b
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b) or abs(a - b) <= _CLOSE * max(abs(a), abs(b))
    return bool(a == b) and isinstance(a, bool) == isinstance(b, bool)
