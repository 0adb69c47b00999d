"""The laws that scalar functions declare, on values that raise nothing."""

from itertools import product

import numpy as np
import pytest

from einsql.core.schema import DType
from einsql.ir.functions import SCALARS, Function

VALUES = {
    DType.BOOLEAN: np.array([False, True]),
    DType.BIGINT: np.arange(-3, 4),
    DType.DOUBLE: np.array([-np.inf, -2.0, -0.0, 0.0, 1.0, 3.0, np.inf, np.nan]),
}


def arguments(function: Function, count: int) -> list[list[np.ndarray]]:
    """Every combination of some values, for each type that the function accepts."""
    return [
        list(np.array(list(product(values, repeat=count)), values.dtype).T)
        for t, values in VALUES.items()
        if function.types((t, t), True) is not None
    ]


def lawful(law: str) -> list[Function]:
    """The functions that declare a law."""
    functions = (f for f in SCALARS.values() if not f.opaque)
    return [f for f in functions if getattr(f, law) not in (False, None)]


@pytest.mark.parametrize("function", lawful("commutative"), ids=lambda f: f.name)
def test_commutative(function: Function) -> None:
    for a, b in arguments(function, 2):
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(function.numpy(a, b), function.numpy(b, a))


@pytest.mark.parametrize("function", lawful("associative"), ids=lambda f: f.name)
def test_associative(function: Function) -> None:
    f = function.numpy
    for a, b, c in arguments(function, 3):
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(f(f(a, b), c), f(a, f(b, c)))


@pytest.mark.parametrize("law", ["identity", "annihilator"])
def test_neutral_and_annihilating_values(law: str) -> None:
    for function in lawful(law):
        for (a,) in arguments(function, 1):
            finite = a[np.isfinite(a)] if law == "annihilator" else a
            constant = np.full(len(finite), getattr(function, law), finite.dtype)
            with np.errstate(all="ignore"):
                computed = function.numpy(finite, constant)
            np.testing.assert_array_equal(computed, finite if law == "identity" else constant)


@pytest.mark.parametrize("function", lawful("monotone"), ids=lambda f: f.name)
def test_monotone(function: Function) -> None:
    """Between two values of an argument a result is between those at the two."""
    for columns in arguments(function, function.arity):
        finite = [np.unique(c[np.isfinite(c)]) for c in columns]
        with np.errstate(all="ignore"):
            table = function.numpy(*np.meshgrid(*finite, indexing="ij"))
        for axis in range(function.arity):
            steps = np.diff(table, axis=axis)
            known = np.isnan(steps)
            assert (((steps >= 0) | known).all(axis) | ((steps <= 0) | known).all(axis)).all()
