"""The derivation of a choice of cuts: the alternatives of each operation with their costs.

Nothing here is part of planning. EXPLAIN computes it from the chosen cuts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einsql.optimizer.decomposition.decompose import Cut, Decomposition
from einsql.optimizer.decomposition.model import free_candidates
from einsql.optimizer.decomposition.objective import Objective, fits
from einsql.optimizer.decomposition.problem import Problem, with_published
from einsql.optimizer.decomposition.schedules import Schedule, completed, is_everywhere, read_by
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
    """

    name: str
    viable: int
    taken: Alternative
    runners_up: tuple[Alternative, ...]
    others: int


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
    cuts = {cut.name: cut for cut in chosen.cuts}
    comparison = _Comparison(problem, cuts, chosen.sites, objective)
    return CutDerivation(comparison.choices(), rivals(problem, chosen.sites, objective))


class _Comparison:
    """Costs of one operation's vectors, while all others keep theirs."""

    def __init__(
        self, problem: Problem, cuts: dict[str, Cut], sites: int, objective: Objective
    ) -> None:
        self.free = free_candidates(sites, objective.exactly)
        self.cuts, self.sites, self.objective = cuts, sites, objective
        schedules = [
            Schedule(np.array(list(cuts[v.name].parts.values()), np.int64), cuts[v.name].copies)
            if v.computes
            else Schedule(self.free(v)[0])
            for v in problem.vertices
        ]
        self.problem = with_published(problem)
        self.schedules, _ = completed(self.problem, schedules, sites, objective)
        self.readers = self.problem.readers

    def choices(self) -> tuple[Choice, ...]:
        """The choice of each operation."""
        return tuple(self._choice(n) for n, v in enumerate(self.problem.vertices) if v.computes)

    def _choice(self, n: int) -> Choice:
        v, own = self.problem.vertices[n], self.schedules[n]
        every = self.free(v)
        viable = every[fits(v, every, self.objective.memory)]
        (cost,) = self._costs(n, own.vector[None, :], own.copies)
        others = viable if own.copies > 1 else viable[(viable != own.vector).any(axis=1)]
        costs = self._costs(n, others, 1)
        cheapest = np.argsort(costs, kind="stable")[:RUNNERS_UP]
        return Choice(
            v.name,
            len(viable),
            Alternative(self.cuts[v.name].parts, own.copies, float(cost)),
            tuple(_alternative(v.labels, others[k], float(costs[k])) for k in cheapest),
            len(others),
        )

    def _costs(self, n: int, vectors: np.ndarray, copies: int) -> np.ndarray:
        """The cost of each vector of an operation; float64 of shape (vectors,)."""
        objective, vertices = self.objective, self.problem.vertices
        v = read_by(vertices[n], Schedule(vectors[0], copies)) if len(vectors) else vertices[n]
        own: np.ndarray = np.array(objective.vertex(v, vectors), np.float64)
        for use in v.uses:
            if use.producer is None or is_everywhere(
                self.problem, self.schedules, use.producer, self.sites
            ):
                continue
            producer = self.schedules[use.producer].vector[None, :]
            source = objective.made(vertices[use.producer], producer)
            own += objective.repartition(use, source, objective.used(use, vectors))[0]
        own *= objective.repeated(copies)
        if copies > 1 and is_everywhere(self.problem, self.schedules, n, self.sites):
            return own
        results = objective.made(v, vectors)
        for m, k in self.readers[n]:
            reader, use = self.schedules[m], vertices[m].uses[k]
            used = objective.used(use, reader.vector[None, :])
            many = objective.repeated(reader.copies)
            own += many * objective.repartition(use, results, used)[:, 0]
        return own


def _alternative(labels: Sequence[str], vector: np.ndarray, cost: float) -> Alternative:
    return Alternative(dict(zip(labels, vector.tolist(), strict=True)), 1, cost)
