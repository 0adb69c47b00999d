"""Building blocks of derivatives, and the derivatives longer than a line.

A derivative takes the adjoint of a function's result, the result and the arguments, as terms.
It returns the contribution to each argument's adjoint, or None for no contribution. Terms have
operators (`ir/autodiff/terms.py`): `t.call(fn)` applies a scalar function, `c.choose(a, b)` is
CASE WHEN c THEN a ELSE b END, which ignores the branch that is not selected.

A piecewise constant function has derivative 0 everywhere. An entry without a derivative has a
text with the reason instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

Term = Any
"""An expression under construction; nothing here depends on what expressions are."""

Terms = tuple[Term | None, ...]

Derivative = Callable[..., Terms]
"""Takes the result's adjoint, the result and the arguments; gives the arguments' adjoints."""

PointDerivative = Callable[[Any], Term]
"""Takes a `Group` of `ir/autodiff/backward.py`; gives the adjoint of a point's contribution."""


def still(g: Term, y: Term, *args: Term) -> Terms:
    """The derivative is 0 wherever there is one: comparisons, rounding, integers."""
    return (None,) * len(args)


def selected(g: Term, y: Term, condition: Term, a: Term, b: Term) -> Terms:
    """The branch that is selected gets everything; the other one is not multiplied by 0."""
    return None, condition.choose(g, 0), condition.choose(0, g)


def quotient(g: Term, y: Term, a: Term, b: Term) -> Terms:
    """Of a / b."""
    return g / b, -(g * y) / b


def magnitude(g: Term, y: Term, x: Term) -> Terms:
    """Of |x|; 0 at 0."""
    return (x.less(0).choose(-g, x.above(0).choose(g, 0)),)


def larger(g: Term, y: Term, a: Term, b: Term) -> Terms:
    """Of GREATEST; two that tie get half each, but one that ties with a constant nothing."""
    return _winner(g, y, a, b, "above"), _winner(g, y, b, a, "above")


def smaller(g: Term, y: Term, a: Term, b: Term) -> Terms:
    """Of LEAST; ties as in GREATEST."""
    return _winner(g, y, a, b, "less"), _winner(g, y, b, a, "less")


def _winner(g: Term, y: Term, x: Term, other: Term, wins: str) -> Term:
    if other.number is not None:  # tests the result, so that the argument need not be stored
        return getattr(y, wins)(other).choose(g, 0)
    return getattr(other, wins)(x).choose(0, x.equal(other).choose(g * 0.5, g))


def power(g: Term, y: Term, a: Term, b: Term) -> Terms:
    """Of a ** b; of b it is 0 where a is 0."""
    by_b = a.equal(0).choose(0, g * y * a.call("ln"))
    match b.number:
        case None:
            by_a = b.equal(0).choose(0, g * b * a.call("pow", b - 1))
        case 0:
            by_a = None
        case 1:
            by_a = g
        case 2:
            by_a = g * 2 * a
        case 3:
            by_a = g * 3 * (a * a)
        case 0.5:
            by_a = g * 0.5 / y
        case -1:
            by_a = -g / (a * a)
        case n:
            by_a = g * n * a.call("pow", b - 1)
    return by_a, by_b


def angle(g: Term, y: Term, a: Term, b: Term) -> Terms:
    """Of ATAN2(a, b): b / (a² + b²) and -a / (a² + b²), without squares that overflow."""
    less = a.call("abs").less(b.call("abs"))
    ratio = less.choose(a, b) / less.choose(b, a)
    length = less.choose(b, a) + less.choose(a, b) * ratio
    return g * less.choose(1, ratio) / length, -(g * less.choose(ratio, 1)) / length


def beside_one(g: Term, y: Term, x: Term) -> Terms:
    """1 / √(1 + x²), of ASINH, without a square that overflows."""
    size = x.call("abs")
    large = size.above(1)
    ratio = large.choose(1 / size, size)
    return (g / ((ratio * ratio + 1).call("sqrt") * large.choose(size, 1)),)


def bell(g: Term, y: Term, x: Term) -> Terms:
    """Of ERF."""
    return (g * (2 / math.sqrt(math.pi)) * (-(x * x)).call("exp"),)


_STIRLING = (1 / 12, 1 / 120, 1 / 252, 1 / 240, 1 / 132, 691 / 32760, 1 / 12)
"""Coefficients of Stirling's correction in powers of 1 / z², with alternating signs."""
_SHIFT = 8
"""From here on these suffice for a DOUBLE."""


def digamma(g: Term, y: Term, x: Term) -> Terms:
    """Of LGAMMA: reflected to what is positive, moved on to what is large, by Stirling's series."""
    mirrored = x.above(0).negated()
    start = mirrored.choose(1 - x, x)
    z = start + _SHIFT
    steps = sum((1 / (start + k) for k in range(1, _SHIFT)), 1 / start)
    square = 1 / (z * z)
    series = square * _STIRLING[-1]
    for c in reversed(_STIRLING[:-1]):
        series = square * (c - series)
    positive = z.call("ln") - 0.5 / z - series - steps
    turn = ((x - x.call("round")) * math.pi).call("tan")  # exact beside integers, 0 among them
    return (g * mirrored.choose(positive - math.pi / turn, positive),)


# ---- reductions


def of_sum(group: Any) -> Term:
    """Every point gets the adjoint of its group."""
    return group.adjoint


def of_extreme(group: Any) -> Term:
    """Splits the adjoint evenly between the points where the extreme is attained."""
    hit = group.value.equal(group.result)
    return hit.choose(group.adjoint / group.total("sum", 1, where=hit), 0)


def of_product(group: Any) -> Term:
    """The product of all other values: exact with zeros, and for second derivatives too.

    Let z be the number of zeros, s their sum and r the product of all other values. For a
    zero, the product of the others is r if z = 1, and r · (s - value), the other zero, if
    z = 2. For any other value it is r / value if z = 0, and r / value · s if z = 1. The sum s
    is 0, but its derivative is not.
    """
    value, zero = group.value, group.value.equal(0)
    if group.asks(value.differs(0)):
        return group.adjoint * group.result / value
    zeros = group.total("sum", 1, where=zero)
    rest = group.total("product", value, where=value.differs(0))
    zero_sum = group.total("sum", value, where=zero)
    of_zero = zeros.equal(1).choose(1, zeros.equal(2).choose(zero_sum - value, 0))
    of_other = zeros.equal(0).choose(1, zeros.equal(1).choose(zero_sum, 0)) / value
    return group.adjoint * rest * zero.choose(of_zero, of_other)
