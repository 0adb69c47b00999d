"""The order of keys in GROUP BY and SELECT decides neither what runs together nor the result."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, permutations

import numpy as np
import pytest

import einsql
from einsql.kernels import groups
from einsql.kernels.groups import plan
from tests.support.samples import sample

EXTENTS = {"h": 3, "s": 37, "t": 45, "d": 16}
SCORES = """x AS (SELECT {keys}, SUM(q.val * k.val) / 4 AS val
FROM q JOIN k USING (h, d) {where} GROUP BY {keys}),"""
SOFTMAX = """m AS (SELECT h, s, MAX(val) AS val FROM x GROUP BY h, s),
e AS (SELECT {keys}, EXP(x.val - m.val) AS val FROM x JOIN m USING (h, s)),
z AS (SELECT s, h, SUM(val) AS val FROM e GROUP BY s, h),
p AS (SELECT {keys}, e.val / z.val AS val FROM e JOIN z USING (h, s))
"""
VALUES = """SELECT {last}, SUM(p.val * v.val) AS val FROM p JOIN v USING (h, t) GROUP BY {last}"""
ATTENTION = f"WITH {SCORES}{SOFTMAX}{VALUES}"
ENTROPY = f"""WITH {SCORES}m AS (SELECT s, h, MAX(val) AS val FROM x GROUP BY s, h),
z AS (SELECT h, s, SUM(EXP(x.val - m.val)) AS val FROM x JOIN m USING (h, s) GROUP BY h, s)
SELECT {{last}}, LN(z.val) + m.val AS val FROM z JOIN m USING (h, s)"""
NORM = """WITH mu AS (SELECT h, s, AVG(val) AS val FROM x GROUP BY h, s),
va AS (SELECT s, h, AVG((x.val - mu.val) * (x.val - mu.val)) AS val
       FROM x JOIN mu USING (h, s) GROUP BY s, h)
SELECT {keys}, (x.val - mu.val) / SQRT(va.val + 1e-5::FLOAT) AS val
FROM x JOIN mu USING (h, s) JOIN va USING (h, s)"""
CAUSAL = "WHERE t <= s"
Orders = list[tuple[str, ...]]
ORDERS: Orders = list(permutations("hst"))
EVERY = sample([("", ORDERS[::2]), (CAUSAL, ORDERS[1::2])], [("", ORDERS), (CAUSAL, ORDERS)])
"""Conditions, each with orders of the keys of scores; every order is at one of them."""


def _array(name: str, dims: str) -> np.ndarray:
    """The tensor of a name, in some order of its axes."""
    order = {"q": "hsd", "k": "htd", "v": "htd", "x": "hst"}[name]
    rng = np.random.default_rng("qkvx".index(name))
    array = rng.standard_normal([EXTENTS[d] for d in order])
    return np.ascontiguousarray(array.transpose([order.index(d) for d in dims]), np.float32)


def _double(name: str) -> np.ndarray:
    return _array(name, {"q": "hsd", "k": "htd", "v": "htd", "x": "hst"}[name]).astype(float)


def _scores(causal: bool) -> np.ndarray:
    scores = np.einsum("hsd,htd->hst", _double("q"), _double("k")) / 4
    s, t = np.ogrid[: EXTENTS["s"], : EXTENTS["t"]]
    return np.where(t <= s, scores, -np.inf) if causal else scores


def _weights(scores: np.ndarray) -> np.ndarray:
    e = np.exp(scores - scores.max(2, keepdims=True))
    return np.asarray(e / e.sum(2, keepdims=True))


@pytest.fixture
def con(monkeypatch: pytest.MonkeyPatch) -> Iterator[einsql.Connection]:
    monkeypatch.setattr(groups, "LEAST", 100)
    monkeypatch.setattr(plan, "ADJACENT", 1)
    con = einsql.connect(config={"jit": "wait"})
    yield con
    con.close()


def _register(con: einsql.Connection, **dims: str) -> None:
    for name, order in dims.items():
        con.register(name, _array(name, order), dims=tuple(order))


def _groups(con: einsql.Connection, sql: str) -> list[tuple[str, str]]:
    """The nodes and the kernel of each large step."""
    lines = [line for (line,) in con.execute(f"EXPLAIN {sql}").fetchall()]
    steps = [line.split("  ") for line in lines[lines.index("-- steps") + 1 :]]
    return [(s[0], s[1]) for s in steps if s[1] not in ("view", "vector", "map", "numpy")]


def _compare(con: einsql.Connection, sql: str, keys: str, wanted: np.ndarray, axes: str) -> None:
    got = con.execute(sql).fetch_numpy(fill=0)
    order = keys.split(", ")
    assert got.shape == tuple(EXTENTS[k] for k in order)
    np.testing.assert_allclose(
        got, wanted.transpose([axes.index(k) for k in order]), rtol=3e-5, atol=3e-6
    )


@pytest.mark.parametrize(("where", "orders"), EVERY)
@pytest.mark.parametrize(
    "layouts", sample([("shd", "thd")], [("hsd", "htd"), ("shd", "thd"), ("hds", "tdh")])
)
def test_attention_is_one_group_in_every_order(
    con: einsql.Connection, where: str, orders: Orders, layouts: tuple[str, str]
) -> None:
    _register(con, q=layouts[0], k=layouts[1], v=layouts[1])
    wanted = np.einsum("hst,htd->hsd", _weights(_scores(bool(where))), _double("v"))
    for scores in orders:
        keys, last = ", ".join(scores), ", ".join(scores).replace("t", "d")
        sql = ATTENTION.format(keys=keys, where=where, last=last)
        assert _groups(con, sql) == [("r0..r5", "group")], sql
        _compare(con, sql, last, wanted, "hsd")


@pytest.mark.parametrize(("where", "orders"), EVERY)
def test_weights_are_one_group_in_every_order(
    con: einsql.Connection, where: str, orders: Orders
) -> None:
    _register(con, q="hsd", k="htd")
    wanted = _weights(_scores(bool(where)))
    for scores in orders:
        keys = ", ".join(scores)
        sql = f"WITH {SCORES}{SOFTMAX}SELECT {keys}, val FROM p".format(keys=keys, where=where)
        assert _groups(con, sql) == [("r0..r4", "group")], sql
        _compare(con, sql, keys, wanted, "hst")


@pytest.mark.parametrize(("where", "orders"), EVERY)
def test_cross_entropy_is_one_group_in_every_order(
    con: einsql.Connection, where: str, orders: Orders
) -> None:
    _register(con, q="dsh", k="htd")
    scores = _scores(bool(where))
    top = scores.max(2)
    wanted = np.log(np.exp(scores - top[..., None]).sum(2)) + top
    for order, last in zip(orders, cycle(("h, s", "s, h")), strict=False):
        sql = ENTROPY.format(keys=", ".join(order), where=where, last=last)
        assert _groups(con, sql) == [("r0..r3", "group")], sql
        _compare(con, sql, last, wanted, "hs")


@pytest.mark.parametrize(
    ("layout", "orders"),
    sample(
        [("hst", ORDERS[::2]), ("tsh", ORDERS[1::2])],
        [("".join(layout), ORDERS) for layout in ORDERS],
    ),
)
def test_norms_give_the_same_in_every_order_and_layout(
    con: einsql.Connection, layout: str, orders: Orders
) -> None:
    """Softmax is one group. Layer norm is one unless it reads across rows and passes no matrix."""
    _register(con, x=layout)
    x = _double("x")
    low = x - x.mean(2, keepdims=True)
    normed = low / np.sqrt((low * low).mean(2, keepdims=True) + 1e-5)
    for order in orders:
        keys = ", ".join(order)
        softmax = f"WITH {SOFTMAX}SELECT {{keys}}, val FROM p"
        for sql, wanted in ((softmax, _weights(x)), (NORM, normed)):
            text = sql.format(keys=keys)
            assert _groups(con, text) == [("r0..r3", "group")] or sql is NORM, text
            kernels = {kernel for _, kernel in _groups(con, text)}
            across = sql is NORM and layout[-1] != "t"
            assert ("group" in kernels) != across, text
            _compare(con, text, keys, wanted, "hst")


@pytest.mark.parametrize("layout", list(map("".join, permutations("hsd"))))
def test_the_macro_is_one_group_in_every_layout(con: einsql.Connection, layout: str) -> None:
    """The number of terms by which it divides is a constant of the statement."""
    _register(con, q=layout, k=layout.replace("s", "t"), v=layout[::-1].replace("s", "t"))
    scores = np.einsum("hsd,htd->hst", _double("q"), _double("k")) / np.sqrt(EXTENTS["d"])
    wanted = np.einsum("hst,htd->hsd", _weights(scores), _double("v"))
    values = "(SELECT h, t, d AS o, val FROM v)"
    sql = f"SELECT h, s, o AS d, val FROM attention(q, k, {values}, t, d)"
    assert _groups(con, sql) == [("r0..r5", "group")]
    _compare(con, sql, "h, s, d", wanted, "hsd")
