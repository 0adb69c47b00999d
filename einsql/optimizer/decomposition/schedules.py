"""Schedules: how each vertex of a problem is cut, and what that moves in all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from einsql.optimizer.decomposition.costs import aggregate_floats, join_floats, repartition_floats
from einsql.optimizer.decomposition.model import free_candidates
from einsql.optimizer.decomposition.problem import Problem, Use, Vertex
from einsql.optimizer.decomposition.vectors import restricted


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """How one vertex is cut.

    Attributes:
        vector: Into how many parts each label is cut, int64.
        copies: How many groups of sites each do all of it.
    """

    vector: np.ndarray
    copies: int = 1

    @property
    def calls(self) -> int:
        """Kernel calls of one group."""
        return int(self.vector.prod())


Schedules = list[Schedule]
"""For each vertex of a problem its schedule."""


@dataclass(frozen=True, slots=True)
class Floats:
    """What one operation moves, in floats (EinDecomp §7); copies move it each."""

    join: float
    aggregate: float
    repartition: float

    @property
    def total(self) -> float:
        """Floats moved in all."""
        return self.join + self.aggregate + self.repartition


def completed(problem: Problem, schedules: Schedules, sites: int) -> Schedules:
    """Adds the best layouts of published results to the schedules of all other vertices.

    Each published result stands alone between a producer and readers that are decided, so
    its best layout is found by itself. It may have any viable number of parts, or those
    of some reader.

    Args:
        problem: With publishing vertices.
        schedules: Of the vertices that publish nothing.
        sites: p, the number of sites.
    """
    given = iter(schedules)
    found: list[Schedule | None] = [None if v.publishes else next(given) for v in problem.vertices]
    free = free_candidates(sites)
    readers = problem.readers
    known: dict[object, Schedule] = {}
    made: Schedules = []
    for n, v in enumerate(problem.vertices):
        own = found[n]
        if own is not None:
            made.append(own)
            continue
        (use,) = v.uses
        assert use.producer is not None
        source = restricted(made[use.producer].vector[None, :], _keys(problem, use))
        reading: list[tuple[np.ndarray, np.ndarray, int]] = []
        for m, k in readers[n]:
            reader = found[m]
            assert reader is not None
            axes = problem.vertices[m].uses[k].axes
            used = restricted(reader.vector[None, :], axes)
            reading.append((_layout(reader.vector, axes, v), used, reader.copies))
        key = (
            v.extents, v.keys, v.shape, v.width, source.tobytes(),
            tuple((used.tobytes(), copies) for _, used, copies in reading),
        )  # fmt: skip
        if key not in known:
            states = np.unique(np.concatenate([free(v), *(x for x, _, _ in reading)]), axis=0)
            views = restricted(states, v.keys)
            floats = repartition_floats(v.shape, v.width, source, views)[0]
            for _, used, copies in reading:
                floats = floats + copies * repartition_floats(v.shape, v.width, views, used)[:, 0]
            known[key] = Schedule(states[int(floats.argmin())])
        made.append(known[key])
    return made


def _keys(problem: Problem, use: Use) -> tuple[int | None, ...]:
    assert use.producer is not None
    return problem.vertices[use.producer].keys


def _layout(vector: np.ndarray, axes: Sequence[int | None], published: Vertex) -> np.ndarray:
    """A reader's cut of a published result, as a vector of the publishing vertex."""
    layout = np.ones((1, len(published.labels)), np.int64)
    for key, at in zip(published.keys, axes, strict=True):
        if at is not None and key is not None:
            layout[0, key] = vector[at]
    return layout


def floats_moved(problem: Problem, schedules: Schedules, sites: int) -> list[Floats]:
    """What every vertex of a problem moves.

    Publishing a result is told at the first vertex that reads it, publishing vertices and
    stored tensors themselves move nothing.

    Args:
        problem: The problem.
        schedules: Of all its vertices.
        sites: p, the number of sites.
    """
    known: dict[object, tuple[float, float]] = {}
    moved: dict[object, float] = {}
    told: set[int] = set()
    found: list[Floats] = []

    def repartition(n: int) -> float:
        """What bringing a vertex's operands from their producers' cuts into its own moves."""
        v, own = problem.vertices[n], schedules[n]
        total = 0.0
        for use in v.uses:
            if use.producer is None or _everywhere(problem, schedules, use.producer, sites):
                continue
            made = restricted(schedules[use.producer].vector[None, :], _keys(problem, use))
            used = restricted(own.vector[None, :], use.axes)
            key = (use.shape, use.width, made.tobytes(), used.tobytes())
            if key not in moved:
                moved[key] = float(repartition_floats(use.shape, use.width, made, used)[0, 0])
            total += own.copies * moved[key]
        return total

    for n, v in enumerate(problem.vertices):
        if not v.computes:
            found.append(Floats(0.0, 0.0, 0.0))
            continue
        own = schedules[n]
        uses = tuple((u.axes, u.shape, u.width) for u in v.uses)
        key = (v.extents, uses, v.keys, v.shape, v.width, v.renames, own.vector.tobytes())
        if key not in known:
            vector = own.vector[None, :]
            known[key] = float(join_floats(v, vector)[0]), float(aggregate_floats(v, vector)[0])
        join, aggregate = known[key]
        total = repartition(n)
        for use in v.uses:
            at = use.producer
            if at is not None and problem.vertices[at].publishes and at not in told:
                told.add(at)
                total += repartition(at)
        found.append(Floats(own.copies * join, own.copies * aggregate, total))
    return found


def _everywhere(problem: Problem, schedules: Schedules, n: int, sites: int) -> bool:
    """True if a result lies whole at every site, which makes reading it free."""
    v = problem.vertices[n]
    if v.publishes:
        (use,) = v.uses
        assert use.producer is not None
        return _everywhere(problem, schedules, use.producer, sites)
    return schedules[n].copies >= sites and schedules[n].calls == 1
