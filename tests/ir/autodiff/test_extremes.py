"""Derivatives where arguments are tiny, huge, infinite or at the edge of a domain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ir.autodiff.differences import connected
from tests.support.samples import combinations

Array = Any
WIDE = np.longdouble
"""Its range is so wide that no step of a formula over- or underflows."""
PI = WIDE("3.14159265358979323846264338327950288")
TWO = WIDE(2)


def _logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def _digamma(x: Array) -> Array:
    """By the recurrence and Stirling's series, far out; of arguments above 0."""
    z = x + 200
    far = np.log(z) - 1 / (2 * z) - 1 / (12 * z**2) + 1 / (120 * z**4) - 1 / (252 * z**6)
    steps = 1 / (np.where(x > 0, x, np.nan)[:, None] + np.arange(200, dtype=WIDE))
    return far - steps.sum(1)


OF_ONE: dict[str, tuple[str, Callable[[Array], Array], str]] = {
    "exp": ("exp({0})", np.exp, ""),
    "ln": ("ln({0})", lambda x: 1 / x, ""),
    "log2": ("log2({0})", lambda x: 1 / (x * np.log(TWO)), ""),
    "log10": ("log10({0})", lambda x: 1 / (x * np.log(WIDE(10))), ""),
    "sqrt": ("sqrt({0})", lambda x: 0.5 / np.sqrt(x), ""),
    "cbrt": ("cbrt({0})", lambda x: 1 / (3 * np.cbrt(x) ** 2), ""),
    "square": ("{0} * {0}", lambda x: 2 * x, ""),
    "third power": ("pow({0}, 3)", lambda x: 3 * x * x, ""),
    "power": ("pow({0}, 2.5)", lambda x: 2.5 * x**1.5, ""),
    "root": ("pow({0}, 0.25)", lambda x: 0.25 * x ** WIDE(-0.75), ""),
    "inverse": ("pow({0}, -1)", lambda x: -1 / (x * x), ""),
    "reciprocal": ("1 / {0}", lambda x: -1 / (x * x), ""),
    "inverse square": ("pow({0}, -2)", lambda x: -2 / (x * x * x), ""),
    "of an exponent": ("pow(2, {0})", lambda x: np.log(TWO) * TWO**x, ""),
    "asin": ("asin({0})", lambda x: 1 / np.sqrt((1 - x) * (1 + x)), ""),
    "acos": ("acos({0})", lambda x: -1 / np.sqrt((1 - x) * (1 + x)), ""),
    "atan": ("atan({0})", lambda x: 1 / (1 + x * x), ""),
    "sinh": ("sinh({0})", np.cosh, ""),
    "cosh": ("cosh({0})", np.sinh, ""),
    "asinh": ("asinh({0})", lambda x: 1 / np.sqrt(1 + x * x), ""),
    "acosh": ("acosh({0})", lambda x: 1 / np.sqrt((x - 1) * (x + 1)), ""),
    "atanh": ("atanh({0})", lambda x: 1 / ((1 - x) * (1 + x)), ""),
    "tanh": ("tanh({0})", lambda x: 1 - np.tanh(x) ** 2, "of 1"),
    "sigmoid": ("sigmoid({0})", lambda x: _logistic(x) * _logistic(-x), "of 1"),
    "softplus": ("ln(1 + exp({0}))", _logistic, "of 1"),
    "logistic loss": ("ln(exp(-{0}) + 1.0e0)", lambda x: -_logistic(-x), "of 1"),
    "silu": ("silu({0})", lambda x: _logistic(x) * (1 + x * _logistic(-x)), "of 1"),
    "erf": ("erf({0})", lambda x: 2 / np.sqrt(PI) * np.exp(-x * x), "of 1"),
    "lgamma": ("lgamma({0})", _digamma, "of 1"),
    "degrees": ("degrees({0})", lambda x: 180 / PI + 0 * x, ""),
    "radians": ("radians({0})", lambda x: PI / 180 + 0 * x, ""),
    "abs": ("abs({0})", lambda x: np.sign(x) * (x == x), ""),
    "relu": ("relu({0})", lambda x: np.where(x > 0, 1, 0.0), ""),
}
"""SQL, the derivative, and whether its errors are relative to the value or to 1."""


def _points(kind: Any) -> Array:
    info = np.finfo(kind)
    near = np.nextafter(kind(1), kind(0))
    sizes = [0.0, info.smallest_subnormal, info.tiny, 1e-30, 1e-18, 1e-9, 1e-4, 0.3, 0.999, near,
             1.0, np.nextafter(kind(1), kind(2)), 2.5, 9.0, 20.0, 88.0, 100.0, 708.0, 1e4, 1e9,
             1e18, 1e30, 3 * info.max**0.5, info.max**0.75, info.max, np.inf]  # fmt: skip
    return np.array([s * x for x in sizes for s in (1, -1)], kind)


def _gradient(
    kind: Any, query: str, arrays: dict[str, Array], source: str, loss: str = "loss"
) -> Array:
    con = connected({n: ("i", np.asarray(a, kind)) for n, a in arrays.items()})
    found = con.execute(f"{query} SELECT i, val FROM GRADIENT({loss}, {source})").fetch_numpy()
    assert found.dtype == kind
    return found


def _same(
    got: Array, exact: Array, kind: Any, absolute: str, where: Array, of: Array, units: Array = 64
) -> None:  # fmt: skip
    """Compares, where the exact derivative is a number of the type, and not denormal."""
    info = np.finfo(kind)
    with np.errstate(all="ignore"):
        wanted = exact.astype(kind)
    known = (wanted == wanted) & where
    error = units * info.eps * (np.abs(wanted) + (1.0 if absolute else 0.0)) + info.tiny
    with np.errstate(all="ignore"):
        good = (got == wanted) | (np.abs(got - wanted) <= error)
        good |= (np.abs(exact) > info.max / 2) & (got > info.max / 4) & (wanted > 0)
        good |= (np.abs(exact) > info.max / 2) & (got < -info.max / 4) & (wanted < 0)
    bad = known & ~good
    assert not bad.any(), [(str(o), str(g), str(w)) for o, g, w in
                           zip(of[bad], got[bad], wanted[bad], strict=True)]  # fmt: skip


@pytest.mark.parametrize(("name", "kind"), combinations(OF_ONE, [np.float32, np.float64]))
def test_of_one(name: str, kind: Any) -> None:
    text, slope, absolute = OF_ONE[name]
    x = _points(kind)
    query = f"WITH loss AS (SELECT SUM({text.format('val')}) AS val FROM w)"
    got = _gradient(kind, query, {"w": x}, "w")
    value = connected({"w": ("i", x)}).execute(f"SELECT i, {text.format('val')} AS val FROM w")
    with np.errstate(all="ignore"):
        exact = slope(x.astype(WIDE))
    # Where the value is NaN there is no derivative; at infinity a limit, where the formula has one.
    _same(got, exact, kind, absolute, value.fetch_numpy() == value.fetch_numpy(), x)


def _angle(a: Array, b: Array) -> tuple[Array, Array]:
    return b / (a * a + b * b), -a / (a * a + b * b)


def _quotient(a: Array, b: Array) -> tuple[Array, Array]:
    return 1 / b, -a / (b * b)


def _power(a: Array, b: Array) -> tuple[Array, Array]:
    by_a = np.where(b == 0, 0, b * a ** (b - 1))
    return by_a, np.where(a == 0, 0, a**b * np.log(a))


OF_TWO: dict[str, tuple[str, Callable[[Array, Array], tuple[Array, Array]]]] = {
    "atan2": ("atan2(a.val, b.val)", _angle),
    "div": ("a.val / b.val", _quotient),
    "mul": ("a.val * b.val", lambda a, b: (b, a)),
    "pow": ("pow(a.val, b.val)", _power),
}


@pytest.mark.parametrize("name", OF_TWO)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_of_two(name: str, kind: Any) -> None:
    text, slopes = OF_TWO[name]
    one = _points(kind)
    a, b = (x.ravel() for x in np.meshgrid(one, one))
    query = f"WITH loss AS (SELECT SUM({text}) AS val FROM a JOIN b USING (i))"
    with np.errstate(all="ignore"):
        exact = slopes(a.astype(WIDE), b.astype(WIDE))
    value = f"SELECT i, {text} AS val FROM a JOIN b USING (i)"
    found = connected({"a": ("i", a), "b": ("i", b)}).execute(value).fetch_numpy()
    number = np.isfinite(found) if name != "mul" else found == found
    units = np.full(a.shape, 64.0)
    if name == "pow":
        number &= np.isfinite(a) & np.isfinite(b) & (np.abs(b) < 1e6)
        number &= np.abs(a) >= np.finfo(kind).tiny  # of less, the power below may be infinite
        with np.errstate(all="ignore"):
            units += np.nan_to_num(4 * np.abs(np.log(np.abs(a))) * np.maximum(1, np.abs(b)))
    for source, wanted in zip("ab", exact, strict=True):
        got = _gradient(kind, query, {"a": a, "b": b}, source)
        _same(got, wanted, kind, "", number, np.stack([a, b], 1), units)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_lgamma_beside_its_poles(kind: Any) -> None:
    """Beside 0 its slope is -1 / x, and the slope of that 1 / x²."""
    x = np.array([-1e-6, -1e-10, -1e-17, 1e-17, 1e-10, 1e-6], kind)
    query = "WITH loss AS (SELECT SUM(lgamma(val)) AS val FROM w)"
    wide = x.astype(WIDE)
    constant = WIDE("-0.57721566490153286061")
    near = constant + wide * PI**2 / 6
    got = _gradient(kind, query, {"w": x}, "w")
    _same(got, -1 / wide + near, kind, "", x == x, x)
    twice = f"{query}, slopes AS (SELECT SUM(val) AS val FROM GRADIENT(loss, w))"
    got = _gradient(kind, twice, {"w": x}, "w", "slopes")
    _same(got, 1 / wide**2 + PI**2 / 6, kind, "", x == x, x)
