"""Groups in the search for cuts: exact, within the memory, and never behind a strategy."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import einsql
from einsql.core.machine import Machine
from einsql.core.settings import Settings
from einsql.ir.einsum.graph import Node
from einsql.optimizer import optimize
from einsql.optimizer.decomposition import Cut, Objective, Seconds, SentBytes, decompose
from einsql.optimizer.decomposition.descent import search
from einsql.optimizer.decomposition.groups import groups_of
from einsql.optimizer.decomposition.model import Edge, Model, free_candidates
from einsql.optimizer.decomposition.problem import Problem, problem_of
from einsql.optimizer.decomposition.schedules import Schedule, completed
from einsql.optimizer.simulation.prediction import Prediction, predict
from einsql.optimizer.site_optimizer import SitePlan
from einsql.planner.queries import query_binder
from einsql.planner.sites import groups_in, sited
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import Query
from tests.support.networks import connected, transformer
from tests.support.samples import combinations, sample

SOFTMAX = {"x": {"i": 2048, "j": 2048}}, "SELECT * FROM softmax(x, j)"
ATTENTION = (
    {
        "q": {"h": 4, "s": 2048, "d": 64},
        "k": {"h": 4, "t": 2048, "d": 64},
        "v": {"h": 4, "t": 2048, "d": 64},
    },
    """WITH c AS (SELECT h, s, t, SUM(q.val * k.val) AS val FROM q JOIN k USING (h, d)
    GROUP BY h, s, t), p AS (SELECT * FROM softmax(c, t))
    SELECT h, s, d, SUM(p.val * v.val) AS val FROM p JOIN v USING (h, t) GROUP BY h, s, d""",
)
LLAMA = {"b": 4, "s": 4096, "a": 4096, "h": 32, "d": 128, "f": 11008}
GRAPHS = {
    "softmax": SOFTMAX,
    "attention": ATTENTION,
    "layer": transformer(1),
    "LLaMA-7B": transformer(1, **LLAMA),  # type: ignore[arg-type]  # LLAMA has no names
}
CLUSTER = replace(Machine().with_flops(2e13), memory_bandwidth=1.5e12, latency=2e-6)
NAMED = ("megatron", "sequence", "attention", "model", "paper")


def _root(name: str) -> Node:
    tensors, sql = GRAPHS[name]
    statement, _ = parse(sql)
    assert isinstance(statement, Query)
    bound = query_binder(connected(tensors).context).bind(statement.tree)
    return optimize(bound.node, sited=True).root


def _planned(root: Node, settings: Settings) -> tuple[SitePlan, Prediction]:
    plan = sited((root,), settings)
    return plan, predict(plan.program, settings.machine)


def _problem(root: Node, sites: int) -> Problem:
    groups = groups_in((root,), Settings(jit="wait"))
    return problem_of(root, sites=sites, groups=groups)


def _least(problem: Problem, sites: int, objective: Objective) -> float:
    """The least cost of all combinations of vectors."""
    published = problem.published
    states = [free_candidates(sites, objective.exactly)(v) for v in problem.vertices]
    costs = []
    for chosen in product(*states):
        try:
            schedules = [Schedule(vector) for vector in chosen]
            costs.append(completed(published, schedules, sites, objective)[1])
        except einsql.OperationalError:  # too large for the memory
            continue
    return min(costs)


@pytest.mark.parametrize("memory", [None, 40_000_000, 12_000_000])
def test_the_best_cut_with_groups_is_that_of_all_combinations(memory: int | None) -> None:
    root = _root("softmax")
    problem = _problem(root, 3)
    (group,) = groups_of(problem.published)
    assert len(group.labels) == 1  # rows; a cut of columns would move maxima and sums
    objective = Seconds(Machine(), 3, memory)
    groups = groups_in((root,), Settings(jit="wait"))
    found = decompose(root, sites=3, strategy="exact", objective=objective, groups=groups)
    assert found.cost == pytest.approx(_least(problem, 3, objective), rel=1e-9)


def test_the_estimate_of_a_group_is_the_prediction_of_its_program() -> None:
    plan, predicted = _planned(_root("attention"), Settings(sites=4, cost="seconds", jit="wait"))
    assert len(plan.program.together) == 1
    assert plan.program.bytes_sent == 0
    assert sum(predicted.seconds) == pytest.approx(plan.cut.cost, rel=1e-9)


@pytest.mark.parametrize(("cost", "sites"), combinations(["seconds", "bytes", "floats"], [2, 4, 8]))
def test_site_memory_admits_what_fits_as_a_group_only(cost: str, sites: int) -> None:
    root = _root("attention")
    scores = 4 * 2048 * 2048 * 4 // sites
    settings = Settings(sites=sites, cost=cost, jit="wait", site_memory=scores // 4)
    plan, predicted = _planned(root, settings)
    assert len(plan.program.together) == 1
    assert max(predicted.cells) <= scores // 4
    assert predicted.memory.max() < scores // 2
    with pytest.raises(einsql.OperationalError, match="fits no site"):
        sited((root,), replace(settings, disabled_rules=frozenset({"group-nodes"})))


def test_the_memory_of_each_site_is_measured_beside_its_prediction() -> None:
    con = einsql.connect(config={"sites": 3, "cost": "bytes", "jit": "never"})
    tensors, sql = ATTENTION
    chance = np.random.default_rng(5)
    for name, keys in tensors.items():
        shape = tuple(min(n, 48) for n in keys.values())
        con.register(name, chance.standard_normal(shape).astype(np.float32), dims=tuple(keys))
    (text,) = con.execute(f"EXPLAIN (ANALYZE, FORMAT json) {sql}").fetchone() or ("",)
    report = json.loads(text)
    measured = [site["memory_measured"] for site in report["per_site"]]
    assert measured == [site["memory"] for site in report["per_site"]]
    assert max(measured) == report["total"]["memory"] > 0
    lines = [line for (line,) in con.execute(f"EXPLAIN ANALYZE {sql}").fetchall()]
    (line,) = (line for line in lines if line.startswith("holds"))
    assert line.endswith(" measured")


@pytest.mark.parametrize(
    ("name", "sites", "cost", "machine"),
    combinations(
        ["layer", "attention", "LLaMA-7B"],
        sample([16, 3, 64], [2, 3, 4, 5, 8, 16, 64, 256, 1024]),
        ["seconds", "bytes"],
        [Machine(), CLUSTER],
    ),
)
def test_the_default_is_never_behind_a_strategy_that_keeps_all_sites_busy(
    name: str, sites: int, cost: str, machine: Machine
) -> None:
    root = _root(name)
    settings = Settings(sites=sites, cost=cost, jit="wait", machine=machine)
    objective = Seconds(machine, sites) if cost == "seconds" else SentBytes()
    own = sited((root,), settings)
    least = [s.calls for s in _contractions(root, own)]
    compared = 0
    for strategy in NAMED:
        other = sited((root,), replace(settings, strategy=strategy))
        calls = [s.calls * s.copies for s in _contractions(root, other)]
        within = max(c.calls * c.copies for c in other.cut.cuts) <= sites
        busy = cost == "seconds" or all(a >= b for a, b in zip(calls, least, strict=True))
        if not other.cut.notice and within and busy:
            assert own.measure(objective)[0] <= other.measure(objective)[0], strategy
            compared += 1
    assert compared >= 2


def _contractions(root: Node, plan: SitePlan) -> list[Cut]:
    vertices = [v for v in problem_of(root, sites=plan.cut.sites).vertices if v.computes]
    return [c for c, v in zip(plan.cut.cuts, vertices, strict=True) if v.contraction]


def test_a_search_reads_tables_with_rows_of_no_state() -> None:
    """If all vectors of an operation are common cuts of its group, none has the view "apart"."""
    no = np.inf
    edge = Edge(
        0, 1, produced=np.array([1, 2]), consumed=np.arange(3),
        costs=np.array([[0, no, no], [0, 0, no], [0, no, 0]]),
    )  # fmt: skip
    cuts = [np.array([[1], [2]]), np.array([[0], [1], [2]])]
    model = Model(cuts, [np.array([5.0, 3.0]), np.array([0.0, -1.0, -4.0])], [edge], groups=1)
    assert search(model) == [1, 2]
