"""No statement leaves a transaction of DuckDB open, which would keep its log from its file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import einsql

STATEMENTS = (
    "UPDATE t SET k = k + 1",
    "SELECT k FROM t",
    "SELECT k AS a, k AS a FROM t",
    "SELECT (SELECT SUM(val) FROM x) + k FROM t",
    "INSERT INTO t SELECT k + 1 FROM t RETURNING k",
    "CREATE TABLE u AS SELECT i, val FROM x",
    "DROP TABLE u",
    "UPDATE x SET val = 2",
    "CREATE OR REPLACE TENSOR x AS SELECT i, val + 1 AS val FROM x",
    "CREATE OR REPLACE VIEW v AS SELECT SUM(val) AS s FROM x",
    "EXPLAIN SELECT k FROM t",
    "DESCRIBE t",
    "SHOW TENSORS",
    "SET errors_as_json = false",
    "BEGIN; UPDATE t SET k = 5; UPDATE x SET val = 5; COMMIT",
    "BEGIN; UPDATE t SET k = 6; UPDATE x SET val = 6; ROLLBACK",
    "PREPARE p AS SELECT k FROM t",
    "EXECUTE p",
    "VACUUM",
)
FAILING = ("SELECT error('no') FROM t", "SELECT nothing FROM t", "INSERT INTO t VALUES ('no')")


@pytest.fixture
def filled(path: str) -> str:
    """A file that an earlier process made."""
    with einsql.connect(path) as con:
        con.execute("CREATE TABLE t AS SELECT 0 AS k")
        con.execute("CREATE TENSOR x (i DIM(4), val DOUBLE) DEFAULT 0")
    return path


def test_every_statement_ends_its_transaction(filled: str) -> None:
    with einsql.connect(filled) as con, einsql.connect(filled) as idle:
        idle.execute("SELECT k FROM t").fetchone()
        for statement in (*STATEMENTS, *FAILING):
            cursor = con.cursor()
            if statement in FAILING:
                with pytest.raises(einsql.Error):
                    cursor.execute(statement)
            else:
                cursor.execute(statement)  # its rows are never fetched
            for _ in range(2):
                con.execute("UPDATE t SET k = k + 1")
                con.execute("CHECKPOINT")
                assert not os.path.exists(f"{filled}.wal"), statement


def test_the_log_goes_into_the_file_by_itself(filled: str) -> None:
    with einsql.connect(filled) as con:
        con.execute("SET wal_autocheckpoint = '1KB'")
        for k in range(8):
            con.execute("UPDATE t SET k = ?", [k])
            con.execute(f"CREATE TABLE t{k} AS SELECT range AS n FROM range(500)")
            assert not os.path.exists(f"{filled}.wal")


def test_vacuum_empties_the_log(filled: str) -> None:
    with einsql.connect(filled) as con:
        con.execute("UPDATE t SET k = 1")
        assert Path(f"{filled}.wal").stat().st_size
        con.execute("VACUUM")
        assert not os.path.exists(f"{filled}.wal")
