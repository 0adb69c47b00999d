"""Exponential, logarithms, tanh, erf and sigmoid of float32 and float64 for compiled loops.

Polynomials without branches, tables and calls, so that the loops around them vectorise.
Every float has an answer: infinities, NaN, zeros with their sign, denormal arguments and
results. The largest errors, in units in the last place, for float32 those of all numbers
(`python -m tests.kernels.test_vector_math`), for float64 those of a sample:

    ========  =======  =======
    function  float32  float64
    ========  =======  =======
    exp          0.96     0.96
    log          0.83     0.81
    log2         1.83     1.75
    tanh         1.35     1.40
    erf          1.15     1.10
    sigmoid      2.25     2.20
    ========  =======  =======

The coefficients are least-squares fits to 50 digits, reweighted until the largest
relative error was even, each rounded to its type before the next one was fitted.
Multiplications and additions are fused where the processor can; constants are split so
that products with them are exact where it cannot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from einsql.core.records import dataclass
from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler.language import intrinsic
from einsql.kernels.runtime.vector_values import Num


@dataclass(frozen=True, slots=True)
class Format:
    """Constants of a float format.

    Attributes:
        mantissa: Explicit bits of the mantissa.
        bias: Exponent of 1.0 as stored.
        least: The least normal number.
        round: Adding it rounds to a whole number, kept in the lowest bits.
        ln2: The logarithm of 2 in two parts; small integers times the first are exact.
        overflow, underflow: Beyond these an exponential is infinite, or 0.
        tanh_edge, tanh_one: From here on tanh is 1 - 2 / (e²ˣ + 1), and then 1.
        tanh: (tanh(x) / x - 1) / x² in x², below that edge.
        expm1: (eʳ - 1 - r) / r² for |r| ≤ ln 2 / 2.
        log: (log((1 + s) / (1 - s)) - 2s) / s³ in s², for 1 ± s between √½ and √2.
        erf_edge: Where the next two meet.
        erf_small: erf(x) / x - 1 in x².
        erf_large: log(erfc(x)) + x in x.
        erf_one: Beyond this erf is 1.
    """

    mantissa: int
    bias: int
    least: float
    round: float
    ln2: tuple[float, float]
    overflow: float
    underflow: float
    tanh_edge: float
    tanh_one: float
    tanh: tuple[float, ...]
    expm1: tuple[float, ...]
    log: tuple[float, ...]
    erf_edge: float
    erf_small: tuple[float, ...]
    erf_large: tuple[float, ...]
    erf_one: float


_SINGLE = Format(
    mantissa=23,
    bias=127,
    least=2.0**-126,
    round=1.5 * 2.0**23,
    ln2=(0.693359375, -0.00021219444),
    overflow=89.0,
    underflow=-104.0,
    tanh_edge=0.55,
    tanh_one=10.0,
    tanh=(-0.33333319425582886, 0.13332636654376984, -0.053856879472732544,
          0.021088609471917152, -0.0062963454984128475),
    expm1=(0.5, 0.1666666716337204, 0.041666485369205475, 0.00833319965749979,
           0.0013933009468019009, 0.00019952371076215059),
    log=(0.6666666269302368, 0.40000972151756287, 0.2849890887737274, 0.2427421361207962),
    erf_edge=0.875,
    erf_small=(0.12837915122509003, -0.37612515687942505, 0.11282146722078323,
               -0.026781395077705383, 0.005018353927880526, -0.0006135441362857819),
    erf_large=(0.00016207536100409925, -0.12945342063903809, -0.6334729194641113,
               -0.10813965648412704, 0.025027545168995857, -0.004135789815336466,
               0.0004271097423043102, -2.0453324395930395e-05),
    erf_one=4.0,
)  # fmt: skip
DOUBLE = Format(
    mantissa=52,
    bias=1023,
    least=2.0**-1022,
    round=1.5 * 2.0**52,
    ln2=(0.6931471803691238, 1.9082149292705877e-10),
    overflow=710.0,
    underflow=-746.0,
    tanh_edge=0.55,
    tanh_one=22.0,
    tanh=(-0.333333333333333, 0.1333333333332661, -0.053968253963766116,
          0.021869488386219722, -0.00886323260962168, 0.003592092128194303,
          -0.0014555435427361055, 0.0005884475512468655, -0.00023338972927029725,
          8.332853675775093e-05, -1.9502330473794425e-05),
    expm1=(0.5, 0.16666666666666677, 0.04166666666666668, 0.008333333333321424,
           0.0013888888888877085, 0.0001984126988662201, 2.4801587342600674e-05,
           2.7557243729347555e-06, 2.7557256488111836e-07, 2.510920025465063e-08,
           2.092059785933259e-09),
    log=(0.6666666666666734, 0.39999999999416275, 0.28571428742163707, 0.2222219858538415,
         0.18183564129011093, 0.15314047113832055, 0.14796047999866982),
    erf_edge=0.875,
    erf_small=(0.1283791670955126, -0.37612638903184115, 0.11283791670973033,
               -0.026866170648626304, 0.005223977660602552, -0.0008548329088668397,
               0.00012055408383578072, -1.4927403889290127e-05, 1.6487835136890857e-06,
               -1.6589944559425526e-07, 1.576108931693155e-08, -1.2524616943131368e-09),
    erf_large=(-5.108035002950319e-08, -0.12837862087695667, -0.6366224416200778,
               -0.10276477679489118, 0.019113371801434822, 0.00022838644162508182,
               -0.0017101959654358125, 0.0005894126720306899, -8.808600697720626e-06,
               -9.03202277434837e-05, 5.386081959603297e-05, -1.9620363666677937e-05,
               5.191282650738854e-06, -1.0379965107618124e-06, 1.5669070731236297e-07,
               -1.7395105602085093e-08, 1.3431893204090942e-09, -6.449693743034513e-11,
               1.4504018659725895e-12),
    erf_one=6.0,
)  # fmt: skip


def _format(x: Num) -> Format:
    return DOUBLE if x.is_double else _SINGLE


def _of_float(build: Callable[[Num], Num]) -> Any:
    """A function of one float, from its LLVM code."""

    def typed(_: Any, a: Any) -> Any:
        if not isinstance(a, types.Float):
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return build(Num(builder, args[0])).value

        return a(a), generate

    return intrinsic(typed)


def _reduce(x: Num, f: Format, biases: int = 1) -> tuple[Num, Num, Num]:
    """Exponent, r and eʳ - 1 - r with x = n · ln 2 + r; n is an integer.

    The exponent is an integer whose last bits are n + biases · f.bias, as many as a number's
    exponent has; those above are anything. A NaN gives a NaN r and some exponent, as a
    conversion to an integer would not.
    """
    offset = x.held(f.round + biases * f.bias)
    rounded = x.times_plus(x.held(1 / math.log(2)), offset)
    multiple = rounded - offset
    r = multiple.times_plus(x.held(-f.ln2[1]), multiple.times_plus(x.held(-f.ln2[0]), x))
    return rounded.bits(), r, r * r * r.polynomial(f.expm1)


def power_of_two(n: Num, f: Format) -> Num:
    """2ⁿ for an integer, within the normal numbers."""
    return _power_of_two(n + f.bias, f)


def _power_of_two(exponent: Num, f: Format) -> Num:
    """The power of two with these last bits of an exponent."""
    return (exponent << f.mantissa).from_bits()


def _exp(x: Num) -> Num:
    f = _format(x)
    # In two steps, with a bias for each: 2ⁿ itself may be too large or too small to be normal.
    high, low = x.held(f.overflow), x.held(f.underflow)
    exponent, r, rest = _reduce(x.where(">", high, high).where("<", low, low), f, biases=2)
    half = exponent >> 1
    return (r + rest + x.held(1)) * _power_of_two(half, f) * _power_of_two(exponent - half, f)


def _tanh(x: Num) -> Num:
    f = _format(x)
    a = abs(x)
    z = x * x
    small = (z * z.polynomial(f.tanh)).times_plus(x, x)
    exponent, r, rest = _reduce(a.where(">", f.tanh_one, f.tanh_one) * 2.0, f)
    scale = _power_of_two(exponent, f)
    large = x.literal(-2) / (scale * (r + rest) + (scale + 1)) + 1
    return a.choose(">=", f.tanh_edge, large, small).with_sign_of(x)


def split(x: Num, f: Format) -> tuple[Num, Num, Num, Num]:
    """k, m, h and c: x = 2ᵏ · (1 + m) with √½ ≤ 1 + m < √2, log(1 + m) = m - (h - c).

    Arguments that have no logarithm give anything.
    """
    scaled = x * 2.0 ** (f.mantissa + 2)
    y = x.choose("<", f.least, scaled, x)
    root = x.literal(math.sqrt(0.5)).bits()
    above = y.bits() - root
    k = (above >> f.mantissa).to_float()
    k = x.choose("<", f.least, k - (f.mantissa + 2), k)
    m = ((above & (2**f.mantissa - 1)) + root).from_bits() - 1
    s = m / (m + 2)
    z = s * s
    h = m * m * 0.5
    return k, m, h, s * z.polynomial(f.log).times_plus(z, h)


def special(x: Num, y: Num) -> Num:
    """A logarithm with its answers for 0, infinity and arguments below 0."""
    y = x.choose("==", math.inf, math.inf, y)
    y = x.choose("==", 0.0, -math.inf, y)
    return x.choose(">=", 0.0, y, x.literal(math.nan))


def _log(x: Num) -> Num:
    f = _format(x)
    k, m, h, c = split(x, f)
    low = k.times_plus(f.ln2[1], c)
    return special(x, k.times_plus(f.ln2[0], m - (h - low)))


def _log2(x: Num) -> Num:
    f = _format(x)
    k, m, h, c = split(x, f)
    return special(x, (m - (h - c)).times_plus(1 / math.log(2), k))


def _erf(x: Num) -> Num:
    f = _format(x)
    a = abs(x)
    small = x.times_plus((x * x).polynomial(f.erf_small), x)
    a = a.where(">", f.erf_one, f.erf_one)
    exponent, r, rest = _reduce(a.polynomial(f.erf_large) - a, f)
    scale = _power_of_two(exponent, f)
    large = ((scale * (r + rest) + scale) * -1.0 + 1).with_sign_of(x)
    return abs(x).choose(">=", f.erf_edge, large, small)


def _sigmoid(x: Num) -> Num:
    decay = _exp(-abs(x))
    return x.choose("<", 0.0, decay, x.literal(1.0)) / (decay + 1)


exp = _of_float(_exp)
"""e to a power."""
log = _of_float(_log)
"""The natural logarithm: -infinity at 0, NaN below."""
tanh = _of_float(_tanh)
"""The hyperbolic tangent."""
log2 = _of_float(_log2)
"""The logarithm to base 2, exact for powers of 2."""
erf = _of_float(_erf)
"""The error function."""
sigmoid = _of_float(_sigmoid)
"""1 / (1 + e⁻ˣ)."""
CODE = {"exp": _exp, "ln": _log, "log2": _log2, "tanh": _tanh, "erf": _erf, "sigmoid": _sigmoid}
"""The writer of each function, over vectors too, by the names of `ir.functions.SCALARS`."""
