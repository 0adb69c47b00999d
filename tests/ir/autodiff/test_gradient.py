"""GRADIENT in FROM: what it reads and gives, how it is planned, and what it refuses."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import einsql
from tests.ir.autodiff.differences import check, connected, gradient, numeric
from tests.support.samples import spread

CHANCE = np.random.default_rng(3)


def normal(*shape: int) -> np.ndarray:
    return CHANCE.normal(size=shape)


TENSORS = {
    "x": ("ij", normal(4, 3)),
    "w": ("jk", normal(3, 5)),
    "v": ("j", normal(3)),
    "square": ("ij", normal(4, 4)),
    "line": ("i", normal(9)),
    "mask": ("d", normal(3)),
    "found": ("n", np.array([3, 1, 1, 0, 3, 2])),
    "picture": ("ij", normal(6, 5)),
    "wide": ("oj", normal(12, 3)),
}
SUM = "WITH loss AS (SELECT SUM({}) AS val FROM {})"
TEXT = (Path(__file__).parent / "losses.sql").read_text(encoding="utf-8")
LOSSES = {
    name: (source, query.strip())
    for name, source, query in re.findall(r"-- ([\w ]+): (\w+)\n((?:(?!--).*\n)+)", TEXT)
}
"""By a name: the tensor to take the gradient by, and a WITH that defines the loss."""


@pytest.mark.parametrize("name", spread(LOSSES, 15))
def test_gradients_are_differences(name: str) -> None:
    source, query = LOSSES[name]
    check({n: (d, a.copy()) for n, (d, a) in TENSORS.items()}, query, source)


@pytest.mark.parametrize("name", spread(sorted(set(LOSSES) - {"correlated"}), 10))
def test_gradients_of_gradients_are_differences(name: str) -> None:
    source, query = LOSSES[name]
    again = re.sub(r"loss\s+AS", "once AS", query)
    again += f", loss AS (SELECT SUM(val * val) AS val FROM GRADIENT(once, {source}))"
    check({n: (d, a.copy()) for n, (d, a) in TENSORS.items()}, again, source, 1e-5)


def test_the_rows_and_columns_are_those_of_the_source() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR w (i DIM(3), a FLOAT, n INTEGER, b DOUBLE)")
    con.execute("INSERT INTO w VALUES (0, 1, 7, 2), (2, 3, 8, 4)")
    query = "WITH loss AS (SELECT SUM(a * a * b + n) AS val FROM w)"
    made = con.execute(f"{query} SELECT * FROM GRADIENT(loss, w)")
    assert made.description is not None
    assert [d[:2] for d in made.description] == [("i", "BIGINT"), ("a", "FLOAT"), ("b", "DOUBLE")]
    assert made.fetchall() == [(0, 4.0, 1.0), (2, 24.0, 9.0)]
    step = "UPDATE w SET a = w.a - 0.5 * g.a FROM GRADIENT(loss, w) g WHERE g.i = w.i"
    con.execute(f"{query} {step}")
    assert con.execute("SELECT i, a FROM w").fetchall() == [(0, -1.0), (2, -9.0)]


def test_short_floats_have_gradients_of_four_bytes() -> None:
    con = connected({"w": ("i", np.array([1.0, 2.0]))})
    con.execute("CREATE TENSOR h AS SELECT i, CAST(val AS HALF) AS val FROM w")
    made = con.execute(SUM.format("val * val", "h") + " SELECT * FROM GRADIENT(loss, h)")
    assert made.description is not None
    assert made.description[1][1] == "FLOAT"
    assert made.fetchall() == [(0, 2.0), (1, 4.0)]


def test_a_source_may_be_made_in_the_statement_and_a_loss_anywhere() -> None:
    con = connected({"x": ("i", np.array([1.0, 2.0]))})
    con.execute("CREATE VIEW doubled AS SELECT i, val * 2 AS val FROM x")
    con.execute("CREATE VIEW squares AS SELECT SUM(val * val) AS val FROM doubled")
    assert con.execute("SELECT val FROM GRADIENT(squares, doubled)").fetchall() == [(4,), (8,)]
    assert con.execute("SELECT val FROM GRADIENT(squares, x) AS g(k)").fetchall() == [(8,), (16,)]
    inner = "SELECT g.val FROM GRADIENT((SELECT SUM(val * val) AS s FROM x), x) g"
    assert con.execute(inner).fetchall() == [(2,), (4,)]
    con.execute("CREATE MACRO slope(l, t) AS TABLE SELECT * FROM GRADIENT(l, t)")
    assert con.execute("SELECT val FROM slope(squares, x)").fetchall() == [(8,), (16,)]
    y = np.array([3.0])
    loss = "WITH loss AS (SELECT SUM(y.val * y.val) AS val FROM y AS y(i))"
    assert con.execute(f"{loss} SELECT val FROM GRADIENT(loss, y)").fetchall() == [(6,)]
    assert y[0] == 3


def test_constants_are_folded() -> None:
    con = connected(TENSORS)
    plan = str(con.explain(f"{SUM.format('val', 'x')} SELECT * FROM GRADIENT(loss, x)"))
    assert "val DOUBLE := 1.0" in plan
    assert " over " not in plan
    dull = SUM.format("CASE WHEN val > 0 THEN FLOOR(val) ELSE 2.0e0 END", "x")
    assert gradient(con, dull, "x").tolist() == [[0.0] * 3] * 4


FFNN = """
WITH z AS (SELECT n, h, SUM(x.val * w1.val) AS val FROM x JOIN w1 USING (d) GROUP BY n, h),
a AS (SELECT n, h, GREATEST(z.val + b.val, 0) AS val FROM z JOIN b USING (h)),
y AS (SELECT n, l, SUM(a.val * w2.val) AS val FROM a JOIN w2 USING (h) GROUP BY n, l),
s AS (SELECT n, LOGSUMEXP(val) AS val FROM y GROUP BY n),
loss AS (SELECT AVG(s.val - y.val) AS val
         FROM s JOIN y USING (n) JOIN t ON t.n = y.n AND t.val = y.l)
SELECT (SELECT SUM(val) FROM GRADIENT(loss, w1)) AS g1,
       (SELECT SUM(val) FROM GRADIENT(loss, w2)) AS g2,
       (SELECT SUM(val) FROM GRADIENT(loss, b)) AS gb, loss.val FROM loss
"""


def network(n: int, d: int, h: int, labels: int) -> dict[str, tuple[str, np.ndarray]]:
    return {
        "x": ("nd", normal(n, d).astype(np.float32)),
        "w1": ("dh", normal(d, h).astype(np.float32)),
        "b": ("h", normal(h).astype(np.float32)),
        "w2": ("hl", normal(h, labels).astype(np.float32)),
        "t": ("n", np.arange(n) % labels),
    }


def _kernels(plan: str) -> list[tuple[str, int]]:
    """The kernel of each step, and its points."""
    found = re.findall(r"(?m)^r\d+ +(\S+) +([\d,]+) points", plan)
    return [(kernel, int(points.replace(",", ""))) for kernel, points in found]


def test_a_step_is_one_forward_and_one_backward_pass_of_products() -> None:
    con = connected(network(16, 32, 24, 10))
    plan = str(con.explain(FFNN))
    # Two products forward; backward two for the weights and one for what lies between.
    products = [kernel for kernel, points in _kernels(plan) if points >= 16 * 24 * 10]
    assert products == ["blas"] * 5
    assert plan.count("LN(") == 1
    assert ".present" not in plan
    assert "ISNAN" not in plan  # nothing is divided by what may be 0


ATTENTION = """
WITH q AS (SELECT s, d, SUM(x.val * wq.val) AS val FROM x JOIN wq USING (c) GROUP BY s, d),
k AS (SELECT s AS t, d, SUM(x.val * wk.val) AS val FROM x JOIN wk USING (c) GROUP BY s, d),
v AS (SELECT s AS t, d, SUM(x.val * wv.val) AS val FROM x JOIN wv USING (c) GROUP BY s, d),
z AS (SELECT s, t, SUM(q.val * k.val) / 4 AS val FROM q JOIN k USING (d) GROUP BY s, t),
e AS (SELECT s, t, EXP(val - STOP_GRADIENT(MAX(val) OVER (PARTITION BY s))) AS val FROM z),
p AS (SELECT s, t, val / SUM(val) OVER (PARTITION BY s) AS val FROM e),
o AS (SELECT s, d, SUM(p.val * v.val) AS val FROM p JOIN v USING (t) GROUP BY s, d),
loss AS (SELECT SUM(val * val) AS val FROM o)
SELECT {}
"""


def test_attention_goes_back_by_products() -> None:
    weights = ("wq", "wk", "wv")
    con = connected({"x": ("sc", normal(20, 16)), **{w: ("cd", normal(16, 16)) for w in weights}})
    read = ", ".join(f"(SELECT SUM(val) FROM GRADIENT(loss, {w})) AS g{w}" for w in weights)
    plan = str(con.explain(ATTENTION.format(read)))
    products = [kernel for kernel, points in _kernels(plan) if points >= 20 * 16 * 16]
    assert products.count("blas") >= 5 + 7  # q, k, v, z, o; then p, v, q, k and the weights
    assert set(products) == {"blas"}
    assert "ISNAN" not in plan
    query = ATTENTION.partition("SELECT {}")[0]
    small = {"x": ("sc", normal(4, 3)), **{w: ("cd", normal(3, 2)) for w in weights}}
    for w in weights:
        check(small, query, w)


LOSS = "WITH loss AS (SELECT {})"


def test_several_tensors_take_a_step_at_once() -> None:
    con = einsql.connect()
    tensors = network(16, 8, 12, 10)
    for name, (dims, array) in tensors.items():
        con.register(f"{name}_0", array, dims=tuple(dims))
        con.execute(f"CREATE TENSOR {name} AS SELECT * FROM {name}_0")
    query = FFNN.partition("\nSELECT")[0]
    read = "SELECT * FROM GRADIENT(loss, {})"
    wanted = {
        w: tensors[w][1] - 0.5 * con.execute(f"{query} {read.format(w)}").fetch_numpy()
        for w in ("w1", "b", "w2")
    }
    steps = [
        f", step_{w} AS (UPDATE {w} SET val = {w}.val - 0.5 * g.val FROM GRADIENT(loss, {w}) g "
        f"WHERE {' AND '.join(f'g.{k} = {w}.{k}' for k in tensors[w][0])})"
        for w in wanted
    ]
    sql = f"{query}{''.join(steps)} SELECT val FROM loss"
    assert str(con.explain(sql)).count("x[n, d]") == 2  # forward, and back to w1
    before = con.execute(sql).fetchall()
    for w, array in wanted.items():
        got = con.execute(f"SELECT * FROM {w}").fetch_numpy()
        np.testing.assert_allclose(got, array, rtol=1e-5, atol=1e-6)
    assert con.execute(f"{query} SELECT val FROM loss").fetchall() < before


def test_long_derivatives_are_taken_apart() -> None:
    arrays = {"x": ("i", np.array([0.3, -0.6, 1.1]))}
    con = connected(arrays)
    con.execute("CREATE MACRO f(v) AS v / (1 + v * v) + sin(v)")
    con.execute(f"CREATE VIEW once AS SELECT SUM({'f(' * 3}val{')' * 3}) AS val FROM x")
    query = "WITH loss AS (SELECT SUM(val * val) AS val FROM GRADIENT(once, x))"
    got = gradient(con, query, "x")  # as one expression this would hardly end
    wanted = numeric(con, query, arrays["x"][1])
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-8)


REFUSED = [
    (LOSS.format("i, SUM(val) AS val FROM x GROUP BY i"), "x", "a value for each i"),
    (LOSS.format("SUM(val) AS a, MAX(val) AS b FROM x"), "x", "has 2: a, b"),
    (LOSS.format("COUNT(*) AS n FROM x"), "x", "a BIGINT, and a loss is a float"),
    (SUM.format("val", "x"), "w", "does not read w"),
    (SUM.format("val", "x"), "nothing", 'no tensor "nothing"'),
    (SUM.format("x.val * found.val", "x JOIN found ON found.n = x.i"), "found", "only BIGINT"),
    ("WITH b AS (SELECT i, j, val > 0 AS v FROM x), "
     "loss AS (SELECT SUM(x.val) AS val FROM x JOIN b USING (i, j) WHERE b.v)", "b",
     "only BOOLEAN"),
    (SUM.format("val", "x"), "x, x", "takes a loss and a tensor, not 3"),
    (SUM.format("val", "x"), "3", "takes names of tensors"),
    ("WITH m AS (SELECT i, ARG_MAX(j, val) AS j FROM x GROUP BY i), "
     "loss AS (SELECT SUM(x.val) AS val FROM m JOIN x USING (i, j))", "x", "through ARG_MAX"),
    (LOSS.format("ARG_MIN(w.val, x.val) AS val FROM x JOIN w USING (j)"), "x", "through ARG_MIN"),
    (SUM.format("val", "ELEMENTS((SELECT i, j, tile FROM TILES(x, 2, 3)))"), "x",
     "tiles|does not read"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "source", "reason"), REFUSED)
@pytest.mark.parametrize("fallback", ["on", "off"])
def test_refusals(query: str, source: str, reason: str, fallback: str) -> None:
    con = connected(TENSORS)
    con.execute(f"SET fallback = {fallback}")
    sql = f"{query} SELECT * FROM GRADIENT(loss, {source})"
    with pytest.raises(einsql.ProgrammingError, match=reason) as error:
        con.execute(sql)
    assert error.value.position is not None
    assert error.value.hint or "takes" in error.value.reason
    assert error.value.position >= sql.index("GRADIENT")


@pytest.mark.parametrize(
    ("query", "at", "reason"),
    [
        ("WITH a AS (SELECT i, j, val FROM x ORDER BY i), b AS (SELECT * FROM a), "
         "loss AS (SELECT SUM(val) AS val FROM b)", "ORDER BY", "ORDER BY is"),
        ("WITH loss AS (SELECT LIST(val)[1] AS val FROM x)", "LIST", "outside"),
        ("WITH loss AS (SELECT SUM(val) AS val FROM x WHERE i = 'a')", "'a'", "Text is"),
    ],
)  # fmt: skip
def test_a_loss_that_is_no_tensor_work_is_refused_with_the_reason(
    query: str, at: str, reason: str
) -> None:
    con = connected(TENSORS)
    con.execute("SET fallback = on")
    sql = f"{query} SELECT * FROM GRADIENT(loss, x)"
    with pytest.raises(einsql.ProgrammingError, match="tensor work only") as error:
        con.execute(sql)
    assert reason in error.value.reason
    assert error.value.position is not None
    assert 0 <= error.value.position - sql.index(at) <= len("ORDER BY ")
    assert error.value.hint


def test_a_view_and_a_source_over_a_table() -> None:
    con = connected(TENSORS)
    con.execute("SET fallback = on")
    con.execute("CREATE TABLE t AS SELECT 0 AS i, 1.5::DOUBLE AS val")
    con.execute("CREATE VIEW over_t AS SELECT SUM(x.val * t.val) AS val FROM x JOIN t USING (i)")
    found = con.execute("SELECT i, j, val FROM GRADIENT(over_t, x)").fetch_numpy()
    wanted = np.zeros_like(found)
    wanted[0] = 1.5
    np.testing.assert_array_equal(found, wanted)
    sql = "SELECT * FROM GRADIENT((SELECT SUM(val) AS val FROM x), t)"
    with pytest.raises(einsql.ProgrammingError, match="does not read t") as error:
        con.execute(sql)
    assert error.value.position == sql.index("t)", sql.index("x)"))


def test_a_stopped_choice_is_a_constant() -> None:
    query = (
        "WITH m AS (SELECT i, STOP_GRADIENT(ARG_MAX(j, val)) AS j FROM x GROUP BY i), "
        "loss AS (SELECT SUM(x.val * x.val) AS val FROM m JOIN x ON x.i = m.i AND x.j = m.j)"
    )
    check({n: (d, a.copy()) for n, (d, a) in TENSORS.items()}, query, "x")


def test_maps_inside_a_product_leave_products() -> None:
    arrays = {"x": ("ij", normal(40, 30)), "w": ("jk", normal(30, 50))}
    product = "SUM(GREATEST(x.val, 0) * TANH(w.val)) AS val FROM x JOIN w USING (j)"
    query = f"WITH r AS (SELECT i, k, {product} GROUP BY i, k), " + SUM.format("val * val", "r")[5:]
    con = connected(arrays)
    for source in "xw":
        plan = str(con.explain(f"{query} SELECT * FROM GRADIENT(loss, {source})"))
        products = [k for k, n in _kernels(plan) if n == 40 * 30 * 50]
        assert products[-1] == "blas"


def test_what_has_a_pole_does_not_keep_products_from_blas() -> None:
    con = connected({"x": ("ij", normal(20, 30)), "w": ("jk", normal(30, 50))})
    product = "(SELECT i, k, SUM(x.val * w.val) AS val FROM x JOIN w USING (j) GROUP BY i, k)"
    query = SUM.format("LN(val) / val", product)
    plan = str(con.explain(f"{query} SELECT * FROM GRADIENT(loss, w)"))
    assert [k for k, n in _kernels(plan) if n == 20 * 30 * 50] == ["blas", "blas"]
