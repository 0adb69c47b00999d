"""BACKUP TO: one commit of an open database as another database."""

from __future__ import annotations

import os
import re
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest

import einsql
from tests.storage.database.crashes import crash_points
from tests.storage.database.victim import commits, prepare, state
from tests.support.samples import combinations

SCHEMA = """
    CREATE SCHEMA s; CREATE TYPE s.size AS ENUM ('small', 'large');
    CREATE SEQUENCE ids START 7;
    CREATE TABLE parent (k INTEGER PRIMARY KEY, name VARCHAR NOT NULL UNIQUE, CHECK (k > 0));
    CREATE TABLE child (
        id INTEGER DEFAULT nextval('ids'), k INTEGER REFERENCES parent (k),
        twice INTEGER GENERATED ALWAYS AS (k * 2), size s.size, list INTEGER[], v VARIANT
    );
    CREATE TABLE node (
        k INTEGER PRIMARY KEY, up INTEGER REFERENCES node (k), odd BOOLEAN AS (k % 2 = 1)
    );
    CREATE TABLE s."a ""b" AS SELECT 1.5::DECIMAL(9, 2) AS "x y";
    INSERT INTO parent VALUES (1, 'one'), (2, 'two');
    INSERT INTO child (k, size, list, v) VALUES (2, 'large', [1, NULL], 3), (1, NULL, NULL, NULL);
    INSERT INTO node VALUES (5, NULL), (6, NULL); INSERT INTO node VALUES (4, 5), (7, 6);
    INSERT INTO node VALUES (3, 4);
    CREATE INDEX by_k ON child (k);
    CREATE VIEW s.names AS SELECT name FROM main.parent;
    COMMENT ON TABLE parent IS 'of children'; COMMENT ON COLUMN child.k IS 'whose';
    CREATE TEMP TABLE mine AS SELECT 1 AS i;
"""
TENSORS = """
    CREATE TENSOR w (i DIM(300), j DIM(500), val DOUBLE) PARTITION BY (j 2) DEFAULT 0.5;
    UPDATE w SET val = i WHERE j = 1;
    CREATE TENSOR half (i DIM(7), val BFLOAT16, flag BOOLEAN) DEFAULT 1;
    CREATE TENSOR few (i DIM(9), val BIGINT); INSERT INTO few VALUES (3, 4);
    CREATE TENSOR one (val FLOAT) DEFAULT 2;
    CREATE VIEW total AS SELECT SUM(val) AS s FROM w;
    CREATE MACRO twice(x) AS 2 * x;
    CREATE TEMP TENSOR own (i DIM(3), val FLOAT) DEFAULT 1;
"""
LISTS = (
    "SELECT schema_name, table_name, sql, comment FROM duckdb_tables() WHERE NOT temporary "
    "AND schema_name <> '__einsql' ORDER BY ALL",
    "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE comment IS NOT NULL",
    "SELECT view_name, sql FROM duckdb_views() WHERE NOT internal",
    "SELECT index_name, sql FROM duckdb_indexes()",
    "SELECT constraint_text FROM duckdb_constraints() WHERE schema_name = 'main' ORDER BY ALL",
    "SELECT sequence_name, last_value FROM duckdb_sequences()",
    "SELECT logical_type, labels FROM duckdb_types() WHERE schema_name = 's'",
    "FROM parent ORDER BY k",
    "FROM child ORDER BY id",
    "FROM node ORDER BY k",
    'FROM s."a ""b"',
    "FROM s.names ORDER BY name",
)
READS = (
    "SHOW TENSORS", "SELECT * FROM w", "SELECT * FROM half", "SELECT * FROM few",
    "SELECT val FROM one", "SELECT twice(s) AS t FROM total",
)  # fmt: skip

LASTING = {"BACKUP TO": {"new.db", "new.db.tensors"}, "EXPORT DATABASE": {"new.db"}}


def contents(con: einsql.Connection) -> list[Any]:
    """Everything that a database holds."""
    con.execute("DROP TENSOR IF EXISTS own")
    lists = [con.duck.execute(sql) for sql in LISTS]
    return lists + [con.execute(sql).fetchall() for sql in READS]


def files(tmp_path: Path) -> set[str]:
    """Names in a directory."""
    return set(os.listdir(tmp_path))


@pytest.mark.parametrize("kind", ["file", "memory", "reader"])
def test_a_backup_is_the_database(path: str, tmp_path: Path, kind: str) -> None:
    target = str(tmp_path / "it's new.db")
    if kind == "reader":
        with einsql.connect(path) as con:
            con.execute(TENSORS)
            con.execute(SCHEMA)
    with einsql.connect(
        ":memory:" if kind == "memory" else path, read_only=kind == "reader"
    ) as con:
        if kind != "reader":
            con.execute(TENSORS)
            con.execute(SCHEMA)
        before = files(tmp_path)
        con.execute(f"BACKUP TO '{target.replace(chr(39), chr(39) * 2)}'")
        assert files(tmp_path) - before == {"it's new.db", "it's new.db.tensors"}
        held = contents(con)
        assert con.duck.execute("SELECT count(*) FROM duckdb_databases() WHERE NOT internal") == [
            (1,)
        ]
        with einsql.connect(target) as copy:
            assert contents(copy) == held
            with pytest.raises(einsql.Error):
                copy.execute("FROM mine")
            copy.execute("UPDATE w SET val = 9; INSERT INTO parent VALUES (3, 'three'); VACUUM")
            assert contents(copy) != held
        assert contents(con) == held
    if kind == "memory":
        return
    os.rename(f"{path}.tensors", f"{path}.away")
    os.rename(f"{target}.tensors", f"{path}.tensors")
    with pytest.raises(einsql.OperationalError, match="does not belong to"):
        einsql.connect(path)


def test_a_file_without_tensors_is_copied_in_its_own_format(tmp_path: Path) -> None:
    source, target = str(tmp_path / "old.db"), str(tmp_path / "new.db")
    with duckdb.connect() as plain:
        plain.execute(f"ATTACH '{source}' AS o (STORAGE_VERSION 'v1.0.0', BLOCK_SIZE 16384)")
        plain.execute("CREATE TABLE o.t AS SELECT 1 AS i; DETACH o")
    with einsql.connect(source, read_only=True) as con:
        con.execute(f"BACKUP TO '{target}'")
    with duckdb.connect(target) as plain:
        assert plain.execute("FROM t").fetchall() == [(1,)]
        assert plain.execute("SELECT block_size FROM pragma_database_size()").fetchall() == [
            (16384,)
        ]
        found = plain.execute("SELECT tags FROM duckdb_databases() WHERE path IS NOT NULL")
        assert found.fetchall() == [({"storage_version": "v1.0.0+"},)]
    with einsql.connect(target) as con:
        con.execute("CREATE TENSOR w (i DIM(3), val DOUBLE) DEFAULT 1")


def test_what_a_snapshot_needs_is_not_swept(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(path)
    target = str(tmp_path / "new.db")
    with einsql.connect(path) as con, einsql.connect(path) as other:
        commits(other, 4, f"{path}.npy")
        con.execute("SELECT SUM(val) FROM x")  # x is mapped, y is not
        run = con.duck.run

        def late(work: Any, tick: Any) -> Any:
            for k in (5, 6):
                commits(other, k, f"{path}.npy")
            other.execute("VACUUM")
            return run(work, tick)

        monkeypatch.setattr(con.duck, "run", late)
        con.execute(f"BACKUP TO '{target}'")
        with einsql.connect(target) as copy:
            assert state(copy) == {4.0}
            assert copy.execute("FROM v").fetchall() == [(4 * 300 * 500 - 4.0,)]
        assert state(con) == {6.0}
        other.execute("VACUUM")
        assert len(os.listdir(f"{path}.tensors")) == 5  # x, y, z, q and the marker


@pytest.mark.parametrize(
    ("damage", "mapped"), combinations(["element", "frame", "short", "missing"], [False, True])
)
def test_a_damaged_payload_is_not_carried(
    path: str, tmp_path: Path, damage: str, mapped: bool
) -> None:
    if mapped and damage in ("short", "missing"):
        return  # a page of a mapped file that is cut off ends the process
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR w (i DIM(600), j DIM(500), val DOUBLE) DEFAULT 0")
        con.execute("UPDATE w SET val = i")
    with einsql.connect(path) as con:
        before = files(tmp_path)
        if mapped:
            con.execute("SELECT val FROM w WHERE i = 0")
        (payload,) = Path(f"{path}.tensors").glob("w.*.arrow")
        with payload.open("r+b") as file:
            if damage == "short":
                file.truncate(5000)
            else:
                file.seek(-500_000 if damage == "element" else -20, os.SEEK_END)
                file.write(b"\x55\x55\x55")
        if damage == "missing":
            payload.unlink()
        found = {
            "element": r"tile 2 of val is wrong \(from i = 400, j = 0 to", "frame": "its frame",
            "short": "it has 5,000 bytes", "missing": "No such file",
        }[damage]  # fmt: skip
        with pytest.raises(einsql.OperationalError, match=found):
            con.execute(f"BACKUP TO '{tmp_path / 'new.db'}'")
        assert files(tmp_path) == before
        with pytest.raises(einsql.OperationalError, match=found):
            con.execute(f"EXPORT DATABASE '{tmp_path / 'out'}'")
        assert files(tmp_path) == before


@pytest.mark.parametrize("taken", ["new.db", "new.db.wal", "new.db.tensors", "link"])
def test_nothing_is_overwritten(path: str, tmp_path: Path, taken: str) -> None:
    target = tmp_path / "new.db"
    if taken == "link":
        target.symlink_to(tmp_path / "nowhere")
    else:
        (tmp_path / taken).touch()
    with einsql.connect(path) as con:
        con.execute(TENSORS)
        before = files(tmp_path)
        with pytest.raises(einsql.OperationalError, match="exists already") as caught:
            con.execute(f"BACKUP TO '{target}'")
        assert caught.value.position == 10
        assert files(tmp_path) == before
        for wrong in ("", ":memory:", str(tmp_path / "no" / "new.db"), "\0"):
            with pytest.raises(einsql.OperationalError):
                con.execute(f"BACKUP TO '{wrong}'")
        con.execute("BEGIN")
        with pytest.raises(einsql.OperationalError, match="BACKUP cannot run in a transaction"):
            con.execute(f"BACKUP TO '{tmp_path / 'other.db'}'")
        con.execute("ROLLBACK; SET enable_external_access = false")
        for statement in ("BACKUP TO", "EXPORT DATABASE", "IMPORT DATABASE"):
            with pytest.raises(einsql.OperationalError, match="enable_external_access"):
                con.execute(f"{statement} '{tmp_path / 'other.db'}'")
        assert files(tmp_path) == before


@pytest.mark.parametrize("statement", ["BACKUP TO", "EXPORT DATABASE"])
def test_a_disk_that_is_full_changes_nothing(path: str, tmp_path: Path, statement: str) -> None:
    """In DuckDB's file, its log, its checkpoint and the payload: a limit on files stands for it."""
    said = set()
    with einsql.connect(path) as con:
        con.execute(TENSORS)
        con.execute("CREATE TABLE t AS SELECT range AS i, 'word' || range AS w FROM range(4000)")
        con.execute(f"BACKUP TO '{tmp_path / 'first.db'}'")
        before = files(tmp_path)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for limit in (2_000, 14_000, 40_000, 300_000, 900_000):
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
                with pytest.raises(einsql.OperationalError, match="File too large") as caught:
                    con.execute(f"{statement} '{tmp_path / 'new.db'}'")
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            assert files(tmp_path) == before
            said.add(re.sub(r"part-[-0-9a-f]+|[\d,]{2,}", "…", caught.value.reason))
            con.execute("UPDATE w SET val = 1; INSERT INTO t VALUES (1, 'a')")
        con.execute(f"{statement} '{tmp_path / 'new.db'}'")
    assert len(said) >= (4 if statement == "BACKUP TO" else 2)


@pytest.mark.parametrize("how", ["interrupt", "Ctrl-C"])
@pytest.mark.parametrize("statement", ["BACKUP TO", "EXPORT DATABASE"])
def test_who_cancels_finds_nothing(path: str, tmp_path: Path, how: str, statement: str) -> None:
    """Wherever the progress is told of, from the first to the last time."""
    with einsql.connect(path) as con:
        con.execute(TENSORS)
        con.execute("CREATE TABLE t AS SELECT range AS i FROM range(300000)")
        before = files(tmp_path)
        left = attempts = 0

        def progress(fraction: float) -> None:
            nonlocal left
            assert 0 <= fraction <= 1
            left -= 1
            if not left:
                con.interrupt()
                if how == "Ctrl-C":
                    raise KeyboardInterrupt

        con.progress = progress
        while not (tmp_path / "new.db").exists():
            attempts += 1
            left = attempts
            with suppress(einsql.errors.InterruptedError, KeyboardInterrupt):
                con.execute(f"{statement} '{tmp_path / 'new.db'}'")
            assert files(tmp_path) - before in (set(), LASTING[statement])
        assert attempts > 2


def test_a_backup_that_is_killed_leaves_nothing_of_its_name_or_all(path: str) -> None:
    """At each rename, file and directory that is forced to the disk, and before it."""
    prepare(path)
    with einsql.connect(path) as con:
        commits(con, 4, f"{path}.npy")
    kinds = list[str]()
    for target, what in crash_points(path):
        kinds.append(what)
        if os.path.exists(target):
            with einsql.connect(target) as con:
                assert state(con) == {4.0}
                assert con.execute("FROM v").fetchall() == [(4 * 300 * 500 - 4.0,)]
        elif os.path.exists(f"{target}.tensors"):
            for _ in range(2):
                with pytest.raises(einsql.OperationalError, match="does not belong"):
                    einsql.connect(target)
        with einsql.connect(path) as con:
            assert state(con) == {4.0}
    assert kinds.count("rename") == 3  # the marker, the directory, the file
    assert kinds.count("fsync") >= 7
    assert kinds[-1] == "end"
