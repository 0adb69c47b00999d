"""Decomposes a graph: the cut of every operation, with its cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einsql.ir.einsum.graph import Node
from einsql.optimizer.decomposition.model import free_candidates
from einsql.optimizer.decomposition.objective import FLOATS, Objective, fits
from einsql.optimizer.decomposition.problem import Problem, problem_of, with_published
from einsql.optimizer.decomposition.schedules import (
    InapplicableError,
    Schedules,
    completed,
    floats_moved,
)
from einsql.optimizer.decomposition.strategies import STRATEGIES, strategy_of


@dataclass(frozen=True, slots=True)
class Cut:
    """The cut of one operation, and the floats EinDecomp counts for it.

    Attributes:
        name: The operation's name, as EXPLAIN numbers it.
        parts: For each free label the number of intervals.
        viable: The number of viable vectors.
        join: Floats the kernel calls read.
        aggregate: Floats moved to merge partial results.
        repartition: Floats moved to bring the operands into this cut.
        copies: The number of groups of sites that each run all the calls; 1 unless a
            strategy computes a result everywhere.
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
        """The total of floats moved."""
        return self.join + self.aggregate + self.repartition


@dataclass(frozen=True, slots=True)
class Decomposition:
    """The cuts of a graph, producers first.

    Attributes:
        strategy: The strategy that chose the cuts: the requested one, or `eindecomp` if that
            one does not apply.
        sites: The number of sites.
        cuts: One for each operation.
        cost: The cost of the choice, in the unit of the objective.
        notice: The reason why the requested strategy was replaced; empty if it was not.
    """

    strategy: str
    sites: int
    cuts: tuple[Cut, ...]
    cost: float
    notice: str = ""

    @property
    def floats(self) -> float:
        """The total of floats moved (EinDecomp §7)."""
        return sum(c.floats for c in self.cuts)


def decompose(
    *roots: Node,
    sites: int,
    strategy: str = "eindecomp",
    objective: Objective = FLOATS,
    disabled: frozenset[str] = frozenset(),
) -> Decomposition:
    """Cuts every operation of a graph.

    Args:
        roots: The roots of the graph.
        sites: p, the number of sites.
        strategy: A name in STRATEGIES; `data` takes a label, `data:batch`. If it does not
            apply, `eindecomp` cuts.
        objective: The objective to minimise, with its memory limit.
        disabled: Names of rules that no cut may imply, unless each of an operation's does.

    Raises:
        InterfaceError: There is no such strategy.
        OperationalError: Optimality was requested and not proven in time, or an operation
            takes more memory than the objective allows.
    """
    problem = problem_of(*roots, sites=sites, disabled=disabled)
    return cut_problem(problem, sites, strategy, objective)


def cut_problem(
    problem: Problem, sites: int, strategy: str = "eindecomp", objective: Objective = FLOATS
) -> Decomposition:
    """Cuts every operation of a decomposition problem; arguments as those of `decompose`."""
    chosen, argument = strategy_of(strategy)
    published = with_published(problem)
    notice = ""
    try:
        schedules = chosen.choose(problem, sites, argument, objective)
    except InapplicableError as reason:
        notice = f"The strategy {strategy} {reason} in this statement; eindecomp cuts it"
        strategy = "eindecomp"
        schedules = STRATEGIES[strategy].choose(problem, sites, "", objective)
    return decomposition(published, schedules, sites, strategy, objective, notice)


def decomposition(
    published: Problem,
    schedules: Schedules,
    sites: int,
    strategy: str,
    objective: Objective,
    notice: str = "",
) -> Decomposition:
    """The decomposition by schedules that were chosen before.

    Args:
        published: The problem with publishing vertices.
        schedules: The schedules of the other vertices.
        sites: p, the number of sites.
        strategy: The strategy that chose them.
        objective: The objective of their cost.
        notice: As in `Decomposition`.

    Raises:
        OperationalError: A cell takes more memory than the objective allows.
    """
    schedules, cost = completed(published, schedules, sites, objective)
    cuts = _cuts(published, schedules, sites, objective)
    return Decomposition(strategy, sites, cuts, cost, notice)


def _cuts(
    problem: Problem, schedules: Schedules, sites: int, objective: Objective
) -> tuple[Cut, ...]:
    free = free_candidates(sites, objective.exactly)
    floats = floats_moved(problem, schedules, sites)
    return tuple(
        Cut(
            v.name,
            dict(zip(v.labels, map(int, s.vector), strict=True)),
            int(fits(v, free(v), objective.memory).sum()),
            f.join,
            f.aggregate,
            f.repartition,
            s.copies,
        )
        for v, s, f in zip(problem.vertices, schedules, floats, strict=True)
        if v.computes
    )
