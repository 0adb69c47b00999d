"""Statements about tensors on an attached DuckDB connection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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


REFUSED = r"enable.external.access|disabled by configuration"


@pytest.mark.parametrize("through", ["edb", "session"])
def test_statements_reach_no_files_where_duckdb_may_not(
    mine: duckdb.DuckDBPyConnection, tmp_path: Path, through: str
) -> None:
    stored, written = tmp_path / "w.npy", tmp_path / "q.npy"
    np.save(stored, np.ones(2))
    with einsql.attach(mine) as edb:
        execute = edb.execute if through == "edb" else edb.session.execute
        execute("CREATE TENSOR q (i DIM(2), val INT) DEFAULT 1")
        mine.execute("SET enable_external_access = false")
        for text in (
            f"CREATE TENSOR w AS SELECT * FROM '{stored}'",
            f"COPY q TO '{written}'",
            f"CREATE TENSOR r (i DIM(2), val INT) DEFAULT 1; COPY r TO '{written}'",
            f"COPY q FROM '{stored}'",
            f"CREATE TENSOR w AS SELECT 0 AS i, 1::INT AS val; ATTACH '{written}' AS other",
            "SET enable_external_access = true; SELECT * FROM q",
        ):
            with pytest.raises((einsql.Error, duckdb.Error), match=REFUSED):  # of either
                execute(text)
        assert not written.exists()
        assert execute("SELECT SUM(q.val * s.amount) FROM q JOIN sales s ON q.i = s.day").fetchone()


def test_statements_read_no_variables_where_duckdb_may_not(
    mine: duckdb.DuckDBPyConnection,
) -> None:
    factors = np.ones(2)
    with einsql.attach(mine) as edb:
        edb.execute("CREATE TENSOR q (i DIM(2), val INT) DEFAULT 1")
        text = "SELECT SUM(f.val) FROM q JOIN factors AS f(i) USING (i)"
        assert edb.execute(text).fetchone() == (factors.sum(),)
        mine.execute("SET python_enable_replacements = false")
        with pytest.raises(einsql.Error, match="factors"):
            edb.execute(text)


def test_a_relation_has_the_data_of_its_call(mine: duckdb.DuckDBPyConnection) -> None:
    with einsql.attach(mine) as edb:
        index = np.array([0, 1, 2])
        edb.register("index_", index, ("i",))
        edb.register("w", np.arange(4) * 1.5, ("k",))
        edb.session.execute(
            "CREATE TENSOR t AS SELECT i, i * 1e0 AS a, i * 10e0 AS b FROM range(2) r(i); "
            "UPDATE t SET a = a + 0; UPDATE t SET b = b + 0"  # in private memory
        )
        relations = [
            edb.sql(f"FROM einsql('{sql}')")
            for sql in (
                "SELECT m.i, w.val FROM index_ AS m JOIN w ON w.k = m.val",
                "SELECT m.val AS g, COUNT(*) AS n FROM index_ AS m GROUP BY m.val",
                "SELECT i, val FROM index_",
                "SELECT i, tile FROM TILES(index_, 1)",
                "SELECT i, a, b FROM t",
                "SELECT s.store, SUM(s.day + m.val) AS v FROM sales AS s "
                "JOIN index_ AS m ON m.i = s.store GROUP BY s.store",
            )
        ]
        index[:] = -9
        edb.session.execute("UPDATE t SET a = a + 100; UPDATE t SET b = -1 WHERE i = 1")
        mine.execute("DELETE FROM sales")
        assert [r.fetchall() for r in relations if r is not None] == [
            [(0, 0.0), (1, 1.5), (2, 3.0)],
            [(0, 1), (1, 1), (2, 1)],
            [(0, 0), (1, 1), (2, 2)],
            [(0, {"shape": [3], "data": [0, 1, 2]})],
            [(0, 0.0, 0.0), (1, 1.0, 10.0)],
            [(0, 1), (1, 3)],
        ]
