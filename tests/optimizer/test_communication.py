"""How tiles get from site to site: known mappings, their collectives and their exact bytes."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.optimizer.decomposition import Cut, Decomposition
from einsql.optimizer.decomposition.decompose import cut_problem
from einsql.optimizer.decomposition.problem import Problem
from einsql.planner.plan import Plan
from tests.engine.test_sites import CHAIN, QUERIES, chain, connection, explained
from tests.support.plans import cached, planned, tree_of
from tests.support.samples import sample

CHANCE = np.random.default_rng(11)


def integers(*shape: int) -> np.ndarray:
    """Small whole numbers, whose sums are exact in any order."""
    return CHANCE.integers(-4, 5, shape).astype(np.float32)


Parts = dict[str, int]
Cuts = Sequence[str] | Callable[[Cut], Parts]
"""The cut of each operation, producers first, such as `i=2 k=3 copies=2`."""


def parts(text: str) -> Parts:
    """`i=2 k=3` as a dict."""
    return {x: int(n) for x, n in (part.split("=") for part in text.split())}


def forced(sites: int, cuts: Cuts) -> Any:
    """A decomposition that gives each operation its cut."""

    def cut(problem: Problem, *_: object) -> Decomposition:
        whole = cut_problem(problem, 1).cuts
        all_wanted = [cuts(c) for c in whole] if callable(cuts) else [parts(x) for x in cuts]
        assert len(all_wanted) == len(whole), [c.parts for c in whole]
        made = []
        for c, wanted in zip(whole, all_wanted, strict=True):
            copies = wanted.pop("copies", 1)
            assert wanted.keys() <= c.parts.keys(), (wanted, c.parts)
            made.append(replace(c, parts=dict.fromkeys(c.parts, 1) | wanted, copies=copies))
        return Decomposition("forced", sites, tuple(made), 0.0)

    return cut


def placed(
    monkeypatch: pytest.MonkeyPatch,
    con: einsql.Connection,
    sql: str,
    sites: int,
    cuts: Cuts,
) -> dict[str, Any]:
    """EXPLAIN's report of a statement under given cuts, once its answer is found right."""
    con.execute("SET sites = 1; SET jit = 'never'")
    expected = con.execute(sql).fetchall()
    with monkeypatch.context() as patch:
        patch.setattr("einsql.optimizer.site_optimizer.cut_problem", forced(sites, cuts))
        con.execute(f"SET sites = {sites}")
        rows = con.execute(sql).fetchall()
        # Against the largest value, for what is added may cancel.
        size = np.abs(np.array(expected, np.float64)).max(axis=0, initial=0.0)
        assert len(rows) == len(expected)
        assert (np.abs(np.subtract(rows, expected)) <= 1e-5 * size).all()
        (text,) = con.execute(f"EXPLAIN (ANALYZE, FORMAT json) {sql}").fetchone() or ("",)
    report: dict[str, Any] = json.loads(text)
    for node in report["nodes"]:
        assert node["measured"]["bytes_sent"] == node["bytes_sent"]
    sent = sum(s["bytes_sent"] for s in report["per_site"])
    assert sent == report["total"]["bytes_sent"] == sum(n["bytes_sent"] for n in report["nodes"])
    return report


def moved(report: dict[str, Any]) -> list[tuple[str, int]]:
    """The collective and the bytes of every operation."""
    return [(n["collective"], n["bytes_sent"]) for n in report["nodes"]]


def along(label: str, sites: int) -> Callable[[Cut], Parts]:
    """Cuts a label, perhaps numbered, wherever it is; other operations are run everywhere."""

    def cut(c: Cut) -> Parts:
        found = [x for x in c.parts if x == label or x.startswith(f"{label}_")]
        return {found[0]: sites} if found else {"copies": sites}

    return cut


MLP = """
WITH h AS (SELECT b, f, SUM(x.val * w1.val) AS val FROM x JOIN w1 USING (a) GROUP BY b, f),
g AS (SELECT b, f, GREATEST(val, 0) AS val FROM h),
y AS (SELECT b, o, SUM(g.val * w2.val) AS val FROM g JOIN w2 USING (f) GROUP BY b, o)
SELECT b, o, y.val + r.val AS val FROM y JOIN r USING (b, o)"""


def mlp() -> einsql.Connection:
    con = einsql.connect()
    for name, keys, shape in (
        ("x", "ba", (6, 5)), ("w1", "af", (5, 8)), ("w2", "fo", (8, 7)), ("r", "bo", (6, 7)),
    ):  # fmt: skip
        con.register(name, integers(*shape), dims=tuple(keys))
    return con


def test_a_tensor_parallel_mlp_takes_one_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    report = placed(monkeypatch, mlp(), MLP, 4, ["f=4", "f=4", "f=4", "copies=4"])
    *_, second, last = report["nodes"]
    assert second["placements"]["result"] == ["Partial(SUM)"]
    assert last["placements"] == {
        "grid": [["*", 4]], "operands": [["Replicate"], ["Replicate"]], "result": ["Replicate"],
    }  # fmt: skip
    assert moved(report) == [
        ("none", 0),
        ("none", 0),
        ("all-reduce", 2 * 3 * 6 * 7 * 4),
        ("none", 0),
    ]


DIVIDED = [
    "SELECT i // 2 AS g, j % 3 AS r, SUM(val) AS s FROM x WHERE i < 12 AND j < 9 GROUP BY g, r",
    # what is found at a divided key says where to look further
    "SELECT t // 2 AS g, SUM(x.val) AS s FROM ids JOIN x ON x.j = ids.val GROUP BY g",
    # a product whose wide key is read digit by digit
    "WITH w AS (SELECT i, k, SUM(x.val * y.val) AS val FROM x JOIN y USING (j) GROUP BY i, k) "
    "SELECT p, SUM(w.val * q) AS s FROM w, range(3) p(p), range(3) q(q) WHERE w.k = p * 3 + q "
    "GROUP BY p",
]


@pytest.mark.parametrize("seed", sample([1], range(3)))
def test_any_cut_gives_the_same_answers_and_sends_what_is_planned(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    sites = chance.choice([3, 4, 8, 12])
    for sql in (*QUERIES, *DIVIDED):
        cut = functools.partial(random_cut, chance, sites)
        placed(monkeypatch, connection(), sql, sites, cut)


def random_cut(chance: random.Random, sites: int, cut: Cut) -> Parts:
    """Any numbers of parts, even more than a label has values, and as many copies as fit."""
    parts = {x: chance.choice([1, 1, 2, 3, 5, 13]) for x in cut.parts}
    calls = prod(parts.values())
    copies = chance.randint(1, sites // calls) if calls <= sites else 1
    return parts | {"copies": copies}


PRODUCT = "SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"


def declared(a: str, b: str) -> einsql.Connection:
    """Two matrices of 8 x 8 with declared cuts; no text is no declaration."""
    con = einsql.connect()
    con.register("one", integers(8, 8), dims=("i", "j"))
    con.execute(f"CREATE TENSOR a {a} AS SELECT i, j, val FROM one")
    con.execute(f"CREATE TENSOR b {b} AS SELECT j AS j, i AS k, val FROM one")
    return con


@pytest.mark.parametrize(
    ("a", "b", "cut", "collective", "nbytes"),
    [
        ("", "", "i=4", "none", 0),
        # rows are read where they lie; b's blocks of rows are needed whole everywhere
        ("PARTITION BY (i 4)", "PARTITION BY (j 4)", "i=4", "all-gather", 3 * 64 * 4),
        ("PARTITION BY (i 4)", "PARTITION BY ()", "i=4", "none", 0),
        ("PARTITION BY (i 4)", "PARTITION BY (j 1)", "i=4", "none", 0),
        # a lies by columns and is read by rows: each site keeps a quarter of its quarter
        ("PARTITION BY (j 4)", "", "i=4", "all-to-all", 64 * 4 * 3 // 4),
        # two parts lie at sites 0 and 2, which hand half of theirs to sites 1 and 3
        ("PARTITION BY (i 2)", "", "i=4", "scatter", 2 * 16 * 4),
        ("PARTITION BY (i 2, j 2)", "PARTITION BY (J 2)", "i=2 k=2",
         "all-gather + scatter + all-gather", 4 * 16 * 4 + 2 * (32 + 16) * 4),
    ],
)  # fmt: skip
def test_a_declared_cut_is_where_a_tensor_lies(
    monkeypatch: pytest.MonkeyPatch, a: str, b: str, cut: str, collective: str, nbytes: int
) -> None:
    report = placed(monkeypatch, declared(a, b), PRODUCT, 4, [cut, cut])
    assert moved(report)[0] == (collective, nbytes)


def test_a_changed_declaration_is_a_new_plan() -> None:
    con = declared("PARTITION BY (i 4)", "")
    con.execute("SET sites = 4; SET strategy = 'data:i'")
    con.execute(PRODUCT)
    before = cached(con, PRODUCT)
    con.execute("CREATE OR REPLACE TENSOR a PARTITION BY (j 4) AS SELECT i, j, val FROM one")
    con.execute(PRODUCT)
    after = cached(con, PRODUCT)
    assert isinstance(before, Plan)
    assert isinstance(after, Plan)
    assert before.placed is not None
    assert after.placed is not None
    assert before.placed.bytes_sent < after.placed.bytes_sent
    rows = con.execute("SHOW TENSORS").fetchall()
    assert {r[0]: r[4] for r in rows} == {"a": "j 4", "b": "", "one": ""}
    con.execute("SET strategy = 'eindecomp'")
    con.execute("CREATE OR REPLACE TENSOR b PARTITION BY () AS SELECT i AS j, j AS k, val FROM one")
    con.execute("UPDATE b SET val = b.val + 1")
    assert {r[0]: r[4] for r in con.execute("SHOW TENSORS").fetchall()}["b"] == "()"


def test_too_many_declared_parts_are_refused() -> None:
    with pytest.raises(einsql.ProgrammingError, match="parts"):
        declared("PARTITION BY (i 1000, j 1000)", "")


STEP = """
WITH h AS (SELECT n, k, SUM(x.val * w.val) AS val FROM x JOIN w USING (d) GROUP BY n, k),
g AS (SELECT d, k, SUM(x.val * h.val) AS val FROM x JOIN h USING (n) GROUP BY d, k)
SELECT d, k, w.val - g.val AS val FROM w JOIN g USING (d, k)"""


@pytest.mark.parametrize(
    ("cuts", "cost", "collectives"),
    [
        # data parallel: s copies of the weights, and the gradients once (TRA slides: 6 W)
        (["n=5", "n=5", "d=5"], 5 * 60 + 60, ["all-gather", "reduce-scatter", "none"]),
        # by outputs: every site needs its columns of the weights, which lie by rows
        (["k=6", "k=6", "k=6"], 60, ["all-to-all", "none", "none"]),
        # gradients wanted everywhere: an all-reduce is s times the size
        (["n=5", "n=5", "copies=5"], 5 * 60 + 5 * 60, ["all-gather", "all-reduce", "none"]),
    ],
)
def test_the_tra_counts_floats_by_copies(
    monkeypatch: pytest.MonkeyPatch, cuts: list[str], cost: float, collectives: list[str]
) -> None:
    con = einsql.connect()
    con.register("x", integers(20, 10), dims=("n", "d"))
    con.register("start", integers(10, 6), dims=("d", "k"))
    con.execute("CREATE TENSOR w PARTITION BY (d 5) AS SELECT d, k, val FROM start")
    sites = max(int(part.split("=")[1]) for part in cuts)
    report = placed(monkeypatch, con, STEP, sites, cuts)
    assert [n["collective"] for n in report["nodes"]] == collectives
    assert report["total"]["tra_cost"] == sum(n["tra_cost"] for n in report["nodes"]) == cost


def test_a_sum_of_partial_results_is_completed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of attention's input: each projection contracts the heads."""
    con = einsql.connect()
    for name in ("dq", "dk", "dv"):
        con.register(name, integers(6, 4, 3), dims=("s", "h", "d"))
        con.register(f"w{name[1]}", integers(5, 4, 3), dims=("a", "h", "d"))
    each = "{0} AS (SELECT s, a, SUM(x.val * w.val) AS val FROM d{0} x JOIN w{0} w USING (h, d) "
    each += "GROUP BY s, a)"
    gradient = f"""
    WITH {", ".join(each.format(x) for x in "qkv")}
    SELECT s, a, 0.5::FLOAT * (q.val + k.val) - v.val AS val
    FROM q JOIN k USING (s, a) JOIN v USING (s, a)"""
    report = placed(monkeypatch, con, gradient, 4, ["h=4", "h=4", "h=4", ""])
    last = report["nodes"][-1]
    assert last["placements"] == {
        "grid": [["*", 4]], "operands": [["Partial(SUM)"]] * 3, "result": ["Partial(SUM)"],
    }  # fmt: skip
    assert moved(report) == [("none", 0)] * 3 + [("reduce-scatter", 3 * 6 * 5 * 4)]


@pytest.mark.parametrize(
    ("sites", "cut", "operands", "result", "traffic"),
    [
        (1, "", [[], []], [], ("none", 0)),
        (8, "i=8", [["Shard(i)"], ["Replicate"]], ["Shard(i)"], ("none", 0)),
        # (1, n, 1) of the thesis: a by columns, b by rows, the result a sum over all sites
        (8, "j=8", [["Shard(j)"], ["Shard(j)"]], ["Partial(SUM)"], ("reduce-scatter", 7 * 64 * 4)),
        (8, "i=2 j=2 k=2",
         [["Shard(i)", "Shard(j)", "Replicate"], ["Replicate", "Shard(j)", "Shard(k)"]],
         ["Shard(i)", "Partial(SUM)", "Shard(k)"], ("reduce-scatter", 64 * 4)),
        # more parts than columns: the last sites have nothing to do
        (11, "j=11", [["Shard(j)"], ["Shard(j)"]], ["Partial(SUM)"], ("reduce", 10 * 64 * 4)),
    ],
)  # fmt: skip
def test_a_product_cut_over_its_iteration_space(
    monkeypatch: pytest.MonkeyPatch, sites: int, cut: str, operands: list[list[str]],
    result: list[str], traffic: tuple[str, int],
) -> None:  # fmt: skip
    report = placed(monkeypatch, declared("", ""), PRODUCT, max(2, sites), [cut, ""])
    node = report["nodes"][0]
    assert node["placements"]["operands"] == operands
    assert node["placements"]["result"] == result
    assert (node["collective"], node["bytes_sent"]) == traffic


ATTENTION = """
WITH q AS (SELECT s, h, d, SUM(x.val * w.val) AS val FROM x JOIN wq w USING (a) GROUP BY s, h, d),
k AS (SELECT s AS t, h, d, SUM(x.val * w.val) AS val FROM x JOIN wk w USING (a) GROUP BY s, h, d),
v AS (SELECT s AS t, h, d, SUM(x.val * w.val) AS val FROM x JOIN wv w USING (a) GROUP BY s, h, d),
c AS (SELECT h, s, t, SUM(q.val * k.val) / 4 AS val FROM q JOIN k USING (h, d) GROUP BY h, s, t),
e AS (SELECT h, s, t, EXP(val - MAX(val) OVER (PARTITION BY h, s)) AS val FROM c),
p AS (SELECT h, s, t, val / SUM(val) OVER (PARTITION BY h, s) AS val FROM e),
o AS (SELECT s, h, d, SUM(p.val * v.val) AS val FROM p JOIN v USING (h, t) GROUP BY s, h, d),
y AS (SELECT s, a, SUM(o.val * w.val) AS val FROM o JOIN wo w USING (h, d) GROUP BY s, a)
SELECT s, a, x.val + y.val AS val FROM x JOIN y USING (s, a)"""


def attention() -> einsql.Connection:
    con = einsql.connect()
    con.register("x", integers(6, 5) / 8, dims=("s", "a"))
    for name in ("wq", "wk", "wv", "wo"):
        con.register(name, integers(5, 4, 3) / 8, dims=("a", "h", "d"))
    return con


def test_attention_by_heads_takes_one_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    report = placed(monkeypatch, attention(), ATTENTION, 4, along("h", 4))
    traffic = [t for t in moved(report) if t[1]]
    assert traffic == [("all-reduce", 2 * 3 * 6 * 5 * 4)]
    *_, projection, last = report["nodes"]
    assert projection["placements"]["result"] == ["Partial(SUM)"]
    assert last["placements"]["result"] == ["Replicate"]
    (reduced,) = projection["collectives"]
    assert reduced == {"collective": "all-reduce", "along": ["h"], "bytes_sent": 2 * 3 * 6 * 5 * 4}


def test_a_sequence_parallel_mlp_gathers_and_scatters(monkeypatch: pytest.MonkeyPatch) -> None:
    con = mlp()
    con.execute("CREATE TENSOR xs PARTITION BY (b 3) AS SELECT b, a, val FROM x")
    sql = MLP.replace("FROM x JOIN", "FROM xs x JOIN")
    report = placed(monkeypatch, con, sql, 3, ["f=3", "f=3", "f=3", "b=3"])
    assert moved(report) == [
        ("all-gather", 2 * 6 * 5 * 4), ("none", 0), ("reduce-scatter", 2 * 6 * 7 * 4), ("none", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "batch", "traffic"),
    [
        # FSDP x TP: weights cut over both mesh axes, gathered along the batch's
        ("(a 2, f 2)", "", [("all-gather", ["b"], 4 * 2 * 4 * 4)]),
        # one tensor axis over both mesh axes: the inner half is gathered
        ("(f 4)", "", [("all-gather", ["b"], 4 * 4 * 2 * 4)]),
        ("(f 2)", "", [("broadcast", ["b"], 2 * 4 * 4 * 4)]),
        ("()", "PARTITION BY (b 2)", [("broadcast", ["f"], 2 * 3 * 4 * 4)]),
    ],
)
def test_two_mesh_axes(
    monkeypatch: pytest.MonkeyPatch, weights: str, batch: str,
    traffic: list[tuple[str, list[str], int]],
) -> None:  # fmt: skip
    con = einsql.connect()
    con.register("x0", integers(6, 4), dims=("b", "a"))
    con.register("w0", integers(4, 8), dims=("a", "f"))
    con.execute(f"CREATE TENSOR x {batch} AS SELECT b, a, val FROM x0")
    con.execute(f"CREATE TENSOR w PARTITION BY {weights} AS SELECT a, f, val FROM w0")
    sql = "SELECT b, f, SUM(x.val * w.val) AS val FROM x JOIN w USING (a) GROUP BY b, f"
    report = placed(monkeypatch, con, sql, 4, ["b=2 f=2", "b=2 f=2"])
    found = [
        (c["collective"], c["along"], c["bytes_sent"])
        for c in report["nodes"][0]["collectives"]
        if c["bytes_sent"]
    ]
    assert found == traffic


def test_a_work_axis_is_cut_like_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Monte-Carlo: the samples are no data; each site makes its own."""
    sql = "SELECT SUM((i * 7919) % 1000) AS s FROM range(1001) r(i)"
    report = placed(monkeypatch, einsql.connect(), sql, 7, lambda c: {"i": 7} if c.parts else {})
    first = report["nodes"][0]
    assert first["placements"] == {"grid": [["i", 7]], "operands": [], "result": ["Partial(SUM)"]}
    assert report["total"]["bytes_sent"] == first["bytes_sent"] > 0
    assert first["collective"] == "reduce"


def test_a_softmax_cut_along_its_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two all-reduces of one number per row: the maximum and the denominator."""
    con = einsql.connect()
    con.register("x", integers(6, 8) / 8, dims=("i", "j"))
    sql = QUERIES[2]

    report = placed(monkeypatch, con, sql, 4, along("j", 4))
    traffic = [t for t in moved(report) if t[1]]
    assert traffic == [("all-reduce", 2 * 3 * 6 * 4)] * 2


def test_windows_over_sites_exchange_their_margins(monkeypatch: pytest.MonkeyPatch) -> None:
    con = einsql.connect()
    con.register("x0", integers(12), dims=("i",))
    con.execute("CREATE TENSOR x PARTITION BY (i 3) AS SELECT i, val FROM x0")
    sql = """SELECT o, SUM(x.val * (w + 1)) AS v FROM range(12) o(o), range(3) w(w), x
    WHERE x.i = o + w - 1 GROUP BY o"""
    report = placed(monkeypatch, con, sql, 3, along("o", 3))
    # four windows a site, each of them one cell to either side: two margins, both ways
    assert [t for t in moved(report) if t[1]] == [("halo", 2 * 2 * 4)]


def fused(digits: bool) -> str:
    """Attention whose projections are one product; its heads are digits of the wide key."""
    read = "SELECT p.s AS {0}, h.h, d.d, p.val FROM wide p, range(4) h(h), range(3) d(d) WHERE "
    read += (
        "p.o // 12 = {1} AND p.o // 3 % 4 = h.h AND p.o % 3 = d.d"
        if digits
        else "p.o = ({1} * 4 + h.h) * 3 + d.d"
    )
    parts = (
        f"{x} AS ({read.format(s, n)})" for n, (x, s) in enumerate(zip("qkv", "stt", strict=True))
    )
    wide = "wide AS (SELECT s, o, SUM(x.val * w.val) AS val FROM x JOIN w USING (a) GROUP BY s, o)"
    return f"WITH {wide}, {', '.join(parts)}, {ATTENTION[ATTENTION.index('c AS') :]}"


@pytest.mark.parametrize("digits", [False, True], ids=["composed", "divided"])
@pytest.mark.parametrize(
    ("declared", "weights"),
    [
        ("", 0),
        # a site lies nine columns wide and needs three for each of q, k and v: it has three
        ("PARTITION BY (o 4)", 4 * 6 * 5 * 4),
    ],
)
def test_a_fused_projection_is_cut_by_heads(
    monkeypatch: pytest.MonkeyPatch, digits: bool, declared: str, weights: int
) -> None:
    con = attention()
    con.register("w0", integers(5, 36) / 8, dims=("a", "o"))
    con.execute(f"CREATE TENSOR w {declared} AS SELECT a, o, val FROM w0")

    report = placed(monkeypatch, con, fused(digits), 4, along("h", 4))
    traffic = [t for t in moved(report) if t[1]]
    assert traffic[-1] == ("all-reduce", 2 * 3 * 6 * 5 * 4)
    assert sum(nbytes for _, nbytes in traffic[:-1]) == weights


def test_groups_of_a_key_are_cut_like_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    sql = "SELECT j // 3 AS g, SUM(val) AS s FROM x WHERE j < 9 GROUP BY g"
    con = einsql.connect()
    con.register("x", integers(4, 12), dims=("i", "j"))
    report = placed(monkeypatch, con, sql, 3, along("(j // 3)", 3))
    assert report["total"]["bytes_sent"] == 0


def test_a_product_lies_so_that_it_is_added_before_it_is_merged() -> None:
    """(A B) + C (D E): D E is merged for all who made it, then only the sum of the rest is."""
    con, s = chain(skewed=False)
    con.execute("SET strategy = 'equal'")
    report = explained(con, CHAIN, "SITES 8, ")
    assert [n["collective"] for n in report["nodes"]] == [
        "none", "all-reduce", "none", "reduce-scatter",
    ]  # fmt: skip
    assert report["total"]["bytes_sent"] == 3 * s * s * 4


def test_infinities_of_both_signs_merge_to_nan() -> None:
    con = einsql.connect()
    con.register("x", np.array([np.inf, -np.inf, 1.0]), dims=("i",))
    con.execute("SET sites = 3; SET strategy = 'data:i'")
    ((total,),) = con.execute("SELECT SUM(val) AS s FROM x").fetchall()
    assert np.isnan(total)


def test_more_parts_than_keys_leave_a_result_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    con = einsql.connect()
    con.register("x", np.ones(1, np.float32), dims=("i",))
    sql = "SELECT i, w, SUM(val) AS s FROM x CROSS JOIN range(2) r(w) GROUP BY i, w"
    placed(monkeypatch, con, sql, 4, lambda c: dict.fromkeys(c.parts, 2))


def test_a_scalar_is_fetched_by_the_sites_that_lack_it() -> None:
    con = einsql.connect(config={"sites": 3, "strategy": "model:k", "jit": "never"})
    con.register("d", np.arange(2.0), dims=("k",))
    con.register("t", np.arange(2.0) + 1, dims=("k",))
    sql = """WITH s AS (SELECT STDDEV(val) AS v FROM d),
    m AS (SELECT t.k, AVG(t.val * s.v) AS v FROM t, s GROUP BY t.k)
    SELECT VAR_SAMP(m.v * s.v) AS v FROM m, s"""
    plan, _ = planned(con, tree_of(sql))
    assert plan.site_plan is not None
    assert plan.site_plan.plan.bytes_sent == plan.site_plan.program.bytes_sent


def test_a_map_with_more_cells_than_sites_runs_where_its_operand_is() -> None:
    con = einsql.connect()
    con.register("u", integers(2, 2), dims=("a", "b"))
    con.register("w", integers(2, 2, 2), dims=("c", "d", "e"))
    con.execute("SET sites = 2")
    con.execute("SET strategy = 'equal'")  # 32 cells, and more orders of five labels than are tried
    sql = "SELECT e, d, c, b, a, EXP(SUM(u.val)) AS val FROM u, w GROUP BY e, d, c, b, a"
    assert con.explain(sql).to_dict()["total"]["bytes_sent"] == 0
    rows = con.execute(sql).fetchall()
    assert sorted(rows) == sorted(con.execute(sql.replace("EXP(SUM(u.val))", "EXP(MAX(u.val))")))
