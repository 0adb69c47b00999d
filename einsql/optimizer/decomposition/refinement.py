"""Cuts for many sites, refined from cuts for few sites by exact search of neighbourhoods.

For p sites with prime factors q1 · q2 · … the graph is solved for q1, then for q1 · q2 near
that solution, and so on. In a neighbourhood each vector may gain one factor and move one from
label to label, at every vertex at once. Elimination finds the best of all these combinations.
The search repeats around the new choice until the cost does not fall. If a named strategy has
vectors for p sites, the search starts from them, and reaches the same result in a third of the
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, prod

import numpy as np

from einsql.optimizer.decomposition.descent import search
from einsql.optimizer.decomposition.elimination import eliminate
from einsql.optimizer.decomposition.model import (
    Candidates,
    Choice,
    Model,
    free_candidates,
    model_of,
)
from einsql.optimizer.decomposition.objective import FLOATS, Objective
from einsql.optimizer.decomposition.problem import Problem, Vertex

ROUNDS = 6
"""The maximum of neighbourhoods for each intermediate number of sites."""

LONG = 40
"""The maximum of neighbourhoods from a start that may be far from the optimum."""

REACHES = (3.0, 2.0)
"""The distances to try, in added or moved factors; the smaller one limits the work."""

CLOSE = 2.0
"""The distance of one factor moved from label to label."""


def refine(
    problem: Problem,
    sites: int,
    objective: Objective = FLOATS,
    start: Sequence[np.ndarray] = (),
) -> list[np.ndarray]:
    """A vector for each vertex, optimal within its neighbourhood.

    Args:
        problem: The problem.
        sites: p, the number of sites.
        objective: The objective to minimise.
        start: Vectors for p sites to start from; without them the search refines from few sites.

    Raises:
        OperationalError: A vertex has no vector within the objective's memory.
    """
    factors = prime_factors(sites)
    if start:
        free = free_candidates(sites, objective.exactly, objective.memory)
        return _settled(problem, list(start), free, log(factors[-1]), LONG, objective)
    vectors = [np.ones(len(v.labels), np.int64) for v in problem.vertices]
    for n, factor in enumerate(factors):
        # The memory limit applies to all sites, so fewer sites may exceed it.
        p = prod(factors[: n + 1])
        free = free_candidates(p, objective.exactly, objective.memory if p == sites else None)
        vectors = _settled(problem, vectors, free, log(factor), ROUNDS, objective)
    return vectors


def _settled(
    problem: Problem,
    vectors: list[np.ndarray],
    free: Candidates,
    unit: float,
    rounds: int,
    objective: Objective,
) -> list[np.ndarray]:
    """The best choice of successive neighbourhoods, until the cost does not decrease."""
    best = np.inf
    for _ in range(rounds):
        model, choice, reach = _around(problem, vectors, free, unit, objective)
        cost = model.cost(choice)
        if cost >= best * (1 - 1e-12):
            break
        best, before = cost, vectors
        vectors = model.vectors(choice)
        moved = max(
            float(np.abs(np.log(a / b)).sum()) for a, b in zip(vectors, before, strict=True)
        )
        if moved <= (reach - CLOSE) * unit + 1e-9:
            break  # the previous neighbourhood already contains the next one
    return vectors


def prime_factors(n: int) -> list[int]:
    """The prime factors of a number, the largest first."""
    factors: list[int] = []
    k = 2
    while n > 1:
        while n % k == 0:
            factors.append(k)
            n //= k
        k += 1
    return factors[::-1]


def _around(
    problem: Problem,
    vectors: list[np.ndarray],
    free: Candidates,
    unit: float,
    objective: Objective,
) -> tuple[Model, Choice, float]:
    """The model and the best choice near the vectors, and the distance searched completely."""
    for reach in REACHES:
        model = model_of(problem, _near(problem, vectors, free, reach * unit), objective)
        choice = eliminate(model)
        if choice is not None:
            return model, choice, reach
    return model, search(model), 0.0


def _near(
    problem: Problem, vectors: list[np.ndarray], free: Candidates, reach: float
) -> Candidates:
    """The free vectors within a distance; equal layers share one array."""
    nearby: dict[object, np.ndarray] = {}
    place = {v.name: n for n, v in enumerate(problem.vertices)}

    def candidates(v: Vertex) -> np.ndarray:
        centre, states = vectors[place[v.name]], free(v)
        key = (id(states), centre.tobytes())
        if key not in nearby:
            distance = np.abs(np.log(states / np.maximum(1, centre))).sum(axis=1)
            nearby[key] = states[distance <= max(reach, distance.min()) + 1e-9]
        return nearby[key]

    return candidates
