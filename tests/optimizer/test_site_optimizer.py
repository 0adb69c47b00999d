"""The product rules on statements: what cuts imply, what the rules change, what disabling does."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

import einsql
from einsql import tra
from einsql.optimizer.decomposition import decompose
from einsql.optimizer.decomposition.problem import Problem, problem_of
from einsql.optimizer.decomposition.products import PRODUCTS, CutRule, Roles, implied, rules_of
from einsql.optimizer.decomposition.vectors import viable
from einsql.optimizer.site_optimizer import SitePlan
from einsql.optimizer.tra import RULES
from tests.support.plans import planned, tree_of
from tests.support.samples import combinations, sample

PRODUCT = """SELECT a.i, b.k, SUM(a.val * b.val) AS val FROM a, b WHERE a.j = b.j
GROUP BY a.i, b.k"""
CHAIN = f"""WITH p AS ({PRODUCT}) SELECT p.i, c.l, SUM(p.val * c.val) AS val FROM p, c
WHERE p.k = c.k GROUP BY p.i, c.l"""
MATMUL = Roles(True, frozenset({1}), (frozenset({0, 1}), frozenset({1, 2})))


@pytest.fixture(name="con")
def _con() -> einsql.Connection:
    return einsql.connect()


def _stored(
    con: einsql.Connection, name: str, keys: str, shape: tuple[int, int], parts: str
) -> None:
    rng = np.random.default_rng(len(name) + prod(shape))
    con.register(f"{name}_source", rng.integers(-4, 5, shape).astype(np.float64))
    i, j = tuple(keys)
    con.execute(
        f"CREATE OR REPLACE TENSOR {name} PARTITION BY ({parts}) AS "
        f"SELECT d0 AS {i}, d1 AS {j}, val FROM {name}_source"
    )


def _plan(con: einsql.Connection, sql: str, sites: int, cost: str, disabled: str = "") -> SitePlan:
    con.execute(f"SET sites = {sites}; SET cost = '{cost}'; SET disabled_rules = '{disabled}'")
    plan, _ = planned(con, tree_of(sql))
    assert plan.site_plan is not None
    return plan.site_plan


@pytest.mark.parametrize(
    ("vector", "rules"),
    [
        ([4, 1, 1], {"BMM", "R2-4"}),
        ([1, 1, 4], {"BMM", "R2-4"}),
        ([1, 4, 1], {"CPMM", "R2-5"}),
        ([2, 1, 2], {"RMM", "R2-4"}),
        ([2, 2, 2], {"3D", "R2-5"}),
        ([2, 2, 1], {"3D", "R2-5"}),
        ([1, 1, 1], set()),
    ],
)
def test_a_cut_of_a_product_implies_its_algorithm(vector: list[int], rules: set[str]) -> None:
    assert set(rules_of(MATMUL, np.array(vector))) == rules


def test_every_vector_that_cuts_a_free_or_joined_label_implies_one_product() -> None:
    vectors = np.array([(i, j, k) for i in (1, 2) for j in (1, 3) for k in (1, 2)])
    rules = implied(MATMUL, vectors)
    count = sum(rules[rule].astype(int) for rule in PRODUCTS)
    np.testing.assert_array_equal(count, (vectors > 1).any(axis=1))


def test_the_names_are_those_of_rules() -> None:
    assert set(CutRule) <= {r.name for r in RULES}


def _problem(con: einsql.Connection, disabled: set[str]) -> Problem:
    plan, _ = planned(con, tree_of(PRODUCT))
    return problem_of(plan.optimized.root, sites=8, disabled=frozenset(disabled))


def test_no_viable_vector_implies_a_disabled_rule_unless_all_do(con: einsql.Connection) -> None:
    _stored(con, "a", "ij", (16, 16), "")
    _stored(con, "b", "jk", (16, 16), "")
    for disabled in ({"BMM"}, {"CPMM", "RMM"}, {"BMM", "CPMM", "RMM", "3D"}):
        v = next(v for v in _problem(con, disabled).vertices if v.contraction)
        free = next(v for v in _problem(con, set()).vertices if v.contraction)
        vectors, every = viable(v, 8, exactly=True), viable(free, 8, exactly=True)
        permitted = [x for x in every if disabled.isdisjoint(rules_of(v.roles, x))]
        assert vectors.tolist() == [x.tolist() for x in permitted or every]


def test_rules_never_make_a_plan_costlier_and_disabling_a_named_rule_changes_the_plan(
    con: einsql.Connection,
) -> None:
    """Random chains of products of tensors with declared cuts."""
    choose = random.Random(5)
    applied = 0
    for _ in range(sample(2, 10)):
        n, m, k, width = (choose.choice([32, 64, 96, 128, 512]) for _ in range(4))
        parts = [choose.choice([1, 2, 4]) for _ in range(6)]
        _stored(con, "a", "ij", (n, m), f"i {parts[0]}, j {parts[1]}")
        _stored(con, "b", "jk", (m, k), f"j {parts[2]}, k {parts[3]}")
        _stored(con, "c", "kl", (k, width), f"k {parts[4]}, l {parts[5]}")
        con.execute("SET sites = 1")
        expected = con.execute(CHAIN).fetchall()
        for sites, cost in combinations((6, 8), ("seconds", "floats")):
            plan = _plan(con, CHAIN, sites, cost)
            applied += len(plan.trace)
            assert all(step.after < step.before for step in plan.trace)
            for rule in {*(s.rule for s in plan.trace), *(rule for rule, _ in plan.implied)}:
                without = _plan(con, CHAIN, sites, cost, rule)
                assert [c.parts for c in without.cut.cuts] != [c.parts for c in plan.cut.cuts]
            con.execute("SET disabled_rules = ''")
            assert con.execute(CHAIN).fetchall() == expected
    assert applied >= 2


@pytest.mark.parametrize("cost", ["floats", "seconds"])
def test_sql_tiles_and_tra_send_the_same_bytes(con: einsql.Connection, cost: str) -> None:
    _stored(con, "a", "ij", (256, 256), "i 2, j 2")
    _stored(con, "b", "jk", (256, 256), "j 2, k 2")
    con.execute(f"SET sites = 4; SET cost = '{cost}'")
    tiles = """SELECT a.i, b.k, tensor_sum(tensor_einsum('ij,jk->ik', a.tile, b.tile)) AS tile
    FROM TILES(a, 2, 2) a JOIN TILES(b, 2, 2) b ON a.j = b.j GROUP BY a.i, b.k"""
    sent = [con.explain(sql).to_dict()["total"]["bytes_sent"] for sql in (PRODUCT, tiles)]
    x, y = (tra.scan(np.ones((256, 256)), (2, 2), name=name) for name in "xy")
    by_hand = x.join(y, (1,), (0,), tra.matmul).aggregate((0, 2)).place(4).bytes_sent
    assert {*sent, by_hand} == {2 * 256 * 256 * 8}


def test_in_floats_the_bytes_decide_about_products_of_declared_tensors(
    con: einsql.Connection,
) -> None:
    """EinDecomp's count of 3D is less than that of RMM, which sends fewer bytes."""
    _stored(con, "a", "ij", (256, 256), "i 2, j 2")
    _stored(con, "b", "jk", (256, 256), "j 2, k 2")
    plan = _plan(con, PRODUCT, 4, "floats")
    (step,) = plan.trace
    assert (step.rule, step.before, step.after) == (CutRule.RMM, 1_310_720, 1_048_576)
    assert (plan.cut.floats, plan.program.bytes_sent) == (458_752, 1_048_576)
    without = _plan(con, PRODUCT, 4, "floats", "RMM")
    assert (without.cut.floats, without.program.bytes_sent) == (360_448, 1_310_720)
    assert [rule for rule, _ in without.implied] == ["3D", "R2-5"]


def test_in_floats_the_cuts_of_eindecomp_remain_where_no_tensor_is_declared(
    con: einsql.Connection,
) -> None:
    con.register("a", np.ones((256, 256)), dims=("i", "j"))
    con.register("b", np.ones((256, 256)), dims=("j", "k"))
    plan = _plan(con, PRODUCT, 4, "floats")
    assert plan.trace == ()
    plan_tree, _ = planned(con, tree_of(PRODUCT))
    assert plan.cut.cost == decompose(plan_tree.optimized.root, sites=4).cost
