"""Windows with ORDER BY a key run on tensors, as in DuckDB over rows, at several sites."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from tests.support.samples import sample

KINDS = {"float32": "FLOAT", "float64": "DOUBLE", "int32": "INTEGER"}
PARTITIONS = ("PARTITION BY r", "PARTITION BY i", "")
FRAMES = (
    "",
    "ROWS UNBOUNDED PRECEDING",
    "ROWS BETWEEN 2 PRECEDING AND 1 FOLLOWING",
    "ROWS BETWEEN 3 PRECEDING AND 1 PRECEDING",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
    "RANGE BETWEEN 1 PRECEDING AND 2 FOLLOWING",
    "RANGE BETWEEN 1 FOLLOWING AND 2 FOLLOWING",
    "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "RANGE 2 PRECEDING",
)
AGGREGATES = (
    "SUM(val)", "AVG(val)", "MIN(val)", "MAX(val)", "COUNT(*)", "VAR_POP(val)", "STDDEV(val)",
    "SUM(val) FILTER (WHERE val > 0)", "COUNT(*) FILTER (WHERE val > 0)", "CORR(val, i)",
)  # fmt: skip
FUNCTIONS = (
    "LAG(val)", "LAG(val, 1, 7)", "LAG(val, -1)", "LEAD(val, 2)", "LEAD(val + i, 0)",
    "ROW_NUMBER()", "RANK()", "DENSE_RANK()", "FIRST_VALUE(val)", "LAST_VALUE(val)",
)  # fmt: skip


@pytest.fixture(scope="module")
def con() -> Iterator[einsql.Connection]:
    with einsql.connect(config={"jit": "wait", "fallback": "off"}) as connection:
        yield connection


def rows_of(duck: duckdb.DuckDBPyConnection, array: np.ndarray) -> None:
    """Stores an array in DuckDB, one row per element."""
    duck.execute(f"CREATE TABLE x (r BIGINT, i BIGINT, val {KINDS[array.dtype.name]})")
    rows = [(r, i, v.item()) for (r, i), v in np.ndenumerate(array)]
    duck.executemany("INSERT INTO x VALUES (?, ?, ?)", rows)


def same(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-9) or left != left != right


@settings(max_examples=sample(15, 100))
@given(
    st.sampled_from((*AGGREGATES, *FUNCTIONS)),
    st.sampled_from(PARTITIONS),
    st.sampled_from(("i", "i DESC", "r", "i + 2", "-i DESC", "3 - i")),
    st.sampled_from(FRAMES),
    st.sampled_from(("", "WHERE val > 0", "WHERE i > 0")),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from((1, 2, 3, 5)),
    st.integers(0, 99),
)
def test_agrees_with_duckdb(
    con: einsql.Connection,
    function: str,
    partition: str,
    order: str,
    frame: str,
    where: str,
    kind: str,
    sites: int,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    array = (random.integers(-5, 9, (3, 5)) / (1 if kind == "int32" else 2)).astype(kind)
    con.register("x", array, dims=("r", "i"))
    con.execute(f"SET sites = {sites}")
    query = (
        f"SELECT r, i, {function} OVER ({partition} ORDER BY {order} {frame}) AS v FROM x {where}"
    )
    with duckdb.connect() as duck:
        rows_of(duck, array)
        expected = sorted(duck.execute(query).fetchall(), key=lambda row: row[:2])
    try:
        answer = sorted(con.execute(query).fetchall(), key=lambda row: row[:2])
    except einsql.NotSupportedError:  # DuckDB runs it
        assert order == "r" or partition != "PARTITION BY r" or where == "WHERE val > 0"
        return
    assert [row[:2] for row in answer] == [row[:2] for row in expected]
    assert all(same(a[2], b[2]) for a, b in zip(answer, expected, strict=True)), (answer, expected)


@pytest.mark.parametrize(
    ("window", "message"),
    [
        ("SUM(val) OVER (ORDER BY val)", "ORDER BY a value that is no key"),
        ("SUM(val) OVER (ORDER BY r, i)", "ORDER BY several values"),
        ("SUM(val) OVER (ORDER BY i GROUPS 1 PRECEDING)", "This frame of a window"),
        ("SUM(val) OVER (ORDER BY i ROWS 1 PRECEDING)", "This frame of a window"),
        ("LAG(val) OVER (ORDER BY i)", "LAG of rows that the key does not number"),
        ("NTILE(2) OVER (PARTITION BY r ORDER BY i)", "The window function ntile"),
    ],
)
def test_other_windows_run_in_duckdb(con: einsql.Connection, window: str, message: str) -> None:
    array = np.arange(6.0).reshape(2, 3)
    con.execute("SET sites = 1")
    con.register("x", array, dims=("r", "i"))
    query = f"SELECT r, i, {window} AS v FROM x"
    with pytest.raises(einsql.NotSupportedError, match=message):
        con.execute(query)
    with duckdb.connect() as duck, einsql.connect() as other:
        rows_of(duck, array)
        other.register("x", array, dims=("r", "i"))
        assert sorted(other.execute(query).fetchall()) == sorted(duck.execute(query).fetchall())


def test_running_sums_and_differences_take_linear_time(con: einsql.Connection) -> None:
    """Ten million pairs of rows would take much longer than the rest of the tests."""
    array = np.random.default_rng(3).integers(0, 9, (3, 100_000)).astype(np.float64)
    con.execute("SET sites = 1")
    con.register("x", array, dims=("r", "i"))
    window = "OVER (PARTITION BY r ORDER BY i)"
    sums = con.execute(f"SELECT r, i, SUM(val) {window} AS val FROM x").fetch_numpy()
    np.testing.assert_array_equal(sums, array.cumsum(axis=1))
    steps = con.execute(f"SELECT r, i, val - LAG(val, 1, 0) {window} AS val FROM x").fetch_numpy()
    np.testing.assert_array_equal(steps, np.diff(array, axis=1, prepend=0))
    first = con.execute(f"SELECT r, i, FIRST_VALUE(val) {window} AS val FROM x").fetch_numpy()
    np.testing.assert_array_equal(first, np.broadcast_to(array[:, :1], array.shape))


def test_windows_have_gradients(con: einsql.Connection) -> None:
    con.execute("SET sites = 1")
    con.register("x", np.array([1.0, 2, 4, 8]), dims=("i",))
    con.execute(
        "CREATE OR REPLACE TEMP VIEW loss AS WITH d AS (SELECT i, val - LAG(val, 1, 0) "
        "OVER (ORDER BY i) AS val FROM x) SELECT SUM(val * val) AS val FROM d"
    )
    slope = con.execute("SELECT * FROM GRADIENT(loss, x)").fetch_numpy()
    np.testing.assert_array_equal(slope, [0, -2, -4, 8])
    con.execute("DROP VIEW loss")
