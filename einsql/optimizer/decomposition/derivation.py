"""The derivation of a choice of cuts: the alternatives of each operation with their costs.

Nothing here is part of planning. EXPLAIN computes it from the chosen cuts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einsql.core.records import dataclass
from einsql.optimizer.decomposition.alternatives import Alternatives
from einsql.optimizer.decomposition.decompose import Cut, Decomposition
from einsql.optimizer.decomposition.model import free_candidates
from einsql.optimizer.decomposition.objective import Objective, fits
from einsql.optimizer.decomposition.problem import Problem
from einsql.optimizer.decomposition.products import rules_of
from einsql.optimizer.decomposition.schedules import Schedule, completed
from einsql.optimizer.decomposition.strategies import rivals

RUNNERS_UP = 3
"""The number of alternatives that are named for each operation."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A cut of one operation, and what it costs.

    Attributes:
        parts: For each free label the number of intervals.
        copies: The number of groups of sites that each run all the calls.
        cost: The cost of the operation and of the edges to its operands and readers, while all
            other cuts are those taken; in the unit of the objective.
    """

    parts: dict[str, int]
    copies: int
    cost: float


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice among the viable cuts of one operation.

    Attributes:
        name: The name of the operation.
        viable: The number of viable vectors that fit the memory.
        taken: The cut taken.
        runners_up: The cheapest other vectors, at most RUNNERS_UP.
        others: The number of the other vectors, with the runners-up.
        rules: The names of the rules whose outcome the cut implies.
    """

    name: str
    viable: int
    taken: Alternative
    runners_up: tuple[Alternative, ...]
    others: int
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CutDerivation:
    """The derivation of the cuts of a graph.

    Attributes:
        choices: One for each operation, producers first.
        strategies: The total of each strategy that applies, by its name.
    """

    choices: tuple[Choice, ...]
    strategies: dict[str, float]


def derivation(problem: Problem, chosen: Decomposition, objective: Objective) -> CutDerivation:
    """Compares the chosen cuts of a problem with the alternatives of each operation.

    Args:
        problem: The problem, without publishing vertices.
        chosen: Its cuts.
        objective: The objective of the search that chose them.
    """
    free = free_candidates(chosen.sites, objective.exactly)
    cuts = {cut.name: cut for cut in chosen.cuts}
    schedules = [
        Schedule(np.array(list(cuts[v.name].parts.values()), np.int64), cuts[v.name].copies)
        if v.computes
        else Schedule(free(v)[0])
        for v in problem.vertices
    ]
    published = problem.published
    alternatives = Alternatives(published, schedules, chosen.sites, objective)
    choices = []
    for n, v in enumerate(published.vertices):
        if v.computes:
            every = free(v)
            viable = every[fits(v, every, objective.memory)]
            choices.append(_choice(n, viable, cuts[v.name], alternatives))
    costs = {
        name: completed(published, other, chosen.sites, objective)[1]
        for name, other in rivals(problem, chosen.sites, objective)
    }
    return CutDerivation(tuple(choices), costs)


def _choice(n: int, viable: np.ndarray, cut: Cut, alternatives: Alternatives) -> Choice:
    v, own = alternatives.problem.vertices[n], alternatives.schedules[n]
    (cost,) = alternatives.costs(n, own.vector[None], own.copies)
    others = viable if own.copies > 1 else viable[(viable != own.vector).any(axis=1)]
    costs = alternatives.costs(n, others)
    cheapest = np.argsort(costs, kind="stable")[:RUNNERS_UP]
    return Choice(
        v.name,
        len(viable),
        Alternative(cut.parts, own.copies, float(cost)),
        tuple(_alternative(v.labels, others[k], float(costs[k])) for k in cheapest),
        len(others),
        tuple(rule.value for rule in rules_of(v.roles, own.vector)),
    )


def _alternative(labels: Sequence[str], vector: np.ndarray, cost: float) -> Alternative:
    return Alternative(dict(zip(labels, vector.tolist(), strict=True)), 1, cost)
