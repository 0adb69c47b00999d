"""R2-3 and R2-7 on statements over elements: a repartition moves past a map or a join."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import einsql
from einsql.errors import DataError
from einsql.optimizer.decomposition import Floats, decompose
from einsql.optimizer.decomposition.decompose import decomposition
from einsql.optimizer.decomposition.exchanges import exchanges
from einsql.optimizer.decomposition.problem import problem_of
from einsql.optimizer.decomposition.products import CutRule
from einsql.optimizer.decomposition.schedules import Schedule, completed
from einsql.optimizer.placement.physical import physical_plan
from einsql.optimizer.site_optimizer import SitePlan
from tests.optimizer.graphs import data, random_graph, run
from tests.support.levels import by_sites, same_fields
from tests.support.plans import planned, tree_of
from tests.support.samples import sample

SHAPES = {"a": (64, 32), "b": (32, 256), "c": (256, 8), "d": (64, 256), "e": (64, 256)}
DIMS = {"a": "ij", "b": "jk", "c": "kl", "d": "ik", "e": "ik"}
MAP = """WITH p AS (SELECT a.i, b.k, SUM(a.val * b.val) AS val FROM a, b WHERE a.j = b.j
GROUP BY a.i, b.k), m AS (SELECT i, k, EXP(val) AS val FROM p)
SELECT m.i, c.l, SUM(m.val * c.val) AS val FROM m, c WHERE m.k = c.k GROUP BY m.i, c.l"""
JOIN = """WITH h AS (SELECT d.i, d.k, EXP(e.val) * d.val AS val FROM e, d
WHERE e.i = d.i AND e.k = d.k)
SELECT h.i, c.l, SUM(h.val * c.val) AS val FROM h, c WHERE h.k = c.k GROUP BY h.i, c.l"""


def _tensors(parts: dict[str, tuple[int, int]]) -> einsql.Connection:
    """A connection with tensors of declared cuts."""
    rng = np.random.default_rng(2)
    con = einsql.connect()
    for name, (m, n) in parts.items():
        con.register(f"{name}_source", rng.integers(0, 3, SHAPES[name]) / 64)
        i, j = tuple(DIMS[name])
        con.execute(
            f"CREATE TENSOR {name} PARTITION BY ({i} {m}, {j} {n}) AS "
            f"SELECT d0 AS {i}, d1 AS {j}, val FROM {name}_source"
        )
    return con


def _plan(con: einsql.Connection, sql: str) -> SitePlan:
    plan, _ = planned(con, tree_of(sql))
    assert plan.site_plan is not None
    return plan.site_plan


@pytest.mark.parametrize(
    ("rule", "sql", "sites", "cost", "parts", "before", "after"),
    [
        ("R2-3", MAP, 2, "floats", {"a": (2, 2), "b": (4, 1), "c": (2, 4)}, 184_320, 53_248),
        ("R2-7", JOIN, 8, "floats", {"c": (4, 2), "d": (1, 1), "e": (1, 2)}, 159_744, 126_976),
    ],
)
def test_a_rule_that_fires_sends_less_is_traced_and_can_be_disabled(
    rule: str,
    sql: str,
    sites: int,
    cost: str,
    parts: dict[str, tuple[int, int]],
    before: int,
    after: int,
) -> None:
    con = _tensors(parts)
    wanted = np.array(con.execute(sql).fetchall())
    con.execute(f"SET sites = {sites}; SET cost = '{cost}'")
    text = "\n".join(
        row[0] for row in con.execute(f"EXPLAIN (LEVEL tra, VERBOSE) {sql}").fetchall()
    )
    step = _plan(con, sql).trace[-1]
    assert (step.rule.value, step.before, step.after) == (rule, before, after)
    assert f"\n{rule}: " in text
    assert f"; {before:,} -> {after:,} bytes sent" in text
    np.testing.assert_allclose(np.array(con.execute(sql).fetchall()), wanted, rtol=1e-12)
    con.execute(f"SET disabled_rules = '{rule}'")
    without = _plan(con, sql)
    assert without.program.bytes_sent >= before
    assert rule not in {s.rule.value for s in without.trace}


def test_both_sides_of_each_exchange_mean_the_same() -> None:
    """The cut of a map or a join by its operand or reader, in the interpreter of IA."""
    compared: Counter[CutRule] = Counter()
    for seed in range(400, sample(480, 640)):
        root = random_graph(seed)
        inputs = data(root, seed)
        wanted = run(root, inputs)
        if isinstance(wanted, DataError):
            continue
        published = problem_of(root, sites=4).published
        operations = [n for n, v in enumerate(published.vertices) if v.computes]
        cuts = decompose(root, sites=4, strategy="equal").cuts
        own = [Schedule(np.array(list(c.parts.values()), np.int64)) for c in cuts]
        schedules, _ = completed(published, own, 4, Floats())
        for position, n in enumerate(operations):
            for rule, vector in exchanges(published, schedules, n):
                other = [*own]
                other[position] = Schedule(vector)
                cut = decomposition(published, other, 4, "eindecomp", Floats())
                (plan,) = physical_plan(root, cut=cut).roots
                same_fields(root, by_sites(plan, root, inputs), wanted, 1e-9)
                compared[rule] += 1
    assert min(compared[CutRule.MAP_AND_MOVE], compared[CutRule.MOVE_BEFORE_JOIN]) > sample(3, 10)
