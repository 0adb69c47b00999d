"""Compiled loops over rows of sparse operands answer what DuckDB does over the same rows."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import duckdb
import numpy as np
import pytest
from scipy import sparse

import einsql
from einsql.kernels import registry
from einsql.kernels.sparse.visits import Route, Visit, points_of
from tests.support.samples import spread

ROWS, COLUMNS, WIDTH = 11, 14, 3

STATEMENTS = (
    # by rows and by columns, with a vector, presence, states and conditions
    "SELECT i, MIN(t.val + d.val) AS a, COUNT(*) AS n, BOOL_OR(d.val > 1) AS o "
    "FROM t JOIN d USING (j) WHERE t.val <> 1 GROUP BY i",
    "SELECT j, MAX(val) AS a, ARG_MIN(i, val * 64 + i) AS v FROM t "
    "WHERE ISFINITE(val) AND i < 9 GROUP BY j",
    # rows of running values, and dot products at stored elements
    "SELECT i, k, MIN(t.val + q.val) AS s FROM t JOIN q USING (j) GROUP BY i, k",
    "SELECT i, j, SUM(t.val * p.val * q.val) AS s, COUNT(*) AS n FROM t JOIN p USING (i) "
    "JOIN q USING (j, k) WHERE p.val > 0 AND j BETWEEN 2 AND 11 AND ISFINITE(t.val) GROUP BY i, j",
    # products by other functions, masked products, a join by a common row
    "SELECT a.i, b.j AS k, MIN(a.val + b.val) AS s, COUNT(*) AS n FROM t a JOIN t b ON a.j = b.i "
    "WHERE a.j BETWEEN 2 AND 9 AND b.j > 3 GROUP BY a.i, b.j",
    "SELECT a.i, b.j AS k, MAX(a.val) AS s, COUNT(*) AS n FROM t a JOIN t b ON a.j = b.i "
    "JOIN t c ON a.i = c.i AND b.j = c.j WHERE c.val >= 0 AND c.j > 2 GROUP BY a.i, b.j",
    "SELECT COUNT(*) AS n, MIN(a.val * c.val) AS s FROM t a JOIN t b ON a.j = b.i "
    "JOIN t c ON a.i = c.i AND b.j = c.j",
    "SELECT a.j, SUM(a.val * b.val) AS s, COUNT(*) AS n FROM t a JOIN t b USING (j) "
    "WHERE ISFINITE(a.val) AND ISFINITE(b.val) GROUP BY a.j",
    "SELECT a.i, SUM(b.val) AS s FROM t a JOIN t b ON a.i = b.j GROUP BY a.i",
    # maps, and computed keys
    "SELECT i, j, CASE WHEN t.val > u.val THEN d.val END AS v FROM t JOIN t u USING (i, j) "
    "JOIN d USING (j) WHERE j IN (1, 4, 5) OR i % 3 = 1",
    "SELECT i // 4 AS g, j, SUM(val) AS s, COUNT(*) AS n FROM t GROUP BY i // 4, j",
    # the best elements of rows and of columns
    "SELECT i, ARG_MAX(j, val * 64 + j, 2) AS b FROM t WHERE ISFINITE(val) GROUP BY i",
    "SELECT j, MIN(val, 3) FILTER (WHERE i > 2) AS b FROM t WHERE ISFINITE(val) GROUP BY j",
)


def matrix() -> Any:
    """A third of the elements, with an empty row and column, stored zeros, NaN and infinity."""
    rng = np.random.default_rng(7)
    kept = rng.random((ROWS, COLUMNS)) < 0.35
    kept[4], kept[:, 6] = False, False
    i, j = np.nonzero(kept)
    values = rng.integers(-4, 5, len(i)) / 2
    values[[2, 9]], values[17] = np.nan, np.inf
    return sparse.coo_array((values, (i, j)), shape=(ROWS, COLUMNS))


def dense() -> dict[str, tuple[tuple[str, ...], np.ndarray]]:
    """Arrays that statements join, with the names of their axes."""
    rng = np.random.default_rng(8)

    def array(*shape: int) -> np.ndarray:
        return np.asarray(rng.integers(-3, 4, shape) / 2)

    return {
        "d": (("j",), array(COLUMNS)),
        "p": (("i", "k"), array(ROWS, WIDTH)),
        "q": (("k", "j"), array(WIDTH, COLUMNS)),
    }


def answer(con: Any, sql: str) -> list[str]:
    return sorted(map(repr, con.execute(sql).fetchall()))


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB over one row for each element."""
    con, t = duckdb.connect(), matrix()
    tables = {"t": (("i", "j"), t.row, t.col, t.data)}
    for name, (keys, array) in dense().items():
        tables[name] = (keys, *np.indices(array.shape).reshape(array.ndim, -1), array.reshape(-1))
    for name, (keys, *columns) in tables.items():
        rows = ", ".join(
            f"({', '.join(map(str, row[:-1]))}, '{row[-1]}'::DOUBLE)"
            for row in zip(*(c.tolist() for c in columns), strict=True)
        )
        con.execute(f"CREATE TABLE {name} AS FROM (VALUES {rows}) AS v({', '.join(keys)}, val)")
    yield con
    con.close()


@pytest.fixture(scope="module", params=["stored", "csr", "csc"])
def few(request: pytest.FixtureRequest) -> Iterator[einsql.Connection]:
    """A session that compiles kernels, over a sparse tensor or an array of SciPy."""
    con = einsql.connect()
    con.execute("SET jit = 'wait'")
    for name, (keys, array) in dense().items():
        con.register(name, array, dims=keys)
    source = matrix().asformat("csr" if request.param == "stored" else request.param)
    source.sort_indices()
    con.register("t", source, dims=("i", "j"))
    if request.param == "stored":
        con.execute("CREATE TENSOR stored STORAGE SPARSE AS SELECT i, j, val FROM t")
        con.unregister("t")
        con.execute("CREATE VIEW t AS SELECT i, j, val FROM stored")
    yield con
    con.close()


@pytest.mark.parametrize("sql", spread(STATEMENTS, 13))
def test_answers_are_duckdbs(
    sql: str, duck: Any, few: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "SMALL", 0)
    assert answer(few, sql) == answer(duck, sql)


def test_long_rows_are_added_accurately() -> None:
    """A row of more terms than one strip, beside short ones, on several threads."""
    rng = np.random.default_rng(3)
    counts = np.array([0, 3, 70_000, 1, 1024, 1025])
    starts = np.concatenate(([0], np.cumsum(counts)))
    columns = np.concatenate([np.sort(rng.permutation(80_000)[:n]) for n in counts])
    values = rng.standard_normal(len(columns)) * 1e8
    m = sparse.csr_array((values, columns, starts), shape=(6, 80_000))
    x = rng.standard_normal(80_000)
    con = einsql.connect()
    con.execute("SET jit = 'wait'")
    con.register("m", m, dims=("i", "j"))
    con.register("x", x, dims=("j",))
    sums = con.execute(
        "SELECT i, SUM(m.val * x.val) AS s, MAX(m.val + x.val) AS a "
        "FROM m JOIN x USING (j) GROUP BY i"
    ).fetch_numpy(fill=0.0)
    terms = (values * x[columns]).astype(np.longdouble)
    exact = [np.sum(terms[a:b]) for a, b in pairwise(starts.tolist())]
    np.testing.assert_allclose(sums["s"], np.array(exact, np.float64), rtol=1e-12)


def test_an_owner_may_change_the_elements() -> None:
    """Rows are arranged anew after the owner of an array has changed it."""
    m = matrix().tocsr()
    con = einsql.connect()
    con.execute("SET jit = 'wait'")
    con.register("m", m, dims=("i", "j"))
    sql = "SELECT j, COUNT(*) AS n, MAX(val * 2) AS a FROM m GROUP BY j"
    before = con.execute(sql).fetchall()
    m.data[:] = np.where(np.isfinite(m.data), 1.0, 0.0)
    m.eliminate_zeros()
    m.indices[m.indptr[0] : m.indptr[1]] = m.indices[m.indptr[0] : m.indptr[1]][::-1]
    after = con.execute(sql).fetchall()
    assert after != before
    counts = np.bincount(m.indices, minlength=COLUMNS)
    assert after == [(j, n, 2.0) for j, n in enumerate(counts.tolist()) if n]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT m.i, SUM(m.val * v.val) AS s FROM m JOIN v USING (j) GROUP BY m.i",
        "SELECT m.i, SUM(m.val * v.val) AS s FROM m JOIN v USING (j) WHERE m.j < 5 GROUP BY m.i",
        "SELECT m.i, v.k, SUM(m.val * v.val) AS s FROM m JOIN v USING (j) GROUP BY m.i, v.k",
        "SELECT m.j, MAX(m.val * 2) AS s FROM m GROUP BY m.j",
    ],
    ids=["verified by loops", "part of the columns", "rows of sums", "scattered"],
)
def test_columns_that_an_owner_moves_outside_are_refused(sql: str) -> None:
    """Compiled loops verify the columns that they read, or these are verified before."""
    m = matrix().tocsr()
    con = einsql.connect()
    con.execute("SET jit = 'wait'")
    con.register("m", m, dims=("i", "j"))
    m.data[:] = np.arange(m.nnz)
    keys = ("j", "k") if "v.k" in sql else ("j",)
    con.register("v", np.ones((COLUMNS, 3)[: len(keys)]), dims=keys)
    before = con.execute(sql).fetchall()
    kept = m.indices.copy()
    for at, column in ((0, COLUMNS), (-1, -1), (m.nnz // 2, 2**31 - 1), (1, -(2**31))):
        m.indices[at] = column
        with pytest.raises(einsql.InterfaceError, match="changed since it was registered"):
            con.execute(sql)
        m.indices[:] = kept
    assert con.execute(sql).fetchall() == before


@pytest.mark.parametrize("aggregate", ["SUM(a.val * b.val)", "MAX(a.val * b.val)"])
def test_columns_of_products_that_an_owner_moves_outside_are_refused(aggregate: str) -> None:
    """The partition reads the columns before the loops verify them."""
    a, b = (sparse.random_array((300, 300), density=0.05, format="csr", rng=n) for n in (1, 2))
    con = einsql.connect(config={"jit": "wait"})
    con.register("a", a, dims=("i", "j"))
    con.register("b", b, dims=("j", "k"))
    sql = f"SELECT a.i, {aggregate} AS s FROM a JOIN b USING (j) GROUP BY a.i"
    before = con.execute(sql).fetchall()
    first = a.indices[0]
    for column in (10**6, -1):
        a.indices[0] = column
        with pytest.raises(einsql.InterfaceError, match="changed since it was registered"):
            con.execute(sql)
    a.indices[0] = first
    assert con.execute(sql).fetchall() == before


def test_the_memory_limit_holds_for_products() -> None:
    """The elements of a product are counted before they are computed."""
    n, each = 1000, 30
    columns, starts = np.tile(np.arange(each), n), np.arange(0, each * n + 1, each)
    m = sparse.csr_array((np.ones(each * n, np.int64), columns, starts), shape=(n, each))
    con = einsql.connect()
    con.execute("SET jit = 'wait'")
    con.register("m", m, dims=("i", "j"))
    sql = (
        "SELECT a.i, b.i AS k, SUM(a.val * b.val) AS s FROM m a JOIN m b USING (j) "
        "GROUP BY a.i, b.i"
    )
    con.execute("SET memory_limit = '8MB'")
    with pytest.raises(einsql.OperationalError, match="memory_limit"):
        con.execute(sql)
    con.execute("SET memory_limit = '4GB'")
    product = con.execute(sql).fetch_scipy()
    assert (product.nnz, product.max()) == (n * n, each)


def test_points_of_long_rows_are_counted_beyond_int32() -> None:
    visits = Visit(0, "j", ("i",), False), Visit(1, "i", ("k",), False)
    counts = np.array([70_000, 3], np.int32)
    stored = int(counts.sum())
    points = points_of(Route("j", visits), {0: stored, 1: stored}, lambda *_: counts)
    assert points == stored + 70_000**2 + 3**2
