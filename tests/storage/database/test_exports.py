"""EXPORT and IMPORT DATABASE: tables and tensors in files that other programs read, and back."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from tests.storage.database.test_backup import READS, TENSORS
from tests.support.samples import sample, spread

SCHEMA = """
    CREATE SCHEMA s; CREATE TYPE mood AS ENUM ('a;b', 'c'); CREATE SEQUENCE ids START 7;
    CREATE TABLE t AS SELECT range AS i, 'it''s' AS word FROM range(3);
    CREATE TABLE s."a b" (m mood, line VARCHAR, k INTEGER);
    INSERT INTO s."a b" VALUES ('c', E'x\\r\\ny', 1);
    CREATE VIEW s.words AS SELECT word FROM main.t WHERE word <> ';';
    CREATE TEMP TABLE mine AS SELECT 1 AS i;
"""
TABLES = ("FROM t ORDER BY i", 'FROM s."a b"', "FROM s.words", "SELECT nextval('ids')")


def exported(folder: Path, kind: str = "file", options: str = "") -> list[Any]:
    """Exports a database; returns what it holds."""
    path = str(folder.parent / "source.db") if kind == "file" else ":memory:"
    with einsql.connect(path) as con:
        con.execute(TENSORS)
        con.execute(SCHEMA)
        con.execute(f"EXPORT DATABASE '{folder}' {options}")
        return contents(con)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export that nobody changes."""
    folder = tmp_path_factory.mktemp("export") / "out"
    exported(folder)
    return folder


def contents(con: einsql.Connection) -> list[Any]:
    """Everything that is exported."""
    con.execute("DROP TENSOR IF EXISTS own")
    return [con.duck.execute(sql) for sql in TABLES] + [con.execute(s).fetchall() for s in READS]


@pytest.mark.parametrize("options", ["", "(FORMAT parquet, COMPRESSION zstd)"])
@pytest.mark.parametrize("kind", ["file", "memory"])
def test_an_export_is_imported(tmp_path: Path, kind: str, options: str) -> None:
    held = exported(tmp_path / "first", kind, options)
    shutil.move(tmp_path / "first", tmp_path / "out")
    where = {"file": str(tmp_path / "copy.db"), "memory": ":memory:"}[kind]
    assert {p.suffix for p in (tmp_path / "out").iterdir()} == {
        ".sql", ".json", ".tensors", ".parquet" if options else ".csv",
    }  # fmt: skip
    with einsql.connect(where) as con:
        con.execute(f"IMPORT DATABASE '{tmp_path / 'out'}'")
        shutil.rmtree(tmp_path / "out")
        assert contents(con) == held
        con.execute("UPDATE few SET val = 5; INSERT INTO few VALUES (1, 2)")
        assert con.execute("SELECT val FROM few").fetchall() == [(2,), (5,)]
    if kind == "file":
        with einsql.connect(where) as con:
            assert con.execute("SELECT val FROM few").fetchall() == [(2,), (5,)]
            assert len(os.listdir(f"{where}.tensors")) == 5


def test_other_programs_read_an_export(template: Path) -> None:
    folder = template
    with duckdb.connect() as plain:
        plain.execute(f"IMPORT DATABASE '{folder}'")
        assert plain.execute("FROM s.words").fetchall() == [("it's",)] * 3
        assert plain.execute('SELECT line FROM s."a b"').fetchall() == [("x\r\ny",)]
        assert plain.execute("SELECT * FROM duckdb_schemas() WHERE schema_name = '__einsql'") \
            .fetchall() == []  # fmt: skip
    manifest = json.loads((folder / "einsql.json").read_text())
    assert manifest["format"] == 4
    objects = {o["name"]: o for o in manifest["objects"]}
    assert set(objects) == {"w", "half", "few", "one", "total", "twice()"}
    assert objects["total"] == {
        "name": "total", "kind": "view",
        "definition": {"text": "CREATE VIEW total AS SELECT SUM(val) AS s FROM w"},
    }  # fmt: skip
    w = objects["w"]["definition"]
    assert (w["keys"], w["fields"]) == ([["i", 0, 300], ["j", 0, 500]], [["val", "DOUBLE"]])
    with pa.OSFile(str(folder / "einsql.tensors" / w["payload"]["file"])) as file:
        column = pa.ipc.open_file(file).read_all().column("val").combine_chunks()
    expected = np.full((300, 500), 0.5)
    expected[:, 1] = np.arange(300)
    assert np.array_equal(column.to_numpy_ndarray().reshape(300, 500), expected)


def damaged_payload(folder: Path) -> None:
    (payload,) = folder.glob("einsql.tensors/w.*")
    with payload.open("r+b") as file:
        file.seek(-500_000, os.SEEK_END)
        file.write(b"\x55\x55\x55")


def missing_table(folder: Path) -> None:
    (folder / "s_a_b.csv").unlink()


def written(name: str, text: str) -> Callable[[Path], None]:
    """Replaces a file."""

    def damage(folder: Path) -> None:
        (folder / name).write_text(text)

    return damage


def listed(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Changes the manifest."""

    def damage(folder: Path) -> None:
        manifest = json.loads((folder / "einsql.json").read_text())
        change(manifest)
        (folder / "einsql.json").write_text(json.dumps(manifest))

    return damage


DAMAGES: list[tuple[Callable[[Path], None], str]] = [
    (damaged_payload, "checksum of tile"),
    (missing_table, "s_a_b"),
    (written("einsql.json", "[" * 100_000), "is damaged"),
    (written("einsql.json", '{"format": 1}'), "is damaged"),
    (listed(lambda m: m.update(format=5)), "has format 5"),
    (listed(lambda m: m["objects"].append(m["objects"][0])), "lists w 2 times"),
    (listed(lambda m: m["objects"][0].update(kind="thing")), '"w"'),
    (listed(lambda m: m["objects"][0]["definition"].update(keys=3)), '"w"'),
    (
        listed(lambda m: m["objects"][0]["definition"]["payload"].update(file="../w.arrow")),
        "no payload's name",
    ),
    (written("load.sql", "DELETE FROM __einsql.objects"), "einsql's own schema"),
    (written("load.sql", "-- a\nCOMMIT; SELECT error('never')"), "holds COMMIT"),
    (written("load.sql", "INSERT INTO t SELECT 1, 'a'; SET max_memory = '1GB'"), "max_memory"),
    (written("load.sql", "INSERT INTO t SELECT 1, 'a"), "quote|closed|read"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("number", "explicit"),
    sample(  # all ways of a transaction, in a file and in memory
        [(number, number // 2 % 2 == 1) for number in range(len(DAMAGES))],
        [(number, explicit) for number in range(len(DAMAGES)) for explicit in (False, True)],
    ),
)
def test_a_damaged_export_changes_nothing(
    template: Path, tmp_path: Path, number: int, explicit: bool
) -> None:
    damage, reason = DAMAGES[number]
    folder = tmp_path / "out"
    shutil.copytree(template, folder)
    damage(folder)
    with einsql.connect(str(tmp_path / "m.db") if number % 2 else ":memory:") as con:
        con.execute("CREATE TENSOR before (i DIM(3), val FLOAT) DEFAULT 1")
        if explicit:
            con.execute("BEGIN")
        with pytest.raises(einsql.Error, match=reason):
            con.execute(f"IMPORT DATABASE '{folder}'")
        if explicit:
            with pytest.raises(einsql.OperationalError, match="aborted"):
                con.execute("SELECT * FROM before")
            con.execute("ROLLBACK")
        assert [row[0] for row in con.execute("SHOW TABLES").fetchall()] == ["before"]
        with pytest.raises(einsql.Error):
            con.execute("FROM s.words")


@pytest.mark.parametrize(
    ("taken", "reason"),
    spread(
        [
            ("CREATE TENSOR W (i DIM(3), val FLOAT)", 'There is a tensor "W" already'),
            ("CREATE TEMP TENSOR few (i DIM(3), val FLOAT)", 'There is a tensor "few" already'),
            ("CREATE TENSOR t (i DIM(3), val FLOAT)", 'There is a tensor "t" already'),
            ("CREATE TABLE t AS SELECT 1 AS i", '"t" already exists'),
            ("CREATE TABLE total AS SELECT 1 AS i", 'There is a table "total" already'),
            ("CREATE MACRO twice(x) AS x", 'There is a macro "twice" already'),
            ("ATTACH ':memory:' AS o; USE o", "o is an attached database"),
        ],
        4,
    ),
)
def test_names_that_are_taken_stay(template: Path, taken: str, reason: str) -> None:
    with einsql.connect() as con:
        con.execute(taken)
        before = con.execute("SHOW TABLES").fetchall()
        with pytest.raises(einsql.Error, match=reason) as caught:
            con.execute(f"IMPORT DATABASE '{template}'")
        assert caught.value.position == 16
        assert con.execute("SHOW TABLES").fetchall() == before


def test_a_transaction_exports_what_it_sees_and_imports_until_it_ends(
    path: str, tmp_path: Path
) -> None:
    with einsql.connect(path) as con, einsql.connect(path) as other:
        con.execute(
            "CREATE TENSOR x (i DIM(3), val FLOAT) DEFAULT 1; CREATE TABLE t AS SELECT 1 AS i"
        )
        con.execute("BEGIN; UPDATE x SET val = 2; INSERT INTO t VALUES (2)")
        other.execute("CREATE TENSOR y (i DIM(3), val FLOAT) DEFAULT 1")
        con.execute(f"EXPORT DATABASE '{tmp_path / 'out'}'; ROLLBACK")
        assert con.execute("SELECT SUM(val) FROM x").fetchall() == [(3.0,)]
        con.execute("DROP TENSOR x; DROP TABLE t; BEGIN")
        con.execute(f"IMPORT DATABASE '{tmp_path / 'out'}'")
        assert con.execute("SELECT SUM(val) FROM x").fetchall() == [(6.0,)]
        assert con.execute("SELECT SUM(i) FROM t").fetchall() == [(3,)]
        with pytest.raises(einsql.Error):
            other.execute("FROM x")
        con.execute("ROLLBACK")
        assert [row[0] for row in con.execute("SHOW TABLES").fetchall()] == ["y"]
        con.execute(f"IMPORT DATABASE '{tmp_path / 'out'}'")
        assert other.execute("SELECT SUM(val) FROM x").fetchall() == [(6.0,)]


def test_an_export_fills_an_empty_directory_alone(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    exported(folder)
    with einsql.connect() as con:
        for where in (folder, folder / "load.sql"):
            with pytest.raises(einsql.OperationalError, match="exists already"):
                con.execute(f"EXPORT DATABASE '{where}'")
        with pytest.raises(einsql.NotSupportedError, match="leave the tensors"):
            con.execute(f"PRAGMA import_database('{folder}')")
        with pytest.raises(einsql.Error, match="nonsense"):
            con.execute(f"EXPORT DATABASE '{tmp_path / 'more'}' (FORMAT nonsense)")
        assert sorted(os.listdir(tmp_path)) == ["out", "source.db", "source.db.tensors"]


def test_an_export_has_a_tensor_that_a_temporary_one_hides(tmp_path: Path) -> None:
    with einsql.connect() as con:
        con.execute("CREATE TENSOR x AS SELECT i, i * 2 AS val FROM range(4) AS r(i)")
        con.execute("CREATE TEMP TENSOR x AS SELECT i, 0 AS val FROM range(2) AS r(i)")
        con.execute(f"EXPORT DATABASE '{tmp_path / 'out'}'")
    with einsql.connect() as con:
        con.execute(f"IMPORT DATABASE '{tmp_path / 'out'}'")
        assert con.execute("SELECT val FROM x").fetchall() == [(0,), (2,), (4,), (6,)]


def test_names_and_paths_with_the_name_of_the_catalog(tmp_path: Path) -> None:
    """Only einsql's own schema is left out of an export, and refused in an import."""
    file, folder = tmp_path / "d.db", tmp_path / "my__einsql"
    with duckdb.connect(str(file)) as duck:
        duck.execute("CREATE TABLE log__einsql_x AS SELECT '__einsql' AS k")
    with einsql.connect(file) as con:
        con.execute("CREATE TENSOR t AS SELECT i, i * 2 AS val FROM range(3) r(i)")
        con.execute(f"EXPORT DATABASE '{folder}'")
    with einsql.connect() as con:
        con.execute(f"IMPORT DATABASE '{folder}'")
        assert con.execute("FROM log__einsql_x").fetchall() == [("__einsql",)]
        assert con.execute("SELECT SUM(val) FROM t").fetchone() == (6,)


def test_a_table_with_the_name_of_the_catalog_is_exported(tmp_path: Path) -> None:
    file, folder = tmp_path / "d.db", tmp_path / "out"
    with duckdb.connect(str(file)) as duck:
        duck.execute('CREATE TABLE "__einsql" AS SELECT 5 AS a')
    with einsql.connect(file) as con:
        con.execute(f"EXPORT DATABASE '{folder}'")
        with pytest.raises(einsql.NotSupportedError, match="names __einsql"):
            con.execute(f"IMPORT DATABASE '{folder}'")
    with duckdb.connect() as duck:
        duck.execute(f"IMPORT DATABASE '{folder}'")
        assert duck.execute('FROM "__einsql"').fetchall() == [(5,)]
