"""Integers and counts that BLAS multiplies, only where that is exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from einsql.kernels import packed
from einsql.kernels.kernel import Tick
from einsql.kernels.packed import factors, layout

SIDE, TERMS = 40, 100
Join = Callable[[np.ndarray, np.ndarray], np.ndarray]


@pytest.fixture(autouse=True)
def _small_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "AREA", 1)
    monkeypatch.setattr(packed, "LEAST", 1)


@pytest.fixture
def multiplied(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The types in which was multiplied."""
    seen: list[str] = []
    found = factors.FactorProduct.run

    def noted(
        self: factors.FactorProduct, arrays: Any, dtype: np.dtype, out: np.ndarray, tick: Tick
    ) -> None:
        seen.append(str(dtype))
        found(self, arrays, dtype, out, tick)

    monkeypatch.setattr(factors.FactorProduct, "run", noted)
    return seen


def _connected(a: np.ndarray, b: np.ndarray) -> einsql.Connection:
    con = einsql.connect()
    con.execute("SET fallback = off")
    con.register("a", a, dims=("i", "k"))
    con.register("b", b, dims=("k", "j"))
    return con


SUM = "SELECT i, j, SUM({0}) AS val FROM a JOIN b USING (k) GROUP BY i, j"


@pytest.mark.parametrize(
    ("most", "wanted"),
    [(2**8, ["float32"]), (2**9, ["float64"]), (2**23, ["float64"]), (2**24, [])],
)
def test_the_type_in_which_every_sum_is_exact(
    most: int, wanted: list[str], multiplied: list[str]
) -> None:
    rng = np.random.default_rng(most)
    a, b = (rng.integers(-most, most + 1, s) for s in ((SIDE, TERMS), (TERMS, SIDE)))
    a[0], b[:, 0], a[1] = most, most, -most
    got = _connected(a, b).execute(SUM.format("a.val * b.val")).fetch_numpy()
    np.testing.assert_array_equal(got, a @ b)
    assert got.dtype == np.int64
    assert multiplied == wanted


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_narrow_types_in_any_layout(dtype: type, multiplied: list[str]) -> None:
    rng = np.random.default_rng(0)
    a: np.ndarray = rng.integers(-9, 10, (TERMS, SIDE)).astype(dtype).T
    b: np.ndarray = rng.integers(-9, 10, (2 * TERMS, SIDE)).astype(dtype)[::-2]
    got = _connected(a, b).execute(SUM.format("a.val * b.val")).fetch_numpy()
    np.testing.assert_array_equal(got, a.astype(np.int64) @ b.astype(np.int64))
    assert multiplied == ["float32"]


def test_overflow_is_an_error_as_ever() -> None:
    a = np.full((SIDE, TERMS), 2**31 - 1, np.int32)
    con = _connected(a, a.T.copy())
    with pytest.raises(einsql.DataError, match="Overflow in multiplication of INTEGER"):
        con.execute(SUM.format("a.val * b.val"))
    a = np.full((SIDE, TERMS), 2**30)
    with pytest.raises(einsql.DataError, match="Overflow in addition of BIGINT"):
        _connected(a, a.T.copy()).execute(SUM.format("a.val * b.val"))


ANY = "SELECT i, j, {0} AS val FROM a JOIN b USING (k) GROUP BY i, j"


@pytest.mark.parametrize(
    ("text", "numpy"),
    [
        ("COUNT(*) FILTER (WHERE a.val AND NOT b.val)", lambda a, b: (a & ~b).sum(1)),
        ("SUM(CASE WHEN a.val AND b.val THEN k ELSE 0 END)",
         lambda a, b: ((a & b) * np.arange(TERMS)[:, None]).sum(1)),
    ],
)  # fmt: skip
def test_counts(text: str, numpy: Join, multiplied: list[str]) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.random((SIDE, TERMS)) < 0.1, rng.random((TERMS, SIDE)) < 0.1
    a[3], b[:, 4], a[5], b[:, 6] = False, False, True, True
    got = _connected(a, b).execute(ANY.format(text)).fetch_numpy(fill=0)
    np.testing.assert_array_equal(got, numpy(a[:, :, None], b[None]))
    assert multiplied


def test_what_is_no_product_is_not_taken_for_one(multiplied: list[str]) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-9, 10, s) for s in ((SIDE, TERMS), (TERMS, SIDE)))
    con = _connected(a, b)
    cases: tuple[tuple[str, Join], ...] = (
        ("SUM(a.val + b.val)", lambda x, y: x + y),
        ("SUM(CAST(CAST(a.val * b.val AS BOOLEAN) AS INTEGER))", lambda x, y: (x * y) != 0),
        ("SUM(CASE WHEN a.val = b.val THEN 1 ELSE 0 END)", lambda x, y: x == y),
    )
    for text, terms in cases:
        got = con.execute(ANY.format(text)).fetch_numpy()
        np.testing.assert_array_equal(got, terms(a[:, :, None], b[None]).sum(1), err_msg=text)
    assert not multiplied


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("BOOL_OR(a.val > 0 AND b.val > 0)", lambda some: some),
        ("MAX(CASE WHEN a.val > 0 AND b.val > 0 THEN 1 ELSE 0 END)", lambda some: some * 1),
        ("MAX(CASE WHEN b.val > 0 AND a.val > 0 THEN 7 ELSE 0 END)", lambda some: some * 7),
        ("COALESCE(BOOL_OR(a.val > 0) FILTER (WHERE b.val > 0), false)", lambda some: some),
    ],
)
def test_flags_are_tested_by_a_product(
    output: str, expected: Callable[[np.ndarray], np.ndarray], multiplied: list[str]
) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s, np.float32) - 1 for s in ((SIDE, TERMS), (TERMS, SIDE)))
    a[0], b[:, 3], a[4, 7] = -1, -1, np.nan  # NaN is greater than any number
    some: np.ndarray = np.any((~(a <= 0))[:, :, None] & (b > 0)[None], axis=1)
    assert 0 < some.mean() < 1
    got = _connected(a, b).execute(SUM.format("x").replace("SUM(x)", output)).fetch_numpy()
    np.testing.assert_array_equal(got, expected(some))
    assert multiplied == ["float32"]


@pytest.mark.parametrize(
    "output",
    [
        "MAX(CASE WHEN a.val > 0 AND b.val > 0 THEN -1 ELSE 0 END)",
        "MAX(CASE WHEN a.val > 0 AND b.val > 0 THEN 1 ELSE 2 END)",
        "MIN(CASE WHEN a.val > 0 AND b.val > 0 THEN 1 ELSE 0 END)",
        "BOOL_OR(a.val > 0 OR b.val > 0)",
        "BOOL_AND(a.val > -5 AND b.val > -5)",
        "MAX(CASE WHEN a.val > 0 THEN 1 ELSE 0 END) FILTER (WHERE b.val > 9)",
    ],
)
def test_other_extremes_are_not_tested_by_a_product(output: str, multiplied: list[str]) -> None:
    a, b = (np.random.default_rng(n).standard_normal((SIDE, SIDE)) for n in (1, 2))
    con = _connected(a, b)
    sql = SUM.format("x").replace("SUM(x)", output)
    rows = con.execute(sql).fetchall()
    duck = duckdb.connect()
    for name, keys, array in (("a", "ik", a), ("b", "kj", b)):
        at = np.indices(array.shape).reshape(2, -1)
        table = pa.table({keys[0]: at[0], keys[1]: at[1], "val": array.reshape(-1)})
        duck.register("elements", table)
        duck.execute(f"CREATE TABLE {name} AS FROM elements")
    assert rows == duck.sql(f"{sql} ORDER BY i, j").fetchall()
    assert not multiplied
