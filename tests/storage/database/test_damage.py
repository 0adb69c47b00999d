"""Locks, damaged payloads and full disks: a clear error, and the database stays as it was."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pytest

import einsql
from einsql.storage.database.checks import CHUNK
from tests.support.samples import sample, spread

ROWS, COLUMNS = 64, CHUNK // 8
"""A row of DOUBLEs is one chunk."""


def holder(path: str, read_only: bool) -> subprocess.Popen[str]:
    """Another process that has the database open until it is told to go on."""
    code = (
        f"import einsql; con = einsql.connect({path!r}, read_only={read_only})\n"
        "print(con.execute('SELECT SUM(val) FROM x').fetchone()[0], flush=True); input()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def let_go(process: subprocess.Popen[str]) -> None:
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


def small(path: str) -> None:
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR x (i DIM(4), val FLOAT) DEFAULT 1; UPDATE x SET val = i")


def large(path: str) -> str:
    """A tensor of many chunks; returns the path of its payload."""
    with einsql.connect(path) as con:
        con.register("r", np.arange(ROWS * COLUMNS, dtype=np.float64).reshape(ROWS, COLUMNS))
        con.execute("CREATE TENSOR x AS SELECT d0 AS i, d1 AS j, val FROM r")
        con.execute("CREATE TENSOR y AS SELECT i, SUM(val) AS s FROM x GROUP BY i")
    (name,) = (n for n in os.listdir(f"{path}.tensors") if n.startswith("x."))
    return f"{path}.tensors/{name}"


def test_another_process_is_told_of_at_once(path: str) -> None:
    small(path)
    with holder(path, False) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "6.0\n"
        for read_only in (False, True):
            with pytest.raises(einsql.OperationalError) as told:
                einsql.connect(path, read_only=read_only)
            assert f"open in another process (process {other.pid})" in str(told.value)
            assert "model.db" in str(told.value)
            assert "read_only=True" in str(told.value)
        let_go(other)
    with einsql.connect(path) as con, einsql.connect(path) as second:
        assert con.store.database is second.store.database
        with pytest.raises(einsql.OperationalError, match="open for writing in this process"):
            einsql.connect(path, read_only=True)


def test_several_processes_read(path: str) -> None:
    small(path)
    Path(f"{path}.tensors", "x.9.0123456789abcdef0123456789abcdef.arrow.part").touch()
    others = [holder(path, True) for _ in range(sample(2, 10))]
    try:
        assert {o.stdout.readline() for o in others if o.stdout is not None} == {"6.0\n"}
        with einsql.connect(path, read_only=True) as con:
            for statement in ("UPDATE x SET val = 0", "DROP TENSOR x", "VACUUM",
                              "CREATE TENSOR y AS SELECT * FROM x",
                              "CREATE VIEW v AS SELECT * FROM x"):  # fmt: skip
                with pytest.raises(einsql.OperationalError, match="open for reading only") as told:
                    con.execute(statement)
                assert ("TEMP" in told.value.hint) is (statement != "VACUUM")
            con.execute("BEGIN; CREATE TEMP TENSOR y AS SELECT * FROM x; COMMIT")
            assert con.execute("SELECT SUM(val) FROM y").fetchone() == (6.0,)
        assert len(os.listdir(f"{path}.tensors")) == 3  # readers never sweep
    finally:
        for other in others:
            let_go(other)
    einsql.connect(path).close()
    assert len(os.listdir(f"{path}.tensors")) == 2


def test_a_wrong_byte_is_told_of_where_it_is_read(path: str) -> None:
    payload = large(path)
    with einsql.connect(path) as con:
        stored = con.store.get("x")
        part = stored.relation.fields.layout.base.parts[0]  # type: ignore[union-attr]  # it is a tensor
    with open(payload, "r+b") as file:
        file.seek(part.offset + 40 * CHUNK + 80)
        file.write(b"\xff")
    with einsql.connect(path) as con:
        expected = float(np.arange(3 * COLUMNS, 5 * COLUMNS).sum())
        some = "SELECT SUM(val) FROM x WHERE i BETWEEN 3 AND 4"
        assert con.execute(some).fetchone() == (expected,)
        assert con.execute("SELECT COUNT(*) FROM y").fetchone() == (ROWS,)
        for read in (
            "SELECT SUM(val) FROM x WHERE i = 40",
            "SELECT * FROM x",
            "SELECT MAX(val) FROM x",
            "UPDATE x SET val = 0 WHERE i = 40 AND j > 100",
        ):
            with pytest.raises(einsql.OperationalError) as told:
                con.execute(read)
            assert payload in str(told.value)
            assert "tile 40 of val is wrong (from i = 40, j = 0 to i = 40, j = " in str(told.value)
        con.execute("UPDATE x SET val = 0 WHERE i = 1 AND j = 1")  # another tile
        assert con.execute(some).fetchone() == (expected,)
        con.execute("DROP TENSOR x")


def test_a_slice_reads_no_more_than_its_chunks(path: str) -> None:
    payload = large(path)
    with einsql.connect(path) as con:
        con.execute("SELECT SUM(val) FROM x WHERE i = 7").fetchone()
        con.execute("SELECT j, val FROM x WHERE i = 9 AND j < 5").fetchall()
        for entry in Path("/proc/self/smaps").read_text().split("VmFlags"):
            if payload in entry:
                resident = int(entry.split("Rss:")[1].split()[0]) * 1024
                # The system reads some pages around each one that is touched.
                assert resident < 8 * CHUNK < ROWS * CHUNK
                break
        else:
            pytest.fail("the payload is not mapped")


def test_truncated_and_missing_payloads_are_told_of(path: str) -> None:
    payload = large(path)
    size = os.path.getsize(payload)
    os.truncate(payload, size - 1)
    for why in (f"it has {size - 1:,} bytes", "No such file"):
        with einsql.connect(path) as con:
            with pytest.raises(einsql.OperationalError) as told:
                con.execute("SELECT SUM(val) FROM x WHERE i = 0")
            assert payload in str(told.value)
            assert why in str(told.value)
            assert con.execute("SELECT COUNT(*) FROM y").fetchone() == (ROWS,)
        if os.path.exists(payload):
            os.unlink(payload)
    with open(payload, "wb") as file:
        file.truncate(size)  # of the right length, and nothing in it
    with einsql.connect(path) as con, pytest.raises(einsql.OperationalError, match="its frame"):
        con.execute("SELECT SUM(val) FROM x WHERE i = 0")


def test_a_full_disk_undoes_the_transaction(path: str) -> None:
    small(path)
    with einsql.connect(path) as con:
        con.register("r", np.ones((1000, 1000)))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
        try:
            con.execute("BEGIN; UPDATE x SET val = 9; CREATE TENSOR y AS SELECT * FROM r")
            with pytest.raises(einsql.OperationalError, match="cannot be written: File too large"):
                con.execute("COMMIT")
            with pytest.raises(einsql.OperationalError, match="cannot be written: File too large"):
                con.execute("CREATE TENSOR z AS SELECT * FROM r")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert not con.store.in_transaction
        assert [r[0] for r in con.execute("SHOW TENSORS").fetchall()] == ["r", "x"]
        assert con.execute("SELECT SUM(val) FROM x").fetchone() == (6.0,)
        assert len(os.listdir(f"{path}.tensors")) == 2
        con.execute("CREATE TENSOR y AS SELECT * FROM r")
    with einsql.connect(path) as con:
        assert con.execute("SELECT SUM(val) FROM y").fetchone() == (1e6,)


def test_a_directory_that_may_not_be_written_undoes_the_transaction(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(path)
    with einsql.connect(path) as con:

        def refused(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        with monkeypatch.context() as patch:  # root may write everywhere
            patch.setattr(os, "replace", refused)
            with pytest.raises(einsql.OperationalError, match="Permission denied"):
                con.execute("UPDATE x SET val = 9")
        assert con.execute("SELECT SUM(val) FROM x").fetchone() == (6.0,)
        assert len(os.listdir(f"{path}.tensors")) == 2
        con.execute("UPDATE x SET val = 2")
    with einsql.connect(path) as con:
        assert con.execute("SELECT SUM(val) FROM x").fetchone() == (8.0,)


def test_an_interrupted_commit_is_what_the_file_says(path: str) -> None:
    small(path)
    with einsql.connect(path) as con:
        commit = con.store.duck.commit

        def interrupted() -> None:
            commit()
            raise KeyboardInterrupt

        con.store.duck.commit = interrupted  # type: ignore[method-assign]  # stands for Ctrl-C
        with pytest.raises(KeyboardInterrupt):
            con.execute("UPDATE x SET val = 2")
        con.store.duck.commit = commit  # type: ignore[method-assign]
        assert con.execute("SELECT SUM(val) FROM x").fetchone() == (8.0,)
        con.execute("UPDATE x SET val = 3")
    with einsql.connect(path) as con:
        assert con.execute("SELECT SUM(val) FROM x").fetchone() == (12.0,)


@pytest.mark.parametrize(
    ("change", "why"),
    spread(
        [
            (
                {"payload": {"file": "../secret.1.0123456789abcdef0123456789abcdef.arrow"}},
                "no payload",
            ),
            ({"payload": {"size": 100}}, "too short"),
            ({"payload": {"sums": -8}}, "too short"),
            ({"payload": {"count": 9}}, "too short"),
            ({"keys": [["i", 0, 10**12]]}, "no val of that shape"),
            ({"fields": [["other", "FLOAT"]]}, "other fields"),
            ({"fields": [["val", "TEXT"]]}, "TEXT"),
            ({"name": None}, "None where str belongs"),
            ({"keys": [["i", 0.0, 4.0]]}, "0.0 where int belongs"),
            ({"keys": [[None, 0, 4]]}, "None where str belongs"),
            ({"columns": ["i"]}, "not its keys and values"),
            ({"partition": [2, 2], "order": [0]}, "one number for each key"),
            ({"partition": [2], "order": [7]}, "each key once"),
            ({"payload": {"size": 1e3}}, "where int belongs"),
            ({"payload": {"sums": "0"}}, "where int belongs"),
            ({"default": [1]}, "where str belongs"),
            ({"checks": [["val", 0, 1]]}, "CHECK does not fit"),
            ({"fields": [["val", "INTEGER"]], "checks": [["val", 2, 1]]}, "CHECK does not fit"),
            (
                {"fields": [["val", "INTEGER"]], "checks": [["val", 0.5, 1]]},
                "0.5 where int belongs",
            ),
            ({"fields": [["val", "INTEGER"]], "checks": [["val", 0]]}, "argument"),
        ],
        8,
    ),
)
def test_a_tensor_that_makes_no_sense_is_refused_when_it_is_read(
    path: str, change: dict[str, object], why: str
) -> None:
    small(path)
    with duckdb.connect(path) as con:
        ((text,),) = con.execute("SELECT told FROM __einsql.objects").fetchall()
        told = json.loads(text)
        for name, value in change.items():
            told[name] = {**told[name], **value} if isinstance(value, dict) else value
        con.execute("UPDATE __einsql.objects SET told = ?", [json.dumps(told)])
    with einsql.connect(path) as reopened:
        for use in ("SELECT * FROM x", "UPDATE x SET val = 1", "DESCRIBE x"):
            with pytest.raises(einsql.OperationalError, match=why):
                reopened.execute(use)
        reopened.execute("DROP TENSOR x")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE __einsql.format SET version = NULL", "does not say which format"),
        ("ALTER TABLE __einsql.format RENAME version TO v", "cannot be opened"),
        ("ALTER TABLE __einsql.objects RENAME told TO t", "cannot be opened"),
    ],
)
def test_a_damaged_catalog_is_refused(path: str, change: str, why: str) -> None:
    small(path)
    with duckdb.connect(path) as con:
        con.execute(change)
    with pytest.raises(einsql.OperationalError, match=why):
        einsql.connect(path)


def test_a_path_that_no_system_has_is_refused() -> None:
    with pytest.raises(einsql.OperationalError, match="null"):
        einsql.connect("a\0b.db")
