"""MAX(v, n) and ARG_MAX(a, v, n), as in DuckDB over rows, at several sites."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from tests.support.samples import sample

KINDS = {"float32": "FLOAT", "float64": "DOUBLE", "int32": "INTEGER", "int64": "BIGINT"}
CALLS = (
    "MAX(x.val, 2)", "MIN(x.val, 3)", "MAX(x.val, 999999)", "MAX(x.k, 2)", "MIN(x.val > 1, 4)",
    "MAX(NULLIF(x.val, 1), 2)", "MIN(x.val + y.val, 2)", "MAX(x.val, 1)",
    # Arguments of equal values differ between the engines, so the values are distinct.
    "ARG_MAX(x.k, y.val, 3)", "MIN_BY(x.val, y.val, 2)", "ARG_MAX(NULLIF(x.val, 1), y.val, 9)",
    "ARG_MIN(y.val, NULLIF(y.val, 3), 2)", "MAX_BY(x.k * 0.5::DOUBLE, y.val, 2)",
)  # fmt: skip
FORMS = (
    "SELECT x.g, {} AS v FROM x JOIN y USING (g, k) GROUP BY x.g",
    "SELECT {} AS v FROM x JOIN y USING (g, k)",
    "SELECT x.k, {} FILTER (WHERE x.val > 0.5 AND y.val < 9) AS v "
    "FROM x JOIN y USING (g, k) GROUP BY x.k",
    "SELECT n.val AS b, {} AS v FROM x JOIN y USING (g, k) JOIN n ON n.k = x.k GROUP BY n.val",
    "SELECT x.k // 2 AS h, {} AS v FROM x JOIN y USING (g, k) WHERE x.val <> 3.5 GROUP BY x.k // 2",
    "SELECT x.g, SUM(y.val) AS s, {} AS v FROM x JOIN y USING (g, k) GROUP BY x.g "
    "HAVING COUNT(x.val) > 0",
)
UNNESTED = (
    "SELECT x.g, generate_subscripts({0}, 1) AS n, UNNEST({0}) AS v "
    "FROM x JOIN y USING (g, k) GROUP BY x.g",
    "SELECT x.g, UNNEST({0}) AS v, UNNEST(MAX(y.val, 4)) AS w, SUM(y.val) AS s "
    "FROM x JOIN y USING (g, k) GROUP BY x.g",
    "SELECT x.k // 2 AS h, UNNEST({0}) AS v FROM x JOIN y USING (g, k) GROUP BY x.k // 2",
    "SELECT x.g, ({0})[1] AS v, ({0})[3] AS w FROM x JOIN y USING (g, k) GROUP BY x.g",
)
VALUES = (0.25, 1, 2, 3.5, -4, 1, math.nan, math.inf)


@pytest.fixture(scope="module")
def con() -> Iterator[einsql.Connection]:
    config = {"jit": "wait", "fallback": "off", "float_math": "double"}
    with einsql.connect(config=config) as connection:
        yield connection


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def stored(con: einsql.Connection, duck: duckdb.DuckDBPyConnection, kind: str, seed: int) -> None:
    """Stores the same data in both: in `y` all values differ."""
    random = np.random.default_rng(seed)
    few = 6 if kind.startswith("int") else len(VALUES)
    arrays = {
        "x": random.choice(VALUES[:few], (3, 5)).astype(kind),
        "y": random.permutation(15).astype(np.float64).reshape(3, 5),
        "n": random.integers(0, 3, 5),
    }
    for name, array in arrays.items():
        dims = ("g", "k")[-array.ndim :]
        con.register(name, array, dims=dims)
        keys = ", ".join(f"{d} BIGINT" for d in dims)
        duck.execute(f"CREATE OR REPLACE TABLE {name} ({keys}, val {KINDS[array.dtype.name]})")
        rows = [(*at, v.item()) for at, v in np.ndenumerate(array)]
        duck.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * (array.ndim + 1))})", rows)


def comparable(rows: list[tuple[Any, ...]]) -> list[str]:
    """The rows in one order; NaN is equal to NaN."""
    return sorted(map(repr, rows))


@settings(max_examples=sample(15, 600), deadline=None)
@given(
    st.sampled_from(CALLS),
    st.sampled_from((*FORMS, *UNNESTED)),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from((1, 2, 3, 5)),
    st.integers(0, 999),
)
def test_equal_to_duckdb(
    con: einsql.Connection,
    duck: duckdb.DuckDBPyConnection,
    call: str,
    form: str,
    kind: str,
    sites: int,
    seed: int,
) -> None:
    stored(con, duck, kind, seed)
    con.execute(f"SET sites = {sites}")
    query = form.format(call)
    cursor, expected = con.execute(query), duck.execute(query)
    if "0.5" not in call:
        types = [str(d[1]) for d in expected.description or ()]
        assert [d[1] for d in cursor.description or ()] == types
    assert comparable(cursor.fetchall()) == comparable(expected.fetchall())


def test_ties_take_the_least_arguments_and_nan_is_the_greatest(con: einsql.Connection) -> None:
    con.execute("SET sites = 2")
    con.register("t", np.array([[1, 3, math.nan, 3, 3], [7, 7, 7, 7, 0]]), dims=("g", "k"))
    best = con.execute(
        "SELECT g, ARG_MAX(k, val, 3) AS a, ARG_MIN(k, val, 9) AS b FROM t GROUP BY g"
    )
    assert best.fetchall() == [(0, [2, 1, 3], [0, 1, 3, 4, 2]), (1, [0, 1, 2], [4, 0, 1, 2, 3])]


def test_no_element_beyond_the_group(con: einsql.Connection) -> None:
    con.execute("SET sites = 1")
    con.register("t", np.ones(3), dims=("k",))
    query = "SELECT k, MIN(val, 1000)[3] AS v FROM t WHERE k BETWEEN 2 AND 2 GROUP BY k"
    assert con.execute(query).fetchall() == [(2, None)]


def test_lists_that_are_read_twice(con: einsql.Connection, duck: duckdb.DuckDBPyConnection) -> None:
    """An equal call is bound once, also between calls of other lists."""
    con.execute("SET sites = 1")
    stored(con, duck, "float64", 0)
    query = (
        "SELECT k, MAX(val, 1)[2] + 1 AS a, IF(MAX(k, 3)[2] > 1, 1, MAX(val, 1)[2]) AS b, "
        "MAX(k, 3)[2] * MAX(val, 1)[1] AS c FROM y GROUP BY k"
    )
    assert comparable(con.execute(query).fetchall()) == comparable(duck.execute(query).fetchall())


def test_results_of_lists(
    con: einsql.Connection, duck: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    """Rows, arrays and Arrow tables; a LIST is an axis, and a key under UNNEST."""
    con.execute("SET sites = 1")
    t = np.array([[4, 2, 9.0], [1, 8, 5]])
    con.register("t", t, dims=("g", "k"))
    query = "SELECT g, ARG_MAX(k, val, 2) AS best FROM t WHERE val > 4 GROUP BY g"
    assert con.execute(query).fetch_arrow_table().to_pydict() == {
        "g": [0, 1],
        "best": [[2], [1, 2]],
    }
    np.testing.assert_array_equal(con.execute(query).fetch_numpy(fill=-1), [[2, -1], [1, 2]])
    con.execute(
        "CREATE OR REPLACE TEMP TENSOR top AS SELECT g, "
        "generate_subscripts(MAX(val, 2), 1) - 1 AS n, UNNEST(MAX(val, 2)) AS val FROM t GROUP BY g"
    )
    np.testing.assert_array_equal(con.execute("SELECT * FROM top").fetch_numpy(), [[9, 4], [8, 5]])
    with pytest.raises(einsql.ProgrammingError, match="cannot hold a LIST"):
        con.execute(f"COPY ({query}) TO '{tmp_path / 'lists.csv'}'")
    path = tmp_path / "lists.parquet"
    con.execute(f"COPY ({query}) TO '{path}'")
    assert duck.execute(f"FROM '{path}'").fetchall() == [(0, [2]), (1, [1, 2])]
    with pytest.raises(einsql.Error, match="not selected"):
        con.execute("CREATE TEMP TENSOR bad AS SELECT g, MAX(val, 2) AS m FROM t GROUP BY g")
    joined = con.execute(
        "WITH best AS (SELECT g, UNNEST(ARG_MAX(k, val, 2)) AS k FROM t GROUP BY g) "
        "SELECT t.g, SUM(t.val) AS s FROM t JOIN best b ON b.g = t.g AND b.k = t.k GROUP BY t.g"
    )
    assert joined.fetchall() == [(0, 13.0), (1, 13.0)]


def test_duckdb_takes_lists_of_fragments(duck: duckdb.DuckDBPyConnection) -> None:
    """Only the lists leave for DuckDB, which runs the functions of lists."""
    t = np.random.default_rng(0).permutation(120_000).astype(np.float64).reshape(40, 3000)
    queries = (
        "SELECT g, LIST_SUM(MAX(val, 3)) AS s FROM t GROUP BY g ORDER BY s DESC LIMIT 3",
        "SELECT g, UNNEST(a) AS k FROM (SELECT g, ARG_MIN(k, val, 2) AS a FROM t GROUP BY g) "
        "ORDER BY ALL",
        "SELECT ARG_MAX(k, val, 2)[2:] AS a FROM t GROUP BY g ORDER BY ALL",
        "SELECT LIST(k ORDER BY val DESC)[1:-2998] AS a FROM t GROUP BY g ORDER BY ALL",
        "SELECT LIST(k ORDER BY val)[1:0] AS a FROM t GROUP BY g ORDER BY ALL",
    )
    duck.register(
        "r",
        {
            "g": np.repeat(np.arange(40), 3000),
            "k": np.tile(np.arange(3000), 40),
            "val": t.reshape(-1),
        },
    )
    duck.execute("CREATE OR REPLACE TABLE t AS FROM r")
    with einsql.connect() as mixed:
        mixed.register("t", t, dims=("g", "k"))
        for query in queries[:3]:
            assert mixed.execute(query).fetchall() == duck.execute(query).fetchall()
        assert not mixed.notices
        for query in queries[3:]:  # any end of a slice but a count is DuckDB's
            assert mixed.execute(query).fetchall() == duck.execute(query).fetchall()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("MAX(val, 0)", "must be greater than 0 and less than 1,000,000"),
        ("ARG_MIN(k, val, -1)", "must be greater than 0"),
        ("MIN(val, 1000000)", "less than 1,000,000"),
        ("MAX(val, NULL)", "cannot be NULL"),
        ("ARG_MAX(k, val, 1.5)", "needs an integer"),
        ("MAX(val, k)", "no constant"),
        ("MAX(DISTINCT val, 2)", "outside"),
        ("MAX(val, 2) + 1", "LIST inside of an expression"),
        ("UNNEST(MAX(val, 2)) AS a, MAX(val, 2)", "LIST beside UNNEST"),
        ("MAX(val, 2) AS a, SUM(SUM(val)) OVER ()", "window beside a LIST"),
        ("MAX(val * 0.5::DECIMAL(5, 1), 2)", "DECIMAL"),
        ("MAX(val, 2)[k]", "no literal"),
    ],
)
def test_refused_with_a_reason(con: einsql.Connection, call: str, message: str) -> None:
    con.execute("SET sites = 1")
    con.register("t", np.ones((2, 3), np.int32), dims=("g", "k"))
    with pytest.raises(einsql.Error, match=message) as raised:
        con.execute(f"SELECT {call} FROM t")
    assert raised.value.position is not None
