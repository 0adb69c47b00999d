"""Parts of a query that parameters bound, read by other parts: answers as DuckDB gives them."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

import einsql

X = np.arange(24.0).reshape(6, 4) * 7 % 11
B = np.arange(6.0)
PARTS = (
    "WITH q AS (SELECT i, SUM(val) AS v FROM x WHERE i BETWEEN ? AND ? GROUP BY i) ",
    "WITH q AS (SELECT i, val AS v FROM b WHERE i BETWEEN ? AND ?) ",
    "WITH q AS (SELECT i, j, val AS v FROM x WHERE i BETWEEN ? AND ?) ",
)
READERS = (
    "SELECT a.i, a.v, c.v AS w FROM q a, q c WHERE c.i = a.i + 1",
    "SELECT a.i, a.v, c.v AS w FROM q a, q c WHERE c.i = a.i",
    "SELECT MAX(a.v) AS m FROM q a, q c WHERE a.i = c.i + 1",
    "SELECT a.i, a.v - c.val AS w FROM q a, b c WHERE c.i = a.i + 1",
    "SELECT b.i, (SELECT SUM(v) FROM q WHERE q.i = b.i) AS w FROM b",
    "SELECT r.i FROM range(4) r(i) WHERE (SELECT SUM(v) FROM q WHERE q.i = r.i) IS NOT NULL "
    "AND r.i < 1",
    "SELECT a.i, (SELECT SUM(v) FROM q WHERE q.i = a.i) AS w FROM q a GROUP BY a.i",
)
VALUES = ((0, 2), (1, 3), (2, 2), (4, 5), (0, 5))


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("CREATE TABLE x (i BIGINT, j BIGINT, val DOUBLE)")
    con.execute("CREATE TABLE b (i BIGINT, val DOUBLE)")
    con.executemany("INSERT INTO x VALUES (?, ?, ?)",
                    [[*at, v.item()] for at, v in np.ndenumerate(X)])  # fmt: skip
    con.executemany("INSERT INTO b VALUES (?, ?)",
                    [[*at, v.item()] for at, v in np.ndenumerate(B)])  # fmt: skip
    return con


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("reader", READERS)
def test_parts_are_joined_by_their_keys(
    duck: duckdb.DuckDBPyConnection, part: str, reader: str
) -> None:
    con = einsql.connect()
    con.register("x", X, ("i", "j"))
    con.register("b", B, ("i",))
    for given in VALUES:
        expected = sorted(map(repr, duck.execute(part + reader, given).fetchall()))
        assert sorted(map(repr, con.execute(part + reader, given).fetchall())) == expected, given


def test_parts_over_different_keys_or_windows(duck: duckdb.DuckDBPyConnection) -> None:
    con = einsql.connect()
    con.register("x", X, ("i", "j"))
    for sql, given in (
        ("SELECT a.v, c.v AS w FROM (SELECT i, j, val AS v FROM x WHERE i = ?) a JOIN "
         "(SELECT i, j, val AS v FROM x WHERE i = ?) c ON c.i = a.i + 1 AND a.j = c.j",
         ([0, 2], [1, 1], [2, 1], [0, 1])),
        ("WITH q AS (SELECT i, j, val AS v FROM x WHERE i BETWEEN ? AND ?) SELECT a.v, c.v AS w "
         "FROM q a JOIN q c ON c.j = a.i + 1 AND a.j = c.j", ([2, 3], [0, 1], [1, 4])),
        ("SELECT a.i, a.val, c.val AS w FROM (SELECT * FROM x WHERE i BETWEEN $1 AND $2) a JOIN "
         "(SELECT * FROM x WHERE i BETWEEN $1 AND $2 + 1) c ON c.i = a.i + 1 AND a.j = c.j",
         ([0, 2], [1, 3], [3, 4])),
    ):  # fmt: skip
        for values in given:
            expected = sorted(duck.execute(sql, values).fetchall())
            assert sorted(con.execute(sql, values).fetchall()) == expected, (sql, values)


def test_with_inside_a_correlated_subquery(duck: duckdb.DuckDBPyConnection) -> None:
    con = einsql.connect()
    con.register("x", X, ("i", "j"))
    con.register("b", B, ("i",))
    part = "(WITH a AS (SELECT val FROM x WHERE x.i = b.i) SELECT SUM(val) FROM a)"
    for sql in (
        f"SELECT i, {part} AS v FROM b ORDER BY i",
        f"SELECT i FROM b WHERE 12 < {part} ORDER BY i",
        "SELECT i, (WITH a AS (SELECT b.i AS k) SELECT k FROM a) AS v FROM b ORDER BY i",
    ):
        assert con.execute(sql).fetchall() == duck.execute(sql).fetchall(), sql
    con.execute(f"CREATE MACRO total(q) AS {part.replace('b.i', 'q')}")
    sql = f"SELECT i, {part} AS v FROM b ORDER BY i"
    ours = con.execute("SELECT i, total(i) AS v FROM b ORDER BY i").fetchall()
    assert ours == duck.execute(sql).fetchall()
