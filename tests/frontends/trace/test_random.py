"""Random NumPy programs, traced, give what NumPy gives."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import einsql
from tests.frontends.trace import random_extremes
from tests.frontends.trace.random_programs import program
from tests.support.samples import sample

SEEDS = sample(40, 300)
EXTREME = sample(40, 250)
MODULES = sample(3, 12)


@pytest.fixture(scope="module")
def con() -> einsql.Connection:
    con = einsql.connect()
    con.execute("SET jit = 'never'")
    return con


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_random_programs_give_what_numpy_gives(con: einsql.Connection, first: int) -> None:
    compared = 0
    for seed in range(first, first + 50):
        run, arrays, single = program(seed)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of NumPy, about NaN and empty means
            try:
                expected = np.asarray(run(*arrays))
            except ValueError:  # shapes that do not broadcast
                continue
        if expected.dtype.kind not in "fib" or np.abs(expected).max(initial=0) > 1e9:
            continue  # integers wrap in NumPy, and raise here
        found = np.asarray(einsql.trace(run, *arrays, connection=con)(*arrays))
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), seed
        near = 1e-9 if single is np.float64 else 1e-4
        np.testing.assert_allclose(found, expected, rtol=near, atol=near, err_msg=f"seed {seed}")
        compared += 1
    assert compared > 35


@pytest.mark.parametrize("first", range(0, EXTREME, 50))
def test_programs_over_extremes_give_what_numpy_gives(con: einsql.Connection, first: int) -> None:
    """Infinities, NaN, empty arrays, views of them, changes in place."""
    compared = 0
    for seed in range(first, first + 50):
        run, arrays, single = random_extremes.program(seed)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # of NumPy, about NaN and numbers beyond float32
            try:
                expected = np.asarray(run(*arrays))
            except (ValueError, TypeError):  # shapes that do not broadcast, types NumPy lacks
                continue
            if expected.dtype == np.float16:  # of int8's roots; computed as float32 here
                continue
            finite = np.abs(expected[np.isfinite(expected)], dtype=float).max(initial=0)
            if finite > 1e9:
                continue
            found = np.asarray(einsql.trace(run, *arrays, connection=con)(*arrays))
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), seed
        near = 1e-9 if single is np.float64 else 1e-4
        np.testing.assert_allclose(
            found, expected, rtol=near, atol=near * max(1, finite), err_msg=f"seed {seed}"
        )
        compared += 1
    assert compared > 40


def test_random_modules_give_what_pytorch_gives(con: einsql.Connection) -> None:
    torch = pytest.importorskip("torch", reason="traces PyTorch's modules")
    from tests.frontends.trace.random_modules import module

    for seed in range(MODULES):
        made, x = module(seed)
        with torch.no_grad():
            expected = made(x).numpy()
        found = np.asarray(einsql.trace(made, x, connection=con)(x))
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype), seed
        scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=1))
        np.testing.assert_allclose(
            found, expected, rtol=2e-4, atol=1e-5 * scale, err_msg=f"seed {seed}"
        )
