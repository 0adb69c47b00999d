"""cursor.fetch_tiles(): results as Arrow record batches of tiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import einsql
from einsql.storage.database.tiles import tile_grid


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tile_grid, "TILE", 256)


def assembled(reader: pa.RecordBatchReader, keys: list[str], name: str) -> np.ndarray:
    """The array whose tiles a reader returns, over the box of all of them."""
    boxes, pieces = [], []
    for batch in reader:
        box = [(batch[k][0].as_py(), batch[f".end.{k}"][0].as_py()) for k in keys]
        column = batch[name]
        flat = (column.storage if isinstance(column, pa.ExtensionArray) else column).flatten()
        boxes.append(box)
        pieces.append(flat.to_numpy(zero_copy_only=True).reshape([hi - lo for lo, hi in box]))
    ends = np.array(boxes)
    low = ends[:, :, 0].min(axis=0)
    whole = np.zeros(ends[:, :, 1].max(axis=0) - low, pieces[0].dtype)
    for box, piece in zip(boxes, pieces, strict=True):
        whole[tuple(slice(lo - n, hi - n) for (lo, hi), n in zip(box, low, strict=True))] = piece
    return whole


@pytest.mark.parametrize("shape", [(20, 32), (7, 5), (3, 2, 33), (100,)])
def test_tiles_are_those_of_the_array(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    keys = ["i", "j", "k"][: len(shape)]
    with einsql.connect(str(tmp_path / "m.db"), config={"jit": "never"}) as con:
        con.register("r", array, dims=tuple(keys))
        con.execute("CREATE TENSOR x AS SELECT * FROM r")
        for source in ("x", "r"):
            reader = con.execute(f"SELECT * FROM {source}").fetch_tiles()
            assert np.array_equal(assembled(reader, keys, "val"), array)
        cur = con.execute(f"SELECT {', '.join(keys)}, val > 7 AS b, val * 2 AS d FROM x "
                          "WHERE i > 1 AND val <> 9")  # fmt: skip
        tables = list(cur.fetch_tiles())
        reader = pa.RecordBatchReader.from_batches(tables[0].schema, tables)
        assert np.array_equal(assembled(reader, keys, "b"), array[2:] > 7)
        reader = pa.RecordBatchReader.from_batches(tables[0].schema, tables)
        present = assembled(reader, keys, ".present") if ".present" in reader.schema.names else None
        assert present is None or np.array_equal(present, array[2:] != 9)


def test_tiles_of_stored_tensors_are_not_copied(tmp_path: Path) -> None:
    with einsql.connect(str(tmp_path / "m.db")) as con:
        con.register("r", np.arange(640.0).reshape(20, 32), dims=("i", "j"))
        con.execute("CREATE TENSOR x AS SELECT * FROM r")
        cur = con.execute("SELECT * FROM x")
        array = cur.fetch_numpy()
        batches = list(con.execute("SELECT * FROM x").fetch_tiles())
        assert len(batches) == 20
        assert batches[3].schema.field("val").type == pa.fixed_shape_tensor(pa.float64(), [1, 32])
        address = batches[3]["val"].storage.flatten().buffers()[1].address
        assert address == array[3].ctypes.data


def test_results_without_tiles_are_refused() -> None:
    with einsql.connect() as con:
        con.register("x", np.ones((3, 4)), dims=("i", "j"))
        for sql, why in (
            ("SELECT i, val FROM x", "not selected"), ("SELECT 'a' AS t", "no keys"),
            ("SELECT i, CASE WHEN i > 1 THEN SUM(val) END AS s FROM x GROUP BY i", "NULLs"),
        ):  # fmt: skip
            with pytest.raises(einsql.InterfaceError, match=why):
                con.execute(sql).fetch_tiles()
