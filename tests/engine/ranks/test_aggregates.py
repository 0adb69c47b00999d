"""Aggregates of hostile values on MPI ranks: each rank has some of a group's values."""

from __future__ import annotations

from fractions import Fraction
from functools import partial

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from tests.engine.ranks.conftest import Connected
from tests.support.hostile import (
    DOUBLES,
    FLOATS,
    INTEGERS,
    WAYS,
    agrees,
    answers,
    members,
    prepared,
)

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

STATISTICS = ("AVG(val)", "VAR_POP(val)", "STDDEV_SAMP(val)")
SHARED = ("rows", "filtered", "values")


@pytest.mark.parametrize("strategy", ["equal", "data:i"])
def test_statistics_are_rounded_once(connected: Connected, strategy: str) -> None:
    con = connected(3)
    for groups, dtype in ((DOUBLES, np.float64), (FLOATS, np.float32)):
        prepared(con, groups, partial(np.array, dtype=dtype))
        con.execute(f"SET sites = 3; SET strategy = '{strategy}'")
        with duckdb.connect() as duck:
            for way in SHARED:
                found = answers(con, way, STATISTICS)
                for g, values in enumerate(members(groups, way)):
                    duck.register("rows", pa.table({"val": np.array(values, dtype)}))
                    (exact,) = duck.execute(f"SELECT {', '.join(STATISTICS)} FROM rows").fetchall()
                    with np.errstate(over="ignore"):
                        wanted = [None if v is None else float(dtype(v)) for v in exact]
                    assert all(map(agrees, found[g], wanted)), (way, values, found[g], wanted)


def test_averages_of_integers_and_counts_of_nothing(connected: Connected) -> None:
    con = connected(3)
    prepared(con, INTEGERS, np.array)
    con.execute("SET sites = 3; SET strategy = 'data:i'")
    for way in set(SHARED) & set(WAYS):
        found = answers(con, way, ["AVG(val)", "COUNT_IF(val > 5) FILTER (WHERE val > 5)"])
        for g, values in enumerate(members(INTEGERS, way)):
            whole = [int(v) for v in values]
            count = sum(v > 5 for v in whole) or None
            assert found[g] == (float(Fraction(sum(whole), len(whole))), count), way


def test_whole_groups_on_ranks(connected: Connected) -> None:
    """The reduced keys of a tensor that is cut along them are whole at a rank."""
    con = connected(3)
    a = np.random.default_rng(0).integers(0, 9, (5, 6, 4))
    con.register("b", a, ("i", "j", "k"))
    con.execute(
        "CREATE TENSOR whole (i DIM(5), j DIM(6), k DIM(4), val BIGINT) PARTITION BY (j 3); "
        "INSERT INTO whole SELECT * FROM b; SET sites = 3; SET strategy = 'data:j'"
    )
    query = (
        "SELECT i, k, MEDIAN(val) AS m, COUNT(DISTINCT val) AS n, MODE(val) AS o, LAST(val) AS l, "
        "SUM(val) AS s FROM whole GROUP BY i, k"
    )
    fields = con.execute(query).fetch_numpy()
    counts = np.apply_along_axis(np.bincount, 1, a, minlength=9)
    np.testing.assert_array_equal(fields["m"], np.median(a, axis=1))
    np.testing.assert_array_equal(fields["n"], (counts > 0).sum(axis=1))
    np.testing.assert_array_equal(fields["o"], counts.argmax(axis=1))
    np.testing.assert_array_equal(fields["l"], a[:, -1])
    np.testing.assert_array_equal(fields["s"], a.sum(axis=1))
    con.execute("DROP TENSOR whole")
