"""The functions of compiled loops against references of twice their precision.

`python -m tests.kernels.test_vector_math [NAME …]` tries every float32, in a minute or two for each
function, and says the largest errors, those that the module's docstring states.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import special

import einsql
from einsql.ir.functions import SCALARS
from einsql.kernels.compiler import llvm_compiler
from einsql.kernels.loops.expressions import NEAR
from einsql.kernels.runtime import compile_cache, float32_math, vector_math

Function = Callable[[np.ndarray], np.ndarray]


def _erf(values: np.ndarray) -> np.ndarray:
    """The C library's for long doubles: within an ulp of double, closer than SciPy's."""
    if values.dtype == np.float64:
        return np.asarray(special.erf(values))
    return np.array(list(map(math.erf, values)), values.dtype)


def _wider(function: Function) -> Function:
    """Of long doubles, whose functions take arguments of every size."""
    return lambda values: function(values.astype(np.longdouble)).astype(values.dtype)


REFERENCES: dict[str, Function] = {
    "exp": np.exp,
    "log": np.log,
    "log2": np.log2,
    "tanh": np.tanh,
    "erf": _erf,
    "sigmoid": SCALARS["sigmoid"].numpy,
}
OF_SINGLES: dict[str, Function] = {
    "sin": _wider(np.sin),
    "cos": _wider(np.cos),
    "log10": _wider(np.log10),
}
"""What is more than the C library's of float32 alone."""
SINGLE = {"exp": 0.96, "log": 0.83, "log2": 1.83, "tanh": 1.35, "erf": 1.15, "sigmoid": 2.25}
SINGLE |= {"sin": 0.51, "cos": 0.51, "log10": 0.51, "power": 0.51}
DOUBLE = {"exp": 0.96, "log": 0.81, "log2": 1.75, "tanh": 1.40, "erf": 1.10, "sigmoid": 2.20}
"""Largest errors in units in the last place."""
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 2.0, 0.5, 89.0, -104.0, 710.0, -746.0]
EXTREMES = {
    np.float32: [1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, -3.4028235e38, 88.72284, -103.97208],
    np.float64: [5e-324, -5e-324, 2.2250738585072014e-308, 1e308, -1e308, 709.7827, -745.1332],
}


_LOOP = """\
from {0} import {1} as function

@njit("void({2}[::1], {2}[::1])")
def kernel(values, out):
    for i in range(out.shape[0]):
        out[i] = function(values[i])
"""
_POWER = """\
from einsql.kernels.runtime.float32_math import power

@njit("void({0}[::1], {0}[::1], {0}[::1])")
def kernel(bases, exponents, out):
    for i in range(out.shape[0]):
        out[i] = power(bases[i], exponents[i])
"""


@cache
def compiled(name: str) -> Function:
    """A function over arrays, by a compiled loop."""
    module = vector_math if name in REFERENCES else float32_math

    def run(values: np.ndarray) -> np.ndarray:
        out = np.full_like(values, np.nan)
        kernel = compile_cache.load(_LOOP.format(module.__name__, name, values.dtype))
        kernel(np.ascontiguousarray(values), out)
        return out

    return run


def worst(name: str, values: np.ndarray) -> float:
    """The largest error over values in ulp; asserts that what is exact is exact."""
    wide = np.float64 if values.dtype == np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        exact = (REFERENCES | OF_SINGLES)[name](values.astype(wide))
        nearest = exact.astype(values.dtype)
        got = compiled(name)(values)
        # What lies below a power of two has the spacing below it.
        below = np.where(np.abs(nearest) > np.abs(exact), np.nextafter(nearest, 0), nearest)
        unit = np.spacing(np.maximum(np.abs(below), np.finfo(values.dtype).smallest_normal))
        error = np.abs(got.astype(wide) - exact) / unit
    countable = np.isfinite(nearest)
    np.testing.assert_array_equal(got[~countable], nearest[~countable])
    zeros = values == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(nearest[zeros]))
    return float(np.max(error[countable], initial=0.0))


def sample(kind: Any, seed: int) -> np.ndarray:
    """Floats of every magnitude, and many where the functions turn."""
    rng = np.random.default_rng(seed)
    bits = np.dtype(f"u{np.dtype(kind).itemsize}")
    anything = rng.integers(0, np.iinfo(bits).max, 200_000, bits, endpoint=True).view(kind)
    near = [rng.uniform(-s, s, 100_000) for s in (1.0, 4.0, 25.0, 750.0)]
    values = np.concatenate([*near, 1 + 1e-3 * near[0], SPECIAL, EXTREMES[kind]])
    return np.concatenate([anything, values.astype(kind)])


@pytest.mark.parametrize("name", [*REFERENCES, *OF_SINGLES])
def test_single(name: str) -> None:
    assert worst(name, sample(np.float32, 0)) <= SINGLE[name]


@pytest.mark.parametrize("name", REFERENCES)
def test_double(name: str) -> None:
    if np.finfo(np.longdouble).nmant <= 52:
        pytest.skip("long double is no wider than double here, so there is no reference")
    assert worst(name, sample(np.float64, 0)) <= DOUBLE[name]


def test_near_angles() -> None:
    near = np.random.default_rng(0).uniform(-NEAR, NEAR, 200_000)
    near = np.concatenate([near, np.arange(-200_000, 200_000) * (np.pi / 2), [0.0, -0.0, 1e-45]])
    near = near[np.abs(near) < NEAR].astype(np.float32)
    for name in ("sin", "cos"):
        np.testing.assert_array_equal(compiled(f"near_{name}")(near), compiled(name)(near))
        assert np.isnan(compiled(f"near_{name}")(np.array([np.inf, np.nan], np.float32))).all()


def test_angles_near_quarters_of_turns_and_huge_ones() -> None:
    quarters = np.arange(-200_000, 200_000) * (np.pi / 2)
    for name in ("sin", "cos"):
        assert worst(name, quarters.astype(np.float32)) <= SINGLE[name]
        assert worst(name, (quarters * 2.0**100).astype(np.float32)) <= SINGLE[name]
        np.testing.assert_array_equal(compiled(name)(np.array([np.inf, -np.inf])), [np.nan] * 2)
        doubles = np.linspace(-1e6, 1e6, 1001)
        np.testing.assert_allclose(compiled(name)(doubles), getattr(np, name)(doubles), rtol=1e-12)


SIZES = [0.0, 1.0, 0.5, 2.0, 3.0, 2.5, np.inf, np.nan, 1e-45, 3.4e38, 2.0**24 - 1, 2.0**25 + 4]
POWERS = [s * x for x in SIZES for s in (1, -1)]


def test_powers() -> None:
    single, double = (compile_cache.load(_POWER.format(f"float{n}")) for n in (32, 64))
    rng = np.random.default_rng(0)
    base, exponent = (x.reshape(-1).astype(np.float32) for x in np.meshgrid(POWERS, POWERS))
    anything = np.exp(rng.uniform(-100, 88, 200_000))
    near = 1 + rng.uniform(-1e-2, 1e-2, 200_000)
    base = np.concatenate([base, anything, near, -anything]).astype(np.float32)
    to = [
        rng.uniform(-3, 3, 200_000),
        rng.uniform(-9e3, 9e3, 200_000),
        rng.integers(-9, 9, 200_000),
    ]
    exponent = np.concatenate([exponent, *to]).astype(np.float32)
    got = np.full_like(base, np.nan)
    single(base, exponent, got)
    with np.errstate(all="ignore"):
        exact = np.float_power(base, exponent, dtype=np.float64)
        nearest = exact.astype(np.float32)
        error = np.abs(got - exact) / np.spacing(np.maximum(np.abs(nearest), np.float32(2.0**-126)))
    countable = np.isfinite(nearest)
    assert np.max(error[countable]) <= SINGLE["power"]
    np.testing.assert_array_equal(got[~countable], nearest[~countable])
    zeros = nearest == 0
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(nearest[zeros]))
    doubles, result = base.astype(np.float64), np.empty(base.shape)
    double(doubles, exponent.astype(np.float64), result)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(exact))
    np.testing.assert_allclose(result, exact, rtol=1e-14)


def test_whole_powers_of_ten_have_exact_logarithms() -> None:
    powers = np.arange(-37, 39)
    tens = np.array([float(f"1e{n}") for n in powers], np.float32)
    np.testing.assert_array_equal(compiled("log10")(tens), powers)


def test_powers_of_two_have_exact_logarithms() -> None:
    for kind, least in ((np.float32, -149), (np.float64, -1074)):
        powers = np.arange(least, 1 - least % 2 + 126)
        np.testing.assert_array_equal(compiled("log2")(np.ldexp(1.0, powers).astype(kind)), powers)


@pytest.mark.parametrize("name", ["erf", "sin", "log10"])
def test_loops_are_vectorised(name: str) -> None:
    module = vector_math if name in REFERENCES else float32_math
    _, code = llvm_compiler.optimised(name, _LOOP.format(module.__name__, name, "float32"))
    assert " x float>" in str(code)


def _every_float(names: list[str]) -> None:
    step = 1 << 23
    for name in names:
        largest = 0.0
        for start in range(0, 1 << 32, step):
            bits = np.arange(start, start + step, dtype=np.uint64).astype(np.uint32)
            largest = max(largest, worst(name, bits.view(np.float32)))
        print(f"{name:6} {largest:.4f} ulp", flush=True)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_remainder_by_1_is_that_of_the_library(kind: type[np.floating[Any]]) -> None:
    near = [2.5, -2.5, 3.0, -3.0, 0.9999999, -0.9999999, 1e16, -8388609.5]
    values = np.resize(np.array([*SPECIAL, *EXTREMES[kind], *near], kind), 50_000)
    con = einsql.connect(config={"jit": "wait"})
    con.register("x", values, dims=("i",))
    found = con.execute("SELECT i, x.val % CAST(1 AS REAL) AS val FROM x").fetch_numpy()
    with np.errstate(invalid="ignore"):
        expected = np.fmod(values, kind(1))
    assert found.dtype == kind
    np.testing.assert_array_equal(found, expected)
    there = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[there]), np.signbit(expected[there]))


if __name__ == "__main__":
    _every_float(sys.argv[1:] or [*REFERENCES, *OF_SINGLES])
