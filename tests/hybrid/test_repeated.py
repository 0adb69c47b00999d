"""Statements that are run again: nothing is planned anew, and nothing that is old is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsql
from tests.support.samples import spread

SQL = "SELECT i, SUM(val) AS s FROM x GROUP BY i ORDER BY s DESC LIMIT 2"


def _session(**arrays: Any) -> einsql.Connection:
    con = einsql.connect()
    for name, array in arrays.items():
        con.register(name, array, ("i", "j")[: array.ndim])
    return con


def test_a_repeated_statement_plans_nothing() -> None:
    con = _session(x=np.arange(12.0).reshape(3, 4))
    con.execute("CREATE TABLE t AS SELECT range AS r, 'n' || range AS name FROM range(2)")
    joined = "SELECT name, x.val FROM t JOIN x ON x.i = r WHERE j = ? ORDER BY ALL"
    first = con.execute(SQL).fetchall(), con.execute(joined, (1,)).fetchall()
    planned = con.planner_calls
    assert (con.execute(SQL).fetchall(), con.execute(joined, (1,)).fetchall()) == first
    con.execute("INSERT INTO t VALUES (2, 'n2')")
    assert con.execute(joined, (1,)).fetchall() == [("n0", 1.0), ("n1", 5.0), ("n2", 9.0)]
    assert con.planner_calls == planned
    assert con.execute(joined, (2,)).fetchall() == [("n0", 2.0), ("n1", 6.0), ("n2", 10.0)]
    assert con.planner_calls > planned


def test_a_plan_with_many_rows_for_duckdb_says_why_once() -> None:
    con = _session(x=np.zeros((400, 300)), y=np.zeros((4, 3)))
    for name, notices in (("x", 1), ("x", 0), ("y", 0)):
        con.execute(f"SELECT i, LIST(val) AS m FROM {name} GROUP BY i").fetchall()
        assert len(con.notices) == notices
        for notice in con.notices:
            reason = "LIST(val) is outside the tensor fragment"
            assert notice == f"DuckDB reads 120,000 rows of elements: {reason}"
        con.notices.clear()
    assert con.execute("SELECT i, SUM(val) AS s FROM x GROUP BY i ORDER BY s").fetchone() == (0, 0)
    assert con.notices == []  # DuckDB reads the sums


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT i, STRING_AGG(val::INT::TEXT, '') FROM x GROUP BY i", "STRING_AGG("),
        ("SELECT i, HISTOGRAM(val) FROM x GROUP BY i", "HISTOGRAM() is"),
        ("SELECT i, MAD(val) AS m FROM x GROUP BY i ORDER BY m LIMIT 2", "MAD() is"),
        ("SELECT i, APPROX_TOP_K(val, 3) FROM x GROUP BY i LIMIT 1", "APPROX_TOP_K(val, 3) is"),
        ("SELECT DISTINCT val FROM x", "DISTINCT is"),
    ],
)
def test_the_notice_names_the_reason(query: str, reason: str) -> None:
    con = _session(x=np.zeros((400, 300)))
    con.execute(query).fetchall()
    (notice,) = con.notices
    assert notice.startswith(f"DuckDB reads 120,000 rows of elements: {reason}")


def test_other_data_forms_and_tables_are_seen() -> None:
    con = _session(x=np.arange(6.0).reshape(3, 2))
    assert con.execute(SQL).fetchall() == [(2, 9.0), (1, 5.0)]
    con.register("x", np.arange(8.0).reshape(4, 2), ("i", "j"))
    assert con.execute(SQL).fetchall() == [(3, 13.0), (2, 9.0)]
    con.unregister("x")
    con.execute("CREATE TABLE x AS SELECT 7 AS i, 0 AS j, 1.5 AS val")
    assert con.execute(SQL).fetchall() == [(7, 1.5)]
    con.execute("ALTER TABLE x RENAME COLUMN j TO k")
    con.execute("DROP TABLE x")
    with pytest.raises(einsql.Error):
        con.execute(SQL)
    x = np.ones(1)
    assert con.execute("SELECT * FROM x ORDER BY 1").fetchall() == [(0, 1.0)]
    con.execute("CREATE TABLE x AS SELECT 7 AS i, 2 AS val")
    assert con.execute("SELECT * FROM x ORDER BY 1").fetchall() == [(7, 2)]
    assert x is not None


def test_errors_point_into_the_text_again() -> None:
    con = _session(x=np.arange(6.0).reshape(3, 2))
    sql = "  SELECT i, SUM(val) AS s, error('no') FROM x GROUP BY i ORDER BY s"
    told = []
    for _ in range(3):
        with pytest.raises(einsql.Error) as raised:
            con.execute(sql)
        told.append((str(raised.value), raised.value.position))
    assert told[0] == told[1] == told[2]


def test_another_connection_of_the_file_is_seen(tmp_path: Path) -> None:
    path = str(tmp_path / "one.db")
    sql = "SELECT s.i, s.v, t.w FROM (SELECT i, SUM(val) AS v FROM a GROUP BY i) s, t ORDER BY 1"
    with einsql.connect(path) as con, einsql.connect(path) as other:
        con.execute("CREATE TENSOR a AS SELECT i, CAST(i AS DOUBLE) AS val FROM range(2) t(i)")
        con.execute("CREATE TABLE t AS SELECT 1 AS w")
        assert con.execute(sql).fetchall() == [(0, 0.0, 1), (1, 1.0, 1)]
        other.execute("BEGIN")
        other.execute("UPDATE a SET val = 5 WHERE i = 0")
        other.execute("CREATE OR REPLACE TABLE t AS SELECT 'text' AS w")
        assert con.execute(sql).fetchall() == [(0, 0.0, 1), (1, 1.0, 1)]
        other.execute("COMMIT")
        assert con.execute(sql).fetchall() == [(0, 5.0, "text"), (1, 1.0, "text")]


@pytest.mark.parametrize(
    ("sql", "once"),
    [
        (
            "WITH c AS (SELECT i, SUM(val) AS s FROM x GROUP BY i) SELECT name, a.s, b.m "
            "FROM t JOIN (SELECT i, s * 2 AS s FROM c) a ON a.i = r JOIN "
            "(SELECT i, s + 1 AS m FROM c) b ON b.i = r ORDER BY 1",
            "c",
        ),
        (
            "WITH c(a, b) AS (SELECT i, SUM(val) FROM x WHERE val > 2 GROUP BY i), e AS (SELECT "
            "a, b * 2 AS z FROM c) SELECT name, c.b, (SELECT MAX(z) FROM e), k.k FROM t LEFT "
            "JOIN c ON c.a = r JOIN (SELECT a, z + 1 AS k FROM e) k ON k.a = r ORDER BY 1",
            "c, e",
        ),
        ("SELECT name, s, (SELECT MAX(s) FROM v) FROM t JOIN v ON v.i = r ORDER BY 1", "v"),
    ],
)
def test_what_several_parts_read_is_computed_once(sql: str, once: str) -> None:
    con = _session(x=np.arange(12.0).reshape(3, 4))
    con.execute("CREATE TABLE t AS SELECT range AS r, 'n' || range AS name FROM range(3)")
    con.execute("CREATE VIEW v AS SELECT i, SUM(val) AS s FROM x GROUP BY i")
    assert f"Computed once: {once}\n" in str(con.explain(sql))
    first = con.execute(sql).fetchall()
    planned = con.planner_calls
    assert con.execute(sql).fetchall() == first
    assert con.planner_calls == planned
    rows = con.execute("SELECT * FROM x").fetchall()
    con.unregister("x")
    con.execute("DROP VIEW v")
    con.execute("CREATE TABLE x (i BIGINT, j BIGINT, val DOUBLE)")
    for row in rows:
        con.execute("INSERT INTO x VALUES (?, ?, ?)", row)
    con.execute("CREATE VIEW v AS SELECT i, SUM(val) AS s FROM x GROUP BY i")
    assert con.execute(sql).fetchall() == first


CONDITIONS = (
    "i < 2", "i >= 1 AND j = 2", "i BETWEEN 1 AND 1 AND val > 2", "val <> 1", "i IN (0, 2)",
    "i = 7", "NOT (i > 0 AND j > 0)", "i > -5 AND i < 99999999999", "val > 'nan'::FLOAT", "flag",
    "i = 1 OR j = 1", "val IS NULL", "i > 1.5",
)  # fmt: skip


@pytest.mark.parametrize("condition", spread(CONDITIONS, 5))
def test_scans_of_elements_take_conditions(condition: str) -> None:
    con = einsql.connect()
    values = np.array([[0.5, 1.0, 2.5], [np.nan, 1.5, 4.0], [8.0, -np.inf, 3.0]], np.float32)
    con.register("x", values, ("i", "j"))
    con.execute("CREATE TENSOR y AS SELECT i, j, val, val > 1 AS flag FROM x WHERE i + j <> 2")
    con.execute("CREATE TABLE rows AS SELECT * FROM y ORDER BY ALL")
    columns = ("count(*)", "sum(j)", "list(val ORDER BY i, j)", "string_agg(flag, ',' ORDER BY j)")
    for column in columns:
        found, expected = (
            con.execute(f"SELECT {column}, lower('T') FROM {name} WHERE {condition}").fetchall()
            for name in ("y", "rows")
        )
        assert repr(found) == repr(expected)


def test_statements_that_share_queries_log_nothing(caplog: pytest.LogCaptureFixture) -> None:
    con = _session(x=np.arange(12.0).reshape(3, 4))
    best = "SELECT i, (max(val, {0}))[{0}] AS b FROM x GROUP BY i"
    sql = (
        f"WITH a AS ({best.format(1)}), c AS ({best.format(2)}) "
        "SELECT 'n ' || (SELECT sum(b) FROM a) || ' ' || (SELECT sum(b) FROM c)"
    )
    assert con.execute(sql).fetchall() == [("n 21.0 18.0",)]
    assert not caplog.records
