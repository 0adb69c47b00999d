"""Decomposition: EinDecomp's printed numbers, optimality, and what strategies promise."""

from statistics import median

import numpy as np
import pytest

from einsql.errors import InterfaceError
from einsql.optimizer.decomposition.costs import (
    aggregate_floats,
    join_floats,
    repartition_floats,
)
from einsql.optimizer.decomposition.decompose import cut_problem
from einsql.optimizer.decomposition.descent import search
from einsql.optimizer.decomposition.elimination import eliminate
from einsql.optimizer.decomposition.integer import solve
from einsql.optimizer.decomposition.model import free_candidates, model_of
from einsql.optimizer.decomposition.problem import Problem
from einsql.optimizer.decomposition.strategies import STRATEGIES
from einsql.optimizer.decomposition.vectors import products, viable
from tests.optimizer.problems import Builder, chain, random_problem, transformer
from tests.support.samples import sample

MATMUL = Builder(dict.fromkeys("ijk", 8))
MATMUL.op("ij,jk->ik", None, None)

S = 6400
SQUARE = chain(dict.fromkeys("ijklm", S))
SKEWED = chain({"i": S, "j": S // 10, "k": S, "l": S // 10, "m": 10 * S})


@pytest.mark.parametrize(
    ("ijk", "join", "aggregate"),
    [((4, 1, 4), 512, 0), ((2, 1, 8), 640, 0), ((2, 4, 2), 256, 192), ((2, 2, 4), 384, 64)],
)
def test_costs_of_a_matmul_cut_into_16_calls(
    ijk: tuple[int, int, int], join: int, aggregate: int
) -> None:
    vertex, vector = MATMUL.problem.vertices[0], np.array([ijk])
    assert join_floats(vertex, vector)[0] == join
    assert aggregate_floats(vertex, vector)[0] == aggregate


def test_repartition_of_the_worked_example() -> None:
    made, used = np.array([[2, 4]]), np.array([[4, 1]])
    assert repartition_floats((8, 8), 1, made, used)[0, 0] == 320
    assert repartition_floats((8, 8), 1, made, made)[0, 0] == 0


def test_viable_vectors_are_counted_as_printed() -> None:
    assert len(products(2**10, (10**6,) * 6)) == 3003
    assert len(viable(MATMUL.problem.vertices[0], 8, exactly=True)) == 10
    tight = Builder({"i": 3, "j": 100, "k": 2})
    tight.op("ij,jk->ik", None, None)
    assert (viable(tight.problem.vertices[0], 8, exactly=True) <= [3, 100, 2]).all()


@pytest.mark.parametrize(
    ("problem", "strategy", "totals"),
    [
        (SQUARE, "eindecomp", (17, 23, 35)),
        (SQUARE, "paper", (20, 26, 43)),
        (SKEWED, "eindecomp", (15.1, 16.5, 20.7)),
    ],
    ids=["square", "square-paper", "skewed"],
)
def test_chains_cost_what_the_notes_say(
    problem: Problem, strategy: str, totals: tuple[float, ...]
) -> None:
    found = [cut_problem(problem, p, strategy).floats / S**2 for p in (8, 16, 64)]
    assert found == pytest.approx(totals)


def test_equal_cuts_of_chains() -> None:
    square = [cut_problem(SQUARE, p, "equal").floats / S**2 for p in (8, 64)]
    skewed = [cut_problem(SKEWED, p, "equal").floats / S**2 for p in (8, 64)]
    assert square == pytest.approx([17, 35])
    assert skewed == pytest.approx([26.9, 53.9])


@pytest.mark.parametrize("seed", range(sample(3, 12)))
def test_elimination_and_the_integer_program_agree(seed: int) -> None:
    problem = random_problem(seed, 8 + seed % 5).published
    model = model_of(problem, free_candidates((6, 8, 12)[seed % 3]))
    choice = eliminate(model)
    found = solve(model)
    assert choice is not None
    assert found is not None
    # HiGHS works within 1e-6 of the largest coefficient; elimination is exact.
    assert model.cost(choice) == pytest.approx(model.cost(found[0]), rel=1e-4)
    assert model.cost(choice) <= model.cost(found[0])


def test_the_search_alone_comes_close_to_the_optimum() -> None:
    gaps = []
    for seed in sample(range(0, 24, 10), range(24)):
        problem = random_problem(seed, 8 + seed % 13).published
        model = model_of(problem, free_candidates((6, 8, 12, 16)[seed % 4]))
        best = eliminate(model)
        assert best is not None
        gaps.append(model.cost(search(model)) / model.cost(best) - 1)
    assert median(gaps) <= 0.01
    assert max(gaps) <= 0.05


def test_no_named_strategy_beats_the_default_with_as_many_calls() -> None:
    extents = {"b": 8, "s": 64, "t": 64, "a": 32, "h": 8, "d": 16, "f": 96}
    problem = transformer(2, extents)
    for p in (2, 8):
        least = cut_problem(problem, p).floats
        for name in ("paper", "data:b", "data:h"):
            other = cut_problem(problem, p, name)
            contractions = [
                c for c, v in zip(other.cuts, problem.vertices, strict=True) if v.contraction
            ]
            if all(c.calls == p for c in contractions):
                assert least <= other.floats * (1 + 1e-9), name


def test_layers_are_solved_once() -> None:
    extents = {"b": 4, "s": 4096, "t": 4096, "a": 4096, "h": 32, "d": 128, "f": 11008}
    cuts = cut_problem(transformer(8, extents), 8).cuts
    size = len(cuts) // 8
    middle = [c.parts for c in cuts[2 * size : 3 * size]]
    assert [c.parts for c in cuts[4 * size : 5 * size]] == middle


def test_every_strategy_says_what_it_does_and_unknown_ones_are_refused() -> None:
    assert all(s.law for s in STRATEGIES.values())
    for wrong in ("eindecmp", "data", "data:", "equal:i"):
        with pytest.raises(InterfaceError):
            cut_problem(SQUARE, 4, wrong)
