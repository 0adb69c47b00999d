"""Integer expressions over parameters, which the host computes before a plan runs.

A plan uses them as keys (a fixed extent), as tests (an offset is within bounds) and as scalars that
it reads. If an expression overflows or divides by zero, no plan with it is valid. The statement is
then planned for the values themselves, and reports the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.lazy_module import LazyModule
from einsql.core.schema import DType
from einsql.ir.einsum.graph import Call, Const, Expr, Param, subexpressions
from einsql.ir.functions.casts import cast_array, cast_failure

if TYPE_CHECKING:
    from einsql.ir.einsum import printer as _printer
else:  # loaded for messages
    _printer = LazyModule("einsql.ir.einsum.printer")

BUCKET = 4096
"""Keys up to this extent keep it under a one-sided condition, so that they need one plan."""

Values = Sequence[Any]
Evaluate = Callable[[Values], tuple[Any, ...]]


class NeedsValuesError(Exception):
    """Raised when binding needs the values of parameters; binding is repeated with these values."""

    def __init__(self, numbers: Iterable[int]) -> None:
        super().__init__()
        self.numbers = frozenset(numbers)


def parameters_of(e: Expr) -> set[int]:
    """The numbers of the parameters that an expression reads."""
    return {x.number for x in subexpressions(e) if isinstance(x, Param)}


def _fit(n: int, least: int, most: int) -> int:
    if least <= n <= most:
        return n
    raise OverflowError


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    return a - b * _quotient(a, b)


def _as_float(n: Any, source: str, name: str) -> Any:
    number, target = np.asarray(n, DType(source).carrier), DType(name)
    failure = cast_failure(DType(source), target)
    if failure is not None and failure.numpy(number).any():
        raise OverflowError
    with np.errstate(all="ignore"):
        return cast_array(number, target).item()


def bucket(extent: int) -> int:
    """Rounds an extent up to BUCKET or a power of two: few plans then cover all extents."""
    return BUCKET if extent <= BUCKET else 1 << (extent - 1).bit_length()


KNOWN: dict[str, Any] = {
    "fit": _fit,
    "quotient": _quotient,
    "remainder": _remainder,
    "as_float": _as_float,
    "bucket": bucket,
    "__builtins__": {"int": int, "abs": abs, "min": min, "max": max},
}
"""The functions that generated Python calls, by name."""
_SPELLED = {
    "add": "({0} + {1})",
    "sub": "({0} - {1})",
    "mul": "({0} * {1})",
    "neg": "(-{0})",
    "abs": "abs({0})",
    "idiv": "quotient({0}, {1})",
    "mod": "remainder({0}, {1})",
}
"""The Python forms of functions. Python's integers do not overflow; `fit` checks their range."""


_INFIX = {"add": "+", "sub": "-", "mul": "*", "idiv": "//", "mod": "%"}


def computable(e: Expr) -> bool:
    """True for an integer expression over parameters and constants that the host can compute.

    A cast to FLOAT or DOUBLE may enclose it, or a parameter of the other type.
    """
    if isinstance(e, Call) and e.fn == "cast" and e.dtype in (DType.FLOAT, DType.DOUBLE):
        (e,) = e.args
        if isinstance(e, Param) and e.dtype in (DType.FLOAT, DType.DOUBLE):
            return True
    return _whole(e)


def _whole(e: Expr) -> bool:
    if not e.dtype.is_integer:
        return False
    if isinstance(e, Call):
        return (e.fn in _SPELLED or e.fn == "cast") and all(map(_whole, e.args))
    return isinstance(e, Const | Param)


def source(e: Expr) -> str:
    """A computable expression in Python; `p` is the tuple of the parameters' values."""
    if isinstance(e, Param):
        return f"int(p[{e.number - 1}])" if e.dtype.is_integer else f"p[{e.number - 1}]"
    if isinstance(e, Const):
        return repr(e.value)
    assert isinstance(e, Call)
    args = [source(a) for a in e.args]
    if e.fn == "cast" and e.dtype.is_float:
        return f"as_float({args[0]}, {e.args[0].dtype.value!r}, {e.dtype.value!r})"
    least, most = e.dtype.range
    text = args[0] if e.fn == "cast" else _SPELLED[e.fn].format(*args, most)
    return f"fit({text}, {least}, {most})"


def folded(e: Expr) -> Expr:
    """Folds an integer expression over constants, unless its evaluation raises."""
    if not isinstance(e, Call) or not _whole(e) or parameters_of(e):
        return e
    try:
        return Const(int(evaluator([source(e)])(())[0]), e.dtype)
    except (OverflowError, ZeroDivisionError):
        return e


def shown(e: Expr) -> str:
    """A computable expression in EXPLAIN's notation, such as `?1 + 1`."""
    return _shown(e).removeprefix("(").removesuffix(")") if isinstance(e, Call) else _shown(e)


def _shown(e: Expr) -> str:
    if not isinstance(e, Call):
        return _printer.format_expr(e)
    args = [_shown(a) for a in e.args]
    if e.fn == "cast" and e.dtype is DType.BIGINT:
        return args[0]
    if e.fn == "cast":
        return f"{args[0]}::{e.dtype.value}"
    infix = _INFIX.get(e.fn)
    return f"{e.fn}({', '.join(args)})" if infix is None else f"({f' {infix} '.join(args)})"


def evaluator(sources: Iterable[str]) -> Evaluate:
    """Compiles expressions to one function of the parameters' values.

    The function raises OverflowError or ZeroDivisionError where the statement would fail.
    """
    text = "".join(f"{s}, " for s in sources)
    compute: Evaluate = eval(
        f"lambda p: ({text})", dict(KNOWN)
    )  # the text is generated and contains no user input
    return compute
