"""Grouping, windows, subqueries and aliases: the answers of DuckDB, or a refusal."""

from __future__ import annotations

import math

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from tests.support.samples import spread

INF, NAN = math.inf, math.nan
BIG = 2**53 + 1

TENSORS: dict[str, tuple[tuple[str, ...], np.ndarray]] = {
    "a": (("i", "j"), np.array([[2, 0, -3, 4], [1, 0, 0, 5], [-2, 3, 1, 0]], np.int64)),
    "b": (("i", "j"), np.arange(12).reshape(4, 3) / 4 - 1),
    "t": (("i",), np.array([2, 0, 1, 3, 2], np.int32)),
    "big": (("i",), np.array([BIG, 1, -BIG, 2**63 - 1, 2**63 - 1, -(2**63)], np.int64)),
    "int": (("i",), np.array([2**31 - 1, 2**31 - 1, -(2**31), 3], np.int32)),
    "odd": (("i",), np.array([NAN, INF, -INF, 1.0, 2.5])),
    "half": (("i",), np.array([1, 0, 2, 0], np.int64)),
}
MASKED = "CREATE TENSOR m AS SELECT i, j, val FROM a WHERE val <> 0"

AGREE = [
    "SELECT (SUM(0.5) * SUM(0.25))::DOUBLE AS s FROM range(1000)",  # wider than its terms
    # a window inside a correlated subquery sees one outer row's rows
    "SELECT i, (SELECT SUM(SUM(b.val)) OVER () FROM b WHERE b.i = t.i) AS s FROM t",
    "SELECT i, (SELECT MAX(COUNT(*)) OVER (PARTITION BY t.i) FROM b WHERE b.i < t.i) AS s FROM t",
    # an outer column first met inside an aggregate
    "SELECT i, (SELECT SUM(b.val * t.i) FROM b) AS s FROM t",
    "SELECT i, (SELECT SUM(b.val) + SUM(b.val * t.i) FROM b) AS s FROM t",
    "SELECT i, (SELECT SUM(b.val) FILTER (WHERE b.i < t.i) FROM b) AS s FROM t",
    "SELECT i, (SELECT VAR_POP(b.val * t.i) FROM b WHERE b.j = 1) AS s FROM t",
    "SELECT i, (SELECT COUNT(*) FROM b HAVING SUM(b.i - t.i) > 0) AS s FROM t",
    "SELECT i, (SELECT MAX(b.val) + t.i FROM b WHERE b.i = t.i) AS s FROM t",
    "SELECT i, SUM((SELECT SUM(b.val * a.j) FROM b WHERE b.i = a.i)) AS s FROM a GROUP BY i",
    "SELECT i, (SELECT COUNT(*) FROM b GROUP BY t.i) AS s FROM t",
    # one row without GROUP BY, whatever is selected
    "SELECT COUNT(NULL) AS n, MAX(NULL) AS m, SUM(NULL) AS s FROM a WHERE i > 7",
    "SELECT COUNT(NULL) AS n FROM a",
    "SELECT MAX(NULL) AS n FROM a WHERE i > 7",
    "SELECT i, COUNT(NULL) AS n FROM a WHERE i > 7 GROUP BY i",
    "SELECT i, (SELECT COUNT(NULL) FROM b WHERE b.i = t.i) AS n FROM t",
    "SELECT 1 AS x FROM a HAVING TRUE",
    "SELECT 1 AS x FROM a HAVING 1 > 2",
    "SELECT COUNT_IF(NULL) AS n, AVG(NULL) AS a, BOOL_OR(NULL) AS b FROM a",
    "SELECT ARG_MIN(val, NULL) AS n, PRODUCT(NULL) AS p FROM a",
    # averages of integers are exact
    "SELECT AVG(val) AS v FROM big",
    "SELECT i % 3 AS k, AVG(val) AS v FROM big GROUP BY i % 3",
    "SELECT AVG(val) AS v FROM big WHERE i < 2",
    "SELECT AVG(val) AS v FROM big WHERE i = 3 OR i = 4",
    "SELECT AVG(val) AS v FROM big WHERE i >= 4",
    "SELECT AVG(val) AS v, AVG(-val) AS w FROM int WHERE i < 2",
    "SELECT i, AVG(val) FILTER (WHERE val < 0) AS v FROM big GROUP BY i",
    "SELECT AVG(i) AS v, AVG(val * 0.5) AS w FROM t",
    # the variance of one row, whatever it holds
    "SELECT i, VAR_POP(val) AS v, STDDEV_POP(val) AS s, VAR_SAMP(val) AS u FROM odd GROUP BY i",
    "SELECT VAR_POP(val) AS v, STDDEV_POP(val) AS s FROM odd WHERE i IN (1, 3)",
    "SELECT VAR_POP(val) AS v, STDDEV_SAMP(val) AS s FROM odd WHERE i > 2",
    # what WHERE, a mask or a join leaves out does not raise
    "SELECT i, val FROM half WHERE val <> 0 AND i = 4 // val",
    "SELECT a.i, a.j FROM a WHERE a.j <> 0 AND a.i = 4 // a.j",
    "SELECT b.val AS v FROM b, m WHERE b.i = 4 // m.val AND m.i = b.j",
    "SELECT 4 // val AS k, COUNT(*) AS n FROM m GROUP BY 4 // val",
    "SELECT 4 // val AS k, SUM(i) AS n FROM half WHERE val <> 0 GROUP BY 4 // val",
    "SELECT i, COUNT(*) OVER (PARTITION BY 4 // val) AS n FROM m",
    "SELECT i, COUNT(*) OVER (PARTITION BY 4 % val) AS n FROM half WHERE val <> 0",
    # HAVING
    "SELECT i, SUM(val) AS s FROM a GROUP BY i HAVING s > 3",
    "SELECT i, COUNT(*) AS val FROM a WHERE val <> 0 GROUP BY i HAVING val > 2",
    "SELECT i, SUM(val) AS i FROM a GROUP BY i HAVING i > 0",
    "SELECT i, 5 AS j FROM a GROUP BY i HAVING j > 1",
    "SELECT i + 1 AS k, SUM(val) AS s FROM a GROUP BY i HAVING k > 1",
    "SELECT i, SUM(val) AS s FROM a GROUP BY i HAVING (SELECT COUNT(*) FROM t WHERE t.i = a.i) < s",
    # aliases
    "SELECT i AS x, j AS x, x AS y FROM a",
    "SELECT i + 1 AS j, j AS z FROM a",
    "SELECT i AS x, j AS x FROM a WHERE x = 1 AND i = 0",
    "SELECT i + 1 AS j FROM a WHERE j = 1",
    "SELECT i + 1 AS s, SUM(s) AS n FROM a GROUP BY i",
    "SELECT SUM(val) AS x, x AS y, y AS z FROM a",
    "SELECT i AS z, (SELECT COUNT(*) FROM b WHERE b.i = z) AS n FROM t",
    "SELECT val AS z, SUM(z) OVER (PARTITION BY i) AS s FROM a",
    "SELECT i AS z, SUM(val) OVER (PARTITION BY z) AS s FROM a",
    "SELECT i, SUM(val) AS s, SUM(s) OVER () AS w FROM a GROUP BY i",
    # a GROUP BY expression is known however it is written
    "SELECT (i+1) AS k, SUM(val) AS s FROM a GROUP BY i + 1",
    "SELECT a.i + 1 AS k, SUM(val) AS s FROM a GROUP BY (i + 1)",
    "SELECT i + 1 + 0 AS k, SUM(val) AS s FROM a GROUP BY a.i + 1",
    "SELECT CASE WHEN i = 1 THEN 2 ELSE 3 END AS k, COUNT(*) AS n FROM a "
    "GROUP BY CASE WHEN (a.i = 1) THEN 2 ELSE 3 END",
    "SELECT x.i // 2 AS k, COUNT(*) AS n FROM a x GROUP BY i // 2 HAVING (i // 2) >= 0",
    "SELECT i + 1 AS q, i AS q, COUNT(*) AS n FROM a GROUP BY q, i",
    "SELECT i, SUM(val) AS s, s + 1 AS t FROM a GROUP BY ALL",
    "SELECT i, i + 1 AS t, t + 1 AS u, SUM(val) AS s FROM a GROUP BY ALL",
    # GROUP BY ALL of no columns groups nothing
    "SELECT 5 AS x, x + 1 AS y, SUM(val) AS s FROM a WHERE i > 7 GROUP BY ALL",
    "SELECT 5 AS x, i, SUM(val) AS s FROM a GROUP BY ALL",
    "SELECT SUM(val) AS s FROM a WHERE i > 7 GROUP BY ALL",
    "SELECT 5 AS x FROM a GROUP BY ALL",
    "SELECT 5 AS x, SUM(val) AS s FROM a WHERE i > 7 GROUP BY x",
    # integers other than BIGINT are values
    "SELECT CAST(i AS INTEGER) AS k, val FROM t",
    "SELECT CAST(i AS INTEGER) AS k, SUM(val) AS s FROM a GROUP BY CAST(i AS INTEGER)",
    # QUALIFY and windows
    "SELECT i, SUM(val) OVER (PARTITION BY i) AS s FROM a QUALIFY s > 3",
    "SELECT i, SUM(val) OVER (PARTITION BY i) AS j FROM a QUALIFY j > 1",
    "SELECT i FROM a QUALIFY SUM(val) OVER (PARTITION BY i) > 3",
    "SELECT i FROM a GROUP BY i QUALIFY SUM(SUM(val)) OVER () > 1",
    "SELECT 1 AS x FROM a QUALIFY SUM(SUM(val)) OVER () > 1",
    "SELECT i, SUM(val) AS s, SUM(SUM(val)) OVER () AS w FROM a GROUP BY i QUALIFY s > 1",
    "SELECT i, SUM(val) FILTER (WHERE j > 1) OVER (PARTITION BY i) AS s FROM a",
    "SELECT i, SUM(SUM(val)) FILTER (WHERE SUM(val) > 2) OVER () AS s FROM a GROUP BY i",
    "SELECT SUM(val) OVER () AS w, w + 1 AS x FROM a",
    "SELECT i, (SELECT SUM(t.i) FILTER (WHERE b.i > 1) FROM b) AS s FROM t",
]  # fmt: skip

REFUSED: list[tuple[str, type[einsql.Error], str]] = [
    # an aggregate of outer columns alone belongs to the outer SELECT
    ("SELECT (SELECT SUM(t.i) FROM b) FROM t", einsql.NotSupportedError, "outer SELECT"),
    ("SELECT i, (SELECT COUNT(*) + SUM(t.i) FROM b) FROM t", einsql.NotSupportedError, "outer"),
    ("SELECT i AS x, (SELECT MAX(x) FROM b) FROM t", einsql.NotSupportedError, "outer SELECT"),
    ("SELECT i, (SELECT SUM(b.val * t.val) FROM b) FROM t", einsql.NotSupportedError, "a value"),
    # a derived table sees nothing of what is around it
    ("SELECT * FROM t, (SELECT SUM(val) AS s FROM b WHERE b.i = t.i) q",
     einsql.NotSupportedError, "LATERAL"),
    ("SELECT i, (SELECT s FROM (SELECT SUM(val) AS s FROM b WHERE b.i = t.i) q) FROM t",
     einsql.NotSupportedError, "LATERAL"),
    ("SELECT * FROM (SELECT SUM(val) AS s FROM b WHERE b.i = t.i) q, t",
     einsql.ProgrammingError, 'no table "t"'),
    # HAVING
    ("SELECT i FROM a HAVING TRUE", einsql.ProgrammingError, "HAVING needs a GROUP BY"),
    ("SELECT i, SUM(SUM(val)) OVER () AS w FROM a GROUP BY i HAVING w > 1",
     einsql.ProgrammingError, "is not allowed in HAVING"),
    ("SELECT i, SUM(val) AS s FROM a GROUP BY i HAVING SUM(s) > 1",
     einsql.ProgrammingError, 'no column "s"'),
    ("SELECT i, SUM(val) AS s FROM a GROUP BY i HAVING (SELECT SUM(b.i - s) FROM b) > 1",
     einsql.ProgrammingError, 'no column "s"'),
    # aliases
    ("SELECT y, i AS y FROM a", einsql.ProgrammingError, "later"),
    ("SELECT i AS x, x AS y, j AS x FROM a", einsql.ProgrammingError, "later"),
    ("SELECT i + 1 AS x, x + 1 AS x FROM a", einsql.ProgrammingError, "later"),
    ("SELECT i FROM a WHERE x = 1", einsql.ProgrammingError, 'no column "x"'),
    ("SELECT x + 1 AS x FROM a WHERE x = 1", einsql.ProgrammingError, "later"),
    ('SELECT i+1, "(i + 1)" + 1 FROM a', einsql.ProgrammingError, "no column"),
    ("SELECT i + 1 AS j, COUNT(*) FROM a GROUP BY j", einsql.ProgrammingError, "GROUP BY"),
    ("SELECT i + 1 AS q, COUNT(*) FROM a GROUP BY q + 1", einsql.ProgrammingError, "no column"),
    ("SELECT 1 + i, SUM(val) FROM a GROUP BY i + 1", einsql.ProgrammingError, "in GROUP BY"),
    ("SELECT i, SUM(val) AS val, SUM(SUM(val)) OVER () AS w FROM a GROUP BY i QUALIFY val > 1",
     einsql.ProgrammingError, "in GROUP BY"),
    ("SELECT -1, COUNT(*) FROM a GROUP BY -1", einsql.ProgrammingError, "names no SELECT item"),
    # NULL is no key
    ("SELECT nullif(i, 1) AS n, COUNT(*) FROM a GROUP BY 1", einsql.NotSupportedError, "NULL"),
    ("SELECT COUNT(*) OVER (PARTITION BY nullif(i, 1)) FROM a", einsql.NotSupportedError, "NULL"),
    # a DECIMAL is no key either
    ("SELECT CAST(i AS DECIMAL(5, 0)) AS k, val FROM t", einsql.NotSupportedError, "DECIMAL"),
    ("SELECT CAST(i AS DECIMAL(5, 0)) + 1 AS k, val FROM t", einsql.NotSupportedError, "DECIMAL"),
    ("SELECT i, COUNT(*) FROM t GROUP BY CAST(i AS DECIMAL(5, 0)), i",
     einsql.NotSupportedError, "DECIMAL"),
    # windows
    ("SELECT i FROM a QUALIFY i > 0", einsql.ProgrammingError, "QUALIFY needs a window"),
    ("SELECT i, SUM(val) AS s FROM a GROUP BY i QUALIFY s > 1",
     einsql.ProgrammingError, "QUALIFY needs a window"),
    ("SELECT SUM(SUM(val) OVER ()) OVER () FROM a", einsql.ProgrammingError, "is not allowed in"),
    ("SELECT SUM(val) OVER () AS w, SUM(w) OVER () FROM a",
     einsql.ProgrammingError, "is not allowed in a window"),
    ("SELECT COUNT(*) OVER (PARTITION BY i + COUNT(*) OVER ()) FROM a",
     einsql.ProgrammingError, "is not allowed in a window"),
    ("SELECT SUM(SUM(val) OVER ()) FROM a", einsql.ProgrammingError, "in an aggregate"),
    ("SELECT i FROM a WHERE SUM(val) OVER () > 1", einsql.ProgrammingError, "in WHERE"),
    ("SELECT SUM(val) OVER () AS w FROM a WHERE w > 1", einsql.ProgrammingError, "in WHERE"),
]  # fmt: skip


def rows_of(name: str) -> pa.Table:
    dims, array = TENSORS[name]
    index = np.indices(array.shape).reshape(array.ndim, -1)
    columns = {d: index[n].astype(np.int64) for n, d in enumerate(dims)}
    return pa.table({**columns, "val": array.reshape(-1)})


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for name in TENSORS:
        con.register("rows", rows_of(name))
        con.execute(f'CREATE TABLE "{name}" AS SELECT * FROM rows')
    con.execute(MASKED.replace("TENSOR", "TABLE"))
    return con


@pytest.fixture(scope="module")
def ours() -> einsql.Connection:
    con = einsql.connect(config={"jit": "never"})
    for name, (dims, array) in TENSORS.items():
        con.register(name, array, dims)
    con.execute(MASKED)
    return con


def bag(rows: list[tuple[object, ...]]) -> list[str]:
    return sorted(map(repr, rows))


@pytest.mark.parametrize("sql", spread(AGREE, 30))
def test_agrees_with_duckdb(
    duck: duckdb.DuckDBPyConnection, ours: einsql.Connection, sql: str
) -> None:
    assert bag(ours.execute(sql).fetchall()) == bag(duck.execute(sql).fetchall())


@pytest.mark.parametrize(("sql", "error", "reason"), REFUSED, ids=[r[0] for r in REFUSED])
def test_refused(ours: einsql.Connection, sql: str, error: type[einsql.Error], reason: str) -> None:
    ours.execute("SET fallback = off")
    try:
        with pytest.raises(error, match=reason) as caught:
            ours.execute(sql)
    finally:
        ours.execute("SET fallback = on")
    assert caught.value.position is not None
