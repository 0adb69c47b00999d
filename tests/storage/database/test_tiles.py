"""A change of a stored tensor writes the tiles it touches, and readers keep their snapshot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest

import einsql
from einsql.storage.database.stored import StoredFields
from einsql.storage.database.tiles import newer_tiles, tile_grid
from einsql.storage.objects import Tensor

ROWS, COLUMNS = 64, 32
TILE = COLUMNS * 8
"""A row of DOUBLEs is one tile."""
OK = [("ok", None, None)]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_grid, "TILE", TILE)


@pytest.fixture
def con(path: str) -> Iterator[einsql.Connection]:
    """A database with a tensor x of 64 tiles, whose val is 100 i + j."""
    with einsql.connect(path, config={"jit": "never"}) as con:
        con.execute(
            f"CREATE TENSOR x AS SELECT i, j, CAST(100 * i + j AS DOUBLE) AS val "
            f"FROM RANGE({ROWS}) a(i), RANGE({COLUMNS}) b(j)"
        )
    with einsql.connect(path, config={"jit": "never"}) as con:
        yield con


def expected() -> np.ndarray:
    """The first elements of x."""
    return 100.0 * np.arange(ROWS)[:, None] + np.arange(COLUMNS)


def elements(con: einsql.Connection, name: str = "x") -> np.ndarray:
    """All elements of a tensor."""
    return np.array(con.execute(f"SELECT * FROM {name}").fetch_numpy())


def stored(con: einsql.Connection, name: str = "x") -> StoredFields:
    """The stored fields of a tensor."""
    item = con.store.get(name)
    assert isinstance(item, Tensor)
    fields = item.relation.fields
    assert isinstance(fields, StoredFields)
    return fields


def files(path: str) -> dict[str, int]:
    """The sizes of the segments."""
    folder = Path(f"{path}.tensors")
    return {n: (folder / n).stat().st_size for n in os.listdir(folder) if n != "einsql"}


def test_a_commit_writes_the_tiles_that_changed(path: str, con: einsql.Connection) -> None:
    (base,) = files(path).items()
    want = expected()
    con.execute("BEGIN")
    for i in (3, 40, 63):
        con.execute(f"UPDATE x SET val = -val WHERE i = {i} AND j = 7")
        want[i, 7] *= -1
    con.execute("COMMIT")
    after = files(path)
    assert after.pop(base[0]) == base[1]
    (newer,) = after.values()
    assert 3 * TILE < newer < 3 * TILE + 4000
    assert np.array_equal(elements(con), want)
    con.execute("INSERT OR REPLACE INTO x VALUES (5, 5, 0.5), (40, 9, 0.25)")
    want[5, 5], want[40, 9] = 0.5, 0.25
    assert len(files(path)) == 3
    assert np.array_equal(elements(con), want)
    assert con.execute("PRAGMA integrity_check").fetchall() == OK
    with einsql.connect(path) as other:
        assert np.array_equal(elements(other), want)
        assert other.execute("SELECT SUM(val) FROM x WHERE i = 40").fetchone() == (want[40].sum(),)


def test_only_the_tiles_of_a_change_are_read(path: str, con: einsql.Connection) -> None:
    """A damaged tile is no obstacle to a change of another one."""
    base = stored(con).base
    with open(base.path, "r+b") as file:
        file.seek(base.segment.parts[0].offset + 30 * TILE)
        file.write(b"\xff")
    con.execute("UPDATE x SET val = 1 WHERE i = 3 AND j = 7")
    con.execute("INSERT OR REPLACE INTO x VALUES (50, 5, 0.5)")
    assert con.execute("SELECT val FROM x WHERE i = 50 AND j = 5").fetchone() == (0.5,)
    for change in (
        "UPDATE x SET val = 1 WHERE i = 30 AND j = 7", "INSERT OR REPLACE INTO x VALUES (30, 1, 0)",
    ):  # fmt: skip
        with pytest.raises(einsql.OperationalError, match=r"tile 30 of val.*i = 30, j = 0"):
            con.execute(change)


def test_snapshots_keep_their_tiles(path: str, con: einsql.Connection) -> None:
    with einsql.connect(path) as early, einsql.connect(path) as late:
        early.execute("BEGIN")
        con.execute("UPDATE x SET val = 1 WHERE i = 3 AND j = 7")
        late.execute("BEGIN")
        for n in range(5):
            con.execute(f"UPDATE x SET val = {n} WHERE i = 3 AND j = 7")
        con.execute("VACUUM")
        con.execute("UPDATE x SET val = 9 WHERE i = 4 AND j = 7")
        want = expected()
        assert np.array_equal(elements(early), want)
        want[3, 7] = 1
        assert np.array_equal(elements(late), want)
        late.execute("UPDATE x SET val = 8 WHERE i = 5 AND j = 5")  # its segments are unlinked
        late.execute("UPDATE x SET val = 7 WHERE i = 6 AND j = 6")
        want[5, 5], want[6, 6] = 8, 7
        assert np.array_equal(elements(late), want)
        with pytest.raises(einsql.OperationalError, match="committed a change"):
            late.execute("COMMIT")
        early.execute("ROLLBACK")
        want = expected()
        want[3, 7], want[4, 7] = 4, 9
        for session in (con, early, late):
            assert np.array_equal(elements(session), want)
        con.execute("VACUUM")
        assert len(files(path)) == 1


def test_results_and_rolled_back_states_stay(path: str, con: einsql.Connection) -> None:
    want = expected()
    con.execute("BEGIN; UPDATE x SET val = -1 WHERE i = 3 AND j = 7")
    first = con.execute("SELECT * FROM x").fetch_numpy()
    con.execute("UPDATE x SET val = -2 WHERE i = 3 AND j = 7; UPDATE x SET val = 6 WHERE i = 9")
    assert first[3, 7] == -1
    with pytest.raises(einsql.Error):
        con.execute("UPDATE x SET val = CAST(1 / (j - 31) AS TINYINT) * 1000000 * i WHERE i = 5; "
                    "INSERT INTO x VALUES (3, 7, 1)")  # fmt: skip
    con.execute("ROLLBACK")
    assert np.array_equal(elements(con), want)
    assert len(files(path)) == 1
    assert first[3, 7] == -1


def test_random_changes_are_those_of_an_array(path: str, con: einsql.Connection) -> None:
    """UPDATE, INSERT, DELETE, ROLLBACK, VACUUM and reopening, with a mask and two fields."""
    random = np.random.default_rng(11)
    con.execute(f"CREATE TENSOR y (i DIM({ROWS}), j DIM({COLUMNS}), val DOUBLE, n TINYINT)")
    con.execute("INSERT INTO y SELECT i, j, val, CAST(i AS TINYINT) FROM x WHERE i < 60 AND j < 30")
    val, n = expected(), np.repeat(np.arange(ROWS), COLUMNS).reshape(ROWS, COLUMNS)
    present = (np.arange(ROWS) < 60)[:, None] & (np.arange(COLUMNS) < 30)
    for step in range(35):
        i, j = int(random.integers(ROWS)), int(random.integers(COLUMNS))
        con.execute("BEGIN")
        before = val.copy(), n.copy(), present.copy()
        kind = step % 5
        if kind == 0:
            con.execute(f"UPDATE y SET val = val + 1, n = 5 WHERE i = {i} AND j >= {j}")
            val[i, j:] += 1
            n[i, j:] = 5
        elif kind == 1:
            con.execute(f"DELETE FROM y WHERE i = {i} AND j = {j}")
            present[i, j] = False
        elif kind == 2:
            con.execute(f"INSERT OR REPLACE INTO y VALUES ({i}, {j}, 0.5, 1)")
            val[i, j], n[i, j], present[i, j] = 0.5, 1, True
        elif kind == 3:
            con.execute(f"UPDATE y SET val = -1 WHERE val = {100 * i + j}")
            val[present & (val == 100 * i + j)] = -1
        else:
            con.execute(f"UPDATE y SET n = 7 WHERE j = {j} AND i BETWEEN {i} AND {i + 1}")
            n[i : i + 2, j] = 7
        if step % 7 == 3:
            con.execute("ROLLBACK")
            val, n, present = before
        else:
            con.execute("COMMIT")
        if step % 20 == 11:
            con.execute("VACUUM")
        found = con.execute("SELECT i, j, val, n FROM y ORDER BY i, j").fetchall()
        at = np.argwhere(present)
        assert found == [(a, b, val[a, b], n[a, b]) for a, b in at.tolist()]
    assert con.execute("PRAGMA integrity_check").fetchall() == OK
    with einsql.connect(path) as other:
        assert other.execute("SELECT SUM(val), SUM(n) FROM y").fetchone() == (
            val[present].sum(), n[present].sum(),
        )  # fmt: skip


def test_appending_rows_writes_new_tiles_only(path: str, con: einsql.Connection) -> None:
    con.execute(f"CREATE TENSOR log (i DIM({ROWS}), j DIM({COLUMNS}), val DOUBLE)")
    con.execute("INSERT INTO log SELECT * FROM x WHERE i < 20")
    for i in range(20, ROWS):
        before = set(files(path))
        con.execute(f"INSERT INTO log SELECT i, j, val FROM x WHERE i = {i}")
        new = set(files(path)) - before
        written = sum(files(path)[n] for n in new)
        if 20 <= i < 30:
            assert TILE < written < 2 * TILE + 4000
    assert np.array_equal(elements(con, "log"), expected())
    con.execute("VACUUM")
    assert not stored(con, "log").layout.base.parts[1:]  # the mask is gone, as no key is absent
    with pytest.raises(einsql.IntegrityError, match="exists in log"):
        con.execute("INSERT INTO log VALUES (20, 3, 0)")


def new_bytes(path: str, con: einsql.Connection, *changes: str) -> int:
    """The bytes of the segments that changes write in a transaction."""
    before = files(path)
    con.execute("BEGIN; " + "; ".join(changes) + "; COMMIT")
    after = files(path)
    return sum(after[n] for n in after.keys() - before.keys())


@pytest.mark.parametrize("default", ["0", "2.5"])
def test_the_first_change_of_equal_elements_writes_tiles(
    path: str, con: einsql.Connection, default: str
) -> None:
    con.execute(
        f"CREATE TENSOR w (i DIM({ROWS}), j DIM({COLUMNS}), val DOUBLE, n INTEGER) DEFAULT 0"
        if default == "0"
        else f"CREATE TENSOR w (i DIM({ROWS}), j DIM({COLUMNS}), val DOUBLE) DEFAULT {default}"
    )
    fields = 1.5 if default == "0" else 1
    written = new_bytes(path, con, "UPDATE w SET val = i WHERE i = 3 AND j = 7",
                        "UPDATE w SET val = 5 WHERE val = 3 AND i = 3")  # fmt: skip
    assert TILE * fields < written < TILE * fields + 4500
    want = np.full((ROWS, COLUMNS), float(default))
    want[3, 7] = 5
    want[40] = 8
    written = new_bytes(path, con, "INSERT OR REPLACE INTO w SELECT 40, j, 8"
                        + (", 0" * (default == "0")) + f" FROM RANGE({COLUMNS}) r(j)")  # fmt: skip
    assert written < TILE * fields + 4500

    def check(session: einsql.Connection) -> None:
        table = session.execute("SELECT i, j, val FROM w").fetchall()
        found = np.array([v for *_, v in table]).reshape(ROWS, COLUMNS)
        assert found.tobytes() == want.tobytes()
        assert session.execute("SELECT COUNT(*) FROM w WHERE val = 8").fetchone() == (COLUMNS,)
        assert session.execute("PRAGMA integrity_check").fetchall() == OK

    check(con)
    con.execute(f"BACKUP TO '{path}.copy'; EXPORT DATABASE '{path}.out'")
    with einsql.connect(path) as again, einsql.connect(f"{path}.copy") as copy:
        check(again)
        check(copy)
    with einsql.connect() as imported:
        imported.execute(f"IMPORT DATABASE '{path}.out'")
        assert imported.execute("SELECT SUM(val) FROM w").fetchone() == (want.sum(),)
    con.execute("VACUUM")
    assert not stored(con, "w").newer
    check(con)


def test_keys_that_are_deleted_and_come_back_write_tiles(path: str, con: einsql.Connection) -> None:
    def dense() -> bool:
        item = con.store.get("x")
        assert isinstance(item, Tensor)
        return not item.relation.schema.has(".present")

    want = dict(np.ndenumerate(expected()))
    for changes in (
        ["DELETE FROM x WHERE i = 3 AND j = 7"], ["INSERT INTO x VALUES (3, 7, 5)"],
        ["DELETE FROM x WHERE i = 9", f"INSERT INTO x SELECT 9, j, 6 FROM RANGE({COLUMNS}) r(j)",
         "DELETE FROM x WHERE i = 9 AND j = 2", "UPDATE x SET val = -1 WHERE i = 9 AND j < 4"],
    ):  # fmt: skip
        assert new_bytes(path, con, *changes) < 2 * TILE + 3000
        for change in changes:
            if "DELETE" in change:
                row = 3 if "3" in change else 9
                for key in [k for k in want if k[0] == row and f"{k[1]}" in (
                    {"7"} if row == 3 else {"2"} if "j" in change else set(map(str, range(COLUMNS)))
                )]:  # fmt: skip
                    del want[key]
            elif "VALUES" in change:
                want[3, 7] = 5
            elif "INSERT" in change:
                want |= {(9, j): 6 for j in range(COLUMNS)}
            else:
                want |= {k: -1 for k in want if k[0] == 9 and k[1] < 4}
        assert dense() == (len(want) == ROWS * COLUMNS)
        for session in (con, einsql.connect(path)):
            found = session.execute("SELECT i, j, val FROM x").fetchall()
            assert {(i, j): v for i, j, v in found} == want
            assert session.execute("PRAGMA integrity_check").fetchall() == OK
    con.execute("BEGIN; DELETE FROM x WHERE i = 5; INSERT INTO x VALUES (9, 2, 0); ROLLBACK")
    con.execute("VACUUM")
    found = con.execute("SELECT i, j, val FROM x").fetchall()
    assert {(i, j): v for i, j, v in found} == want


def test_segments_are_merged(
    path: str, con: einsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newer_tiles, "SEGMENTS", 6)
    monkeypatch.setattr(newer_tiles, "DEAD", 2)
    want = expected()
    most = 0
    for n in range(40):
        i = n * 7 % 12
        con.execute(f"UPDATE x SET val = {n} WHERE i = {i} AND j = {n % 3}")
        want[i, n % 3] = n
        most = max(most, len(files(path)))
    assert np.array_equal(elements(con), want)
    assert most <= 8
    con.execute("UPDATE x SET val = val + 1 WHERE i < 20")  # more than a quarter
    want[:20] += 1
    assert len(files(path)) == 1
    assert np.array_equal(elements(con), want)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("UPDATE __einsql.tiles SET entries = entries[1:23]::BLOB", "chunk 0 of its tile index"),
        ("DELETE FROM __einsql.tiles", "checksum of its tile index"),
        ("UPDATE __einsql.tiles SET chunk = 1", "chunk 1 of its tile index"),
        ("UPDATE __einsql.tiles SET entries = repeat('\\x00'::BLOB, 24)", "tile index"),
        ("UPDATE __einsql.tiles SET entries = repeat('\\xFF'::BLOB, 24)", "tile index"),
    ],
)  # fmt: skip
def test_a_damaged_tile_index_is_told_of(
    path: str, con: einsql.Connection, change: str, why: str
) -> None:
    con.execute("UPDATE x SET val = 1 WHERE i = 3 AND j = 7")
    con.close()
    with duckdb.connect(path) as plain:
        plain.execute(change)
    with einsql.connect(path) as again:
        with pytest.raises(einsql.OperationalError, match=why):
            again.execute("SELECT * FROM x")
        assert len(again.execute("PRAGMA integrity_check").fetchall()) == 1
        assert len(files(path)) == 2
        again.execute("DROP TENSOR x")
        assert not files(path)
    with duckdb.connect(path) as plain:
        assert not plain.execute("FROM __einsql.tiles").fetchall()


def test_a_damaged_newer_tile_is_told_of(path: str, con: einsql.Connection) -> None:
    con.execute("UPDATE x SET val = 1 WHERE i IN (3, 40) AND j = 7")
    (newer,) = stored(con).newer.values()
    with open(newer.path, "r+b") as file:
        file.seek(newer.segment.parts[0].offset + TILE + 16)
        file.write(b"\xff")
    con.close()
    with einsql.connect(path) as again:
        assert again.execute("SELECT val FROM x WHERE i = 3 AND j = 7").fetchone() == (1.0,)
        what = r"tile 40 of val.*\(from i = 40, j = 0 to i = 40, j = 31\)"
        ((name, problem, _),) = again.execute("PRAGMA integrity_check").fetchall()
        assert (name, newer.path in problem) == ("x", True)
        for use in ("SELECT SUM(val) FROM x", f"BACKUP TO '{path}.b'", "VACUUM"):
            with pytest.raises(einsql.OperationalError, match=what):
                again.execute(use)
