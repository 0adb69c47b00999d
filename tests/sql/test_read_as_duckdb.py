"""Texts that DuckDB reads in one way and another parser in another: the answers are DuckDB's."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import einsql

T = np.array([[0, -1, -2], [3, 2, 1], [6, 5, 4]], np.int32)
QUERIES = (
    "SELECT i, j, @ val & 2 AS v FROM t ORDER BY i, j",
    "SELECT i, j, @ val | 4 AS v FROM t ORDER BY i, j",
    "SELECT i, j FROM t WHERE @ val & 2 = 2 ORDER BY i, j",
    "SELECT SUM(@ val & 2) AS s FROM t",
    "SELECT i, j, @ (val & 2) AS v, abs(val & 2) AS w FROM t ORDER BY i, j",
    "SELECT i, j, LAG(val, 1, val) OVER (PARTITION BY i ORDER BY j) AS v FROM t ORDER BY i, j",
    "SELECT i, j, LEAD(val, 2, val) OVER (PARTITION BY i ORDER BY j) AS v FROM t ORDER BY i, j",
    "SELECT i, j, LAG(o, 1, max_0) OVER (PARTITION BY i ORDER BY j) AS v FROM w ORDER BY i, j",
    "SELECT i, j, LAG(max_0, 1, max_0) OVER (PARTITION BY i ORDER BY j) AS v FROM w ORDER BY i, j",
    "SELECT i, j, LEAD(o, 1, j) OVER (PARTITION BY i ORDER BY j) AS v FROM w ORDER BY i, j",
    "SELECT i, grouping(i) AS g, SUM(val) AS s FROM t GROUP BY i ORDER BY i",
    "SELECT i, SUM(val) AS s FROM t GROUP BY i HAVING grouping(i) = 0 ORDER BY grouping(i), i",
    "SELECT i FROM t -- a comment\r WHERE j = 0 ORDER BY i",
    "SELECT i FROM t WHERE i NOT IN (0) AND (j IS NOT NULL) ORDER BY i, j",
    "SELECT i, +j AS p, + (j) AS q FROM t ORDER BY i, j",
)


@pytest.fixture(scope="module")
def connections() -> Iterator[tuple[einsql.Connection, duckdb.DuckDBPyConnection]]:
    con, duck = einsql.connect(), duckdb.connect()
    con.register("t", T, dims=("i", "j"))
    duck.execute("CREATE TABLE t (i BIGINT, j BIGINT, val INTEGER)")
    duck.executemany("INSERT INTO t VALUES (?, ?, ?)",
                     [[*at, v.item()] for at, v in np.ndenumerate(T)])  # fmt: skip
    derived = "w AS SELECT i, j, val AS max_0, CAST(i * 10 + j AS INTEGER) AS o FROM t"
    con.execute(f"CREATE TENSOR {derived}")
    duck.execute(f"CREATE TABLE {derived}")
    yield con, duck
    con.close()
    duck.close()


@pytest.mark.parametrize("sql", QUERIES)
def test_answers_are_those_of_duckdb(
    connections: tuple[einsql.Connection, duckdb.DuckDBPyConnection], sql: str
) -> None:
    con, duck = connections
    assert con.execute(sql).fetchall() == duck.execute(sql).fetchall()


def test_stored_bits_are_those_of_duckdb() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR x AS SELECT i, CAST(i - 3 AS INTEGER) AS val FROM range(5) r(i)")
    con.execute("UPDATE x SET val = @ val & 2")
    assert con.execute("SELECT val FROM x ORDER BY i").fetchall() == [(2,), (2,), (0,), (0,), (0,)]


def test_work_is_transaction() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR x AS SELECT i, i AS val FROM range(2) r(i)")
    con.execute("BEGIN WORK")
    con.execute("DELETE FROM x")
    con.execute("ROLLBACK WORK")
    assert con.execute("SELECT COUNT(*) FROM x").fetchone() == (2,)
    with pytest.raises(einsql.ProgrammingError, match="DEFAULT is no value"):
        con.execute("UPDATE x SET val = DEFAULT")
