"""Functions that SQL lacks, as polynomials."""

from __future__ import annotations

from einsql.core.schema import DType
from einsql.frontends.trace.expressions import apply, cast
from einsql.frontends.trace.nodes import Apply, Expr, Literal

_ERFC: tuple[float, ...] = (
    0.13699945762506138,
    -0.25906804876017164,
    0.2187196789182644,
    -0.1642578166973083,
    0.10896317739892877,
    -0.06310781563977742,
    0.031299056518237785,
    -0.012843946030590846,
    0.004060263628396325,
    -0.0007991268207001468,
    -2.1761748398090144e-05,
    7.898321653874126e-05,
    -2.2555928211869898e-05,
    -1.9033042567345953e-06,
    2.94426514723061e-06,
    -4.0860845583015074e-07,
    -2.8361434438848787e-07,
    9.615985996731486e-08,
    2.484173097453582e-08,
    -1.5352979092712122e-08,
    -2.024813935946855e-09,
    1.998472903321915e-09,
    1.200014069661467e-10,
    -1.606315988940719e-10,
)
"""Of exp(x²) erfc(x) for x >= 0 in (x - 4) / (x + 4), interpolated at Chebyshev's nodes; its
relative error is 2e-15."""


def _real(value: float) -> Literal:
    return Literal(value, DType.DOUBLE)


def erfc(a: Expr) -> Expr:
    """1 - erf(a), with a small relative error also where it is tiny; in DOUBLE."""
    x = cast(a, DType.DOUBLE)
    size = apply("abs", x)
    by = apply("sub", _real(1), apply("div", _real(8), apply("add", size, _real(4))))
    series: Expr = _real(_ERFC[-1])
    for coefficient in reversed(_ERFC[:-1]):
        series = apply("add", apply("mul", series, by), _real(coefficient))
    series = apply("mul", apply("exp", apply("neg", apply("mul", size, size))), series)
    series = apply("if", apply("lt", x, _real(0)), apply("sub", _real(2), series), series)
    return series if a.dtype is DType.DOUBLE else Apply("cast", (series,), a.dtype)
