"""Schedules: the cut of each vertex of a problem, and the floats that cuts move."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from einsql.core.mappings import memoized
from einsql.core.records import dataclass
from einsql.optimizer.decomposition.costs import aggregate_floats, join_floats, repartition_floats
from einsql.optimizer.decomposition.groups import Group, groups_of
from einsql.optimizer.decomposition.model import free_candidates
from einsql.optimizer.decomposition.objective import Objective, fits, fitting
from einsql.optimizer.decomposition.problem import Problem, Use, Vertex, cost_key
from einsql.optimizer.decomposition.vectors import busiest_first, restricted


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The cut of one vertex.

    Attributes:
        vector: int64 (labels,), the number of parts of each label.
        copies: The number of groups of sites that each run all calls.
    """

    vector: np.ndarray
    copies: int = 1

    @property
    def calls(self) -> int:
        """Kernel calls of one group."""
        return int(self.vector.prod())


Schedules = list[Schedule]
"""The schedule of each vertex of a problem."""


class InapplicableError(Exception):
    """A strategy does not apply to a problem; the argument names the missing structure."""


@dataclass(frozen=True, slots=True)
class FloatsMoved:
    """The floats that one operation moves (EinDecomp §7), summed over its copies."""

    join: float
    aggregate: float
    repartition: float

    @property
    def total(self) -> float:
        """The total of floats moved."""
        return self.join + self.aggregate + self.repartition


def completed(
    problem: Problem, schedules: Schedules, sites: int, objective: Objective
) -> tuple[Schedules, float]:
    """Adds the best layouts of published results to the schedules of all other vertices.

    The producer and the readers of a published result are already scheduled, so its best
    layout is independent of others. It may have any viable number of parts, or those of one
    of its readers.

    Args:
        problem: The problem, with publishing vertices.
        schedules: The schedules of the vertices that publish nothing.
        sites: p, the number of sites.
        objective: The objective to minimise.

    Returns:
        All schedules, and their cost.

    Raises:
        OperationalError: A cell takes more memory than the objective allows.
    """
    completing = _Completing(problem, schedules, sites, objective)
    for n, v in enumerate(problem.vertices):
        if v.publishes:
            completing.publish(n)
    return [s for s in completing.schedules if s is not None], completing.cost()


class _Completing:
    """Costs of one problem's schedules; equal layers are costed once."""

    def __init__(
        self, problem: Problem, schedules: Schedules, sites: int, objective: Objective
    ) -> None:
        remaining = iter(schedules)
        self.problem, self.sites, self.objective = problem, sites, objective
        self.schedules = [None if v.publishes else next(remaining) for v in problem.vertices]
        self.readers = problem.readers
        self.free = free_candidates(sites, objective.exactly)
        self.inside = running_together(problem, self.schedules)
        self.layouts: dict[Hashable, Schedule] = {}
        self.costs: dict[Hashable, float] = {}
        self.moved: dict[Hashable, float] = {}

    def publish(self, n: int) -> None:
        """Chooses the layout of a published result."""
        (use,) = self.problem.vertices[n].uses
        assert use.producer is not None
        reading = tuple((self._mark(m), k) for m, k in self.readers[n])
        key = self.problem.kinds[n], self._mark(use.producer), reading
        self.schedules[n] = memoized(self.layouts, key, lambda: self._layout(n, use))

    def _layout(self, n: int, use: Use) -> Schedule:
        """The best layout of a published result.

        Args:
            n: The publishing vertex.
            use: Its operand.
        """
        v, source = self.problem.vertices[n], self._made(use)
        reading: list[tuple[np.ndarray, np.ndarray, Use, int]] = []
        for m, k in self.readers[n]:
            reader, read = self._schedule(m), self.problem.vertices[m].uses[k]
            used = self.objective.used(read, reader.vector[None, :])
            reading.append((_layout(reader.vector, read.axes, v), used, read, reader.copies))
        several = np.concatenate([self.free(v), *(r[0] for r in reading)])
        states = busiest_first(np.unique(several, axis=0))
        views = self.objective.made(v, states)
        costs = self.objective.repartition(use, source, self.objective.used(use, states))[0]
        for _, used, read, copies in reading:
            many = self.objective.repeated(copies)
            costs = costs + many * self.objective.repartition(read, views, used)[:, 0]
        return Schedule(states[int(costs.argmin())])

    def cost(self) -> float:
        """The cost of all schedules."""
        total = 0.0
        marks = [self._mark(n) for n in range(len(self.schedules))]
        for n, v in enumerate(self.problem.vertices):
            reads = tuple(None if u.producer is None else marks[u.producer] for u in v.uses)
            together = self.inside[n].kind if n in self.inside else None
            key = marks[n], reads, together
            total += memoized(self.costs, key, partial(self._cost, n))
        return total

    def _cost(self, n: int) -> float:
        """The cost of a vertex and of its reads."""
        own = self._schedule(n)
        v = self.inside[n].vertex if n in self.inside else self.problem.vertices[n]
        read = read_by(v, own.copies)
        vector, memory = own.vector[None, :], self.objective.memory
        if n not in self.inside or self.inside[n].bytes > (memory or np.inf):
            fitting(read, vector, memory)
        alone = float(self.objective.vertex(read, vector)[0])
        many = self.objective.repeated(own.copies)
        return many * (alone + sum(self._moved(u, own) for u in read.uses))

    def _mark(self, n: int) -> Hashable:
        """The kind and the schedule of a vertex, and of the one whose result it publishes."""
        own, v = self._schedule(n), self.problem.vertices[n]
        source = v.uses[0].producer if v.publishes else None
        published = None if source is None else self._mark(source)
        return self.problem.kinds[n], own.copies, own.vector.tobytes(), published

    def _moved(self, use: Use, reader: Schedule) -> float:
        """The cost of repartitioning an operand into its reader's cut."""
        if use.producer is None or is_everywhere(
            self.problem, self.schedules, use.producer, self.sites
        ):
            return 0.0
        produced, used = self._made(use), self.objective.used(use, reader.vector[None, :])
        # Different kinds of vertices often read equal shapes in equal cuts.
        key = use.shape, use.width, use.nbytes, use.constant, produced.tobytes(), used.tobytes()
        return memoized(
            self.moved, key, lambda: float(self.objective.repartition(use, produced, used)[0, 0])
        )

    def _made(self, use: Use) -> np.ndarray:
        assert use.producer is not None
        producer = self._schedule(use.producer)
        return self.objective.made(self.problem.vertices[use.producer], producer.vector[None, :])

    def _schedule(self, n: int) -> Schedule:
        schedule = self.schedules[n]
        assert schedule is not None
        return schedule


def local_cost(problem: Problem, schedules: Schedules, objective: Objective) -> float:
    """The part of a cost that is independent of the network; 0 if there is none.

    Args:
        problem: The problem, without publishing vertices.
        schedules: Its schedules.
        objective: The objective of the cost.
    """
    alone = objective.without_network
    if alone is None:
        return 0.0
    together = running_together(problem, schedules)
    known: dict[Hashable, float] = {}
    total = 0.0
    for n, (v, own) in enumerate(zip(problem.vertices, schedules, strict=True)):
        inside = together.get(n)
        key = problem.kinds[n], own.vector.tobytes(), own.copies, inside and inside.kind
        read = read_by(v if inside is None else inside.vertex, own.copies)
        if key not in known:
            cost = float(alone.vertex(read, own.vector[None])[0])
            known[key] = alone.repeated(own.copies) * cost
        total += known[key]
    return total


def least_local_cost(problem: Problem, sites: int, objective: Objective) -> float:
    """A lower bound of the local cost of all viable schedules; see `local_cost`.

    Args:
        problem: The problem, without publishing vertices.
        sites: p, the number of sites.
        objective: The objective of the cost.
    """
    alone = objective.without_network
    if alone is None:
        return 0.0
    free = free_candidates(sites, objective.exactly)
    inside = {n: v for g in groups_of(problem) for n, v in zip(g.members, g.inside, strict=True)}
    known: dict[Hashable, float] = {}
    total = 0.0
    for n, v in enumerate(problem.vertices):
        key = problem.kinds[n], n in inside and cost_key(inside[n])
        if key not in known:
            known[key] = float(alone.vertex(inside.get(n, v), free(v)).min())
        total += known[key]
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Inside:
    """An operation that runs in a group.

    Attributes:
        vertex: The operation as a part of the group.
        bytes: Memory of the group's largest cell.
        kind: A key that is equal for equal operations of equal groups under equal cuts.
    """

    vertex: Vertex
    bytes: float
    kind: Hashable


def running_together(problem: Problem, schedules: Sequence[Schedule | None]) -> dict[int, Inside]:
    """The operations that their cuts let run in groups, by their numbers.

    Args:
        problem: The problem.
        schedules: The schedules of the vertices; None for publishing ones.
    """
    together: dict[int, Inside] = {}
    known: dict[Hashable, float | None] = {}
    for group in groups_of(problem):
        own = [s for s in (schedules[n] for n in group.members) if s is not None]
        marks = tuple((s.vector.tobytes(), s.copies) for s in own)
        kind = tuple(problem.kinds[n] for n in group.members), marks

        def cell_bytes(group: Group = group, own: Schedules = own) -> float | None:
            vectors = [s.vector for s in own]
            if len({s.copies for s in own}) > 1 or not group.is_cut_alike(vectors):
                return None
            return float(group.cell_bytes(group.cuts(0, vectors[0][None]))[0])

        nbytes = memoized(known, kind, cell_bytes)
        if nbytes is not None:
            for position, n in enumerate(group.members):
                together[n] = Inside(group.inside[position], nbytes, (kind, position))
    return together


def all_fit(problem: Problem, schedules: Schedules, memory: int | None) -> bool:
    """True if the cells of all operations fit the memory, alone or in a group."""
    if memory is None:
        return True
    together = running_together(problem, schedules)
    return all(
        (n in together and together[n].bytes <= memory) or fits(v, s.vector[None], memory)[0]
        for n, (v, s) in enumerate(zip(problem.vertices, schedules, strict=True))
    )


def _layout(vector: np.ndarray, axes: Sequence[int | None], published: Vertex) -> np.ndarray:
    """A reader's cut of a published result, as a vector of the publishing vertex."""
    layout = np.ones((1, len(published.labels)), np.int64)
    for key, at in zip(published.keys, axes, strict=True):
        if at is not None and key is not None:
            layout[0, key] = vector[at]
    return layout


def floats_moved(problem: Problem, schedules: Schedules, sites: int) -> list[FloatsMoved]:
    """The floats that every vertex of a problem moves.

    The repartition of a published result counts for its first reader. Publishing vertices and
    stored tensors themselves count 0.

    Args:
        problem: The problem.
        schedules: The schedules of all vertices.
        sites: p, the number of sites.
    """
    known: dict[object, tuple[float, float]] = {}
    moved: dict[object, float] = {}
    published: set[int] = set()
    per_vertex: list[FloatsMoved] = []

    def repartition(n: int) -> float:
        """Floats moved to repartition a vertex's operands from their producers' cuts."""
        v, own = problem.vertices[n], schedules[n]
        total = 0.0
        for use in v.uses:
            if use.producer is None or is_everywhere(problem, schedules, use.producer, sites):
                continue
            keys = problem.vertices[use.producer].keys
            produced = restricted(schedules[use.producer].vector[None, :], keys)
            used = restricted(own.vector[None, :], use.axes)
            key = (use.shape, use.width, produced.tobytes(), used.tobytes())
            if key not in moved:
                moved[key] = float(repartition_floats(use.shape, use.width, produced, used)[0, 0])
            total += own.copies * moved[key]
        return total

    for n, v in enumerate(problem.vertices):
        if not v.computes:
            per_vertex.append(FloatsMoved(0.0, 0.0, 0.0))
            continue
        own = schedules[n]
        v = read_by(v, own.copies)
        uses = tuple((u.axes, u.shape, u.width) for u in v.uses)
        fields = v.width, v.state_fields
        key = (v.extents, uses, v.keys, v.shape, fields, v.renames, own.vector.tobytes())
        if key not in known:
            vector = own.vector[None, :]
            known[key] = float(join_floats(v, vector)[0]), float(aggregate_floats(v, vector)[0])
        join, aggregate = known[key]
        total = repartition(n)
        for use in v.uses:
            at = use.producer
            if at is not None and problem.vertices[at].publishes and at not in published:
                published.add(at)
                total += repartition(at)
        per_vertex.append(FloatsMoved(own.copies * join, own.copies * aggregate, total))
    return per_vertex


def is_everywhere(
    problem: Problem, schedules: Sequence[Schedule | None], n: int, sites: int
) -> bool:
    """True if a result has a complete copy at every site, which makes reading it free."""
    v, own = problem.vertices[n], schedules[n]
    if v.publishes:
        (use,) = v.uses
        assert use.producer is not None
        return is_everywhere(problem, schedules, use.producer, sites)
    return own is not None and own.copies >= sites and own.calls == 1


def read_by(v: Vertex, copies: int) -> Vertex:
    """The vertex for costing its reads: a renaming is free only in the cut of its operand."""
    return replace(v, renames=False) if v.renames and copies > 1 else v
