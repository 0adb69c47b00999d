"""Sparse tensors in a database file: reopening, backups, exports and damage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import einsql

MAKE = (
    "CREATE TENSOR a STORAGE SPARSE AS SELECT k % 50 AS u, k AS m, k / 2 AS r, k > 5 AS f "
    "FROM range(200) t(k)",
    "CREATE TENSOR d (i DIM(1000), j DIM(1000), v FLOAT) DEFAULT 1.5 STORAGE SPARSE",
    "INSERT INTO d VALUES (1, 2, 3), (4, 5, 'nan'::FLOAT)",
    "CREATE TENSOR none (i DIM(7), j DIM(9), v INTEGER) STORAGE SPARSE",
    "UPDATE a SET r = -r WHERE m > 190",
)
QUERIES = (
    "SELECT * FROM a",
    "SELECT u, SUM(r) AS s, COUNT(*) AS n FROM a WHERE f GROUP BY u",
    "SELECT COUNT(*) AS n, COUNT_IF(ISNAN(v)) AS nans, MAX(v) AS m FROM d",
    "SELECT * FROM none",
    "SHOW TENSORS",
)


def answers(con: einsql.Connection) -> list[str]:
    return [repr(con.execute(sql).fetchall()) for sql in QUERIES]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed database with sparse tensors."""
    with einsql.connect(str(tmp_path / "s.db")) as con:
        for sql in MAKE:
            con.execute(sql)
    return tmp_path / "s.db"


def test_a_database_reopens_with_its_sparse_tensors(path: Path) -> None:
    with einsql.connect() as fresh:
        for sql in MAKE:
            fresh.execute(sql)
        wanted = answers(fresh)
    with einsql.connect(str(path), read_only=True) as con:
        assert answers(con) == wanted
    with einsql.connect(str(path)) as con:
        assert con.execute("PRAGMA integrity_check").fetchall() == [("ok", None, None)]
        con.execute(f"BACKUP TO '{path.parent / 'b.db'}'")
        con.execute(f"EXPORT DATABASE '{path.parent / 'out'}'")
        snapshot = con.execute("SELECT * FROM a")
        con.execute("DELETE FROM a")
        con.execute("VACUUM")
        assert repr(snapshot.fetchall()) == wanted[0]  # of the commit that it has read
    with einsql.connect(str(path.parent / "b.db")) as con:
        assert answers(con) == wanted
    with einsql.connect() as con:
        con.execute(f"IMPORT DATABASE '{path.parent / 'out'}'")
        assert answers(con) == wanted


def test_a_rollback_restores_the_elements(path: Path) -> None:
    with einsql.connect(str(path)) as con:
        wanted = answers(con)
        con.execute("BEGIN")
        con.execute("UPDATE a SET r = 0")
        con.execute("INSERT INTO none VALUES (1, 1, 1)")
        con.execute("ROLLBACK")
        assert answers(con) == wanted


def test_vacuum_keeps_the_files_of_sparse_tensors(path: Path) -> None:
    before = {payload(path, name) for name in ("a", "d", "none")}
    with einsql.connect(str(path)) as con:
        con.execute("VACUUM")
    after = {payload(path, name) for name in ("a", "d", "none")}
    assert after == before


def payload(path: Path, name: str) -> Path:
    (found,) = (path.parent / f"{path.name}.tensors").glob(f"{name}.*.arrow")
    return found


def test_a_damaged_payload_is_found_and_refused(path: Path) -> None:
    file = payload(path, "a")
    data = bytearray(file.read_bytes())
    at = data.find(np.float64(-97.5).tobytes())
    data[at] ^= 1
    file.write_bytes(bytes(data))
    with einsql.connect(str(path)) as con:
        ((name, problem, _),) = con.execute("PRAGMA integrity_check").fetchall()
        assert name == "a"
        assert "tiles of r are wrong" in problem
        with pytest.raises(einsql.OperationalError, match="checksum of tile 0 of r is wrong"):
            con.execute("SELECT * FROM a")
        with pytest.raises(einsql.OperationalError, match="checksum of tile 0 of r is wrong"):
            con.execute(f"BACKUP TO '{path.parent / 'b.db'}'")
        assert con.execute("SELECT COUNT(*) AS n FROM d").fetchall() == [(10**6,)]


def _other_format(layout: dict[str, Any]) -> None:
    layout["format"] = "coo"


def _fewer_starts(layout: dict[str, Any]) -> None:
    layout["parts"][0]["shape"] = [50]


def _other_order(layout: dict[str, Any]) -> None:
    layout["parts"].reverse()


def _other_fills(layout: dict[str, Any]) -> None:
    layout["fill"] = [(1.0).hex(), None, 2]


@pytest.mark.parametrize("spoil", [_other_format, _fewer_starts, _other_order, _other_fills])
def test_a_wrong_row_of_the_catalog_is_a_damaged_tensor(
    path: Path, spoil: Callable[[dict[str, Any]], None]
) -> None:
    with duckdb.connect(str(path)) as duck:
        ((text,),) = duck.execute("SELECT told FROM __einsql.objects WHERE name = 'a'").fetchall()
        description = json.loads(text)
        spoil(description["payload"])
        told = json.dumps(description)
        duck.execute("UPDATE __einsql.objects SET told = ? WHERE name = 'a'", [told])
    with einsql.connect(str(path)) as con:
        with pytest.raises(einsql.OperationalError, match="is damaged in the database file"):
            con.execute("SELECT * FROM a")
        con.execute("DROP TENSOR a")
