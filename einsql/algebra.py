"""Scalar functions and reductions: laws, types and spellings, one entry in one place.

An entry gives the function's result type, its laws (what rules may rely on), when it
raises, how an interval of integers passes through it, and its spelling in NumPy and in
generated Numba source. In Numba templates `{0}`, `{1}` are the arguments, already of
the entry's argument types; the caller casts the result to the call's type.

Floats are ordered as DuckDB orders them: NaN equals NaN and lies above infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from einsql.schema import DType
from einsql.typing_rules import (
    TypeRule,
    arithmetic,
    bits,
    choose,
    compare,
    conditional,
    division,
    float_test,
    logic,
    real,
    rounding,
    rounding_keeps_integers,
    sign,
)

Array = Any  # an ndarray or NumPy scalar of whatever dtype the call has
Interval = tuple[int, int] | None
"""Inclusive bounds of an integer expression, or None when nothing is known."""

B, I32, I64 = DType.BOOLEAN, DType.INTEGER, DType.BIGINT
H, F, D = DType.HALF, DType.FLOAT, DType.DOUBLE
BF = DType.BFLOAT16


@dataclass(frozen=True, slots=True)
class Failure:
    """When a function raises: a NumPy predicate and its Numba twin over the arguments."""

    reason: str
    numpy: Callable[..., Array]
    numba: str


@dataclass(frozen=True, slots=True)
class Function:
    """A scalar function and everything einsql knows of it.

    Attributes:
        numpy: Takes arrays of the argument types; the caller casts the result.
        numba: Source template over `{0}`, `{1}`, …
        fails: Maps an argument type to the failure it can have.
        interval: Integer interval of the result from those of the arguments.
        identity: Value e with f(x, e) = x, bitwise, or None.
        annihilator: Value z with f(x, z) = z for every finite x, or None.
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
    cheap: bool = False


def _wide(op: str) -> Callable[[Array, Array], Array]:
    """Overflow of an INTEGER or TINYINT operation, found in int64."""

    def test(a: Array, b: Array) -> Array:
        x, y = np.asarray(a, np.int64), np.asarray(b, np.int64)
        r = x + y if op == "+" else x - y if op == "-" else x * y
        info = np.iinfo(np.asarray(a).dtype)
        return (r < info.min) | (r > info.max)

    return test


def _add_overflows(a: Array, b: Array) -> Array:
    r = a + b
    return ((a ^ r) & (b ^ r)) < 0


def _sub_overflows(a: Array, b: Array) -> Array:
    return ((a ^ b) & (a ^ (a - b))) < 0


def _mul_overflows(a: Array, b: Array) -> Array:
    # A wrapped product is off by a multiple of 2^64, which no division by `a` hides.
    a, b = np.broadcast_arrays(a, b)
    wrapped = a * b
    safe = np.where(a == 0, 1, a)
    least = np.iinfo(np.int64).min
    undone = (a != 0) & (np.floor_divide(wrapped, np.where(safe == -1, 1, safe)) != b)
    minus = (a == -1) & (b == least)
    return np.where(a == -1, minus, undone)


def _overflow(what: str, op: str, exact: Callable[..., Array], name: str) -> dict[DType, Failure]:
    def narrow(dtype: DType) -> Failure:
        lo, hi = dtype.range
        r = f"(np.int64({{0}}) {op} np.int64({{1}}))"
        return Failure(
            f"Overflow in {what} of {dtype.value}", _wide(op), f"{r} < {lo} or {r} > {hi}"
        )

    return {
        DType.TINYINT: narrow(DType.TINYINT),
        I32: narrow(I32),
        I64: Failure(f"Overflow in {what} of BIGINT", exact, f"{name}_overflows({{0}}, {{1}})"),
    }


_LEAST = {
    DType.TINYINT: "-128",
    I32: "-2147483648",
    I64: "(-9223372036854775807 - 1)",  # source text has no negative literals
}


def _least(what: str) -> dict[DType, Failure]:
    def at(dtype: DType) -> Failure:
        lo = dtype.range[0]
        return Failure(
            f"Overflow in {what} of {dtype.value}",
            lambda a: np.asarray(a == lo),
            f"{{0}} == {_LEAST[dtype]}",
        )

    return {t: at(t) for t in (DType.TINYINT, I32, I64)}


def _corners(op: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval]:
    def through(a: Interval, b: Interval) -> Interval:
        if a is None or b is None:
            return None
        ends = [op(x, y) for x in a for y in b]
        return min(ends), max(ends)

    return through


def _truncated(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def _idiv_interval(a: Interval, b: Interval) -> Interval:
    if a is None or b is None or b[0] <= 0:
        return None
    ends = [_truncated(x, y) for x in a for y in b]
    return min(ends), max(ends)


def _mod_interval(a: Interval, b: Interval) -> Interval:
    if b is None or (b[0] <= 0 and b[1] >= -1):  # by -1 the least integer overflows
        return None
    most = max(abs(b[0]), abs(b[1]))
    if b[0] == b[1] and a is not None and a[0] >= 0 and a[0] // most == a[1] // most:
        return a[0] % most, a[1] % most
    if a is None:
        return 1 - most, most - 1
    return max(1 - most, min(a[0], 0)), min(most - 1, max(a[1], 0))


def _within_interval(a: Interval, limit: Interval) -> Interval:
    if a is None or limit is None or not (-limit[0] < a[0] and a[1] < limit[0]):
        return None
    return a


def _abs_interval(a: Interval) -> Interval:
    if a is None:
        return None
    low = 0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))
    return low, max(abs(a[0]), abs(a[1]))


def _hull(_: Interval, a: Interval, b: Interval) -> Interval:
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def _both(pick: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval]:
    def through(a: Interval, b: Interval) -> Interval:
        return None if a is None or b is None else (pick(a[0], b[0]), pick(a[1], b[1]))

    return through


def is_float_array(a: Array) -> bool:
    """True for arrays that can hold NaN."""
    return np.asarray(a).dtype.kind == "f"


def equal(a: Array, b: Array) -> Array:
    """A = b with NaN equal to NaN."""
    same = np.asarray(a == b)
    return same | ((a != a) & (b != b)) if is_float_array(a) else same


def less(a: Array, b: Array) -> Array:
    """A < b with NaN above everything."""
    below = np.asarray(a < b)
    return below | ((a == a) & (b != b)) if is_float_array(a) else below


def _maximum(a: Array, b: Array) -> Array:
    return np.where(less(a, b), b, a)


def _minimum(a: Array, b: Array) -> Array:
    return np.where(less(b, a), b, a)


def _trunc_divide(a: Array, b: Array) -> Array:
    if is_float_array(a):
        return a / b
    safe = np.where(b == 0, 1, b).astype(np.asarray(b).dtype)
    least = np.iinfo(safe.dtype).min
    safe = np.where((safe == -1) & (a == least), 1, safe)
    q = np.floor_divide(a, safe)
    return q + ((q < 0) & (q * safe != a))


def _remainder(a: Array, b: Array) -> Array:
    if is_float_array(a):
        return np.fmod(a, b)
    safe = np.where((b == 0) | (b == -1), 1, b)
    return np.fmod(a, safe)


def _floored_remainder(a: Array, b: Array) -> Array:
    return a - np.floor(a / b) * b


def _round_away(a: Array) -> Array:
    if not is_float_array(a):
        return a
    whole = np.trunc(a)
    return np.copysign(whole + np.where(np.abs(a - whole) >= 0.5, np.sign(a), 0), a)


def _power(a: Array, b: Array) -> Array:
    # np.power takes a square root for a scalar 0.5, which differs at -0.0 and -inf.
    return np.float_power(a, b).astype(np.asarray(a).dtype)


def _erf(a: Array) -> Array:
    from scipy.special import erf  # scipy.special costs 30 ms, few statements need it

    return erf(a)


def _lgamma(a: Array) -> Array:
    from scipy.special import gammaln  # as above

    return np.where(a == -math.inf, math.inf, gammaln(a))  # SciPy says -inf there, C does not


_INT_DIV_FAILS = {
    t: Failure(
        "Division by zero or overflow in integer division",
        lambda a, b: np.asarray((b == 0) | ((b == -1) & (a == np.iinfo(np.asarray(a).dtype).min))),
        f"{{1}} == 0 or ({{1}} == -1 and {{0}} == {_LEAST[t]})",
    )
    for t in (DType.TINYINT, I32, I64)
}
_DIGITS_FAIL = {
    I64: Failure(
        "A DECIMAL has more digits than its type",
        lambda a, limit: np.asarray((a >= limit) | (a <= -limit)),
        "{0} >= {1} or {0} <= -{1}",
    )
}
_FLOAT_IDIV = Failure("Division by zero", lambda a, b: np.asarray(b == 0), "{1} == 0")

_ENTRIES: tuple[Function, ...] = (
    Function("add", arithmetic, lambda a, b: a + b, "{0} + {1}", 2,
             _overflow("addition", "+", _add_overflows, "add"), _corners(lambda x, y: x + y),
             commutative=True, associative=True, cheap=True),
    Function("sub", arithmetic, lambda a, b: a - b, "{0} - {1}", 2,
             _overflow("subtraction", "-", _sub_overflows, "sub"), _corners(lambda x, y: x - y),
             cheap=True),
    Function("mul", arithmetic, lambda a, b: a * b, "{0} * {1}", 2,
             _overflow("multiplication", "*", _mul_overflows, "mul"), _corners(lambda x, y: x * y),
             commutative=True, associative=True, identity=1, annihilator=0, cheap=True),
    Function("div", division, lambda a, b: a / b, "{0} / {1}", 2, cheap=True, identity=1),
    Function("idiv", arithmetic, _trunc_divide, "idiv({0}, {1})", 2,
             {**_INT_DIV_FAILS, F: _FLOAT_IDIV, D: _FLOAT_IDIV}, _idiv_interval, cheap=True),
    Function("mod", arithmetic, _remainder, "remainder({0}, {1})", 2,
             _INT_DIV_FAILS, _mod_interval, cheap=True),
    Function("fmod", division, _floored_remainder, "{0} - np.floor({0} / {1}) * {1}", 2,
             cheap=True),
    Function("within", bits, lambda a, limit: a, "{0}", 2, _DIGITS_FAIL, _within_interval,
             cheap=True),
    Function("neg", arithmetic, lambda a: -a, "-{0}", 1, _least("negation"),
             lambda a: None if a is None else (-a[1], -a[0]), cheap=True),
    Function("abs", arithmetic, np.abs, "abs({0})", 1, _least("abs"), _abs_interval, cheap=True),
    Function("sign", sign, lambda a: np.where(a != a, 0, np.sign(a)),
             "(({0} > 0) - ({0} < 0))", interval=lambda a: (-1, 1), cheap=True),
    Function("eq", compare, equal, "eq({0}, {1})", 2, commutative=True, cheap=True),
    Function("ne", compare, lambda a, b: ~equal(a, b), "not eq({0}, {1})", 2,
             commutative=True, cheap=True),
    Function("lt", compare, less, "less({0}, {1})", 2, cheap=True),
    Function("le", compare, lambda a, b: ~less(b, a), "not less({1}, {0})", 2, cheap=True),
    Function("and", logic, np.logical_and, "({0} and {1})", 2, commutative=True,
             associative=True, identity=True, annihilator=False, cheap=True),
    Function("or", logic, np.logical_or, "({0} or {1})", 2, commutative=True,
             associative=True, identity=False, annihilator=True, cheap=True),
    Function("not", logic, np.logical_not, "not {0}", cheap=True),
    Function("if", conditional, np.where, "{1} if {0} else {2}", 3, interval=_hull, cheap=True),
    Function("bitand", bits, np.bitwise_and, "{0} & {1}", 2, commutative=True, associative=True,
             cheap=True),
    Function("bitor", bits, np.bitwise_or, "{0} | {1}", 2, commutative=True, associative=True,
             cheap=True),
    Function("xor", bits, np.bitwise_xor, "{0} ^ {1}", 2, commutative=True, associative=True,
             cheap=True),
    Function("greatest", choose, _maximum, "({1} if less({0}, {1}) else {0})", 2,
             interval=_both(max), commutative=True, associative=True, cheap=True),
    Function("least", choose, _minimum, "({1} if less({1}, {0}) else {0})", 2,
             interval=_both(min), commutative=True, associative=True, cheap=True),
    Function("floor", rounding, np.floor, "np.floor({0})", cheap=True),
    Function("ceil", rounding, np.ceil, "np.ceil({0})", cheap=True),
    Function("trunc", rounding_keeps_integers, np.trunc, "truncate({0})", cheap=True,
             interval=lambda a: a),
    Function("round", rounding_keeps_integers, _round_away, "round_away({0})", cheap=True,
             interval=lambda a: a),
    Function("isnan", float_test, np.isnan, "{0} != {0}", cheap=True),
    Function("isinf", float_test, np.isinf, "math.isinf({0})", cheap=True),
    Function("isfinite", float_test, np.isfinite, "math.isfinite({0})", cheap=True),
    Function("exp", real, np.exp, "exp({0})"),
    Function("ln", real, np.log, "log({0})"),
    Function("log2", real, np.log2, "log2({0})"),
    Function("log10", real, np.log10, "log10({0})"),
    Function("sqrt", real, np.sqrt, "math.sqrt({0})", cheap=True),
    Function("cbrt", real, np.cbrt, "np.cbrt({0})"),
    Function("pow", real, _power, "power({0}, {1})", 2),
    Function("sin", real, np.sin, "sin({0})"),
    Function("cos", real, np.cos, "cos({0})"),
    Function("tan", real, np.tan, "math.tan({0})"),
    Function("asin", real, np.arcsin, "np.arcsin({0})"),
    Function("acos", real, np.arccos, "np.arccos({0})"),
    Function("atan", real, np.arctan, "math.atan({0})"),
    Function("atan2", real, np.arctan2, "math.atan2({0}, {1})", 2),
    Function("sinh", real, np.sinh, "math.sinh({0})"),
    Function("cosh", real, np.cosh, "math.cosh({0})"),
    Function("tanh", real, np.tanh, "tanh({0})"),
    Function("asinh", real, np.arcsinh, "math.asinh({0})"),
    Function("acosh", real, np.arccosh, "np.arccosh({0})"),
    Function("atanh", real, np.arctanh, "np.arctanh({0})"),
    Function("degrees", real, np.degrees, "math.degrees({0})"),
    Function("radians", real, np.radians, "math.radians({0})"),
    Function("erf", real, _erf, "erf({0})"),
    Function("lgamma", real, _lgamma, "math.lgamma({0})"),
)  # fmt: skip

SCALARS: dict[str, Function] = {f.name: f for f in _ENTRIES}
"""Every scalar function by name; `cast` stands apart because it has two types."""


@dataclass(frozen=True, slots=True)
class Reduction:
    """A commutative, associative reduction with an identity.

    ARG_MIN and ARG_MAX contribute (argument, value) pairs and keep the argument of the
    extreme value, among equal values the least argument; `better` is set for them alone.

    Attributes:
        identity: Start of the running value for an output type; an empty group holds it.
        monoid: The scalar function combining two running values, or None for pairs.
        better: For pairs, the comparison `better(new, old)` that replaces the running pair.
        over: The scalar functions that distribute over this reduction, as `mul` does
            over SUM: x·(a + b) = x·a + x·b.
    """

    name: str
    identity: Callable[[DType], Any]
    monoid: str | None = None
    better: str | None = None
    idempotent: bool = False
    over: frozenset[str] = frozenset()

    @property
    def arity(self) -> int:
        """How many expressions a point contributes."""
        return 1 if self.better is None else 2


def _least_of(dtype: DType) -> Any:
    if dtype is B:
        return False
    return -math.inf if dtype.is_float else dtype.range[0]


def _greatest_of(dtype: DType) -> Any:
    if dtype is B:
        return True
    return math.nan if dtype.is_float else dtype.range[1]


_EXTREMES = frozenset({"add", "greatest", "least"})
REDUCTIONS: dict[str, Reduction] = {
    r.name: r
    for r in (
        Reduction("sum", lambda t: 0, "add", over=frozenset({"mul"})),
        Reduction("product", lambda t: 1, "mul"),
        Reduction("min", _greatest_of, "least", idempotent=True, over=_EXTREMES),
        Reduction("max", _least_of, "greatest", idempotent=True, over=_EXTREMES),
        Reduction("bool_or", lambda t: False, "or", idempotent=True, over=frozenset({"and"})),
        Reduction("bool_and", lambda t: True, "and", idempotent=True, over=frozenset({"or"})),
        Reduction("arg_min", lambda t: 0, better="less({0}, {1})", idempotent=True),
        Reduction("arg_max", lambda t: 0, better="less({1}, {0})", idempotent=True),
    )
}
"""Base reductions. AVG, VARIANCE, COUNT and LOGSUMEXP are spelled with these by the binder."""
