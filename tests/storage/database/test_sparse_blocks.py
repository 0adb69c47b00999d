"""A change of a stored sparse tensor writes the blocks of rows that it touches."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

import einsql
from einsql.storage.database.sparse_payload import StoredSparseFields
from einsql.storage.database.tiles import newer_tiles, tile_grid
from einsql.storage.objects import Tensor
from tests.support.samples import combinations, sample

ROWS, COLUMNS, EACH = 64, 1000, 10
"""The tensor x has 10 elements in each of 64 rows."""
TILE = 4 * (4 + EACH * (4 + 8 + 4))
"""Bytes of a block: of 4 rows of x."""
OK = [("ok", None, None)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_grid, "TILE", TILE)


@pytest.fixture
def con(path: str) -> Iterator[einsql.Connection]:
    """A database with a sparse tensor x of 16 blocks or more, in one segment."""
    with einsql.connect(path, config={"jit": "never"}) as con:
        con.execute(
            f"CREATE TENSOR x (u DIM({ROWS}), m DIM({COLUMNS}), r DOUBLE, n INTEGER) STORAGE SPARSE"
        )
        con.execute(
            f"INSERT INTO x SELECT k // {EACH} AS u, 7 * k % {COLUMNS} AS m, k / 2 AS r, k AS n "
            f"FROM range({ROWS * EACH}) t(k)"
        )
    with einsql.connect(path, config={"jit": "never"}) as con:
        yield con


def expected() -> dict[tuple[int, int], tuple[float, int]]:
    """The first rows of x, by key."""
    return {(k // EACH, 7 * k % COLUMNS): (k / 2, k) for k in range(ROWS * EACH)}


def rows(con: einsql.Connection) -> dict[tuple[int, int], tuple[float, int]]:
    """The rows of x, by key."""
    return {(u, m): (r, n) for u, m, r, n in con.execute("SELECT * FROM x").fetchall()}


def stored(con: einsql.Connection) -> StoredSparseFields:
    """The stored fields of x."""
    tensor = con.store.get("x")
    assert isinstance(tensor, Tensor)
    fields = tensor.relation.fields
    assert isinstance(fields, StoredSparseFields)
    return fields


def files(path: str) -> dict[str, int]:
    """The sizes of the segments."""
    folder = Path(f"{path}.tensors")
    return {n: (folder / n).stat().st_size for n in os.listdir(folder) if n != "einsql"}


def test_a_commit_writes_the_blocks_that_changed(path: str, con: einsql.Connection) -> None:
    """10 elements of 16 blocks: fewer than 10 blocks and the frame of a file."""
    (base,) = files(path).items()
    want = expected()
    con.execute("BEGIN")
    for k in (31, 33, 200, 201, 202, 390, 391):
        con.execute(f"UPDATE x SET r = -1 WHERE n = {k}")
        want[k // EACH, 7 * k % COLUMNS] = -1, k
    con.execute("INSERT INTO x VALUES (3, 999, 0.5, 7), (39, 0, 0.25, 8)")
    con.execute("DELETE FROM x WHERE u = 20 AND n = 205")
    want[3, 999], want[39, 0] = (0.5, 7), (0.25, 8)
    del want[20, 7 * 205 % COLUMNS]
    assert rows(con) == want
    con.execute("COMMIT")
    after = files(path)
    assert after.pop(base[0]) == base[1]
    (newer,) = after.values()
    assert newer < 3 * TILE + 4000
    assert rows(con) == want
    assert con.execute("PRAGMA integrity_check").fetchall() == OK
    con.execute(f"BACKUP TO '{path}.copy'")
    for name in (path, f"{path}.copy"):
        with einsql.connect(name) as other:
            assert rows(other) == want
            (shown,) = other.execute("SHOW TENSORS").fetchall()
            assert shown[-2:] == (len(want), len(want) / ROWS / COLUMNS)
    assert len(files(f"{path}.copy")) == 1
    con.execute("VACUUM")
    assert len(files(path)) == 1
    assert rows(con) == want


def test_an_unchanged_tensor_is_a_view_of_its_file(con: einsql.Connection) -> None:
    fields = stored(con)
    mapped = fields.base
    matrix = fields.taken()
    for array in (matrix.starts, matrix.columns, matrix.values, fields.taken("n").values):
        base: Any = array
        while isinstance(base, np.ndarray):
            base = base.base
        assert base is mapped.memory


def test_appending_writes_new_blocks(path: str) -> None:
    """A log of days: a commit writes the new rows, and at most the last block before."""
    sizes = []
    with einsql.connect(path, config={"jit": "never"}) as con:
        con.execute("CREATE TENSOR x (day DIM(1000), m DIM(1000), r DOUBLE) STORAGE SPARSE")
        for day in range(16):
            before = set(files(path))
            con.execute(f"INSERT INTO x SELECT {day} AS day, k AS m, k * {day} AS r "
                        "FROM range(200) t(k)")  # fmt: skip
            sizes.append(sum(size for n, size in files(path).items() if n not in before))
        assert max(sizes[8:]) < 200 * 12 + 2 * TILE + 8000  # 1000 starts of rows
        assert stored(con).layout.newer
        found = con.execute("SELECT day, COUNT(*), SUM(r) FROM x GROUP BY day").fetchall()
        assert found == [(day, 200, 19900 * day) for day in range(16)]


def test_snapshots_keep_their_blocks(path: str, con: einsql.Connection) -> None:
    with einsql.connect(path) as early, einsql.connect(path) as late:
        early.execute("BEGIN")
        con.execute("UPDATE x SET r = 1 WHERE n = 31")
        late.execute("BEGIN")
        for n in range(5):
            con.execute(f"UPDATE x SET r = {n} WHERE n = 31")
        con.execute("VACUUM")
        con.execute("DELETE FROM x WHERE n = 40")
        assert rows(early) == expected()
        want = expected() | {(3, 217): (1.0, 31)}
        assert rows(late) == want
        late.execute("UPDATE x SET r = 8 WHERE n = 55")  # its segments are unlinked
        late.execute("INSERT INTO x VALUES (6, 0, 7, 7)")
        assert rows(late) == want | {(5, 385): (8.0, 55), (6, 0): (7.0, 7)}
        with pytest.raises(einsql.OperationalError, match="committed a change"):
            late.execute("COMMIT")
        early.execute("ROLLBACK")
        want = expected() | {(3, 217): (4.0, 31)}
        del want[4, 280]
        for session in (con, early, late):
            assert rows(session) == want
        con.execute("VACUUM")
        assert len(files(path)) == 1


def test_segments_and_base_are_replaced(
    path: str, con: einsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newer_tiles, "SEGMENTS", 4)
    want = expected()
    for k in (5, 85, 165, 245, 325, 405, 5, 85):
        con.execute(f"UPDATE x SET r = r - 1000 WHERE n = {k}")
        want[k // EACH, 7 * k % COLUMNS] = want[k // EACH, 7 * k % COLUMNS][0] - 1000, k
        assert rows(con) == want
        assert 1 <= len(stored(con).layout.newer) <= 4
    con.execute("UPDATE x SET r = 0 WHERE n % 10 = 0")  # in every block
    assert len(files(path)) == 1
    assert not stored(con).layout.newer
    assert rows(con) == {k: (0.0 if n % 10 == 0 else r, n) for k, (r, n) in want.items()}


Statement = tuple[str, ...]
KINDS = combinations((1, 2, 3), (False, True), (1, 2))
"""The number of keys, whether there is a DEFAULT, and the number of values."""


@pytest.mark.parametrize(("keys", "default", "values"), KINDS)
def test_random_changes_are_those_of_duckdb(
    path: str, monkeypatch: pytest.MonkeyPatch, keys: int, default: bool, values: int
) -> None:
    """SELECT, joins and aggregates after INSERT, UPDATE, DELETE, ROLLBACK, VACUUM, reopening."""
    monkeypatch.setattr(tile_grid, "TILE", 300)
    random = np.random.default_rng(100 * keys + 10 * default + values)
    shape = {1: (5000,), 2: (60, 40), 3: (20, 7, 9)}[keys]
    names, fields = "ijk"[:keys], ("r", "n")[:values]
    columns = ", ".join(f"{k} DIM({n})" for k, n in zip(names, shape, strict=True))
    types = {"r": "DOUBLE", "n": "INTEGER"}
    listed = ", ".join(f"{f} {types[f]}" for f in fields)
    duck = duckdb.connect()
    duck.execute(f"CREATE TABLE x ({', '.join(f'{k} BIGINT' for k in names)}, {listed}, "
                 f"PRIMARY KEY ({', '.join(names)}))")  # fmt: skip
    ranges = ", ".join(f"range({n}) t{k}({k})" for k, n in zip(names, shape, strict=True))
    if default:
        every = ", ".join(f"3 AS {f}" for f in fields)
        duck.execute(f"INSERT INTO x SELECT {', '.join(names)}, {every} FROM {ranges}")
    change = changes(random, shape, names, fields, default)
    con = einsql.connect(path, config={"jit": "never"})
    con.execute(f"CREATE TENSOR x ({columns}, {listed}) {'DEFAULT 3' if default else ''} "
                "STORAGE SPARSE")  # fmt: skip
    segments = 0
    for step in range(sample(12, 40)):
        kept = step % 5 != 4
        for session in (con, duck):
            session.execute("BEGIN")
        for sql in (next(change) for _ in range(1 if step else 12)):
            con.execute(sql)
            duck.execute(sql)
        for session in (con, duck):
            session.execute("COMMIT" if kept else "ROLLBACK")
        segments = max(segments, len(stored(con).layout.newer))
        if step % 13 == 11:
            con.execute("VACUUM")
        if step % 7 == 6:
            con.close()
            con = einsql.connect(path, config={"jit": "never"})
        compare(con, duck, names, fields[0], all_rows=step % 8 == 7)
    assert segments > 1
    assert con.execute("PRAGMA integrity_check").fetchall() == OK
    con.close()


def changes(
    random: np.random.Generator,
    shape: tuple[int, ...],
    names: str,
    fields: tuple[str, ...],
    default: bool,
) -> Iterator[str]:
    """Random statements that change x."""  # fmt: skip
    extent = shape[0]
    while True:
        near = int(random.integers(extent))
        many = int(random.integers(1, 30))
        places = [random.integers(0, n, many) for n in shape[1:]]
        places = [(near + np.arange(many) * int(random.integers(1, 3))) % extent, *places]
        found = {tuple(map(int, key)) for key in zip(*places, strict=True)}
        values = [[f"{n}" for n in random.integers(-99, 99, len(fields))] for _ in found]
        listed = ", ".join(f"({', '.join([*map(str, k), *v])})"
                           for k, v in zip(sorted(found), values, strict=True))  # fmt: skip
        yield f"INSERT OR REPLACE INTO x VALUES {listed}"
        lo = int(random.integers(extent))
        where = f"{names[0]} >= {lo} AND {names[0]} < {lo + extent // 20} AND r <> 3"
        yield f"UPDATE x SET r = r + {near} WHERE {where}"
        if not default:
            yield f"DELETE FROM x WHERE {names[-1]} % 3 = {near % 3} AND {where}"


def compare(
    con: einsql.Connection,
    duck: duckdb.DuckDBPyConnection,
    names: str,
    field: str,
    all_rows: bool,
) -> None:
    """Asserts that both have the same answers."""  # fmt: skip
    both = " AND ".join(f"a.{k} = b.{k}" for k in names)
    first, last = names[0], names[-1]
    queries = [
        f"SELECT {last}, SUM({field}) AS s, COUNT(*) AS c FROM x WHERE {first} >= 3 AND "
        f"{first} < 17 GROUP BY {last} ORDER BY {last}",
        f"SELECT COUNT(*) AS c, COUNT_IF({field} > 3) AS n FROM x WHERE {first} < 5",
        f"SELECT SUM(a.{field} * b.{field}) AS s FROM x a, x b WHERE {both} AND b.{first} = 9",
        f"SELECT COUNT(*) AS c, SUM({field}) AS s, MIN({field}) AS lo, MAX({field}) AS hi FROM x",
        f"SELECT SUM(a.{field} * b.{field}) AS s FROM x a, x b WHERE {both} AND b.{field} > 5",
    ]
    if all_rows:
        queries.append(f"SELECT * FROM x ORDER BY {', '.join(names)}")
    for query in queries:
        wanted = duck.execute(query).fetchall()
        assert con.execute(query).fetchall() == wanted, query


def spoil(file: str, pattern: bytes) -> None:
    """Changes a byte of a file."""
    data = bytearray(Path(file).read_bytes())
    data[data.index(pattern)] ^= 1
    Path(file).write_bytes(bytes(data))


def test_a_damaged_block_is_found_and_refused(path: str, con: einsql.Connection) -> None:
    con.execute("UPDATE x SET r = 123.25 WHERE n = 31")
    (newer,) = stored(con).newer.values()
    con.close()
    spoil(newer.path, np.float64(123.25).tobytes())
    with einsql.connect(path) as again:
        ((name, problem, _),) = again.execute("PRAGMA integrity_check").fetchall()
        assert name == "x"
        assert "1 of 1 tiles of r are wrong, first that of tile 0 (from u = 0 to u = 3)" in problem
        backup = f"BACKUP TO '{path}.copy'"
        for statement in ("SELECT SUM(r) FROM x", "DELETE FROM x WHERE n = 5", backup, "VACUUM"):
            with pytest.raises(
                einsql.OperationalError,
                match="holds x, is damaged: the checksum of the block of r from u = 0 to u = 3",
            ):
                again.execute(statement)


def test_only_the_rows_that_are_read_are_verified(path: str) -> None:
    """A damaged MiB of the base segment, or a damaged block, is no obstacle to other rows."""
    rows, each = 400, 400
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR x (u DIM(500), m DIM(500), r DOUBLE) STORAGE SPARSE")
        con.execute(f"INSERT INTO x SELECT k // {each} AS u, k % {each} AS m, k / 2 AS r "
                    f"FROM range({rows * each}) t(k)")  # fmt: skip
        con.execute("UPDATE x SET r = 0.125 WHERE u = 7 AND m = 3")
        base, (newer,) = stored(con).base.path, stored(con).newer.values()
    spoil(base, np.float64(399 * each / 2).tobytes())
    spoil(newer.path, np.float64(0.125).tobytes())
    for u in (0, 6, 8, 100, 450):
        with einsql.connect(path) as con:
            want = sum(range(u * each, (u + 1) * each)) / 2 if u < rows else None
            assert con.execute(f"SELECT SUM(r) FROM x WHERE u = {u}").fetchone() == (want,)
            box = np.array([(u, u + 2), (0, 200)])
            part = stored(con).crop(box) if u not in (6, 8) else None
            assert part is None or part["r"].sum() == sum(
                k / 2 for k in range(u * each, (u + 2) * each) if u < rows and k % each < 200
            )
    for u, wrong in ((7, "block of r from u = 7 to u = 7"), (399, "tile 1 of r")):
        with einsql.connect(path) as con:
            assert con.execute("SELECT COUNT(*) FROM x WHERE u = 9").fetchone() == (each,)
            for where in (f"WHERE u = {u}", "", f"WHERE u >= {u} AND u < 500"):
                with pytest.raises(einsql.OperationalError, match=wrong if where else "is wrong"):
                    con.execute(f"SELECT SUM(r) FROM x {where}")
            with pytest.raises(einsql.OperationalError, match=wrong):
                stored(con).crop(np.array([(u, u + 1), (0, 500)]))


def _overlap(layout: dict[str, Any], entries: np.ndarray) -> None:
    entries["end"] += 60


def _outside(layout: dict[str, Any], entries: np.ndarray) -> None:
    entries["stop"] += 1


def _row(layout: dict[str, Any], entries: np.ndarray) -> None:
    entries["row"] += 9


def _no_count(layout: dict[str, Any], entries: np.ndarray) -> None:
    del layout["stored"]


def _dense(layout: dict[str, Any], entries: np.ndarray) -> None:
    del layout["newer"][0]["format"]


@pytest.mark.parametrize("wrong", [_overlap, _outside, _row, _no_count, _dense])
def test_a_wrong_index_is_a_damaged_tensor(
    path: str, con: einsql.Connection, wrong: Callable[[dict[str, Any], np.ndarray], None]
) -> None:
    con.execute("UPDATE x SET r = 1 WHERE n = 631")
    index = stored(con).layout.index
    con.close()
    entries = index.entries.copy()
    with duckdb.connect(path) as duck:
        ((text,),) = duck.execute("SELECT told FROM __einsql.objects").fetchall()
        description = json.loads(text)
        wrong(description["payload"], entries)
        chunks = {n: entries.tobytes() for n in index.chunks}
        description["payload"]["index"] = index.read(chunks).checksum
        duck.execute("UPDATE __einsql.objects SET told = ?", [json.dumps(description)])
        duck.execute("UPDATE __einsql.tiles SET entries = ?", [entries.tobytes()])
    with einsql.connect(path) as again:
        with pytest.raises(einsql.OperationalError, match="is damaged in the database file"):
            again.execute("SELECT * FROM x")
        again.execute("DROP TENSOR x")
