"""NumPy implementations, interval rules and failures of the scalar functions.

Floats are ordered as DuckDB orders them: NaN equals NaN and is greater than infinity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import mul
from typing import Any

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType

Array = Any  # an ndarray or NumPy scalar of any dtype
Interval = tuple[int, int] | None
"""Inclusive bounds of an integer expression, or None if they are unknown."""

B, I32, I64 = DType.BOOLEAN, DType.INTEGER, DType.BIGINT
H, F, D = DType.HALF, DType.FLOAT, DType.DOUBLE
BF = DType.BFLOAT16


@dataclass(frozen=True, slots=True)
class Failure:
    """The condition under which a function raises, in NumPy and in the text of kernels."""

    reason: str
    numpy: Callable[..., Array]
    numba: str


def _wide(op: str) -> Callable[[Array, Array], Array]:
    """A test for overflow of an INTEGER or TINYINT operation, computed in int64."""

    def test(a: Array, b: Array) -> Array:
        x, y = np.asarray(a, np.int64), np.asarray(b, np.int64)
        r = x + y if op == "+" else x - y if op == "-" else x * y
        info = np.iinfo(np.asarray(a).dtype)
        return (r < info.min) | (r > info.max)

    return test


def add_overflows(a: Array, b: Array) -> Array:
    """True where a BIGINT sum overflows."""
    r = a + b
    return ((a ^ r) & (b ^ r)) < 0


def sub_overflows(a: Array, b: Array) -> Array:
    """True where a BIGINT difference overflows."""
    return ((a ^ b) & (a ^ (a - b))) < 0


def mul_overflows(a: Array, b: Array) -> Array:
    """True where a BIGINT product overflows."""
    # A wrapped product differs by a multiple of 2^64, which division by `a` detects.
    a, b = np.broadcast_arrays(a, b)
    wrapped = a * b
    safe = np.where(a == 0, 1, a)
    least = np.iinfo(np.int64).min
    undone = (a != 0) & (np.floor_divide(wrapped, np.where(safe == -1, 1, safe)) != b)
    minus = (a == -1) & (b == least)
    return np.where(a == -1, minus, undone)


def overflow(what: str, op: str, exact: Callable[..., Array], name: str) -> dict[DType, Failure]:
    """The failures of an operation on integers, by type."""

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


def least(what: str) -> dict[DType, Failure]:
    """The failures of an operation at the least integer, by type."""
    return {
        t: Failure(
            f"Overflow in {what} of {t.value}",
            lambda a, least=t.range[0]: np.asarray(a == least),
            f"{{0}} == {spelled}",
        )
        for t, spelled in _LEAST.items()
    }


def corners(op: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval]:
    """The interval rule of a function with extremes at the ends of its arguments' intervals."""

    def through(a: Interval, b: Interval) -> Interval:
        if a is None or b is None:
            return None
        ends = [op(x, y) for x in a for y in b]
        return min(ends), max(ends)

    return through


def _truncated(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a < 0) == (b < 0) else -q


def idiv_interval(a: Interval, b: Interval) -> Interval:
    """The interval of a truncated quotient by a positive number."""
    return None if b is None or b[0] <= 0 else corners(_truncated)(a, b)


def mod_interval(a: Interval, b: Interval) -> Interval:
    """The interval of a remainder."""
    if b is None or (b[0] <= 0 and b[1] >= -1):  # the least integer overflows with -1
        return None
    most = max(abs(b[0]), abs(b[1]))
    if b[0] == b[1] and a is not None and a[0] >= 0 and a[0] // most == a[1] // most:
        return a[0] % most, a[1] % most
    if a is None:
        return 1 - most, most - 1
    return max(1 - most, min(a[0], 0)), min(most - 1, max(a[1], 0))


def within_interval(a: Interval, limit: Interval) -> Interval:
    """The interval of a number within a checked limit."""
    if a is None or limit is None or not (-limit[0] < a[0] and a[1] < limit[0]):
        return None
    return a


def abs_interval(a: Interval) -> Interval:
    """The interval of an absolute value."""
    if a is None:
        return None
    low = 0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1]))
    return low, max(abs(a[0]), abs(a[1]))


def hull(_: Interval, a: Interval, b: Interval) -> Interval:
    """The interval of a choice between two values."""
    return None if a is None or b is None else (min(a[0], b[0]), max(a[1], b[1]))


def both(pick: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval]:
    """The interval rule of a function that increases in both arguments."""

    def through(a: Interval, b: Interval) -> Interval:
        return None if a is None or b is None else (pick(a[0], b[0]), pick(a[1], b[1]))

    return through


def is_float_array(a: Array) -> bool:
    """True for arrays that can hold NaN."""
    return np.asarray(a).dtype.kind == "f"


def _is_number(a: Array) -> bool:
    """Whether an operand is one number and not NaN, beside which fewer tests suffice."""
    return not np.ndim(a) and bool(a == a)


def equal(a: Array, b: Array) -> Array:
    """The comparison a = b, with NaN equal to NaN."""
    same = np.asarray(a == b)
    if _is_number(a) or _is_number(b):
        return same
    return same | ((a != a) & (b != b)) if is_float_array(a) else same


def less(a: Array, b: Array) -> Array:
    """The comparison a < b, with NaN greater than all numbers."""
    if _is_number(b):
        return np.asarray(a < b)
    if _is_number(a):
        return ~np.asarray(b <= a)
    below = np.asarray(a < b)
    return below | ((a == a) & (b != b)) if is_float_array(a) else below


def maximum(a: Array, b: Array) -> Array:
    """The larger value, with NaN greater than all numbers."""
    return np.where(less(a, b), b, a)


def minimum(a: Array, b: Array) -> Array:
    """The smaller value, with NaN greater than all numbers."""
    return np.where(less(b, a), b, a)


def trunc_divide(a: Array, b: Array) -> Array:
    """The operator `//`: truncated for integers, plain division for floats."""
    if is_float_array(a):
        return a / b
    safe = np.where(b == 0, 1, b).astype(np.asarray(b).dtype)
    least = np.iinfo(safe.dtype).min
    safe = np.where((safe == -1) & (a == least), 1, safe)
    q = np.floor_divide(a, safe)
    return q + ((q < 0) & (q * safe != a))


def remainder(a: Array, b: Array) -> Array:
    """The operator `%`, with the dividend's sign."""
    if is_float_array(a):
        return np.fmod(a, b)
    safe = np.where((b == 0) | (b == -1), 1, b)
    return np.fmod(a, safe)


def floored_remainder(a: Array, b: Array) -> Array:
    """The function FMOD, with the divisor's sign; a zero is +0.0, as in DuckDB."""
    rest: Array = np.remainder(a, b) + a.dtype.type(0)
    return rest


def round_away(a: Array) -> Array:
    """Rounds to the nearest integer, halves away from zero."""
    if not is_float_array(a):
        return a
    truncated = np.trunc(a)
    return np.copysign(truncated + np.where(np.abs(a - truncated) >= 0.5, np.sign(a), 0), a)


def power(a: Array, b: Array) -> Array:
    """The operator `**`."""
    # np.power takes a square root for a scalar 0.5, which differs at -0.0 and -inf.
    return np.float_power(a, b).astype(np.asarray(a).dtype)


def beyond_by(multiply: Callable[[Array, Array], Array]) -> Callable[[Array, Array, Array], Array]:
    """Creates the function `beyond` for arrays, loops and GPUs.

    Args:
        multiply: A product of DOUBLEs that is rounded separately, without a fused addition.
    """

    def beyond(a: Array, b: Array, product: Array) -> Array:
        """The exact a · b less the DOUBLE `product` nearest to it, by Dekker's product."""
        # The halves have 26 bits, so that products of them are exact.
        spread_a, spread_b = multiply(134217729.0, a), multiply(134217729.0, b)
        front_a, front_b = spread_a - (spread_a - a), spread_b - (spread_b - b)
        back_a, back_b = a - front_a, b - front_b
        return (
            (front_a * front_b - product) + front_a * back_b + back_a * front_b
        ) + back_a * back_b

    return beyond


def ratio_by(multiply: Callable[[Array, Array], Array]) -> Callable[[Array, Array, Array], Array]:
    """Creates the function `ratio` without branches, for arrays, loops and GPUs.

    Args:
        multiply: A product of DOUBLEs that is rounded separately, without a fused addition.
    """
    beyond = beyond_by(multiply)

    def ratio(high: Array, low: Array, count: Array) -> Array:
        """(high · 2^32 + low) / count of integers, rounded once.

        The total is the unevaluated sum of two DOUBLEs, and the quotient is corrected by its
        exact remainder. The result is the DOUBLE nearest to the quotient if the total is below
        2^103 and the count below 2^51.
        """
        high = high + (low >> 32)
        most, middle = np.float64(high >> 32) * 2.0**64, np.float64(high & 0xFFFFFFFF) * 2.0**32
        least, by = np.float64(low & 0xFFFFFFFF), np.float64(count)
        # The first summand is 0 or the larger one, so that the difference is the rounding error.
        upper = most + middle
        total = upper + least
        error = (middle - (upper - most)) + (least - (total - upper))
        near = total / by
        product = multiply(near, by)
        return near + (((total - product) - beyond(near, by, product)) + error) / by

    return ratio


ratio = ratio_by(mul)
"""(high · 2^32 + low) / count of integers, rounded once."""
beyond = beyond_by(mul)
"""The exact product of two DOUBLEs less the DOUBLE nearest to it."""


def scaled_round(a: Array, scale: Array) -> Array:
    """The integer nearest to the exact a · scale, halves away from zero.

    A product that is a half after rounding may be below the half before, as 2.675 · 100 is.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        product = a * scale
        nearest = round_away(product)
        away = nearest - product
        below = (np.abs(away) == 0.5) & (away * beyond(a, scale, product) < 0)
    return np.where(below, nearest - np.copysign(1.0, product), nearest)


def settled(spread: Array, low: Array, high: Array) -> Array:
    """A sum of squared distances; if it is not finite and the values are equal, 0 or NaN."""
    finite = np.isfinite(spread)
    if np.all(finite):
        return spread
    return np.where(finite | ~equal(low, high), spread, high - low)


def sigmoid(a: Array) -> Array:
    """The function 1 / (1 + EXP(-a)), without overflow."""
    decay = np.asarray(np.abs(a))
    np.exp(np.negative(decay, decay), decay)
    top = np.asarray(np.exp(np.minimum(a, 0)))  # selecting by sign takes longer than computing both
    np.add(decay, 1, decay)
    return np.divide(top, decay, top)


def erf(a: Array) -> Array:
    """The error function."""
    from scipy.special import erf  # scipy.special costs 30 ms, few statements need it

    return erf(a)


def lgamma(a: Array) -> Array:
    """The logarithm of the gamma function."""
    from scipy.special import gammaln  # as above

    return np.where(a == -math.inf, math.inf, gammaln(a))  # SciPy returns -inf at -inf, unlike C


INT_DIV_FAILS = {
    t: Failure(
        "Division by zero or overflow in integer division",
        lambda a, b: np.asarray((b == 0) | ((b == -1) & (a == np.iinfo(np.asarray(a).dtype).min))),
        f"{{1}} == 0 or ({{1}} == -1 and {{0}} == {spelled})",
    )
    for t, spelled in _LEAST.items()
}
MOD_FAILS = {
    t: Failure("Division by zero", lambda a, b: np.asarray(b == 0), "{1} == 0") for t in _LEAST
}
DIGITS_FAIL = {
    I64: Failure(
        "A DECIMAL has more digits than its type",
        lambda a, limit: np.asarray((a >= limit) | (a <= -limit)),
        "{0} >= {1} or {0} <= -{1}",
    )
}
FLOAT_IDIV = Failure("Division by zero", lambda a, b: np.asarray(b == 0), "{1} == 0")
