"""Sparse tensors over virtual sites: tiles, products and results stay sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import sparse

import einsql
from einsql.core.schema import PRESENT
from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.compressed import Compressed
from einsql.core.sparse.tiles import as_elements, packed, packed_bytes, unpacked

ROWS = 200_000
"""Rows and columns of matrices whose dense form, 360 GB, no machine of the tests has."""


def random_matrix(seed: int, stored: int = 4000, rows: int = ROWS) -> Any:
    rng = np.random.default_rng(seed)
    at = rng.integers(0, rows, (2, stored))
    values = rng.integers(1, 9, stored).astype(np.float64)  # sums are exact in any order
    return sparse.csr_array(sparse.coo_array((values, (at[0], at[1])), shape=(rows, rows)))


def sited(sites: int, cost: str = "floats", **matrices: Any) -> Any:
    con = einsql.connect(config={"sites": sites, "cost": cost})
    for name, matrix in matrices.items():
        dims = ("i", "j")[: matrix.ndim]
        con.register(name, matrix, dims=dims)
    return con


@pytest.mark.parametrize("stored", [0, 1, 40])
def test_a_packed_tile_has_the_announced_size(stored: int) -> None:
    rng = np.random.default_rng(stored)
    at = np.sort(rng.choice(11 * 7, stored, replace=False))
    starts = np.zeros(12, np.int32)
    np.cumsum(np.bincount(at // 7, minlength=11), out=starts[1:])
    structure = Compressed((11, 7), starts, (at % 7).astype(np.int32), at)
    values = {"a": rng.random(stored), "b": rng.random(stored) > 0.5}
    dtypes = {"a": np.dtype(np.float64), "b": np.dtype(np.bool_)}
    for fills in (None, {"a": np.array(2.5), "b": np.array(True)}):
        buffer = packed(Elements(structure, values, fills), dtypes)
        assert len(buffer) == packed_bytes((11, 7), stored, 9)
        back = unpacked(buffer, (11, 7), dtypes)
        assert back.fills == fills
        assert np.array_equal(back.structure.starts, starts)
        assert np.array_equal(back.structure.columns, structure.columns)
        assert all(np.array_equal(back.values_by_name[n], a) for n, a in values.items())


def test_tiles_of_every_form_have_their_elements_in_order() -> None:
    matrix = random_matrix(1, 50, 13)
    shuffled = matrix.tocsc()
    shuffled.indices[:2], shuffled.data[:2] = shuffled.indices[1::-1], shuffled.data[1::-1]
    con = sited(3, a=matrix, b=shuffled, c=matrix.tocsc())
    for name in "abc":
        result = con.execute(f"SELECT i, j, val FROM {name}").fetch_scipy("csr")
        assert (result != matrix).nnz == 0
    dense = {"val": matrix.toarray(), PRESENT: matrix.toarray() != 0}
    assert np.array_equal(as_elements(dense).structure.columns, matrix.indices)


@pytest.mark.parametrize("sites", [2, 4])
def test_no_site_becomes_dense(sites: int) -> None:
    a, b = random_matrix(2), random_matrix(3)
    con = sited(sites, a=a, b=b)
    product = con.execute(
        "SELECT a.i, b.j, SUM(a.val * b.val) AS val FROM a JOIN b ON a.j = b.i GROUP BY a.i, b.j"
    )
    assert (product.fetch_scipy("csr") != a @ b).nnz == 0
    both = con.execute("SELECT i, j, a.val + c.val AS val FROM a JOIN a AS c USING (i, j)")
    assert (both.fetch_scipy("csr") != 2 * a).nnz == 0


@pytest.mark.parametrize("strategy", ["data:i", "data:j", "eindecomp"])
def test_partial_results_are_merged_by_stored_elements(strategy: str) -> None:
    a, b = random_matrix(4), random_matrix(5)
    con = sited(4, a=a, b=b)
    con.execute(f"SET strategy = '{strategy}'")
    sql = (
        "SELECT a.j, b.j AS k, SUM(a.val * b.val) AS val, COUNT(*) AS n, MAX(a.val) AS m "
        "FROM a JOIN b USING (i) GROUP BY a.j, b.j"
    )
    wanted = (a.T @ b).tocoo()
    result = con.execute(sql).fetchall()
    assert [row[:3] for row in result] == sorted(
        zip(wanted.coords[0].tolist(), wanted.coords[1].tolist(), wanted.data.tolist(), strict=True)
    )
    con.execute("SET sites = 1")
    assert con.execute(sql).fetchall() == result


def test_declared_tiles_move_as_elements() -> None:
    a = random_matrix(6)
    con = sited(4, a=a)
    con.execute("CREATE TENSOR p PARTITION BY (i 2, j 2) STORAGE SPARSE AS SELECT i, j, val FROM a")
    con.execute("CREATE TENSOR q PARTITION BY (j 4) STORAGE SPARSE AS SELECT i, j, val FROM a")
    sql = "SELECT p.i, p.j, p.val + q.val AS val FROM p JOIN q USING (i, j)"
    assert (con.execute(sql).fetch_scipy("csr") != 2 * a).nnz == 0
    sites = con.explain(sql, analyze=True).to_dict()["per_site"]
    assert 0 < sum(site["bytes_sent"] for site in sites) < 100 * a.nnz


def skewed_matrix(rows: int = 4000) -> Any:
    """Rows with very different numbers of elements, as in graphs."""
    rng = np.random.default_rng(9)
    at = (rng.pareto(0.5, (2, 6 * rows)) * 4).astype(np.int64)
    at = at[:, (at < rows).all(axis=0)]
    values = rng.integers(1, 9, at.shape[1]).astype(np.float64)
    return sparse.csr_array(sparse.coo_array((values, (at[0], at[1])), shape=(rows, rows)))


PRODUCT = "SELECT a.i, SUM(a.val * x.val) AS val FROM a JOIN x ON a.j = x.i GROUP BY a.i"


def planned_and_sent(con: Any, sql: str) -> tuple[int, int]:
    report = con.explain(sql, analyze=True).to_dict()
    return report["total"]["bytes_sent"], sum(site["bytes_sent"] for site in report["per_site"])


def test_a_cut_divides_the_elements_evenly() -> None:
    matrix = skewed_matrix()
    con = sited(4, "seconds", a=matrix, x0=np.ones(4000))
    con.execute("CREATE TENSOR x PARTITION BY (i 4) AS SELECT i, val FROM x0")
    con.execute("SET strategy = 'data:i'")
    report = con.explain(PRODUCT, sites=4).to_dict()
    flops = [site["flops"] for site in report["per_site"]]
    assert sum(flops) > 3 * matrix.nnz
    heaviest = 3 * int(np.diff(matrix.indptr).max())  # no cut divides a row
    assert max(flops) < min(flops) + heaviest + 0.1 * sum(flops)
    equal = np.add.reduceat(np.diff(matrix.indptr), np.arange(0, 4000, 1000))
    assert equal.max() > 0.6 * matrix.nnz


@pytest.mark.parametrize("strategy", ["data:i", "data:j", "eindecomp"])
def test_only_elements_that_rows_need_are_sent(strategy: str) -> None:
    matrix, values = skewed_matrix(), np.random.default_rng(1).integers(1, 99, 4000) * 1.0
    con = sited(4, a=matrix, x0=values)
    con.execute("CREATE TENSOR x PARTITION BY (i 4) AS SELECT i, val FROM x0")
    con.execute(f"SET strategy = '{strategy}'")
    for sql in (PRODUCT, PRODUCT.replace("a.j = x.i GROUP BY a.i", "a.i = x.i GROUP BY a.i")):
        planned, sent = planned_and_sent(con, sql)
        assert planned == sent
    if strategy == "data:i":
        complete = 3 * 4000 * 8
        assert planned_and_sent(con, PRODUCT)[1] < 0.8 * complete
    for _ in range(3):
        wanted = matrix @ values
        rows = con.execute(PRODUCT).fetchall()
        assert rows == [
            (i, v) for i, v in enumerate(wanted.tolist()) if matrix.indptr[i + 1] > matrix.indptr[i]
        ]


def test_elements_that_are_not_sent_are_not_read() -> None:
    """An element beyond the present rows may be infinite; a DEFAULT makes every element count."""
    matrix, values = skewed_matrix(), np.ones(4000)
    unread = np.flatnonzero(np.bincount(matrix.indices, minlength=4000) == 0)
    values[unread] = np.inf
    con = sited(4, a=matrix, x0=values)
    con.execute("SET strategy = 'data:i'")
    con.execute("CREATE TENSOR x PARTITION BY (i 4) AS SELECT i, val FROM x0")
    assert all(np.isfinite(v) for _, v in con.execute(PRODUCT).fetchall())
    con.register("a", matrix, dims=("i", "j"), fill=0)
    assert all(np.isnan(v) for _, v in con.execute(PRODUCT).fetchall())


def test_a_plan_stays_right_for_other_elements() -> None:
    con = sited(4, x0=np.arange(1.0, 4001))
    con.execute(
        "SET strategy = 'data:i'; CREATE TENSOR x PARTITION BY (i 4) AS SELECT i, val FROM x0"
    )
    for seed in (1, 2):
        matrix = random_matrix(seed, 9000, 4000)
        con.register("a", matrix, dims=("i", "j"))
        wanted = matrix @ np.arange(1.0, 4001)
        assert dict(con.execute(PRODUCT).fetchall()) == {i: v for i, v in enumerate(wanted) if v}
        matrix.data[:] = 2.0


@pytest.mark.parametrize("sites", [2, 3])
def test_a_part_with_every_key_stored_does_not_decide_the_other_keys(sites: int) -> None:
    con = einsql.connect(config={"sites": sites})
    con.execute("CREATE TENSOR t (i DIM(600), j DIM(600), val DOUBLE) DEFAULT 2 STORAGE SPARSE")
    con.execute("INSERT INTO t SELECT 0 AS i, j, 1.0::DOUBLE AS val FROM range(600) AS r(j)")
    values = con.execute("SELECT j, i, MAX(val) AS v FROM t GROUP BY j, i").fetch_numpy()
    wanted = np.full((600, 600), 2.0)
    wanted[:, 0] = 1
    np.testing.assert_array_equal(values, wanted)


def test_a_site_with_one_value_of_a_key_gives_it_its_group() -> None:
    con = sited(3, t=sparse.csr_array(np.ones((200, 3))))
    con.execute("CREATE TENSOR s (i DIM(100000), j DIM(3), val DOUBLE) STORAGE SPARSE")
    con.execute("INSERT INTO s SELECT i, j, val FROM t")
    rows = con.execute("SELECT j % 2 AS k, SUM(val) AS s FROM s GROUP BY j % 2").fetchall()
    assert sorted(rows) == [(0, 400.0), (1, 200.0)]


def test_a_key_that_a_cut_fixes_has_one_group() -> None:
    con = einsql.connect(config={"sites": 3, "jit": "never", "cost": "seconds"})
    con.execute("CREATE TENSOR s (i DIM(3), j DIM(100000), val BIGINT) STORAGE SPARSE")
    con.execute("INSERT INTO s SELECT i, j, 1 AS val FROM range(3) AS a(i), range(500) AS b(j)")
    sql = "SELECT i - 1 AS g, i, COUNT(*) AS c FROM s GROUP BY i - 1, i"
    assert sorted(con.execute(sql).fetchall()) == [(-1, 0, 500), (0, 1, 500), (1, 2, 500)]


def test_parts_without_stored_elements_send_nothing() -> None:
    con = einsql.connect(config={"sites": 3, "cost": "floats"})
    con.execute("CREATE TENSOR s (i DIM(1), j DIM(100000), val DOUBLE) STORAGE SPARSE")
    con.execute("CREATE TENSOR o (j DIM(6), c DIM(3), val DOUBLE) DEFAULT 1")
    joined = "FROM s AS a JOIN s AS b ON a.i = b.i JOIN o ON o.j = b.j WHERE a.val > b.val"
    sql = f"SELECT b.j AS k, a.j AS l, c, SUM(a.val) AS v {joined} GROUP BY b.j, a.j, c"
    assert con.execute(sql).fetchall() == []
    best = "SELECT i, MAX(val, 2) AS m FROM s WHERE val > 1 GROUP BY i"
    assert con.execute(best).fetchall() == []
