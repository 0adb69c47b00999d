"""EINSUM over other operations than sums of products, as DuckDB over rows, at several sites."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from tests.support.samples import sample

COMBINE = {
    "mul": "{} * {}", "add": "{} + {}", "subtract": "{} - {}", "div": "{} / {}",
    "greatest": "greatest({}, {})", "least": "least({}, {})", "atan2": "atan2({}, {})",
    "lt": "{} < {}", "eq": "{} = {}", "power": "power({}, {})",
}  # fmt: skip
REDUCE = (
    "sum",
    "product",
    "min",
    "max",
    "avg",
    "count",
    "var_pop",
    "stddev",
    "bool_or",
    "bool_and",
)
SPECS = {
    "ij,jk->ik": ("a.i, b.j", "a.j = b.i"),
    "ij,jk->": ("", "a.j = b.i"),
    "ij,kj->ki": ("b.i, a.i", "a.j = b.j"),
    "ij,ij->ij": ("a.i, a.j", "a.i = b.i AND a.j = b.j"),
    "ij,ji->i": ("a.i", "a.i = b.j AND a.j = b.i"),
    "ij,kl->l": ("b.j", "true"),
}
TYPES = (np.float32, np.float64, np.int32)


@pytest.fixture(scope="module")
def con() -> Iterator[einsql.Connection]:
    with einsql.connect(config={"jit": "wait"}) as connection:
        yield connection


def operands(seed: int, dtype: type) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(1, 9, (4, 4)).astype(dtype) / dtype(2 if dtype != np.int32 else 1)
            for _ in "ab"]  # fmt: skip


def same(left: Any, right: Any) -> bool:
    if left is None or right is None or isinstance(left, bool):
        return left is right or left == right
    return math.isclose(left, right, rel_tol=2e-5, abs_tol=1e-6) or left != left != right


def rows_of(arrays: list[np.ndarray], query: str) -> list[tuple[Any, ...]]:
    """The rows of a query in DuckDB over one row per element."""
    with duckdb.connect() as duck:
        for name, array in zip("ab", arrays, strict=True):
            kind = {"f": "FLOAT" if array.itemsize == 4 else "DOUBLE", "i": "INTEGER"}
            duck.execute(f"CREATE TABLE {name} (i BIGINT, j BIGINT, val {kind[array.dtype.kind]})")
            rows = [(i, j, v.item()) for (i, j), v in np.ndenumerate(array.astype(array.dtype))]
            duck.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
        return sorted(duck.execute(query).fetchall())


@settings(max_examples=sample(10, 100))
@given(
    st.sampled_from(sorted(COMBINE)), st.sampled_from(REDUCE), st.sampled_from(sorted(SPECS)),
    st.sampled_from(TYPES), st.sampled_from((1, 2, 3, 5)), st.integers(0, 99),
)  # fmt: skip
def test_agrees_with_duckdb(
    con: einsql.Connection,
    combine: str,
    reduce: str,
    spec: str,
    dtype: type,
    sites: int,
    seed: int,
) -> None:
    truth = combine in ("lt", "eq")
    if truth != reduce.startswith("bool") and reduce not in ("count", "min", "max"):
        reduce = "bool_or" if truth else "sum"
    arrays = operands(seed, dtype)
    for name, array in zip("ab", arrays, strict=True):
        con.register(name, array, dims=("i", "j"))
    con.execute(f"SET sites = {sites}")
    keys, where = SPECS[spec]
    value = COMBINE[combine].format("a.val", "b.val")
    query = f"SELECT {keys}{', ' if keys else ''}{reduce}({value}) AS val FROM a, b WHERE {where}"
    expected = rows_of(arrays, query + (f" GROUP BY {keys}" if keys else ""))
    call = f"EINSUM('{spec}', a, b, combine := '{combine}', reduce := '{reduce}')"
    answer = sorted(con.execute(f"SELECT * FROM {call}").fetchall())
    assert [r[:-1] for r in answer] == [r[:-1] for r in expected]
    assert all(same(x[-1], y[-1]) for x, y in zip(answer, expected, strict=True))
    array = con.einsum(spec, arrays, combine=combine, reduce=reduce)
    flat = array[None] if array.ndim == 0 else array.reshape(-1)
    ends = [math.nan if r[-1] is None else r[-1] for r in expected]
    assert all(same(x, y) for x, y in zip(flat.tolist(), ends, strict=True))


def test_semirings_over_several_operands() -> None:
    """Shortest paths over two edges, reachability, and the log-semiring."""
    d = np.array([[0.0, 3, np.inf], [np.inf, 0, 1], [2, np.inf, 0]])
    paths = einsql.einsum("ij,jk,kl->il", d, d, d, combine="add", reduce="min")
    expected = (d[:, :, None, None] + d[None, :, :, None] + d[None, None]).min((1, 2))
    np.testing.assert_array_equal(paths, expected)
    edges = np.isfinite(d)
    np.testing.assert_array_equal(
        einsql.einsum("ij,jk->ik", edges, edges, combine="and", reduce="bool_or"), edges @ edges
    )
    logs = einsql.einsum("ij,jk->ik", d, d, combine="add", reduce="logsumexp")
    with np.errstate(invalid="ignore"):  # some processors' BLAS flags products with infinity
        expected = np.exp(d) @ np.exp(d)
    np.testing.assert_allclose(np.exp(logs), expected)


def test_a_sparse_operand_has_zeros() -> None:
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.array([[0.0, 2, 0], [0, 0, 3]])
    other = np.arange(6.0).reshape(3, 2)
    result = einsql.einsum("ij,jk->ik", sparse.csr_array(dense), other, combine="add", reduce="min")
    np.testing.assert_array_equal(result, (dense[:, :, None] + other[None]).min(1))


def test_results_over_no_values() -> None:
    nothing = np.ones((2, 0))
    for reduce, expected in {
        "sum": 0, "product": 1, "min": np.inf, "max": -np.inf, "avg": np.nan, "count": 0,
        "logsumexp": -np.inf, "stddev": np.nan, "median": np.nan, "mode": np.nan, "last": np.nan,
    }.items():  # fmt: skip
        result = einsql.einsum("ij->i", nothing, reduce=reduce)
        np.testing.assert_array_equal(result, np.full(2, expected))
    with pytest.raises(einsql.DataError, match="MIN of no values has no result in INTEGER"):
        einsql.einsum("ij->i", nothing.astype(np.int32), reduce="min")


@pytest.mark.parametrize(
    ("options", "message", "at"),
    [
        ("combine := 'adds'", 'Did you mean "add"', "combine"),
        ("combine := 'exp'", "EINSUM cannot combine by 'exp'", "combine"),
        ("reduce := 'arg_min'", "EINSUM cannot reduce by 'arg_min'", "reduce"),
        ("reduce := 'quantile_cont'", "EINSUM cannot reduce by 'quantile_cont'", "reduce"),
        ("reduce := 3", "EINSUM has no option reduce := 3", "reduce"),
        ("combined := 'add'", "combine := 'add', reduce := 'min' set", "combined"),
        ("reduce := 'bool_or'", "needs a BOOLEAN", "EINSUM"),
        ("combine := 'bitand'", "does not accept", "EINSUM"),
    ],
)
def test_wrong_operations(con: einsql.Connection, options: str, message: str, at: str) -> None:
    con.execute("SET sites = 1")
    con.register("a", np.ones((2, 2)), dims=("i", "j"))
    sql = f"SELECT * FROM EINSUM('ij,jk->ik', a, a, {options})"
    with pytest.raises(einsql.Error, match=message) as raised:
        con.execute(sql)
    assert raised.value.position is not None
    assert sql[raised.value.position :].startswith(at)


def test_functions_of_the_user(con: einsql.Connection) -> None:
    a, b = np.random.default_rng(3).random((2, 5, 5))
    for sites in (1, 3):
        con.execute(f"SET sites = {sites}")
        con.register("a", a, dims=("i", "j"))
        con.register("b", b, dims=("j", "k"))
        con.execute("CREATE OR REPLACE FUNCTION square_of(x) AS x * x")
        con.execute(
            "CREATE OR REPLACE FUNCTION norm(x, y, p := 1) AS sqrt(square_of(x) + p * square_of(y))"
        )
        call = "EINSUM('ij,jk->ik', a, b, combine := 'norm', reduce := 'min')"
        norms = np.sqrt(a[:, :, None] ** 2 + b[None] ** 2)
        result = con.execute(f"SELECT * FROM {call}").fetch_numpy()
        np.testing.assert_allclose(result, norms.min(1))
        array = con.einsum("ij,jk->ik", [a, b], combine="norm", reduce="min")
        np.testing.assert_allclose(array, norms.min(1))
        loss = f"CREATE OR REPLACE TEMP VIEW loss AS SELECT SUM(val) AS val FROM {call}"
        con.execute(loss)
        slope = con.execute("SELECT * FROM GRADIENT(loss, a)").fetch_numpy()
        least = norms == norms.min(1, keepdims=True)
        np.testing.assert_allclose(slope, (least * a[:, :, None] / norms).sum(2))
        con.execute("DROP VIEW loss")
        con.execute("CREATE OR REPLACE FUNCTION norm(x, y) AS x - y")  # plans are made anew
        result = con.execute(f"SELECT * FROM {call}").fetch_numpy()
        np.testing.assert_allclose(result, (a[:, :, None] - b[None]).min(1))
        array = con.einsum("ij,jk->ik", [a, b], combine="norm", reduce="min")
        np.testing.assert_allclose(array, (a[:, :, None] - b[None]).min(1))


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("(x) AS x + 1", "takes 1 argument, not 2"),
        ("(x, y) AS SUM(x) + y", "An aggregate in a function of EINSUM"),
        ("(x, y) AS SUM(x) OVER () + y", "in a function of EINSUM"),
        ("(x, y) AS x + (SELECT 1) + y", "A subquery in a function of EINSUM"),
        ("(x, y) AS TABLE SELECT 1 AS a", "is a table macro"),
    ],
)
def test_functions_that_combine_no_values(
    con: einsql.Connection, definition: str, message: str
) -> None:
    con.execute("SET sites = 1")
    con.register("a", np.ones((2, 2)), dims=("i", "j"))
    con.execute(f"CREATE OR REPLACE MACRO wrong{definition}")
    with pytest.raises(einsql.Error, match=message) as raised:
        con.execute("SELECT * FROM EINSUM('ij,jk->ik', a, a, combine := 'wrong')")
    assert raised.value.position is not None


def test_an_unreduced_result_is_a_sum(con: einsql.Connection) -> None:
    con.execute("SET sites = 2")
    con.execute("SET mesh = 'data=2'")
    con.register("a", np.arange(16.0).reshape(4, 4), dims=("i", "j"))
    spec = "i j_data, j_data k -> i k{}"
    call = f"EINSUM('{spec}', a, a, sharded := true, combine := 'add', reduce := 'min')"
    a = np.arange(16.0).reshape(4, 4)
    expected = (a[:, :, None] + a[None]).min(1)
    rows = con.execute(f"SELECT i, k, val FROM {call.format('')} ORDER BY i, k").fetchall()
    assert [r[2] for r in rows] == expected.reshape(-1).tolist()
    with pytest.raises(einsql.NotSupportedError, match="Only a sum of products stays unreduced"):
        con.execute(f"SELECT * FROM {call.format(' _data')}")
    con.execute("SET mesh = ''")


def test_another_connection_replaces_a_function(tmp_path: Path) -> None:
    path = str(tmp_path / "f.db")
    with einsql.connect(path) as one, einsql.connect(path) as other:
        one.execute("CREATE FUNCTION f(x DOUBLE, y DOUBLE) AS x + y")
        ones = np.ones(3)
        assert other.einsum("i,i->", [ones, ones], combine="f") == 6
        one.execute("CREATE OR REPLACE FUNCTION f(x DOUBLE, y DOUBLE) AS x * 10")
        assert other.einsum("i,i->", [ones, ones], combine="f") == 30
