"""The scalar functions: one entry each with laws, types, derivative and code.

An entry has the function's result type, its laws for rewrite rules, its failures,
its interval rule for integers, its derivative, and its code in
NumPy and in the text of kernels. In its templates `{0}`, `{1}` are the arguments,
already of the entry's argument types; the caller casts the result to the call's type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import field

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.core.typing_rules import (
    TypeRule,
    arithmetic,
    bits,
    choose,
    compare,
    conditional,
    division,
    float_test,
    logic,
    narrowing,
    real,
    rounding,
    rounding_keeps_integers,
    sign,
    unchanged,
    whole_division,
)
from einsql.ir.functions.derivatives import (
    Derivative,
    angle,
    bell,
    beside_one,
    digamma,
    larger,
    magnitude,
    quotient,
    selected,
    smaller,
    still,
)
from einsql.ir.functions.derivatives import power as power_derivative
from einsql.ir.functions.numeric import (
    DIGITS_FAIL,
    FLOAT_IDIV,
    INT_DIV_FAILS,
    MOD_FAILS,
    Array,
    Failure,
    Interval,
    abs_interval,
    add_overflows,
    both,
    corners,
    equal,
    erf,
    floored_remainder,
    hull,
    idiv_interval,
    least,
    less,
    lgamma,
    maximum,
    minimum,
    mod_interval,
    mul_overflows,
    overflow,
    power,
    ratio,
    remainder,
    round_away,
    scaled_round,
    settled,
    sigmoid,
    sub_overflows,
    trunc_divide,
    within_interval,
)

F, D = DType.FLOAT, DType.DOUBLE


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function with its types, laws, implementations and derivative.

    Attributes:
        numpy: The function of arrays of the argument types; the caller casts the result.
        numba: The source template over `{0}`, `{1}`, …
        fails: The failure by argument type.
        interval: Maps the arguments' integer intervals to the result's.
        commutative: True if f(x, y) = f(y, x), bitwise.
        associative: True if f(f(x, y), z) = f(x, f(y, z)); floats are rounded differently, and
            integers may overflow in one order only.
        identity: The value e with f(x, e) = x, bitwise, or None.
        annihilator: The value z with f(x, z) = z for every finite x, or None.
        monotone: True if f increases or decreases in each argument, and is rounded correctly.
        cheap: True if computing it costs no more than reading a value from memory.
        divides: True if it needs a division or a square root, which take several times as long
            as reading a value from the cache.
        transparent: True if f(x) = x, bitwise: it only marks its argument for rules, which then
            drop it.
        opaque: True for a Python function of the user, which runs over arrays of selected points
            only; see `python_functions`.
        derivative: The derivative (see `Derivative`), or the reason why there is none.
    """

    name: str
    types: TypeRule
    numpy: Callable[..., Array]
    numba: str
    arity: int = 1
    fails: Mapping[DType, Failure] = field(default_factory=dict)
    interval: Callable[..., Interval] | None = None
    commutative: bool = False
    associative: bool = False
    identity: float | bool | None = None
    annihilator: float | bool | None = None
    monotone: bool = False
    cheap: bool = False
    divides: bool = False
    transparent: bool = False
    opaque: bool = False
    derivative: Derivative = field(kw_only=True)


_ENTRIES: tuple[Function, ...] = (
    Function("add", arithmetic, lambda a, b: a + b, "{0} + {1}", 2,
             overflow("addition", "+", add_overflows, "add"), corners(lambda x, y: x + y),
             commutative=True, associative=True, monotone=True, cheap=True,
             derivative=lambda g, y, a, b: (g, g)),
    Function("sub", arithmetic, lambda a, b: a - b, "{0} - {1}", 2,
             overflow("subtraction", "-", sub_overflows, "sub"), corners(lambda x, y: x - y),
             monotone=True, cheap=True, derivative=lambda g, y, a, b: (g, -g)),
    Function("mul", arithmetic, lambda a, b: a * b, "{0} * {1}", 2,
             overflow("multiplication", "*", mul_overflows, "mul"), corners(lambda x, y: x * y),
             commutative=True, associative=True, identity=1, annihilator=0, monotone=True,
             cheap=True, derivative=lambda g, y, a, b: (g * b, g * a)),
    Function("div", division, lambda a, b: a / b, "{0} / {1}", 2, cheap=True, divides=True,
             identity=1, derivative=quotient),
    Function("idiv", arithmetic, trunc_divide, "idiv({0}, {1})", 2,
             {**INT_DIV_FAILS, F: FLOAT_IDIV, D: FLOAT_IDIV}, idiv_interval, cheap=True,
             divides=True, derivative=quotient),
    Function("mod", arithmetic, remainder, "remainder({0}, {1})", 2,
             MOD_FAILS, mod_interval, cheap=True, divides=True,
             derivative=lambda g, y, a, b: (g, -(g * (a / b).call("trunc")))),
    Function("fmod", division, floored_remainder, "floored_remainder({0}, {1})", 2,
             cheap=True, divides=True,
             derivative=lambda g, y, a, b: (g, -(g * (a / b).call("floor")))),
    Function("within", bits, lambda a, limit: a, "{0}", 2, DIGITS_FAIL, within_interval,
             cheap=True, derivative=still),
    Function("neg", arithmetic, lambda a: -a, "-{0}", 1, least("negation"),
             lambda a: None if a is None else (-a[1], -a[0]), monotone=True, cheap=True,
             derivative=lambda g, y, a: (-g,)),
    Function("abs", arithmetic, np.abs, "abs({0})", 1, least("abs"), abs_interval, cheap=True,
             derivative=magnitude),
    Function("sign", sign, lambda a: np.where(a != a, 0, np.sign(a)),
             "(({0} > 0) - ({0} < 0))", interval=lambda a: (-1, 1), cheap=True, derivative=still),
    Function("eq", compare, equal, "eq({0}, {1})", 2, commutative=True, cheap=True,
             derivative=still),
    Function("ne", compare, lambda a, b: ~equal(a, b), "not eq({0}, {1})", 2,
             commutative=True, cheap=True, derivative=still),
    Function("lt", compare, less, "less({0}, {1})", 2, cheap=True, derivative=still),
    Function("le", compare, lambda a, b: ~less(b, a), "not less({1}, {0})", 2, cheap=True,
             derivative=still),
    Function("and", logic, np.logical_and, "({0} and {1})", 2, commutative=True,
             associative=True, identity=True, annihilator=False, cheap=True, derivative=still),
    Function("or", logic, np.logical_or, "({0} or {1})", 2, commutative=True,
             associative=True, identity=False, annihilator=True, cheap=True, derivative=still),
    Function("not", logic, np.logical_not, "not {0}", cheap=True, derivative=still),
    Function("if", conditional, np.where, "{1} if {0} else {2}", 3, interval=hull, cheap=True,
             derivative=selected),
    Function("bitand", bits, np.bitwise_and, "{0} & {1}", 2, commutative=True, associative=True,
             cheap=True, derivative=still),
    Function("bitor", bits, np.bitwise_or, "{0} | {1}", 2, commutative=True, associative=True,
             cheap=True, derivative=still),
    Function("xor", bits, np.bitwise_xor, "{0} ^ {1}", 2, commutative=True, associative=True,
             cheap=True, derivative=still),
    Function("greatest", choose, maximum, "({1} if less({0}, {1}) else {0})", 2,
             interval=both(max), commutative=True, associative=True, cheap=True, derivative=larger),
    Function("least", choose, minimum, "({1} if less({1}, {0}) else {0})", 2,
             interval=both(min), commutative=True, associative=True, cheap=True,
             derivative=smaller),
    Function("floor", rounding, np.floor, "np.floor({0})", monotone=True, cheap=True,
             derivative=still),
    Function("ceil", rounding, np.ceil, "np.ceil({0})", monotone=True, cheap=True,
             derivative=still),
    Function("trunc", rounding_keeps_integers, np.trunc, "truncate({0})", monotone=True,
             cheap=True, interval=lambda a: a, derivative=still),
    Function("round", rounding_keeps_integers, round_away, "round_away({0})", cheap=True,
             interval=lambda a: a, derivative=still),
    Function("scaled_round", real, scaled_round, "scaled_round({0}, {1})", 2, cheap=True,
             derivative=still),
    Function("isnan", float_test, np.isnan, "{0} != {0}", cheap=True, derivative=still),
    Function("isinf", float_test, np.isinf, "math.isinf({0})", cheap=True, derivative=still),
    Function("isfinite", float_test, np.isfinite, "math.isfinite({0})", cheap=True,
             derivative=still),
    Function("exp", real, np.exp, "exp({0})", derivative=lambda g, y, x: (g * y,)),
    Function("ln", real, np.log, "log({0})", derivative=lambda g, y, x: (g / x,)),
    Function("log2", real, np.log2, "log2({0})",
             derivative=lambda g, y, x: (g * (1 / math.log(2)) / x,)),
    Function("log10", real, np.log10, "log10({0})",
             derivative=lambda g, y, x: (g * (1 / math.log(10)) / x,)),
    Function("sqrt", real, np.sqrt, "math.sqrt({0})", monotone=True, cheap=True, divides=True,
             derivative=lambda g, y, x: (g * 0.5 / y,)),
    Function("cbrt", real, np.cbrt, "np.cbrt({0})", derivative=lambda g, y, x: (g / (y * y * 3),)),
    Function("pow", real, power, "power({0}, {1})", 2, derivative=power_derivative),
    Function("sin", real, np.sin, "sin({0})", derivative=lambda g, y, x: (g * x.call("cos"),)),
    Function("cos", real, np.cos, "cos({0})", derivative=lambda g, y, x: (-(g * x.call("sin")),)),
    Function("tan", real, np.tan, "math.tan({0})", derivative=lambda g, y, x: (g * (y * y + 1),)),
    Function("asin", real, np.arcsin, "np.arcsin({0})",
             derivative=lambda g, y, x: (g / ((1 - x) * (x + 1)).call("sqrt"),)),
    Function("acos", real, np.arccos, "np.arccos({0})",
             derivative=lambda g, y, x: (-g / ((1 - x) * (x + 1)).call("sqrt"),)),
    Function("atan", real, np.arctan, "math.atan({0})",
             derivative=lambda g, y, x: (g / (x * x + 1),)),
    Function("atan2", real, np.arctan2, "math.atan2({0}, {1})", 2, derivative=angle),
    Function("sinh", real, np.sinh, "math.sinh({0})",
             derivative=lambda g, y, x: (g * x.call("cosh"),)),
    Function("cosh", real, np.cosh, "math.cosh({0})",
             derivative=lambda g, y, x: (g * x.call("sinh"),)),
    Function("tanh", real, np.tanh, "tanh({0})", derivative=lambda g, y, x: (g * (1 - y * y),)),
    Function("sigmoid", real, sigmoid, "sigmoid({0})",
             derivative=lambda g, y, x: (g * (y * (1 - y)),)),
    Function("asinh", real, np.arcsinh, "math.asinh({0})",
             derivative=beside_one),
    Function("acosh", real, np.arccosh, "np.arccosh({0})",
             derivative=lambda g, y, x: (g / ((x - 1).call("sqrt") * (x + 1).call("sqrt")),)),
    Function("atanh", real, np.arctanh, "np.arctanh({0})",
             derivative=lambda g, y, x: (g / ((1 - x) * (x + 1)),)),
    Function("degrees", real, np.degrees, "math.degrees({0})",
             derivative=lambda g, y, x: (g * (180 / math.pi),)),
    Function("radians", real, np.radians, "math.radians({0})",
             derivative=lambda g, y, x: (g * (math.pi / 180),)),
    Function("erf", real, erf, "erf({0})", derivative=bell),
    Function("lgamma", real, lgamma, "math.lgamma({0})", derivative=digamma),
    Function("ratio", whole_division, ratio, "ratio({0}, {1}, {2})", 3, cheap=True, divides=True,
             derivative=still),
    Function("beside", arithmetic, lambda a, term: a, "{0}", 2, cheap=True,
             derivative=lambda g, y, a, term: (g, None)),
    Function("settled", real, settled,
             "({2} - {1} if eq({1}, {2}) and not math.isfinite({0}) else {0})", 3, cheap=True,
             derivative=lambda g, y, spread, low, high: (g, None, None)),
    Function("nearest", narrowing, lambda a: a, "{0}", cheap=True,
             derivative=lambda g, y, x: (g,)),
    Function("stop_gradient", unchanged, lambda a: a, "{0}", interval=lambda a: a, cheap=True,
             transparent=True, derivative=still),
)  # fmt: skip

SCALARS: dict[str, Function] = {f.name: f for f in _ENTRIES}
"""Every scalar function by name, except `cast`, which depends on two types."""

INTERNAL = frozenset(
    {"if", "within", "ratio", "scaled_round", "nearest", "beside", "settled", "stop_gradient"}
)
"""Functions without a name in SQL, or with another meaning in SQL."""


def is_rounded(name: str) -> bool:
    """True for a function such as EXP whose last bit depends on the kind of kernel."""
    function = SCALARS.get(name)  # None for a cast
    return function is not None and not function.cheap and not function.opaque
