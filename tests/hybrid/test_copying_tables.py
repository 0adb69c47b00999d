"""COPY of DuckDB's tables and views, and of queries that are no tensor work."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import einsql
from tests.support.samples import combinations

ROWS = [(1, "x"), (2, None)]


@pytest.fixture
def con(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> einsql.Connection:
    monkeypatch.chdir(tmp_path)
    con = einsql.connect()
    con.execute("CREATE TABLE t (a INTEGER, s VARCHAR); INSERT INTO t VALUES (1, 'x'), (2, NULL)")
    con.execute("CREATE VIEW v AS SELECT * FROM t")
    con.execute("CREATE TENSOR f (i DIM(4), val DOUBLE) DEFAULT 0; UPDATE f SET val = i * 1.5")
    return con


@pytest.mark.parametrize(
    ("name", "what"),
    combinations(
        ["o.csv", "o.parquet", "o.ndjson", "o.txt' (FORMAT csv) --"],
        ["t", "v", "(SELECT * FROM t)", "(FROM v)"],
    ),
)
def test_tables_there_and_back(con: einsql.Connection, what: str, name: str) -> None:
    assert con.execute(f"COPY {what} TO '{name}'").rowcount == 2
    con.execute("CREATE TABLE back (a INTEGER, s VARCHAR)")
    assert con.execute(f"COPY back FROM '{name}'").rowcount == 2
    assert con.execute("SELECT * FROM back").fetchall() == ROWS
    if "txt" not in name:
        assert con.execute(f"SELECT * FROM '{name}'").fetchall() == ROWS


def test_queries_of_tensors_that_duckdb_writes(con: einsql.Connection) -> None:
    first = "SELECT i, val FROM f ORDER BY val DESC LIMIT 3"
    for name in ("o.parquet", "o.csv", "o.json"):
        assert con.execute(f"COPY ({first}) TO '{name}'").rowcount == 3
        found = con.execute(f"SELECT * FROM '{name}'").fetchall()
        assert found == [(3, 4.5), (2, 3.0), (1, 1.5)]
    assert con.execute("COPY f TO 'f.ndjson'").rowcount == 4
    lines = Path("f.ndjson").read_text().splitlines()
    assert json.loads(lines[1]) == {"i": 1, "val": 1.5}


def test_a_table_is_no_tensor(con: einsql.Connection) -> None:
    for sql in ("COPY t TO 't.npy'", "COPY t TO 't.csv' (FORMAT zarr)", "COPY t FROM 't.npy'"):
        with pytest.raises(einsql.NotSupportedError, match="t is a table") as caught:
            con.execute(sql)
        assert "CREATE TENSOR" in caught.value.hint
    assert os.listdir() == []
    with pytest.raises(einsql.ProgrammingError, match="no tensor"):
        con.execute("COPY nothing TO 'o.csv'")


def test_tensors_change_by_tables(con: einsql.Connection) -> None:
    con.execute("CREATE TABLE g (i INTEGER, val DOUBLE); INSERT INTO g VALUES (0, 5), (2, 7)")
    assert con.execute("UPDATE f SET val = g.val FROM g WHERE g.i = f.i").rowcount == 2
    assert con.execute("SELECT * FROM f").fetch_numpy().tolist() == [5, 1.5, 7, 4.5]
    con.execute("UPDATE f SET val = 0 WHERE i IN (SELECT i FROM g WHERE val > 6)")
    con.execute("UPDATE f SET val = (SELECT -MAX(val) FROM g) WHERE i = 3")
    assert con.execute("SELECT * FROM f").fetch_numpy().tolist() == [5, 1.5, 0, -7]
    con.execute("CREATE TENSOR k AS SELECT a AS i, a * 0.5::DOUBLE AS val FROM t")
    assert con.execute("DELETE FROM k WHERE i IN (SELECT i FROM g)").rowcount == 1
    assert con.execute("SELECT * FROM k").fetchall() == [(1, 0.5)]
