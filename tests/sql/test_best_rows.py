"""The first rows of a partition in the order of a value, as in DuckDB, at several sites."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from tests.support.samples import sample

NUMBER = "ROW_NUMBER() OVER ({} ORDER BY {} {})"
SELECTS = (
    "SELECT g, k, val FROM x WHERE {where} QUALIFY {number} <= {most}",
    "SELECT g, {number} AS n, k FROM x WHERE {where} QUALIFY n <= {most}",
    "SELECT g, k, val * 2 AS w FROM x WHERE {where} QUALIFY {number} <= {most} AND val > 3",
    "SELECT * FROM (SELECT g, k, val, {number} AS n FROM x WHERE {where}) WHERE n <= {most}",
    "WITH r AS (SELECT *, {number} AS n FROM x WHERE {where}) "
    "SELECT r.g, SUM(r.val) AS s FROM r WHERE r.n <= {most} GROUP BY r.g",
    "SELECT x.g, x.k, y.k AS l, x.val + y.val AS s FROM x JOIN y USING (g) WHERE {where} "
    "QUALIFY ROW_NUMBER() OVER (PARTITION BY x.g ORDER BY x.val + 100 * y.val DESC) <= {most}",
    "SELECT g, k % 2 AS h, SUM(val) AS s FROM x WHERE {where} GROUP BY g, k % 2 "
    "QUALIFY ROW_NUMBER() OVER (PARTITION BY g ORDER BY s) <= {most}",
)


@pytest.fixture(scope="module")
def con() -> Iterator[einsql.Connection]:
    with einsql.connect(config={"jit": "wait", "fallback": "off"}) as connection:
        yield connection


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def stored(con: einsql.Connection, duck: duckdb.DuckDBPyConnection, kind: str, seed: int) -> None:
    """Stores the same distinct values in both; sums of two of them are distinct, too."""
    random = np.random.default_rng(seed)
    for name in ("x", "y"):
        array = 2.0 ** random.permutation(12).reshape(3, 4)
        con.register(name, array.astype(kind), dims=("g", "k"))
        duck.execute(f"CREATE OR REPLACE TABLE {name} (g BIGINT, k BIGINT, val DOUBLE)")
        rows = [(*at, v.item()) for at, v in np.ndenumerate(array)]
        duck.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)


@settings(max_examples=sample(15, 600), deadline=None)
@given(
    st.sampled_from(SELECTS),
    st.sampled_from(("PARTITION BY g", "", "PARTITION BY k", "PARTITION BY k // 2")),
    st.sampled_from(("val", "-val", "val * 0.5", "val % 7 + val")),
    st.sampled_from(("", "DESC", "DESC NULLS LAST")),
    st.sampled_from(("x.val > 0", "x.val > 9", "x.k > 1", "x.val > 99999")),
    st.sampled_from((1, 2, 5, 100)),
    st.sampled_from(("float32", "float64", "int64")),
    st.sampled_from((1, 2, 3, 5)),
    st.integers(0, 99),
)
def test_equal_to_duckdb(
    con: einsql.Connection,
    duck: duckdb.DuckDBPyConnection,
    select: str,
    partition: str,
    order: str,
    direction: str,
    where: str,
    most: int,
    kind: str,
    sites: int,
    seed: int,
) -> None:
    stored(con, duck, kind, seed)
    con.execute(f"SET sites = {sites}")
    number = NUMBER.format(partition, order, direction)
    query = select.format(number=number, where=where, most=most)
    assert sorted(con.execute(query).fetchall()) == sorted(duck.execute(query).fetchall())


def test_ties_are_ordered_by_key(con: einsql.Connection) -> None:
    con.execute("SET sites = 2")
    con.register("t", np.array([[2, 5, 5, 5], [1, 1, 1, 1]]), dims=("g", "k"))
    query = "SELECT g, k FROM t QUALIFY ROW_NUMBER() OVER (PARTITION BY g ORDER BY val DESC{}) <= 2"
    for ties in ("", ", k"):
        assert con.execute(query.format(ties)).fetchall() == [(0, 1), (0, 2), (1, 0), (1, 1)]


def test_results_are_arrays_and_tensors(con: einsql.Connection) -> None:
    """With its ROW_NUMBER as a key a result is dense; without it, a tensor keeps the other keys."""
    con.execute("SET sites = 1")
    t = np.array([[2.0, 9, 5], [7, 1, 8]])
    con.register("t", t, dims=("g", "k"))
    number = "ROW_NUMBER() OVER (PARTITION BY g ORDER BY val DESC)"
    best = con.execute(f"SELECT g, {number} - 1 AS n, k, val FROM t QUALIFY n < 2").fetch_numpy()
    np.testing.assert_array_equal(best["k"], [[1, 2], [2, 0]])
    np.testing.assert_array_equal(best["val"], [[9, 5], [8, 7]])
    query = f"SELECT g, k, val FROM t QUALIFY {number} <= 2"
    with pytest.raises(einsql.InterfaceError, match="row number"):
        con.execute(query).fetch_numpy()
    with einsql.connect() as other:
        other.register("t", t, dims=("g", "k"))
        every = [(*at, cell.item()) for at, cell in np.ndenumerate(t)]
        for most, rows in ((1, [(0, 1, 9.0), (1, 2, 8.0)]), (99, every)):
            other.execute(f"CREATE OR REPLACE TENSOR best AS {query.replace('<= 2', f'<= {most}')}")
            assert other.execute("SELECT * FROM best").fetchall() == rows


LIMITED = (
    "SELECT g, k, val FROM t ORDER BY val DESC LIMIT 3",
    "SELECT g, k FROM t ORDER BY val LIMIT 2 OFFSET 2",
    "SELECT g, SUM(val) AS s FROM t GROUP BY g ORDER BY 2 DESC LIMIT 2",
    "SELECT k, val + 1 AS w FROM t WHERE g = 1 ORDER BY w LIMIT 4",
    "SELECT g, k, val FROM t WHERE val > 1e9 ORDER BY val LIMIT 4",
    "SELECT g, k, NULLIF(val, 7) AS w FROM t ORDER BY w DESC NULLS FIRST LIMIT 2",
    "SELECT k, -val AS val FROM t WHERE g = 1 ORDER BY val LIMIT 4",
    "SELECT k, val AS w FROM t WHERE g = 1 ORDER BY -val LIMIT 4",
    "SELECT val % 10 AS w, k FROM t ORDER BY w, val DESC LIMIT 3",
)


@pytest.mark.parametrize("query", LIMITED)
def test_duckdb_takes_the_rows_up_to_a_limit(duck: duckdb.DuckDBPyConnection, query: str) -> None:
    t = np.random.default_rng(0).permutation(120_000).astype(np.float64).reshape(40, 3000)
    rows = {"g": np.indices(t.shape)[0].ravel(), "k": np.indices(t.shape)[1].ravel()}
    duck.register("t", {**rows, "val": t.ravel()})
    with einsql.connect() as mixed:
        mixed.register("t", t, dims=("g", "k"))
        assert mixed.execute(query).fetchall() == duck.execute(query).fetchall()
        assert bool(mixed.notices) == ("NULLIF" in query or "% 10" in query)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT g FROM t QUALIFY {} ORDER BY NULLIF(val, 1)) <= 2", "may be NULL"),
        ("SELECT g FROM t QUALIFY {} ORDER BY val, val * 2) <= 2", "several values"),
        ("SELECT g, {} ORDER BY val + 1) FROM t QUALIFY {} ORDER BY val) <= 2", "the best rows"),
        ("SELECT g FROM t QUALIFY {} ORDER BY val) <= k", "no key"),
        ("SELECT g FROM (SELECT g, {} ORDER BY val) AS n FROM t) WHERE n > 2", "no key"),
    ],
)
def test_refused_with_a_reason(con: einsql.Connection, query: str, message: str) -> None:
    con.execute("SET sites = 1")
    con.register("t", np.ones((2, 3)), dims=("g", "k"))
    with pytest.raises(einsql.NotSupportedError, match=message) as raised:
        con.execute(query.replace("{}", "ROW_NUMBER() OVER (PARTITION BY g"))
    assert raised.value.position is not None
