"""Sine, cosine, logarithm to base 10 and power of float32, computed in float64.

Straight-line code that vectorises, as in `vector_math`. The extra precision of float64 makes the
functions exact but for the last rounding for all arguments: infinities, NaN, signed zeros,
denormal numbers, angles of any size. The largest errors are below 0.51 units in the last place
for all four. The polynomials are Taylor's, of sufficient degree.

Of float64 the functions are those of the C library.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler.language import intrinsic
from einsql.kernels.runtime.vector_math import DOUBLE, power_of_two, special, split
from einsql.kernels.runtime.vector_values import Num

_SINE = (-1 / 6, 1 / 120, -1 / 5040, 1 / 362880, -1 / 39916800)
"""(sin(r) / r - 1) / r² in r², for |r| ≤ π/4."""
_COSINE = (-1 / 2, 1 / 24, -1 / 720, 1 / 40320, -1 / 3628800)
"""(cos(r) - 1) / r² in r², for |r| ≤ π/4."""
_EXP = tuple(1 / math.factorial(n) for n in range(9))
"""eʳ in r, for |r| ≤ ln 2 / 2."""
_BEYOND = 200.0
"""Powers of two of which every float32 is infinite, or 0."""
_EVEN = 2.0**24
"""All float32 from here on are even numbers."""
_BITS = 300
"""Bits of 2/π behind the point."""


def _of_singles(build: Callable[..., Num], otherwise: str) -> Any:
    """A function: of float32 by its LLVM code, of float64 by LLVM's intrinsic."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first, *rest = (Num(builder, a) for a in args)
        if first.is_double:
            return first.called(otherwise, *rest).value
        return build(first, *rest).value

    def one(_: Any, a: Any) -> Any:
        return (a(a), generate) if isinstance(a, types.Float) else None

    def two(_: Any, a: Any, b: Any) -> Any:
        return (a(a, b), generate) if isinstance(a, types.Float) and a == b else None

    return intrinsic(one if build.__code__.co_argcount == 1 else two)


@cache
def _factor() -> Fraction:
    one = 1 << (_BITS + 20)

    def arctangent(of: int) -> int:
        """That of 1 / of, in units of 1 / one."""
        total = term = one // of
        n = 1
        while term:
            term //= -of * of
            n += 2
            total += term // n
        return total

    pi = 4 * (4 * arctangent(5) - arctangent(239))
    return Fraction((2 * one << _BITS) // pi, 1 << _BITS)


@cache
def _quarters() -> tuple[tuple[float, ...], tuple[float, ...]]:
    """2/π times a float32, but for whole turns: its factor in two parts, by the exponent.

    A float32 is m·2ᵉ with a whole m below 2²⁴, and multiples of 4 in 2ᵉ · 2/π are whole
    turns. The first part has 29 bits, so that products with it are exact. Infinities and
    NaN have no angle.
    """
    high, low = [], []
    for stored in range(255):
        unit = Fraction(2) ** (max(stored, 1) - 150)
        angle = _factor() * unit % 4
        first = Fraction(round(angle * 2**27), 2**27)
        high.append(float(first / unit))
        low.append(float((angle - first) / unit))
    return (*high, math.nan), (*low, math.nan)


def _turned(x: Num, quarters: int) -> Num:
    """The sine of x + quarters · π/2."""
    high, low = _quarters()
    exponent = (x.bits() >> 23) & 255
    wide = x.widened()
    angle = wide * exponent.looked_up("quarters.high", high)
    return _wave(angle, wide * exponent.looked_up("quarters.low", low), quarters)


def _nearly_turned(x: Num, quarters: int) -> Num:
    """The same for numbers below `expressions.NEAR`, which need no table."""
    wide = x.widened()
    first = Fraction(round(_factor() * 2**29), 2**29)
    return _wave(wide * float(first), wide * float(_factor() - first), quarters)


def _wave(angle: Num, rest: Num, quarters: int) -> Num:
    """The sine of angle + rest + quarters, in quarters of a turn."""
    rounded = angle + rest + DOUBLE.round
    r = (angle - (rounded - DOUBLE.round) + rest) * (math.pi / 2)
    n = rounded.bits() + quarters
    z = r * r
    sine = (r * z).times_plus(z.polynomial(_SINE), r)
    cosine = z.times_plus(z.polynomial(_COSINE), 1.0)
    size = (n & 1).either(cosine, sine)
    return (size.bits() ^ ((n & 2) << 62)).from_bits().narrowed()


def _logarithm(x: Num, base: float) -> Num:
    k, m, h, c = split(x, DOUBLE)
    scale = 1 / math.log(base)
    return special(x, (m - (h - c)).times_plus(scale, k * (math.log(2) * scale)))


def _power(x: Num, y: Num) -> Num:
    size, exponent = abs(x).widened(), y.widened()
    power = exponent * _logarithm(size, 2.0)
    power = power.where(">", _BEYOND, _BEYOND).where("<", -_BEYOND, -_BEYOND)
    rounded = power + DOUBLE.round
    n = rounded.bits() - rounded.literal(DOUBLE.round).bits()
    r = (power - (rounded - DOUBLE.round)) * math.log(2)
    result = r.polynomial(_EXP) * power_of_two(n, DOUBLE)
    result = size.choose("==", 1.0, 1.0, result)  # to an infinite power, too
    # The remainder of the exponent, and of its half: an odd one keeps the sign.
    large, half = abs(exponent), exponent * 0.5
    left = large.choose(">=", _EVEN, 0.0, exponent - exponent.rounded())
    odd = abs(large.choose(">=", _EVEN, 0.0, half - half.rounded()))
    sign = odd.choose("==", 0.5, x.widened(), odd.literal(1.0))
    result = result.with_sign_of(sign)
    of_negative = left.choose("==", 0.0, result, result.literal(math.nan))
    of_negative = x.choose("==", -math.inf, result, of_negative)
    result = x.choose("<", 0.0, of_negative, result)
    result = x.choose("==", 1.0, 1.0, y.choose("==", 0.0, 1.0, result))  # of NaN, too
    return result.narrowed()


sin = _of_singles(lambda x: x.choose("==", 0.0, x, _turned(x, 0)), "llvm.sin")
"""The sine of an angle in radians."""
cos = _of_singles(lambda x: _turned(x, 1), "llvm.cos")
"""The cosine of an angle in radians."""
near_sin = _of_singles(lambda x: x.choose("==", 0.0, x, _nearly_turned(x, 0)), "llvm.sin")
"""The sine of a float32 below `expressions.NEAR`, NaN of infinity; as fast again as `sin`."""
near_cos = _of_singles(lambda x: _nearly_turned(x, 1), "llvm.cos")
"""The cosine, so too."""
log10 = _of_singles(lambda x: _logarithm(x.widened(), 10.0).narrowed(), "llvm.log10")
"""The logarithm to base 10, exact for powers of 10: -infinity at 0, NaN below."""
power = _of_singles(_power, "llvm.pow")
"""The first argument to the power of the second, as C's `pow`."""
