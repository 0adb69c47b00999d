"""Virtual sites: the same answers however the work is cut, and exactly the planned traffic."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.engine.spmd_executor import SiteProgram
from einsql.ir.spmd.program import Local
from einsql.planner.plan import Plan
from tests.support.plans import cached
from tests.support.samples import combinations, sample

CHANCE = np.random.default_rng(3)
TENSORS: dict[str, tuple[str, np.ndarray]] = {
    "x": ("ij", CHANCE.integers(-8, 8, (13, 11)).astype(np.float32)),
    "y": ("jk", CHANCE.integers(-8, 8, (11, 9)).astype(np.float32)),
    "z": ("kl", CHANCE.integers(-8, 8, (9, 7)).astype(np.float32)),
    "ids": ("t", CHANCE.integers(0, 11, 6)),
    "none": ("ij", np.zeros((0, 4), np.float32)),
}

QUERIES = [
    "SELECT i, k, SUM(x.val * y.val) AS v FROM x JOIN y USING (j) GROUP BY i, k",
    "SELECT i, l, SUM(x.val * y.val * z.val) AS v FROM x JOIN y USING (j) JOIN z USING (k) "
    "GROUP BY i, l",
    # a softmax: a reduction, two maps that read it, a result with two readers
    "WITH e AS (SELECT i, j, EXP(val - MAX(val) OVER (PARTITION BY i)) AS v FROM x) "
    "SELECT i, j, v / SUM(v) OVER (PARTITION BY i) AS v FROM e",
    # presence, counts and the pairs of ARG_MIN are partial results as well
    "SELECT i, AVG(val) AS a, COUNT(*) AS n, ARG_MIN(j, val) AS m FROM x WHERE val > 2 GROUP BY i",
    "SELECT ARG_MIN(i, val) AS a, ARG_MAX(j, val) AS b, MIN(val) AS c FROM x",
    "SELECT ids.t, x.i, x.val FROM x JOIN ids ON x.j = ids.val",
    "SELECT ids.val AS g, SUM(x.val) AS s FROM x JOIN ids ON x.i = ids.t GROUP BY ids.val",
    # windows over cut keys read the cells around them
    "SELECT o, SUM(x.val * (w + 1)) AS v FROM range(9) o(o), range(3) w(w), x "
    "WHERE x.j = o + w GROUP BY o",
    "SELECT r.i AS i, SUM(x.val * r.i) AS v FROM range(20) r(i) JOIN x ON x.i = r.i // 2 "
    "GROUP BY r.i",
    "SELECT x.i, SUM(x.val * b.val) AS s FROM x, x b WHERE x.j = b.j AND b.i = x.j GROUP BY x.i",
    "SELECT VAR_SAMP(val) AS v, LOGSUMEXP(val) AS l FROM x",
    # a Monte-Carlo sum: the work axis is no data axis
    "SELECT SUM((i * 7919) % 1000) AS s FROM range(1001) r(i)",
    "SELECT i, val FROM x WHERE j = 3",
    "SELECT j, SUM(val) AS s FROM none GROUP BY j",
    "SELECT 1 + 1 AS two",
]


def connection(sites: int = 1, strategy: str = "eindecomp") -> einsql.Connection:
    con = einsql.connect()
    con.execute(f"SET jit = 'never'; SET sites = {sites}; SET strategy = '{strategy}'")
    for name, (dims, array) in TENSORS.items():
        con.register(name, array, dims=tuple(dims))
    return con


@pytest.mark.parametrize("sql", sample(QUERIES[::4], QUERIES))
def test_answers_and_traffic_are_as_planned(sql: str) -> None:
    expected = connection().execute(sql).fetchall()
    strategies = ("eindecomp", "exact", "paper", "equal")
    for strategy, sites in combinations(strategies, (2, 3, 4, 5, 8)):
        con = connection(sites, strategy)
        rows = con.execute(sql).fetchall()
        for row, wanted in zip(rows, expected, strict=True):
            assert row == pytest.approx(wanted, rel=1e-5), (strategy, sites)
        report = explained(con, sql, "ANALYZE, ")
        sent = sum(s["bytes_sent"] for s in report["per_site"])
        assert sent == report["total"]["bytes_sent"], (strategy, sites)
        assert sent == sum(s["bytes_received"] for s in report["per_site"])
        assert [n["measured"]["bytes_sent"] for n in report["nodes"]] == [
            n["bytes_sent"] for n in report["nodes"]
        ]


def explained(con: einsql.Connection, sql: str, options: str = "") -> dict[str, Any]:
    (text,) = con.execute(f"EXPLAIN ({options}FORMAT json) {sql}").fetchone() or ("{}",)
    report: dict[str, Any] = json.loads(text)
    return report


CHAIN = """
WITH ab AS (SELECT a.i, b.k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY a.i, b.k),
de AS (SELECT d.l, e.k, SUM(d.val * e.val) AS val FROM d JOIN e USING (m) GROUP BY d.l, e.k),
cde AS (SELECT c.i, de.k, SUM(c.val * de.val) AS val FROM c JOIN de USING (l) GROUP BY c.i, de.k)
SELECT i, k, ab.val + cde.val AS val FROM ab JOIN cde USING (i, k)"""


def chain(skewed: bool) -> tuple[einsql.Connection, int]:
    s = 6400
    t = s // 10 if skewed else s
    shapes = {"a": (s, t), "b": (t, s), "c": (s, t), "d": (t, 10 * s if skewed else s)}
    shapes["e"] = (shapes["d"][1], s)
    con = einsql.connect()
    for (name, (n, m)), keys in zip(shapes.items(), ("ij", "jk", "il", "lm", "mk"), strict=True):
        # A declared tensor takes no memory before something is stored.
        con.execute(
            f"CREATE TENSOR {name} ({keys[0]} DIM({n}), {keys[1]} DIM({m}), val FLOAT) DEFAULT 0"
        )
    return con, s


@pytest.mark.parametrize(
    ("strategy", "skewed", "totals"),
    [
        ("eindecomp", False, {8: 17, 16: 23, 64: 35}),
        ("eindecomp", True, {8: 15.1, 16: 16.5, 64: 20.7}),
        ("paper", False, {8: 20, 16: 26, 64: 43}),
        ("equal", False, {8: 17, 64: 35}),
        ("equal", True, {8: 26.9, 64: 53.9}),
    ],
)
def test_explain_gives_the_floats_of_chains(
    strategy: str, skewed: bool, totals: dict[int, float]
) -> None:
    con, s = chain(skewed)
    con.execute(f"SET strategy = '{strategy}'; SET cost = 'floats'")
    for sites, total in totals.items():
        report = explained(con, CHAIN, f"SITES {sites}, ")
        assert report["total"]["floats_moved"] / s**2 == pytest.approx(total)
        assert (report["strategy"], report["sites"]) == (strategy, sites)


def test_explain_gives_every_operation_its_cut_and_placement() -> None:
    con = einsql.connect()
    for name in ("a", "b"):
        con.register(
            name, np.ones((8, 8), np.float32), dims=("i", "j") if name == "a" else ("j", "k")
        )
    sql = "SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"
    report = explained(con, sql, "SITES 8, ")
    node, renaming = report["nodes"]
    assert sum(renaming["floats"].values()) == renaming["bytes_sent"] == 0
    assert report["total"]["floats_moved"] == 320
    assert (node["op"], node["labels"], node["viable"]) == (
        "contraction", {"i": 8, "j": 8, "k": 8}, 10,
    )  # fmt: skip
    assert node["partition"] == {"i": 2, "j": 2, "k": 2}
    assert node["placements"]["operands"] == [
        ["Shard(i)", "Shard(j)", "Replicate"],
        ["Replicate", "Shard(j)", "Shard(k)"],
    ]
    assert node["placements"]["result"] == ["Shard(i)", "Partial(SUM)", "Shard(k)"]
    assert node["collective"] == "reduce-scatter"
    assert node["floats"] == {"join": 256.0, "aggregate": 64.0, "repartition": 0.0}
    assert node["flops"] == 2 * 8**3


def test_of_equal_cuts_the_one_that_keeps_more_sites_busy_is_taken() -> None:
    con = einsql.connect()
    con.register("x", np.ones((64, 64), np.float32), dims=("i", "j"))
    softmax = explained(con, QUERIES[2], "SITES 8, ")
    assert [n["partition"]["i"] for n in softmax["nodes"]] == [8] * 4
    assert softmax["total"]["bytes_sent"] == 0


def test_a_repeated_statement_is_not_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    con = connection(4)
    first = con.execute(QUERIES[0]).fetchall()
    monkeypatch.setattr("einsql.planner.queries.make_plan", None)
    assert con.execute(QUERIES[0]).fetchall() == first


def test_cells_that_differ_in_position_share_a_kernel() -> None:
    con = connection(8)
    con.execute("CREATE TENSOR m (i DIM(16), j DIM(16), val FLOAT) DEFAULT 1")
    sql = (
        "SELECT a.i, b.j AS k, SUM(a.val * b.val) AS v FROM m a JOIN m b ON a.j = b.i "
        "GROUP BY a.i, b.j"
    )
    con.execute(sql)
    plan = cached(con, sql)
    assert isinstance(plan, Plan)
    assert isinstance(plan.program, SiteProgram)
    operations = [s for s in plan.program.program.steps if isinstance(s, Local)]
    assert plan.program.cells.kernels == len(operations)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SET sites = 0", "from 1 to"),
        ("SET sites = many", "from 1 to"),
        ("SET strategy = 'best'", "no strategy"),
        ("SET strategy = 'data'", "incomplete"),
        ("SET cost = 'hours'", "cannot be"),
        ("EXPLAIN (SITES 0) SELECT 1", "at least 1"),
        ("EXPLAIN (FORMAT yaml) SELECT 1", "FORMAT text or json or svg or html"),
    ],
)
def test_wrong_settings_are_refused(sql: str, reason: str) -> None:
    with pytest.raises(einsql.Error, match=reason):
        connection().execute(sql)


def test_a_strategy_with_nothing_to_go_by_says_so_and_cuts_all_the_same() -> None:
    con = connection(2, "data:nowhere")
    con.execute(QUERIES[0])
    (notice,) = con.notices
    assert "nowhere" in notice
    report = explained(con, QUERIES[0])
    assert (report["strategy"], report["notice"]) == ("eindecomp", notice)
