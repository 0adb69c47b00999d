"""Tensor files: whatever a header says, an answer or an OperationalError."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

import einsql
from einsql.errors import OperationalError
from einsql.storage import files


def npy(header: str, version: int = 1) -> bytes:
    text = header.encode("latin1")
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + bytes(64)


def shaped(shape: str) -> bytes:
    return npy(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n")


DAMAGED = {
    "open bracket": npy("{'descr': '<f4', 'shape': (3,"),
    "deep": npy("(" * 5000),
    "deeper": npy("-" * 9000 + "1"),
    "list": npy("[]"),
    "mixed keys": npy("{1: 2, 'a': 3}\n"),
    "negative": shaped("(-3,)"),
    "huge": shaped("(99999999999999,)"),
    "beyond C": shaped("(9999999999999999999999,)"),
    "wraps around": shaped("(4294967296, 4294967296)"),
    "boolean": shaped("(True,)"),
    "many axes": shaped(f"({'1,' * 70})"),
    "python 2": shaped("(3L,)"),
    "no dtype": npy("{'descr': [('a',)], 'fortran_order': False, 'shape': (3,), }\n"),
    "long header": npy(" " * 20000, version=2),
    "no member": b"",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_headers_are_refused(tmp_path: Path, name: str) -> None:
    plain, packed = tmp_path / "a.npy", tmp_path / "a.npz"
    plain.write_bytes(DAMAGED[name])
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.npy", DAMAGED[name])
    for path in (plain, packed):
        with pytest.raises(OperationalError) as caught:
            files.read(str(path))
        assert "pickled" not in caught.value.reason


def test_damaged_archives_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez(path, a=np.ones(3))
    whole = path.read_bytes()
    directory = whole.index(b"PK\x01\x02")
    for offset, value in ((8, 1), (10, 99)):  # encrypted; an unknown compression
        changed = bytearray(whole)
        changed[directory + offset] = changed[offset - 2] = value
        path.write_bytes(changed)
        with pytest.raises(OperationalError):
            files.read(str(path))


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors", "arrow"])
def test_results_outlive_the_file_they_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    monkeypatch.chdir(tmp_path)
    path = f"./a.{suffix}"
    files.write(path, np.arange(100_000.0), "a")
    con = einsql.connect()
    cursor = con.execute(f"SELECT * FROM '{path}'")
    array = con.execute(f"SELECT * FROM '{path}'").fetch_numpy()
    spread = con.execute(f"SELECT d0, k, val FROM '{path}', range(1000) AS r(k)").fetch_numpy()
    con.execute(f"CREATE TENSOR t AS SELECT * FROM '{path}'")
    opened = files.open_tensor(path)
    os.truncate(path, 200)  # reading a mapped page beyond the end kills the process
    with pytest.raises(OperationalError, match="has changed"):
        opened.read([slice(99_999, None)])
    assert array.flags.writeable
    assert array[-1] == 99_999
    assert spread.strides[1] == 0
    assert spread[-1, 7] == 99_999
    assert cursor.fetchall()[-1] == (99_999, 99_999.0)
    assert con.execute("SELECT val FROM t WHERE d0 = 99999").fetchall() == [(99_999.0,)]


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.npy").mkdir()
    for path in (str(tmp_path / "a.npy"), str(tmp_path / "\0.npy")):
        with pytest.raises(OperationalError, match="cannot be written"):
            files.write(path, np.ones(3), "val")
    assert os.listdir(tmp_path) == ["a.npy"]


@pytest.mark.parametrize("name", ["w.npy", "w.npz", "w.csv", "w.parquet", "w.mtx", "w.zarr"])
def test_copy_forces_the_new_name_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name.endswith("zarr"):
        pytest.importorskip("zarr", reason="the extra [formats] is not installed")
    forced = list[str]()
    fsync = os.fsync

    def noted(file: int) -> None:
        there = (tmp_path / name).exists()
        forced.append(os.readlink(f"/proc/self/fd/{file}") if there else "")
        fsync(file)

    con = einsql.connect()
    con.register("w", np.ones((2, 3), np.float32), dims=("i", "j"))
    monkeypatch.setattr(os, "fsync", noted)
    con.execute(f"COPY w TO '{tmp_path / name}'")
    assert forced[-1] == str(tmp_path)
