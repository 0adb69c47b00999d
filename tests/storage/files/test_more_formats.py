"""Arrays in Zarr, GGUF and Parquet, and several of them in one file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import safetensors.numpy
from pyarrow import parquet

import einsql
from einsql.core.schema import DType
from einsql.storage import files

gguf = pytest.importorskip("gguf", reason="the extra [formats] is not installed")
zarr = pytest.importorskip("zarr", reason="the extra [formats] is not installed")
W = np.random.default_rng(0).standard_normal((6, 64)).astype(np.float32)


@pytest.fixture
def con(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> einsql.Connection:
    monkeypatch.chdir(tmp_path)
    return einsql.connect()


@pytest.mark.parametrize("suffix", ["zarr", "parquet"])
@pytest.mark.parametrize("kind", [d for d in DType if d is not DType.BFLOAT16])
def test_arrays_there_and_back(tmp_path: Path, suffix: str, kind: DType) -> None:
    for shape in ((), (0, 3), (5,), (3, 4, 2)):
        array = np.arange(np.prod(shape)).reshape(shape).astype(kind.numpy)
        path = str(tmp_path / f"a{len(shape)}.{suffix}")
        files.write(path, array, "m")
        found = files.open_tensor(path, "m")
        assert (found.dtype, found.shape) == (kind, shape)
        assert found.array.tobytes() == array.tobytes()
        box = tuple(slice(n // 3, n - n // 4) for n in shape)
        assert found.read(box).tolist() == array[box].tolist()


@pytest.mark.parametrize("suffix", ["npz", "safetensors", "arrow", "parquet", "zarr"])
def test_several_columns_are_several_arrays(con: einsql.Connection, suffix: str) -> None:
    con.register("w", W, dims=("i", "j"))
    turned = "SELECT j, i, val AS v, i > 2 AS late, CAST(val * 10 AS BIGINT) AS n FROM w"
    option = " (ROWS false)" if suffix == "parquet" else ""
    con.execute(f"COPY ({turned}) TO 'f.{suffix}'{option}")
    con.execute("CREATE TENSOR r (j DIM(64), i DIM(6), val BIGINT)")
    assert con.execute(f"COPY r FROM 'f.{suffix}' (TENSOR 'n')").rowcount == W.size
    want = con.execute("SELECT j, i, CAST(val * 10 AS BIGINT) AS n FROM w").fetch_numpy()
    assert (con.execute("SELECT * FROM r").fetch_numpy() == want).all()
    late = con.execute(f"SELECT * FROM read_tensor('f.{suffix}', 'late')").fetch_numpy()
    assert (late == (np.arange(6) > 2)).all()
    with pytest.raises(einsql.OperationalError, match="has 3 arrays"):
        con.execute(f"SELECT * FROM 'f.{suffix}'")
    assert os.listdir() == [f"f.{suffix}"]


def test_what_others_see(con: einsql.Connection) -> None:
    con.register("w", W, dims=("i", "j"))
    con.execute("COPY w TO 'w.zarr'; COPY w TO 'n.zarr' (TENSOR 'a')")
    con.execute("COPY (SELECT i, j, val, -val AS m FROM w) TO 'w.safetensors'")
    con.execute("COPY w TO 'w.parquet' (TENSOR 'a')")
    for path, name in (("w.zarr", ""), ("n.zarr", "a")):
        assert np.array_equal(np.asarray(zarr.open_array(path, path=name, mode="r")[...]), W)
    assert (safetensors.numpy.load_file("w.safetensors")["m"] == -W).all()
    (column,) = parquet.read_table("w.parquet").columns
    assert (column.combine_chunks().to_numpy_ndarray()[0] == W).all()


@pytest.mark.parametrize("compressor", ["gzip", "zstd", "blosc", "none", "sharded"])
def test_zarr_stores_of_others(con: einsql.Connection, compressor: str) -> None:
    codecs = {
        "gzip": zarr.codecs.GzipCodec(), "zstd": zarr.codecs.ZstdCodec(),
        "blosc": zarr.codecs.BloscCodec(typesize=8), "sharded": zarr.codecs.ZstdCodec(),
    }  # fmt: skip
    array = np.arange(35 * 22.0).reshape(35, 22)
    group = zarr.create_group("g.zarr", zarr_format=3)
    made = group.create_array(
        "deep/m", shape=array.shape, dtype=">f8", chunks=(10, 5), fill_value=7,
        compressors=codecs.get(compressor), shards=(20, 10) if compressor == "sharded" else None,
    )  # fmt: skip
    made[:30] = array[:30]
    array[30:] = 7  # chunks that are not there
    assert (con.execute("SELECT * FROM 'g.zarr'").fetch_numpy() == array).all()
    found = files.open_tensor("g.zarr", "deep/m")
    assert (found.read([slice(9, 33), slice(4, 6)]) == array[9:33, 4:6]).all()


def gguf_file(path: str) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("tokenizer.ggml.tokens", ["<s>", "a", "b"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_bool("flag", True)
    writer.add_tensor("plain", W)
    writer.add_tensor("half", W.astype(np.float16))
    writer.add_tensor("ids", np.arange(5, dtype=np.int32))
    for kind in (gguf.GGMLQuantizationType.BF16, gguf.GGMLQuantizationType.Q8_0,
                 gguf.GGMLQuantizationType.Q4_0):  # fmt: skip
        packed = gguf.quants.quantize(W, kind)
        writer.add_tensor(kind.name, packed, raw_shape=packed.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf(con: einsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf_file("m.gguf")
    for tensor in gguf.GGUFReader("m.gguf").tensors:
        found = files.open_tensor("m.gguf", tensor.name)
        if tensor.name == "BF16":
            assert found.dtype is DType.BFLOAT16
            assert (found.array == tensor.data.view(np.uint16)).all()
            continue
        data = tensor.data
        if tensor.name.startswith("Q"):
            data = gguf.quants.dequantize(data, tensor.tensor_type)
        assert found.dtype is DType.of(data.dtype)
        assert found.array.tobytes() == data.tobytes()
        if data.ndim == 2:
            box = (slice(1, 5), slice(31, 34))
            assert (found.read(box) == data[box]).all()
    sql = "SELECT SUM(val * val) AS s FROM read_tensor('m.gguf', 'Q8_0')"
    kind = gguf.GGMLQuantizationType.Q8_0
    wanted = gguf.quants.dequantize(gguf.quants.quantize(W, kind), kind).astype(np.float64)
    # Each square and their sum are rounded to FLOAT, and no term is negative.
    assert con.execute(sql).fetchall()[0][0] == pytest.approx((wanted**2).sum(), rel=2**-22)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert files.open_tensor("m.gguf", "half").read([slice(1), slice(2)]).shape == (1, 2)
    with pytest.raises(einsql.OperationalError, match="gguf is not installed") as caught:
        con.execute(sql.replace("Q8_0", "Q4_0"))
    assert "einsql[formats]" in caught.value.hint


def test_zarr_is_an_extra(con: einsql.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    con.register("w", W, dims=("i", "j"))
    con.execute("COPY w TO 'w.zarr'")
    monkeypatch.setitem(sys.modules, "zarr", None)
    for sql in ("COPY w TO 'v.zarr'", "SELECT * FROM 'w.zarr'"):
        with pytest.raises(einsql.OperationalError, match="zarr is not installed"):
            con.execute(sql)


def test_a_store_is_replaced_whole_and_nothing_else_is(con: einsql.Connection) -> None:
    con.register("w", W, dims=("i", "j"))
    con.execute("COPY w TO 'w.zarr'; COPY (SELECT i, j, -val AS val FROM w) TO 'w.zarr'")
    assert (con.execute("SELECT * FROM 'w.zarr'").fetch_numpy() == -W).all()
    os.mkdir("mine.zarr")
    Path("mine.zarr/diary.txt").write_text("dear")
    Path("file.zarr").write_text("dear")
    for name in ("mine.zarr", "file.zarr"):
        with pytest.raises(einsql.OperationalError, match="no Zarr store"):
            con.execute(f"COPY w TO '{name}'")
    assert sorted(os.listdir()) == ["file.zarr", "mine.zarr", "w.zarr"]
    con.progress = lambda fraction: con.interrupt()
    with pytest.raises(einsql.OperationalError, match="cancelled"):
        con.execute("COPY (SELECT i, j, val, -val AS m FROM w) TO 'w.zarr'")
    con.progress = None
    assert sorted(os.listdir()) == ["file.zarr", "mine.zarr", "w.zarr"]
    assert (con.execute("SELECT * FROM 'w.zarr'").fetch_numpy() == -W).all()


def test_tiles_in_parquet(con: einsql.Connection) -> None:
    tiles = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12.0).reshape(3, 2, 2))
    numbers = [pa.array([2, 0, 1], pa.int64()), pa.array([0, 0, 0], pa.int64())]
    parquet.write_table(pa.table([*numbers, tiles], ["a", "b", "m"]), "t.parquet", row_group_size=2)
    want = np.concatenate([np.arange(12.0).reshape(3, 2, 2)[n] for n in (1, 2, 0)])
    assert (con.execute("SELECT * FROM 't.parquet'").fetch_numpy() == want).all()


def test_links_are_followed_where_they_are_named(con: einsql.Connection, tmp_path: Path) -> None:
    con.register("w", W, dims=("i", "j"))
    os.mkdir("there")
    con.execute("COPY w TO 'there/w.npy'")
    os.symlink("there/w.npy", "w.npy")
    con.execute("COPY (SELECT i, j, -val AS val FROM 'w.npy' AS w(i, j)) TO 'w.npy'")
    assert os.path.islink("w.npy")
    assert (np.load("there/w.npy") == -W).all()
    assert sorted(os.listdir("there")) == ["w.npy"]


def test_arrays_that_differ_in_a_number_are_one(con: einsql.Connection) -> None:
    layers = {f"blk.{n}.w": np.full((3, 32), n, np.float32) + W[:3, :32] for n in range(11)}
    writer = gguf.GGUFWriter("layers.gguf", "llama")
    for n, (name, array) in enumerate(layers.items()):
        writer.add_tensor(name, array)
        kind = gguf.GGMLQuantizationType.Q8_0
        packed = gguf.quants.quantize(array, kind)
        writer.add_tensor(f"{n}.packed", packed, raw_shape=packed.shape, raw_dtype=kind)
    writer.add_tensor("blk.x.w", W)
    writer.add_tensor("odd.0", W)
    writer.add_tensor("odd.1", W[:1])
    writer.add_tensor("gap.1", W)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stacked = np.stack(list(layers.values()))
    found = files.open_tensor("layers.gguf", "blk.*.w")
    assert found.shape == (11, 3, 32)
    assert (found.array == stacked).all()
    assert (found.read([slice(9, 11), slice(1, 2), slice(3, 30)]) == stacked[9:, 1:2, 3:30]).all()
    assert (files.reopen(found.description).array == stacked).all()
    sql = "SELECT * FROM read_tensor('layers.gguf', '*.packed') AS w(layer, o, i) WHERE layer = 10"
    one = files.read("layers.gguf", "10.packed")
    assert (con.execute(sql).fetch_numpy()[0] == one).all()
    for pattern, reason in {
        "blk.*.v": "has no array 'blk.\\*.v'",
        "odd.*": "of several shapes or types",
        "gap.*": "has no array 'gap.0'",
        "*.*": "has no array",
    }.items():
        with pytest.raises(einsql.Error, match=reason):
            files.open_tensor("layers.gguf", pattern)
