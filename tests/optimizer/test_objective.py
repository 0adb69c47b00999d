"""What is minimised: both objectives and the memory limit against brute force, and their laws."""

from itertools import product
from math import prod

import numpy as np
import pytest

from einsql.core.boxes import split
from einsql.core.machine import Machine
from einsql.errors import OperationalError
from einsql.optimizer.decomposition import Floats, Objective, Seconds
from einsql.optimizer.decomposition.decompose import cut_problem
from einsql.optimizer.decomposition.objective import cell_bytes
from einsql.optimizer.decomposition.problem import Problem
from einsql.optimizer.decomposition.refinement import refine
from einsql.optimizer.decomposition.seconds import _overlap
from einsql.optimizer.decomposition.vectors import products, viable
from tests.optimizer.problems import Builder, random_problem
from tests.support.samples import combinations, sample, spread

SLOW_NETWORK = Machine(network=1e6, latency=1e-4)
OBJECTIVES = ("floats", "seconds", "seconds, slow network")


def objective(name: str, sites: int, memory: int | None = None) -> Objective:
    if name == "floats":
        return Floats(memory)
    return Seconds(SLOW_NETWORK if "slow" in name else Machine(), sites, memory)


def calls_wanted(extents: tuple[int, ...], p: int) -> int:
    """The largest number of calls up to p that intervals along the labels can make."""
    return next(n for n in range(p, 0, -1) if factorised(extents, n))


def factorised(extents: tuple[int, ...], n: int) -> list[tuple[int, ...]]:
    ranges = [range(1, min(n, max(1, e)) + 1) for e in extents]
    return [d for d in product(*ranges) if prod(d) == n]


def vectors_of(extents: tuple[int, ...], p: int, exactly: bool) -> list[tuple[int, ...]]:
    most = calls_wanted(extents, p)
    if exactly:
        return factorised(extents, most)
    counts = {n for n in range(1, p + 1) if p % n == 0 or most % n == 0}
    return [d for n in sorted(counts) for d in factorised(extents, n)]


def brute_force(problem: Problem, p: int, o: Objective, published: bool = True) -> float:
    """The least cost over every combination of vectors and layouts, counted one by one."""
    shared = problem.published if published else problem
    options: list[list[np.ndarray]] = []
    for v in shared.vertices:
        found = [np.array([d]) for d in vectors_of(v.extents, p, o.exactly and v.contraction)]
        if o.memory is not None and not v.publishes:
            found = [d for d in found if cell_bytes(v, d)[0] <= o.memory]
        options.append(found)
    alone = [
        [o.vertex(v, d)[0] for d in ds] for v, ds in zip(shared.vertices, options, strict=True)
    ]
    edges = []
    for n, v in enumerate(shared.vertices):
        for use in v.uses:
            if use.producer is not None:
                made = [o.made(shared.vertices[use.producer], d) for d in options[use.producer]]
                used = [o.used(use, d) for d in options[n]]
                costs = [[o.repartition(use, a, b)[0, 0] for b in used] for a in made]
                edges.append((use.producer, n, costs))
    return float(
        min(
            sum(own[c] for own, c in zip(alone, choice, strict=True))
            + sum(costs[choice[a]][choice[b]] for a, b, costs in edges)
            for choice in product(*(range(len(ds)) for ds in options))
        )
    )


def by_labels(problem: Problem, p: int, o: Objective) -> list[float]:
    """What cutting one label does, or all of them, where that takes p sites at most."""
    names = {x for v in problem.vertices for x in v.labels}
    strategies = ["equal", *(f"data:{x}" for x in sorted(names))]
    found = [cut_problem(problem, p, s, o) for s in strategies]
    return [f.cost for f in found if all(c.calls <= p for c in f.cuts)]


def diamond() -> Problem:
    """A product read twice: along its rows, and along its columns."""
    b = Builder({"i": 4, "j": 6, "k": 4})
    ik = b.op("ij,jk->ik", None, None)
    b.op("i,k->ik", b.op("ik->i", ik), b.op("ik->k", ik))
    return b.problem


def small_problem(seed: int) -> Problem:
    """Three operations over short labels, the second result with two readers at times."""
    b = Builder({"i": (3, 4, 8)[seed % 3], "j": 5, "k": (2, 6)[seed % 2]})
    ik = b.op("ij,jk->ik", None, None)
    other = b.op("ik->i" if seed % 4 else "ik->ki", ik)
    keys = "i" if seed % 4 else "ki"
    b.op(f"ik,{keys}->ik", ik, other)
    return b.problem


@pytest.mark.parametrize(("seed", "name"), spread(combinations(range(6), OBJECTIVES), 9))
def test_the_choice_is_the_best_of_all(seed: int, name: str) -> None:
    problem = small_problem(seed)
    for p in (4, 5, 6, 7):
        o = objective(name, p)
        best = brute_force(problem, p, o)
        if not o.exactly:  # three calls on four sites, say, which no free choice makes
            best = min(best, *by_labels(problem, p, o))
        for strategy in ("eindecomp", "exact"):
            found = cut_problem(problem, p, strategy, o)
            assert found.cost == pytest.approx(best, rel=1e-9), (p, strategy)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_memory_is_a_constraint(name: str) -> None:
    problem, p = small_problem(2), 6
    free = cut_problem(problem, p, objective=objective(name, p))
    needs = [
        sorted(cell_bytes(v, np.array([d]))[0] for d in vectors_of(v.extents, p, v.contraction))
        for v in problem.vertices
    ]
    least = int(max(n[0] for n in needs))
    for memory in (least, least + 8, 10**9):
        limited = objective(name, p, memory)
        found = cut_problem(problem, p, objective=limited)
        assert found.cost == pytest.approx(brute_force(problem, p, limited), rel=1e-9)
        assert found.cost >= free.cost * (1 - 1e-12)
        for c, v in zip(found.cuts, problem.vertices, strict=True):
            assert cell_bytes(v, np.array([list(c.parts.values())]))[0] <= memory
    with pytest.raises(OperationalError, match=rf"over i, .* takes {least:,} bytes a site"):
        cut_problem(problem, p, objective=objective(name, p, least - 1))
    for strategy in ("equal", "paper", "data:i"):
        with pytest.raises(OperationalError, match="fits no site"):
            cut_problem(problem, p, strategy, objective(name, p, 16))


def test_cuts_grown_from_those_for_fewer_sites_respect_memory() -> None:
    problem, p = random_problem(4, 12).published, 16
    operations = [v for v in problem.vertices if not v.publishes]
    memory = int(max(cell_bytes(v, viable(v, p, exactly=v.contraction)).min() for v in operations))
    free, limited = refine(problem, p), refine(problem, p, Floats(memory))
    over = [
        [
            cell_bytes(v, d[None, :])[0] > memory
            for v, d in zip(problem.vertices, vectors, strict=True)
            if not v.publishes
        ]
        for vectors in (free, limited)
    ]
    assert any(over[0])
    assert not any(over[1])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_shared_results_are_counted_once(name: str) -> None:
    problem = diamond()
    for p in (4, 6, 8):
        o = objective(name, p)
        assert cut_problem(problem, p, "exact", o).cost == pytest.approx(brute_force(problem, p, o))
    separate = brute_force(problem, 4, Floats(), published=False)
    assert cut_problem(problem, 4).floats <= separate


def test_a_shared_layout_may_be_finer_than_what_any_reader_wants() -> None:
    b = Builder({"i": 64, "k": 64, "j": 64})
    ik = b.op("ij,jk->ik", None, None)
    b.op("ik->i", ik)
    b.op("ik->k", ik)
    problem = b.problem.published
    use, layout = problem.vertices[1].uses[0], problem.vertices[1]
    o = Floats()

    def cost(d: tuple[int, ...]) -> float:
        at = np.array([d])
        total = o.repartition(use, np.array([[4, 4]]), at)[0, 0]
        for wanted in ((4, 1), (1, 4)):
            total += o.repartition(use, o.made(layout, at), np.array([wanted]))[0, 0]
        return float(total)

    layouts = vectors_of(layout.extents, 16, exactly=False)
    assert min(layouts, key=cost) == (4, 4)  # where it lies, finer than (4, 1) and (1, 4)


@pytest.mark.parametrize(("seed", "name"), combinations(range(8), OBJECTIVES))
def test_no_strategy_beats_the_default_in_its_own_objective(seed: int, name: str) -> None:
    problem = random_problem(seed, 6 + seed % 5)
    labels = {x for v in problem.vertices for x in v.labels}
    every = (2, 5, 8, 16)
    for p in sample(every[seed % 4 :][:1], every):
        o = objective(name, p)
        least = cut_problem(problem, p, objective=o)
        assert cut_problem(problem, p, "exact", o).cost == pytest.approx(least.cost, rel=1e-9)
        for strategy in ("paper", "equal", "data:i", "data:j"):
            if not any(strategy in ("paper", "equal", f"data:{x}") for x in labels):
                continue
            other = cut_problem(problem, p, strategy, o)
            if all(
                tuple(c.parts.values()) in vectors_of(v.extents, p, v.contraction)
                for c, v in zip(other.cuts, problem.vertices, strict=True)
            ):
                assert least.cost <= other.cost * (1 + 1e-9), (strategy, p)


@pytest.mark.parametrize("p", [1, 2, 3, 6, 7, 12, 13, 24, 101, 1024, 65521])
@pytest.mark.parametrize("name", OBJECTIVES[:2])
def test_contractions_take_p_calls_or_what_is_soonest(p: int, name: str) -> None:
    b = Builder({"i": 7, "j": 3, "k": 5, "l": 1000})
    ik = b.op("ij,jk->ik", None, None)  # all extents are below most p
    b.op("ik,kl->il", b.op("ik->ik", ik), None)
    cuts = cut_problem(b.problem, p, objective=objective(name, p)).cuts
    if name == "floats":
        small, middle, large = cuts
        most = max(n for n in range(min(p, 105), 0, -1) if factorised((7, 3, 5), n))
        assert small.calls == most
        assert middle.calls <= p
        assert large.calls == next(
            n for n in range(min(p, 35000), 0, -1) if len(products(n, (7, 5, 1000)))
        )
    for cut, extents in zip(cuts, ((7, 3, 5), (7, 5), (7, 5, 1000)), strict=True):
        assert cut.calls <= p
        assert all(d <= e for d, e in zip(cut.parts.values(), extents, strict=True))


def squares(extent: int) -> Problem:
    """A product of two products of square matrices."""
    b = Builder(dict.fromkeys("ijklm", extent))
    b.op("ik,km->im", b.op("ij,jk->ik", None, None), b.op("kl,lm->km", None, None))
    return b.problem


@pytest.mark.parametrize("p", [2, 3, 6, 8])
def test_a_product_is_cut_once_that_is_sooner_than_leaving_it_whole(p: int) -> None:
    for extent, whole in ((32, True), (2048, False)):
        found = cut_problem(squares(extent), p, objective=Seconds(Machine(), p))
        assert [c.calls for c in found.cuts] == [1 if whole else p] * 3
        alone = cut_problem(squares(extent), 1, objective=Seconds(Machine(), 1)).cost
        assert found.cost == alone if whole else found.cost < alone
        floats = cut_problem(squares(extent), p)
        assert [c.calls for c in floats.cuts] == [p] * 3


def test_a_faster_machine_takes_less_and_moving_more_costs_more() -> None:
    problem = random_problem(3, 9)
    costs = [
        cut_problem(problem, 8, objective=Seconds(m, 8)).cost
        for m in (SLOW_NETWORK, Machine(), Machine().with_flops(1e15))
    ]
    assert costs[0] > costs[1] > costs[2]


@pytest.mark.parametrize(
    ("extent", "made", "used"),
    [(12, 4, 3), (12, 3, 4), (64, 8, 8), (100, 7, 9), (13, 13, 2), (5, 1, 5), (96, 16, 2)],
)
def test_overlaps_are_those_of_the_intervals(extent: int, made: int, used: int) -> None:
    common = np.array([
        [max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in split(0, extent, made)]
        for b in split(0, extent, used)
    ])  # fmt: skip
    best = common.max(axis=1)
    assert _overlap(extent, made, used) == (best.min(), best.mean(), (common > 0).sum(axis=1).max())
