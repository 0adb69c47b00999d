"""Answers that once were wrong, each on the data that showed it, against DuckDB."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql

TENSORS: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
    "t": (("i", "j"), np.ones((2, 2))),
    "z": (("i",), np.array([2, 1, 5], np.int32)),
    "x": (("i", "j"), np.arange(12, dtype=np.float32).reshape(3, 4) - 5),
    "y": (("j", "k"), np.arange(8, dtype=np.float32).reshape(4, 2) - 3),
}

QUERIES = [
    # NULL must survive where a key is made NULL
    "SELECT i, nullif(j, i) AS n FROM t",
    "SELECT SUM(n) FROM (SELECT j, nullif(i, j) AS n FROM t) AS q",
    # what stands in a NULL's place must not raise
    "SELECT MAX(val) * 2 FROM z WHERE i > 5",
    "SELECT i, MAX(val) FILTER (WHERE i < 0) * 2 FROM z GROUP BY i",
    "SELECT 1 // (SUM(val) FILTER (WHERE i < 0)) FROM z",
    "SELECT CAST(MIN(val) FILTER (WHERE i < 0) AS TINYINT) FROM z",
    "SELECT i, (SELECT MIN(b.val) FROM z b WHERE b.i = z.i + 1) * 2 FROM z",
    "SELECT i, MIN(nullif(val, val)) OVER () * val FROM z",
    # a power of a half is no square root
    "SELECT POW('-inf'::DOUBLE, 0.5::DOUBLE), POW(-0.0::DOUBLE, 0.5::DOUBLE)",
    # a key that another one helps to compute does not meet all of its values
    "SELECT t.j, x.j AS o, COUNT(*) AS n, MAX(x.val) AS m FROM x, t WHERE x.j = t.i * 2 + t.j "
    "GROUP BY t.j, x.j",
]


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for name, (dims, array) in TENSORS.items():
        index = np.indices(array.shape).reshape(array.ndim, -1)
        columns = {d: index[n].astype(np.int64) for n, d in enumerate(dims)}
        rows = pa.table({**columns, "val": array.reshape(-1)})
        con.register("rows", rows)
        con.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
    return con


@pytest.mark.parametrize("sql", QUERIES)
@pytest.mark.parametrize("jit", ["never", "always"])
def test_agrees_with_duckdb(duck: duckdb.DuckDBPyConnection, sql: str, jit: str) -> None:
    con = einsql.connect(config={"jit": jit})
    for name, (dims, array) in TENSORS.items():
        con.register(name, array, dims)
    expected = duck.execute(sql).fetchall()
    assert sorted(con.execute(sql).fetchall(), key=repr) == sorted(expected, key=repr)


def test_a_product_over_an_arg_min_plans() -> None:
    con = einsql.connect(config={"jit": "never"})
    con.register("t0", np.ones((3, 2), np.float32), ("i", "j"))
    con.register("t2", np.ones(3, np.float32), ("i",))
    sql = """
        WITH c AS (
          SELECT i, j, ARG_MIN(i, val) OVER (PARTITION BY i, j) AS v FROM t0)
        SELECT a.i, SUM(a.w * c.v) AS s
        FROM (SELECT t2.i, c.j, c.j & t2.i AS w FROM t2, c WHERE t2.i = c.i) AS a
        JOIN c USING (j) GROUP BY a.i"""
    assert con.execute(sql).fetchall() == [(0, 0), (1, 3), (2, 0)]


def test_a_key_of_one_value_may_be_left_out() -> None:
    con = einsql.connect(config={"jit": "never"})
    for name, (dims, array) in TENSORS.items():
        con.register(name, array, dims)
    found = con.execute("SELECT i, val FROM x WHERE j = 2").fetch_numpy()
    np.testing.assert_array_equal(found, TENSORS["x"][1][:, 2])
    assert con.execute("SELECT val FROM x WHERE j = 2 AND i = 1").fetch_numpy() == 1
    assert con.execute("SELECT i, val FROM x WHERE j = 9").fetchall() == []
    con.execute("CREATE TENSOR kept AS SELECT i, val FROM x WHERE j = 2 AND val > -3")
    assert con.execute("SELECT * FROM kept").fetchall() == [(1, 1.0), (2, 5.0)]


@pytest.mark.parametrize(
    "sql",
    ["WITH u AS (SELECT nosuch FROM w) SELECT SUM(val) AS s FROM w",
     "WITH u AS (SELECT * FROM nothere) SELECT SUM(val) AS s FROM w",
     "WITH u AS (SELECT f(val) FROM w) SELECT SUM(val) AS s FROM w",
     "WITH u AS (SELECT nosuch FROM w), z AS (SELECT * FROM u) SELECT SUM(val) AS s FROM w",
     "WITH u AS (SELECT nosuch FROM w) SELECT SUM(val) AS s FROM w ORDER BY s || ''",
     "SELECT * FROM (WITH u AS (SELECT nosuch FROM w) SELECT SUM(val) AS s FROM w) q"],
)  # fmt: skip
def test_what_nothing_reads_may_be_wrong(sql: str) -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR w (i DIM(3), val FLOAT) DEFAULT 1")
    assert con.execute(sql).fetchall() == [(3.0,)]


@pytest.mark.parametrize(
    "sql",
    ["WITH u AS (SELECT nosuch FROM w) SELECT (SELECT MAX(nosuch) FROM u) AS m",
     "WITH u AS (SELECT nosuch FROM w), z AS (SELECT * FROM u) SELECT * FROM z",
     "WITH u AS (SELECT nosuch FROM w), u AS (SELECT val FROM w) SELECT SUM(val) AS s FROM w"],
)  # fmt: skip
def test_what_something_reads_may_not(sql: str) -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR w (i DIM(3), val FLOAT) DEFAULT 1")
    with pytest.raises(einsql.ProgrammingError):
        con.execute(sql)


EMPTY = """
WITH c AS (
  SELECT k3, a7.j, m, a11.i, a11.k8, COALESCE(STDDEV_POP(COS(a11.v9)), 3) AS v14
  FROM (SELECT a1.j, a2.j AS k3, CBRT(a1.val) AS v2 FROM d AS a1 CROSS JOIN t AS a2
        JOIN t AS a3 ON a1.j = a3.j AND a1.i = a3.i AND a3.m = a2.m
        WHERE a2.val <> 0 AND a2.i >= 0) AS a4
  CROSS JOIN (SELECT a5.j - 1 AS j, a6.m, SUM((SELECT AVG(q.val) FROM d AS q)) AS v6
              FROM d AS a5, s AS a6 WHERE a6.m = a5.i GROUP BY a5.j - 1, a6.m) AS a7
  JOIN (SELECT a8.i, a10.j AS k8, a10.i AS k12, a9.val * POWER(a8.val, 2) AS v9
        FROM d AS a8, t AS a9, d AS a10
        WHERE a9.j = a8.j AND a9.i = a8.i AND a10.j = a8.j AND a8.i = a10.i AND a9.m = a10.m
          AND a9.val < a8.m) AS a11 ON a11.k12 = a4.j
  GROUP BY k3, a7.j, m, a11.i, a11.k8)
SELECT x.k3, x.m, d.j, d.i, d.m AS k18, y.k3 AS k19, x.v14
FROM c AS x, d, (SELECT z.k3, s.j, s.m FROM c AS z, s
                 WHERE s.i = z.j - 1 AND z.k8 = s.m AND z.i BETWEEN 0 AND 0) AS y
WHERE x.j = d.j AND x.m = d.m AND y.m < x.j"""


def test_a_result_without_keys_is_one_tile() -> None:
    """The key `a5.j - 1` has no value, and another key was cut into tiles of no elements."""
    con = einsql.connect(config={"sites": 3, "strategy": "paper", "float_math": "double"})
    dims = ("j", "i", "m")
    con.register("bits", np.zeros((2, 1, 1), bool), dims=dims)
    con.register("twos", np.full((1, 1, 1), 2.0), dims=dims)
    con.execute("CREATE TENSOR s (j DIM(2), i DIM(1), m DIM(1), val BOOLEAN)")
    con.execute("INSERT INTO s SELECT j, i, m, val FROM bits")
    con.execute("CREATE TENSOR t PARTITION BY () AS SELECT j, i, m, val FROM twos")
    con.execute("DELETE FROM t WHERE j % 2 = 0")
    con.execute("INSERT INTO t SELECT j, i, m, val FROM twos WHERE j % 2 = 0")
    con.execute("CREATE TENSOR d AS SELECT j, i, m, val FROM t WHERE j <= i")
    con.execute("DELETE FROM t WHERE j % 2 = 0")
    assert con.execute(EMPTY).fetchall() == []
