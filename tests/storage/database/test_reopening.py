"""What a database file holds is there again when it is opened again."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import einsql
from einsql.core.schema import DType
from einsql.storage.database import checks, payload
from einsql.storage.database.tiles import tile_grid
from einsql.storage.objects import Tensor

VALUES = {
    DType.BOOLEAN: np.array([[True, False, True]]),
    DType.TINYINT: np.array([[-128, 0, 127]], np.int8),
    DType.INTEGER: np.array([[-(2**31), 0, 2**31 - 1]], np.int32),
    DType.BIGINT: np.array([[-(2**63), 0, 2**63 - 1]], np.int64),
    DType.HALF: np.array([[-0.0, np.inf, 6e-8]], np.float16),
    DType.BFLOAT16: np.array([[0x8000, 0x7F80, 1]], DType.BFLOAT16.numpy),
    DType.FLOAT: np.array([[-0.0, np.inf, 1e-45]], np.float32),
    DType.DOUBLE: np.array([[-0.0, np.inf, 5e-324]], np.float64),
}


def payloads(path: str) -> list[str]:
    """Names of the files that hold tensors."""
    return sorted(n for n in os.listdir(f"{path}.tensors") if n != "einsql")


@pytest.mark.parametrize("dtype", DType)
def test_every_type_comes_back_bit_by_bit(path: str, dtype: DType) -> None:
    with einsql.connect(path) as con:
        con.register("given", VALUES[dtype], dims=("i", "j"))
        con.execute("CREATE TENSOR x AS SELECT * FROM given")
        con.execute("CREATE TENSOR partly AS SELECT * FROM given WHERE j <> 1")
    with einsql.connect(path) as con:
        stored = con.store.get("x")
        assert isinstance(stored, Tensor)
        assert stored.relation.fields["val"].tobytes() == VALUES[dtype].tobytes()
        some = [tuple(r) for r in con.execute("SELECT i, j FROM partly").fetchall()]
        assert some == [(0, 0), (0, 2)]
        assert con.execute("DESCRIBE x").fetchall()[-1][1] == dtype.value


def test_definitions_and_declarations_come_back(path: str) -> None:
    with einsql.connect(path) as con:
        con.execute("""
            CREATE TENSOR "Big X" (i DIM(6), j DIM(4), a FLOAT, b BIGINT)
                PARTITION BY (j 2, i 3);
            INSERT INTO "Big X" VALUES (5, 3, 0.5, 7);
            CREATE TENSOR d (i DIM(3), val DOUBLE) DEFAULT 0.1;
            CREATE TENSOR scalar AS SELECT SUM(val) AS s FROM d;
            CREATE TENSOR none (i DIM(0), val FLOAT);
            CREATE TENSOR off AS SELECT i + 2 AS i, val FROM d;
            CREATE VIEW v AS SELECT i, a FROM "Big X";
            CREATE MACRO twice(x) AS 2 * x;
            CREATE MACRO upto(n) AS TABLE SELECT * FROM d WHERE i < n;
        """)
        shown = con.execute("SHOW TENSORS").fetchall()
    with einsql.connect(path) as con:
        assert con.execute("SHOW TENSORS").fetchall() == shown
        assert con.execute("SELECT * FROM v").fetchall() == [(5, 0.5)]
        assert con.execute("SELECT twice(s) FROM scalar").fetchone() == (2 * (0.1 + 0.1 + 0.1),)
        assert con.execute("SELECT COUNT(*) FROM upto(2)").fetchone() == (2,)
        assert con.execute("SELECT i FROM off").fetchall() == [(2,), (3,), (4,)]
        assert con.execute("SELECT * FROM none").fetchall() == []
        with pytest.raises(einsql.IntegrityError, match="has a DEFAULT"):
            con.execute("DELETE FROM d")
        con.execute("UPDATE d SET val = val + i")  # the default was a single stored element
    with einsql.connect(path) as con:
        assert con.execute("SELECT * FROM d").fetchall() == [(0, 0.1), (1, 1.1), (2, 2.1)]


def test_what_is_temporary_or_borrowed_is_not_written(path: str) -> None:
    with einsql.connect(path) as con:
        con.register("r", np.eye(2), dims=("i", "j"))
        con.execute("CREATE TEMP TENSOR t AS SELECT * FROM r")
        con.execute("CREATE TEMP VIEW v AS SELECT * FROM t")
        con.execute("CREATE TENSOR kept AS SELECT * FROM t")
        with einsql.connect(path) as other:
            assert [r[0] for r in other.execute("SHOW TENSORS").fetchall()] == ["kept"]
            other.execute("CREATE TENSOR t AS SELECT SUM(val) FROM kept WHERE i = 0")
        assert con.execute("SELECT COUNT(*) FROM t").fetchone() == (4,)
        con.execute("DROP TENSOR t")
        assert con.execute("SELECT * FROM t").fetchall() == [(1.0,)]
    with einsql.connect(path) as con:
        assert [r[0] for r in con.execute("SHOW TENSORS").fetchall()] == ["kept", "t"]


def test_a_foreign_duckdb_file_gets_tensors(path: str) -> None:
    import duckdb

    with duckdb.connect(path) as theirs:
        theirs.execute("CREATE TABLE t AS SELECT 42 AS answer")
    with einsql.connect(path) as con:
        assert not os.path.exists(f"{path}.tensors")
        con.execute("CREATE TENSOR x (i DIM(2), val FLOAT) DEFAULT 1")
    with einsql.connect(path, read_only=True) as con:
        assert con.execute("SELECT SUM(val) FROM x").fetchone() == (2.0,)
    with duckdb.connect(path) as theirs:
        assert theirs.execute("FROM t").fetchall() == [(42,)]


def test_payloads_are_arrow_files_and_one_for_each_tensor(path: str) -> None:
    import pyarrow as pa

    with einsql.connect(path) as con:
        con.register("given", VALUES[DType.BFLOAT16], dims=("i", "j"))
        con.execute("CREATE TENSOR x AS SELECT * FROM given WHERE j <> 2")
        con.execute("UPDATE x SET val = 2 WHERE j = 0")
        (name,) = payloads(path)
    with pa.OSFile(f"{path}.tensors/{name}") as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.num_rows == 1
    keys = ["i", ".end.i", "j", ".end.j"]
    last = [payload.SUMS, payload.STATISTICS]
    assert table.column_names == [*keys, payload.KIND, "val", ".present", *last]
    assert [table.column(k).to_pylist() for k in keys] == [[0], [1], [0], [3]]
    assert table.column(payload.KIND).to_pylist() == ["dense"]
    present = table.column(".present").chunk(0).to_numpy_ndarray()
    assert present.tolist() == [[[1, 1, 0]]]


def test_tiles_of_several_shapes_are_lists(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa

    monkeypatch.setattr(tile_grid, "TILE", 48)
    with einsql.connect(path) as con:
        con.execute(
            "CREATE TENSOR x AS SELECT i, j, i * 3 + j AS val FROM RANGE(3) a(i), RANGE(3) b(j)"
        )
        (name,) = payloads(path)
    with pa.OSFile(f"{path}.tensors/{name}") as file:
        table = pa.ipc.open_file(file).read_all()
    assert table.column("i").to_pylist() == [0, 2]
    assert table.column(".end.i").to_pylist() == [2, 3]
    assert table.column("val").to_pylist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8]]
    with einsql.connect(path) as con:
        assert con.execute("SELECT SUM(val) FROM x").fetchone() == (36,)


def test_a_payload_directory_belongs_to_its_file(path: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    for name in (path, other):
        with einsql.connect(name) as con:
            con.execute("CREATE TENSOR x (i DIM(2), val FLOAT) DEFAULT 1")
    os.rename(f"{path}.tensors", tmp_path / "away")
    with pytest.raises(einsql.OperationalError, match=r"model\.db\.tensors' is missing"):
        einsql.connect(path)
    shutil.copytree(f"{other}.tensors", f"{path}.tensors")
    with pytest.raises(einsql.OperationalError, match="does not belong to"):
        einsql.connect(path)
    shutil.rmtree(f"{path}.tensors")
    os.rename(tmp_path / "away", f"{path}.tensors")
    shutil.copy(path, tmp_path / "copy.db")
    shutil.copytree(f"{path}.tensors", tmp_path / "copy.db.tensors")
    with einsql.connect(str(tmp_path / "copy.db")) as con:
        assert con.execute("SELECT SUM(val) FROM x").fetchone() == (2.0,)
    os.unlink(path)
    with pytest.raises(einsql.OperationalError, match="does not belong to"):
        einsql.connect(path)  # a new file beside what an old one has left


def test_what_is_no_database_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no database " * 1000)
    for name, why in [
        (str(text), "not a valid DuckDB"), (str(tmp_path / "no" / "x.db"), "No such file"),
        (str(tmp_path), "cannot be opened"),
    ]:  # fmt: skip
        with pytest.raises(einsql.OperationalError, match=why):
            einsql.connect(name)
    with pytest.raises(einsql.OperationalError, match="cannot be opened"):
        einsql.connect(str(tmp_path / "missing.db"), read_only=True)


def test_chunks_hold_every_element_of_a_box() -> None:
    random = np.random.default_rng(7)
    size = checks.CHUNK
    try:
        checks.CHUNK = 64
        for _ in range(300):
            shape = tuple(int(n) for n in random.integers(1, 9, random.integers(0, 5)))
            lo = [int(random.integers(0, n + 1)) for n in shape]
            box = [(a, int(random.integers(a, n + 1))) for a, n in zip(lo, shape, strict=True)]
            numbers = np.arange(int(np.prod(shape))).reshape(shape)
            inside = numbers[tuple(slice(*pair) for pair in box)] * 8
            found = checks.chunks_of(shape, 8, np.array(box, np.int64).reshape(-1, 2))
            assert set(np.unique(inside // 64)) <= set(found.tolist())
            assert inside.size or not found.size
            if found.size:
                assert 0 <= found[0] <= found[-1] <= inside.max() // 64
    finally:
        checks.CHUNK = size


@pytest.mark.parametrize("storage", ["SPARSE", "DENSE"])
def test_keys_beyond_two_to_the_sixty_second_are_read_again(tmp_path: Path, storage: str) -> None:
    begin = 2**62 - 14
    rows = [(begin + 1000 + n, float(n)) for n in range(3)]
    with einsql.connect(tmp_path / "d.db") as con:
        con.execute(
            f"CREATE TENSOR t STORAGE {storage} AS SELECT i + 1000 AS i, "
            f"(i - {begin})::DOUBLE AS val FROM range({begin}, {begin + 3}) r(i)"
        )
        assert con.execute("SELECT i, val FROM t").fetchall() == rows
        con.execute(f"BACKUP TO '{tmp_path / 'b.db'}'")
    for name in ("d.db", "b.db"):
        with einsql.connect(tmp_path / name) as con:
            assert con.execute("SELECT i, val FROM t").fetchall() == rows
