"""Aggregates of hostile values are those of DuckDB, rounded once, at one site and at several."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from einsql.core.bfloat16 import narrow, rounded
from tests.support.hostile import (
    DOUBLES,
    FLOATS,
    HALVES,
    INTEGERS,
    MOST,
    STRATEGIES,
    WAYS,
    Groups,
    agrees,
    answers,
    members,
    prepared,
)

STATISTICS = tuple(
    f"{name}(val)" for name in ("AVG", "VAR_SAMP", "VAR_POP", "STDDEV_SAMP", "STDDEV_POP")
)
COMPILED = ("columns", "values")
"""Ways that are also tested on compiled kernels, which take longer."""
RUNS = [(way, "never", 1) for way in WAYS] + [(way, "always", 1) for way in COMPILED]
RUNS += [("rows", "never", 2), ("filtered", "never", 3), ("values", "never", 4)]


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as con:
        yield con


def run(
    groups: Groups, make: Callable[[list[list[float]]], np.ndarray], aggregates: Sequence[str]
) -> Iterator[tuple[str, list[list[float]], dict[int, tuple[object, ...]]]]:
    """Aggregates of groups in every way: the way, the groups' values, and what came out."""
    connections = {
        jit: einsql.connect(config={"jit": jit, "fallback": "off"}) for jit in ("never", "always")
    }
    for con in connections.values():
        prepared(con, groups, make)
    for way, jit, sites in RUNS:
        con, strategy = connections[jit], STRATEGIES[sites - 1]
        con.execute(f"SET sites = {sites}; SET strategy = '{strategy}'")
        found = answers(con, way, aggregates)
        assert sorted(found) == list(range(len(groups)))
        yield f"{way}, {jit}, {sites}, {strategy}", members(groups, way), found
    for con in connections.values():
        con.close()


def oracle(con: duckdb.DuckDBPyConnection, values: np.ndarray) -> list[float | None]:
    con.register("rows", pa.table({"val": values}))
    (answer,) = con.execute(f"SELECT {', '.join(STATISTICS)} FROM rows").fetchall()
    return list(answer)


def test_averages_of_integers_are_rounded_once() -> None:
    for told, groups, found in run(INTEGERS, np.array, ["AVG(val)"]):
        wanted = [float(Fraction(sum(map(int, v)), len(v))) for v in groups]
        assert [found[g] for g in range(len(groups))] == [(mean,) for mean in wanted], told


def test_averages_of_narrow_integers_and_decimals_are_rounded_once() -> None:
    with einsql.connect() as con:
        con.register("x", np.array([-2, -2, -1], np.int32), dims=("i",))
        pair = con.execute("SELECT AVG(val), AVG(val * 0.001) FROM x").fetchall()
        assert pair == [(-5 / 3, float(Fraction(-5, 3000)))]
        # Almost 2^23 times almost 2^31: the sum has more digits than DOUBLE.
        many = np.full(2**22 + 2**21 + 1, 2**31 - 1, np.int32)
        many[0] = -5
        con.register("x", many, dims=("i",))
        mean = float(Fraction(int(many.sum(dtype=np.int64)), len(many)))
        assert con.execute("SELECT AVG(val) FROM x").fetchall() == [(mean,)]
        columns = np.random.default_rng(3).integers(-(2**63), MOST, (500, 6), endpoint=True)
        con.register("t", columns, dims=("i", "j"))
        means = [float(Fraction(sum(column), 500)) for column in columns.T.tolist()]
        answer = con.execute("SELECT j, AVG(val) AS m FROM t GROUP BY j").fetchall()
        assert [m for _, m in sorted(answer)] == means


def test_statistics_of_doubles(duck: duckdb.DuckDBPyConnection) -> None:
    for told, groups, found in run(DOUBLES, np.array, STATISTICS):
        for g, values in enumerate(groups):
            wanted = oracle(duck, np.array(values))
            assert all(map(agrees, found[g], wanted)), (told, values, found[g], wanted)


@pytest.mark.parametrize("dtype", ["FLOAT", "HALF", "BFLOAT16"])
def test_statistics_of_floats_have_double_states(
    dtype: str, duck: duckdb.DuckDBPyConnection
) -> None:
    def stored(rows: object) -> np.ndarray:
        return np.array(rows, np.float16 if dtype == "HALF" else np.float32)

    def make(rows: object) -> np.ndarray:
        return narrow(stored(rows)) if dtype == "BFLOAT16" else stored(rows)

    for told, groups, found in run(HALVES if dtype == "HALF" else FLOATS, make, STATISTICS):
        for g, values in enumerate(groups):
            plain = stored(values)
            exact = oracle(duck, rounded(plain) if dtype == "BFLOAT16" else plain.astype("f4"))
            with np.errstate(over="ignore"):  # the variance of FLOATs may leave FLOAT
                wanted = [None if v is None else float(np.float32(v)) for v in exact]
            assert all(map(agrees, found[g], wanted)), (told, values, found[g], wanted)


def test_variances_of_equal_values_have_second_derivatives() -> None:
    with einsql.connect() as con:
        con.register("x", np.full(4, 0.1), dims=("i",))
        assert con.execute("SELECT VAR_POP(val) FROM x").fetchall() == [(0.0,)]
        rows = con.execute(
            "WITH loss AS (SELECT VAR_POP(val) AS val FROM x), "
            "along AS (SELECT SUM(g.val * g.i) AS val FROM GRADIENT(loss, x) g) "
            "SELECT val FROM GRADIENT(along, x)"
        ).fetchall()
    slopes = np.array([v for (v,) in rows])
    np.testing.assert_allclose(slopes, (np.arange(4) - 1.5) / 2, atol=1e-12)


COUNTS = (
    "SELECT COUNT_IF(val > 0) FROM t WHERE val > 9",
    "SELECT COUNT_IF(val > 9) FROM t",
    "SELECT COUNT_IF(val > 0) FILTER (WHERE val > 9) FROM t",
    "SELECT i, COUNT_IF(val > 1) FILTER (WHERE i > 0) FROM t GROUP BY i",
    "SELECT i, COUNT_IF(NULLIF(val, 2) > 0) FROM t GROUP BY i",
    "SELECT i, COUNTIF(NULLIF(val, 2) > 0) OVER (PARTITION BY i) FROM t",
    "SELECT i, (SELECT COUNT_IF(s.val > 1) FROM t s WHERE s.i < t.i) FROM t",
    "SELECT val, COUNT_IF(i > 0) FILTER (WHERE i > 0) FROM t GROUP BY val",
    "SELECT i FROM t GROUP BY i HAVING COUNT_IF(NULLIF(val, 2) > 0) IS NULL",
    "SELECT COUNT_IF(NULL) FROM t",
    "SELECT COALESCE(COUNT_IF(val > 0), -1) FROM t WHERE i > 7",
)


@pytest.mark.parametrize("query", COUNTS)
def test_counts_of_nothing_are_null(query: str, duck: duckdb.DuckDBPyConnection) -> None:
    values = np.array([1, 2, 0, 2])
    duck.register("t", pa.table({"i": np.arange(4), "val": values}))
    wanted = sorted(duck.execute(query).fetchall(), key=repr)
    with einsql.connect(config={"fallback": "off"}) as con:
        con.register("t", values, dims=("i",))
        for sites in (1, 3):
            con.execute(f"SET sites = {sites}")
            assert sorted(con.execute(query).fetchall(), key=repr) == wanted


GROUPS = (
    "SELECT val, COUNT(*) FROM t GROUP BY val",
    "SELECT val AS k, MAX(i) FROM t WHERE val > 5 GROUP BY val",
    "SELECT i + 9223372036854775805 AS k, COUNT(*) FROM t GROUP BY k",
    "SELECT i, COUNT(*) OVER (PARTITION BY val) FROM t",
    "SELECT val - 1, COUNT(*) FROM t GROUP BY val - 1",
)


@pytest.mark.parametrize("query", GROUPS)
def test_groups_of_the_greatest_integer(query: str, duck: duckdb.DuckDBPyConnection) -> None:
    values = np.full(3, MOST)
    duck.register("t", pa.table({"i": np.arange(3), "val": values}))
    with einsql.connect() as con:
        con.register("t", values, dims=("i",))
        assert sorted(con.execute(query).fetchall()) == sorted(duck.execute(query).fetchall())
        con.execute("SET fallback = 'off'")
        if "- 1" not in query:
            with pytest.raises(einsql.NotSupportedError, match=str(MOST)):
                con.execute(query)
