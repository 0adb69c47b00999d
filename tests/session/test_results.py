"""Results as arrays, frames and text: DuckDB's names, compared with DuckDB."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pytest

import einsql

QUERIES = (
    "SELECT i, j, val FROM x",
    "SELECT i, j, val, val > 2 AS big FROM x WHERE i + j <> 1",
    "SELECT i, SUM(val) AS s FROM x WHERE val > 3 GROUP BY i",
    "SELECT i, NULLIF(i, 1) AS n, CASE WHEN j > 0 THEN val END AS v FROM x",
    "SELECT SUM(val) AS s, COUNT(*) AS n FROM x",
    "SELECT i, val FROM x WHERE val > 99",
    "SELECT i, 'k' || j AS name, DATE '2024-02-29' AS d, 1.5::DECIMAL(4, 1) AS m FROM x",
    "SELECT 1 AS a, 2 AS a",
)


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as opened:
        opened.execute("CREATE TENSOR x AS SELECT i, j, (3 * i + j)::DOUBLE AS val "
                       "FROM range(2) AS r(i), range(3) AS s(j)")  # fmt: skip
        yield opened


@pytest.fixture
def duck(con: einsql.Connection) -> Iterator[Any]:
    with duckdb.connect() as opened:
        rows = con.execute("SELECT i, j, val FROM x").fetch_arrow_table()
        opened.register("rows", rows)
        opened.execute("CREATE TABLE x AS FROM rows").fetchall()
        yield opened


@pytest.mark.parametrize("sql", QUERIES)
def test_columns_are_those_of_duckdb(sql: str, con: einsql.Connection, duck: Any) -> None:
    ours, theirs = con.execute(sql), duck.sql(sql)
    columns, expected = ours.fetchnumpy(), theirs.fetchnumpy()
    assert list(columns) == list(expected)
    for name, values in expected.items():
        assert np.ma.getmaskarray(columns[name]).tolist() == np.ma.getmaskarray(values).tolist()
        same = columns[name] == values
        assert np.ma.filled(same, True).all()
    frame, expected_frame = ours.df(), theirs.df()
    assert frame.columns.tolist() == expected_frame.columns.tolist()
    assert ours.columns == theirs.columns
    assert frame.isna().to_numpy().tolist() == expected_frame.isna().to_numpy().tolist()
    assert frame.fillna(0).to_numpy().tolist() == expected_frame.fillna(0).to_numpy().tolist()
    assert ours.arrow().read_all().equals(ours.to_arrow_table())


def test_torch_has_a_tensor_for_each_column(con: einsql.Connection) -> None:
    torch: Any = pytest.importorskip("torch")
    columns = con.execute(QUERIES[0]).torch()
    assert columns["j"].tolist() == [0, 1, 2] * 2
    assert torch.equal(columns["val"], torch.arange(6.0, dtype=torch.float64))
    columns["val"] += 1  # a copy, as the tensor is stored
    assert con.execute("SELECT MAX(val) FROM x").fetchone() == (5.0,)
    with pytest.raises(einsql.InterfaceError, match="3 values of n are NULL"):
        con.execute(QUERIES[3]).torch()
    with pytest.raises(einsql.InterfaceError, match="no type VARCHAR, which name has"):
        con.execute(QUERIES[6]).torch()


def test_a_result_prints_its_first_rows_and_keeps_them(con: einsql.Connection) -> None:
    cursor = con.execute("SELECT i, i * 0.5 AS half FROM range(30) AS r(i)")
    text = repr(cursor)
    assert text.splitlines()[2] == "│ int64 │ decimal(21,1) │"
    assert "30 rows (20 shown)" in text
    assert len(cursor.fetchall()) == 30
    html = con.execute("SELECT '<b>' AS s, NULL AS n")._repr_html_()
    assert html is not None
    assert "&lt;b&gt;" in html
    assert "NULL" in html
    assert repr(con.cursor()) == "<einsql.Cursor without rows>"


def test_printing_does_not_run_a_statement_again(
    con: einsql.Connection, capsys: pytest.CaptureFixture[str]
) -> None:
    con.execute("CREATE TABLE log (n INTEGER)")
    cursor = con.execute("INSERT INTO log VALUES (1), (2) RETURNING n")
    assert [repr(cursor), repr(cursor)][0] == repr(cursor)
    cursor.show(max_rows=1)
    assert "2 rows (1 shown)" in capsys.readouterr().out
    assert cursor.fetchall() == [(1,), (2,)]
    assert con.execute("SELECT COUNT(*) FROM log").fetchone() == (2,)


def test_a_closed_connection_says_so_when_its_result_prints() -> None:
    con = einsql.connect()
    cursor = con.execute("SELECT 1 AS x")
    con.close()
    assert repr(cursor) == "<einsql.Cursor: The connection is closed>"


def test_zoned_timestamps_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytz", None)  # an import raises ImportError
    con = einsql.connect()
    zoned = "TIMESTAMPTZ '2024-01-01 00:00:00.5+00'"
    row = (datetime(2024, 1, 1, 0, 0, 0, 500_000, UTC), None, "x", Decimal("1.50"))
    query = f"SELECT {zoned} AS t, NULL::TIMESTAMPTZ AS n, 'x' AS t, 1.5::DECIMAL(4, 2) AS d"
    assert con.execute(query).fetchall() == [row]
    assert con.execute(f"{query} FROM range(3)").fetchone() == row
    assert con.execute(f"{query} WHERE 1 = 0").fetchall() == []
    assert con.execute(f"SELECT {zoned}").fetchall() == [row[:1]]
    if duckdb.__version__ != "2.0.0":  # it reads lists of them by zoneinfo
        assert con.execute(f"SELECT [{zoned}]").fetchall() == [([row[0]],)]
        return
    with pytest.raises(einsql.InterfaceError, match="need the package pytz"):
        con.execute(f"SELECT [{zoned}]").fetchall()
    assert con.execute(f"SELECT [{zoned}]").fetch_arrow_table().num_rows == 1


def test_a_fill_that_would_become_infinite_is_refused() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR t (i DIM(2), val FLOAT)")
    con.execute("INSERT INTO t VALUES (1, 2.0)")
    cursor = con.execute("SELECT i, val FROM t")
    with pytest.raises(einsql.InterfaceError, match="cannot hold"):
        cursor.fetch_numpy(fill=1e300)
    assert cursor.fetch_numpy(fill=np.inf).tolist() == [np.inf, 2.0]


def test_a_duration_of_nanoseconds_is_no_number() -> None:
    con = einsql.connect()
    with pytest.raises(einsql.ProgrammingError, match="timedelta"):
        con.execute("SELECT ?", [np.timedelta64(5, "ns")])
