"""Plans graphs for several sites: cuts, placement, and the rules that improve both.

EinDecomp chooses the cuts, placement the sites. The cut of a contraction implies an algorithm of
the product (BMM, CPMM, RMM or 3D of TRA §4.2). EinDecomp's count bounds the floats that move;
the placed program sends an exact number of bytes. So each product rule is tried on the placed
program: another cut of the contraction that implies the rule, if it costs no more in the measure
of the cuts and less when placed. The count ignores where declared tensors are: every call reads
its operands, even those that are at its site. So for a contraction of such tensors an estimate of
the bytes takes the place of the count.

R2-3 and R2-7 act likewise on the cuts of maps and joins: the repartition before such an operation
moves behind it, or the other way round, if the placed program sends less.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from einsql.core.machine import Machine
from einsql.core.records import cached_property, dataclass
from einsql.ir.einsum.graph import EinSum, Input, Roots, walk
from einsql.ir.einsum.routing import routed_groups
from einsql.ir.remembered import remembering
from einsql.ir.spmd.program import Program
from einsql.optimizer.decomposition import Decomposition, Floats, Objective, Seconds, SentBytes
from einsql.optimizer.decomposition.alternatives import Alternatives
from einsql.optimizer.decomposition.decompose import cut_problem, decomposition
from einsql.optimizer.decomposition.exchanges import exchanges
from einsql.optimizer.decomposition.model import free_candidates
from einsql.optimizer.decomposition.objective import fits
from einsql.optimizer.decomposition.pinned import NO_PINS, Pins, with_copies, with_pins
from einsql.optimizer.decomposition.problem import Problem, Vertex, cost_key, problem_of
from einsql.optimizer.decomposition.products import PRODUCTS, CutRule, implied, rules_of
from einsql.optimizer.decomposition.schedules import (
    Schedule,
    Schedules,
    completed,
    least_local_cost,
    local_cost,
)
from einsql.optimizer.decomposition.strategies import rivals
from einsql.optimizer.lowering.graph_program import graph_program
from einsql.optimizer.placement.fuse_steps import joined
from einsql.optimizer.placement.physical import PhysicalPlan, physical_plan
from einsql.optimizer.placement.placement import KnownChoices, place
from einsql.optimizer.placement.ring_order import by_rounds, posted
from einsql.optimizer.placement.select_elements import selected
from einsql.optimizer.simulation.prediction import predict

MOST_PLACED = 3
"""The maximum of alternatives of a statement that are placed; each takes as long as the first."""
MOST_OPERATIONS = 512
"""The maximum of operations of these alternatives together, except that one is always placed."""
CERTAIN = 0.15
"""The part of the estimated cost of communication that the placed program has at least.

Placement finds tiles at their readers' sites, and merges and moves them in one collective. Small
statements had a fifth of the estimated latencies."""
SLACK = 1.1
"""The factor by which the estimate of an alternative may exceed that of the cut, in seconds.

The estimate assumes a placement that may not exist; the placed program decides.
"""


@dataclass(frozen=True, slots=True)
class CutStep:
    """One application of a rule to cuts.

    Attributes:
        rule: The rule.
        operations: The operations whose cut changed, as EXPLAIN names them; equal ones together.
        old: The parts of the first operation's labels before.
        new: The parts after.
        before: Bytes that cross sites before.
        after: Bytes that cross sites after.
    """

    rule: CutRule
    operations: tuple[str, ...]
    old: dict[str, int]
    new: dict[str, int]
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class SitePlan:
    """A graph planned for several sites.

    Attributes:
        cut: The cuts.
        plan: The plan of the implementation algebra.
        program: The program of the sites.
        trace: The rules that changed a cut, in order.
        implied: The rules whose outcome the cuts imply, with the operations.
    """

    cut: Decomposition
    plan: PhysicalPlan
    program: Program
    trace: tuple[CutStep, ...]
    implied: tuple[tuple[CutRule, tuple[str, ...]], ...]

    def measure(self, objective: Objective) -> tuple[float, float]:
        """The cost of the plan, with a second one that decides between equal plans.

        It is EinDecomp's floats, or seconds or bytes of the placed program.
        """
        nbytes = self.program.bytes_sent
        if isinstance(objective, Seconds):
            return sum(predict(self.program, objective.machine).seconds), nbytes
        return (nbytes, 0.0) if isinstance(objective, SentBytes) else (self.cut.cost, nbytes)


def plan_sites(
    roots: Roots,
    sites: int,
    strategy: str,
    objective: Objective,
    disabled: frozenset[str],
    pins: Pins = NO_PINS,
    groups: Sequence[Sequence[EinSum]] = (),
) -> SitePlan:
    """Cuts a graph, places it, and applies the rules that make the placed program cheaper.

    Args:
        roots: The roots of the graph.
        sites: The number of sites.
        strategy: As in `decompose`; rules act on the cuts of `eindecomp`.
        objective: The measure.
        disabled: Names of rules to leave out; no cut implies one of them if others exist.
        pins: The cuts of a plan file, which neither the strategy nor a rule changes.
        groups: The nodes that a site can run together, group by group.

    Raises:
        InterfaceError: There is no such strategy.
        OperationalError: See `decompose`.
    """
    with remembering():
        problem = problem_of(*roots, sites=sites, disabled=disabled, groups=groups)
        cut = cut_problem(problem, sites, strategy, objective, pins)
        improving = _Improving(roots, groups, problem, cut, objective, disabled, pins)
        if cut.strategy == "eindecomp":
            improving.compare_strategies()
            improving.apply_rules()
        return improving.plan()


class _Sited:
    """A cut graph and its placement; the plan and the program are computed on demand."""

    def __init__(
        self,
        roots: Roots,
        groups: Sequence[Sequence[EinSum]],
        cut: Decomposition,
        choices: KnownChoices,
    ) -> None:
        self._roots, self._groups, self.cut = roots, groups, cut
        self.placed = place(*roots, cut=cut, known=choices)
        self._seconds: float | None = None
        self._counts_elements = any(
            isinstance(n, Input) and n.pattern is not None for n in walk(*roots)
        )

    @property
    def bytes_sent(self) -> int:
        """Bytes that cross sites; of sparse tensors those of the elements that the program sends.

        A placement moves tiles of keys, and the program of dense tensors sends exactly these.
        """
        return self.program.bytes_sent if self._counts_elements else self.placed.bytes_sent

    @cached_property
    def plan(self) -> PhysicalPlan:
        """The plan of the implementation algebra."""
        return physical_plan(*self._roots, cut=self.cut, placed=self.placed)

    @cached_property
    def program(self) -> Program:
        """The program of the sites, with fused groups."""
        program = by_rounds(graph_program(self.plan))
        return selected(posted(joined(program, self._groups, routed_groups(self._roots))))

    def seconds(self, machine: Machine) -> float:
        """The predicted seconds of the program."""
        if self._seconds is None:
            self._seconds = sum(predict(self.program, machine).seconds)
        return self._seconds


class _Improving:
    """The rules on one graph."""

    def __init__(
        self,
        roots: Roots,
        groups: Sequence[Sequence[EinSum]],
        problem: Problem,
        cut: Decomposition,
        objective: Objective,
        disabled: frozenset[str],
        pins: Pins,
    ) -> None:
        self.roots, self.groups = roots, groups
        self.objective, self.disabled, self.pins = objective, disabled, pins
        self.sites = cut.sites
        self.problem = problem
        self.published = problem.published
        self._choices = KnownChoices()
        self.best = _Sited(roots, groups, cut, self._choices)
        self.trace: list[CutStep] = []

    def plan(self) -> SitePlan:
        """The best plan so far."""
        best = self.best
        implied_by: dict[CutRule, list[str]] = {}
        for v, s in zip(self.problem.vertices, self._schedules(), strict=True):
            for rule in rules_of(v.roles, s.vector) if v.computes else ():
                implied_by.setdefault(rule, []).append(v.name)
        rules = tuple((rule, tuple(names)) for rule, names in implied_by.items())
        return SitePlan(best.cut, best.plan, best.program, tuple(self.trace), rules)

    def compare_strategies(self) -> None:
        """Takes the cuts of a named strategy if their placed program costs less."""
        if isinstance(self.objective, Floats) or self._is_free_of_cost():
            return
        for schedules in self._rivals():
            if self._is_free_of_cost():
                return
            after = self._sited(schedules)
            if self._measure(after) < self._measure(self.best):
                self.best = after

    def _rivals(self) -> list[Schedules]:
        """The schedules of named strategies that may cost less when placed, the cheapest first."""
        problem = with_pins(self.problem, self.pins)
        measure, _ = self._measure(self.best)
        if measure <= least_local_cost(problem, self.sites, self.objective) * (1 + 1e-9):
            return []  # nothing moves, and no kernel can take less time
        tried = {_identity(self._schedules())}
        cheaper: list[tuple[float, Schedules]] = []
        for _, chosen in rivals(problem, self.sites, self.objective):
            schedules = with_copies(problem, chosen, self.pins)
            identity = _identity(schedules)
            local = local_cost(problem, schedules, self.objective)
            if identity in tried or local >= measure:
                continue
            tried.add(identity)
            _, cost = completed(self.published, schedules, self.sites, self.objective)
            if local + CERTAIN * (cost - local) < measure:
                cheaper.append((cost, schedules))
        return [schedules for _, schedules in sorted(cheaper, key=lambda pair: pair[0])]

    def _is_free_of_cost(self) -> bool:
        """True if no other plan can cost less."""
        return isinstance(self.objective, SentBytes) and self.best.bytes_sent == 0

    def apply_rules(self) -> None:
        """Places the cheapest alternatives, and keeps those that are cheaper."""
        if self.best.bytes_sent == 0:
            return
        count = min(MOST_PLACED, MOST_OPERATIONS // len(self.best.placed.choices))
        for alternative in sorted(self._products(), key=_rank)[: max(1, count)]:
            self._try(alternative)
        for alternative in sorted(self._exchanges(), key=_rank)[:count]:
            self._try(alternative)

    def _schedules(self) -> Schedules:
        """The schedules of the best cuts."""
        cuts = iter(self.best.cut.cuts)
        schedules: Schedules = []
        for v in self.problem.vertices:
            if v.stored:
                schedules.append(Schedule(np.array(v.fixed, np.int64)))
                continue
            cut = next(cuts)
            schedules.append(Schedule(np.array([cut.parts[x] for x in v.labels]), cut.copies))
        return schedules

    def _try(self, alternative: _Alternative) -> None:
        before = self.best
        schedules = self._schedules()
        first = alternative.vertices[0]
        old = schedules[first].vector
        for n in alternative.vertices:
            schedules[n] = Schedule(alternative.vector)
            self._follow(n, schedules)
        after = self._sited(schedules)
        if after.bytes_sent >= before.bytes_sent:
            return  # the rules are about moves, and a prediction takes longer than a placement
        if alternative.exact or self._measure(after) < self._measure(before):
            self.best = after
            v = self.problem.vertices[first]
            self._record(
                CutStep(
                    alternative.rule,
                    tuple(self.problem.vertices[n].name for n in alternative.vertices),
                    dict(zip(v.labels, old.tolist(), strict=True)),
                    dict(zip(v.labels, alternative.vector.tolist(), strict=True)),
                    before.bytes_sent,
                    after.bytes_sent,
                )
            )

    def _sited(self, schedules: Schedules) -> _Sited:
        """The placement of other schedules."""
        cut = self.best.cut
        new = decomposition(
            self.published,
            schedules,
            self.sites,
            cut.strategy,
            self.objective,
            self.pins,
            cut.notice,
        )
        return _Sited(self.roots, self.groups, new, self._choices)

    def _record(self, step: CutStep) -> None:
        """Adds a step; it replaces the step before if that changed the same cuts."""
        if self.trace and self.trace[-1].operations == step.operations:
            earlier = self.trace.pop()
            step = replace(step, old=earlier.old, before=earlier.before)
        self.trace.append(step)

    def _follow(self, n: int, schedules: Schedules) -> None:
        """Cuts a root that only renames an operation like the operation, so nothing moves."""
        readers = self.problem.readers
        if len(readers[n]) != 1:
            return
        ((m, _),) = readers[n]
        v, own = self.problem.vertices[m], schedules[m]
        if v.renames and not readers[m] and self._is_free(v, own):
            vector = np.ones_like(own.vector)
            for axis, key in zip(v.uses[0].axes, self.problem.vertices[n].keys, strict=True):
                if axis is not None and key is not None:
                    vector[axis] = schedules[n].vector[key]
            schedules[m] = Schedule(vector)

    def _is_free(self, v: Vertex, own: Schedule) -> bool:
        """True for an operation whose cut neither a hint nor a plan file nor copies fix."""
        return v.computes and not v.fixed and v.name not in self.pins and own.copies == 1

    def _measure(self, sited: _Sited) -> tuple[float, float]:
        """The cost of a plan, with a second one that decides between equal plans.

        It is EinDecomp's floats, or seconds or bytes of the placed program.
        """
        nbytes = sited.bytes_sent
        if isinstance(self.objective, Seconds):
            return sited.seconds(self.objective.machine), nbytes
        if isinstance(self.objective, SentBytes):
            return nbytes, sited.cut.cost
        return round(sited.cut.cost), nbytes

    def _compared(self, objective: Objective) -> Alternatives:
        """The comparison of other vectors with those of the best cuts."""
        return Alternatives(self.published, self._schedules(), self.sites, objective)

    def _products(self) -> Iterator[_Alternative]:
        """For each contraction and rule the best other vector by the estimate."""
        objective = self.objective
        current = self._compared(objective)
        free = free_candidates(self.sites, objective.exactly)
        numbers = [n for n, v in enumerate(self.published.vertices) if not v.publishes]
        in_seconds = isinstance(objective, Seconds)
        groups: dict[tuple[object, bool], list[int]] = {}
        for position, n in enumerate(numbers):
            v, own = self.published.vertices[n], current.schedules[n]
            if v.contraction and self._is_free(v, own):
                exact = not in_seconds and self._reads_declared(v)
                kind = cost_key(v), own.vector.tobytes()
                groups.setdefault((kind, exact), []).append(position)
        sent = self._compared(SentBytes()) if any(exact for _, exact in groups) else current
        for (_, exact), members in groups.items():
            n = numbers[members[0]]
            v, own = self.published.vertices[n], current.schedules[n]
            viable = free(v)
            viable = viable[fits(v, viable, objective.memory)]
            states = np.unique(np.concatenate([viable, own.vector[None]]), axis=0)
            costs = (sent if exact else current).costs(n, states)
            is_own = (states == own.vector).all(axis=1)
            slack = SLACK if in_seconds else 1 + 1e-12
            limit = float(costs[is_own][0]) * slack
            rules = implied(v.roles, states)
            for rule in PRODUCTS:
                if rule in self.disabled or rule not in rules:
                    continue
                possible = rules[rule] & ~is_own & (costs <= limit)
                if possible.any():
                    best = int(np.where(possible, costs, np.inf).argmin())
                    yield _Alternative(
                        rule, tuple(members), states[best], float(costs[best]), exact
                    )

    def _exchanges(self) -> Iterator[_Alternative]:
        """The cuts that move a repartition to the other side of an operation and send less."""
        objective = self.objective
        current = self._compared(objective)
        slack = SLACK if isinstance(objective, Seconds) else 1 + 1e-12
        numbers = [n for n, v in enumerate(self.published.vertices) if not v.publishes]
        groups: dict[object, tuple[CutRule, np.ndarray, list[int]]] = {}
        for position, n in enumerate(numbers):
            v, own = self.published.vertices[n], current.schedules[n]
            if self._is_free(v, own):
                for rule, vector in exchanges(self.published, current.schedules, n):
                    kind = cost_key(v), own.vector.tobytes(), rule, vector.tobytes()
                    groups.setdefault(kind, (rule, vector, []))[2].append(position)
        sent = self._compared(SentBytes()) if groups else current
        for rule, vector, members in groups.values():
            n = numbers[members[0]]
            v, vectors = self.published.vertices[n], np.stack([current.schedules[n].vector, vector])
            fit = fits(v, vectors, objective.memory)[1] and vector.prod() <= self.sites
            if rule in self.disabled or not fit:
                continue
            before, after = sent.costs(n, vectors)
            own_cost, cost = current.costs(n, vectors)
            if after < before and cost <= own_cost * slack:
                yield _Alternative(rule, tuple(members), vector, float(after), False)

    def _reads_declared(self, v: Vertex) -> bool:
        """True if an operation of the problem with publishing vertices reads a stored vertex."""
        vertices = self.published.vertices
        read = [vertices[u.producer] for u in v.uses if u.producer is not None]
        read += [vertices[u.producer or 0] for s in read if s.publishes for u in s.uses]
        return any(s.stored for s in read)


def _identity(schedules: Schedules) -> Hashable:
    """A key that is equal for equal schedules."""
    return tuple((s.vector.tobytes(), s.copies) for s in schedules)


def _rank(alternative: _Alternative) -> float:
    return alternative.estimate


@dataclass(frozen=True, slots=True, eq=False)
class _Alternative:
    """Another cut of equal operations.

    Attributes:
        rule: The rule whose outcome the cut implies.
        vertices: The numbers of the operations.
        vector: int64 (labels,), the parts of each label.
        estimate: The cost of one of them, with its operands and readers: in bytes if `exact` or
            if a repartition moves, else by the objective.
        exact: True if the bytes of the placed program decide, and not the measure of the cuts.
    """

    rule: CutRule
    vertices: tuple[int, ...]
    vector: np.ndarray
    estimate: float
    exact: bool
