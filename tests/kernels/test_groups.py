"""Nodes that run together answer what they answer one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import duckdb
import numpy as np
import pytest

import einsql
from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.interpreter import evaluate
from einsql.kernels import groups
from einsql.kernels.groups import find
from einsql.planner.plan import Plan
from einsql.storage.fields import LocalFields
from tests.support.plans import cached
from tests.support.samples import sample

SOFTMAX = """
WITH m AS (SELECT {keys}, MAX(val) AS val FROM {x} GROUP BY {keys}),
e AS (SELECT {keys}, t, EXP(x.val - m.val) AS val FROM {x} x JOIN m USING ({keys})),
z AS (SELECT {keys}, SUM(val) AS val FROM e GROUP BY {keys}),
p AS (SELECT {keys}, t, e.val / z.val AS val FROM e JOIN z USING ({keys}))
"""
ATTENTION = (
    "WITH x AS (SELECT h, s, t, SUM(q.val * k.val) / 8 AS val "
    "FROM q JOIN k USING (h, d) {where} GROUP BY h, s, t),"
    + SOFTMAX.format(keys="h, s", x="x").replace("WITH", "", 1)
)
VALUES = "SELECT h, s, d, SUM(p.val * v.val) AS val FROM p JOIN v USING (h, t) GROUP BY h, s, d"
NORM = """
WITH mu AS (SELECT s, AVG(val) AS val FROM x GROUP BY s),
va AS (SELECT s, AVG((x.val - mu.val) * (x.val - mu.val)) AS val
       FROM x JOIN mu USING (s) GROUP BY s)
SELECT s, t, (x.val - mu.val) / SQRT(va.val + 1e-5) * g.val + b.val AS val
FROM x JOIN mu USING (s) JOIN va USING (s) JOIN g USING (t) JOIN b USING (t)
"""
DISTANCES = """
WITH a AS (SELECT s, t, x.val - g.val AS val FROM x JOIN g USING (t)),
p AS (SELECT a.s, m.u, SUM(a.val * m.val) AS val FROM a JOIN m USING (t) GROUP BY a.s, m.u),
l AS (SELECT p.s, SUM(p.val * a.val) AS val FROM p JOIN a ON p.s = a.s AND p.u = a.t GROUP BY p.s)
"""
STATEMENTS = {
    "softmax": SOFTMAX.format(keys="s", x="x") + "SELECT s, t, val FROM p",
    "softmax of columns": "WITH x AS (SELECT t AS s, s AS t, val FROM y),"
    + SOFTMAX.format(keys="s", x="x").replace("WITH", "", 1)
    + "SELECT s, t, val FROM p",
    "softmax that is read twice": SOFTMAX.format(keys="s", x="x")
    + "SELECT s, t, p.val AS p, LN(z.val) + m.val AS l FROM p JOIN z USING (s) JOIN m USING (s)",
    "cross-entropy": SOFTMAX.format(keys="s", x="x")
    + "SELECT SUM(-LN(p.val)) AS val FROM p JOIN picked ON picked.s = p.s AND p.t = picked.val",
    "windows": """WITH e AS (SELECT s, t, EXP(val - MAX(val) OVER (PARTITION BY s)) AS val FROM x)
SELECT s, t, val / SUM(val) OVER (PARTITION BY s) AS val FROM e""",
    "layer norm": NORM,
    "extremes": """WITH a AS (SELECT s, MIN(val) AS val FROM x GROUP BY s),
b AS (SELECT s, MAX(val) AS val FROM x GROUP BY s),
n AS (SELECT s, t, (x.val - a.val) / (b.val - a.val) AS val
      FROM x JOIN a USING (s) JOIN b USING (s))
SELECT s, ARG_MAX(t, val) AS best, COUNT(CASE WHEN val > 0.5 THEN 1 END) AS many
FROM n GROUP BY s""",
    "product with a mask": """WITH p AS
(SELECT q.h, q.s, k.t, SUM(q.val * k.val) AS val FROM q JOIN k USING (h, d) GROUP BY q.h, q.s, k.t)
SELECT p.h, x.s, x.t, CASE WHEN x.val > 0 THEN p.val * 2 ELSE x.val END AS val
FROM p JOIN x USING (s, t)""",
    "product of columns with a mask": """WITH p AS
(SELECT q.s, v.t, SUM(q.val * v.val) AS val FROM q JOIN v USING (h, d)
 WHERE q.h = 1 GROUP BY q.s, v.t)
SELECT t, s, GREATEST(p.val, x.val) AS val, p.val AS p FROM p JOIN x USING (s, t)""",
    "distances": DISTANCES + "SELECT s, val FROM l",
    "distances and sums of columns": DISTANCES + "SELECT l.s, l.val + c.val AS val FROM l JOIN "
    "(SELECT t, SUM(val) AS val FROM a GROUP BY t) c ON l.s = c.t",
    "attention": ATTENTION.format(where="") + VALUES,
    "causal attention": ATTENTION.format(where="WHERE t <= s") + VALUES,
    "window attention": ATTENTION.format(where="WHERE t <= s AND t > s - 5") + VALUES,
    "attention to what follows": ATTENTION.format(where="WHERE t >= s + 1") + VALUES,
    "attention with empty rows": ATTENTION.format(where="WHERE t < s") + VALUES,
    "attention by parity": ATTENTION.format(where="WHERE (s + t) % 2 = 0") + VALUES,
    "weights": ATTENTION.format(where="WHERE t <= s") + "SELECT h, s, t, val FROM p",
    "weights and values": ATTENTION.format(where="WHERE t <= s")
    + f", o AS ({VALUES}) SELECT h, s, d, o.val + w.val AS val FROM o JOIN "
    "(SELECT h, s, MAX(val) AS val FROM p GROUP BY h, s) w USING (h, s)",
}
ROWS, INNER, HEADS, DEPTH = 37, 45, 3, 16
F, D = np.float32, np.float64
NOT_FINITE = list(
    product([F, D], ["softmax", "causal attention", "weights"], [np.nan, np.inf, -np.inf])
)
BOTH = pytest.mark.parametrize("con", [F, D], indirect=True)
TYPES: dict[str, list[type]] = {
    "softmax": [F, D], "softmax of columns": [D], "softmax that is read twice": [F],
    "product with a mask": [F, D], "product of columns with a mask": [F],
    "cross-entropy": [D], "windows": [F, D], "layer norm": [F], "extremes": [D],
    "distances": [F, D], "distances and sums of columns": [F],
    "attention": [F], "causal attention": [F, D], "window attention": [F],
    "attention to what follows": [D], "attention with empty rows": [F],
    "attention by parity": [D], "weights": [D], "weights and values": [F],
}  # fmt: skip
"""The types of each statement's tensors: products, softmaxes and masks meet both.

What else groups run is loops, of which test_loops.py tests every function in every type.
"""


@pytest.fixture
def con(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[einsql.Connection]:
    """Tensors of FLOAT, or of the type that a test asks for."""
    monkeypatch.setattr(groups, "LEAST", 100)
    con = einsql.connect()
    rng = np.random.default_rng(0)
    dtype = getattr(request, "param", F)

    def register(name: str, *dims: str, **extents: int) -> None:
        array = rng.standard_normal(tuple(extents[d] for d in dims)).astype(dtype)
        con.register(name, array, dims=dims)

    extents = {"s": ROWS, "t": INNER, "u": INNER, "h": HEADS, "d": DEPTH}
    for name, dims in {
        "x": "st", "y": "st", "m": "tu", "g": "t", "b": "t", "q": "hsd", "k": "htd", "v": "htd",
    }.items():  # fmt: skip
        register(name, *dims, **extents)
    con.register("picked", rng.integers(0, INNER, ROWS), dims=("s",))
    yield con
    con.close()


def _steps(con: einsql.Connection, sql: str, given: tuple[int, ...] = ()) -> list[str]:
    lines = [line for (line,) in con.execute(f"EXPLAIN {sql}", given).fetchall()]
    return lines[lines.index("-- steps") + 1 :]


def _table(con: einsql.Connection, sql: str) -> np.ndarray:
    rows = con.execute(sql).fetchall()
    return np.array(sorted(rows), float).reshape(len(rows), -1)


def _dtype(con: einsql.Connection) -> np.dtype:
    """The type of this test's tensors."""
    found: np.dtype = con.execute("SELECT s, t, val FROM x").fetch_numpy().dtype
    return found


class _Defined:
    """A program that does what a graph means, in float64."""

    aliased_inputs = ()
    verifies: frozenset[str] = frozenset()

    def __init__(self, root: EinSum) -> None:
        self.root = root

    def run(self, inputs: Any, tick: object) -> list[dict[str, np.ndarray]]:
        fields = evaluate(self.root, inputs)
        return [{n: a.astype(self.root.schema.dtype(n).numpy) for n, a in fields.items()}]


def _defined(con: einsql.Connection, sql: str) -> np.ndarray:
    """The answer by the reference."""
    _table(con, sql)
    plan = cached(con, sql)
    program, plan.program = plan.program, _Defined(plan.optimized.root)
    answer = _table(con, sql)
    plan.program = program
    return answer


def _same(con: einsql.Connection, sql: str) -> None:
    together = _table(con, sql)
    np.testing.assert_allclose(together, _defined(con, sql), rtol=2e-5, atol=1e-6)
    con.execute("SET disabled_rules = 'group-nodes'")
    assert not any("  group  " in line for line in _steps(con, sql))
    single = _table(con, sql)
    con.execute("SET disabled_rules = ''")
    np.testing.assert_allclose(together, single, rtol=2e-5, atol=1e-6)


SINGLE = ("attention with empty rows", "attention to what follows", "attention by parity")
"""Statements whose masks leave rows empty, or are no ranges."""


@pytest.mark.parametrize(
    ("con", "name"),
    [(t, name) for name in STATEMENTS for t in sample(TYPES[name][:1], TYPES[name])],
    indirect=["con"],
)
def test_nodes_run_together_as_one_by_one(con: einsql.Connection, name: str) -> None:
    sql = STATEMENTS[name]
    assert any("  group  " in line for line in _steps(con, sql)) or name in SINGLE
    _same(con, sql)


def test_a_map_that_two_nodes_read_by_their_own_keys_is_not_stored(con: einsql.Connection) -> None:
    """x - g is a row of the product, and a value for each of the product's columns."""
    first = _steps(con, STATEMENTS["distances"])[0]
    assert first.split()[:2] == ["r0..r2", "group"]


@BOTH
def test_sums_along_rows_are_handed_on_whatever_their_length(
    con: einsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of products are not, where a block would read the whole other side again."""
    monkeypatch.setattr(find, "DEEPEST", DEPTH - 1)
    (step,) = _steps(con, NORM)
    assert "  group  " in step
    assert _steps(con, STATEMENTS["attention"])[0].split()[1] == "blas"
    _same(con, NORM)


@pytest.mark.parametrize(
    ("con", "name", "value"), sample(NOT_FINITE[::5], NOT_FINITE), indirect=["con"]
)
def test_what_is_not_finite_spreads_as_far_as_in_single_nodes(
    con: einsql.Connection, name: str, value: float
) -> None:
    """Queries and values are DOUBLE, whatever the keys are: types may be mixed."""
    rng = np.random.default_rng(1)
    for table, dims, shape, dtype in (
        ("x", "st", (ROWS, INNER), _dtype(con)),
        ("q", "hsd", (HEADS, ROWS, DEPTH), D),
        ("v", "htd", (HEADS, INNER, DEPTH), D),
    ):
        array = rng.standard_normal(shape).astype(dtype)
        array[(..., ROWS // 2, 3)] = value
        con.register(table, array, dims=tuple(dims))
    _same(con, STATEMENTS[name])


@BOTH
def test_layouts_of_operands_do_not_matter(con: einsql.Connection) -> None:
    rng, dtype = np.random.default_rng(2), _dtype(con)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    q = normal(DEPTH, ROWS, HEADS).transpose(2, 1, 0)
    k = np.broadcast_to(normal(INNER, DEPTH), (HEADS, INNER, DEPTH))
    v = normal(HEADS, 2 * INNER, DEPTH)[:, ::-2]
    x = np.asfortranarray(normal(ROWS, INNER))
    for table, dims, array in (("q", "hsd", q), ("k", "htd", k), ("v", "htd", v), ("x", "st", x)):
        con.register(table, array, dims=tuple(dims))
    for name in ("causal attention", "softmax"):
        _same(con, STATEMENTS[name])


@pytest.mark.parametrize(("deep", "grouped"), [(64, True), (65, False)])
def test_a_product_runs_with_what_uses_its_elements_unless_sums_are_long(
    con: einsql.Connection, deep: int, grouped: bool
) -> None:
    con.register("a", np.ones((ROWS, deep), np.float32), dims=("s", "d"))
    con.register("c", np.ones((deep, INNER), np.float32), dims=("d", "t"))
    sql = (
        "WITH p AS (SELECT s, t, SUM(a.val * c.val) AS val FROM a JOIN c USING (d) GROUP BY s, t) "
        "SELECT s, t, p.val - x.val AS val FROM p JOIN x USING (s, t)"
    )
    assert any("  group  " in line for line in _steps(con, sql)) is grouped
    _same(con, sql)


@pytest.mark.parametrize(("deep", "grouped"), [(find.DEEPEST_MAP, True), (32, False)])
def test_products_only_are_left_to_blas_unless_they_are_short(
    con: einsql.Connection, deep: int, grouped: bool
) -> None:
    for table, dims in (("a", "sd"), ("c", "td"), ("w", "stu")):
        shape = tuple({"s": ROWS, "t": INNER, "d": deep, "u": 4}[x] for x in dims)
        con.register(table, np.ones(shape, np.float32), dims=tuple(dims))
    sql = (
        "SELECT s, u, SUM(a.val * c.val * w.val) AS val FROM a JOIN c USING (d) "
        "JOIN w USING (s, t) GROUP BY s, u"
    )
    assert any("  group  " in line for line in _steps(con, sql)) is grouped
    _same(con, sql)


@pytest.mark.parametrize(
    ("con", "wide"), [(F, 17), (F, 24), (F, 25), (D, 9), (D, 12)], indirect=["con"]
)
def test_last_columns_of_a_product_may_fill_one_register(con: einsql.Connection, wide: int) -> None:
    rng, dtype = np.random.default_rng(wide), _dtype(con)
    for name, dims, shape in (("x", "st", (ROWS, INNER)), ("c", "tw", (INNER, wide))):
        con.register(name, rng.integers(-4, 5, shape).astype(dtype), dims=tuple(dims))
    con.register("d", rng.integers(-4, 5, (ROWS, wide)).astype(dtype), dims=("s", "w"))
    sql = (
        "WITH p AS (SELECT s, w, SUM(x.val * c.val) AS val FROM x JOIN c USING (t) GROUP BY s, w) "
        "SELECT s, w, p.val - d.val AS val FROM p JOIN d USING (s, w)"
    )
    assert any("  group  " in line for line in _steps(con, sql))
    _same(con, sql)


def test_a_map_of_a_long_product_runs_in_the_group_that_computes_it(
    con: einsql.Connection,
) -> None:
    for name in "kv":
        con.register(
            name, np.random.default_rng(7).random((HEADS, 300, DEPTH), F), dims=("h", "t", "d")
        )
    sql = ATTENTION.format(where="") + (
        ", o AS (SELECT h, s, d, SUM(e.val * v.val) AS val FROM e JOIN v USING (h, t) "
        "GROUP BY h, s, d) SELECT h, s, d, o.val / z.val AS val FROM o JOIN z USING (h, s)"
    )
    assert [line.split()[0] for line in _steps(con, sql)] == ["r0..r5", "r6"]
    _same(con, sql)


@pytest.mark.parametrize(
    ("con", "wide"), [(F, 8), (F, 16), (F, 17), (D, 8), (D, 9)], indirect=["con"]
)
def test_narrow_right_sides_are_multiplied_by_tiles_of_their_own(
    con: einsql.Connection, wide: int
) -> None:
    right = np.random.default_rng(wide).standard_normal((wide, INNER)).astype(_dtype(con))
    con.register("w", right, dims=("w", "t"))
    sql = (
        "WITH p AS (SELECT s, t, GREATEST(val, 0) AS val FROM x) "
        "SELECT s, w, SUM(p.val * w.val) AS val FROM p JOIN w USING (t) GROUP BY s, w"
    )
    assert any("  group  " in line for line in _steps(con, sql)) is (wide <= find.DEEPEST_MAP)
    _same(con, sql)


@pytest.mark.parametrize(("wide", "grouped"), [(14, True), (40, False)])
def test_maps_are_stored_before_wide_products(
    con: einsql.Connection, wide: int, grouped: bool
) -> None:
    for table in "abc":
        con.register(table, np.ones((wide, 64), np.float32), dims=(f"i{table}", "t"))
    sql = (
        "SELECT ia, ib, ic, SUM(a.val * b.val * c.val) AS val FROM a JOIN b USING (t) "
        "JOIN c USING (t) GROUP BY ia, ib, ic"
    )
    assert any("  group  " in line for line in _steps(con, sql)) is grouped
    _same(con, sql)


def test_an_overflow_within_a_group_is_reported(con: einsql.Connection) -> None:
    con.register("n", np.full((ROWS, INNER), 2**30, np.int32), dims=("s", "t"))
    sql = (
        "WITH m AS (SELECT s, MAX(val) AS val FROM n GROUP BY s) "
        "SELECT s, t, n.val + m.val AS val FROM n JOIN m USING (s)"
    )
    assert any("  group  " in line for line in _steps(con, sql))
    with pytest.raises(einsql.DataError, match="Overflow in addition of INTEGER"):
        con.execute(sql).fetchall()


@BOTH
def test_a_group_is_explained_and_cancelled(con: einsql.Connection) -> None:
    sql = STATEMENTS["softmax"]
    (step,) = _steps(con, sql)
    assert step == f"r0..r3  group  {4 * ROWS * INNER:,} points  blocks of s:{ROWS}"
    report = con.explain(sql, analyze=True).to_dict()
    nodes = report["nodes"]
    assert all(n["group"]["nodes"] == ["r0", "r1", "r2", "r3"] for n in nodes)
    assert [n["measured"]["seconds"] > 0 for n in nodes] == [False, False, False, True]

    con.execute(sql)
    plan = cached(con, sql)
    assert isinstance(plan, Plan)

    class CancelledError(Exception):
        pass

    def tick(done: float) -> None:
        raise CancelledError

    x = con.execute("SELECT s, t, val FROM x").fetch_numpy()
    with pytest.raises(CancelledError):
        plan.result({"x": LocalFields({"val": x})}, tick)


def _attention(rng: np.random.Generator, fixed: str) -> tuple[dict[str, tuple[str, ...]], str]:
    """Attention over keys in any order, with keys of one value at any place.

    Args:
        rng: Where the choices come from.
        fixed: The value that the key `f` of the keys and values has in the statement.

    Returns:
        The dimensions of each array, and the statement.
    """

    def mixed(keys: str, singles: list[str], last: str = "") -> list[str]:
        order = [*map(str, rng.permutation(list(keys))), *last]
        for x in singles:
            order.insert(int(rng.integers(len(order) + 1)), x)
        return order

    def some(singles: list[str]) -> list[str]:
        return [x for x in singles if rng.integers(2)]

    own = {name: some(["o", "u"]) for name in "qkv"}
    dims = {
        "q1": tuple(mixed("hsd", own["q"])),
        "k1": tuple(mixed("htd", [*own["k"], "f"])),
        "v1": tuple(mixed("htd", [*own["v"], "f"])),
    }
    k, v = (
        f"(SELECT {', '.join(x for x in dims[name] if x != 'f')}, val "
        f"FROM {name} WHERE f = {fixed})"
        for name in ("k1", "v1")
    )
    kept = some(sorted({*own["q"], *own["k"]}))
    rows = mixed("hs", kept)
    scores = mixed("hs", kept, "t")
    out = mixed("hs", some(sorted({*kept, *own["v"]})), "d")
    where = rng.choice(["", "WHERE t <= s"])
    both = ", ".join(["h", "d", *(x for x in own["q"] if x in own["k"])])
    again = ", ".join(["h", "t", *(x for x in kept if x in own["v"])])
    softmax = SOFTMAX.format(keys=", ".join(rows), x="x").replace("WITH", "", 1)
    softmax = softmax.replace(", t, ", f", {', '.join(x for x in scores if x not in rows)}, ")
    return dims, (
        f"WITH k AS {k}, v AS {v}, "
        f"x AS (SELECT {', '.join(scores)}, SUM(q1.val * k.val) / 4 AS val FROM q1 "
        f"JOIN k USING ({both}) {where} GROUP BY {', '.join(scores)}), {softmax} "
        f"SELECT {', '.join(out)}, SUM(p.val * v.val) AS val FROM p JOIN v USING ({again}) "
        f"GROUP BY {', '.join(out)}"
    )


@pytest.mark.parametrize("seed", range(sample(1, 4)))
def test_keys_of_one_value_do_not_matter(con: einsql.Connection, seed: int) -> None:
    extents = {"s": ROWS, "t": INNER, "h": HEADS, "d": DEPTH, "o": 1, "u": 1, "f": 3}
    dims, sql = _attention(np.random.default_rng(seed), "2")
    rng, duck = np.random.default_rng(seed), duckdb.connect()
    for name, keys in dims.items():
        array = rng.standard_normal([extents[x] for x in keys]).astype(np.float32)
        con.register(name, array, dims=keys)
        grid = np.indices(array.shape).reshape(array.ndim, -1)
        columns = {**dict(zip(keys, grid, strict=True)), "val": array.ravel()}
        duck.register("columns", columns)
        duck.execute(f"CREATE TABLE {name} AS SELECT * FROM columns")
    assert any("  group  " in line for line in _steps(con, sql)), sql
    _same(con, sql)
    rows = _table(con, sql)
    theirs = np.array(sorted(duck.execute(sql).fetchall()), float)
    np.testing.assert_allclose(rows, theirs, rtol=1e-4, atol=1e-5)
    _, given = _attention(np.random.default_rng(seed), "?")
    assert any("  group  " in line for line in _steps(con, given, (2, 2))), given
    late = np.array(sorted(con.execute(given, [2, 2]).fetchall()), float)
    np.testing.assert_allclose(late, rows, rtol=2e-5, atol=1e-6)
