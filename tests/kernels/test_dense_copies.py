"""Products over dense copies of sparse operands answer as those over stored elements do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

import einsql
from einsql.core import free_memory
from einsql.core.sparse.compressed import Compressed
from einsql.kernels import registry
from einsql.kernels.sparse import costs, dense_rows, products
from einsql.kernels.storage_choice import StorageChoice
from tests.kernels.nodes import no_tick

DENSITIES = (0.1, 0.3, 0.9)
STATEMENTS = (
    "SELECT m.i, d.k, SUM(m.val * d.val) AS s FROM m JOIN d USING (j) GROUP BY m.i, d.k",
    "SELECT d.k, m.j, SUM(m.val * d.val) * 2 AS s, COUNT(*) AS n FROM m JOIN d ON m.i = d.j "
    "GROUP BY d.k, m.j",
    "SELECT m.i, d.k, SUM(m.val * d.val * m.val) AS s FROM m JOIN d USING (j) "
    "WHERE m.val > -1 AND d.val <> 0.5 AND m.i BETWEEN 3 AND 20 GROUP BY m.i, d.k",
    "SELECT a.i, b.j AS k, SUM(a.val * b.val) AS s FROM m a JOIN m b ON a.j = b.i "
    "GROUP BY a.i, b.j",
    "SELECT b.j AS k, a.i, SUM(a.val * b.val) AS s, COUNT(*) AS n, SUM(b.val) AS t "
    "FROM m a JOIN m b ON a.j = b.i WHERE a.val <> 1.5 GROUP BY b.j, a.i",
    "SELECT x.i, c.j, SUM(x.s * c.val) AS s FROM (SELECT a.i, b.i AS j, SUM(a.val * b.val) AS s "
    "FROM m a JOIN m b USING (j) GROUP BY a.i, b.i) x JOIN m c ON x.j = c.i GROUP BY x.i, c.j",
    "SELECT a.i, b.i AS k, COUNT(*) AS n FROM m a JOIN m b USING (j) GROUP BY a.i, b.i",
)


def matrix(density: float, special: bool = False) -> sparse.coo_array:
    """30 × 30 with an empty row and column, and sums that cancel; special values on demand."""
    chance = np.random.default_rng(int(density * 100))
    kept = chance.random((30, 30)) < density
    kept[7], kept[:, 11], kept[0, :2], kept[1, :2] = False, False, True, True
    i, j = np.nonzero(kept)
    values = (chance.integers(-2, 3, len(i)) / 2).astype(np.float32)
    values[:4] = 1, -1, 1, 1
    if special:
        values[[2, -1]] = np.nan, np.inf
    return sparse.coo_array((values, (i, j)), shape=kept.shape)


def factors(special: bool = False) -> np.ndarray:
    """A dense matrix that the sparse one is multiplied with."""
    array = (np.random.default_rng(3).integers(-3, 4, (30, 5)) / 2).astype(np.float32)
    if special:
        array[4, 2], array[9, 0] = np.inf, np.nan
    return array


def answers(m: sparse.coo_array, d: np.ndarray) -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Each statement with the rows of einsql and of DuckDB."""
    con, duck = einsql.connect(), duckdb.connect()
    con.execute("SET jit = 'never'")
    con.register("given", m.tocsr(), dims=("i", "j"))
    con.execute("CREATE TENSOR m STORAGE SPARSE AS SELECT i, j, val FROM given")
    con.register("d", d, dims=("j", "k"))
    j, k = np.indices(d.shape).reshape(2, -1)
    for name, columns in {
        "m": {"i": m.coords[0], "j": m.coords[1], "val": m.data},
        "d": {"j": j, "k": k, "val": d.ravel()},
    }.items():
        duck.register("columns", pa.table(columns))
        duck.execute(f"CREATE TABLE {name} AS FROM columns")
    for sql in STATEMENTS:
        mine, theirs = con.execute(sql).fetchall(), duck.execute(sql).fetchall()
        yield sql, sorted(map(repr, mine)), sorted(map(repr, theirs))
    duck.close()


@pytest.fixture(params=["stored elements", "dense copy", "dense copy in blocks"])
def forced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes one of both methods, whichever is predicted to be faster."""
    is_copy = request.param != "stored elements"
    monkeypatch.setattr(StorageChoice, "takes_copy", lambda self, predicted: is_copy)
    monkeypatch.setattr(registry, "SMALL", 0)
    if request.param == "dense copy in blocks":
        for name, value in {"BLOCK": 64, "LEAST": 4, "PIECE": 1, "TESTED": 1}.items():
            monkeypatch.setattr(dense_rows, name, value)


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("density", DENSITIES)
def test_both_methods_answer_as_duckdb(density: float) -> None:
    for sql, mine, theirs in answers(matrix(density), factors()):
        assert mine == theirs, sql


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize("special", [(True, False), (False, True)])
def test_zeros_of_a_copy_meet_no_infinity(special: tuple[bool, bool]) -> None:
    for sql, mine, theirs in answers(matrix(0.3, special[0]), factors(special[1])):
        assert mine == theirs, sql


@pytest.mark.usefixtures("forced")
def test_powers_that_overflow_meet_no_zero() -> None:
    """The square of a finite FLOAT may be infinity, which is multiplied with stored elements."""
    m = sparse.csr_array(np.array([[1e30, 1, 0], [0, 0, 2], [3, 0, 4]], np.float32))
    con = einsql.connect()
    con.register("m", m, dims=("i", "j"))
    sums = con.execute(
        "SELECT a.i, b.j AS k, SUM(a.val * a.val * b.val) AS s FROM m a JOIN m b ON a.j = b.i "
        "GROUP BY a.i, b.j"
    ).fetchall()
    row = {k: s for i, k, s in sums if i == 0}
    assert row == {0: np.inf, 1: np.inf, 2: 2.0}
    assert all(np.isfinite(s) for i, _, s in sums if i)


@pytest.mark.parametrize("tested", [1, 2**40])
def test_elements_whose_sum_is_zero_have_pairs(
    tested: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of 0 may cancel or underflow; only an element without a pair is absent."""
    monkeypatch.setattr(dense_rows, "TESTED", tested)
    left = np.array([[1, 1, 0], [0, 0, 0], [1e-30, 0, 2]], np.float32)
    right = np.array([[1, 0, 1e-30], [-1, 0, 3], [0, 0, 0]], np.float32)
    kept = [left != 0, right != 0]
    pair = []
    for array in (left, right):
        m = sparse.csr_array(array)
        pair.append(Compressed((3, 3), m.indptr, m.indices, m.data))
        np.testing.assert_array_equal(dense_rows.dense_copy(pair[-1]), array)
    there = dense_rows.with_pairs(left @ right != 0, pair[0], pair[1], no_tick)
    np.testing.assert_array_equal(there, kept[0].astype(int) @ kept[1].astype(int) > 0)
    assert not (left @ right)[there].all()


# The choice ----------------------------------------------------------------------------------


def test_the_cheaper_method_is_predicted() -> None:
    """More elements and more columns favour a copy; the columns of a vector never do."""
    for size in (1000, 4000):
        shares = (0.001, 0.01, 0.05, 0.12, 0.25, 0.6)
        chosen = [
            [costs.times_dense(size, size, n, s * size**2, 4).is_dense for s in shares]
            for n in (1, 64, 2000)
        ]
        assert chosen == [
            [False] * 6,
            [False] * 4 + [size > 1000, True],
            [False] * 3 + [True] * 3,
        ]
    pair = [costs.times_sparse((2000,) * 3, (s * 4e6,) * 2, 4).is_dense for s in (0.01, 0.02, 0.12)]
    assert pair == [False, False, True]


def stored(con: einsql.Connection, density: float, size: int = 1000) -> None:
    """Replaces the tensor `t`, whose elements are spread evenly from 0 to 1 by value."""
    count = round(density * size**2)
    flat = np.sort(np.random.default_rng(1).choice(size**2, count, replace=False))
    values = np.random.default_rng(2).permutation(np.arange(count) / count)
    m = sparse.csr_array((values.astype(np.float32), np.divmod(flat, size)), shape=(size, size))
    con.register("given", m, dims=("i", "j"))
    con.execute("CREATE OR REPLACE TENSOR t STORAGE SPARSE AS SELECT i, j, val FROM given")


PRODUCT = "SELECT i, k, SUM(t.val * x.val) AS s FROM t JOIN x USING (j) GROUP BY i, k"
SQUARE = "SELECT a.i, b.j AS k, SUM(a.val * b.val) AS s FROM t a JOIN t b ON a.j = b.i GROUP BY ALL"


def choices(lines: str) -> list[str]:
    """The lines of EXPLAIN with a choice."""
    return [x.strip() for x in lines.splitlines() if x.endswith("% stored")]


def test_explain_shows_the_choice_and_its_reason() -> None:
    con = einsql.connect()
    con.register("x", np.ones((1000, 600), np.float32), dims=("j", "k"))
    shown = {}
    for density in (0.01, 0.2):
        stored(con, density)
        for sql in (PRODUCT, SQUARE):
            shown[density, sql] = choices(str(con.explain(sql)))
    assert shown == {
        (0.01, PRODUCT): ["stored elements: 1 % stored"],
        (0.01, SQUARE): ["stored elements: 1 % stored"],
        (0.2, PRODUCT): ["dense copy: 20 % stored"],
        (0.2, SQUARE): ["dense copy: 20 % stored"],
    }


@pytest.mark.parametrize(
    ("condition", "method", "share"),
    [
        ("t.val < 0.05", "stored elements", 1.0),
        ("t.val < 0.9", "dense copy", 18.0),
        ("t.i < 500", "dense copy", 20.0),
    ],
)
def test_conditions_are_estimated_and_analyze_corrects(
    condition: str, method: str, share: float
) -> None:
    con = einsql.connect()
    con.register("x", np.ones((1000, 1000), np.float32), dims=("j", "k"))
    stored(con, 0.2)
    sql = PRODUCT.replace("GROUP", f"WHERE {condition} GROUP")
    measured = con.execute(f"EXPLAIN ANALYZE {sql}").fetchall()
    for text, error in (
        (str(con.explain(sql)), 0.15),
        ("\n".join(row[0] for row in measured), 0.01),
    ):
        (line,) = choices(text)
        shown, stored_share = line.removesuffix(" % stored").split(": ")
        assert shown == method
        assert float(stored_share) == pytest.approx(share, rel=error)


def test_estimates_of_results_follow_conditions() -> None:
    con = einsql.connect()
    stored(con, 0.2)
    plan = str(con.explain("SELECT i, j, val * 2 AS v FROM t WHERE val < 0.25"))
    (line,) = (x for x in plan.splitlines() if x.startswith("r0  about"))
    assert 4 < float(line[line.index("(") + 1 : line.index(" %")]) < 6  # a quarter of 20 %


def test_copies_that_do_not_fit_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    con = einsql.connect()
    stored(con, 0.3, 300)
    monkeypatch.setattr(StorageChoice, "takes_copy", lambda self, predicted: True)
    copied = con.execute(SQUARE).fetch_numpy()
    monkeypatch.setattr(free_memory, "require", _refuse)
    monkeypatch.setattr(products, "dense_copy", _refuse)
    np.testing.assert_allclose(con.execute(SQUARE).fetch_numpy(), copied, rtol=1e-5)


def test_the_places_of_elements_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks along the diagonal have the pairs of random places, and a tenth of their results."""
    con = einsql.connect()
    blocks = [np.random.default_rng(n).random((60, 60), np.float32) for n in range(10)]
    m = sparse.block_diag(blocks).tocsr()
    con.register("t", m, dims=("i", "j"))
    lines = "\n".join(row[0] for row in con.execute(f"EXPLAIN ANALYZE {SQUARE}").fetchall())
    assert choices(lines) == ["stored elements: 10 % stored"]
    monkeypatch.setattr(StorageChoice, "takes_copy", lambda self, predicted: True)
    con.execute(f"CREATE TENSOR c AS {SQUARE}")
    assert con.execute("SHOW TENSORS").fetchall()[0][6] == "sparse"
    assert abs(con.execute("SELECT i, k, s FROM c").fetch_scipy() - m @ m).max() < 1e-4


def _refuse(*_: object) -> None:
    raise einsql.OperationalError("There is not enough memory")
