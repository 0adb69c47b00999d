"""Derivations of cuts: what each alternative costs, and what other strategies cost."""

from dataclasses import replace

import numpy as np
import pytest

from einsql.core.machine import Machine
from einsql.optimizer.decomposition import Floats, Objective, Seconds
from einsql.optimizer.decomposition.decompose import cut_problem
from einsql.optimizer.decomposition.derivation import RUNNERS_UP, derivation
from einsql.optimizer.decomposition.problem import Problem
from einsql.optimizer.decomposition.schedules import Schedule, completed
from tests.optimizer.problems import chain, random_problem
from tests.support.samples import combinations

SITES = 8


def total(problem: Problem, parts: list[dict[str, int]], objective: Objective) -> float:
    schedules = [Schedule(np.array(list(p.values()), np.int64)) for p in parts]
    return completed(problem.published, schedules, SITES, objective)[1]


@pytest.mark.parametrize(
    ("objective", "seed"), combinations([Floats(), Seconds(Machine(), SITES, None)], range(6))
)
def test_an_alternative_costs_what_the_graph_costs_more(objective: Objective, seed: int) -> None:
    problem = random_problem(seed, 7)
    if seed == 0:
        problem = chain({"i": 64, "j": 30, "k": 100, "l": 8, "m": 128})
    chosen = cut_problem(problem, SITES, "paper", objective)
    derived = derivation(problem, chosen, objective)
    parts = [choice.taken.parts for choice in derived.choices]
    assert parts == [cut.parts for cut in chosen.cuts]
    taken = total(problem, parts, objective)
    for n, choice in enumerate(derived.choices):
        assert choice.taken.copies == 1
        assert list(choice.runners_up) == sorted(choice.runners_up, key=lambda a: a.cost)
        assert len(choice.runners_up) == min(RUNNERS_UP, choice.viable - 1)
        for other in choice.runners_up:
            cost = total(problem, [*parts[:n], other.parts, *parts[n + 1 :]], objective)
            more = other.cost - choice.taken.cost
            # A result with several readers may be stored in a better layout after the change.
            assert cost - taken <= more + 1e-9 * taken
            if seed == 0:
                assert cost - taken == pytest.approx(more, abs=1e-9 * taken)


def test_the_choice_is_no_dearer_than_the_strategies() -> None:
    for seed in range(6):
        problem = random_problem(seed, 7)
        chosen = cut_problem(problem, SITES)
        derived = derivation(problem, chosen, Floats())
        assert {"paper"} <= set(derived.strategies)
        assert chosen.cost <= min(derived.strategies.values()) * (1 + 1e-12)
        for name, cost in derived.strategies.items():
            assert cut_problem(problem, SITES, name).cost == pytest.approx(cost)


def test_an_operation_that_every_group_of_sites_repeats_keeps_its_copies() -> None:
    problem = random_problem(0, 4)
    chosen = cut_problem(problem, SITES)
    whole = dict.fromkeys(chosen.cuts[-1].parts, 1)
    repeated = replace(chosen.cuts[-1], parts=whole, copies=SITES)
    chosen = replace(chosen, cuts=(*chosen.cuts[:-1], repeated))
    choice = derivation(problem, chosen, Floats()).choices[-1]
    assert (choice.taken.parts, choice.taken.copies) == (whole, SITES)
    assert all(other.copies == 1 for other in choice.runners_up)
