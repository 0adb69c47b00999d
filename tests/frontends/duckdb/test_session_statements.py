"""Statements about tensors on an attached DuckDB connection."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import einsql


@pytest.fixture
def mine() -> Iterator[duckdb.DuckDBPyConnection]:
    made = duckdb.connect()
    made.execute("CREATE TABLE sales (store INTEGER, day INTEGER, amount DOUBLE)")
    made.execute("INSERT INTO sales VALUES (0, 0, 10), (0, 1, 20), (1, 0, 5), (1, 1, 15)")
    made.execute("CREATE TABLE names (store INTEGER, name VARCHAR)")
    yield made
    made.close()


def test_tensors_beside_the_tables_of_a_user(mine: duckdb.DuckDBPyConnection) -> None:
    with einsql.attach(mine) as edb:
        edb.execute("CREATE TENSOR price (day DIM(2), val DOUBLE)")
        edb.execute("INSERT INTO price VALUES (0, 2.0), (1, 0.5)")
        rows = edb.execute("""
            SELECT s.store, SUM(s.amount * p.val) AS revenue
            FROM sales s JOIN price p ON s.day = p.day GROUP BY s.store ORDER BY s.store
        """).fetchall()
        assert rows == [(0, 30.0), (1, 17.5)]
        factors = np.array([1.0, 3.0])
        sql = "SELECT SUM(p.val * f.val) FROM price p JOIN factors AS f(day) USING (day)"
        assert edb.execute(sql).fetchone() == (3.5,)
        assert edb.execute("SELECT val FROM price WHERE day = ?", [1]).fetchall() == [(0.5,)]
        edb.execute("UPDATE price SET val = 2 * val; DELETE FROM price WHERE day = 0")
        assert edb.execute("SELECT * FROM price").fetchall() == [(1, 1.0)]
        assert factors.sum() == 4


def test_what_duckdb_runs_itself(mine: duckdb.DuckDBPyConnection) -> None:
    with einsql.attach(mine) as edb:
        edb.execute("CREATE TENSOR price (day DIM(2), val DOUBLE) DEFAULT 3")
        edb.register("sales", np.zeros(2), ("store",))
        # a column, a name of WITH, and a table have the names of tensors
        assert edb.execute("SELECT store AS price FROM names").fetchall() == []
        assert edb.execute("WITH price AS (SELECT 1) FROM price").fetchall() == [(1,)]
        assert edb.execute("SELECT count(*) FROM sales").fetchall() == [(4,)]
        assert edb.execute("SELECT val FROM einsql('FROM price')").fetchall() == [(3.0,), (3.0,)]
        with pytest.raises(duckdb.ParserException):
            edb.execute("SELECT FROM WHERE price")
        with pytest.raises(einsql.Error, match="name") as refusal:
            edb.execute("SELECT name, val FROM names JOIN price ON store = day")
        assert refusal.value.hint
