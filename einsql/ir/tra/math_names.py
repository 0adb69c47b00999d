"""Python's functions of numbers for traced values: those of `math`, and `min` and `max`.

These functions convert their arguments to numbers, which traced values are not. A function that
calls them is traced with functions that record the calls in their place.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from functools import reduce
from types import CellType, CodeType, FunctionType, SimpleNamespace
from typing import Any

from einsql.ir.tra.lambda_tracing import Traced, call

_SAME = (
    "exp", "log2", "log10", "sqrt", "cbrt", "sin", "cos", "tan", "asin", "acos", "atan", "atan2",
    "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "degrees", "radians", "erf", "lgamma",
    "pow", "floor", "ceil", "trunc", "isnan", "isinf", "isfinite",
)  # fmt: skip
"""Functions of `math` with the names of the algebra."""


def _recording(fn: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """A function that records its call if an argument is traced."""

    def either(*args: Any) -> Any:
        return call(fn, *args) if any(isinstance(a, Traced) for a in args) else plain(*args)

    return either


def _log(x: Any, *base: Any) -> Any:
    if not any(isinstance(a, Traced) for a in (x, *base)):
        return math.log(x, *base)
    logarithms = [_recording("ln", math.log)(a) for a in (x, *base)]
    return logarithms[0] / logarithms[1] if base else logarithms[0]


def _chosen(fn: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """`max` or `min` of several values, at least one of them traced."""
    one = _recording(fn, plain)

    def either(*args: Any, **options: Any) -> Any:
        if len(args) < 2 or options or not any(isinstance(a, Traced) for a in args):
            return plain(*args, **options)
        return reduce(one, args)

    return either


_MATH: dict[str, Any] = {
    **vars(math),
    **{n: _recording(n, getattr(math, n)) for n in _SAME},
    "log": _log,
    "fabs": _recording("abs", math.fabs),
}
_BUILTINS: dict[str, Any] = {
    **vars(builtins),
    "max": _chosen("greatest", max),
    "min": _chosen("least", min),
}
_REPLACED = {id(getattr(math, n)): _MATH[n] for n in (*_SAME, "log", "fabs")} | {
    id(math): SimpleNamespace(**_MATH),
    id(max): _BUILTINS["max"],
    id(min): _BUILTINS["min"],
}


def recording(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function with recording functions in place of those of Python's that it names."""
    if not isinstance(fn, FunctionType):
        return fn
    named = _names(fn.__code__)
    scope = {n: _replaced(v) for n, v in fn.__globals__.items() if n in named}
    scope |= {"__builtins__": _BUILTINS, "__name__": fn.__module__}
    cells = tuple(CellType(_replaced(_contents(c))) for c in fn.__closure__ or ())
    new = FunctionType(fn.__code__, scope, fn.__name__, fn.__defaults__, cells or None)
    new.__kwdefaults__ = fn.__kwdefaults__
    return new


def _names(code: CodeType) -> set[str]:
    """The names that a function and the functions within it read."""
    inner = (_names(c) for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*inner)


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has no value yet
        return None


def _replaced(value: Any) -> Any:
    return _REPLACED.get(id(value), value)
