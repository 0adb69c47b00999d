"""Plans over blocks as SPMD programs: what is computed, kept and sent."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from einsql import tra
from einsql.engine.spmd_executor import SiteProgram
from einsql.engine.step import Arrays, Measure, Runner, Tick
from einsql.errors import DataError
from einsql.ir.einsum.graph import EinSum
from einsql.ir.ia import plan as ia
from einsql.ir.spmd.program import Complete, Exchange, Local, Program
from einsql.ir.tra import plan as ra
from einsql.ir.tra.kernels import VALUE
from einsql.kernels import compile_node
from einsql.kernels.kernel import CompiledNode
from einsql.optimizer.lowering.program import lowered
from einsql.optimizer.lowering.tiles import Copies
from einsql.optimizer.lowering.translate import translate
from tests.support.samples import sample
from tests.support.sites import assert_same, meaning, on_sites

X = np.arange(64.0).reshape(8, 8) % 7 / 4
Y = np.arange(64.0).reshape(8, 8) % 5 / 2
QUARTER = tra.map(lambda v: v * 0.25)


def product(parts: int = 4) -> tra.Relation:
    """X @ Y in blocks."""
    x, y = tra.scan(X, (parts, parts), name="x"), tra.scan(Y, (parts, parts), name="y")
    return x.join(y, (1,), (0,), tra.matmul).aggregate((0, 2))


class Counted:
    """Compiles nodes, and counts compilations, runs and the results that are alive at once."""

    def __init__(self) -> None:
        self.compiled = self.runs = self.most = 0
        self.alive: set[int] = set()

    def __call__(self, node: EinSum) -> CompiledNode[Runner]:
        self.compiled += 1
        kernel = compile_node(node, "never")

        def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
            fields = {k: np.array(a) for k, a in kernel.run(operands, tick).items()}
            self.runs += 1
            for array in fields.values():
                self.alive.add(id(array))
                weakref.finalize(array, self.alive.discard, id(array))
            self.most = max(self.most, len(self.alive))
            return fields

        return replace(kernel, run=run)


def joined(relation: tra.Relation, sites: int) -> ia.LocalJoin:
    """The products of a matrix product, by outer products at several sites."""
    merge = relation.plan
    assert isinstance(merge, ra.Aggregate)
    join = merge.source
    assert isinstance(join, ra.Join)
    x, y = join.sources
    scans = translate(x, sites, {"x": (1,)}), translate(y, sites, {"y": (0,)})
    return ia.LocalJoin(scans, join.keys, (join.kernel,))


def run(program: Program, relation: tra.Relation, compile_one: Counted) -> Measure:
    inputs = {name: {VALUE: array} for name, array in relation.arrays.items()}
    return SiteProgram(program, compile_one).run_virtually(inputs, lambda _: None)[1]


def moving(plan: ia.Node) -> list[Exchange | Complete]:
    steps = lowered(plan).program.steps
    return [s for s in steps if isinstance(s, Exchange | Complete) and s.collectives]


@pytest.mark.parametrize("sites", [1, 2])
def test_products_are_merged_on_arrival_and_equal_tiles_share_a_kernel(sites: int) -> None:
    relation, counted = product(), Counted()
    first = ia.LocalAggregate(joined(relation, sites), (0, 2), "sum")
    plan = ia.LocalAggregate(ia.Shuffle(first, (0, 1)), (0, 1), "sum")
    measure = run(lowered(plan).program, relation, counted)
    assert (counted.compiled, counted.runs) == (1, 64)
    assert counted.most <= 4 * sites + 2  # the first products of a row wait for a second one
    assert sum(measure.flops) >= 64 * 2 * 2**3


def test_chains_of_kernels_run_tile_by_tile() -> None:
    relation = product()
    more = relation.transform(tra.map(lambda v: v + 1)).plan
    assert isinstance(more, ra.Transform)
    join = joined(relation, 1)
    join = replace(join, kernels=(*join.kernels, more.kernel, more.kernel))
    counted = Counted()
    run(lowered(ia.LocalAggregate(join, (0, 2), "sum")).program, relation, counted)
    assert counted.runs == 3 * 64
    assert counted.most <= 8


def test_long_chains_do_not_exhaust_the_stack() -> None:
    relation = tra.scan(X, (2, 2))
    for _ in range(sample(1100, 1500)):  # beyond the interpreter's limit of recursion
        relation = relation.transform(QUARTER)
    np.testing.assert_array_equal(relation.numpy(), np.zeros((8, 8)))


def test_a_shuffle_before_a_merge_is_part_of_the_completion() -> None:
    relation = product()
    plan = ia.LocalAggregate(ia.Shuffle(joined(relation, 4), (0, 2)), (0, 2), "sum")
    assert [type(s) for s in moving(plan)] == [Complete]
    assert_same(on_sites(plan, relation.arrays), meaning(relation))


def test_a_merge_that_would_send_less_than_the_plan_stays_apart() -> None:
    relation = product()
    join = joined(relation, 2)  # each site has two products of a tile
    plan = ia.LocalAggregate(ia.Shuffle(join, (0, 2)), (0, 2), "sum")
    assert [type(s) for s in moving(plan)] == [Exchange]
    assert_same(on_sites(plan, relation.arrays), meaning(relation))
    first = ia.LocalAggregate(join, (0, 2), "sum")
    phases = ia.LocalAggregate(ia.Shuffle(first, (0, 1)), (0, 1), "sum")
    assert [type(s) for s in moving(phases)] == [Complete]
    assert sum(isinstance(s, Complete) for s in lowered(phases).program.steps) == 1
    assert_same(on_sites(phases, relation.arrays), meaning(relation))


def test_parts_may_have_different_numbers_of_copies() -> None:
    even = Copies.of(np.array([[[0, 1]], [[2, 3]]]))
    assert (even.repeated, even.sites.tolist()) == (2, [0, 2, 1, 3])
    uneven = Copies.of(np.array([[[0, 1]], [[2, -1]]]))
    assert (uneven.repeated, uneven.sites.tolist()) == (1, [0, 2, 1])
    assert uneven.numbers.tolist() == [[[0, 2]], [[1, -1]]]


@pytest.mark.parametrize("sites", [1, 4])
def test_what_a_filter_drops_is_not_computed_below_a_merge(sites: int) -> None:
    relation = product().filter(lambda i, k: i == k)
    counted = Counted()
    run(lowered(translate(relation.plan, sites)).program, relation, counted)
    assert counted.runs == (16 if sites == 1 else 64)  # a shuffle sends what the plan says
    assert_same(on_sites(translate(relation.plan, sites), relation.arrays), meaning(relation))


def test_sums_of_tiles_are_rounded_once_and_integers_overflow() -> None:
    small = np.array([1.0, *[2.0**-24] * 16], np.float32)
    total = tra.scan(small, (17,)).aggregate(())
    assert total.blocks()[()].tolist() == [np.float32(1 + 16 * 2.0**-24)]
    large = tra.scan(np.array([100, 100], np.int8), (2,)).aggregate(())
    with pytest.raises(DataError, match="Overflow"):
        large.blocks()
    assert tra.scan(np.array([100, 27], np.int8), (2,)).aggregate(()).blocks()[()].dtype == np.int8


def test_a_program_of_one_site_moves_nothing() -> None:
    for relation in (product(), product().stack(1, 1), product().tile(0, 1), product()):
        program = lowered(translate(relation.plan, 1)).program
        assert program.bytes_sent == 0
        assert not any(isinstance(s, Exchange) and s.nbytes for s in program.steps)
        assert any(isinstance(s, Local) for s in program.steps)
        assert_same(relation.blocks(), meaning(relation))
