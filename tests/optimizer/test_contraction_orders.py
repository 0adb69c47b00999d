"""Orders of contractions that are chosen together with cuts, against all orders of chains."""

from __future__ import annotations

import random

import numpy as np
import pytest

import einsql
from einsql.core.settings import Settings
from einsql.ir.einsum.graph import EinSum, walk
from einsql.optimizer import Optimized, optimize
from einsql.optimizer.rewrite.order_search import MOST, Orders
from einsql.optimizer.rewrite.pipeline import reordered
from einsql.planner.queries import query_binder
from einsql.planner.sites import objective_of, ordered, sited
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import Query
from tests.support.networks import connected
from tests.support.samples import sample

KEYS = "ijklm"
CHAIN = (
    "SELECT i, m, SUM(a.val * b.val * c.val * d.val) AS val FROM a JOIN b USING (j) "
    "JOIN c USING (k) JOIN d USING (l) GROUP BY i, m"
)
EXTENTS = (16, 64, 100, 256, 512, 1024, 2048, 4096)
Tree = int | tuple["Tree", "Tree"]
TREES: tuple[Tree, ...] = (
    (((0, 1), 2), 3), ((0, (1, 2)), 3), ((0, 1), (2, 3)), (0, ((1, 2), 3)), (0, (1, (2, 3))),
)  # fmt: skip


def _tensors(extents: list[int]) -> dict[str, dict[str, int]]:
    return {
        name: {KEYS[n]: extents[n], KEYS[n + 1]: extents[n + 1]} for n, name in enumerate("abcd")
    }


def _nested(tree: Tree) -> str:
    """The product of the chain in one order, a query for each step."""
    parts: list[str] = []

    def product(tree: Tree) -> tuple[str, str, str]:
        if isinstance(tree, int):
            return "abcd"[tree], KEYS[tree], KEYS[tree + 1]
        (x, first, on), (y, _, last) = product(tree[0]), product(tree[1])
        name = f"t{len(parts)}"
        parts.append(
            f"{name} AS (SELECT {first}, {last}, SUM({x}.val * {y}.val) AS val "
            f"FROM {x} JOIN {y} USING ({on}) GROUP BY {first}, {last})"
        )
        return name, first, last

    name, *_ = product(tree)
    return f"WITH {', '.join(parts)} SELECT i, m, val FROM {name}"


def _optimized(con: einsql.Connection, sql: str) -> Optimized:
    statement, _ = parse(sql)
    assert isinstance(statement, Query)
    return optimize(query_binder(con.context).bind(statement.tree).node, sited=True)


@pytest.mark.parametrize(
    ("cost", "chains"), [("seconds", sample(2, 45)), ("floats", sample(1, 45))]
)
def test_no_chain_is_worse_than_the_best_pair_of_an_order_and_cuts(cost: str, chains: int) -> None:
    chance = random.Random(24)
    for _ in range(chains):
        extents = [chance.choice(EXTENTS) for _ in range(5)]
        settings = Settings(sites=chance.randint(2, 16), cost=cost, jit="wait")
        objective = objective_of(settings)
        con = connected(_tensors(extents))
        _, plan = ordered(_optimized(con, CHAIN), settings)
        every = (sited(_optimized(con, _nested(tree)).roots, settings) for tree in TREES)
        least, _ = min(other.measure(objective) for other in every)
        assert plan.measure(objective)[0] <= 1.01 * least, (extents, settings.sites)


def test_an_order_with_more_operations_is_chosen_if_its_cuts_cost_less() -> None:
    extents = [16, 4096, 16, 512, 2048]
    settings = Settings(sites=12, cost="seconds", jit="wait")
    objective = objective_of(settings)
    fixed = _optimized(connected(_tensors(extents)), CHAIN)
    chosen, plan = ordered(fixed, settings)
    assert chosen is not fixed
    seconds, _ = sited(fixed.roots, settings).measure(objective)
    assert plan.measure(objective)[0] < seconds


def test_every_order_computes_the_same() -> None:
    chance = np.random.default_rng(3)
    con = connected({})
    for name, keys in _tensors([5, 7, 3, 6, 4]).items():
        array = chance.integers(-3, 4, tuple(keys.values())).astype(np.float32)
        con.register(name, array, dims=tuple(keys))
    expected = con.execute(CHAIN).fetchall()
    optimized = _optimized(con, CHAIN)
    counting = Orders()
    reordered(optimized, counting, sited=True)
    assert counting.counts == [len(TREES)]
    texts = set()
    for rank in range(len(TREES)):
        graph = reordered(optimized, Orders([rank]), sited=True)
        texts.add(str([n.keys for n in walk(*graph.roots) if isinstance(n, EinSum)]))
    assert len(texts) == len(TREES)
    for cost in ("seconds", "bytes", "floats"):
        con.execute(f"SET sites = 3; SET cost = '{cost}'")
        assert con.execute(CHAIN).fetchall() == expected


def test_orders_of_many_tensors_are_few() -> None:
    con = connected({f"t{n}": {f"k{n}": 8 + n, f"k{n + 1}": 9 + n} for n in range(8)})
    product = " * ".join(f"t{n}.val" for n in range(8))
    joins = " ".join(f"JOIN t{n} USING (k{n})" for n in range(1, 8))
    sql = f"SELECT k0, k8, SUM({product}) AS val FROM t0 {joins} GROUP BY k0, k8"
    counting = Orders()
    reordered(_optimized(con, sql), counting, sited=True)
    assert 1 < counting.counts[0] <= MOST
