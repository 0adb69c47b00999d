"""Databases of every format number that was issued are read, and converted tensor by tensor."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

import duckdb
import pytest

import einsql
from einsql.storage.database import rows
from einsql.storage.database.tiles import tile_grid

ARCHIVES = Path(__file__).parent / "formats"
NUMBERS = range(1, rows.FORMAT + 1)
SHOWN = {
    "SELECT SUM(val), COUNT(*) FROM x": (sum(range(150_000)), 150_000),
    "SELECT SUM(val), COUNT(*) FROM x WHERE i = 299": (sum(range(149_500, 150_000)), 500),
    "SELECT COUNT(*), MIN(val) FROM partly": (290 * 499, 0.0),
    "SELECT val FROM still WHERE i = 7 AND j = 9": (0.5,),
    "SELECT i, j, a, b FROM mixed": (5, 3, 0.5, 7),
    "SELECT s FROM s": (sum(range(150_000)),),
    "SELECT s FROM v": (sum(range(500, 1000)),),
    "SELECT twice(21) AS n": (42,),
    "SELECT SUM(k) FROM t": (3,),
}

OF_BLOCKS = 4
"""The first format in which a sparse tensor has newer blocks."""
SPARSE = range(3, rows.FORMAT + 1)
"""Formats of which there is an archive with sparse tensors of one key, two and three."""
FEW = {
    "SELECT COUNT(*), SUM(r), SUM(n) FROM x": (640, 102240.0, 204480),
    "SELECT SUM(r), COUNT(*) FROM x WHERE u = 3": (172.5, 10),
    "SELECT COUNT(*), SUM(val) FROM vector": (1000, 499500.0),
    "SELECT COUNT(*), SUM(val) FROM cube": (24000, 78780),
    "SELECT SUM(val) FROM cube WHERE i = 9": (3936,),
}


@pytest.fixture(params=NUMBERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A database and an export of a format."""
    return extracted(f"format_{request.param}", tmp_path)


@pytest.fixture(params=SPARSE)
def sparse_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The same with sparse tensors."""
    return extracted(f"sparse_{request.param}", tmp_path)


def extracted(name: str, tmp_path: Path) -> Path:
    """The folder of an archive."""
    with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / name


def files(folder: Path) -> dict[str, bytes]:
    """The content of all files of a database."""
    names = [folder / "model.db", *sorted((folder / "model.db.tensors").iterdir())]
    return {str(n): n.read_bytes() for n in names}


def shown(
    con: einsql.Connection, queries: Iterable[str] = SHOWN
) -> dict[str, tuple[object, ...] | None]:
    """What the queries answer."""
    return {query: con.execute(query).fetchone() for query in queries}


def test_readers_convert_nothing(folder: Path) -> None:
    before = files(folder)
    with einsql.connect(str(folder / "model.db"), read_only=True) as con:
        assert shown(con) == SHOWN
        assert con.execute("PRAGMA integrity_check").fetchall() == [("ok", None, None)]
        con.execute(f"BACKUP TO '{folder / 'copy.db'}'")
    assert files(folder) == before
    with einsql.connect(str(folder / "copy.db")) as con:
        assert shown(con) == SHOWN


def test_writers_convert_the_catalog_and_what_changes(folder: Path) -> None:
    path = folder / "model.db"
    before = {n for n in files(folder) if n.endswith(".arrow")}
    with einsql.connect(str(path)) as con:
        assert shown(con) == SHOWN
        assert {n for n in files(folder) if n.endswith(".arrow")} == before
        con.execute("UPDATE x SET val = val + 1 WHERE i = 3 AND j = 4")
        assert con.execute("SELECT SUM(val) FROM x").fetchone() == (sum(range(150_000)) + 1,)
        con.execute("UPDATE x SET val = val - 1 WHERE i = 3 AND j = 4")
        con.execute("VACUUM")
        assert con.execute("PRAGMA integrity_check").fetchall() == [("ok", None, None)]
    einsql.connect(str(path)).close()  # removes files that the session's snapshots have kept
    assert sum(n.endswith(".arrow") for n in files(folder)) == 5
    with einsql.connect(str(path), read_only=True) as con:
        assert shown(con) == SHOWN
    with duckdb.connect(str(path)) as plain:
        (found,) = plain.execute("SELECT version FROM __einsql.format").fetchall()
        told = plain.execute("SELECT told FROM __einsql.objects WHERE kind = 'tensor'").fetchall()
    assert found == (rows.FORMAT,)
    assert all('"tile": [' in text and '"statistics": ' in text for (text,) in told)


def test_an_earlier_einsql_refuses_a_converted_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(folder / "model.db")
    einsql.connect(path).close()
    monkeypatch.setattr(rows, "FORMAT", rows.FORMAT - 1)
    for read_only in (False, True):
        with pytest.raises(einsql.OperationalError, match=r"has format 4.*formats up to 3"):
            einsql.connect(path, read_only=read_only)


def test_exports_are_imported(folder: Path) -> None:
    with einsql.connect() as con:
        con.execute(f"IMPORT DATABASE '{folder / 'exported'}'")
        assert shown(con) == SHOWN


def test_sparse_tensors_keep_their_base_segment(
    sparse_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, number = sparse_folder / "model.db", int(sparse_folder.name[-1])
    before = files(sparse_folder)
    with einsql.connect(str(path), read_only=True) as con:
        assert shown(con, FEW) == FEW
        assert con.execute("PRAGMA integrity_check").fetchall() == [("ok", None, None)]
    assert files(sparse_folder) == before
    with einsql.connect() as con:
        con.execute(f"IMPORT DATABASE '{sparse_folder / 'exported'}'")
        assert shown(con, FEW) == FEW
    stored = {n for n in before if n.endswith(".arrow")}
    assert (len(stored) > 3) is (number >= OF_BLOCKS)
    monkeypatch.setattr(tile_grid, "TILE", 656)
    with einsql.connect(str(path)) as con:
        for change in ("r - 1", "r + 1"):
            con.execute(f"UPDATE x SET r = {change} WHERE n = 77")
        assert shown(con, FEW) == FEW
    after = files(sparse_folder)
    assert {n: after[n] for n in stored} == {n: before[n] for n in stored}
    assert len(after) > len(before)
    with einsql.connect(str(path)) as con:
        con.execute("VACUUM")
        assert shown(con, FEW) == FEW
        assert con.execute("PRAGMA integrity_check").fetchall() == [("ok", None, None)]
    assert sum(n.endswith(".arrow") for n in files(sparse_folder)) == 3


def test_every_format_has_an_archive() -> None:
    names = [*(f"format_{n}.tar.xz" for n in NUMBERS), *(f"sparse_{n}.tar.xz" for n in SPARSE)]
    assert sorted(os.listdir(ARCHIVES)) == names
