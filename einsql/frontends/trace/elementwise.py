"""NumPy's functions of single elements, as functions of the algebra with NumPy's types.

Where SQL orders NaN above all numbers and equal to itself, conditions are added, so that
comparisons, minima and maxima answer as NumPy's do. HALF and BFLOAT16 compute as float32.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from einsql.core.schema import DType
from einsql.frontends.trace.expressions import apply, cast
from einsql.frontends.trace.nodes import Affine, Apply, Expr, Literal
from einsql.frontends.trace.source import untraceable
from einsql.frontends.trace.special import erfc

B, I64, F, D = DType.BOOLEAN, DType.BIGINT, DType.FLOAT, DType.DOUBLE
Build = Callable[..., Expr]


def dtype_of(dtype: Any, what: str = "An array") -> DType:
    """The type that stores a NumPy dtype.

    Raises:
        NotSupportedError: einsql has no such type.
    """
    stored = DType.of(np.dtype(dtype))
    if stored is None:
        raise untraceable(
            f"{what} of {np.dtype(dtype)}",
            "Tensors hold bool, int8, int32, int64, float16, bfloat16, float32 and float64; "
            "convert with .astype(…) before.",
        )
    return stored


def computed(dtype: DType) -> np.dtype:
    """The NumPy dtype in which values of a type are computed; two bytes compute as float32."""
    return np.dtype(np.float32) if dtype.is_short else dtype.numpy


def met(*types: DType) -> DType:
    """The common type of several types, by NumPy's promotion."""
    if len(set(types)) == 1:
        return types[0]
    return dtype_of(np.result_type(*map(computed, types)))


def literal(value: object, dtype: DType | None = None) -> Literal:
    """A number as a literal, by default in the type of the number."""
    if isinstance(value, np.generic):
        own = dtype_of(value.dtype, "A number")
        return Literal(np.asarray(value, computed(own)).item(), dtype or own)
    if isinstance(value, bool):
        return Literal(value, B)
    assert isinstance(value, int | float)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise OverflowError(f"Python integer {value} is beyond 64 bits")
    return Literal(value, dtype or (D if isinstance(value, float) else I64))


def meeting(a: Expr | bool | int | float, b: Expr | bool | int | float) -> tuple[Expr, Expr]:
    """Two values in NumPy's common type, to which Python numbers adapt."""
    if isinstance(a, bool | int | float) and isinstance(b, bool | int | float):
        dtype = dtype_of(np.result_type(np.asarray(a), np.asarray(b)))
    elif isinstance(a, bool | int | float) or isinstance(b, bool | int | float):
        dtypes = (v if isinstance(v, bool | int | float) else computed(v.dtype) for v in (a, b))
        dtype = dtype_of(np.result_type(*dtypes))
    else:
        dtype = met(a.dtype, b.dtype)
    operands = (
        Literal(dtype.numpy.type(v).item(), dtype)
        if isinstance(v, bool | int | float)
        else cast(v, dtype)
        for v in (a, b)
    )
    return next(operands), next(operands)


# ---- definitions, over arguments of the types of NumPy's loop


def _not(a: Expr) -> Expr:
    if isinstance(a, Apply) and a.fn == "not":
        return a.args[0]
    return apply("not", a)


def choose(condition: Expr, then: Expr, otherwise: Expr) -> Expr:
    """CASE WHEN condition THEN … ELSE … END."""
    if isinstance(condition, Literal):
        return then if condition.value else otherwise
    return apply("if", condition, then, otherwise)


def number(value: float, like: Expr) -> Literal:
    """A number in the type of an expression."""
    dtype = like.dtype
    return Literal(float(value) if dtype.is_float else int(value), dtype)


def _never_nan(e: Expr) -> bool:
    if isinstance(e, Literal):
        return not (isinstance(e.value, float) and math.isnan(e.value))
    if isinstance(e, Apply) and e.fn == "cast":
        return _never_nan(e.args[0])
    return not e.dtype.is_float


def _guarded(e: Expr, maybe: Expr) -> Expr:
    """The condition where a value is not NaN."""
    return e if _never_nan(maybe) else apply("and", e, _not(apply("isnan", maybe)))


def less(a: Expr, b: Expr) -> Expr:
    """A < b; false with NaN."""
    return _guarded(apply("lt", a, b), b)


def less_equal(a: Expr, b: Expr) -> Expr:
    """A <= b; false with NaN."""
    return _guarded(apply("le", a, b), b)


def equal(a: Expr, b: Expr) -> Expr:
    """A = b; false with NaN."""
    if a == b:
        return Literal(True, B) if _never_nan(a) else _not(apply("isnan", a))
    same = apply("eq", a, b)
    return same if _never_nan(a) or _never_nan(b) else _guarded(same, a)


def not_equal(a: Expr, b: Expr) -> Expr:
    """A <> b; true with NaN."""
    if a == b:
        return Literal(False, B) if _never_nan(a) else apply("isnan", a)
    other = apply("ne", a, b)
    return other if _never_nan(a) or _never_nan(b) else apply("or", other, apply("isnan", a))


def _add(a: Expr, b: Expr) -> Expr:
    return apply("or" if a.dtype is B else "add", a, b)


def _multiply(a: Expr, b: Expr) -> Expr:
    return apply("and" if a.dtype is B else "mul", a, b)


def maximum(a: Expr, b: Expr) -> Expr:
    """The greater; NaN with NaN."""
    return apply("or" if a.dtype is B else "greatest", a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    """The less; NaN with NaN, which LEAST skips."""
    if a.dtype is B:
        return apply("and", a, b)
    if _never_nan(a) and _never_nan(b):
        return apply("least", a, b)
    if _never_nan(b):
        return choose(apply("isnan", a), a, apply("least", a, b))
    return apply("neg", apply("greatest", apply("neg", a), apply("neg", b)))


def _fmax(a: Expr, b: Expr) -> Expr:
    """The greater, without NaN where there is another value."""
    if _never_nan(a) and _never_nan(b):
        return maximum(a, b)
    return choose(apply("isnan", a), b, choose(apply("isnan", b), a, apply("greatest", a, b)))


def _fmin(a: Expr, b: Expr) -> Expr:
    """The less, without NaN where there is another value."""
    if _never_nan(a) and _never_nan(b):
        return minimum(a, b)
    return choose(apply("isnan", a), b, choose(apply("isnan", b), a, apply("least", a, b)))


def _remainder(a: Expr, b: Expr) -> Expr:
    """The rest of a division, with the divisor's sign, also of 0."""
    rest = apply("mod", a, b)
    remainder = choose(_opposite(rest, b), apply("add", rest, b), rest)
    if not a.dtype.is_float:
        return remainder
    signed = choose(apply("lt", b, number(0, b)), number(-0.0, a), number(0, a))
    if isinstance(b, Literal):
        signed = number(-0.0 if b.value < 0 else 0.0, a)
    return choose(apply("eq", rest, number(0, rest)), signed, remainder)


def _opposite(rest: Expr, b: Expr) -> Expr:
    """Whether a rest is not 0, and of another sign than the divisor."""
    zero = number(0, b)
    if isinstance(b, Literal) and b.value > 0:
        return apply("lt", rest, zero)
    opposite = apply("ne", apply("lt", b, zero), apply("lt", rest, zero))
    opposite = apply("and", apply("ne", rest, zero), opposite)
    return _guarded(opposite, rest)


def _floor_divide(a: Expr, b: Expr) -> Expr:
    if not a.dtype.is_float:
        quotient, rest = apply("idiv", a, b), apply("mod", a, b)
        return choose(_opposite(rest, b), apply("sub", quotient, number(1, a)), quotient)
    rest = apply("mod", a, b)
    quotient = apply("round", apply("div", apply("sub", a, rest), b))
    less_ = choose(_opposite(rest, b), number(1, a), number(0, a))
    zero = number(0, a)
    quotient = apply("sub", quotient, less_)
    of_zero = choose(apply("eq", a, zero), apply("div", a, b), zero)
    quotient = choose(apply("eq", quotient, zero), of_zero, quotient)
    if isinstance(b, Literal) and b.value != 0:
        return quotient
    return choose(apply("eq", b, number(0, b)), apply("div", a, b), quotient)


def _power(a: Expr, b: Expr) -> Expr:
    if isinstance(b, Literal) and b.value == 2 and b.dtype is not B:
        return apply("mul", a, a)
    if a.dtype.is_float:
        if isinstance(b, Literal) and b.value == 0.5:
            return apply("sqrt", a)
        return apply("pow", a, b)
    if isinstance(b, Literal) and 0 <= b.value <= 8:
        power: Expr = number(1, a)
        for n in range(int(b.value)):
            power = a if n == 0 else apply("mul", power, a)
        return power
    raise untraceable("An integer to a power that is no small literal", "Convert it to float64.")


def _float_power(a: Expr, b: Expr) -> Expr:
    """As C's pow, where `_power` takes the root of -inf as NumPy's power does."""
    return apply("pow", a, b)


def _sign(a: Expr) -> Expr:
    sign = cast(apply("sign", a), a.dtype)
    return sign if not a.dtype.is_float else choose(apply("isnan", a), a, sign)


def _rint(a: Expr) -> Expr:
    """The nearest integer, halves to even; a zero keeps the sign of the argument."""
    size = apply("abs", a)
    near = choose(apply("lt", size, number(2.0**52, a)), cast(cast(a, I64), a.dtype), a)
    return choose(apply("le", size, number(0.5, a)), apply("trunc", a), near)


def _expm1(a: Expr) -> Expr:
    half = apply("div", a, number(2, a))
    exact = apply("mul", apply("mul", number(2, a), apply("exp", half)), apply("sinh", half))
    near = apply("lt", apply("abs", a), number(1, a))
    return choose(near, exact, apply("sub", apply("exp", a), number(1, a)))


def _log1p(a: Expr) -> Expr:
    one, two = number(1, a), number(2, a)
    exact = apply("mul", two, apply("atanh", apply("div", a, apply("add", two, a))))
    return choose(
        apply("lt", apply("abs", a), number(0.5, a)), exact, apply("ln", apply("add", one, a))
    )


def _logaddexp(a: Expr, b: Expr) -> Expr:
    """ln(eᵃ + eᵇ); two that are equal, infinities too, have half of its derivative each."""
    apart = apply("neg", apply("abs", apply("sub", a, b)))
    sum_ = apply("add", maximum(a, b), _log1p(apply("exp", apart)))
    same = apply("add", _half(a), _half(b))
    return choose(apply("eq", a, b), apply("add", same, number(math.log(2), a)), sum_)


def _half(a: Expr) -> Expr:
    return number(a.value / 2, a) if isinstance(a, Literal) else apply("mul", a, number(0.5, a))


def _hypot(a: Expr, b: Expr) -> Expr:
    """√(a² + b²) by the greater one, so that no square overflows or vanishes."""
    far = apply("or", apply("isinf", a), apply("isinf", b))
    a, b = apply("abs", a), apply("abs", b)
    most = apply("greatest", a, b)
    part = apply("div", apply("least", a, b), most)
    root = apply("sqrt", apply("add", number(1, a), apply("mul", part, part)))
    near = choose(apply("eq", most, number(0, a)), most, apply("mul", most, root))
    return choose(far, number(math.inf, a), near)


def _gammaln(a: Expr) -> Expr:
    """LGAMMA, which SciPy has as -inf at -inf, and C as inf."""
    return choose(apply("eq", a, number(-math.inf, a)), a, apply("lgamma", a))


def sigmoid(a: Expr) -> Expr:
    """SIGMOID(a)."""
    return apply("sigmoid", a)


def truth(a: Expr) -> Expr:
    """Whether a value is not 0; NaN is not."""
    return a if a.dtype is B else not_equal(a, number(0, a))


def _plain(fn: str) -> Build:
    return lambda *args: apply(fn, *args)


def _times(by: float) -> Build:
    return lambda a: apply("mul", a, number(by, a))


def _whole(fn: str) -> Build:
    return lambda a: a if not a.dtype.is_float else apply(fn, a)


def _bits(whole: str, truths: str) -> Build:
    return lambda a, b: apply(truths if a.dtype is B else whole, a, b)


DEFINITIONS: dict[str, Build] = {
    "add": _add, "subtract": _plain("sub"), "multiply": _multiply, "divide": _plain("div"),
    "true_divide": _plain("div"), "floor_divide": _floor_divide, "remainder": _remainder,
    "mod": _remainder, "fmod": _plain("mod"), "negative": _plain("neg"), "positive": lambda a: a,
    "power": _power, "float_power": _float_power, "square": lambda a: _multiply(a, a),
    "reciprocal": lambda a: apply("div" if a.dtype.is_float else "idiv", number(1, a), a),
    "sqrt": _plain("sqrt"), "cbrt": _plain("cbrt"),
    "absolute": lambda a: a if a.dtype is B else apply("abs", a),
    "fabs": _plain("abs"), "sign": _sign, "floor": _whole("floor"), "ceil": _whole("ceil"),
    "trunc": _whole("trunc"), "rint": _rint, "exp": _plain("exp"),
    "exp2": lambda a: apply("pow", number(2, a), a), "expm1": _expm1, "log": _plain("ln"),
    "log2": _plain("log2"), "log10": _plain("log10"), "log1p": _log1p, "logaddexp": _logaddexp,
    "sin": _plain("sin"), "cos": _plain("cos"), "tan": _plain("tan"), "arcsin": _plain("asin"),
    "arccos": _plain("acos"), "arctan": _plain("atan"), "arctan2": _plain("atan2"),
    "sinh": _plain("sinh"), "cosh": _plain("cosh"), "tanh": _plain("tanh"),
    "arcsinh": _plain("asinh"), "arccosh": _plain("acosh"), "arctanh": _plain("atanh"),
    "hypot": _hypot,
    "degrees": _plain("degrees"), "rad2deg": _plain("degrees"), "radians": _plain("radians"),
    "deg2rad": _plain("radians"), "maximum": maximum, "minimum": minimum, "fmax": _fmax,
    "fmin": _fmin,
    "equal": equal, "not_equal": not_equal, "less": less, "less_equal": less_equal,
    "greater": lambda a, b: less(b, a), "greater_equal": lambda a, b: less_equal(b, a),
    "logical_and": lambda a, b: apply("and", truth(a), truth(b)),
    "logical_or": lambda a, b: apply("or", truth(a), truth(b)),
    "logical_xor": lambda a, b: apply("ne", truth(a), truth(b)),
    "logical_not": lambda a: _not(truth(a)),
    "bitwise_and": _bits("bitand", "and"), "bitwise_or": _bits("bitor", "or"),
    "bitwise_xor": _bits("xor", "ne"),
    "invert": lambda a: _not(a) if a.dtype is B else apply("sub", number(-1, a), a),
    "isnan": lambda a: apply("isnan", a) if a.dtype.is_float else Literal(False, B),
    "isinf": lambda a: apply("isinf", a) if a.dtype.is_float else Literal(False, B),
    "isfinite": lambda a: apply("isfinite", a) if a.dtype.is_float else Literal(True, B),
    "erf": _plain("erf"), "erfc": erfc, "expit": sigmoid, "gammaln": _gammaln,
}  # fmt: skip
"""Ufuncs of NumPy and of scipy.special by name."""

_ALIKE = {"conjugate": "positive", "bitwise_not": "invert", "abs": "absolute", "pow": "power"}


def define(
    ufunc: np.ufunc,
    args: Sequence[Expr | bool | int | float],
    dtype: Any = None,
    casting: Any = "same_kind",
) -> Expr:
    """A ufunc over expressions and weak Python numbers.

    Args:
        ufunc: The function.
        args: Its arguments.
        dtype: The type to compute in, if that is not what NumPy chooses.
        casting: NumPy's rule for conversions to it.

    Raises:
        NotSupportedError: einsql lacks the function, or the types.
        OverflowError: A Python number does not fit the type it meets.
    """
    name = _ALIKE.get(ufunc.__name__, ufunc.__name__)
    if name not in DEFINITIONS:
        raise untraceable(
            f"np.{ufunc.__name__}",
            "Spell it with functions that can be traced; the page "
            '"NumPy functions and PyTorch modules as SQL" lists them.',
        )
    loop = _loop(ufunc, args, dtype, casting)
    if name in _COMPARISONS:
        args = [_reachable(a, at) for a, at in zip(args, loop, strict=False)]
        if any(isinstance(a, float) and math.isinf(a) for a in args) and not loop[0].is_float:
            return _beyond(name, args)
    typed: list[Expr] = []
    for a, at in zip(args, loop, strict=False):
        if isinstance(a, bool | int | float):
            typed.append(Literal(at.numpy.type(a).item(), at))
        else:
            typed.append(cast(_as_number(a), at))
    expr = DEFINITIONS[name](*typed)
    return expr if isinstance(expr, Affine) else cast(expr, loop[-1])


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}


def _reachable(a: Expr | bool | int | float, dtype: DType) -> Expr | bool | int | float:
    """A whole number, or infinity where a type of integers does not reach it."""
    if not isinstance(a, int) or isinstance(a, bool) or not dtype.is_integer:
        return a
    info = np.iinfo(dtype.numpy)
    return a if info.min <= a <= info.max else math.copysign(math.inf, a)


def _beyond(name: str, args: Sequence[Expr | bool | int | float]) -> Expr:
    """The comparison of integers with a number beyond all of them."""
    a, b = (x if isinstance(x, float) else 0.0 for x in args)
    return Literal(_COMPARISONS[name](a, b), B)


def _as_number(a: Expr) -> Expr:
    """A key that is known to be one number."""
    return Literal(a.constant, I64) if isinstance(a, Affine) and not a.terms else a


def _loop(
    ufunc: np.ufunc, args: Sequence[Expr | bool | int | float], dtype: Any, casting: Any
) -> list[DType]:
    """The types of arguments and result that NumPy computes in."""
    operands: list[Any] = []
    for a in args:
        if isinstance(a, bool):
            operands.append(np.dtype(bool))
        else:
            operands.append(type(a) if isinstance(a, int | float) else computed(a.dtype))
    if all(isinstance(g, type) for g in operands):  # NumPy wants one strong type
        operands = [np.dtype(np.int64 if g is int else np.float64) for g in operands]
    options: dict[str, Any] = {"casting": casting}
    if dtype is not None:
        options["signature"] = (*[None] * ufunc.nin, computed(dtype_of(dtype)))
    resolved = ufunc.resolve_dtypes((*operands, *[None] * ufunc.nout), **options)
    return [F if d == np.float16 else dtype_of(d, f"np.{ufunc.__name__}") for d in resolved]
