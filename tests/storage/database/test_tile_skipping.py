"""Reads skip the tiles in which a condition holds nowhere, and answer what DuckDB answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import numpy as np
import pytest

import einsql
from einsql.storage.database.stored import StoredFields
from einsql.storage.database.tiles import tile_grid
from einsql.storage.objects import Tensor
from tests.support.samples import spread

ROWS, COLUMNS = 40, 16
TILE = COLUMNS * 8


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_grid, "TILE", TILE)


def values() -> np.ndarray:
    """Rows of growing values, with rows of NaN and infinities among them."""
    random = np.random.default_rng(5)
    array = np.round(random.uniform(-1, 1, (ROWS, COLUMNS)), 2) + 3 * np.arange(ROWS)[:, None] - 40
    array[7], array[9, 3], array[20, ::5], array[21] = np.nan, np.inf, np.nan, -np.inf
    array[30] = 0.5
    return np.asarray(array)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of `con`, made once."""
    path = tmp_path_factory.mktemp("stored") / "model.db"
    with pytest.MonkeyPatch.context() as patch, einsql.connect(str(path)) as con:
        patch.setattr(tile_grid, "TILE", TILE)
        con.register("r", values(), dims=("i", "j"))
        con.execute("CREATE TENSOR x AS SELECT * FROM r")
        con.execute(f"CREATE TENSOR y (i DIM({ROWS}), j DIM({COLUMNS}), val DOUBLE, n INTEGER)")
        con.execute(
            "INSERT INTO y SELECT i, j, val, i * 10 + j FROM r WHERE (i + j) % 3 > 0 AND i <> 4"
        )
        con.execute(
            "CREATE TENSOR z AS SELECT a.i // 8 AS a, a.i % 8 AS b, a.j AS c, MAX(a.val) AS val "
            "FROM r a GROUP BY a.i // 8, a.i % 8, a.j"
        )
    return path


@pytest.fixture
def con(path: str, stored: Path) -> Iterator[einsql.Connection]:
    """Tensors x without absent keys, y with some, z of three keys; v in memory."""
    shutil.copytree(stored.parent, Path(path).parent, dirs_exist_ok=True)
    with einsql.connect(path, config={"jit": "never"}) as con:
        con.register("v", np.arange(COLUMNS) / 4, dims=("j",))
        yield con


@pytest.fixture
def rows(con: einsql.Connection) -> duckdb.DuckDBPyConnection:
    """The same rows in DuckDB."""
    plain = duckdb.connect()
    for name in ("x", "y", "z", "v"):
        elements = con.execute(f"SELECT * FROM {name}").fetch_arrow_table()
        assert elements.num_rows
        plain.execute(f"CREATE TABLE {name} AS FROM elements")
    return plain


def tiles(
    con: einsql.Connection, sql: str, parameters: tuple[float, ...] = ()
) -> list[tuple[int, int]]:
    """The tiles that each step has read and skipped, of steps with a condition on stored values."""
    explained = con.execute(f"EXPLAIN (ANALYZE, FORMAT json) {sql}", parameters).fetchall()
    plan = json.loads("\n".join(line for (line,) in explained))
    every = [n["measured"] for n in plan["nodes"]]
    return [(m["tiles_read"], m["tiles_skipped"]) for m in every if m and "tiles_read" in m]


def same(mine: list[tuple[float, ...]], theirs: list[tuple[float, ...]]) -> None:
    """Compares rows of numbers in any order."""
    a, b = (np.array(sorted(map(repr, rows))) for rows in (mine, theirs))
    if not np.array_equal(a, b):
        a, b = (np.array(sorted(rows), float) for rows in (mine, theirs))
        np.testing.assert_allclose(a, b, rtol=1e-13)


READ: dict[str, tuple[int, int] | None] = {
    "SELECT i, j, val FROM x WHERE val > 60": (9, 31),
    "SELECT SUM(val), COUNT(*) FROM x WHERE val > 60 AND val < 75": (7, 33),
    "SELECT i, COUNT(*) FROM x WHERE val BETWEEN -30 AND -25 GROUP BY i": (2, 38),
    "SELECT j, MIN(val), MAX(val), COUNT(*) FROM x WHERE val < -30 GROUP BY j": (5, 35),
    "SELECT COUNT(*) FROM x WHERE val = 0.5": (2, 38),
    "SELECT j, COUNT(*) FROM x WHERE isnan(val) GROUP BY j": (2, 38),
    "SELECT COUNT(*) FROM x WHERE val > 1e300": (3, 37),
    "SELECT COUNT(*) FROM x WHERE NOT (val <= 60 OR val IS NULL)": (9, 31),
    "SELECT COUNT(*) FROM x WHERE val IN (0.5, 1000)": (2, 38),
    "SELECT SUM(val) FROM x WHERE ABS(val) < 2": (4, 36),
    "SELECT i, SUM(val) FROM x WHERE 2 * val + 1 < -75 GROUP BY i": (5, 35),
    "SELECT COUNT(*) FROM x WHERE val < 3 * i - 41.5": (40, 0),
    "SELECT COUNT(*) FROM x WHERE i > 35 AND val < 65": (0, 4),
    "SELECT i, COUNT(*) FILTER (WHERE val = 0.5) FROM x GROUP BY i": (2, 38),
    "SELECT x.i, SUM(x.val * v.val) FROM x JOIN v USING (j) WHERE x.val > 70 GROUP BY x.i": (6, 34),
    "SELECT a.i, b.j, SUM(a.val * b.val) FROM x a JOIN x b ON a.j = b.i WHERE a.val > 75 "
    "GROUP BY a.i, b.j": (4, 36),
    "SELECT COUNT(*) FROM x WHERE val > (SELECT MAX(val) - 60 FROM y WHERE val < 1e9)": (21, 19),
    "SELECT COUNT(*), SUM(n) FROM y WHERE n BETWEEN 123 AND 125": (2, 38),
    "SELECT MAX(n), SUM(val) FROM y WHERE val > 70": (5, 35),
    "SELECT SUM(n) FROM y": (39, 1),  # a tile without keys
    "SELECT i, j, n FROM y WHERE n < 0": (0, 40),
    "SELECT ARG_MAX(i, val), BOOL_OR(val > 1), PRODUCT(val) FROM x WHERE val BETWEEN 1 AND 5": (
        3, 37,
    ),
    "SELECT a, COUNT(*) FROM z WHERE val BETWEEN 3 AND 4 GROUP BY a": (1, 39),
    "SELECT c, SUM(val) FROM z WHERE val > 55 AND val < 66 GROUP BY c": (6, 34),
    "SELECT b, c, COUNT(*) FROM z WHERE val > 55 GROUP BY b, c": (11, 29),
    "SELECT i, MEDIAN(val) FROM x WHERE val > 70 GROUP BY i": None,
    "SELECT i // 4, COUNT(*) FROM x WHERE val > 60 GROUP BY i // 4": None,
    "SELECT COUNT(*) FROM x WHERE 1 / val > 1e3": (40, 0),
    "SELECT COUNT(*) FROM y WHERE n + 1 > 390": None,  # the sum may overflow
}  # fmt: skip
"""The number of tiles that each statement reads and skips; None if it reads all."""


@pytest.mark.parametrize("sql", spread(READ, 10))
def test_answers_are_those_of_all_rows(
    con: einsql.Connection, rows: duckdb.DuckDBPyConnection, sql: str
) -> None:
    for _ in range(3):  # a repeated plan runs as one function
        same(con.execute(sql).fetchall(), rows.execute(sql).fetchall())
    assert tiles(con, sql)[-1:] == ([] if READ[sql] is None else [READ[sql]])


def test_parameters_choose_tiles(con: einsql.Connection, rows: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT i, SUM(val), COUNT(*) FROM x WHERE val > ? GROUP BY i"
    for least, read in ((70, 6), (75, 4), (1000, 3), (-1000, 39), (60, 9)):
        same(con.execute(sql, (least,)).fetchall(), rows.execute(sql, (least,)).fetchall())
        assert tiles(con, sql, (least,)) == [(read, ROWS - read)]
    assert con.execute(sql, (None,)).fetchall() == []


def test_compiled_kernels_run_over_tiles(
    path: str, con: einsql.Connection, rows: duckdb.DuckDBPyConnection
) -> None:
    with einsql.connect(path, config={"jit": "always"}) as compiled:
        for sql in list(READ)[:6]:
            same(compiled.execute(sql).fetchall(), rows.execute(sql).fetchall())
            assert tiles(compiled, sql) == [READ[sql]]


def test_changes_read_the_tiles_that_they_may_change(
    con: einsql.Connection, rows: duckdb.DuckDBPyConnection
) -> None:
    """Uncommitted and newer tiles count with their new values."""
    for n, change in enumerate((
        "UPDATE x SET val = 100 WHERE val = 0.5", "DELETE FROM y WHERE val > 70",
        "UPDATE x SET val = -5 WHERE val > 75 AND val < 1000", "UPDATE y SET n = -n WHERE n = 151",
    )):  # fmt: skip
        if n % 2:
            con.execute("BEGIN")
        con.execute(change)
        rows.execute(change)
        for sql in (
            "SELECT i, j, val FROM x WHERE val = 100", "SELECT COUNT(*), SUM(n) FROM y WHERE n < 0",
            "SELECT COUNT(*), SUM(val) FROM x WHERE val BETWEEN -6 AND -4",
            "SELECT COUNT(*) FROM y WHERE val > 65",
        ):  # fmt: skip
            same(con.execute(sql).fetchall(), rows.execute(sql).fetchall())
        if n % 2:
            con.execute("COMMIT")
    assert tiles(con, "SELECT COUNT(*) FROM x WHERE val = 100") == [(1, 39)]
    assert tiles(con, "SELECT COUNT(*) FROM y WHERE n < 0") == [(2, 38)]


def test_a_skipped_tile_is_not_read(con: einsql.Connection) -> None:
    item = con.store.get("x")
    assert isinstance(item, Tensor)
    assert isinstance(item.relation.fields, StoredFields)
    base = item.relation.fields.base
    with open(base.path, "r+b") as file:
        file.seek(base.segment.parts[0].offset + 30 * TILE)
        file.write(b"\xff")
    sql = "SELECT COUNT(*) FROM x WHERE val > 60"
    assert con.execute(sql).fetchone() is not None
    con.execute("UPDATE x SET val = 61 WHERE val > 75")
    for use in ("SELECT COUNT(*) FROM x WHERE val = 0.5", "SELECT SUM(val) FROM x"):
        with pytest.raises(einsql.OperationalError, match=r"tile 30 of val.*i = 30, j = 0"):
            con.execute(use)


@pytest.mark.parametrize("where", [
    "CAST(val AS TINYINT) > 1000", "n + 2147483600 < 0", "checked(n) > 5",
])  # fmt: skip
def test_errors_of_conditions_are_not_skipped(con: einsql.Connection, where: str) -> None:
    def checked(n: np.ndarray) -> np.ndarray:
        if (n == 151).any():
            raise ValueError("seen")
        return n

    con.create_function("checked", checked, ["INTEGER"], "INTEGER")
    with pytest.raises(einsql.Error):
        con.execute(f"SELECT COUNT(*) FROM y WHERE {where}")
