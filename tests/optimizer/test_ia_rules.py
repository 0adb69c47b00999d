"""The rules of the implementation algebra: both sides of each, and what each must not do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest

from einsql import tra
from einsql.core.schema import DType
from einsql.errors import IntegrityError, InterfaceError, ProgrammingError
from einsql.ir.einsum.graph import Axis, Call, Const, Expr, Label
from einsql.ir.ia.plan import (
    Bcast,
    LocalAggregate,
    LocalFilter,
    LocalJoin,
    LocalMap,
    LocalStack,
    Node,
    Shuffle,
    bytes_sent,
    children,
    walk,
)
from einsql.ir.ia.typing import Duplicate
from einsql.ir.tra.kernels import Tile
from einsql.optimizer.tra import RULES, Costs, Weights, search, translate
from einsql.optimizer.tra.beam import Neighbours
from einsql.optimizer.tra.laws import chained
from tests.support.samples import sample
from tests.support.sites import Blocks, any_copies, assert_same, meaning, on_sites, random_relation

SITES = (1, 2, 3, 4, 5, 8)
RULE = {r.name: r for r in RULES}


def test_every_rule_keeps_the_meaning() -> None:
    fired: Counter[str] = Counter()
    for seed in sample(range(400, 505), range(600)):
        pick = Random(seed)
        relation = random_relation(pick)
        wanted = meaning(relation)
        stored = {n: pick.choice([(0,), (1,), (0, 1), None]) for n in relation.arrays}
        plan = translate(relation.plan, SITES[seed % len(SITES)], stored)
        assert_same(on_sites(plan, relation.arrays), wanted)
        for _ in range(5):
            ways = list(Neighbours(RULES).of(plan))
            if not ways:
                break
            rare = min(fired[rule.name] for rule, _ in ways)
            rule, plan = pick.choice([w for w in ways if fired[w[0].name] <= rare + 2])
            fired[rule.name] += 1
            assert_same(on_sites(plan, relation.arrays), wanted)
    assert all(fired[rule.name] >= sample(1, 5) for rule in RULES), fired


def test_the_search_keeps_the_meaning_and_never_loses() -> None:
    cheaper = 0
    for seed in range(sample(30, 90)):
        pick = Random(seed)
        relation = random_relation(pick)
        weights = Weights(beta=pick.choice([0.0, 0.001, 1.0]))
        first = translate(relation.plan, SITES[seed % len(SITES)])
        found = search(first, weights=weights, most_plans=60)
        assert_same(on_sites(found.root, relation.arrays), meaning(relation))
        assert found.cost == Costs().plan(found.root)
        assert found.cost.bytes_sent == bytes_sent(found.root)
        assert found.cost.total(weights) <= found.first.total(weights)
        cheaper += found.cost.total(weights) < found.first.total(weights)
        plans = [first, *(s.new for s in found.trace)]
        assert [s.old for s in found.trace] == plans[:-1]
        assert found.root is plans[-1]
    assert cheaper > sample(5, 40)


# ---- where the printed rules would be wrong

X = np.arange(16.0).reshape(4, 4) * 7 % 16 / 4
Y = X.T + 1
ARRAYS = {"x": X, "y": Y}
TILES = [Tile(2, DType.DOUBLE)] * 2
MATMUL, ADD = tra.matmul.template(TILES), tra.add.template(TILES)
DOUBLED = tra.map(lambda v: v * 2).template(TILES[:1])
RAISED = tra.map(lambda v: v + 1).template(TILES[:1])
ALL_KEYS = ((0, 1), (0, 1))
PRODUCT_KEYS = ((0, 1), (1, 2))


def stored(name: str, keys: Sequence[int] | None, sites: int = 2) -> Node:
    return translate(tra.scan(ARRAYS[name], (2, 2), name=name).plan, sites, {name: keys})


def is_key(key: int, value: int) -> Expr:
    return Call("eq", (Label(f"k{key}"), Const(value, DType.BIGINT)), DType.BOOLEAN)


def equal(a: Blocks, b: Blocks) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[k], b[k]) for k in a)


def assert_no_law(rule: str, left: Node, right: Callable[[], Node]) -> None:
    """The rule does not write `right` for `left`, and whoever did would get other arrays."""
    wanted = on_sites(left, ARRAYS)
    for new in RULE[rule].alternatives(left):
        assert equal(on_sites(new, ARRAYS), wanted)
        assert equal(any_copies(new, ARRAYS), wanted)
    assert not equal(any_copies(right(), ARRAYS), wanted)


def test_r2_1_drops_only_what_moves_nothing() -> None:
    x = stored("x", (0,))
    assert not RULE["R2-1"].alternatives(Shuffle(x, (1,)))
    assert RULE["R2-1"].alternatives(Shuffle(x, (0,))) == [x]
    for first in (Bcast(x), Shuffle(x, (1,))):
        for last in (Bcast(first), Shuffle(first, (0,))):
            shorter = RULE["R2-1"].alternatives(last)[-1]
            assert type(shorter) is type(last)
            assert children(shorter) == (x,)


def test_r2_4_needs_a_relation_that_is_partitioned() -> None:
    by_column = stored("x", (1,))
    left = LocalAggregate(Shuffle(by_column, (0,)), (0,), "sum")
    assert_no_law("R2-4", left, lambda: LocalAggregate(by_column, (0,), "sum"))
    assert not RULE["R2-4"].alternatives(left)
    by_row = LocalAggregate(Shuffle(stored("x", (0,)), (0,)), (0,), "sum")
    (shorter,) = RULE["R2-4"].alternatives(by_row)
    assert_same(on_sites(shorter, ARRAYS), on_sites(left, ARRAYS))


def test_r2_5_needs_a_shuffle_that_brings_groups_together() -> None:
    x = stored("x", (1,))
    # As printed, groupBy ⊂ partDims: neither side is an aggregation, the right has lost a key.
    printed = LocalAggregate(Shuffle(x, (0, 1)), (0,), "sum")
    apart = LocalAggregate(Shuffle(stored("x", None, 4), (0, 1)), (0,), "sum")
    assert not RULE["R2-5"].alternatives(printed)
    assert not RULE["R2-5"].alternatives(apart)
    assert apart.schema.merge == "sum"
    assert not equal(any_copies(apart, ARRAYS), on_sites(printed, ARRAYS))
    with pytest.raises(ProgrammingError, match="shuffle on the keys"):
        Shuffle(LocalAggregate(x, (0,), "sum"), (0, 1))


def test_r2_5_ends_the_fold_once() -> None:
    x = stored("x", (0,))  # each group lies together, so that one phase would do
    left = LocalAggregate(Shuffle(x, (0,)), (0,), "sum", finish=(RAISED,))
    first = LocalAggregate(x, (0,), "sum", finish=(RAISED,))
    twice = LocalAggregate(Shuffle(first, (0,)), (0,), "sum", finish=(RAISED,))
    assert_no_law("R2-5", left, lambda: twice)
    assert len(RULE["R2-5"].alternatives(left)) == 1
    with pytest.raises(IntegrityError, match="would read parts"):
        LocalAggregate(stored("x", (1,)), (0,), "sum", finish=(RAISED,))


def test_r2_6_knows_copies_of_a_replicated_result() -> None:
    sites = 4
    x, y = Bcast(stored("x", (0,), sites)), stored("y", None, sites)
    join = LocalJoin((x, y), PRODUCT_KEYS, (MATMUL,))
    wanted = on_sites(LocalAggregate(Shuffle(join, (0, 2)), (0, 2), "sum"), ARRAYS)
    np.testing.assert_array_equal(np.block([[wanted[i, k] for k in (0, 1)] for i in (0, 1)]), X @ Y)
    # Every site has every product; who sent them all would count each once for a site.
    assert (join.schema.holders == [[0, 1, 2, 3]]).all()
    here = LocalAggregate(join, (0, 2), "sum")
    assert here.schema.merge is None
    assert_same(on_sites(here, ARRAYS), wanted)
    assert_same(any_copies(here, ARRAYS), wanted)


def test_r2_7_needs_a_complete_join() -> None:
    x, y = stored("x", (0,)), stored("y", (0,))
    with pytest.raises(IntegrityError, match=r"No site has both arrays of the match <0, 1, 0>"):
        LocalJoin((x, y), PRODUCT_KEYS, (MATMUL,))
    pushed = LocalJoin((Shuffle(x, (1,)), Shuffle(y, (0,))), PRODUCT_KEYS, (MATMUL,))
    complete = LocalJoin((x, Bcast(y)), PRODUCT_KEYS, (MATMUL,))
    (right,) = RULE["R2-7"].alternatives(Shuffle(complete, (1,)))
    assert_same(on_sites(right, ARRAYS), on_sites(pushed, ARRAYS))


def test_a_rule_below_a_join_may_not_take_its_matches() -> None:
    x, y = stored("x", (0,)), stored("y", (0,))
    sums = LocalAggregate(Shuffle(x, (1,)), (0, 1), "sum")  # brings x to where y is
    (here,) = RULE["R2-4"].alternatives(sums)

    def product(left: Node) -> Node:
        join = LocalJoin((left, y), PRODUCT_KEYS, (MATMUL,))
        return LocalAggregate(Shuffle(join, (0, 2)), (0, 2), "sum")

    assert not list(Neighbours([RULE["R2-4"]]).of(product(sums)))
    with pytest.raises(IntegrityError, match="miss matches"):
        product(here)


def test_kernels_are_fused_where_that_is_no_more_work() -> None:
    turn, columns = (tra.einsum(s).template(TILES[:1]) for s in ("ij->ji", "ij->j"))
    widen = replace(turn, axes=(*turn.axes, Axis("k", 0, 3)), keys=("i", "j", "k"))
    fused = {
        "view of a product": ((MATMUL,), (turn,), 1),
        "view of a view": ((turn,), (turn,), 1),
        "map of a sum": ((ADD,), (RAISED, DOUBLED), 1),
        "sums of a sum": ((ADD,), (columns,), 1),
        "map of a product": ((MATMUL,), (RAISED,), 2),
        "broadcast of a sum": ((ADD,), (widen,), 2),
        "sums of a product": ((MATMUL,), (columns,), 2),
    }
    for name, (first, then, kernels) in fused.items():
        assert len(chained(first, then)) == kernels, name


def test_r2_3_needs_a_map_that_keeps_what_is_shuffled_on() -> None:
    x = stored("x", (0,))
    swapped = LocalMap(x, keys=(Label("k1"), Label("k0")))
    left = LocalAggregate(Shuffle(swapped, (0,)), (0,), "sum")
    wrong = LocalAggregate(LocalMap(Shuffle(x, (0,)), swapped.keys), (0,), "sum")
    assert not equal(any_copies(wrong, ARRAYS), on_sites(left, ARRAYS))
    (right,) = RULE["R2-3"].alternatives(Shuffle(swapped, (0,)))
    assert isinstance(right, LocalMap)
    assert isinstance(right.source, Shuffle)
    assert right.source.part_dims == (1,)
    (back,) = RULE["R2-3"].alternatives(right)
    assert isinstance(back, Shuffle)
    assert back.part_dims == (0,)
    added = LocalMap(x, keys=(Call("add", (Label("k0"), Label("k1")), DType.BIGINT), Label("k1")))
    assert not RULE["R2-3"].alternatives(Shuffle(added, (0,)))
    duplicated = LocalMap(x, emit=Duplicate(3))
    assert not RULE["R2-3"].alternatives(Shuffle(duplicated, (2,)))
    assert RULE["R2-3"].alternatives(Shuffle(duplicated, (1,)))


def test_r1_3_and_r1_4_need_maps_that_keep_keys() -> None:
    x = stored("x", (0,))
    flipped = (Call("sub", (Const(1, DType.BIGINT), Label("k0")), DType.BIGINT), Label("k1"))
    left = LocalFilter(LocalMap(x, flipped), is_key(0, 0))
    assert_no_law("R1-3", left, lambda: LocalMap(LocalFilter(x, is_key(0, 0)), flipped))
    assert not RULE["R1-3"].alternatives(left)
    rows = LocalAggregate(x, (0,), "sum")
    assert not RULE["R1-4"].alternatives(LocalMap(rows, flipped[:1]))


def test_r1_4_pushes_only_what_distributes() -> None:
    x = stored("x", (0,))
    rows = LocalAggregate(x, (0,), "sum")
    raised = LocalMap(rows, kernels=(RAISED,))
    assert_no_law("R1-4", raised, lambda: LocalAggregate(x, (0,), "sum", inner=(RAISED,)))
    assert len(RULE["R1-4"].alternatives(raised)) == 1
    row_sums = tra.einsum("ij->i").template(TILES[:1])
    greatest = LocalMap(LocalAggregate(x, (0,), "max"), kernels=(row_sums,))
    assert_no_law("R1-4", greatest, lambda: LocalAggregate(x, (0,), "max", inner=(row_sums,)))
    assert len(RULE["R1-4"].alternatives(greatest)) == 1
    assert len(RULE["R1-4"].alternatives(LocalMap(rows, kernels=(row_sums,)))) == 2
    assert len(RULE["R1-4"].alternatives(LocalMap(rows, kernels=(DOUBLED,)))) == 2


def test_r1_6_needs_conditions_on_join_keys_or_one_side() -> None:
    x, y = stored("x", (0,)), Bcast(stored("y", (0,)))
    join = LocalJoin((x, y), PRODUCT_KEYS, (MATMUL,))
    left = LocalFilter(join, is_key(0, 1))
    # As printed the condition goes to both sides, where it means another key of y.
    on_both = (LocalFilter(x, is_key(0, 1)), LocalFilter(y, is_key(0, 1)))
    assert_no_law("R1-6", left, lambda: LocalJoin(on_both, PRODUCT_KEYS, (MATMUL,)))
    (one_sided,) = RULE["R1-6"].alternatives(left)
    assert isinstance(one_sided, LocalJoin)
    assert [type(s) for s in one_sided.sources] == [LocalFilter, Bcast]
    across = Call("eq", (Label("k0"), Label("k2")), DType.BOOLEAN)
    assert not RULE["R1-6"].alternatives(LocalFilter(join, across))
    assert len(RULE["R1-6"].alternatives(LocalFilter(join, is_key(1, 0)))) == 2


def test_r1_7_keeps_the_map() -> None:
    join = LocalJoin((stored("x", (0,)), stored("y", (0,))), ALL_KEYS, (ADD,))
    left = LocalMap(join, kernels=(DOUBLED,))
    assert_no_law("R1-7", left, lambda: join)
    (right,) = RULE["R1-7"].alternatives(left)
    assert isinstance(right, LocalJoin)
    assert len(right.kernels) == 1  # composed to one kernel
    turn = tra.einsum("ij->ji").template(TILES[:1])
    assert len(RULE["R1-7"].alternatives(LocalMap(join, kernels=(turn,)))) == 2
    # (x + yᵀ)ᵀ is not xᵀ + yᵀᵀᵀ, and what follows a kernel is not forgotten.
    for kernels in ((tra.einsum("ij,ji->ij", "add").template(TILES),), (ADD, RAISED)):
        turned = LocalMap(LocalJoin(join.sources, ALL_KEYS, kernels), kernels=(turn,))
        pushed = tuple(LocalMap(s, kernels=(turn,)) for s in join.sources)
        assert_no_law("R1-7", turned, partial(LocalJoin, pushed, ALL_KEYS, (ADD,)))
        assert len(RULE["R1-7"].alternatives(turned)) == 1
    products = LocalJoin((stored("x", (0,)), Bcast(stored("y", (0,)))), PRODUCT_KEYS, (MATMUL,))
    outer = LocalMap(LocalFilter(products, is_key(1, 0)), keys=(Label("k0"), Label("k2")))
    unfiltered = RULE["R1-6"].alternatives(outer.source)[0]
    assert not RULE["R1-7"].alternatives(LocalMap(unfiltered, outer.keys))


def test_stack_shuffles_on_the_keys_that_remain() -> None:
    x = stored("x", None)
    assert LocalStack(Shuffle(x, (0,)), 1, 1).schema.blocks.bounds == (2,)
    with pytest.raises(IntegrityError, match=r"No site holds all of the group"):
        LocalStack(Shuffle(x, (1,)), 1, 1)
    plan = translate(tra.scan(X, (2, 2)).stack(1, 1).plan, 2)
    assert [n.part_dims for n in walk(plan) if isinstance(n, Shuffle)] == [(0,)]
    assert not RULE["R2-5"].alternatives(plan)


# ---- the paper's examples


def checked_search(plan: Node, *names: str, **options: float) -> list[str]:
    """The rules of a search's trace, all others but the named ones disabled."""
    disabled = frozenset(RULE) - set(names) if names else frozenset[str]()
    found = search(plan, weights=Weights(**options), disabled=disabled)
    assert_same(on_sites(found.root, ARRAYS), on_sites(plan, ARRAYS))
    return [s.rule.name for s in found.trace]


def test_diagonal_of_a_sum() -> None:
    join = LocalJoin((stored("x", (0, 1), 4), stored("y", (0, 1), 4)), ALL_KEYS, (ADD,))
    check = Call("eq", (Label("k0"), Label("k1")), DType.BOOLEAN)
    diag = tra.diag.template(TILES[:1])
    plan = LocalMap(LocalFilter(join, check), keys=(Label("k0"),), kernels=(diag,))
    found = search(plan)
    assert [s.rule.name for s in found.trace] == ["R1-6", "R1-7"]
    assert "local filter" not in found.trace[0].after
    assert found.trace[1].after.splitlines()[4:] == [
        "r2<2>[2] DOUBLE at 2x2 Shard(0), Scattered",
        "  local join   r0<0, 1>, r1<0, 1> WHERE (k0 = k1)",
        "    kernel     x0[i, i], x1[i, i] -> [i] (x0.val + x1.val)",
        "    keys       <k0>",
    ]
    costs = [Costs().plan(n).flops for n in (plan, *(s.new for s in found.trace))]
    assert costs == [16, 8, 4]  # 4 blocks of 4 sums, then 2, then 2 diagonals of 2
    (wanted,) = [np.diag(X + Y)]
    got = on_sites(found.root, ARRAYS)
    np.testing.assert_array_equal(np.concatenate(list(got.values())), wanted)


def broadcast_product(keys: Sequence[int], sites: int) -> LocalAggregate:
    x, y = stored("x", (0,), sites), stored("y", keys, sites)
    join = LocalJoin((Bcast(x), y), PRODUCT_KEYS, (MATMUL,))
    return LocalAggregate(Shuffle(join, (0, 2)), (0, 2), "sum")


def test_broadcast_product_drops_its_shuffle_where_y_lies_by_columns() -> None:
    assert checked_search(broadcast_product((1,), 2), "R2-4") == ["R2-4"]
    assert checked_search(broadcast_product((0,), 2), "R2-4") == []
    assert checked_search(broadcast_product((0,), 2), "R2-4", "R2-5", beta=0.0) == []
    # Two phases send the sums of a site, not its products.
    long = tra.scan(X, (1, 4), name="x").join(tra.scan(Y, (4, 1), name="y"), (1,), (0,), tra.matmul)
    plan = translate(long.aggregate((0, 2)).plan, 2, {"y": (0,)})
    assert checked_search(plan, "R2-5", beta=0.0) == ["R2-5"]


def test_duplicates_of_the_worked_example() -> None:
    u = np.array([[1, 2, 5, 6], [3, 4, 7, 8], [9, 10, 13, 14], [11, 12, 15, 16]])
    scan = translate(tra.scan(u, (2, 2)).plan, 3)
    made = on_sites(LocalMap(scan, emit=Duplicate(2)), {"x": u})
    assert len(made) == 8
    for n in (0, 1):  # the paper prints ⟨0,1,0⟩ for ⟨0,0,1⟩
        assert made[0, 0, n].tolist() == [[1, 2], [3, 4]]
        assert made[1, 0, n].tolist() == [[9, 10], [11, 12]]


FORMS = {
    # A small x goes everywhere, y lies by columns: nothing else moves.
    "BMM": ((2, 4, 64), (2, 2, 8), 4, {"y": (1,)}, 0.001),
    # The contracted key is long: only sums move after the operands.
    "CPMM": ((8, 64, 8), (2, 8, 2), 4, {}, 0.001),
    # As many results as sites.
    "RMM": ((32, 32, 32), (2, 2, 2), 4, {}, 0.001),
    # More sites than results, and work that is worth spreading.
    "3D": ((32, 32, 32), (2, 2, 2), 8, {}, 0.1),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_product_takes_the_form_that_fits(name: str) -> None:
    (i, j, k), (p, q, r), sites, where, beta = FORMS[name]
    x = tra.scan(np.arange(i * j).reshape(i, j) % 5 / 2, (p, q), name="x")
    y = tra.scan(np.arange(j * k).reshape(j, k) % 7 / 4, (q, r), name="y")
    product = x.join(y, (1,), (0,), tra.matmul).aggregate((0, 2))
    first = translate(product.plan, sites, where)
    found = search(first, weights=Weights(beta=beta))
    assert_same(on_sites(found.root, product.arrays), meaning(product))
    assert form(found.root) == name
    if name != "BMM":  # which Table 1 begins with
        assert found.trace[0].rule.name == name


def form(plan: Node) -> str:
    (join,) = [n for n in walk(plan) if isinstance(n, LocalJoin)]
    if any(isinstance(s, Bcast) for s in join.sources):
        return "BMM"
    if join.keys == PRODUCT_KEYS:
        return "CPMM"
    (dims,) = {s.part_dims for s in join.sources if isinstance(s, Shuffle)}
    return {2: "RMM", 3: "3D"}[len(dims)]


def test_all_forms_of_a_product_and_what_they_move() -> None:
    sites, n = 4, 16
    product = broadcast_product((0, 1), sites)
    costs: dict[str, list[int]] = {}
    for name in ("BMM", "CPMM", "RMM", "3D"):
        for new in RULE[name].alternatives(product):
            assert_same(on_sites(new, ARRAYS), on_sites(product, ARRAYS))
            costs.setdefault(name, []).append(Costs().plan(new).tra_cost)
    assert costs == {
        "BMM": [sites * n + 2 * n] * 2,  # a matrix to every site, two products for each result
        "CPMM": [n + n + 2 * n],
        "RMM": [2 * n + 2 * n],
        "3D": [2 * n + 2 * n + 2 * n],
    }


# ---- switching rules


def test_rules_are_named_once_and_say_their_law() -> None:
    wanted = [f"R1-{n}" for n in range(1, 8)] + [f"R2-{n}" for n in range(1, 8)]
    assert sorted(RULE) == sorted([*wanted, "BMM", "CPMM", "RMM", "3D"])
    assert all("=" in r.law and "\n" not in r.law for r in RULES)


def test_disabled_rules_do_not_fire() -> None:
    product = translate(
        tra.scan(X, (2, 2), name="x")
        .join(tra.scan(Y, (2, 2), name="y"), (1,), (0,), tra.matmul)
        .aggregate((0, 2))
        .plan,
        4,
    )
    assert checked_search(product)[0] == "RMM"
    assert not {"RMM", "R2-6"} & {
        s.rule.name for s in search(product, disabled=frozenset({"RMM", "R2-6"})).trace
    }
    assert search(product, disabled=frozenset(RULE)).root is product
    with pytest.raises(InterfaceError, match="no rule") as caught:
        search(product, disabled=frozenset({"R3-1"}))
    assert "R2-1" in caught.value.hint
