"""Decomposes a graph: the cut of every operation, with its cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from einsql.core.boxes import split
from einsql.core.records import dataclass
from einsql.ir.einsum.balance import Balance
from einsql.ir.einsum.graph import Axis, EinSum, Node
from einsql.optimizer.decomposition.model import free_candidates
from einsql.optimizer.decomposition.objective import FLOATS, Objective, fits
from einsql.optimizer.decomposition.pinned import NO_PINS, Pinned, Pins, with_copies, with_pins
from einsql.optimizer.decomposition.problem import Problem, problem_of
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
        pinned: The cut and the placement in a plan file; None if a strategy chose the cut.
        blocks: The label of keys that rows choose by a value, with its number of blocks.
        balances: The labels whose intervals have equally many elements of a sparse tensor.
    """

    name: str
    parts: dict[str, int]
    viable: int
    join: float
    aggregate: float
    repartition: float
    copies: int = 1
    pinned: Pinned | None = None
    blocks: tuple[tuple[str, int], ...] = ()
    balances: tuple[tuple[str, Balance], ...] = ()

    def intervals(self, axis: Axis) -> np.ndarray:
        """The intervals of a free label, int64 (parts, 2)."""
        parts, balance = self.parts[axis.label], dict(self.balances).get(axis.label)
        if balance is None or parts == 1:
            return split(axis.lo, axis.hi, parts)
        return balance.intervals(axis.lo, axis.hi, parts)

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
        plan_file: The plan file that gave cuts, as EXPLAIN shows it; empty without one.
        plan_notice: The reason why the session's plan file gave none; empty if it gave some.
    """

    strategy: str
    sites: int
    cuts: tuple[Cut, ...]
    cost: float
    notice: str = ""
    plan_file: str = ""
    plan_notice: str = ""

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
    pins: Pins = NO_PINS,
    groups: Iterable[Sequence[EinSum]] = (),
) -> Decomposition:
    """Cuts every operation of a graph.

    Args:
        roots: The roots of the graph.
        sites: p, the number of sites.
        strategy: A name in STRATEGIES; `data` takes a label, `data:batch`. If it does not
            apply, `eindecomp` cuts.
        objective: The objective to minimise, with its memory limit.
        disabled: Names of rules that no cut may imply, unless each of an operation's does.
        pins: The cuts of a plan file, which the strategy keeps.
        groups: The nodes that a site can run together, group by group.

    Raises:
        InterfaceError: There is no such strategy.
        OperationalError: Optimality was requested and not proven in time, or an operation
            takes more memory than the objective allows.
    """
    problem = problem_of(*roots, sites=sites, disabled=disabled, groups=groups)
    return cut_problem(problem, sites, strategy, objective, pins)


def cut_problem(
    problem: Problem,
    sites: int,
    strategy: str = "eindecomp",
    objective: Objective = FLOATS,
    pins: Pins = NO_PINS,
) -> Decomposition:
    """Cuts every operation of a decomposition problem.

    Args:
        problem: The problem.
        sites: As in `decompose`.
        strategy: As in `decompose`.
        objective: As in `decompose`.
        pins: As in `decompose`.

    Raises:
        Error: See `decompose`.
    """
    chosen, argument = strategy_of(strategy)
    published = problem.published
    rest = with_pins(problem, pins)
    notice = ""
    try:
        schedules = chosen.choose(rest, sites, argument, objective)
    except InapplicableError as reason:
        notice = f"The strategy {strategy} {reason} in this statement; eindecomp cuts it"
        strategy = "eindecomp"
        schedules = STRATEGIES[strategy].choose(rest, sites, "", objective)
    schedules = with_copies(problem, schedules, pins)
    return decomposition(published, schedules, sites, strategy, objective, pins, notice)


def decomposition(
    published: Problem,
    schedules: Schedules,
    sites: int,
    strategy: str,
    objective: Objective,
    pins: Pins = NO_PINS,
    notice: str = "",
) -> Decomposition:
    """The decomposition by schedules that were chosen before.

    Args:
        published: The problem with publishing vertices.
        schedules: The schedules of the other vertices.
        sites: p, the number of sites.
        strategy: The strategy that chose them.
        objective: The objective of their cost.
        pins: The cuts of a plan file among them.
        notice: As in `Decomposition`.

    Raises:
        OperationalError: A cell takes more memory than the objective allows.
    """
    schedules, cost = completed(published, schedules, sites, objective)
    cuts = _cuts(published, schedules, sites, objective, pins)
    return Decomposition(strategy, sites, cuts, cost, notice)


def _cuts(
    problem: Problem, schedules: Schedules, sites: int, objective: Objective, pins: Pins
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
            pins.get(v.name),
            v.routed,
            v.balances,
        )
        for v, s, f in zip(problem.vertices, schedules, floats, strict=True)
        if v.computes
    )
