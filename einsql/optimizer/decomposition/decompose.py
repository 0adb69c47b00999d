"""From a graph to the cut of every operation, with what each cut costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einsql.einsum import Node
from einsql.optimizer.decomposition.model import free_candidates
from einsql.optimizer.decomposition.problem import Problem, problem_of, with_published
from einsql.optimizer.decomposition.schedules import Schedules, completed, floats_moved
from einsql.optimizer.decomposition.strategies import strategy_of


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
    """The cuts of a graph, producers first."""

    strategy: str
    sites: int
    cuts: tuple[Cut, ...]

    @property
    def floats(self) -> float:
        """Floats moved in all (EinDecomp §7)."""
        return sum(c.floats for c in self.cuts)


def decompose(root: Node, sites: int, strategy: str = "eindecomp") -> Decomposition:
    """Cuts every operation of a graph.

    Args:
        root: The graph.
        sites: p, the number of sites.
        strategy: A name of STRATEGIES, for `data` with a label: `data:batch`.

    Raises:
        InterfaceError: There is no such strategy.
        OperationalError: Optimality was asked for and not proven in time.
    """
    return cut_problem(problem_of(root, sites), sites, strategy)


def cut_problem(problem: Problem, sites: int, strategy: str = "eindecomp") -> Decomposition:
    """As `decompose`, for a problem given as such."""
    chosen, argument = strategy_of(strategy)
    published = with_published(problem)
    schedules = completed(published, chosen.choose(problem, sites, argument), sites)
    return Decomposition(strategy, sites, _cuts(published, schedules, sites))


def _cuts(problem: Problem, schedules: Schedules, sites: int) -> tuple[Cut, ...]:
    free = free_candidates(sites)
    floats = floats_moved(problem, schedules, sites)
    return tuple(
        Cut(
            v.name,
            dict(zip(v.labels, map(int, s.vector), strict=True)),
            len(free(v)),
            f.join,
            f.aggregate,
            f.repartition,
            s.copies,
        )
        for v, s, f in zip(problem.vertices, schedules, floats, strict=True)
        if v.computes
    )
