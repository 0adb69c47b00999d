"""The implementation algebra: where arrays lie, what is refused, runs on sites, its face."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from math import prod
from random import Random
from types import FrameType

import numpy as np
import pytest

import einsql
from einsql import tra
from einsql.core.schema import DType, Field, Key, Schema
from einsql.core.tables import Table
from einsql.errors import IntegrityError, InterfaceError, ProgrammingError
from einsql.ir.einsum.graph import Input, Label
from einsql.ir.ia.physical_schema import PhysicalSchema
from einsql.ir.ia.placement import everywhere, spread
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
from einsql.ir.layout import Layout, Mesh, Partial, Replicate, Scattered, Shard
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import BlockSchema
from einsql.ir.tra.kernels import Tile
from einsql.optimizer.tra import Costs, search, translate
from tests.support.samples import sample
from tests.support.sites import assert_same, meaning, on_sites, random_relation

X = np.arange(35.0).reshape(7, 5) / 2
MATRIX = Tile(2, DType.DOUBLE)
BOTH = ((0, 1), (0, 1))
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
    layout = spread(sites, range(len(bounds)), bounds)
    assert layout.mesh.shape == grid
    holders = PhysicalSchema(BlockSchema(bounds, (), ()), layout, sites).holders
    assert holders.shape == (prod(bounds), 1, 1)
    assert np.bincount(holders.reshape(-1)).max(initial=0) == load


def holders(bounds: tuple[int, ...], layout: Layout, sites: int) -> list[list[int]]:
    """The sites of the copies of each key."""
    schema = PhysicalSchema(BlockSchema(bounds, (), ()), layout, sites)
    found: list[list[int]] = schema.holders[:, 0].tolist()
    return found


def test_layouts_are_laws_of_sites() -> None:
    layout = Layout(Mesh.of((2, 3)), (cyclic(1), Replicate()))
    assert holders((1, 3), layout, 7) == [[0, 1, 2], [3, 4, 5], [0, 1, 2]]
    assert layout.keys == {1}
    assert holders((2,), everywhere(3), 3) == [[0, 1, 2]] * 2
    assert everywhere(3).keys == frozenset()
    rows = Layout(Mesh.of((2,)), (Shard(0),))
    assert holders((5,), rows, 2) == [[0], [0], [0], [1], [1]]
    # Two axes of one key are the digits of a number; lower depths come first.
    digits = Layout(Mesh.of((2, 3)), (cyclic(0), cyclic(0)))
    assert holders((7,), digits, 6) == [[0], [1], [2], [3], [4], [5], [0]]
    strided = Layout(Mesh.of((2, 3)), (replace(cyclic(0), depth=1), cyclic(0)))
    assert holders((6,), strided, 6) == [[0], [3], [1], [4], [2], [5]]
    # A mesh may use some sites only, in any order.
    some = Layout(Mesh.of((2, 2), (6, 1, 5, 0)), (cyclic(0), Replicate()))
    assert holders((3,), some, 8) == [[1, 6], [0, 5], [1, 6]]
    for shape, placed in (((3, 3), (cyclic(0), cyclic(1))), ((1,), (cyclic(0),)), ((2,), ())):
        with pytest.raises(ProgrammingError):
            holders((4, 4), Layout(Mesh.of(shape), placed), 8)
    with pytest.raises(ProgrammingError):
        Mesh.of((2,), (0, 1, 2))
    # A site may have several points. It has one copy of what these points replicate.
    several = Mesh.of((2, 2), (0, 1, 1, 1))
    assert holders((2,), Layout(several, (Shard(0), Replicate())), 2) == [[0, 1], [1, -1]]


def cyclic(key: int) -> Shard:
    return Shard(key, cyclic=True)


def test_layouts_follow_the_operations() -> None:
    x = stored(np.ones((4, 4)), (4, 4), (0, 1), 4)
    assert x.schema.layout == Layout(Mesh.of((4,)), (cyclic(0),))
    grid = Shuffle(stored(np.ones((4, 4)), (2, 2), (0,), 4), (1, 0))
    mesh = Mesh.of((2, 2))
    assert grid.schema.layout == Layout(mesh, (cyclic(1), cyclic(0)))
    summed = LocalAggregate(grid, (0,), "sum")
    assert summed.schema.layout == Layout(mesh, (Partial("sum"), cyclic(0)))
    assert summed.schema.merge == "sum"
    done = Shuffle(summed, (0,)).schema
    assert (done.layout, done.merge) == (Layout(Mesh.of((2,)), (cyclic(0),)), "sum")
    assert done.holders.tolist() == [[[0], [0]], [[1], [1]]]  # two parts at one site
    assert LocalAggregate(Shuffle(summed, (0,)), (0,), "sum").schema.merge is None
    copied = LocalAggregate(Bcast(summed), (0,), "sum").schema
    assert (copied.layout, copied.merge) == (everywhere(4), None)
    swapped = LocalMap(grid, keys=(Label("k1"), Label("k0"))).schema.layout
    assert swapped.placed == (cyclic(0), cyclic(1))
    one = tra.scan(np.ones((4, 4)), (2, 2)).rekey(lambda i, j: 2 * j + i)
    first, second = translate(one.plan, 4).schema.layout.placed
    assert first == cyclic(0)
    assert second == Scattered(Table.of(np.array([0, 0, 1, 1])))


def test_groups_lack_parts_where_they_have_no_members() -> None:
    triangle = tra.scan(np.ones((3, 3)), (3, 3)).filter(lambda i, j: j <= i)
    plan = translate(triangle.plan, 3, {"x": (1,)})
    parts = LocalAggregate(plan, (0,), "sum")
    assert parts.schema.holders.tolist() == [[[0], [-1], [-1]], [[0], [1], [-1]], [[0], [1], [2]]]
    assert parts.schema.parts_of_keys.tolist() == [1, 2, 3]
    assert bytes_sent(Shuffle(parts, ())) == 3 * 8
    doubled = LocalMap(parts, kernels=(tra.map(lambda v: v * 2).template([MATRIX]),))
    assert doubled.schema.holders.tolist() == parts.schema.holders.tolist()
    together = on_sites(LocalAggregate(Shuffle(doubled, ()), (0,), "sum"), triangle.arrays)
    assert [a.item() for a in together.values()] == [2, 4, 6]


def test_a_linear_join_of_parts_gives_parts() -> None:
    x = stored(np.arange(16.0).reshape(4, 4), (2, 2), (1,), 2)
    rows = LocalAggregate(x, (0,), "sum")
    add = tra.add.template([MATRIX, MATRIX])
    both = LocalJoin((rows, LocalMap(rows)), ((0,), (0,)), (add,))
    assert both.schema.layout.placed == (Partial("sum"),)
    merged = LocalAggregate(Shuffle(both, (0,)), (0,), "sum")
    wanted = np.arange(16.0).reshape(2, 2, 2, 2).sum(axis=2) * 2
    got = on_sites(merged, {"x": np.arange(16.0).reshape(4, 4)})
    np.testing.assert_array_equal(np.stack([got[(i,)] for i in (0, 1)]), wanted)
    mul = tra.mul.template([MATRIX, MATRIX])
    for kernel, other in ((mul, rows), (add, Shuffle(rows, (0,))), (add, Bcast(x))):
        keys = ((0,), (0,)) if other is not x and len(other.schema.blocks.bounds) == 1 else None
        with pytest.raises(IntegrityError):
            LocalJoin((rows, other), keys or ((0,), (0, 1)), (kernel,))


def test_declared_cuts_place_stored_tensors() -> None:
    schema = Schema((Key("i", 0, 4), Key("j", 0, 4)), (Field("val", DType.DOUBLE),))
    cuts = ((0, 2, 4), (0, 2, 4))

    def placed(parts: tuple[int, ...] | None) -> Layout:
        return translate(ra.Scan(Input("x", schema, parts), cuts), 4).schema.layout

    assert placed(None).placed == (cyclic(0), cyclic(1))
    assert placed((1, 2)).placed == (cyclic(1),)
    assert placed((1, 1)) == everywhere(4)


# ---- what is refused


def test_local_work_that_would_be_wrong_cannot_be_written() -> None:
    x = stored(np.ones((4, 4)), (2, 2), (1,), 2)
    parts = LocalAggregate(x, (0,), "sum")
    add, mul = (k.template([MATRIX, MATRIX]) for k in (tra.add, tra.mul))
    raised = tra.map(lambda v: v + 1).template([MATRIX])
    refused: list[Callable[[], Node]] = [
        lambda: LocalMap(parts, kernels=(raised,)),
        lambda: LocalJoin((parts, parts), ((0,), (0,)), (mul,)),
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
    layouts = [
        Layout(Mesh.of((2, 3)), (cyclic(0), Replicate())),
        Layout(Mesh.of((3, 2)), (Replicate(), cyclic(0))),
        Layout(Mesh.of((2, 2)), (cyclic(1), Replicate())),
        Layout(Mesh.of((4,)), (cyclic(1),)),
        Layout(Mesh.of((4,), (5, 2, 1, 3)), (cyclic(1),)),
        Layout(Mesh.of((5,)), (Replicate(),)),
        everywhere(6),
    ]
    for a in layouts:
        for b in layouts:
            scans = Scan(x, cuts, a, 6), Scan(x, cuts, b, 6)
            # Equal layouts fit, and so do copies at all sites of the other operand.
            small, large = sorted(layouts.index(e) for e in (a, b))
            if small != large and large != 6 and (large, small) not in ((5, 2), (5, 3)):
                with pytest.raises(IntegrityError, match="miss matches"):
                    LocalJoin(scans, BOTH, (mul,))
                continue
            join = LocalJoin(scans, BOTH, (mul,))
            squares = on_sites(LocalAggregate(join, (0,), "sum"), {"x": array})
            assert [v.item() for v in squares.values()] == (array**2).sum(axis=1).tolist()


# ---- runs


def test_random_plans_mean_the_same_on_any_number_of_sites() -> None:
    pick = Random(7)
    for seed in range(1000, sample(1004, 1040)):
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
    plan = ra.Aggregate(joined, (0, 3), "sum")
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


def test_planning_runs_no_python_code_for_each_key() -> None:
    def calls(parts: int) -> int:
        x, y = (tra.scan(np.zeros((32, 32)), (parts, parts), name=n) for n in "xy")
        product = x.filter(lambda i, j: j <= i).join(y, (1,), (0,), tra.matmul).aggregate((0, 2))
        tiles = product.rekey(lambda i, k: (k, i)).tile(0, 1).stack(2, 0)
        counted = 0

        def count(frame: FrameType, event: str, argument: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)
        Costs().plan(translate(tiles.plan, 4))
        sys.setprofile(None)
        return counted

    calls(2)  # fills caches
    few = calls(4)
    assert calls(16) < 1.2 * few  # 64 times as many matches


def test_keys_of_large_bounds() -> None:
    x = tra.scan(np.arange(16.0).reshape(4, 4), (2, 2), name="x")
    large = x.rekey(lambda i, j: (i * 2**19, j * 2**19, i * 2**18, j * 2**18))
    both = large.join(large, range(4), range(4), tra.add).aggregate((3, 2, 0))
    assert_same(on_sites(translate(both.plan, 3), both.arrays), meaning(both))
    with pytest.raises(IntegrityError, match="<0, 1>, <0, 2>, <0, 3>, … is missing"):
        large.aggregate((0, 1)).repartition((1, 1))


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
r6<2, 1>[4|3, 3] DOUBLE, 1 key at 2 Shard(0)
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
    with pytest.raises(InterfaceError, match='no rewrite rule "R2-55"') as caught:
        con.execute("SET disabled_rules = 'R2-55'")
    assert 'Did you mean "R2-5"? Known rules: ' in caught.value.hint
    assert caught.value.position == len("SET disabled_rules = ")
    assert con.execute(sql).fetchall() == [(0, 1), (1, 1)]


def test_plans_without_sites_do_not_pay_for_them() -> None:
    script = """
import sys, einsql
einsql.connect().execute("SELECT i, SUM(1) AS val FROM range(2) AS r(i) GROUP BY i")
assert einsql.tra.scan([1.0, 2.0], (2,)).aggregate(()).blocks()[()].tolist() == [3.0]
assert not any(m.startswith(("einsql.optimizer.tra", "einsql.planner.placed_tra"))
               for m in sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
