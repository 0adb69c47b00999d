"""Random NumPy programs, traced, give what NumPy gives."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import einsql
from tests.frontends.random_programs import program

SEEDS = 300


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
