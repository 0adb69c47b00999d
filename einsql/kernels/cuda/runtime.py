"""Functions called by generated CUDA kernels, compiled by numba-cuda or run by its simulator.

Importing this module imports Numba, so only generated source does it. The functions avoid signed
overflow, which is undefined in compiled code, and bit casts, which the simulator lacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba.cuda
import numpy as np
from numba.core import config

from einsql.ir.functions import SCALARS, numeric

cuda: Any = numba.cuda  # untyped package
SIMULATED = bool(getattr(config, "ENABLE_CUDASIM"))  # noqa: B009 - numba sets it dynamically
_MOST = 9223372036854775807  # the greatest BIGINT, to detect overflow beforehand
_LEAST = -9223372036854775807 - 1  # the least BIGINT; Numba lacks it as a literal
_WHOLE = 4503599627370496.0  # 2^52, from which every DOUBLE is an integer


def _device(function: Callable[..., Any]) -> Any:
    """Compiles a device function; the simulator needs no compilation."""
    return function if SIMULATED else cuda.jit(device=True)(function)


def _mathematical(on_device: Callable[..., Any], simulated: Callable[..., Any]) -> Any:
    """A real function; Python's versions raise where CUDA's return infinity or NaN."""
    return simulated if SIMULATED else _device(on_device)


@_device
def less(a: Any, b: Any) -> Any:
    """A < b with NaN above everything."""
    return a < b or (a == a and b != b)  # only NaN differs from itself


@_device
def eq(a: Any, b: Any) -> Any:
    """A = b with NaN equal to NaN."""
    return a == b or (a != a and b != b)


@_device
def plus(a: Any, b: Any) -> Any:
    """A running sum and a new term."""
    return a + b


@_device
def times(a: Any, b: Any) -> Any:
    """A running product and a new factor."""
    return a * b


@_device
def minimum(old: Any, new: Any) -> Any:
    """A running minimum and a new value; any value replaces a running NaN."""
    return new if new < old or old != old else old


@_device
def maximum(old: Any, new: Any) -> Any:
    """A running maximum and a new value."""
    return new if old < new or new != new else old


@_device
def add_overflows(a: Any, b: Any) -> Any:
    """True if a + b does not fit BIGINT."""
    return a > _MOST - b if b > 0 else a < _LEAST - b


@_device
def sub_overflows(a: Any, b: Any) -> Any:
    """True if a - b does not fit BIGINT."""
    return a < _LEAST + b if b > 0 else a > _MOST + b


@_device
def mul_overflows(a: Any, b: Any) -> Any:
    """True if a · b does not fit BIGINT."""
    if a == 0 or b == 0:
        return False
    if a == _LEAST:
        return b != 1
    if b == _LEAST:
        return a != 1
    x, y = abs(a), abs(b)
    if (a < 0) == (b < 0) or y == 1:
        return x > _MOST // y
    return x > _MOST // y + (1 if _MOST % y == y - 1 else 0)  # one more fits below zero


@_device
def idiv(a: Any, b: Any) -> Any:
    """Division of integers truncated towards zero; the divisor is not 0."""
    q = a // b
    return q + 1 if q < 0 and q * b != a else q


@_device
def remainder(a: Any, b: Any) -> Any:
    """The remainder of `idiv`, with the dividend's sign."""
    if b == -1:  # the quotient of the least integer overflows
        return 0 * a
    r = a % b
    return r - b if r != 0 and (a < 0) != (b < 0) else r


@_device
def sign_of(a: Any) -> Any:
    """-1, 0 or 1; 0 for NaN."""
    return 1 if a > 0 else -1 if a < 0 else 0


@_device
def rint(a: Any) -> Any:
    """The nearest whole DOUBLE, halves to even."""
    x = np.float64(a)
    if not abs(x) < _WHOLE:
        return x
    return math.copysign((abs(x) + _WHOLE) - _WHOLE, x)


@_device
def truncate(a: Any) -> Any:
    """Rounding towards zero, as a DOUBLE."""
    x = np.float64(a)
    if not abs(x) < _WHOLE:
        return x
    return math.copysign(np.float64(np.int64(abs(x))), x)


@_device
def floor(a: Any) -> Any:
    """Rounding down, as a DOUBLE."""
    x = np.float64(a)
    if not abs(x) < _WHOLE:
        return x
    truncated = np.float64(np.int64(x))
    return math.copysign(truncated - 1.0 if truncated > x else truncated, x)


@_device
def ceil(a: Any) -> Any:
    """Rounding up, as a DOUBLE."""
    return -floor(-np.float64(a))


@_device
def round_away(a: Any) -> Any:
    """The nearest whole DOUBLE, halves away from zero."""
    x = np.float64(a)
    if not abs(x) < _WHOLE:
        return x
    truncated = np.float64(np.int64(abs(x)))
    return math.copysign(truncated + 1.0 if abs(x) - truncated >= 0.5 else truncated, x)


@_device
def half(a: Any) -> Any:
    """A HALF as FLOAT."""
    return np.float32(a)


@_device
def to_half(a: Any) -> Any:
    """The HALF nearest to a FLOAT."""
    return np.float16(a)


@_device
def round_half(a: Any) -> Any:
    """A DOUBLE rounded to HALF's precision, carried as FLOAT."""
    return np.float32(np.float16(a))


# CUDA's compiler fuses multiplications and additions; these products are rounded separately.
mul_float = _mathematical(lambda x, y: cuda.libdevice.fmul_rn(x, y), lambda x, y: x * y)
mul_double = _mathematical(lambda x, y: cuda.libdevice.dmul_rn(x, y), lambda x, y: x * y)
ratio = _device(numeric.ratio_by(mul_double))
_beyond = _device(numeric.beyond_by(mul_double))


@_device
def scaled_round(a: Any, scale: Any) -> Any:
    """The whole DOUBLE nearest to an exact product, halves away from zero."""
    product = mul_double(a, scale)
    nearest = round_away(product)
    if abs(nearest - product) == 0.5:
        below = _beyond(a, scale, product)
        if below < 0.0 if product > 0.0 else below > 0.0:
            return nearest - math.copysign(1.0, product)
    return nearest


exp = _mathematical(lambda x: math.exp(x), np.exp)
log = _mathematical(lambda x: math.log(x), np.log)
log2 = _mathematical(lambda x: math.log2(x), np.log2)
log10 = _mathematical(lambda x: math.log10(x), np.log10)
sqrt = _mathematical(lambda x: math.sqrt(x), np.sqrt)
cbrt = _mathematical(lambda x: cuda.libdevice.cbrt(np.float64(x)), np.cbrt)
power = _mathematical(lambda x, y: math.pow(x, y), SCALARS["pow"].numpy)
fmod = _mathematical(lambda x, y: math.fmod(x, y), np.fmod)


@_device
def floored_remainder(x: Any, y: Any) -> Any:
    """The remainder with the divisor's sign; a zero is +0.0."""
    rest = fmod(x, y)
    if rest != 0 and (rest < 0) != (y < 0):
        return rest + y
    return abs(rest) if rest == 0 else rest


sin = _mathematical(lambda x: math.sin(x), np.sin)
cos = _mathematical(lambda x: math.cos(x), np.cos)
tan = _mathematical(lambda x: math.tan(x), np.tan)
arcsin = _mathematical(lambda x: math.asin(x), np.arcsin)
arccos = _mathematical(lambda x: math.acos(x), np.arccos)
atan = _mathematical(lambda x: math.atan(x), np.arctan)
atan2 = _mathematical(lambda x, y: math.atan2(x, y), np.arctan2)
sinh = _mathematical(lambda x: math.sinh(x), np.sinh)
cosh = _mathematical(lambda x: math.cosh(x), np.cosh)
tanh = _mathematical(lambda x: math.tanh(x), np.tanh)
asinh = _mathematical(lambda x: math.asinh(x), np.arcsinh)
arccosh = _mathematical(lambda x: math.acosh(x), np.arccosh)
arctanh = _mathematical(lambda x: math.atanh(x), np.arctanh)
degrees = _mathematical(lambda x: math.degrees(x), np.degrees)
radians = _mathematical(lambda x: math.radians(x), np.radians)
erf = _mathematical(lambda x: math.erf(x), math.erf)
sigmoid = _mathematical(  # `one` has the type of x, for which CUDA's literals are too wide
    lambda x, one: (math.exp(x) if x < 0 else one) / (one + math.exp(-abs(x))),
    lambda x, one: SCALARS["sigmoid"].numpy(x),
)
lgamma = _mathematical(lambda x: math.lgamma(x), SCALARS["lgamma"].numpy)
isinf = _mathematical(lambda x: math.isinf(x), np.isinf)
isfinite = _mathematical(lambda x: math.isfinite(x), np.isfinite)
