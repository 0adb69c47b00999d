"""Arrays of integer types that tensors lack."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.core.schema import DType

TYPES = {"int16": "INTEGER", "uint8": "INTEGER", "uint16": "INTEGER", "uint32": "BIGINT",
         "uint64": "BIGINT"}  # fmt: skip


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as opened:
        yield opened


@pytest.mark.parametrize("dtype", TYPES)
def test_integers_are_read_in_a_wider_type(dtype: str, con: einsql.Connection) -> None:
    info = np.iinfo(dtype)
    x = np.array([[info.min, 1, min(info.max, 2**61)], [7, 2, 0]], dtype)
    wide = x.astype(np.int64)
    cursor = con.execute("SELECT d0, d1, val FROM x")
    assert cursor.types[2] == TYPES[dtype]
    assert cursor.numpy().tolist() == wide.tolist()
    con.register("y", x.T[::-1], dims=("i", "j"))
    sums = con.execute("SELECT i, SUM(val / 2) AS s, MAX(val) AS m FROM y WHERE j = 0 GROUP BY i")
    assert [row[1:] for row in sums.fetchall()] == [(v / 2, v) for v in wide[0][::-1].tolist()]
    x[0, 0] = 3  # the registered array shares the memory
    assert con.execute("SELECT val FROM y WHERE i = 2 AND j = 0").fetchone() == (3,)
    con.execute("CREATE TENSOR z AS SELECT i, j, val FROM y")
    con.execute("SET sites = 2")
    total = int(x.astype(object).sum())
    for name in ("x", "y", "z"):
        assert con.execute(f"SELECT SUM(val) FROM {name}").fetchone() == (total,)
    assert einsql.einsum("ij->j", x[1:]).tolist() == wide[1].tolist()


def test_sparse_and_torch_arrays_are_widened(con: einsql.Connection) -> None:
    sparse: Any = pytest.importorskip("scipy.sparse")
    torch: Any = pytest.importorskip("torch")
    x = sparse.csr_array(np.array([[0, 200], [1, 0]], np.uint8))
    y = torch.tensor([300, -5], dtype=torch.int16)
    rows = con.execute("SELECT x.i, x.val * y.val AS v FROM x AS x(i, j) JOIN y AS y(j) USING (j)")
    assert rows.fetchall() == [(0, -1000), (1, 300)]
    del x, y


def test_a_value_that_does_not_fit_is_refused_with_its_place(con: einsql.Connection) -> None:
    x = np.array([[1, 2], [2**63, 4]], np.uint64)
    y = np.ones((2, 2), np.uint64)
    con.register("y", y)
    y[1, 0] = 2**63
    for name in ("x", "y"):
        with pytest.raises(einsql.DataError, match=rf"{2**63} at \(1, 0\) of an array of uint64"):
            con.execute(f"SELECT SUM(val) FROM {name}")
    with pytest.raises(einsql.DataError, match="does not fit BIGINT"):
        con.register("z", x)
    del x


@pytest.mark.parametrize("dtype", [*TYPES, ">i2", ">u8"])
def test_files_of_integers_are_read_in_a_wider_type(
    dtype: str, con: einsql.Connection, tmp_path: Path
) -> None:
    info = np.iinfo(dtype)
    x = np.array([[info.min, 1, min(info.max, 2**61)], [7, 2, 0]], dtype)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "by_columns.npy", np.asfortranarray(x))
    np.savez(tmp_path / "x.npz", x=x)
    np.savez_compressed(tmp_path / "short.npz", x=x)
    for name in ("x.npy", "by_columns.npy", "x.npz", "short.npz"):
        cursor = con.execute(f"SELECT d0, d1, val FROM '{tmp_path / name}'")
        assert cursor.types[2] == TYPES[np.dtype(dtype).name]
        assert cursor.numpy().tolist() == x.astype(np.int64).tolist(), name
        con.execute(f"CREATE OR REPLACE TENSOR y AS FROM '{tmp_path / name}'")
        assert con.execute("FROM y WHERE d1 = 1").fetchall() == [(0, 1, 1), (1, 1, 2)], name


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_a_value_of_a_file_that_does_not_fit(
    save: Any, con: einsql.Connection, tmp_path: Path
) -> None:
    path = tmp_path / ("x.npy" if save is np.save else "x.npz")
    save(path, np.array([[1, 2], [3, 2**63]], np.uint64))
    with pytest.raises(einsql.DataError, match=r"9223372036854775808 at \(1, 1\)"):
        con.execute(f"SELECT SUM(val) FROM '{path}'").fetchall()


def test_einsum_tells_types_apart_that_numpy_compares_as_equal() -> None:
    whole = np.arange(1, 5, dtype=np.uint16)
    short = (whole.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    bfloat16 = short.view(DType.BFLOAT16.numpy)
    swapped = whole.astype(np.dtype(np.float32).newbyteorder())
    for array, dtype in ((whole, "int64"), (bfloat16, "float32"), (swapped, "float32")) * 2:
        total = einsql.einsum("i,i->", array, array)
        assert (total.dtype.name, float(total)) == (dtype, 30.0)
