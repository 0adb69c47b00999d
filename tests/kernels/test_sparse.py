"""Sums over present elements answer what the reference does, whichever way they are run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

import einsql
from einsql.core import free_memory
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Operand,
    Output,
    Value,
    conj,
)
from einsql.kernels import Runner, compile_node, registry
from einsql.kernels.sparse import compile_sparse, multiply, tiled, tiles
from einsql.storage.sparse_fields import SparseFields
from tests.kernels.compiling import PROPERTY, cache_directory
from tests.kernels.nodes import Case, check, lay_out, no_tick, random_array
from tests.support.samples import combinations, sample, spread

B, I64, H, F, D = DType.BOOLEAN, DType.BIGINT, DType.HALF, DType.FLOAT, DType.DOUBLE

__all__ = ["cache_directory"]  # its fixture serves every test here

WAYS = {
    "tiles": {"WHOLE": 2.0, "PER_POINT": 1e9, "PER_ELEMENT": 1e9},
    "whole": {"WHOLE": 0.0, "PER_POINT": 1e9, "PER_ELEMENT": 1e9},
    "one by one": {"WHOLE": 0.0, "PER_POINT": 0.0, "PER_ELEMENT": 0.0, "PER_FLAG": 0.0},
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes small nodes, cuts small tiles, and leaves garbage where nothing is written."""

    def poisoned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        memory = np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8)
        return memory.view(dtype).reshape(shape)

    for module in (multiply, tiles):
        monkeypatch.setattr(module, "empty", poisoned)
    for module in (multiply, tiles):
        monkeypatch.setattr(module, "TILE", 4)
    monkeypatch.setattr(multiply, "WIDE", 8)
    for least in ("LEAST", "SIDES", "TERMS"):
        monkeypatch.setattr(tiled, least, 1)
    monkeypatch.setattr(tiles, "SPREAD", 1)
    monkeypatch.setattr(multiply, "SPREAD", 0.0)
    for name, value in {"NEAR": 64, "LEAST": 2, "OFTEN": 1}.items():
        monkeypatch.setattr(multiply, name, value)
    monkeypatch.setattr(registry, "SMALL", 0)


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every way is right for all data, whether it pays or not."""
    for name, value in WAYS[request.param].items():
        monkeypatch.setattr(tiled, name, value)
    return str(request.param)


# Random nodes over dense arrays with flags -------------------------------------------------


def flags(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> np.ndarray:
    """Which elements are there: none, all, some, or those of some tiles."""
    if kind in ("none", "all"):
        return np.full(shape, kind == "all")
    some = rng.random(shape) < (0.15 if kind == "few" else 0.6)
    if kind == "tiles":
        block = rng.random([(n + 3) // 4 for n in shape]) < 0.5
        for axis in range(len(shape)):
            block = np.repeat(block, 4, axis)
        return np.asarray(block[tuple(slice(0, n) for n in shape)])
    return some


@st.composite
def joins(draw: st.DrawFn) -> Case:
    """Two operands, each with or without absent elements, summed over what they share."""
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    dtype = draw(st.sampled_from((F, F, D, H)))
    roles = {
        "b": (draw(st.booleans()), "ab", True), "i": (True, "a", True), "k": (True, "ab", False),
        "l": (draw(st.booleans()), "ab", False), "j": (draw(st.booleans()), "b", True),
        "m": (draw(st.booleans()), "b", True), "g": (draw(st.integers(0, 4)) == 0, "a", False),
    }  # fmt: skip
    axes = {
        x: Axis(x, lo := draw(st.integers(-1, 1)), lo + draw(st.sampled_from((2, 5, 9, 13))))
        for x, (there, _, _) in roles.items()
        if there and (x != "b" or dtype is not H)
    }
    operands: list[Operand] = []
    arrays: list[dict[str, np.ndarray]] = []
    guards: list[Expr] = []
    specials = draw(st.integers(0, 2)) == 0
    kinds = draw(
        st.sampled_from(("none", "all", "some", "few", "tiles"))
        .flatmap(lambda k: st.tuples(st.just(k), st.sampled_from(("", "some", "tiles", "few"))))
        .flatmap(lambda pair: st.permutations(list(pair)))
    )
    for n, side in enumerate("ab"):
        labels = draw(st.permutations([x for x in axes if side in roles[x][1]]))
        pad = draw(st.sampled_from((0, 0, 1)))
        keys = tuple(Key(x, axes[x].lo - pad, axes[x].hi) for x in labels)
        fields = [Field("v", dtype), Field("w", D), Field(PRESENT, B)]
        source = Input(f"r{n}", Schema(keys, tuple(fields)))
        operands.append(Operand(source, tuple(labels)))
        shape = source.schema.shape
        data = {f.name: random_array(shape, f.dtype, rng, specials) for f in fields}
        data["w"] = random_array(shape, D, rng)
        data[PRESENT] = flags(rng, shape, kinds[n])
        arrays.append(
            {x: lay_out(a, draw(st.sampled_from((0, 0, 1, 2, 3, 5)))) for x, a in data.items()}
        )
        if kinds[n]:
            guards.append(Value(n, PRESENT, B))
        if draw(st.integers(0, 3)) == 0:
            guards.append(Call("lt", (Const(-2.0, D), Value(n, "w", D)), B))
    values: tuple[Expr, ...] = (Value(0, "v", dtype), Value(1, "v", dtype))
    product: Expr = Call("mul", values[:2] if draw(st.booleans()) else values[::-1], dtype)
    if dtype is not H and draw(st.integers(0, 3)) == 0:
        product = Call("mul", (product, Const(-0.5, dtype)), dtype)
    outputs = [Output("s", (product,), dtype, "sum"), Output(PRESENT, (TRUE,), B, "bool_or")]
    if draw(st.booleans()) and "g" not in axes:
        outputs.append(Output("n", (Const(1, I64),), I64, "sum"))
    keys_ = draw(st.permutations([x for x in axes if roles[x][2]]))
    node = EinSum(
        tuple(draw(st.permutations(list(axes.values())))), tuple(operands),
        conj(*guards), tuple(keys_), tuple(outputs),
    )  # fmt: skip
    return Case(node, tuple(arrays))


def test_random_joins(way: str) -> None:
    fell_back = [0, 0]

    @settings(PROPERTY, max_examples=sample(20, 100))
    @given(joins())
    def run(case: Case) -> None:
        def otherwise() -> Runner:
            fell_back[0] += 1
            return registry._compile_whole(case.node, "never").run

        runner = compile_sparse(case.node, lambda n: compile_node(n, "never").run, otherwise)
        fell_back[1] += 1
        assert runner is not None
        check(case, runner)

    run()
    assert 0 < fell_back[0] < fell_back[1] / 2  # infinities meet absent elements now and then


def test_absent_tiles_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies under absent tiles, and opposite of them, may be anything."""
    for name, value in WAYS["tiles"].items():
        monkeypatch.setattr(tiled, name, value)
    a, b = np.full((8, 8), np.nan), np.full((8, 8), np.inf)
    here = np.zeros((8, 8), np.bool_)
    a[:4, 4:], here[:4, 4:], b[4:] = 2, True, 3
    node = _matmul()
    runner = compile_sparse(node, lambda n: compile_node(n).run, _refuse)
    assert runner is not None
    found = runner(({"v": a, PRESENT: here}, {"v": b}), no_tick)
    np.testing.assert_array_equal(found["s"], np.repeat([24.0, 0.0], 4)[:, None] * np.ones(8))
    np.testing.assert_array_equal(found[PRESENT], np.repeat([True, False], 4)[:, None] * np.ones(8))


def test_nodes_of_another_form_are_left_alone() -> None:
    def matched(**changes: Any) -> bool:
        node = replace(_matmul(), **changes)
        return compile_sparse(node, lambda n: compile_node(n).run, _refuse) is not None

    node = _matmul()
    both = Call("lt", (Value(0, "v", D), Value(1, "v", D)), B)
    raises = Call(
        "eq", (Call("cast", (Value(0, "v", D),), DType.INTEGER), Const(1, DType.INTEGER)), B
    )
    assert matched()
    assert not matched(guard=TRUE)
    assert not matched(guard=both)
    assert not matched(guard=raises)
    assert not matched(outputs=(Output("s", node.outputs[0].args, D, "max"),))


def _matmul() -> EinSum:
    flagged = (Field("v", D), Field(PRESENT, B))
    a = Input("a", Schema((Key("i", 0, 8), Key("k", 0, 8)), flagged))
    b = Input("b", Schema((Key("k", 0, 8), Key("j", 0, 8)), flagged[:1]))
    product = Call("mul", (Value(0, "v", D), Value(1, "v", D)), D)
    return EinSum(
        (Axis("i", 0, 8), Axis("k", 0, 8), Axis("j", 0, 8)),
        (Operand(a, ("i", "k")), Operand(b, ("k", "j"))),
        Value(0, PRESENT, B),
        ("i", "j"),
        (Output("s", (product,), D, "sum"), Output(PRESENT, (TRUE,), B, "bool_or")),
    )


def _refuse() -> Runner:
    raise AssertionError("another kernel was asked for")


# SciPy's arrays in SQL, beside DuckDB on a row per stored element ---------------------------

PRODUCT = "SELECT m.i, d.k, SUM(m.val * d.val) AS v FROM m JOIN d ON m.j = d.j {} GROUP BY m.i, d.k"
STATEMENTS = {
    "times dense": PRODUCT.format(""),
    "dense times": "SELECT d.k, m.j, SUM(d.val * m.val) AS v, COUNT(*) AS n "
                   "FROM d JOIN m ON d.j = m.i GROUP BY m.j, d.k",
    "times vector": "SELECT i, SUM(2 * m.val * w.val) AS v FROM m JOIN w USING (j) GROUP BY i",
    "vector times": "SELECT m.j, SUM(m.val * w.val) AS v FROM m JOIN w ON m.i = w.j GROUP BY m.j",
    "part": PRODUCT.format("WHERE m.i BETWEEN 3 AND 9 AND m.j > 4"),
    "masked": PRODUCT.format("WHERE d.val > 0"),
    "conditions": PRODUCT.format("WHERE m.val > 1"),
    "rows": "SELECT i, SUM(val) AS v, COUNT(*) AS n, AVG(val::DOUBLE) AS a FROM m GROUP BY i",
    "columns": "SELECT j, SUM(val) AS v FROM m GROUP BY j",
    "all": "SELECT SUM(val) AS v, COUNT(*) AS n FROM m",
    "squares": "SELECT i, SUM(val * val) AS v FROM m GROUP BY i",
    "rows gone": "SELECT d.k, SUM(m.val * d.val) AS v, COUNT(*) AS n "
                 "FROM m JOIN d ON m.j = d.j GROUP BY d.k",
    "columns gone": "SELECT m.i, SUM(m.val * d.val) AS v FROM m JOIN d ON m.j = d.j GROUP BY m.i",
    "all gone": "SELECT SUM(m.val * d.val) AS v FROM m JOIN d ON m.j = d.j WHERE d.val > 0",
    "nothing": "SELECT SUM(m.val * d.val) AS v FROM m JOIN d ON m.j = d.j WHERE m.i = 2",
    "twice": "SELECT a.i, b.j, SUM(a.val * b.val) AS v FROM m a JOIN m b ON a.j = b.i "
             "GROUP BY a.i, b.j",
    "elements": "SELECT i, j, val FROM m",
    "a row": "SELECT j, val * 2 AS v FROM m WHERE i = 4",
    "other aggregates": "SELECT i, MIN(val) AS v FROM m GROUP BY i",
}  # fmt: skip
DENSE = ("nothing", "twice", "elements", "a row", "other aggregates")
"""Statements that make all of the matrix dense, or a part of it."""


def matrix(dtype: Any = np.float32) -> sparse.coo_array:
    """13 × 13 with an empty row, an empty column and stored zeros."""
    rng = np.random.default_rng(5)
    kept = rng.random((13, 13)) < 0.3
    kept[2], kept[:, 7], kept[4, 5] = False, False, True
    i, j = np.nonzero(kept)
    values = (rng.integers(-4, 5, len(i)) / 2).astype(dtype)
    return sparse.coo_array((values, (i, j)), shape=kept.shape)


D_ARRAY = (np.random.default_rng(6).integers(-4, 5, (13, 6)) / 2).astype(np.float32)
W_ARRAY = D_ARRAY[:, 0].copy()


Duck = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def duck() -> Iterator[Duck]:
    """DuckDB over the stored elements."""
    con = duckdb.connect()
    m = matrix()
    grid = np.indices(D_ARRAY.shape).reshape(2, -1)
    tables = {
        "m": {"i": m.coords[0], "j": m.coords[1], "val": m.data},
        "d": {"j": grid[0], "k": grid[1], "val": D_ARRAY.ravel()},
        "w": {"j": np.arange(13), "val": W_ARRAY},
    }
    for name, columns in tables.items():
        con.register("columns", pa.table(columns))
        con.execute(f"CREATE TABLE {name} AS FROM columns")
        con.unregister("columns")
    yield lambda sql: con.execute(sql).fetchall()
    con.close()


def connected(m: object, **options: Any) -> einsql.Connection:
    con = einsql.connect()
    con.register("m", m, dims=("i", "j"), **options)
    con.register("d", D_ARRAY, dims=("j", "k"))
    con.register("w", W_ARRAY, dims=("j",))
    return con


@pytest.mark.parametrize(("what", "kind"), combinations(list(STATEMENTS), ["csr", "csc"]))
def test_stored_elements_are_rows(
    kind: str, what: str, duck: Duck
) -> None:  # fmt: skip
    con = connected(matrix().asformat(kind))
    sql = STATEMENTS[what]
    wanted = sorted(duck(sql), key=repr)
    with pytest.MonkeyPatch.context() as patch:
        if what not in DENSE:
            assert "  sparse  " in str(con.explain(sql))
            patch.setattr(SparseFields, "__getitem__", _makes_dense)
        assert sorted(con.execute(sql).fetchall(), key=repr) == wanted
    con.execute("SET sites = 4")
    assert sorted(con.execute(sql).fetchall(), key=repr) == wanted


def _makes_dense(_: object, name: str) -> np.ndarray:
    raise AssertionError(f"{name} was made dense")


CONDITIONS = (
    "a.val > 0",
    "b.val < 1.5",
    "a.val > 0 AND b.val < 1.5 AND a.j <> 3",
    "a.val > 5",
    "a.val + a.j > 4 AND b.val > -9",
)


@pytest.mark.parametrize("condition", spread(CONDITIONS, 8))
def test_conditions_on_one_side_are_flags(way: str, condition: str, duck: Duck) -> None:
    sql = (
        "SELECT a.j AS i, b.j, SUM(a.val * b.val) AS v, COUNT(*) AS n "
        f"FROM d a JOIN d b USING (k) WHERE {condition} GROUP BY a.j, b.j"
    )
    con = connected(matrix())
    assert "  sparse  " in str(con.explain(sql)), way
    assert con.execute(sql).fetchall() == sorted(duck(sql))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    combinations(
        ["csr", "csc", "coo", "bsr", "lil", "dok", "dia"],
        [np.float32, np.float64, np.int64, np.bool_],
    ),
)
def test_formats_and_types(kind: str, dtype: Any) -> None:
    """What is stored exists, and blocks are stored whole."""
    m = matrix(dtype).asformat(kind)
    con = connected(m)
    there = m.tocoo()
    wanted = sorted(zip(*(c.tolist() for c in (*there.coords, there.data)), strict=True))
    assert con.execute("SELECT i, j, val FROM m").fetchall() == wanted
    whole = con.execute("SELECT i, j, val FROM m").fetch_numpy(fill=0)
    np.testing.assert_array_equal(whole, m.toarray())
    sql = PRODUCT.format("").replace("m.val", "m.val::DOUBLE")
    assert "  sparse  " in str(con.explain(sql))
    found = con.execute(sql).fetch_numpy(fill=0)
    np.testing.assert_array_equal(found, m.toarray().astype(np.float64) @ D_ARRAY)


def test_matrices_of_scipys_older_interface_and_arrays_of_other_ranks() -> None:
    con = connected(sparse.csr_matrix(matrix()))
    line = sparse.coo_array((np.array([2.0, 0.0]), (np.array([3, 1]),)), shape=(5,))
    con.register("line", line)
    assert con.execute("SELECT d0, val FROM line").fetchall() == [(1, 0.0), (3, 2.0)]
    con.register("line", line, fill=0)
    assert con.execute("SELECT SUM(val) AS s, COUNT(*) AS n FROM line").fetchall() == [(2.0, 5)]


def test_an_element_stored_twice_is_refused() -> None:
    twice = sparse.coo_array((np.ones(2), (np.array([1, 1]), np.array([0, 0]))), shape=(2, 2))
    csr = sparse.csr_array((np.ones(2), np.array([0, 0]), np.array([0, 0, 2])), shape=(2, 2))
    line = sparse.coo_array((np.ones(2), (np.array([1, 1]),)), shape=(3,))
    con = einsql.connect()
    for array in (twice, csr, csr.T, line):
        with pytest.raises(einsql.InterfaceError, match="more than once") as caught:
            con.register("m", array)
        assert "sum_duplicates()" in str(caught.value.hint)
    csr.sum_duplicates()
    con.register("m", csr)
    assert con.execute("SELECT * FROM m").fetchall() == [(1, 0, 2.0)]


def test_elements_out_of_order_are_put_in_order_without_changing_the_callers() -> None:
    m = sparse.csr_array((np.array([1.0, 2.0]), np.array([2, 0]), np.array([0, 2])), shape=(1, 3))
    con = einsql.connect()
    con.register("m", m, dims=("i", "j"))
    assert con.execute("SELECT j, val FROM m").fetchall() == [(0, 2.0), (2, 1.0)]
    assert m.indices.tolist() == [2, 0]


def test_wrong_arrays_are_refused() -> None:
    con = einsql.connect()
    bad = sparse.csr_array((np.ones(1), np.array([0]), np.array([0, 1])), shape=(1, 2))
    bad.indices[0] = 7
    with pytest.raises(einsql.InterfaceError, match="malformed"):
        con.register("m", bad)
    with pytest.raises(einsql.InterfaceError, match="complex128 is no tensor"):
        con.register("m", matrix(np.complex128))
    with pytest.raises(einsql.InterfaceError, match="3 names"):
        con.register("m", matrix(), dims=("i", "j", "k"))
    with pytest.raises(einsql.InterfaceError, match="cannot be filled with 1"):
        con.register("m", matrix(), fill=1)
    with pytest.raises(einsql.InterfaceError, match="no absent elements to fill"):
        con.register("m", np.ones(2), fill=0)


def test_filled_arrays_have_zeros_where_nothing_is_stored() -> None:
    m = matrix().tocsr()
    con = connected(m, fill=0)
    sql = STATEMENTS["times dense"]
    assert "  sparse  " in str(con.explain(sql))
    np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), m @ D_ARRAY)
    con.register("m", m.toarray(), dims=("i", "j"))  # of the same form, but stored otherwise
    np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), m @ D_ARRAY)
    con.register("m", m, dims=("i", "j"), fill=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparseFields, "__getitem__", _makes_dense)
        np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), m @ D_ARRAY)
    counted = con.execute("SELECT i, SUM(val) AS v, COUNT(*) AS n FROM m GROUP BY i").fetchall()
    assert counted == [(n, s, 13) for n, s in enumerate(m.sum(axis=1).tolist())]
    endless = D_ARRAY.copy()
    endless[7, 0] = np.inf  # nothing is stored in column 7, and 0 · ∞ is NaN
    con.register("d", endless, dims=("j", "k"))
    assert np.isnan(con.execute(sql).fetch_numpy()[:, 0]).all()
    con.register("m", m, dims=("i", "j"))  # now these keys are absent
    with np.errstate(all="ignore"):
        assert not np.isnan(con.execute(sql).fetch_numpy(fill=0)[:, 0]).any()


def test_infinities_that_are_stored_meet_no_absent_element() -> None:
    m = matrix().tocsr()
    m.data[:] = np.inf
    sql = STATEMENTS["masked"]
    found = connected(m).execute(sql).fetch_numpy(fill=0)
    met = (matrix().toarray() != 0) | (m.toarray() != 0)
    wanted = np.where(met.astype(int) @ (D_ARRAY > 0).astype(int) > 0, np.inf, 0)
    np.testing.assert_array_equal(found, wanted)


def test_the_owners_changes_of_values_show() -> None:
    m = matrix().tocsr()
    con = connected(m)
    sql = "SELECT SUM(val) AS s FROM m"
    con.execute(sql)
    m.data[:] = 1
    assert con.execute(sql).fetchall() == [(m.nnz,)]


def test_statements_about_sparse_arrays(tmp_path: Any) -> None:
    m = matrix().tocsc()
    con = connected(m, fill=0)
    stored = m.data.nbytes + m.indices.nbytes + m.indptr.nbytes
    shown = {row[0]: row for row in con.execute("SHOW TENSORS").fetchall()}
    assert shown["m"][1:4] == ("i:13, j:13", "val FLOAT", stored)
    assert [r[:3] for r in con.execute("DESCRIBE m").fetchall()] == [
        ("i", "BIGINT", "13"), ("j", "BIGINT", "13"), ("val", "FLOAT", ""),
    ]  # fmt: skip
    con.execute(f"COPY m TO '{tmp_path}/m.npy'")
    np.testing.assert_array_equal(np.load(tmp_path / "m.npy"), m.toarray())
    con.execute("CREATE TENSOR y AS SELECT i, j, val FROM m WHERE val <> 0")
    assert con.execute("SELECT COUNT(*) AS n FROM y").fetchall() == [(np.count_nonzero(m.data),)]
    with pytest.raises(einsql.ProgrammingError, match="registered array"):
        con.execute("DELETE FROM m")
    con.unregister("m")


def test_sparse_arrays_in_scope_and_in_einsum() -> None:
    m = matrix().tocsr()
    con = einsql.connect()
    found = con.execute("SELECT i, SUM(val) AS s FROM m AS m(i, j) GROUP BY i").fetch_numpy(fill=0)
    np.testing.assert_array_equal(found, m.sum(axis=1))
    np.testing.assert_array_equal(einsql.einsum("ij,jk->ki", m, D_ARRAY), (m @ D_ARRAY).T)
    np.testing.assert_array_equal(einsql.einsum("ij->ji", m), m.toarray().T)
    np.testing.assert_array_equal(einsql.einsum("ij,ij->ij", m[:1], m), (m[:1] * m).toarray())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparseFields, "__getitem__", _makes_dense)
        np.testing.assert_array_equal(einsql.einsum("ij,jk->ik", m, D_ARRAY), m @ D_ARRAY)


def test_what_needs_an_array_beyond_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    con = connected(matrix().tocsr())
    found = con.execute("SELECT i, j, val * 2 AS v FROM m")
    monkeypatch.setattr(free_memory, "NOTICED", 0)
    monkeypatch.setattr(free_memory, "available", lambda: 100)
    with pytest.raises(einsql.OperationalError, match="sparse tensor of 13 × 13 as an array") as e:
        found.fetch_numpy(fill=0)
    assert "Sums of products" in str(e.value.hint)
    assert con.execute(STATEMENTS["times dense"]).fetchone()


def test_long_rows_are_added_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiply, "IN_ORDER", 100)
    m = sparse.csr_array(np.full((1, 1000), 0.1, np.float32))
    con = einsql.connect()
    con.register("m", m, dims=("i", "j"))
    con.register("w", np.ones(1000, np.float32), dims=("j",))
    (found,) = con.execute(STATEMENTS["times vector"].replace("2 * ", "")).fetch_numpy()
    exact = 1000 * np.float64(np.float32(0.1))
    assert abs(found - exact) <= 25 * np.finfo(np.float32).eps * exact
