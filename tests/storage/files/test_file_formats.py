"""What is in a file of any format, and boxes of it; files that several processes write."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from einsql.core.schema import DType
from einsql.errors import InterfaceError, NotSupportedError, OperationalError
from einsql.storage import files
from einsql.storage.relation import from_array, to_batches
from tests.support.samples import sample

SUFFIXES = ("npy", "npz", "safetensors", "arrow")
IN_PARTS = ("npy", "safetensors", "arrow")


def arrow_array(path: Path) -> np.ndarray:
    column = pa.ipc.open_file(path.read_bytes()).get_batch(0).column("m")
    array: np.ndarray = column.to_numpy_ndarray()[0]
    metadata = pa.ipc.open_file(path.read_bytes()).schema.field("m").metadata or {}
    return array.view(np.bool_) if b"einsql" in metadata else array


OTHERS: dict[str, Callable[[Path], np.ndarray]] = {
    "npy": lambda path: np.asarray(np.load(path, allow_pickle=False)),
    "npz": lambda path: np.asarray(np.load(path, allow_pickle=False)["m"]),
    "safetensors": lambda path: np.asarray(safetensors.numpy.load_file(path)["m"]),
    "arrow": arrow_array,
}
"""The formats' own packages."""

NUMPY = [d.numpy for d in DType if d is not DType.BFLOAT16]
"""What every format holds; `test_bfloat16.py` has the type that NumPy does not."""

TENSORS = st.sampled_from(NUMPY).flatmap(
    lambda dtype: arrays.arrays(
        dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
    )
)


UNLIKE = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
"""A directory serves all examples, which write whole files; and machines may be slow."""


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=sample(12, 40), suppress_health_check=UNLIKE)
@given(array=TENSORS, data=st.data())
def test_what_is_written_is_read(
    tmp_path: Path, suffix: str, array: np.ndarray, data: st.DataObject
) -> None:
    if data.draw(st.booleans()):
        array = array.T
    path = tmp_path / f"a.{suffix}"
    files.write(str(path), array, "m")
    found = files.open_tensor(str(path), None if suffix == "npy" else "m")
    box = tuple(
        slice(*sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))))
        for n in array.shape
    )
    assert found.dtype is DType.of(array.dtype)
    assert found.shape == array.shape
    assert same(np.array(found.array), array)
    assert same(found.read(box), array[box])
    assert same(OTHERS[suffix](path), array)
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.parametrize("suffix", IN_PARTS)
@settings(max_examples=sample(12, 40), suppress_health_check=UNLIKE)
@given(array=TENSORS, data=st.data())
def test_boxes_make_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, array: np.ndarray,
    data: st.DataObject,
) -> None:  # fmt: skip
    monkeypatch.setattr("einsql.storage.files.drafts.SLAB", data.draw(st.integers(1, 200)))
    path = tmp_path / f"a.{suffix}"
    kind = DType.of(array.dtype)
    assert kind is not None
    draft = files.create(str(path), kind, array.shape, "m")
    parts = [sorted({0, n, data.draw(st.integers(0, n))}) for n in array.shape]
    cuts = [[slice(*pair) for pair in pairwise(p)] for p in parts]
    for where in np.ndindex(*map(len, cuts)):
        box = tuple(cut[n] for cut, n in zip(cuts, where, strict=True))
        piece = array[box]
        files.write_box(draft, box, data.draw(st.sampled_from([piece, np.array(piece, order="F")])))
    files.commit(draft)
    assert same(OTHERS[suffix](path), array)


@pytest.fixture(scope="module")
def processes() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("suffix", IN_PARTS)
def test_processes_read_and_write_their_own(
    tmp_path: Path, suffix: str, processes: ProcessPoolExecutor
) -> None:
    array = np.random.default_rng(0).standard_normal((700, 300)).astype(np.float32)
    path = str(tmp_path / f"a.{suffix}")
    boxes = [
        np.array(b) for b in ([(0, 350), (0, 300)], [(350, 700), (0, 7)], [(350, 700), (7, 300)])
    ]
    draft = files.create(path, DType.FLOAT, array.shape)
    assert not os.path.exists(path)
    pieces = [array[slice(*b[0]), slice(*b[1])] for b in boxes]
    list(processes.map(files.write_box, [draft] * 3, boxes, pieces))
    files.commit(draft)
    found = files.open_tensor(path)
    back = processes.map(reopened, [found.description] * 3, boxes)
    assert all(same(b, p) for b, p in zip(back, pieces, strict=True))
    assert same(found.array, array)
    assert os.listdir(tmp_path) == [f"a.{suffix}"]


def reopened(description: files.Description, box: np.ndarray) -> np.ndarray:
    return files.reopen(description).read(box)


@pytest.mark.parametrize("suffix", ["npy", "safetensors"])
def test_a_box_of_a_file_larger_than_memory(tmp_path: Path, suffix: str) -> None:
    path = str(tmp_path / f"a.{suffix}")
    draft = files.create(path, DType.DOUBLE, (2**20, 2**17))  # 1 TiB, almost all of it holes
    corner = [slice(2**20 - 2, None), slice(2**16, 2**16 + 3)]
    files.write_box(draft, corner, np.arange(6.0).reshape(2, 3))
    files.commit(draft)
    found = files.open_tensor(path)
    assert found.array.shape == (2**20, 2**17)
    assert found.read(corner).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_changed_file_is_refused(tmp_path: Path, suffix: str) -> None:
    path = str(tmp_path / f"a.{suffix}")
    files.write(path, np.arange(6.0), "m")
    found = files.open_tensor(path)
    told = pickle.loads(pickle.dumps(found.description))
    assert same(files.reopen(told).array, np.arange(6.0))
    status = os.stat(path)
    files.write(path, np.arange(6.0)[::-1], "m")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    for again in (lambda: files.reopen(told), lambda: found.read([slice(1, 2)])):
        with pytest.raises(OperationalError, match="has changed"):
            again()
    os.unlink(path)
    with pytest.raises(OperationalError, match="cannot be read any more"):
        found.read([slice(1, 2)])


def test_drafts_are_whole_or_nothing(tmp_path: Path) -> None:
    path = str(tmp_path / "a.npy")
    files.write(path, np.ones(3), "m")
    draft = files.create(path, DType.DOUBLE, (2, 3))
    with pytest.raises(InterfaceError):
        files.write_box(draft, [slice(0, 1), slice(None)], np.ones((1, 3), np.float32))
    with pytest.raises(InterfaceError):
        files.write_box(draft, np.array([(0, 3), (0, 3)]), np.ones((3, 3)))
    files.abandon(draft)
    assert os.listdir(tmp_path) == ["a.npy"]
    assert same(files.read(path), np.ones(3))
    with pytest.raises(OperationalError, match="cannot be written"):
        files.write_box(draft, [slice(None)] * 2, np.ones((2, 3)))
    with pytest.raises(OperationalError, match="by several processes"):
        files.create(str(tmp_path / "a.npz"), DType.DOUBLE, (2, 3))
    with pytest.raises(NotSupportedError, match="2147483647 elements"):
        files.create(str(tmp_path / "a.arrow"), DType.TINYINT, (2**31,))
    for folder in ("no/such", "a.npy"):
        with pytest.raises(OperationalError, match="cannot be written"):
            files.create(str(tmp_path / folder / "b.npy"), DType.DOUBLE, ())
    assert os.listdir(tmp_path) == ["a.npy"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_truncated_files_are_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.{suffix}"
    files.write(str(path), np.arange(12, dtype=np.int32).reshape(3, 4), "m")
    content = path.read_bytes()
    for size in range(len(content)):
        path.write_bytes(content[:size])
        with pytest.raises(OperationalError):
            files.read(str(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=sample(40, 150), suppress_health_check=UNLIKE)
@given(data=st.data())
def test_a_damaged_file_gives_what_its_own_package_gives(
    tmp_path: Path, suffix: str, data: st.DataObject
) -> None:
    path = tmp_path / f"a.{suffix}"
    dtype = data.draw(st.sampled_from([np.dtype(np.int32), np.dtype(np.bool_)]))
    files.write(str(path), np.arange(6).astype(dtype).reshape(2, 3), "m")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        old = content[at]
        content[at] = data.draw(
            st.one_of(st.integers(0, 255), st.sampled_from([old ^ 1, old + 1 & 255]))
        )
    path.write_bytes(content)
    try:
        found = np.array(files.read(str(path), None if suffix == "npy" else "m"))
    except OperationalError:
        return
    assert same(found, OTHERS[suffix](path))
    assert found.dtype != np.bool_ or found.view(np.uint8).max(initial=0) <= 1


def arrow_file(path: Path, *batches: pa.RecordBatch, **options: Any) -> str:
    with pa.ipc.new_file(path, batches[0].schema, **options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return str(path)


def tensors(array: np.ndarray) -> pa.Array:
    return pa.FixedShapeTensorArray.from_numpy_ndarray(array)


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("parts", [{"i": 3, "j": 2}, {"j": 5}, {}])
def test_tiles_of_an_arrow_file(
    tmp_path: Path, parts: dict[str, int], compression: str | None
) -> None:
    array = np.arange(60).reshape(6, 10) % 7 == 0
    (batch,) = to_batches(from_array(array, ("i", "j"), "m"), parts)
    mixed = batch.take(np.random.default_rng(0).permutation(len(batch)))
    halves = [mixed.slice(0, len(mixed) // 2), mixed.slice(len(mixed) // 2)]
    options = pa.ipc.IpcWriteOptions(compression=compression)
    found = files.open_tensor(arrow_file(tmp_path / "a.arrow", *halves, options=options))
    assert same(np.array(found.array), array)
    for box in ((slice(2, 6), slice(3, 9)), (slice(0, 1), slice(9, 10)), (slice(3, 3), slice(2))):
        assert same(found.read(box), array[box])


def test_axes_of_an_arrow_tensor_in_another_order(tmp_path: Path) -> None:
    array = np.arange(24.0).reshape(2, 3, 4)
    kind = pa.fixed_shape_tensor(pa.float64(), array.shape, permutation=[2, 0, 1])
    storage = pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), array.size)
    batch = pa.record_batch({"m": pa.ExtensionArray.from_storage(kind, storage)})
    found = files.open_tensor(arrow_file(tmp_path / "a.arrow", batch))
    assert same(np.array(found.array), array.transpose(2, 0, 1))
    assert same(
        found.read([slice(1, 3), slice(0, 1), slice(2, 3)]), array[0:1, 2:3, 1:3].transpose(2, 0, 1)
    )


ONE, TWO = tensors(np.ones((1, 2, 2))), tensors(np.ones((2, 2, 2)))
NUMBERS = pa.array([0, 1], pa.int64())
EMPTY = pa.array([0, 0], pa.int64())

TABLES: dict[str, tuple[dict[str, pa.Array], str]] = {
    "numbers": ({"a": NUMBERS}, "holds a table"),
    "a table with a tensor": ({"a": pa.array(["x"]), "m": ONE}, "holds a table"),
    "rows without numbers": ({"m": TWO}, "do not make one tensor"),
    "no row": ({"m": ONE.slice(0, 0)}, "do not make one tensor"),
    "too few numbers": ({"a": NUMBERS, "m": TWO}, "do not make one tensor"),
    "a tile twice": ({"a": EMPTY, "b": EMPTY, "m": TWO}, "do not make one tensor"),
    "a tile missing": ({"a": NUMBERS, "b": NUMBERS, "m": TWO}, "do not make one tensor"),
    "negative": ({"a": EMPTY, "b": pa.array([-1, 0]), "m": TWO}, "do not make one tensor"),
    "no number": ({"a": EMPTY, "b": pa.array([None, 0], pa.int64()), "m": TWO}, "without a number"),
    "no tile": ({"m": pa.concat_arrays([pa.nulls(1, ONE.type), ONE])}, "holds NULL"),
    "pixels": ({"m": tensors(np.ones((1, 2), np.uint8))}, "Arrow's uint8"),
    "masked": ({"m": ONE, ".present": ONE}, "missing keys"),
    "two": ({"m": ONE, "n": ONE}, "has 2 arrays"),
}


@pytest.mark.parametrize("name", TABLES)
def test_other_arrow_files_are_refused(tmp_path: Path, name: str) -> None:
    columns, reason = TABLES[name]
    path = arrow_file(tmp_path / "a.arrow", pa.record_batch(columns))
    with pytest.raises(OperationalError, match=reason):
        files.read(path)


HEADERS: dict[str, tuple[str, str]] = {
    "overlap": ('{"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},'
                '"m":{"dtype":"I8","shape":[8],"data_offsets":[0,8]}}', "overlaps"),
    "gap": ('{"m":{"dtype":"I8","shape":[4],"data_offsets":[4,8]}}', "gap"),
    "backwards": ('{"m":{"dtype":"U8","shape":[4],"data_offsets":[8,4]}}', "gap"),
    "beyond": ('{"m":{"dtype":"I8","shape":[9],"data_offsets":[0,9]}}', "truncated"),
    "before the end": ('{"m":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}}', "damaged"),
    "other size": ('{"m":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}', "size of its shape"),
    "negative": ('{"m":{"dtype":"I8","shape":[-2,-4],"data_offsets":[0,8]}}', "has the shape"),
    "boolean": ('{"m":{"dtype":"I8","shape":[8,true],"data_offsets":[0,8]}}', "describes no"),
    "unknown key": ('{"m":{"dtype":"I8","shape":[8],"data_offsets":[0,8],"x":1}}', "describes no"),
    "no entry": ('{"m":8}', "describes no tensor"),
    "twice": ('{"m":1,"m":{"dtype":"I8","shape":[8],"data_offsets":[0,8]}}', "a name is duplicate"),
    "metadata": ('{"__metadata__":{"a":1}}', "no texts"),
    "deep": ('{"m":' + "[" * 200_000, "header is wrong"),
    "no tensor type": ('{"m":{"dtype":"U16","shape":[4],"data_offsets":[0,8]}}', "holds U16"),
    "absent": ('{"a":{"dtype":"I8","shape":[8],"data_offsets":[0,8]}}', "no array 'm'"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_wrong_safetensors_headers_are_refused(tmp_path: Path, name: str) -> None:
    header, reason = HEADERS[name]
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(8))
    with pytest.raises(OperationalError, match=reason):
        files.read(str(path), "m")


def test_members_are_found_wherever_they_lie(tmp_path: Path) -> None:
    held = {
        "flag": np.array([True, False, True]),
        "m": np.arange(5.0),
        "n": np.arange(6).reshape(2, 3),
    }
    paths = [tmp_path / name for name in ("a.npz", "b.npz", "c.safetensors")]
    np.savez(paths[0], allow_pickle=False, **held)
    np.savez_compressed(paths[1], allow_pickle=False, **held)
    safetensors.numpy.save_file(held, paths[2], {"made by": "a test"})
    for path in paths:
        for name, array in held.items():
            found = files.open_tensor(str(path), name)
            assert same(np.array(found.array), array)
            assert same(found.read([slice(1, 2)] * array.ndim), array[(slice(1, 2),) * array.ndim])
            assert found.description.member == name
        with pytest.raises(OperationalError, match="has 3 arrays") as caught:
            files.read(str(path))
        assert all(name in caught.value.hint for name in held)


def test_a_boolean_is_0_or_1(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    files.write(str(path), np.ones(4, np.bool_), "m")
    path.write_bytes(path.read_bytes()[:-1] + b"\2")
    found = files.open_tensor(str(path))
    assert found.read([slice(0, 3)]).all()
    with pytest.raises(OperationalError, match="neither 0 nor 1"):
        found.read([slice(2, 4)])
    with pytest.raises(OperationalError, match="neither 0 nor 1"):
        files.read(str(path))


def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.npy")
    with pytest.raises(OperationalError, match="no regular file"):
        files.read(str(tmp_path / "a.npy"))
