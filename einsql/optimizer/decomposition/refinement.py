"""Cuts for many sites, refined from cuts for few sites by exact search of neighbourhoods.

For p sites with prime factors q1 · q2 · … the graph is solved for q1, then for q1 · q2 near
that solution, and so on. In a neighbourhood each vector may gain one factor and move one from
label to label, at every vertex at once. Elimination finds the best of all these combinations.
The search repeats around the new choice until the cost does not fall. If a named strategy has
vectors for p sites, the search starts from them, and reaches the same result in a third of the
time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import log, prod

import numpy as np

from einsql.core.mappings import memoized
from einsql.optimizer.decomposition.descent import search
from einsql.optimizer.decomposition.elimination import eliminate
from einsql.optimizer.decomposition.groups import groups_of
from einsql.optimizer.decomposition.joint_cuts import Joining, JointCuts
from einsql.optimizer.decomposition.model import Choice, Model, free_candidates, model_of
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
        near = _Near(problem, sites, objective, objective.memory)
        return _settled(near, list(start), log(factors[-1]), LONG)
    vectors = [np.ones(len(v.labels), np.int64) for v in problem.vertices]
    for n, factor in enumerate(factors):
        # The memory limit applies to all sites, so fewer sites may exceed it.
        p = prod(factors[: n + 1])
        near = _Near(problem, p, objective, objective.memory if p == sites else None)
        vectors = _settled(near, vectors, log(factor), ROUNDS)
    return vectors


def _settled(near: _Near, vectors: list[np.ndarray], unit: float, rounds: int) -> list[np.ndarray]:
    """The best choice of successive neighbourhoods, until the cost does not decrease."""
    best = np.inf
    for _ in range(rounds):
        model, choice, reach = near.best(vectors, unit)
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


class _Near:
    """The neighbourhoods of choices; equal layers share their arrays.

    Args:
        problem: The problem.
        sites: p, the number of sites.
        objective: The objective to minimise.
        memory: The maximum of bytes of a cell.

    Raises:
        OperationalError: A vertex has no vector within the memory.
    """

    def __init__(
        self, problem: Problem, sites: int, objective: Objective, memory: int | None
    ) -> None:
        self.problem, self.objective, self.memory = problem, objective, memory
        self.groups = groups_of(problem) if objective.gains_by_groups else ()
        free = free_candidates(sites, objective.exactly)
        self.free = [free(v) for v in problem.vertices]
        self.joint: list[JointCuts] = []
        if memory is not None:
            joining = Joining(objective, memory)
            self.free = joining.fitting(problem, self.free, self.groups)
            self.joint = [joining.joint(g, [self.free[n] for n in g.members]) for g in self.groups]

    def best(self, vectors: list[np.ndarray], unit: float) -> tuple[Model, Choice, float]:
        """The model and the best choice near the vectors, and the distance searched completely."""
        for reach in REACHES:
            states = self._states(vectors, reach * unit)
            names = (v.name for v in self.problem.vertices)
            near = partial(_state, dict(zip(names, states, strict=True)))
            model = model_of(self.problem, near, self.objective, self.groups, self.memory)
            choice = eliminate(model)
            if choice is not None:
                return model, choice, reach
        return model, search(model), 0.0

    def _states(self, vectors: list[np.ndarray], reach: float) -> list[np.ndarray]:
        """The free vectors within a distance, and the closest common cut of each group."""
        nearby: dict[object, np.ndarray] = {}
        closest: dict[int, int] = {}
        for group, joint in zip(self.groups, self.joint, strict=False):
            distance: np.ndarray = np.zeros(joint.states.shape[1])
            for n, common in zip(group.members, joint.states, strict=True):
                distance += _distance(self.free[n][common], vectors[n])
            if len(distance):
                closest |= zip(group.members, joint.states[:, distance.argmin()], strict=True)
        states = []
        for n, (free, centre) in enumerate(zip(self.free, vectors, strict=True)):

            def near(
                free: np.ndarray = free, centre: np.ndarray = centre, n: int = n
            ) -> np.ndarray:
                distance = _distance(free, centre)
                is_near: np.ndarray = distance <= max(reach, distance.min()) + 1e-9
                if n in closest:
                    is_near[closest[n]] = True
                return np.asarray(free[is_near])

            key = id(free), centre.tobytes(), closest.get(n)
            states.append(memoized(nearby, key, near))
        return states


def _state(states: Mapping[str, np.ndarray], v: Vertex) -> np.ndarray:
    return states[v.name]


def _distance(vectors: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """The factors by which vectors differ from a centre, as a sum of logarithms."""
    return np.asarray(np.abs(np.log(vectors / np.maximum(1, centre))).sum(axis=1))
