"""The spelling of scalar functions in CUDA kernels: as for Numba, with replacements.

Source written for the processor names functions of `math` and of NumPy. Here each of them is a
function of `runtime.py`, which runs on the simulator as well.
"""

from __future__ import annotations

import re

from einsql.core.schema import DType
from einsql.ir.einsum.graph import Call, Const
from einsql.ir.functions import SCALARS
from einsql.kernels.loops.loop_nest import product

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


_DOUBLE = {
    "mul": "mul_double({0}, {1})",
    "fmod": "{0} - mul_double(floor({0} / {1}), {1})",
    "sigmoid": "sigmoid({0}, 1.0)",
}
_FLOAT = {
    "mul": "mul_float({0}, {1})",
    "fmod": "{0} - mul_float(np.float32(floor({0} / {1})), {1})",
    "sigmoid": "sigmoid({0}, np.float32(1))",
}
_POWERS = {
    2.0: "{1}({0}, {0})",
    3.0: "{1}({1}({0}, {0}), {0})",
    4.0: "{1}({1}({0}, {0}), {1}({0}, {0}))",
}
"""Products in place of powers; `{1}` multiplies."""


def template(e: Call) -> str:
    """The source of a function over its arguments."""
    dtype = e.args[0].dtype
    own = (_DOUBLE if dtype is DType.DOUBLE else _FLOAT) | _FLOATS if dtype.is_float else _INTEGERS
    return _ALWAYS.get(e.fn) or own.get(e.fn) or SCALARS[e.fn].numba


def power(e: Call, base: str) -> str | None:
    """The source of a power with a small whole exponent over its base, or None for others."""
    if product(e) is None:
        return None
    assert isinstance(e.args[1], Const)
    multiply = "mul_double" if e.dtype is DType.DOUBLE else "mul_float"
    return _POWERS[float(e.args[1].value)].format(base, multiply)


def for_cuda(text: str) -> str:
    """Source text with the functions of libraries replaced."""
    return _LIBRARY.sub(r"\1(", text)
