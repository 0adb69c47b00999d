"""CAST over arrays: values that do not fit are arbitrary, and nothing is said about them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import einsql
from einsql.core.schema import DType
from einsql.ir.functions.casts import cast_array

FLOATS = [
    math.nan,
    math.inf,
    -math.inf,
    1e300,
    -1e300,
    1e39,
    65520.0,
    2.0**63,
    2.0**31,
    0.5,
    -129.0,
]
INTEGERS = [-(2**63), 2**63 - 1, 2**31, 65520, 200, 0]


@pytest.mark.parametrize(("source", "target"), [*itertools.product(DType, DType)])
def test_values_beyond_the_target_cause_no_warning(source: DType, target: DType) -> None:
    values = FLOATS if source.is_float else INTEGERS if source.is_integer else [True]
    for value in values:
        with np.errstate(all="ignore"):
            given = np.full(40, value).astype(source.carrier)
        for array in (given, given[:1].reshape(())):
            assert cast_array(array, target).shape == array.shape


@pytest.mark.filterwarnings("error")
def test_casts_of_values_that_where_leaves_out() -> None:
    con = einsql.connect()
    con.register("x", np.array([1e300, math.nan, math.inf, 2.5, 70000.0]))
    con.register("h", np.array([math.inf, math.nan, 2.5], np.float16))
    for dtype, most in (("FLOAT", 1e9), ("HALF", 1e4), ("INTEGER", 1e9), ("BIGINT", 1e9)):
        sql = f"SELECT d0, CAST(val AS {dtype}) AS v FROM {{}} WHERE val < {most} AND val = val"
        found = con.execute(sql.format("x")).fetchall()
        assert found[0] == (3, 2 if "INT" in dtype else 2.5)
        assert con.execute(sql.format("h")).fetchall() == [(2, found[0][1])]
