"""Each tile has the range of its values, which every copy of it keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import einsql
from einsql.core.bfloat16 import loaded, narrow
from einsql.core.schema import DType
from einsql.storage.database.stored import StoredFields
from einsql.storage.database.tiles import tile_grid
from einsql.storage.database.tiles.tile_statistics import RECORD
from einsql.storage.objects import Tensor

ROWS, COLUMNS = 24, 32
OK = [("ok", None, None)]


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_grid, "TILE", COLUMNS * 8)  # a row of DOUBLEs is one tile


@pytest.fixture
def con(path: str) -> Iterator[einsql.Connection]:
    with einsql.connect(path, config={"jit": "never"}) as con:
        yield con


def fields_of(con: einsql.Connection, name: str) -> StoredFields:
    """The stored fields of a tensor."""
    item = con.store.get(name)
    assert isinstance(item, Tensor)
    fields = item.relation.fields
    assert isinstance(fields, StoredFields)
    return fields


def table(con: einsql.Connection, name: str) -> np.ndarray:
    """The statistics of the base segment of a tensor: (tiles, fields)."""
    statistics = fields_of(con, name).base.statistics
    assert statistics is not None
    return statistics


def numbers(record: np.void, dtype: DType) -> tuple[float, float, int, int]:
    """The items of a record."""
    ends = np.array([record["least"], record["most"]])
    if dtype.is_float:
        ends = ends.view(np.float64)
    return ends[0].item(), ends[1].item(), int(record["nans"]), int(record["present"])


@pytest.mark.parametrize("dtype", DType)
def test_statistics_are_those_of_the_present_values(con: einsql.Connection, dtype: DType) -> None:
    random = np.random.default_rng(7)
    drawn = random.normal(0, 30, (ROWS, COLUMNS))
    if dtype is DType.BIGINT:
        drawn[:, 1] = 2.0**60
    if dtype.is_float:
        for n, special in enumerate((np.nan, np.inf, -np.inf)):
            drawn[random.random(drawn.shape) < 0.01 * (n + 1)] = special
        drawn[5], drawn[6, 3:] = np.nan, np.inf
    rounded = narrow(drawn) if dtype is DType.BFLOAT16 else drawn.astype(dtype.numpy)
    bits = drawn > 0 if dtype is DType.BOOLEAN else rounded
    values = loaded(bits, dtype)
    con.register("r", bits, dims=("i", "j"))
    con.execute("CREATE TENSOR x AS SELECT * FROM r")
    con.execute("CREATE TENSOR y AS SELECT * FROM r")
    con.execute("DELETE FROM y WHERE (i + j) % 3 = 0 OR i = 9")
    present = np.add.outer(np.arange(ROWS), np.arange(COLUMNS)) % 3 != 0
    present[9] = False
    for name, flags in (("x", np.ones_like(present)), ("y", present)):
        fields = fields_of(con, name)
        grid = tile_grid.TileGrid((ROWS, COLUMNS), fields.layout.base.tile or ())
        for tile, record in enumerate(table(con, name)[:, 0]):
            (box,) = grid.boxes(np.array([tile]))
            at = tuple(slice(lo, hi) for lo, hi in box.tolist())
            some = values[at][flags[at]]
            known = some[some == some]
            least, most, nans, count = numbers(record, dtype)
            assert (nans, count) == (some.size - known.size, some.size)
            if known.size:
                assert (least, most) == (known.min(), known.max())
            else:
                assert least > most


def test_copies_keep_statistics(path: str, con: einsql.Connection) -> None:
    con.execute(
        f"CREATE TENSOR x AS SELECT i, j, CAST(100 * i + j AS DOUBLE) AS val "
        f"FROM RANGE({ROWS}) a(i), RANGE({COLUMNS}) b(j)"
    )
    con.execute("UPDATE x SET val = -7 WHERE i IN (3, 20) AND j = 5")
    (newer,) = fields_of(con, "x").newer.values()
    assert newer.statistics is not None
    assert [numbers(r, DType.DOUBLE)[:2] for r in newer.statistics[:, 0]] == [
        (-7.0, 331.0), (-7.0, 2031.0),
    ]  # fmt: skip
    want = [(100.0 * i, 100.0 * i + 31, 0, COLUMNS) for i in range(ROWS)]
    want[3], want[20] = (-7.0, 331.0, 0, COLUMNS), (-7.0, 2031.0, 0, COLUMNS)
    con.execute(f"BACKUP TO '{path}.copy'")
    con.execute("VACUUM")
    with einsql.connect(f"{path}.copy") as copy:
        for session in (con, copy):
            assert not fields_of(session, "x").newer
            assert [numbers(r, DType.DOUBLE) for r in table(session, "x")[:, 0]] == want
    with pa.OSFile(fields_of(con, "x").base.path) as file:
        column = pa.ipc.open_file(file).read_all().column(".statistics").to_pylist()
    assert np.array_equal(np.frombuffer(b"".join(column), RECORD), table(con, "x")[:, 0])


def test_damaged_statistics_are_told_of(path: str, con: einsql.Connection) -> None:
    con.execute(
        f"CREATE TENSOR x AS SELECT i, j, CAST(i AS DOUBLE) AS val "
        f"FROM RANGE({ROWS}) a(i), RANGE({COLUMNS}) b(j)"
    )
    base = fields_of(con, "x").base
    con.close()
    assert base.segment.statistics is not None
    at = base.segment.statistics + 5 * RECORD.itemsize + 15  # of the greatest value
    content = bytearray(Path(base.path).read_bytes())
    content[at] ^= 0x40
    Path(base.path).write_bytes(content)
    with einsql.connect(path) as again:
        for use in ("SELECT SUM(val) FROM x WHERE val > 4.5", "UPDATE x SET val = 1 WHERE val = 5"):
            with pytest.raises(einsql.OperationalError, match="checksum of its frame"):
                again.execute(use)
        ((_, problem, _),) = again.execute("PRAGMA integrity_check").fetchall()
        assert "checksum of its frame" in problem
