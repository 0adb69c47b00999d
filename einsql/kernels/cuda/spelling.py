"""How scalar functions are spelled in CUDA kernels: as for Numba, but for what CUDA lacks.

Source that was written for the processor names functions of `math` and of NumPy; here every
one of them is a function of `runtime.py`, which the simulator has as well.
"""

from __future__ import annotations

import re

from einsql.algebra import SCALARS
from einsql.einsum import Call

FUNCTIONS = (
    "arccos", "arccosh", "arcsin", "arctanh", "asinh", "atan", "atan2", "cbrt", "ceil", "cos",
    "cosh", "degrees", "floor", "isfinite", "isinf", "lgamma", "log10", "radians", "rint", "sin",
    "sinh", "sqrt", "tan",
)  # fmt: skip
"""Functions of `math` and of NumPy that generated source names."""

_LIBRARY = re.compile(rf"\b(?:math|np)\.({'|'.join(FUNCTIONS)})\(")

_INTEGERS = {"trunc": "{0}", "round": "{0}"}
_FLOATS = {"idiv": "{0} / {1}", "mod": "fmod({0}, {1})"}
_ALWAYS = {
    "sign": "sign_of({0})",
    "pow": "power({0}, {1})",
    "and": "{0} & {1}",  # both are known, and a branch would cost more
    "or": "{0} | {1}",
}


def template(e: Call) -> str:
    """The source of a function over its arguments."""
    own = _FLOATS if e.args[0].dtype.is_float else _INTEGERS
    return _ALWAYS.get(e.fn) or own.get(e.fn) or SCALARS[e.fn].numba


def for_cuda(text: str) -> str:
    """Source text with the functions of libraries replaced."""
    return _LIBRARY.sub(r"\1(", text)
