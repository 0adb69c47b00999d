"""Relations and statements of an attached connection: types of rows, names, and scripts."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import einsql


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        opened.execute("CREATE TABLE x AS SELECT i, i * 1.5e0 AS val FROM range(3) r(i)")
        yield opened


@pytest.mark.parametrize(
    "query",
    [
        "SELECT MAX(i, 2) AS l, COUNT(*) AS n FROM x",
        "SELECT MAX(val, 2) AS l FROM x",
        "SELECT MAX(CAST(val AS HALF), 2) AS l FROM x",
        "SELECT i, i, val FROM x",
        "SELECT i, val + 1, val + 1 FROM x",
        "SELECT i, val AS a, 7e0 AS A FROM x",
    ],
)
def test_rows_have_their_types_and_names(con: duckdb.DuckDBPyConnection, query: str) -> None:
    edb = einsql.attach(con)
    sql = f"FROM einsql('{query}')"
    expected = con.execute(sql)
    names, rows = [d[0] for d in expected.description or ()], expected.fetchall()
    by_session = edb.execute(sql)
    assert by_session.fetchall() == rows
    assert [d[0] for d in by_session.description or ()] == names
    relation = edb.sql(sql)
    assert relation is not None
    assert relation.fetchall() == rows


def test_variables_that_differ_in_case(con: duckdb.DuckDBPyConnection) -> None:
    y, Y = np.array([1.0, 2.0]), np.array([10.0, 20.0])  # noqa: N806 - a name for SQL
    assert len(y) == len(Y)
    einsql.attach(con)
    query = "SELECT a.d0, a.val AS p, b.val AS q FROM y a JOIN Y b USING (d0)"
    rows = [(0, 1.0, 10.0), (1, 2.0, 20.0)]
    assert con.execute(f"FROM einsql('{query}')").fetchall() == rows
    with einsql.connect() as session:
        assert session.execute(query).fetchall() == rows
        assert session.sql(query).fetchall() == rows


def test_a_script_runs_each_statement_where_its_tables_are(
    con: duckdb.DuckDBPyConnection,
) -> None:
    edb = einsql.attach(con)
    edb.execute("CREATE TENSOR t (i DIM(2), val DOUBLE) DEFAULT 1; CREATE TABLE u AS SELECT 1 AS a")
    assert con.execute("FROM u").fetchall() == [(1,)]
    assert edb.execute("SELECT SUM(val) FROM t").fetchall() == [(2.0,)]
