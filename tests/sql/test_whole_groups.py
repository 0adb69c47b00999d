"""Quantiles, MODE, DISTINCT, FIRST and LAST, as in DuckDB over rows, at several sites."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from tests.support.plan_files import edit, export
from tests.support.samples import sample

KINDS = {"float32": "FLOAT", "float64": "DOUBLE", "int32": "INTEGER", "int64": "BIGINT"}
CALLS = (
    "MEDIAN(x.val)", "QUANTILE_CONT(x.val, 0.25)", "QUANTILE_CONT(x.val + y.val, 0.75)",
    "QUANTILE_DISC(x.val, 0.3)", "QUANTILE(x.val, 1)", "COUNT(DISTINCT x.val)",
    "COUNT(DISTINCT x.k)", "SUM(DISTINCT x.val)", "AVG(DISTINCT x.val)", "MAX(DISTINCT x.val)",
    "PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY x.val)", "QUANTILE_DISC(x.val > 1, 0.6)",
    "MEDIAN(x.val > 0)", "MEDIAN(NULLIF(x.val, 1))", "AVG(DISTINCT x.k * 0.1)",
    "COUNT(DISTINCT NULLIF(x.val, 1))",
)  # fmt: skip
FORMS = (
    "SELECT x.g, {} AS v FROM x JOIN y USING (g, k) GROUP BY x.g",
    "SELECT {} AS v FROM x JOIN y USING (g, k)",
    "SELECT x.k, {} FILTER (WHERE x.val > 0.5 AND y.val < 4) AS v "
    "FROM x JOIN y USING (g, k) GROUP BY x.k",
    "SELECT x.g, x.k, {} OVER (PARTITION BY x.g) AS v FROM x JOIN y USING (g, k)",
    "SELECT n.val AS b, {} AS v FROM x JOIN y USING (g, k) JOIN n ON n.k = x.k GROUP BY n.val",
    "SELECT x.k // 2 AS h, {} AS v FROM x JOIN y USING (g, k) WHERE x.val <> 3.5 GROUP BY x.k // 2",
)
VALUES = (0.25, 1, 2, 3.5, -4, 1, math.nan, math.inf)


@pytest.fixture(scope="module")
def con() -> Iterator[einsql.Connection]:
    config = {"jit": "wait", "fallback": "off", "float_math": "double"}
    with einsql.connect(config=config) as connection:
        yield connection


def answers(con: einsql.Connection, arrays: dict[str, np.ndarray], query: str) -> tuple[Any, Any]:
    """The rows of einsql and of DuckDB over one row per element."""
    with duckdb.connect() as duck:
        for name, array in arrays.items():
            dims = ("g", "k")[-array.ndim :]
            con.register(name, array, dims=dims)
            kind = KINDS[array.dtype.name]
            keys = ", ".join(f"{d} BIGINT" for d in dims)
            duck.execute(f"CREATE TABLE {name} ({keys}, val {kind})")
            rows = [(*at, v.item()) for at, v in np.ndenumerate(array)]
            marks = ", ".join("?" * (array.ndim + 1))
            duck.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        return in_order(con.execute(query).fetchall()), in_order(duck.execute(query).fetchall())


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: row[:-1])


def drawn(kind: str, few: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    few = min(few, 6) if kind.startswith("int") else few
    x, y = (random.choice(VALUES[:few], (3, 5)) for _ in "xy")
    return {"x": x.astype(kind), "y": y.astype("float64"), "n": random.integers(0, 3, 5)}


def same(left: Any, right: Any) -> bool:
    """Equal values of one type; quotients and interpolated values may differ in the last digit."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=4e-16) or (left != left and right != right)
    return type(left) is type(right) and left == right


@settings(max_examples=sample(15, 600))
@given(
    st.sampled_from(CALLS),
    st.sampled_from(FORMS),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from((1, 2, 3, 5)),
    st.integers(2, len(VALUES)),
    st.integers(0, 999),
)
def test_equal_to_duckdb(
    con: einsql.Connection, name: str, form: str, kind: str, sites: int, few: int, seed: int
) -> None:
    if "OVER" in form and "WITHIN" in name:
        name = "MEDIAN(x.val)"
    con.execute(f"SET sites = {sites}")
    answer, expected = answers(con, drawn(kind, few, seed), form.format(name))
    assert len(answer) == len(expected)
    for mine, theirs in zip(answer, expected, strict=True):
        assert all(map(same, mine, theirs)), (mine, theirs)


@pytest.mark.parametrize("sites", [1, 3])
def test_approximate_aggregates_are_exact(con: einsql.Connection, sites: int) -> None:
    con.execute(f"SET sites = {sites}")
    x = np.array([[1, 2, 3, 4, math.nan, math.inf], [5, 5, 2, 1, 1, 0]], np.float32)
    query = "SELECT g, {}(val, 0.25) AS q, COUNT(DISTINCT val) AS c FROM x {} GROUP BY g"
    _, expected = answers(con, {"x": x}, query.format("QUANTILE_CONT", "WHERE isfinite(val)"))
    approximate = (
        "SELECT g, APPROX_QUANTILE(val, 0.25) AS q, APPROX_COUNT_DISTINCT(val) AS c FROM x"
    )
    cursor = con.execute(f"{approximate} GROUP BY g")
    assert [d[1] for d in cursor.description or ()] == ["BIGINT", "DOUBLE", "BIGINT"]
    assert cursor.fetchall() == [(0, expected[0][1], 6), (1, expected[1][1], 4)]
    con.register("n", np.arange(8, dtype=np.int32).reshape(2, 4), dims=("g", "k"))
    halves = con.execute("SELECT g, APPROX_QUANTILE(val, 0.5) AS q FROM n GROUP BY g")
    assert [d[1] for d in halves.description or ()] == ["BIGINT", "INTEGER"]
    assert halves.fetchall() == [(0, 2), (1, 6)]  # 1.5 and 5.5, rounded to even as by CAST
    with pytest.raises(einsql.ProgrammingError, match="does not accept BOOLEAN"):
        con.execute("SELECT APPROX_QUANTILE(val > 1, 0.5) FROM n")


def test_decimals_and_parameters(con: einsql.Connection) -> None:
    con.execute("SET sites = 2")
    query = (
        "SELECT g, MEDIAN(val * 0.5)::DOUBLE AS m, QUANTILE_CONT(val * -0.25, 0.3)::DOUBLE AS q, "
        "QUANTILE_DISC(k * 0.5, 0.7)::DOUBLE AS d, MODE(k // 4 * 0.5)::DOUBLE AS o, "
        "SUM(DISTINCT k // 2 * 0.5)::DOUBLE AS s "
        "FROM x GROUP BY g"
    )
    answer, expected = answers(con, {"x": np.arange(18, dtype=np.int32).reshape(3, 6) % 7}, query)
    assert answer == expected
    for fraction in (0.25, 0.75, 0.25):
        (row,) = con.execute("SELECT QUANTILE_CONT(k, ?) FROM x WHERE g = 0", [fraction]).fetchall()
        assert row == (5 * fraction,)


@settings(max_examples=sample(4, 100))
@given(st.sampled_from(FORMS[:3]), st.sampled_from((1, 2, 3, 5)), st.integers(0, 999))
def test_ties_of_mode_are_the_least_value(
    con: einsql.Connection, form: str, sites: int, seed: int
) -> None:
    arrays = drawn("float64", 6, seed)
    con.execute(f"SET sites = {sites}")
    modes, _ = answers(con, arrays, form.format("MODE(x.val)"))
    with duckdb.connect() as duck:
        for name, a in arrays.items():
            duck.register(name, rows_of(a))
        listed = in_order(duck.execute(form.format("LIST(x.val)")).fetchall())
    assert len(modes) == len(listed)
    for (*keys, mode), (*groups, values) in zip(modes, listed, strict=True):
        counts = Counter(values)
        most = max(counts.values(), default=0)
        least = min((v for v, n in counts.items() if n == most), default=None)
        assert (keys, mode) == (groups, least)


def rows_of(array: np.ndarray) -> pa.Table:
    """One row per element."""
    keys = {d: i.ravel() for d, i in zip("gk"[-array.ndim :], np.indices(array.shape), strict=True)}
    return pa.table({**keys, "val": array.ravel()})


@pytest.mark.parametrize("sites", [1, 2, 3, 5])
def test_first_and_last_go_by_key(con: einsql.Connection, sites: int) -> None:
    a = np.arange(24.0).reshape(2, 3, 4) % 7
    con.execute(f"SET sites = {sites}")
    con.register("a", a, dims=("i", "j", "k"))
    rows = con.execute(
        "SELECT i, FIRST(val), LAST(val), ANY_VALUE(NULLIF(val, 0)), FIRST(NULLIF(val, 0)), "
        "LAST(val) FILTER (WHERE val > 4), ARBITRARY(val) FILTER (WHERE val > 99) FROM a GROUP BY i"
    ).fetchall()
    assert rows == [(0, 0.0, 4.0, 1.0, None, 6.0, None), (1, 5.0, 2.0, 5.0, 5.0, 6.0, None)]
    last = con.execute("SELECT k, LAST(val) FROM a WHERE j < 2 GROUP BY k").fetchall()
    assert last == [(k, a[1, 1, k]) for k in range(4)]
    grouped = con.execute("SELECT (i + j) % 2 AS g, FIRST(val) FROM a GROUP BY (i + j) % 2")
    assert grouped.fetchall() == [(0, a[0, 0, 0]), (1, a[0, 1, 0])]


@pytest.mark.parametrize("strategy", ["eindecomp", "paper", "equal", "data:j", "model:j"])
def test_no_plan_cuts_a_reduced_label(strategy: str, tmp_path: Path) -> None:
    a = np.random.default_rng(0).integers(0, 9, (6, 10, 4)).astype(np.float64)
    query = "SELECT {} i, k, MEDIAN(val) AS m FROM a GROUP BY i, k"
    with einsql.connect(config={"jit": "never", "sites": 4, "strategy": strategy}) as con:
        con.register("a", a, dims=("i", "j", "k"))
        for hint in ("", "/*+ PARTITION(j=4) */"):
            got = con.execute(query.format(hint)).fetch_numpy()
            np.testing.assert_array_equal(got, np.median(a, axis=1))
        path = tmp_path / "plan.json"
        export(con, path, query.format(""))

        def cut(plan: Any) -> None:
            (node,) = (n for n in plan["graphs"][0]["nodes"] if "j" in n["labels"])
            node |= {"parts": {"i": 1, "j": 2, "k": 1}, "mesh": ["j"], "copies": 1}

        edit(path, cut)
        con.execute(f"SET plan = '{path}'")
        with pytest.raises(einsql.Error, match="needs all values of a group"):
            con.execute(query.format(""))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("QUANTILE_CONT(val, 1.5)", "fraction from 0 to 1"),
        ("QUANTILE_CONT(val, j * 0.1)", "that is no literal"),
        ("QUANTILE_DISC(val, -0.5)", "with this fraction"),
        ("QUANTILE_CONT(val)", "takes 2 arguments"),
        ("QUANTILE_CONT(val > 0, 0.5)", "does not accept BOOLEAN"),
        ("AVG(DISTINCT val > 0)", "does not accept BOOLEAN"),
        ("STDDEV(DISTINCT val)", "DISTINCT"),
        ("COUNT(DISTINCT (j, k))", "DISTINCT"),
        ("QUANTILE_CONT(val, [0.1, 0.2])", "outside|literal"),
        ("PERCENTILE_DISC(0.5) WITHIN GROUP (ORDER BY val DESC)", "WITHIN GROUP"),
        ("FIRST(val) OVER (ORDER BY j)", "ordered window"),
        ("MEDIAN(val ORDER BY j)", "ORDER BY"),
        ("MEDIAN(j * 0.5)::DOUBLE", "of more than 18 digits"),
    ],
)
def test_refused_with_a_reason(con: einsql.Connection, call: str, message: str) -> None:
    con.execute("SET sites = 1")
    con.register("a", np.ones((2, 2, 2)), dims=("i", "j", "k"))
    with pytest.raises(einsql.Error, match=message) as raised:
        con.execute(f"SELECT {call} FROM a")
    assert raised.value.position is not None


def test_reductions_of_einsum() -> None:
    a, b = (np.random.default_rng(n).integers(0, 5, (4, 6)).astype(np.float64) for n in (0, 1))
    products = a[:, None] * b
    got = einsql.einsum("ij,kj->ik", a, b, reduce="median")
    np.testing.assert_array_equal(got, np.median(products, axis=2))
    np.testing.assert_array_equal(einsql.einsum("ij->i", a, reduce="last"), a[:, -1])


def test_no_gradient(con: einsql.Connection) -> None:
    con.register("a", np.ones((2, 2)), dims=("i", "j"))
    for call, name in (("MEDIAN(val)", "QUANTILE_CONT"), ("FIRST(val)", "ARG_MIN")):
        with pytest.raises(einsql.ProgrammingError, match=f"no gradient through {name}"):
            con.execute(
                f"WITH loss AS (SELECT {call} AS val FROM a) SELECT * FROM GRADIENT(loss, a)"
            )


@pytest.mark.parametrize("sites", [1, 3])
def test_means_of_distinct_integers_whose_sum_exceeds_bigint(sites: int) -> None:
    values = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, (4, 9), np.int64)
    values[:2] = 2**63 - 1 - np.abs(values[:2] % 7)
    values[3] = -(2**63)
    with einsql.connect(config={"sites": sites}) as con:
        con.register("wide", values, dims=("i", "j"))
        con.execute("CREATE TABLE rows AS SELECT i, val FROM wide")
        sql = "SELECT i, AVG(DISTINCT val) FROM {} GROUP BY i ORDER BY i"
        got = con.execute(sql.format("wide")).fetchall()
        assert got == con.execute(sql.format("rows")).fetchall()
        assert got == [
            (i, float(Fraction(sum(map(int, set(row))), len(set(row)))))
            for i, row in enumerate(values)
        ]
