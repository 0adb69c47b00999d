"""SciPy's arrays whose owners change them, or that are too large to be made dense."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import einsql
from einsql.core.schema import DType, Field
from einsql.core.sparse.compressed import Compressed
from einsql.kernels.loops.half_precision import _Read
from einsql.kernels.sparse.multiply import multiply_rows
from einsql.kernels.sparse.tiled import _Pair
from einsql.kernels.sparse.tiles import grid_of
from tests.kernels.nodes import no_tick
from tests.support.samples import spread

STATEMENTS = {
    "rows": "SELECT i, SUM(val) AS s FROM m GROUP BY i",
    "columns": "SELECT j, SUM(val) AS s FROM m GROUP BY j",
    "product": "SELECT m.i, SUM(m.val * w.val) AS s FROM m JOIN w USING (j) GROUP BY m.i",
    "part": "SELECT m.i, SUM(m.val * w.val) AS s FROM m JOIN w USING (j) WHERE m.j > 3 AND m.i > 1 "
    "GROUP BY m.i",
    "conditions": "SELECT i, SUM(val) AS s FROM m WHERE val > 5 GROUP BY i",
    "dense": "SELECT i, j, val FROM m",
    "dense part": "SELECT j, val FROM m WHERE i = 6",
}


def matrix(kind: str) -> Any:
    """7 × 9, most of it stored, every third element as a zero, and an empty row."""
    whole = np.arange(63.0).reshape(7, 9)
    found = sparse.csr_array(np.where(np.arange(63).reshape(7, 9) % 5, whole, 0))
    found.data[::3] = 0
    found.data[found.indptr[3] : found.indptr[4]] = 0
    return found.asformat(kind)


def connected(m: object, **options: Any) -> einsql.Connection:
    con = einsql.connect()
    con.register("m", m, dims=("i", "j"), **options)
    con.register("w", np.arange(9.0), dims=("j",))
    return con


@pytest.mark.parametrize("kind", ["csr", "csc"])
@pytest.mark.parametrize("what", list(STATEMENTS))
def test_elements_that_an_owner_removes_are_absent(what: str, kind: str) -> None:
    m = matrix(kind)
    con = connected(m)
    sql = STATEMENTS[what]
    con.execute(sql)
    m.eliminate_zeros()
    assert con.execute(sql).fetchall() == connected(m.copy()).execute(sql).fetchall()


@pytest.mark.parametrize("kind", ["csr", "csc"])
def test_arrays_that_an_owner_puts_in_place_of_others_are_read(kind: str) -> None:
    """SciPy keeps some arrays and makes others anew, at will."""
    m = matrix(kind)
    con, sql = connected(m), STATEMENTS["rows"]
    for n in range(1, 4):
        m.data[n:] = 0
        m.eliminate_zeros()
        assert con.execute(sql).fetchall() == connected(m.copy()).execute(sql).fetchall()
    with pytest.warns(sparse.SparseEfficiencyWarning):
        m[3, 3] = 8
    assert (3, 8.0) in con.execute(sql).fetchall()


def test_another_shape_or_dtype_is_refused() -> None:
    m = matrix("csc")
    con = connected(m)
    m.resize(6, 9)
    with pytest.raises(einsql.InterfaceError, match="another shape"):
        con.execute(STATEMENTS["rows"])
    m.resize(7, 9)
    m.data = m.data.astype(np.float32)
    with pytest.raises(einsql.InterfaceError, match="dtype is float32"):
        con.execute(STATEMENTS["dense"])


def test_a_matrix_that_is_converted_in_part_is_a_copy() -> None:
    """Else the owner's elements could move while their columns stay."""
    foreign, mixed = matrix("csr"), matrix("csr")
    foreign.data = foreign.data.astype(">f8")
    mixed.indices = mixed.indices.astype(np.int64)
    sql = STATEMENTS["rows"]
    wanted = connected(matrix("csr")).execute(sql).fetchall()
    for m in (foreign, mixed):
        con = connected(m)
        assert con.execute(sql).fetchall() == wanted
        m.data[:], m.indices[:], m.indptr[:] = 5, 0, 0
        assert con.execute(sql).fetchall() == wanted


def broken(what: str, m: Any) -> None:
    """Writes something into a matrix that its structure cannot be."""
    n = int(m.indptr[2])
    at, into, value = {
        "beyond": (n, m.indices, 500000),
        "last beyond": (-1, m.indices, 500000),
        "negative": (n, m.indices, -1),
        "first": (0, m.indptr, 1),
        "falling": (2, m.indptr, 1),
        "too many": (-1, m.indptr, len(m.data) + 1),
        "below": (1, m.indptr, -3),
    }[what]
    into[at] = value


@pytest.mark.parametrize("kind", ["csr", "csc"])
@pytest.mark.parametrize(
    "how",
    ["beyond", "last beyond", "negative", "first", "falling", "too many",
     "below"],
)  # fmt: skip
def test_a_broken_structure_is_refused(how: str, kind: str) -> None:
    m = matrix(kind)
    con = connected(m)
    broken(how, m)
    for sql in STATEMENTS.values():
        with pytest.raises(einsql.InterfaceError, match="changed since it was registered") as e:
            con.execute(sql)
        assert "Register it again" in e.value.hint


def test_arrays_with_room_at_their_ends_are_used_where_they_are() -> None:
    m = matrix("csr")
    room = np.full(1000, 7)
    parts = [np.concatenate((a, room.astype(a.dtype)))[: len(a) + 5] for a in (m.data, m.indices)]
    roomy = sparse.csr_array(m.shape)
    roomy.data, roomy.indices, roomy.indptr = parts[0], parts[1], m.indptr
    con = connected(roomy)
    sql = STATEMENTS["rows"]
    assert con.execute(sql).fetchall() == connected(m).execute(sql).fetchall()
    roomy.data[: m.nnz] = 1
    m.data[:] = 1
    assert con.execute(sql).fetchall() == connected(m).execute(sql).fetchall()


def test_arrays_that_fit_nowhere_together_are_malformed() -> None:
    m = matrix("csr")
    m.data = m.data[:-1]
    with pytest.raises(einsql.InterfaceError, match="malformed"):
        connected(m)


@pytest.mark.parametrize("way", spread(["tiles", "whole", "a", "b"], 2))
def test_counts_beyond_floats_integers_are_exact(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    k = 2**24 + 1
    monkeypatch.setattr(_Pair, "way", lambda *_: way)
    grid = grid_of(np.broadcast_to(np.True_, (1, k)), (1, k))
    assert _Pair(grid, grid.turned).counts(True, no_tick).tolist() == [[k]]


def test_fields_made_dense_for_a_moment_are_not_taken_for_each_other() -> None:
    """An array that is gone may leave its address to the next one."""

    class Made(dict[str, np.ndarray]):
        def __getitem__(self, name: str) -> np.ndarray:
            return super().__getitem__(name).copy()

    read = _Read((Field("val", DType.HALF),), (slice(0, 3),), False)
    done: Any = {}
    found = [
        read.run(Made(val=np.full(3, n, np.float16)), done, no_tick)["val"].tolist()
        for n in range(9)
    ]
    assert found == [[float(n)] * 3 for n in range(9)]


def test_shapes_beyond_addresses_register_or_are_refused() -> None:
    m = sparse.coo_array((np.ones(2), (np.array([1, 2]), np.array([0, 2]))), shape=(9, 2**62))
    con = connected(m)
    assert con.execute("SELECT i, SUM(val) AS s FROM m WHERE j < 4 GROUP BY i").fetchall() == [
        (1, 1.0),
        (2, 1.0),
    ]
    with pytest.raises(einsql.OperationalError):
        con.execute("SELECT SUM(val) AS s FROM m")
    for rows in (2**40, 2**62):
        m.resize(rows, 3)
        with pytest.raises(einsql.OperationalError, match="cannot be converted to CSR"):
            connected(m)


def test_products_do_without_scipys_inner_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.sparse._sparsetools", None)
    monkeypatch.delattr(sparse, "_sparsetools", raising=False)
    m, x = matrix("csr").astype(np.float32), np.arange(27, dtype=np.float32).reshape(9, 3)
    held = Compressed(m.shape, m.indptr, m.indices, m.data)
    np.testing.assert_array_equal(multiply_rows(held, x, no_tick), m @ x)
    np.testing.assert_array_equal(multiply_rows(held, x[:, :1], no_tick), m @ x[:, :1])
