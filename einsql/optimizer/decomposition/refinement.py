"""Cuts for many sites, grown from cuts for few: exact over the neighbourhood of a choice.

For p sites with prime factors q1 · q2 · … the graph is solved for q1, then for q1 · q2
near that solution, and so on. Near means: each vector may take one more factor and move
one from label to label, at every vertex at once, and the best of all these combinations
is found by elimination. The same again around the result, until nothing gets better.
"""

from __future__ import annotations

from math import log, prod

import numpy as np

from einsql.optimizer.decomposition.descent import search
from einsql.optimizer.decomposition.elimination import eliminate
from einsql.optimizer.decomposition.model import Candidates, Choice, Model, model_of
from einsql.optimizer.decomposition.problem import Problem, Vertex
from einsql.optimizer.decomposition.vectors import viable

ROUNDS = 6
"""Neighbourhoods tried for one number of sites, at most."""

REACHES = (3.0, 2.0)
"""How many factors may be added or moved in a vector; fewer where that is too much work."""


def refine(problem: Problem, sites: int) -> list[np.ndarray]:
    """A vector for each vertex."""
    vectors = [np.ones(len(v.labels), np.int64) for v in problem.vertices]
    factors = prime_factors(sites)
    for n, factor in enumerate(factors):
        p, best = prod(factors[: n + 1]), np.inf
        for _ in range(ROUNDS):
            model, choice = _around(problem, vectors, p, log(factor))
            cost = model.cost(choice)
            if cost >= best * (1 - 1e-12):
                break
            best = cost
            vectors = [s[c] for s, c in zip(model.states, choice, strict=True)]
    return vectors


def prime_factors(n: int) -> list[int]:
    """The prime factors of a number, the largest first."""
    found: list[int] = []
    k = 2
    while n > 1:
        while n % k == 0:
            found.append(k)
            n //= k
        k += 1
    return found[::-1]


def _around(
    problem: Problem, vectors: list[np.ndarray], p: int, unit: float
) -> tuple[Model, Choice]:
    """The best choice near the given vectors."""
    for reach in REACHES:
        model = model_of(problem, _near(problem, vectors, p, reach * unit))
        choice = eliminate(model)
        if choice is not None:
            return model, choice
    return model, search(model)


def _near(problem: Problem, vectors: list[np.ndarray], p: int, reach: float) -> Candidates:
    """The viable vectors within some distance; equal layers get the very same arrays."""
    made: dict[object, np.ndarray] = {}
    place = {v.name: n for n, v in enumerate(problem.vertices)}

    def candidates(v: Vertex) -> np.ndarray:
        centre = vectors[place[v.name]]
        key = (v.extents, v.contraction, v.fixed, centre.tobytes())
        if key not in made:
            states = viable(v, p, exactly=v.contraction)
            distance = np.abs(np.log(states / np.maximum(1, centre))).sum(axis=1)
            near = distance <= max(reach, distance.min(initial=0.0)) + 1e-9
            made[key] = states[near]
        return made[key]

    return candidates
