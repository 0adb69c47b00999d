"""Cuts for many sites, grown from cuts for few: exact over the neighbourhood of a choice.

For p sites with prime factors q1 · q2 · … the graph is solved for q1, then for q1 · q2
near that solution, and so on. Near means: each vector may take one more factor and move
one from label to label, at every vertex at once, and the best of all these combinations
is found by elimination. The same again around the result, until nothing gets better.
Where a strategy for networks knows vectors for p sites, the search starts from them: it
ends where growing ends, in a third of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log, prod

import numpy as np

from einsql.optimizer.decomposition.descent import search
from einsql.optimizer.decomposition.elimination import eliminate
from einsql.optimizer.decomposition.model import Candidates, Choice, Model, model_of
from einsql.optimizer.decomposition.problem import Problem, Vertex
from einsql.optimizer.decomposition.vectors import viable

ROUNDS = 6
"""Neighbourhoods tried for one number of sites on the way to more, at most."""

LONG = 40
"""The same from a start that may be far away."""

REACHES = (3.0, 2.0)
"""How many factors may be added or moved in a vector; fewer where that is too much work."""


def refine(problem: Problem, sites: int, start: Sequence[np.ndarray] = ()) -> list[np.ndarray]:
    """A vector for each vertex.

    Args:
        problem: The problem.
        sites: p, the number of sites.
        start: Vectors for so many sites to begin with; from nothing they are grown.
    """
    factors = prime_factors(sites)
    if start:
        return _settled(problem, list(start), sites, log(factors[-1]), LONG)
    vectors = [np.ones(len(v.labels), np.int64) for v in problem.vertices]
    for n, factor in enumerate(factors):
        vectors = _settled(problem, vectors, prod(factors[: n + 1]), log(factor), ROUNDS)
    return vectors


def _settled(
    problem: Problem, vectors: list[np.ndarray], p: int, unit: float, rounds: int
) -> list[np.ndarray]:
    """The best of one neighbourhood after the other, until nothing gets better."""
    best = np.inf
    for _ in range(rounds):
        model, choice = _around(problem, vectors, p, unit)
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
            near = distance <= max(reach, distance.min()) + 1e-9
            made[key] = states[near]
        return made[key]

    return candidates
