"""The implementation algebra: where arrays lie, what is refused, runs on sites, its face."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from math import prod
from random import Random

import numpy as np
import pytest

import einsql
from einsql import tra
from einsql.core.schema import DType, Field, Key, Schema
from einsql.errors import IntegrityError, InterfaceError, ProgrammingError
from einsql.ir.einsum.graph import Input, Label
from einsql.ir.ia.placement import Placement, Scattered, Shard, everywhere, spread
from einsql.ir.ia.plan import (
    Bcast,
    LocalAggregate,
    LocalJoin,
    LocalMap,
    LocalStack,
    Node,
    Repartition,
    Scan,
    Shuffle,
    bytes_sent,
    sends,
)
from einsql.ir.ia.printer import format_implementation
from einsql.ir.layout import Partial, Replicate
from einsql.ir.tra import plan as ra
from einsql.ir.tra.kernels import Tile
from einsql.optimizer.tra import search, translate
from tests.support.sites import assert_same, meaning, on_sites, random_relation

X = np.arange(35.0).reshape(7, 5) / 2
MATRIX = Tile(2, DType.DOUBLE)
SITES = (1, 2, 3, 4, 5, 8)


def stored(
    array: np.ndarray, parts: tuple[int, ...], keys: tuple[int, ...] | None, sites: int
) -> Node:
    return translate(tra.scan(array, parts).plan, sites, {"x": keys})


# ---- placements


@pytest.mark.parametrize(
    ("sites", "bounds", "grid", "load"),
    [
        (4, (2, 2), (2, 2), 1),
        (4, (4, 4), (4,), 4),
        (5, (2, 2), (2, 2), 1),  # a site stays idle
        (8, (3,), (3,), 1),  # five of them
        (8, (2, 2, 2), (2, 2, 2), 1),
        (6, (1, 9), (5,), 2),  # two keys to a site, for which five are enough
        (7, (1, 1), (), 1),
        (3, (), (), 1),
        (1, (5, 5), (), 25),
        (4, (0, 3), (), 0),
    ],
)
def test_shuffles_spread_keys(
    sites: int, bounds: tuple[int, ...], grid: tuple[int, ...], load: int
) -> None:
    placement = spread(sites, range(len(bounds)), bounds)
    assert placement.grid == grid
    found = [placement.at(k) for k in np.ndindex(*bounds)]
    assert all(len(s) == 1 and s[0] < sites for s in found)
    assert max((found.count(s) for s in found), default=0) == load


def test_keys_are_dealt_cyclically() -> None:
    placement = Placement(7, (2, 3), (Shard(1), Replicate()))
    assert [placement.at((9, k)) for k in range(3)] == [(0, 1, 2), (3, 4, 5), (0, 1, 2)]
    assert placement.keys == {1}
    assert everywhere(3).at((5,)) == (0, 1, 2)
    assert everywhere(3).keys == frozenset()
    for grid, entries in (((3, 3), (Shard(0), Shard(1))), ((1,), (Shard(0),)), ((2,), ())):
        with pytest.raises(ProgrammingError):
            Placement(8, grid, entries)


def test_placements_follow_what_is_done() -> None:
    x = stored(np.ones((4, 4)), (4, 4), (0, 1), 4)
    assert x.schema.placement == Placement(4, (4,), (Shard(0),))
    grid = Shuffle(stored(np.ones((4, 4)), (2, 2), (0,), 4), (1, 0))
    assert grid.schema.placement == Placement(4, (2, 2), (Shard(1), Shard(0)))
    summed = LocalAggregate(grid, (0,), "sum")
    assert summed.schema.placement == Placement(4, (2, 2), (Partial("sum"), Shard(0)))
    assert summed.schema.merge == "sum"
    done = Shuffle(summed, (0,)).schema
    assert (done.placement, done.merge) == (Placement(4, (2,), (Shard(0),)), "sum")
    assert LocalAggregate(Shuffle(summed, (0,)), (0,), "sum").schema.merge is None
    copied = LocalAggregate(Bcast(summed), (0,), "sum").schema
    assert (copied.placement, copied.merge) == (everywhere(4), None)
    swapped = LocalMap(grid, keys=(Label("k1"), Label("k0"))).schema.placement
    assert swapped.entries == (Shard(0), Shard(1))
    one = tra.scan(np.ones((4, 4)), (2, 2)).rekey(lambda i, j: 2 * j + i)
    assert translate(one.plan, 4).schema.placement.entries == (Shard(0), Scattered())


def test_declared_cuts_place_stored_tensors() -> None:
    schema = Schema((Key("i", 0, 4), Key("j", 0, 4)), (Field("val", DType.DOUBLE),))
    cuts = ((0, 2, 4), (0, 2, 4))

    def placed(parts: tuple[int, ...] | None) -> Placement:
        return translate(ra.Scan(Input("x", schema, parts), cuts), 4).schema.placement

    assert placed(None).entries == (Shard(0), Shard(1))
    assert placed((1, 2)).entries == (Shard(1),)
    assert placed((1, 1)) == everywhere(4)


# ---- what is refused


def test_local_work_that_would_be_wrong_cannot_be_written() -> None:
    x = stored(np.ones((4, 4)), (2, 2), (1,), 2)
    parts = LocalAggregate(x, (0,), "sum")
    add = tra.add.template([MATRIX, MATRIX])
    raised = tra.map(lambda v: v + 1).template([MATRIX])
    refused: list[Callable[[], Node]] = [
        lambda: LocalMap(parts, kernels=(raised,)),
        lambda: LocalJoin((parts, parts), ((0,), (0,)), (add,)),
        lambda: LocalAggregate(parts, (), "max"),
        lambda: LocalAggregate(x, (0,), "sum", finish=(raised,)),
        lambda: LocalAggregate(parts, (0,), "sum", inner=(raised,)),
        lambda: LocalStack(x, 1, 1),
        lambda: LocalStack(parts, 0, 0),
        lambda: LocalMap(x, keys=(Label("k0"),)),
    ]
    for make in refused:
        with pytest.raises(IntegrityError):
            make()
    with pytest.raises(ProgrammingError, match="occur once"):
        Shuffle(x, (0, 0))
    with pytest.raises(ProgrammingError, match="on the keys"):
        Shuffle(x, (2,))
    with pytest.raises(ProgrammingError, match="out of order"):
        LocalJoin((x, x), ((0, 1), (3, 4)), (add,))


def test_copies_are_counted_once_across_grids() -> None:
    schema = Schema((Key("i", 0, 4), Key("j", 0, 4)), (Field("val", DType.DOUBLE),))
    x, cuts = Input("x", schema), ((0, 1, 2, 3, 4),) * 2
    mul = tra.mul.template([MATRIX, MATRIX])
    array = np.arange(16.0).reshape(4, 4)
    grids = [
        Placement(6, (2, 3), (Shard(0), Replicate())),
        Placement(6, (3, 2), (Replicate(), Shard(0))),
        Placement(6, (2, 2), (Shard(1), Replicate())),
        Placement(6, (4,), (Shard(1),)),
        Placement(6, (5,), (Replicate(),)),
        everywhere(6),
    ]
    for a in grids:
        for b in grids:
            join = LocalJoin((Scan(x, cuts, a), Scan(x, cuts, b)), ((0, 1), (0, 1)), (mul,))
            squares = on_sites(LocalAggregate(join, (0,), "sum"), {"x": array})
            found = list(join.schema.held)
            wanted = {i: sum(array[k] ** 2 for k in found if k[0] == i) for i, _ in found}
            assert {k: v.item() for (k,), v in squares.items()} == wanted
            assert (len(found) == 16) == join.is_complete


# ---- runs


def test_random_plans_mean_the_same_on_any_number_of_sites() -> None:
    pick = Random(7)
    for seed in range(1000, 1040):
        relation = random_relation(Random(seed))
        wanted = meaning(relation)
        for sites in SITES:
            stored_at = {n: pick.choice([(0,), (1,), (0, 1), None, ()]) for n in relation.arrays}
            assert_same(
                on_sites(translate(relation.plan, sites, stored_at), relation.arrays), wanted
            )


@pytest.mark.parametrize("sites", SITES)
def test_joins_of_three_relations_run_on_sites(sites: int) -> None:
    # Joins of three relations, operands that are cut otherwise first.
    arrays = [np.arange(float(prod(s))).reshape(s) / 4 for s in ((4, 3), (3, 5), (5, 2))]
    template = tra.einsum("ij,jk,kl->il").template([MATRIX] * 3)
    x, y, z = (tra.scan(a, name=f"x{n}").plan for n, a in enumerate(arrays))
    operands = (ra.repartition(x, (2, 3)), ra.repartition(y, (3, 2)), ra.repartition(z, (2, 2)))
    joined = ra.Join(operands, ((0, 1), (1, 2), (2, 3)), template)
    plan = ra.Aggregate(joined, (0, 3), ("sum",))
    relation = tra.Relation(plan, {f"x{n}": a for n, a in enumerate(arrays)})
    first = translate(plan, sites)
    found = search(first, most_plans=100)
    for placed in (first, found.root):
        assert_same(on_sites(placed, relation.arrays), meaning(relation))
    np.testing.assert_array_equal(relation.numpy(), arrays[0] @ arrays[1] @ arrays[2])


@pytest.mark.parametrize("sites", SITES)
def test_uneven_blocks_and_other_cuts(sites: int) -> None:
    x = tra.scan(X, (3, 2))
    for relation in (
        x,
        x.repartition((2, 5)),
        x.repartition((7, 1)).repartition((1, 5)),
        x.tile(0, 2).stack(2, 0),
        x.transform(tra.einsum("ij->i", reduce="max")).aggregate((0,), "max"),
        tra.scan(np.ones((0, 3)), (1, 3)).repartition((1, 2)),
        tra.scan(np.float64(3.0)).transform(lambda v: v + 1),
        x.join(tra.scan(X.T, (2, 3), name="y"), (1,), (0,), tra.matmul).aggregate((2, 0)),
    ):
        plan = translate(relation.plan, sites)
        if relation.schema.count and relation.schema.dims and relation.schema.dims[0].extents[0]:
            assert sites > 1 or bytes_sent(plan) == 0
        assert_same(on_sites(plan, relation.arrays), meaning(relation))


def test_bytes_are_those_of_what_a_site_lacks() -> None:
    x = stored(np.ones((4, 4), np.float32), (2, 2), (0,), 2)
    assert sends(Bcast(x)) == 16 * 4  # each half to the other site
    assert sends(Shuffle(x, (0,))) == 0
    assert sends(Shuffle(x, (1,))) == 8 * 4  # half of each half
    assert sends(Shuffle(x, ())) == 8 * 4
    assert sends(Shuffle(Bcast(x), (1,))) == 0
    assert sends(Repartition(x, ((0, 4), (0, 1, 2, 3, 4)), (1,))) == 8 * 4
    assert sends(Repartition(x, ((0, 1, 4), (0, 4)), (0,))) == 4 * 4  # the second row


# ---- the face

PLAN = """\
r0<2, 2>[4|3, 3|2] DOUBLE at 2x2 Shard(0), Shard(1)
  scan         x[d0:7, d1:5]
r1<2, 2>[4|3, 3|2] DOUBLE at 4 Replicate
  bcast        r0
r2<2, 1>[3|2, 3] DOUBLE at 2 Shard(0)
  scan         y[d0:5, d1:3]
r3<2, 2, 1>[4|3, 3] DOUBLE at 2 Shard(1)
  local join   r1<0, 1>, r2<1, 2>
    kernel     x0[i, j], x1[j, k] -> [i, k] SUM((x0.val * x1.val))
r4<2, 2, 1>[4|3, 3] DOUBLE at 2 Shard(0)
  shuffle      r3 BY <0, 2>
r5<2, 1>[4|3, 3] DOUBLE at 2 Shard(0)
  local agg    SUM(r4) BY <0, 2>
r6<2, 1>[4|3, 3] DOUBLE, 1 keys at 2 Shard(0)
  local filter r5 (k0 = 0)
r7<1>[4, 3] DOUBLE at 2 Shard(0)
  local map    r6
    keys       <k1>
r8<1, 2>[2, 3] DOUBLE at 2 Shard(0)
  local map    r7, tiles of dimension 0 by 2
r9<1, 2>[2, 3] DOUBLE at site 0
  shuffle      r8 BY <0>
r10<1>[4, 3] DOUBLE at site 0
  local stack  r9 key 1 along dimension 0"""


def test_table_1_prints_what_it_does() -> None:
    x, y = tra.scan(X, (2, 2), name="x"), tra.scan(X.T[:, :3], (2, 1), name="y")
    product = x.join(y, (1,), (0,), tra.matmul).aggregate((0, 2))
    relation = product.filter(lambda i, k: i == 0).rekey(lambda i, k: k).tile(0, 2).stack(1, 0)
    placed = relation.place(4)
    assert format_implementation(placed.table1) == PLAN


def test_placing_a_relation() -> None:
    x, y = tra.scan(X, (2, 2), name="x"), tra.scan(X.T, (2, 2), name="y")
    product = x.join(y, (1,), (0,), tra.matmul).aggregate((0, 2))
    placed = product.place(4)
    np.testing.assert_array_equal(placed.numpy(), X @ X.T)
    assert list(placed.blocks()) == list(product.blocks())
    run = placed.run()
    assert sum(run.sent) == sum(run.received) == placed.bytes_sent == placed.cost.bytes_sent
    assert placed.cost.tra_cost < placed.table1_cost.tra_cost
    assert [s.rule.name for s in placed.trace] == ["RMM"]
    assert placed.trace[0].before != placed.trace[0].after == str(placed)
    assert str(product.place(4)) == str(placed)
    assert "RMM" not in {s.rule.name for s in product.place(4, disabled="RMM, 3D").trace}
    assert product.place(4, beta=1e6).cost.busiest <= placed.cost.busiest
    for wrong, error in (
        ({"sites": 0}, ProgrammingError),
        ({"sites": 1.5}, ProgrammingError),
        ({"sites": 2, "disabled": "RMM, R2-8"}, InterfaceError),
        ({"sites": 2, "disabled": ["R2-8"]}, InterfaceError),
        ({"sites": 2, "stored": {"z": (0,)}}, ProgrammingError),
        ({"sites": 2, "stored": {"x": (2,)}}, ProgrammingError),
        ({"sites": 2, "stored": {"x": ("i",)}}, ProgrammingError),
    ):
        with pytest.raises(error):
            product.place(**wrong)


def test_settings_name_the_rules() -> None:
    con = einsql.connect()
    sql = "SELECT i, SUM(1) AS val FROM range(2) AS r(i) GROUP BY i"
    con.execute("SET disabled_rules = 'R2-5, 3D, share'")
    assert con.execute(sql).fetchall() == [(0, 1), (1, 1)]
    con.execute("SET disabled_rules = 'R2-55'")
    with pytest.raises(InterfaceError, match='no rewrite rule "R2-55"') as caught:
        con.execute(sql)
    assert 'Did you mean "R2-5"?' in caught.value.hint


def test_plans_without_sites_do_not_pay_for_them() -> None:
    script = """
import sys, einsql
einsql.connect().execute("SELECT i, SUM(1) AS val FROM range(2) AS r(i) GROUP BY i")
assert einsql.tra.scan([1.0, 2.0], (2,)).aggregate(()).blocks()[()].tolist() == [3.0]
assert not any(m.startswith(("einsql.optimizer.tra", "einsql.planner.placed_tra"))
               for m in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
