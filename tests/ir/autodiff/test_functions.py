"""The derivative of every scalar function and reduction, against central differences."""

from __future__ import annotations

import math

import numpy as np
import pytest

from einsql.ir.functions import REDUCTIONS, SCALARS
from tests.ir.autodiff.differences import check, connected, gradient
from tests.support.samples import spread

ANY = (-2.6, -1.3, -0.4, 0.3, 0.9, 2.2)
POSITIVE = (0.1, 0.5, 1.0, 1.7, 3.1, 8.0)
WITHIN = (-0.9, -0.5, -0.1, 0.2, 0.6, 0.85)

CASES: dict[str, tuple[str, tuple[float, ...]]] = {
    "add": ("{0} + {0} * {1}", ANY),
    "sub": ("{1} - {0}", ANY),
    "mul": ("{0} * {1}", ANY),
    "div": ("{0} / {1}", ANY),
    "idiv": ("{0} // {1}", ANY),
    "mod": ("{0} % {1}", ANY),
    "fmod": ("fmod({0}, {1})", ANY),
    "neg": ("-{0}", ANY),
    "abs": ("abs({0})", ANY),
    "sign": ("sign({0}) * {0}", ANY),
    "floor": ("floor({0}) * {0}", ANY),
    "ceil": ("ceil({0}) * {0}", ANY),
    "trunc": ("trunc({0}) * {0}", ANY),
    "round": ("round({0}) * {0}", ANY),
    "scaled_round": ("round({0}, 1) * {0}", ANY),
    "if": ("CASE WHEN {0} < {1} THEN {0} * {0} ELSE -{1} END", ANY),
    "greatest": ("greatest({0}, {1})", ANY),
    "least": ("least({0}, {1})", ANY),
    "exp": ("exp({0})", ANY),
    "ln": ("ln({0})", POSITIVE),
    "log2": ("log2({0})", POSITIVE),
    "log10": ("log10({0})", POSITIVE),
    "sqrt": ("sqrt({0})", POSITIVE),
    "cbrt": ("cbrt({0})", ANY),
    "pow": ("pow({0}, {1})", POSITIVE),
    "sin": ("sin({0})", ANY),
    "cos": ("cos({0})", ANY),
    "tan": ("tan({0})", WITHIN),
    "asin": ("asin({0})", WITHIN),
    "acos": ("acos({0})", WITHIN),
    "atan": ("atan({0})", ANY),
    "atan2": ("atan2({0}, {1})", ANY),
    "sinh": ("sinh({0})", ANY),
    "cosh": ("cosh({0})", ANY),
    "tanh": ("tanh({0})", ANY),
    "asinh": ("asinh({0})", ANY),
    "acosh": ("acosh({0} + 1)", POSITIVE),
    "atanh": ("atanh({0})", WITHIN),
    "degrees": ("degrees({0})", ANY),
    "radians": ("radians({0})", ANY),
    "erf": ("erf({0})", ANY),
    "lgamma": ("lgamma({0})", ANY),
    "sigmoid": ("sigmoid({0})", ANY),
    "stop_gradient": ("{0} * {1} - stop_gradient({0} * {1}) + {0}", ANY),
}
"""SQL of two values, and values for them, none at an edge."""
NO_FLOATS = {
    "eq", "ne", "lt", "le", "and", "or", "not", "bitand", "bitor", "xor", "within", "isnan",
    "isinf", "isfinite", "ratio",
}  # fmt: skip
"""Functions whose result is never a float, so that nothing flows back through them."""


def pairs(name: str) -> dict[str, tuple[str, np.ndarray]]:
    values = np.array(CASES[name][1])
    return {"a": ("i", values.copy()), "b": ("i", np.roll(values, 2) + 0.05)}


def weighted(text: str) -> str:
    return f"WITH loss AS (SELECT SUM(({text}) * (i + 1)) AS val FROM a JOIN b USING (i))"


def test_every_function_has_a_case() -> None:
    built_in = {name for name, f in SCALARS.items() if not f.opaque}
    assert built_in == set(CASES) | NO_FLOATS | {"nearest", "beside", "settled"}


def test_statistics_of_floats_pass_their_adjoints_on() -> None:
    val = np.array([1.0, -0.5, 2.0, 4.0], np.float32)
    con = connected({"a": ("i", val)})
    con.execute("SET float_math = 'float'")
    query = "WITH loss AS (SELECT AVG(val * val) + STDDEV_POP(val) AS val FROM a)"
    spread = (val - val.mean()) / (4 * val.std())
    np.testing.assert_allclose(gradient(con, query, "a"), val / 2 + spread, rtol=1e-6)


@pytest.mark.parametrize("name", sorted(set(CASES) - {"stop_gradient"}))
def test_derivatives_are_differences(name: str) -> None:
    query = weighted(CASES[name][0].format("a.val", "b.val"))
    for source in ("a", "b") if "b.val" in query else ("a",):
        check(pairs(name), query, source)


@pytest.mark.parametrize("name", spread(sorted(set(CASES) - {"stop_gradient"}), 14))
def test_second_derivatives_are_differences(name: str) -> None:
    text = weighted(CASES[name][0].format("a.val", "b.val")).replace("loss", "first")
    query = f"{text}, loss AS (SELECT SUM(g.val * g.val) AS val FROM GRADIENT(first, a) g)"
    check(pairs(name), query, "a", 1e-5)


def test_a_stopped_value_is_a_constant() -> None:
    con = connected(pairs("stop_gradient"))
    query = weighted(CASES["stop_gradient"][0].format("a.val", "b.val"))
    b = pairs("stop_gradient")["b"][1]
    np.testing.assert_allclose(gradient(con, query, "a"), (b + 1) * np.arange(1, 7))
    plan = str(con.explain(f"{query} SELECT * FROM loss"))
    assert "STOP" not in plan


@pytest.mark.parametrize("n", [0, 1, 2, 3, -1, 0.5, -2, 2.5])
def test_powers_with_a_constant_exponent(n: float) -> None:
    query = weighted(f"pow(a.val, {n})")
    check({**pairs("sqrt")}, query, "a")


@pytest.mark.parametrize(
    ("text", "at", "wanted"),
    [
        ("abs(val)", 0.0, 0.0),
        ("greatest(val, 0)", 0.0, 0.0),
        ("least(val, 0)", 0.0, 0.0),
        ("greatest(val, val * 3)", 0.0, 2.0),  # half of each
        ("least(val, val * 3)", 0.0, 2.0),
        ("sign(val)", 0.0, 0.0),
        ("floor(val)", 2.0, 0.0),
        ("pow(val, 2)", 0.0, 0.0),
        ("pow(val, 0)", 0.0, 0.0),
        ("pow(val, val * 0)", 0.0, 0.0),
        ("sqrt(val)", 0.0, math.inf),
        ("CASE WHEN val > 0 THEN sqrt(val) ELSE 0 END", 0.0, 0.0),  # no 0 · inf
        ("CASE WHEN val > 0 THEN ln(val) ELSE val END", -1.0, 1.0),
        ("CAST(CAST(val AS INTEGER) AS DOUBLE)", 1.2, 0.0),
        ("CAST(val > 1 AS INTEGER) * val", 1.2, 1.0),
        ("CAST(CAST(val AS FLOAT) AS DOUBLE) * 3", 1.2, 3.0),
        ("CAST(CAST(val AS HALF) AS DOUBLE) * 3", 1.2, 3.0),
        ("CAST(CAST(val AS BFLOAT16) AS FLOAT) * 3", 1.2, 3.0),
        ("NULLIF(val, 5)", 1.2, 1.0),
        ("COALESCE(NULLIF(val, 1.2e0), val * 2)", 1.2, 2.0),
        ("sigmoid(val)", 0.0, 0.25),
    ],
)
def test_edges(text: str, at: float, wanted: float) -> None:
    con = connected({"w": ("i", np.array([at]))})
    query = f"WITH loss AS (SELECT SUM(CAST({text} AS DOUBLE)) AS val FROM w)"
    np.testing.assert_allclose(gradient(con, query, "w"), [wanted], rtol=1e-12)


VALUES = np.array([[0.7, -1.2, 2.0, 0.4], [0.0, 1.5, -0.5, 3.0], [0.0, 0.0, 2.0, -1.0],
                   [0.0, 0.0, 0.0, 2.0]])  # fmt: skip
GROUPED = "WITH loss AS (SELECT SUM(v * v + v) AS val FROM (SELECT i, {0} AS v FROM w GROUP BY i))"


@pytest.mark.parametrize(
    "text",
    ["SUM(val)", "PRODUCT(val)", "AVG(val)", "VARIANCE(val)", "VAR_POP(val)", "STDDEV(val)",
     "LOGSUMEXP(val)", "COUNT(val) * SUM(val)", "SUM(val) FILTER (WHERE val > 0)",
     "PRODUCT(val) FILTER (WHERE j > 0)", "AVG(val) FILTER (WHERE j < 3)",
     "MAX(val * (j + 1))", "MIN(val - j)", "MAX(val) FILTER (WHERE j < 2)"],
)  # fmt: skip
@pytest.mark.parametrize("rows", ["plain", "zeros"])
def test_reductions(text: str, rows: str) -> None:
    array = VALUES[:1] if rows == "plain" else VALUES.copy()
    if rows == "zeros" and text.startswith(("MAX", "MIN", "SUM(val) F", "STDDEV")):
        array = array + np.arange(16).reshape(4, 4) / 17  # no ties, nothing at a threshold
    check({"w": ("ij", array.copy())}, GROUPED.format(text), "w")


@pytest.mark.parametrize("text", ["PRODUCT(val)", "LOGSUMEXP(val)", "VARIANCE(val)", "AVG(val)"])
def test_second_derivatives_of_reductions(text: str) -> None:
    first = GROUPED.format(text).replace("loss", "first")
    query = f"{first}, loss AS (SELECT SUM(val * val * (i + 1)) AS val FROM GRADIENT(first, w))"
    check({"w": ("ij", VALUES.copy())}, query, "w", 1e-5)


def test_what_ties_shares_evenly() -> None:
    con = connected({"w": ("ij", np.array([[1.0, 3.0, 3.0, 2.0], [5.0, 5.0, 5.0, 5.0]]))})
    query = "WITH loss AS (SELECT SUM(v) AS val FROM (SELECT i, MAX(val) AS v FROM w GROUP BY i))"
    np.testing.assert_array_equal(gradient(con, query, "w"), [[0, 0.5, 0.5, 0], [0.25] * 4])


@pytest.mark.parametrize("text", ["VARIANCE(val)", "STDDEV(val)", "SQRT(VARIANCE(val)) + 1"])
def test_a_spread_of_one_row_is_null_and_has_no_slope(text: str) -> None:
    con = connected({"w": ("ij", np.array([[1.0, 3.0], [5.0, 2.0]]))})
    query = f"WITH loss AS (SELECT {text} AS val FROM w WHERE i = 0 AND j = 0)"
    assert con.execute(f"{query} SELECT val FROM loss").fetchall() == [(None,)]
    np.testing.assert_array_equal(gradient(con, query, "w"), np.zeros((2, 2)))


def test_reductions_without_a_derivative_say_why() -> None:
    reasons = {n for n, r in REDUCTIONS.items() if not r.fields and isinstance(r.derivative, str)}
    holistic = {n for n, r in REDUCTIONS.items() if not r.fields and r.holistic is not None}
    logical = {"bool_or", "bool_and", "bit_and", "bit_or", "bit_xor"}
    assert reasons == {*logical, "arg_min", "arg_max"} | holistic


@pytest.mark.parametrize("text", ["LN(val)", "SQRT(val)", "1 / val", "POW(val, -2)"])
def test_what_a_later_filter_leaves_out_counts_for_nothing(text: str) -> None:
    array = np.array([0.5, 0.0, 2.0])
    each = f"WITH each AS (SELECT i, val AS x, {text} AS val FROM w)"
    query = f"{each}, loss AS (SELECT SUM(val) AS val FROM each WHERE x > 0)"
    con = connected({"w": ("i", array)})
    found = gradient(con, query, "w")
    assert found[1] == 0
    inside = f"WITH loss AS (SELECT SUM(CASE WHEN val > 0 THEN {text} ELSE 0 END) AS val FROM w)"
    np.testing.assert_allclose(found, gradient(con, inside, "w"), rtol=1e-12)
