"""Other databases beside the one that a session has opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import einsql
from tests.support.samples import spread


def test_tensors_stay_in_the_database_that_was_opened(path: str, tmp_path: Path) -> None:
    other = str(tmp_path / 'it\'s "other".db')
    with einsql.connect(other) as con:
        con.execute("CREATE TENSOR w (i DIM(2), val DOUBLE) DEFAULT 100")
        con.execute("UPDATE w SET val = 100 + i; CREATE TABLE t AS SELECT 7 AS k")
    with einsql.connect(path) as con, einsql.connect(path) as second:
        con.execute("CREATE TENSOR w (i DIM(3), val DOUBLE) DEFAULT 1; CREATE TABLE t (k INT)")
        con.execute(f"ATTACH '{other.replace(chr(39), chr(39) * 2)}' AS o; USE o")
        con.execute("UPDATE w SET val = 5 + i; CREATE TENSOR z AS SELECT k AS i, k FROM t")
        assert con.execute("SELECT k, val FROM t, w ORDER BY val").fetchall() == [
            (7, 5.0), (7, 6.0), (7, 7.0),
        ]  # fmt: skip
        con.execute("BEGIN")
        second.execute("INSERT INTO t VALUES (1)")
        assert con.execute("SELECT COUNT(*) FROM model.t ORDER BY 1").fetchone() == (0,)
        con.execute("ROLLBACK")
    with einsql.connect(path) as con:
        assert con.execute("SELECT val FROM w").fetchall() == [(5.0,), (6.0,), (7.0,)]
        assert con.execute("SELECT * FROM z").fetchall() == [(7, 7)]
    with einsql.connect(other) as con:
        assert con.execute("SELECT val FROM w").fetchall() == [(100.0,), (101.0,)]
        assert con.execute("SHOW TENSORS").rowcount == 1


def test_the_opened_database_stays(path: str) -> None:
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR w (i DIM(3), val DOUBLE) DEFAULT 1")
        con.execute("ATTACH ':memory:' AS o; USE o")
        for sql in ("DETACH model", 'DETACH DATABASE IF EXISTS "Model"',
                    "ATTACH OR REPLACE ':memory:' AS model"):  # fmt: skip
            with pytest.raises(einsql.ProgrammingError, match="stays while it is open"):
                con.execute(sql)
        con.execute("UPDATE w SET val = 2; USE model; DETACH o")
    with einsql.connect(path) as con:
        assert con.execute("SELECT SUM(val) FROM w").fetchone() == (6.0,)


@pytest.mark.parametrize(
    "sql",
    spread([
        "DROP SCHEMA __einsql CASCADE", 'DELETE FROM "__EINSQL".objects', "USE __einsql",
        "CREATE TABLE __einsql.x (a INT)", "ALTER TABLE model.__einsql.objects RENAME TO o",
        "WITH q AS (SELECT 1) DELETE FROM __Einsql.objects", "TRUNCATE __einsql.objects",
        "INSERT INTO __einsql.objects VALUES ('a', 1, 'view', '')", "SET schema = '__einsql'",
        "SET schema = '__ein' || 'sql'", "UPDATE __einsql.format SET version = 7",
        "COPY __einsql.objects FROM '/dev/null'", "ATTACH ':memory:' AS __einsql",
        "PREPARE p AS DELETE FROM __einsql.objects", "USE model.__einsql",
        "DROP TABLE __einsql.objects",
        "PRAGMA search_path = '__einsql'", "CREATE SCHEMA __einsql",
        "EXPLAIN ANALYZE DROP SCHEMA __einsql CASCADE",
    ], 7),
)  # fmt: skip
def test_nobody_but_einsql_writes_the_catalog(path: str, sql: str) -> None:
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR w (i DIM(3), val DOUBLE) DEFAULT 1")
        with pytest.raises(einsql.Error, match="einsql's own schema"):
            con.execute(sql)
        with pytest.raises(einsql.Error):
            con.execute("DELETE FROM objects")
        assert con.execute("SELECT name FROM __einsql.objects").fetchall() == [("w",)]
    with einsql.connect(path) as con:
        assert con.execute("SELECT SUM(val) FROM w").fetchone() == (3.0,)


def test_what_duckdb_cannot_carry_is_not_carried(path: str, tmp_path: Path) -> None:
    with einsql.connect(path) as con:
        con.execute("CREATE TABLE t AS SELECT 1 AS k; ATTACH ':memory:' AS o")
        con.execute("CREATE TENSOR w (i DIM(3), val DOUBLE) DEFAULT 1")
        with pytest.raises(einsql.NotSupportedError, match="leave the tensors") as caught:
            con.execute("COPY FROM DATABASE model TO o")
        assert "BACKUP TO 'new.db' and EXPORT DATABASE" in str(caught.value)
    with einsql.connect() as con:
        con.execute(f"ATTACH '{path}' AS m; ATTACH ':memory:' AS o")
        for sql in ("COPY FROM DATABASE m TO o", f"EXPORT DATABASE m TO '{tmp_path / 'full'}'"):
            with pytest.raises(einsql.NotSupportedError, match="leave the tensors"):
                con.execute(sql)
        with pytest.raises(einsql.NotSupportedError, match="leave the tensors"):
            con.execute(f"USE m; EXPORT DATABASE '{tmp_path / 'full'}'")
        assert not (tmp_path / "full").exists()
        con.execute("USE memory; CREATE TABLE t AS SELECT 1 AS k; COPY FROM DATABASE memory TO o")
        con.execute(f"EXPORT DATABASE o TO '{tmp_path / 'plain'}'")
        assert sorted(os.listdir(tmp_path / "plain")) == ["load.sql", "schema.sql", "t.csv"]
        con.execute("CREATE TENSOR w AS SELECT k AS i, k FROM o.t; USE o")
        con.execute(f"EXPORT DATABASE memory TO '{tmp_path / 'own'}'")
        assert "einsql.json" in os.listdir(tmp_path / "own")
