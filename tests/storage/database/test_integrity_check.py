"""PRAGMA integrity_check on files that are really damaged."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import duckdb
import numpy as np
import pytest

import einsql
from einsql.storage.database.checks import CHUNK

CHECK = "PRAGMA integrity_check"
OK = [("ok", None, None)]
COLUMNS = CHUNK // 8
"""A row of so many DOUBLEs is one tile."""


@pytest.fixture
def payloads(path: str) -> dict[str, str]:
    """Paths of the payloads of the tensors x, of 40 tiles, and y and z, of one row."""
    with einsql.connect(path) as con:
        con.register("r", np.arange(40.0 * COLUMNS).reshape(40, COLUMNS))
        con.execute("CREATE TENSOR x AS SELECT d0 AS i, d1 AS j, val FROM r")
        con.execute("CREATE TENSOR y AS SELECT i, SUM(val) AS s FROM x GROUP BY i")
        con.execute("CREATE TENSOR z AS SELECT * FROM y WHERE i < 3")
        con.execute("CREATE VIEW v AS SELECT SUM(s) AS s FROM y; CREATE MACRO m(a) AS a + 1")
        con.execute("CREATE TABLE t AS SELECT 1 AS n")
        assert con.execute(CHECK).fetchall() == OK
    names = os.listdir(f"{path}.tensors")
    return {n.split(".")[0]: f"{path}.tensors/{n}" for n in names if n != "einsql"}


def checked(path: str) -> list[tuple[str, str, str]]:
    """What is found by a reader, which changes nothing."""
    before = sorted(os.listdir(f"{path}.tensors"))
    with einsql.connect(path, read_only=True) as con:
        cur = con.execute(CHECK)
        assert [d[0] for d in cur.description or ()] == ["integrity_check", "problem", "remedy"]
        found = cur.fetchall()
    assert sorted(os.listdir(f"{path}.tensors")) == before
    return [(str(a), str(b), str(c)) for a, b, c in found]


def test_a_memory_database_and_a_file_of_duckdb_are_ok(path: str) -> None:
    assert einsql.connect().execute(f"{CHECK}()").fetchall() == OK
    with duckdb.connect(path) as duck:
        duck.execute("CREATE TABLE t AS SELECT 1 AS n")
    with einsql.connect(path, read_only=True) as con:
        assert con.execute("pragma INTEGRITY_CHECK").fetchall() == OK
        with pytest.raises(einsql.ProgrammingError, match="should end here"):
            con.execute(f"{CHECK} (7)")


def test_payloads_are_compared_with_their_checksums(path: str, payloads: dict[str, str]) -> None:
    with einsql.connect(path) as con:
        stored = con.store.get("x")
        part = stored.relation.fields.layout.base.parts[0]  # type: ignore[union-attr]  # it is a tensor
    with open(payloads["x"], "r+b") as file:
        for tile in (7, 39):
            file.seek(part.offset + tile * CHUNK + 80)
            file.write(b"\xff")
    os.truncate(payloads["y"], 100)
    with open(payloads["z"], "r+b") as file:
        file.seek(12)
        file.write(b"\xff\xff")
    found = checked(path)
    assert [f[0] for f in found] == ["x", "y", "z"]
    assert "2 of 40 tiles of val are wrong, first that of tile 7 (from i = 7, j = 0" in found[0][1]
    assert "it has 100 bytes, and should have" in found[1][1]
    assert "the checksum of its frame is wrong" in found[2][1]
    assert all(f[2].startswith("Restore the database") for f in found)
    for name, shown in payloads.items():
        assert any(f[0] == name and shown in f[1] for f in found)


def test_missing_strange_and_stray_files_are_found(path: str, payloads: dict[str, str]) -> None:
    os.unlink(payloads["x"])
    os.unlink(payloads["y"])
    os.mkfifo(payloads["y"])  # nobody waits for a writer
    number = "0123456789abcdef0123456789abcdef"
    strays = [f"{path}.tensors/{n}.9.{number}.arrow" for n in "ab"]
    Path(strays[0]).touch()
    Path(f"{strays[1]}.part").touch()
    Path(f"{path}.tensors/notes.txt").touch()  # not einsql's
    found = checked(path)
    assert [f[0] for f in found] == ["x", "y", strays[0], f"{strays[1]}.part"]
    assert "is missing" in found[0][1]
    assert "no regular file" in found[1][1]
    assert [f[1] for f in found[2:]] == [
        "the file belongs to no tensor", "an unfinished file is left over",
    ]  # fmt: skip
    assert all("VACUUM removes it" in f[2] for f in found[2:])
    with einsql.connect(path) as con:
        assert [r[0] for r in con.execute(CHECK).fetchall()] == ["x", "y"]
        con.execute("DROP TENSOR x; DROP TENSOR y")
        assert con.execute(CHECK).fetchall() == OK


def test_every_row_is_read_and_every_definition_parsed(path: str, payloads: dict[str, str]) -> None:
    texts = {"v": "CREATE VIEW v AS SELECT FROM", "w": "CREATE VIEW w AS SELECT 1"}
    with duckdb.connect(path) as duck:
        for name, text in texts.items():
            told = json.dumps({"text": text})
            duck.execute("DELETE FROM __einsql.objects WHERE name = ?", [name])
            duck.execute("INSERT INTO __einsql.objects VALUES (?, 1, 'view', ?)", [name, told])
        duck.execute("UPDATE __einsql.objects SET kind = 'potion' WHERE name = 'm()'")
        duck.execute("UPDATE __einsql.objects SET told = replace(told, 'DOUBLE', 'TEXT') "
                     "WHERE name = 'x'")  # fmt: skip
    found = checked(path)
    assert [f[0] for f in found] == ["m()", "v", "x"]
    assert "its kind is 'potion'" in found[0][1]
    assert "its definition cannot be read: Syntax error" in found[1][1]
    assert "'TEXT'" in found[2][1]
    assert ['DROP VIEW "m"' in found[0][2], 'DROP VIEW "v"' in found[1][2]] == [True, True]
    with einsql.connect(path) as con:
        con.execute('DROP VIEW "m"; DROP VIEW "v"')
        con.execute(CHECK)
        assert con.execute("SHOW TENSORS").fetchall()[0][2].startswith("damaged tensor")
        con.execute("DROP TENSOR x")
        assert con.execute(CHECK).fetchall() == OK


def test_a_check_tells_its_progress_and_can_be_interrupted(
    path: str, payloads: dict[str, str]
) -> None:
    with einsql.connect(path) as con:
        told: list[float] = []
        con.progress = told.append
        con.execute(CHECK)
        assert len(told) > 3
        assert told == sorted(told)
        assert 0.9 < told[-1] <= 1.0

        def stop(fraction: float) -> None:
            told.append(fraction)
            con.interrupt()

        told.clear()
        con.progress = stop
        with pytest.raises(einsql.InterruptedError):
            con.execute(CHECK)
        assert max(told) < 0.9
        con.progress = None
        assert con.execute(CHECK).fetchall() == OK


def test_others_commit_while_a_check_runs(path: str, payloads: dict[str, str]) -> None:
    """Payloads that are swept meanwhile are nothing wrong, nor are those just being written."""
    with einsql.connect(path) as con, einsql.connect(path) as other:
        other.execute("SELECT SUM(s) FROM y").fetchone()  # what is mapped does not wait for it
        failed: list[BaseException] = []
        done = threading.Event()

        def write() -> None:
            try:
                for n in range(15):
                    other.execute("BEGIN; UPDATE y SET s = s + 1; UPDATE z SET s = ?; COMMIT"
                                  .replace("?", str(n)))  # fmt: skip
            except BaseException as error:
                failed.append(error)
            finally:
                done.set()

        writer = threading.Thread(target=write)
        writer.start()
        found = [con.execute(CHECK).fetchall()]
        while not done.is_set():
            found.append(con.execute(CHECK).fetchall())
        writer.join()
        assert not failed
        assert [rows for rows in found if rows != OK] == []
        con.execute("BEGIN; UPDATE y SET s = 0")
        assert con.execute(CHECK).fetchall() == OK  # what is not committed is not looked at
