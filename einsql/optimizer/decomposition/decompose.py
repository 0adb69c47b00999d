"""From a graph to the cut of every operation, with what each cut costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einsql.einsum import Node
from einsql.optimizer.decomposition.costs import aggregate_floats, join_floats, repartition_floats
from einsql.optimizer.decomposition.model import free_candidates
from einsql.optimizer.decomposition.objective import FLOATS, Objective, fits
from einsql.optimizer.decomposition.problem import Problem, Vertex, problem_of, with_published
from einsql.optimizer.decomposition.strategies import Vectors, completed, strategy_of
from einsql.optimizer.decomposition.vectors import restricted


@dataclass(frozen=True, slots=True)
class Cut:
    """How one operation is cut, and the floats EinDecomp counts for it.

    Attributes:
        name: The operation's, as EXPLAIN numbers it.
        parts: For each free label the number of intervals.
        viable: How many vectors it could have been cut by.
        join: Floats the kernel calls read.
        aggregate: Floats moved to merge partial results.
        repartition: Floats moved to bring the operands into this cut.
        copies: How many groups of sites each run all the calls; 1 but where a strategy
            wants a result to be computed everywhere.
    """

    name: str
    parts: dict[str, int]
    viable: int
    join: float
    aggregate: float
    repartition: float
    copies: int = 1

    @property
    def calls(self) -> int:
        """Kernel calls."""
        return int(np.prod(list(self.parts.values()), dtype=np.int64))

    @property
    def floats(self) -> float:
        """Floats moved in all."""
        return self.join + self.aggregate + self.repartition


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The cuts of a graph, producers first.

    Attributes:
        strategy: Who chose them.
        sites: For how many sites.
        cuts: One for each operation.
        cost: What the choice costs, in the unit of what was minimised.
    """

    strategy: str
    sites: int
    cuts: tuple[Cut, ...]
    cost: float

    @property
    def floats(self) -> float:
        """Floats moved in all (EinDecomp §7)."""
        return sum(c.floats for c in self.cuts)


def decompose(
    root: Node, sites: int, strategy: str = "eindecomp", objective: Objective = FLOATS
) -> Decomposition:
    """Cuts every operation of a graph.

    Args:
        root: The graph.
        sites: p, the number of sites.
        strategy: A name of STRATEGIES, for `data` with a label: `data:batch`.
        objective: What is minimised, within how much memory.

    Raises:
        InterfaceError: There is no such strategy.
        OperationalError: Optimality was asked for and not proven in time, or an operation
            takes more memory than the objective allows.
    """
    return cut_problem(problem_of(root), sites, strategy, objective)


def cut_problem(
    problem: Problem, sites: int, strategy: str = "eindecomp", objective: Objective = FLOATS
) -> Decomposition:
    """As `decompose`, for a problem given as such."""
    chosen, argument = strategy_of(strategy)
    published = with_published(problem)
    vectors = chosen.choose(problem, sites, argument, objective)
    vectors, cost = completed(published, vectors, sites, objective)
    return Decomposition(strategy, sites, _cuts(published, vectors, sites, objective), cost)


def _cuts(problem: Problem, vectors: Vectors, sites: int, objective: Objective) -> tuple[Cut, ...]:
    cuts: list[Cut] = []
    free = free_candidates(sites)
    first: dict[int | None, int] = {}
    for n, v in enumerate(problem.vertices):
        for use in v.uses:
            first.setdefault(use.producer, n)
    for n, v in enumerate(problem.vertices):
        if v.publishes:
            continue
        one = vectors[n][None, :]
        cuts.append(
            Cut(
                v.name,
                dict(zip(v.labels, map(int, vectors[n]), strict=True)),
                int(fits(v, free(v), objective.memory).sum()),
                float(join_floats(v, one)[0]),
                float(aggregate_floats(v, one)[0]),
                _repartition(problem, vectors, n)
                + sum(
                    _repartition(problem, vectors, u)  # told at the first of its readers
                    for u in {use.producer for use in v.uses} - {None}
                    if u is not None and problem.vertices[u].publishes and first[u] == n
                ),
            )
        )
    return tuple(cuts)


def _repartition(problem: Problem, vectors: Vectors, reader: int) -> float:
    """What bringing a vertex's operands from their producers' cuts into its own moves."""
    total = 0.0
    for use in problem.vertices[reader].uses:
        if use.producer is not None:
            source: Vertex = problem.vertices[use.producer]
            made = restricted(vectors[use.producer][None, :], source.keys)
            used = restricted(vectors[reader][None, :], use.axes)
            total += float(repartition_floats(use.shape, use.width, made, used)[0, 0])
    return total
