"""Damaged, foreign and hostile files of every format: a right answer or an error, soon.

Each file is read in a process that has little memory and is killed after a while, so that a
crash, a hang or a huge allocation fails the test.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import einsql
from einsql.storage.files.blocks import _blocks
from tests.support.samples import sample

HERE = Path(__file__)
FORMATS = [
    ("npy", "npz", "npz-deflated", "safetensors", "mtx", "mtx-listed", "csv"),
    ("arrow", "arrow-rows", "parquet", "parquet-tensor"),
    ("gguf", "gguf-plain"),
    ("zarr-gzip", "zarr-zstd", "zarr-blosc", "zarr-sharded"),
]
"""Those that one process reads, for most of its time goes into imports."""


def hostile(folder: Path, *arguments: str) -> list[str]:
    """What `hostile.py` prints; it has to end by itself."""
    found = subprocess.run(
        [sys.executable, str(HERE.with_name("hostile.py")), *arguments],
        cwd=folder, capture_output=True, text=True, errors="replace", timeout=300,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[3]), "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert found.returncode == 0, (found.returncode, found.stdout[-2000:], found.stderr[-4000:])
    return found.stdout.splitlines()


@pytest.mark.parametrize("suffixes", FORMATS, ids=lambda s: s[0])
def test_random_damage(tmp_path: Path, suffixes: tuple[str, ...]) -> None:
    if suffixes[0].startswith(("gguf", "zarr")):
        pytest.importorskip(suffixes[0][:4], reason="the extra [formats] is not installed")
    said = hostile(tmp_path, "fuzz", "0", str(sample(4, 60)), *suffixes)
    begins = [*map(said.index, suffixes), len(said)]
    for begin, end in pairwise(begins):
        assert any("f." in line for line in said[begin:end])  # most damage is told


def npy_header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


def archive(path: Path, header: bytes, size: int) -> None:
    """An .npz whose array inflates to so many zeros."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed,
        packed.open("val.npy", "w") as member,
    ):
        member.write(header)
        for _ in range(size // 2**20):
            member.write(bytes(2**20))


def gguf_header(tensors: int, values: int, rest: bytes = b"") -> bytes:
    return b"GGUF\x03\0\0\0" + tensors.to_bytes(8, "little") + values.to_bytes(8, "little") + rest


def number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def store(path: Path, **changes: Any) -> None:
    """A Zarr array of which only the metadata are there."""
    path.mkdir()
    told = {
        "zarr_format": 3, "node_type": "array", "shape": [6, 64], "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6, 64]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {}, **changes,
    }  # fmt: skip
    (path / "zarr.json").write_text(json.dumps(told))


def grid(*chunk: int) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": list(chunk)}}


def text_files(folder: Path) -> dict[str, str]:
    """Headers that promise what is not there; what is said of each file."""
    matrix = "%%MatrixMarket matrix"
    files: dict[str, tuple[str | bytes, str]] = {
        "huge.npy": (npy_header("(1099511627776, 4)"), "truncated"),
        "pickle.npy": (npy_header("(1,)", "|O") + b"cos\nsystem\n(S'id'\ntR.", "pickled"),
        "huge.safetensors": (
            number(64) + b'{"val":{"dtype":"F32","shape":[1099511627776],"data_off', "damaged|trunc"
        ),
        "long.safetensors": (number(2**62) + b"{}", "first bytes"),
        "tensors.gguf": (gguf_header(2**60, 0), "declares"),
        "values.gguf": (gguf_header(1, 2**60), "metadata values"),
        "text.gguf": (gguf_header(0, 1, number(2**63)), "not complete"),
        "array.gguf": (
            gguf_header(0, 1, number(1) + b"a\x09\0\0\0\x08\0\0\0" + number(2**61)), "metadata"
        ),
        "nested.gguf": (
            gguf_header(0, 1, number(1) + b"a" + b"\x09\0\0\0" * 400), "damaged"
        ),
        "huge.mtx": (f"{matrix} coordinate real general\n6 64 1000000000000\n1 1 1\n", "cannot"),
        "dense.mtx": (f"{matrix} array real general\n3000000000 3000000000\n1\n", "shape|hold"),
        "wide.mtx": (
            f"{matrix} coordinate real general\n4000000000 4 1\n3000000000 1 1\n", "bounds|span"
        ),
        "outside.mtx": (f"{matrix} coordinate real general\n6 64 1\n7 1 1\n", "outside"),
        "complex.mtx": (f"{matrix} coordinate complex general\n1 1 1\n1 1 1 1\n", "complex"),
        "far.csv": ("i,j,val\n4000000000,4000000000,1\n", "span|out of bounds"),
        "number.csv": (f"i,j,val\n0,0,{'x' * 100000}\n", "invalid value|no number"),
        "foreign.parquet": ("PK" + "x" * 100, "first bytes"),
        "empty.parquet": ("PAR1", "truncated or damaged"),
        "empty.csv": ("", "is empty"),
        "foreign.npz": ("PK\x03\x04" + "x" * 100, "damaged"),
    }  # fmt: skip
    for name, (content, _) in files.items():
        held = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(held)
    return {name: why for name, (_, why) in files.items()}


def larger_files(folder: Path) -> dict[str, str]:
    """Bombs, and what else takes a library to write."""
    archive(folder / "small.npz", npy_header("(6, 64)"), 2**27)
    archive(folder / "lies.npz", npy_header("(6, 1073741824)"), 2**22)
    with open(folder / "line.csv", "wb") as file:
        file.write(b"i,j,val\n1,1,")
        file.truncate(2**30)  # zeros without a line's end
    with open(folder / "names.csv", "wb") as file:
        file.truncate(2**30)
    groups = pa.table({"i": [0], "j": [0], "val": pa.array([0.5], pa.float32())})
    with parquet.ParquetWriter(folder / "groups.parquet", groups.schema) as writer:
        for _ in range(500):
            writer.write_table(groups)
    same = pa.table({
        "i": np.zeros(2**21, np.int64), "j": np.zeros(2**21, np.int64),
        "val": np.zeros(2**21, np.float32),
    })  # fmt: skip
    parquet.write_table(same, folder / "same.parquet", compression="zstd")
    store(folder / "shape.zarr", shape=[2**20, 2**20], chunk_grid=grid(2**10, 2**10))
    store(folder / "chunk.zarr", chunk_grid=grid(2**30, 2**30))
    store(folder / "many.zarr", shape=[2**25, 1], chunk_grid=grid(1, 1))
    store(folder / "codec.zarr", codecs=[{"name": "numcodecs.pickle", "configuration": {}}])
    packed = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "gzip", "configuration": {"level": 5}},
    ]
    store(folder / "bomb.zarr", codecs=packed)
    (folder / "bomb.zarr/c/0").mkdir(parents=True)
    with gzip.open(folder / "bomb.zarr/c/0/0", "wb", 1) as bomb:
        for _ in range(192):
            bomb.write(bytes(2**20))
    store(folder / "link.zarr")
    (folder / "link.zarr/c/0").mkdir(parents=True)
    (folder / "secret").write_bytes(bytes(6 * 64 * 4))
    os.symlink(folder / "secret", folder / "link.zarr/c/0/0")
    store(folder / "pipe.zarr")
    (folder / "pipe.zarr/c/0").mkdir(parents=True)
    os.mkfifo(folder / "pipe.zarr/c/0/0")
    os.mkdir(folder / "old.zarr")
    (folder / "old.zarr/.zarray").write_text("{}")
    return {
        "small.npz": "size of its shape", "lies.npz": "size of its shape",
        "line.csv": "damaged|NULL", "names.csv": "first line", "groups.parquet": "duplicate|twice",
        "same.parquet": "duplicate|twice", "shape.zarr": "fit in memory|has the shape",
        "chunk.zarr": "chunks", "many.zarr": "chunks", "codec.zarr": "codec",
        "bomb.zarr": "inflates|damaged", "link.zarr": "leads out", "pipe.zarr": "no regular file",
        "old.zarr": "version 3",
    }  # fmt: skip


def long_files(folder: Path) -> dict[str, str]:
    """Small files that would keep a reader busy for minutes, or fill the memory."""
    array = b"\x01" + bytes(7) + b"a\x09\0\0\0"
    matrix = "%%MatrixMarket matrix array real general\n"
    files: dict[str, tuple[str | bytes, str]] = {
        "arrays.gguf": (gguf_header(0, 1, array + b"\x09\0\0\0" + number(2**20)), "metadata"),
        "texts.gguf": (gguf_header(0, 1, array + b"\x08\0\0\0" + number(2**22)), "metadata"),
        "name.gguf": (gguf_header(1, 0, number(2**17) + bytes(2**17)), "a name has"),
        "tensors.gguf": (gguf_header(2**17, 0), "declares"),
        "lists.safetensors": (number(1800008) + b'{"":[' + b"[]," * 600000 + b"0]}", "values"),
        "deep.safetensors": (number(900005) + b'{"":' + b"[" * 900000 + b"}", "wrong"),
        "comments.mtx": (matrix + "%\n" * 2**20, "bytes of comments"),
        "lines.mtx": (matrix + "2 2\n" + "\n" * 2**22, "missing"),
        "columns.csv": ("a," * 9000 + "a\n", "9001 columns"),
        "directory.npz": (
            b"PK\x03\x04" + bytes(2**22) + b"PK\x05\x06\0\0\0\0\x09\0\x09\0"
            + (2**22 + 4).to_bytes(4, "little") + bytes(6), "its directory has"
        ),
    }  # fmt: skip
    for name, (content, _) in files.items():
        held = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(held)
    keys = pa.table({f"k{n}": [n] for n in range(70)} | {"val": [0.5]})
    parquet.write_table(keys, folder / "keys.parquet")
    with zipfile.ZipFile(folder / "twice.npz", "w") as packed:
        packed.writestr("val.npy", npy_header("(2,)") + bytes(8))
        with pytest.warns(UserWarning, match="Duplicate name"):
            packed.writestr("val.npy", npy_header("(2,)") + bytes(8))
    os.mkfifo(folder / "pipe.csv")
    for name, magic in (("footer.parquet", b"PAR1"), ("footer.arrow", b"ARROW1")):
        with open(folder / name, "wb") as file:
            file.write(magic)
            file.truncate(2**32)
            file.seek(0, os.SEEK_END)
            file.write((2**31 - 1).to_bytes(4, "little") + magic)
    inner = [{"name": "bytes", "configuration": {"endian": "little"}}]
    shards = {"chunk_shape": [1, 1], "codecs": inner, "index_codecs": inner}
    store(
        folder / "shard.zarr", shape=[512, 512], chunk_grid=grid(512, 512),
        codecs=[{"name": "sharding_indexed", "configuration": shards}],
    )  # fmt: skip
    store(folder / "chain.zarr", codecs=inner + [{"name": "crc32c"}] * 9)
    store(folder / "lists.zarr", attributes={"a": [[]] * 300000})
    return {name: why for name, (_, why) in files.items()} | {
        "keys.parquet": "columns of keys|no column", "twice.npz": "one name",
        "footer.parquet": "its footer", "footer.arrow": "its footer",
        "pipe.csv": "no regular file", "shard.zarr": "chunks in a shard",
        "chain.zarr": "codecs", "lists.zarr": "values",
    }  # fmt: skip


@pytest.mark.parametrize("made", [text_files, larger_files, long_files])
def test_promises_and_bombs(tmp_path: Path, made: Any) -> None:
    pytest.importorskip("zarr", reason="the extra [formats] is not installed")
    reasons = made(tmp_path)
    said = hostile(tmp_path, "open", *reasons)
    for n, (name, reason) in enumerate(reasons.items()):
        assert name in said[3 * n] or said[3 * n] == "ok"  # DuckDB reads some, and says other words
        for line in said[3 * n + 1 : 3 * n + 3]:
            assert name in line
            assert any(part in line for part in reason.split("|")), (name, line)


def test_batches_that_overlap_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    con = einsql.connect()
    con.execute("CREATE TENSOR r (i DIM(6), val FLOAT)")
    element = pa.fixed_shape_tensor(pa.float32(), (2,))
    tile = pa.ExtensionArray.from_storage(element, pa.array([[1, 2]], pa.list_(pa.float32(), 2)))
    columns = {"rows": pa.array([0.5], pa.float32()), "tiles": tile}
    for name, column in columns.items():
        with pa.OSFile(f"{name}.arrow", "wb") as sink:
            schema = pa.schema({"i": pa.int64(), "val": column.type})
            with pa.ipc.new_file(sink, schema) as writer:
                for n in range(2):
                    writer.write_batch(pa.record_batch([pa.array([n]), column], schema=schema))
        content = Path(f"{name}.arrow").read_bytes()
        (length,) = struct.unpack("<i", content[-10:-6])
        blocks = _blocks(content[-10 - length : -10], 3)
        assert len(blocks) == 2
        whole = con.execute(f"SELECT * FROM read_tensor('{name}.arrow')").fetchall()
        assert len(whole) == (2 if name == "rows" else 4)
        again = content.replace(blocks[1].tobytes(), blocks[0].tobytes())
        Path(f"{name}.arrow").write_bytes(again)
        for sql in (f"SELECT * FROM read_tensor('{name}.arrow')", f"COPY r FROM '{name}.arrow'"):
            with pytest.raises(einsql.OperationalError, match="batches overlap"):
                con.execute(sql)


def test_chunks_that_are_not_there_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr = pytest.importorskip("zarr", reason="the extra [formats] is not installed")
    monkeypatch.chdir(tmp_path)
    con = einsql.connect()
    for form, separator in (("default", "/"), ("default", "."), ("v2", ".")):
        made = zarr.create_array(
            "w.zarr", shape=(1500, 1501), dtype="i4", chunks=(2, 3), fill_value=7, overwrite=True,
            chunk_key_encoding={"name": form, "separator": separator},
        )  # fmt: skip
        expected = np.full((1500, 1501), 7, np.int32)
        for at in ((0, 0), (13, 1000), (1499, 1500)):
            made[at] = expected[at] = sum(at)
        found = con.execute("SELECT * FROM 'w.zarr'").fetch_numpy()
        assert np.array_equal(found, expected)
        part = con.execute("SELECT * FROM 'w.zarr' AS w(i, j) WHERE i = 13 AND j > 998").fetchall()
        assert [value for _, _, value in part[:3]] == [7, 1013, 7]


def test_no_statement_reaches_the_file_system_when_access_is_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    con = einsql.connect()
    con.execute("CREATE TENSOR w (i DIM(2), val FLOAT) DEFAULT 0; COPY w TO 'w.csv'")
    con.execute("COPY w TO 'w.npy'; CREATE VIEW v AS SELECT * FROM 'w.npy' AS w(i)")
    con.execute("SELECT * FROM 'w.npy'").fetchall()  # its plan is remembered
    con.execute("SET enable_external_access = false")
    touched: list[str] = []
    watching = True

    def hook(event: str, given: tuple[object, ...]) -> None:
        if watching and event in ("open", "os.listdir", "os.scandir", "os.rename", "os.mkdir"):
            path = Path(str(given[0]))  # a relative one, or one of a module that is imported late
            if tmp_path in path.parents or path.name.startswith(("w.", "new.", "*")):
                touched.append(str(path))

    sys.addaudithook(hook)
    try:
        for sql in (
            "SELECT * FROM 'w.npy'", "SELECT * FROM 'w.csv'", "SELECT * FROM '*.csv'",
            "SELECT * FROM read_tensor('w.npy')", "SELECT * FROM v",
            "EXPLAIN SELECT * FROM 'w.npy'",
            "COPY w FROM 'w.csv'", "COPY w FROM '*.csv'", "COPY w TO 'new.csv'",
            "COPY w TO 'new.zarr'", "COPY (SELECT * FROM w) TO 'new.parquet'",
            "CREATE TENSOR t AS SELECT * FROM 'w.npy'", "INSERT INTO w SELECT * FROM 'w.csv'",
        ):  # fmt: skip
            with pytest.raises(einsql.OperationalError, match="enable_external_access"):
                con.execute(sql)
    finally:
        watching = False
    assert not touched
    assert sorted(os.listdir()) == ["w.csv", "w.npy"]


def test_what_duckdb_says_of_a_file_is_told_at_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("f.csv").write_text("i,j,val\n" + "0,1,2\n" * 30000 + "1,2,3,4\n")
    Path("ok.csv").write_text("i,t\n0,a\n")
    Path("f.json").write_text('[{"a": 1,')
    Path("f.parquet").write_bytes(b"PAR1" * 9)
    con = einsql.connect()
    con.execute("CREATE TABLE t (i INTEGER, j INTEGER, val DOUBLE)")
    con.execute("CREATE VIEW v AS SELECT * FROM read_csv('f.csv', auto_detect = false, "
                "columns = {'i': 'INT', 'j': 'INT', 'v': 'INT'}, skip = 1)")  # fmt: skip
    for sql, name in {
        "SELECT 'a.b', * FROM 'ok.csv', 'f.csv' AS f": "f.csv", "COPY t FROM 'f.csv'": "f.csv",
        "SELECT SUM(i) FROM 'f*.csv'": "f.csv", "SELECT * FROM 'f.json'": "f.json",
        "SELECT * FROM read_parquet('f.parquet')": "f.parquet",
        "SELECT * FROM read_csv('none.csv')": "none.csv", "SELECT * FROM v ORDER BY 1": "f.csv",
    }.items():  # fmt: skip
        with pytest.raises(einsql.OperationalError) as caught:
            con.execute(sql)
        assert name in caught.value.reason
        where = max(sql.find("'f"), sql.find("'none"))
        assert caught.value.position == (where if where >= 0 else 0)
        assert len(caught.value.hint) < 200
    with pytest.raises(einsql.DataError, match=r"^Could not convert") as other:
        con.execute("SELECT CAST(t || 'x' AS INTEGER) FROM 'ok.csv'")
    assert "ok.csv" not in other.value.reason
    con.execute("SET enable_external_access = false")
    with pytest.raises(einsql.OperationalError, match="disabled by configuration") as denied:
        con.execute("SELECT * FROM read_csv('ok.csv')")
    assert "enable_external_access" in denied.value.hint
