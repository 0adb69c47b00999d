"""Cuts for many sites, grown from cuts for few: exact over the neighbourhood of a choice.

For p sites with prime factors q1 · q2 · … the graph is solved for q1, then for q1 · q2 near
that solution, and so on. In a neighbourhood each vector may gain one factor and move one from
label to label, at every vertex at once. Elimination finds the best of all these combinations.
The search repeats around the result until the cost does not decrease. If a named strategy has
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
"""Neighbourhoods tried for one number of sites on the way to more, at most."""

LONG = 40
"""The same from a start that may be far away."""

REACHES = (3.0, 2.0)
"""How many factors may be added or moved in a vector; fewer where that is too much work."""

CLOSE = 2.0
"""A factor moved from label to label: every combination of such changes was tried."""


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
        start: Vectors for p sites to start from; without them, the search grows them.

    Raises:
        OperationalError: A vertex has no vector within the objective's memory.
    """
    factors = prime_factors(sites)
    if start:
        free = free_candidates(sites, objective.exactly, objective.memory)
        return _settled(problem, list(start), free, log(factors[-1]), LONG, objective)
    vectors = [np.ones(len(v.labels), np.int64) for v in problem.vertices]
    for n, factor in enumerate(factors):
        # Fewer sites than there will be need not hold it all.
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
    """The best of one neighbourhood after the other, until nothing gets better."""
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
            break  # what is close to the new vectors was near the old ones already
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
    """The best choice near the given vectors, and how far it was looked for everywhere."""
    for reach in REACHES:
        model = model_of(problem, _near(problem, vectors, free, reach * unit), objective)
        choice = eliminate(model)
        if choice is not None:
            return model, choice, reach
    return model, search(model), 0.0


def _near(
    problem: Problem, vectors: list[np.ndarray], free: Candidates, reach: float
) -> Candidates:
    """The free vectors within some distance; equal layers get the very same arrays."""
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
