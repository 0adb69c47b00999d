"""Sparse tensors in files: lists of edges, Matrix Market, and arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from scipy import sparse

import einsql

COLUMNS = "(src DIM(200000), dst DIM(100000), w DOUBLE)"


def edges(count: int = 200) -> pa.Table:
    """Edges in any order, with explicit zeros."""
    keys = np.random.default_rng(5).permutation(count) * 7919
    weights = np.arange(count) % 5 / 4
    return pa.table({"src": keys % 199_999, "dst": keys // 16, "w": weights})


def stored(con: einsql.Connection, name: str) -> tuple[Any, ...]:
    """The storage of a tensor and the number of stored elements."""
    (row,) = (r for r in con.execute("SHOW TENSORS").fetchall() if r[0] == name)
    return row[6:8]


def rows(con: einsql.Connection, name: str) -> list[tuple[Any, ...]]:
    return con.execute(f"SELECT * FROM {name}").fetchall()


def test_lists_of_edges(tmp_path: Path) -> None:
    table, con = edges(), einsql.connect()
    con.register("listed", table)
    wanted = sorted(zip(*(c.to_pylist() for c in table.columns), strict=True))
    pq.write_table(table, tmp_path / "edges.parquet")
    feather.write_feather(table, str(tmp_path / "edges.arrow"))
    con.execute(f"CREATE TENSOR g AS FROM '{tmp_path}/edges.parquet'")
    con.execute(f"CREATE TENSOR a AS SELECT src, dst, w FROM '{tmp_path}/edges.arrow'")
    con.execute("CREATE TENSOR t AS SELECT src, dst, w FROM listed")
    for form in ("parquet", "mtx"):
        con.execute(f"COPY g TO '{tmp_path}/out.{form}'")
        con.execute(f"CREATE TENSOR {form} {COLUMNS} STORAGE SPARSE")
        assert con.execute(f"COPY {form} FROM '{tmp_path}/out.{form}'").rowcount == 200
    assert pq.read_table(tmp_path / "out.parquet").num_rows == 200
    for name in ("g", "a", "t", "parquet", "mtx"):
        assert rows(con, name) == wanted
        assert stored(con, name) == ("sparse", 200)
    twice = pa.concat_tables([table, table.slice(3, 1)])
    pq.write_table(twice, tmp_path / "twice.parquet")
    key = "src = {}, dst = {}".format(*(c[3].as_py() for c in table.columns[:2]))
    con.execute("DELETE FROM parquet")
    for sql in (
        f"CREATE TENSOR b AS FROM '{tmp_path}/twice.parquet'",
        f"COPY parquet FROM '{tmp_path}/twice.parquet'",
    ):
        with pytest.raises(einsql.IntegrityError, match=key):
            con.execute(sql)


def test_arrays_keep_the_storage_of_their_tensor(tmp_path: Path) -> None:
    array = np.zeros((6, 5))
    array[1, 2], array[4, 4], array[5, 0] = 3, -0.0, np.nan
    np.save(tmp_path / "a.npy", array)
    con = einsql.connect()
    for default, count in (("DEFAULT 0", 3), ("DEFAULT 3", 29), ("", 30)):
        con.execute(
            f"CREATE OR REPLACE TENSOR t (i DIM(6), j DIM(5), val DOUBLE) {default} STORAGE SPARSE"
        )
        assert con.execute(f"COPY t FROM '{tmp_path}/a.npy'").rowcount == 30
        assert stored(con, "t") == ("sparse", count)
        found = con.execute("SELECT * FROM t").fetch_numpy()
        np.testing.assert_array_equal(found, array)
        assert np.signbit(found[4, 4])
    with pytest.raises(einsql.IntegrityError, match="has rows already"):
        con.execute(f"COPY t FROM '{tmp_path}/a.npy'")


def test_a_default_of_zero_is_written_as_coordinates(tmp_path: Path) -> None:
    con = einsql.connect()
    con.execute(f"CREATE TENSOR g {COLUMNS} DEFAULT 0 STORAGE SPARSE")
    con.execute("INSERT INTO g VALUES (5, 6, 1.5), (100000, 99999, 0), (1, 1, 2)")
    assert con.execute(f"COPY g TO '{tmp_path}/g.mtx'").rowcount == 3
    assert (tmp_path / "g.mtx").read_text().splitlines()[1] == "200000 100000 3"
    coordinates = con.execute("SELECT * FROM g").fetch_scipy("coo")
    assert (coordinates.format, coordinates.nnz, coordinates.shape) == ("coo", 3, (200000, 100000))
    con.register("m", sparse.bsr_array(coordinates), dims=("src", "dst"), fill=0)
    assert con.execute("SELECT COUNT(*), SUM(val) FROM m").fetchall() == [(2 * 10**10, 3.5)]
    described = con.execute("DESCRIBE g").fetchall()
    assert [row[4] for row in described] == ["", "", "sparse: 3 of 20,000,000,000 (1.5e-08 %)"]
