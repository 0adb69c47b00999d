"""COVAR, CORR, REGR_…, SKEWNESS, KURTOSIS and bits, as in DuckDB over rows, at several sites."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from einsql.sql.functions.aggregate_functions import OF_MOMENTS, OF_PAIRS
from tests.support.samples import combinations, sample

KINDS = {"float32": "FLOAT", "float64": "DOUBLE", "int32": "INTEGER", "int64": "BIGINT"}
FORMS = (
    "SELECT x.g, {} AS v FROM x JOIN y USING (g, k) GROUP BY x.g",
    "SELECT {} AS v FROM x JOIN y USING (g, k)",
    "SELECT x.k, {} FILTER (WHERE x.val > 0.5 AND y.val < 4) AS v "
    "FROM x JOIN y USING (g, k) GROUP BY x.k",
    "SELECT x.g, x.k, {} OVER (PARTITION BY x.g) AS v FROM x JOIN y USING (g, k)",
)
VALUES = (0.1, 1, 2, 3.5, -4, 100, math.nan, math.inf)


@pytest.fixture(scope="module")
def con() -> Iterator[einsql.Connection]:
    with einsql.connect(config={"jit": "wait", "fallback": "off"}) as connection:
        yield connection


def answers(con: einsql.Connection, arrays: dict[str, np.ndarray], query: str) -> tuple[Any, Any]:
    """The rows of einsql and of DuckDB over one row per element."""
    with duckdb.connect() as duck:
        for name, array in arrays.items():
            con.register(name, array, dims=("g", "k"))
            kind = KINDS[array.dtype.name]
            duck.execute(f"CREATE TABLE {name} (g BIGINT, k BIGINT, val {kind})")
            rows = [(g, k, v.item()) for (g, k), v in np.ndenumerate(array)]
            duck.executemany(f"INSERT INTO {name} VALUES (?, ?, ?)", rows)
        try:
            expected = duck.execute(query).fetchall()
        except duckdb.OutOfRangeException:
            expected = None
        rows = con.execute(query).fetchall()
        return in_order(rows), expected if expected is None else in_order(expected)


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: row[:-1])


def same(left: Any, right: Any, error: float = 1e-9) -> bool:
    if left is None or right is None:
        return left is right
    return math.isclose(left, right, rel_tol=error, abs_tol=error / 100) or left != left != right


@settings(max_examples=sample(12, 100))
@given(
    st.sampled_from(sorted(OF_PAIRS)),
    st.sampled_from(FORMS),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from((1, 2, 3, 5)),
    st.integers(1, 4),
    st.integers(2, len(VALUES)),
    st.integers(0, 999),
)
def test_statistics_of_pairs(
    con: einsql.Connection, name: str, form: str, kind: str, sites: int, k: int, few: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    finite = kind.startswith("int")
    x, y = (random.choice(VALUES[: min(few, 6) if finite else few], (3, k)) for _ in "xy")
    con.execute(f"SET sites = {sites}")
    arrays = {"x": x.astype(kind), "y": y.astype("float64" if kind == "float32" else kind)}
    answer, expected = answers(con, arrays, form.format(f"{name}(y.val, x.val)"))
    if expected is not None:
        assert all(same(a[-1], b[-1]) for a, b in zip(answer, expected, strict=True))


@settings(max_examples=sample(12, 100))
@given(
    st.sampled_from(sorted(OF_MOMENTS)),
    st.sampled_from(FORMS),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from((1, 2, 3, 5)),
    st.integers(1, 9),
    st.integers(0, 999),
)
def test_statistics_of_moments(
    con: einsql.Connection, name: str, form: str, kind: str, sites: int, k: int, seed: int
) -> None:
    """DuckDB sums powers of the values, so few digits agree."""
    form = (
        form.replace("FILTER (WHERE x.val > 0.5 AND y.val < 4)", "") if name == "geomean" else form
    )
    random = np.random.default_rng(seed)
    arrays = {n: random.choice((0.5, 1, 2, 3.5, 9), (3, k)).astype(kind) for n in "xy"}
    con.execute(f"SET sites = {sites}")
    answer, expected = answers(con, arrays, form.format(f"{name}(y.val + 1)"))
    assert all(same(a[-1], b[-1], 1e-6) for a, b in zip(answer, expected, strict=True))


@settings(max_examples=sample(10, 100))
@given(
    st.sampled_from(("bit_and", "bit_or", "bit_xor")),
    st.sampled_from(FORMS),
    st.sampled_from(("int32", "int64")),
    st.sampled_from((1, 2, 3, 5)),
    st.integers(0, 999),
)
def test_bits(
    con: einsql.Connection, name: str, form: str, kind: str, sites: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    arrays = {n: random.integers(-9, 99, (3, 4)).astype(kind) for n in "xy"}
    con.execute(f"SET sites = {sites}")
    answer, expected = answers(con, arrays, form.format(f"{name}(y.val)"))
    assert answer == expected


@pytest.mark.parametrize(
    ("jit", "name"), combinations(["never", "wait", "always"], ["bit_and", "bit_or", "bit_xor"])
)
def test_bits_in_every_kernel(jit: str, name: str) -> None:
    """Rows, columns, all, segments and pairs of operands, larger than a block."""
    ufunc: Any = getattr(np, name.replace("bit", "bitwise"))
    a = np.random.default_rng(3).integers(-100, 100, (300, 400)).astype(np.int32)
    with einsql.connect(config={"jit": jit}) as con:
        con.register("a", a, ("i", "j"))
        for key, axis in (("i", 1), ("j", 0)):
            result = con.execute(f"SELECT {key}, {name}(val) AS val FROM a GROUP BY {key}")
            np.testing.assert_array_equal(result.fetch_numpy(), ufunc.reduce(a, axis))
        assert con.execute(f"SELECT {name}(val) FROM a").fetchone() == (ufunc.reduce(a, None),)
        thirds = con.execute(f"SELECT j // 4 AS g, {name}(val) AS val FROM a GROUP BY j // 4")
        expected = ufunc.reduce(a.reshape(300, 100, 4), axis=(0, 2))
        np.testing.assert_array_equal(thirds.fetch_numpy(), expected)
        pairs = con.einsum("ij,jk->ik", [a[:50, :60], a[:60, :40]], combine="xor", reduce=name)
        wanted = ufunc.reduce(a[:50, :60, None] ^ a[None, :60, :40], 1)
        np.testing.assert_array_equal(pairs, wanted)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("CORR(val > 0, val)", "does not accept BOOLEAN"),
        ("SKEWNESS(val > 0)", "does not accept BOOLEAN"),
        ("BIT_AND(val)", "does not accept DOUBLE"),
        ("BIT_XOR(val > 0)", "does not accept BOOLEAN"),
    ],
)
def test_wrong_arguments(con: einsql.Connection, call: str, message: str) -> None:
    con.execute("SET sites = 1")
    con.register("x", np.ones((2, 2)), dims=("g", "k"))
    with pytest.raises(einsql.Error, match=message) as raised:
        con.execute(f"SELECT {call} FROM x")
    assert raised.value.position is not None
