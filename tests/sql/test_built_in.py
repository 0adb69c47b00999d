"""The built-in macros beside NumPy, and how a user's own takes their place."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.sql.functions.scalar_functions import SCALAR_MACROS
from einsql.sql.functions.table_functions import TABLE_MACROS
from einsql.sql.macros.builtin_macros import built_in

Array = np.ndarray[Any, Any]
X = np.random.default_rng(0).standard_normal((3, 4, 5)).astype(np.float32) * 3


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf)(x))


WANTED: dict[str, Callable[[Array, int], Array]] = {
    "softmax(x, {})": softmax,
    "log_softmax(x, {})": lambda x, n: np.log(softmax(x.astype(np.float64), n)),
    "layer_norm(x, {})": lambda x, n: (
        (x - x.mean(n, keepdims=True)) / np.sqrt(x.var(n, keepdims=True) + 1e-5)
    ),
    "layer_norm(x, {}, 0.5)": lambda x, n: (
        (x - x.mean(n, keepdims=True)) / np.sqrt(x.var(n, keepdims=True) + 0.5)
    ),
    "layer_norm(x, {}, eps := 1e-3)": lambda x, n: (
        (x - x.mean(n, keepdims=True)) / np.sqrt(x.var(n, keepdims=True) + 1e-3)
    ),
    "rms_norm(x, {}, eps := 0.25)": lambda x, n: x / np.sqrt((x * x).mean(n, keepdims=True) + 0.25),
}


@pytest.fixture
def con() -> einsql.Connection:
    made = einsql.connect()
    made.register("x", X, ("b", "i", "j"))
    made.register("line", X[0, 0].copy(), ("j",))
    return made


@pytest.mark.parametrize("call", WANTED)
def test_table_macros_are_what_numpy_says(con: einsql.Connection, call: str) -> None:
    for axis, name in enumerate("bij"):
        got = con.execute(f"SELECT b, i, j, val FROM {call.format(name)}").fetch_numpy()
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, WANTED[call](X, axis), rtol=2e-6, atol=2e-6)
    over_line = call.replace("(x,", "(line,")
    got = con.execute(f"SELECT j, val FROM {over_line.format('j')}").fetch_numpy()
    np.testing.assert_allclose(got, WANTED[call](X[0, 0], 0), rtol=2e-6, atol=2e-6)
    assert not con.notices


def test_attention_is_what_numpy_says(con: einsql.Connection) -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal(s) for s in ((2, 3, 7, 8), (2, 3, 9, 8), (2, 3, 9, 5)))
    con.register("q", q, ("b", "h", "s", "d"))
    con.register("keys", k, ("b", "h", "u", "d"))
    con.register("v", v, ("b", "h", "u", "e"))
    got = con.execute("SELECT b, h, s, e, val FROM attention(q, keys, v, u, d)").fetch_numpy()
    weights = softmax(np.einsum("bhsd,bhtd->bhst", q, k) / np.sqrt(8), 3)
    np.testing.assert_allclose(got, np.einsum("bhst,bhte->bhse", weights, v), rtol=1e-12)
    con.register("small", v.astype(np.float32)[..., :5], ("b", "h", "u", "d"))
    query = "(SELECT b, h, u AS s, d, val FROM small)"
    same = con.execute(f"SELECT * FROM attention({query}, small, small, u, d)")
    assert [d[0] for d in same.description or ()] == ["b", "h", "s", "d", "val"]
    assert same.fetch_numpy().dtype == np.float32


def test_scalar_macros_are_what_numpy_says(con: einsql.Connection) -> None:
    x = X.astype(np.float64)
    wanted = {
        "relu": np.maximum(x, 0),
        "silu": x / (1 + np.exp(-x)),
        "sigmoid": 1 / (1 + np.exp(-x)),
        "gelu": x * 0.5 * (1 + erf(x / np.sqrt(2))),
    }
    for name, values in wanted.items():
        got = con.execute(f"SELECT b, i, j, {name}(val) AS val FROM x").fetch_numpy()
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, values, rtol=3e-6, atol=1e-6)
    sql = "SELECT i, relu(SUM(x.val)) AS val FROM x GROUP BY i"
    np.testing.assert_allclose(
        con.execute(sql).fetch_numpy(), np.maximum(X.sum((0, 2)), 0), rtol=1e-5
    )
    sql = "SELECT adam(0.5, 0.04, 1), adam(0.5::FLOAT, 0.04::FLOAT, 3, eps := 1, rate := 0.1)"
    first, second = con.execute(sql).fetchall()[0]
    assert first == pytest.approx(0.001 * 5 / np.sqrt(40))
    assert second == pytest.approx(
        0.1 * (0.5 / (1 - 0.9**3)) / (np.sqrt(0.04 / (1 - 0.999**3)) + 1)
    )


@pytest.mark.parametrize("t", [1, 3, 1000])
def test_adam_is_as_exact_as_what_it_is_given(con: einsql.Connection, t: int) -> None:
    moments = np.array([[0.013, -0.3], [0.00017, 0.02]])
    (m, v), rate = moments, 0.05
    wanted = rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    for dtype, error in ((np.float64, 1e-14), (np.float32, 3e-7), (np.float16, 1e-3)):
        con.register("m", m.astype(dtype), dims=("i",))
        con.register("v", v.astype(dtype), dims=("i",))
        call = "adam(m.val, v.val, ?, 0.05, eps := 1e-8)"  # the literal is a DOUBLE
        sql = f"SELECT i, {call} AS val FROM m JOIN v USING (i)"
        got = con.execute(sql, [t]).fetch_numpy()
        assert got.dtype == (np.float32 if dtype is np.float16 else dtype)
        np.testing.assert_allclose(got, wanted, rtol=error)


def test_a_constant_has_the_type_in_which_a_tensor_is_computed(con: einsql.Connection) -> None:
    con.register("half", X.astype(np.float16), ("b", "i", "j"))
    con.register("double", X.astype(np.float64), ("b", "i", "j"))
    for name, dtype in (("x", np.float32), ("half", np.float32), ("double", np.float64)):
        for call in (f"rms_norm({name}, j, ?)", f"layer_norm({name}, j, eps := ?)"):
            sql = f"SELECT b, i, j, val FROM {call}"
            assert con.execute(sql, [1e-12]).fetch_numpy().dtype == dtype


def test_cast_to_type_takes_the_type_of_a_value() -> None:
    con = einsql.connect()
    con.execute("CREATE TABLE t AS SELECT 'a' AS n, 2.5::FLOAT AS v")  # DuckDB runs the second
    con.register("x", np.ones(1, np.float32), ("i",))
    for source in ("x", "t"):
        value = "val" if source == "x" else "v"
        typed = f"cast_to_type(1.5, {value}), cast_to_type(2.5, 1), cast_to_type('3', {value})"
        result = con.execute(f"SELECT {typed} FROM {source}")
        assert result.fetchall() == [(1.5, 3, 3.0)]


def test_a_macro_of_the_users_comes_first(con: einsql.Connection) -> None:
    con.execute("CREATE MACRO relu(x) AS x + 1")
    con.execute("CREATE MACRO softmax(x) AS TABLE SELECT * FROM x WHERE j < 2")
    assert con.execute("SELECT relu(-3)").fetchall() == [(-2,)]
    assert con.execute("SELECT COUNT(*) FROM softmax(line)").fetchall() == [(2,)]
    con.execute("DROP MACRO relu; DROP MACRO softmax")
    assert con.execute("SELECT relu(-3)").fetchall() == [(0,)]
    assert con.execute("SELECT SUM(val) > 0.99 FROM softmax(line, j)").fetchall() == [(True,)]


def test_they_are_there_where_duckdb_runs(con: einsql.Connection) -> None:
    con.execute("CREATE TABLE t AS SELECT 'a' AS n, -1.5 AS v")
    assert con.execute("SELECT n, adam(v, v * v, 1) FROM t").fetchall()[0][1] < 0
    sql = "SELECT n, relu(v) FROM t UNION ALL SELECT 'z', SUM(val) FROM softmax(line, j)"
    rows = con.execute(sql + " ORDER BY 1").fetchall()
    assert [(n, round(float(v), 5)) for n, v in rows] == [("a", 0), ("z", 1)]


def test_defaults_are_part_of_a_macro(con: einsql.Connection) -> None:
    con.execute("CREATE MACRO line(x, a := 2, b := -(1 + 2)) AS a * x + b")
    assert con.execute("SELECT line(5), line(5, 3), line(5, b := 1)").fetchall() == [(7, 12, 11)]
    for wrong, reason in {
        "line()": r"line\(x, a := 2, b := .*\) takes 1 to 3 arguments, not 0",
        "line(1, c := 2)": "none of that name",
        "line(1, x := 2)": "twice",
        "line(1, 2, 3, 4)": "not 4",
    }.items():
        with pytest.raises(einsql.ProgrammingError, match=reason):
            con.execute(f"SELECT {wrong}")
    for wrong in ("CREATE MACRO f(a := 1, b) AS a", "CREATE MACRO f(a, b := a) AS a"):
        with pytest.raises(einsql.ProgrammingError, match=r"needs a default|no parameter"):
            con.execute(wrong)


def test_every_name_has_its_text() -> None:
    for name in (*SCALAR_MACROS, *TABLE_MACROS):
        made = built_in(name.upper())
        assert made is not None
        assert made.is_table == (name in TABLE_MACROS)
    assert built_in("nothing") is None


def test_what_macros_name_for_themselves_is_not_suggested() -> None:
    with einsql.connect() as con:
        con.register("v", np.ones(3), ("i",))
        with pytest.raises(einsql.ProgrammingError, match='no column "j"') as info:
            con.execute("SELECT * FROM attention(v, v, v, j, j)")
    assert "#" not in str(info.value.hint)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ("layer_norm(softmax(x, j), j)",
         lambda x: WANTED["layer_norm(x, {})"](softmax(x, 2), 2)),
        ("softmax(layer_norm(softmax((SELECT * FROM x), i), j), j)",
         lambda x: softmax(WANTED["layer_norm(x, {})"](softmax(x, 1), 2), 2)),
        ("relu(x)", lambda x: np.maximum(x, 0)),
        ("softmax(relu((SELECT b, i, j, -val AS val FROM x)), j)",
         lambda x: softmax(np.maximum(-x, 0), 2)),
        ("greatest(tanh(softmax(x, j)), 0.5)", lambda x: np.maximum(np.tanh(softmax(x, 2)), 0.5)),
        ("x_or(x, least := 1)", lambda x: np.maximum(x, 1)),
    ],
)  # fmt: skip
def test_calls_nest_and_functions_map_tables(
    con: einsql.Connection, call: str, wanted: Callable[[Array], Array]
) -> None:
    con.execute("CREATE MACRO x_or(x, least := 0) AS GREATEST(x, least)")
    got = con.execute(f"SELECT b, i, j, val FROM {call}").fetch_numpy()
    np.testing.assert_allclose(got, wanted(X), rtol=5e-5, atol=5e-6)
    rows = con.execute(f"SELECT b, i, j, 'n' AS name, val FROM {call} ORDER BY 1, 2, 3").fetchall()
    np.testing.assert_array_equal([r[-1] for r in rows], got.ravel())


def test_self_attention(con: einsql.Connection) -> None:
    scores = np.einsum("bid,bjd->bij", X, X) / math.sqrt(5)
    got = con.execute("SELECT b, i, j, val FROM attention(x, x, x, i, j)").fetch_numpy()
    np.testing.assert_allclose(got, softmax(scores, 2) @ X, rtol=1e-4, atol=1e-5)
