"""The choice of cuts as a sum of tables: one for each vertex, one for each edge.

A vertex has states: the vectors by which it may be cut. An edge's costs depend on a state only
through a *view*, the cut of one operand or of the result, so its table stays small.

A group of operations is one more vertex. Its first state leaves the operations apart. Every other
state is a common cut, which saves costs and memory, and whose edges exclude all other vectors of
the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from einsql.core.mappings import memoized
from einsql.core.records import dataclass
from einsql.optimizer.decomposition.groups import Group
from einsql.optimizer.decomposition.joint_cuts import Joining
from einsql.optimizer.decomposition.objective import FLOATS, Objective
from einsql.optimizer.decomposition.problem import Problem, Use, Vertex, cost_key
from einsql.optimizer.decomposition.vectors import distinct, viable

Choice = list[int]
"""The number of the chosen state of each vertex."""


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """A result and the operand that reads it.

    Attributes:
        source: The producing vertex.
        target: The reading vertex.
        produced: For each state of the source the row of `costs`.
        consumed: For each state of the target the column of `costs`.
        costs: The costs of the repartition from each produced to each consumed cut.
    """

    source: int
    target: int
    produced: np.ndarray
    consumed: np.ndarray
    costs: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The cost of a choice: Σ alone[v][state] + Σ edges' tables.

    Attributes:
        states: The vectors of each vertex, then the cuts of each group.
        alone: Their costs.
        edges: The edges between vertices, and from operations to their groups.
        groups: The number of groups, which are the last vertices.
    """

    states: list[np.ndarray]
    alone: list[np.ndarray]
    edges: list[Edge]
    groups: int = 0

    def cost(self, choice: Sequence[int]) -> float:
        """The cost of a choice, in the objective's unit."""
        total = sum(float(a[s]) for a, s in zip(self.alone, choice, strict=True))
        return total + sum(
            float(e.costs[e.produced[choice[e.source]], e.consumed[choice[e.target]]])
            for e in self.edges
        )

    def vectors(self, choice: Sequence[int]) -> list[np.ndarray]:
        """The chosen vector of each vertex, without those of groups."""
        chosen = [s[c] for s, c in zip(self.states, choice, strict=True)]
        return chosen[: len(chosen) - self.groups]

    @property
    def around(self) -> list[list[Edge]]:
        """The edges at each vertex."""
        incident: list[list[Edge]] = [[] for _ in self.states]
        for e in self.edges:
            incident[e.source].append(e)
            incident[e.target].append(e)
        return incident


Candidates = Callable[[Vertex], np.ndarray]


def model_of(
    problem: Problem,
    candidates: Candidates,
    objective: Objective = FLOATS,
    groups: Sequence[Group] = (),
    memory: int | None = None,
) -> Model:
    """Tables of a problem over the vectors that `candidates` returns for each vertex.

    Args:
        problem: The problem.
        candidates: The vectors of each vertex.
        objective: The objective to minimise.
        groups: The groups of operations that may run together.
        memory: The maximum of bytes of a cell, of an operation or of a group.

    Raises:
        OperationalError: An operation fits the memory neither alone nor in a group.
    """
    states = [candidates(v) for v in problem.vertices]
    tables = _Tables(objective)
    joining = Joining(objective, memory)
    if memory is not None:
        states = joining.fitting(problem, states, groups)
    alone = [tables.vertex(v, s) for v, s in zip(problem.vertices, states, strict=True)]
    edges: list[Edge] = []
    numbers: dict[int, np.ndarray] = {}
    for n, v in enumerate(problem.vertices):
        for use in v.uses:
            if use.producer is None:
                continue
            source = problem.vertices[use.producer]
            produced, rows = tables.made(source, states[use.producer])
            used, columns = tables.used(use, states[n])
            costs = tables.repartition(use, produced, used)
            edges.append(Edge(use.producer, n, produced=rows, consumed=columns, costs=costs))
    joined = 0
    for group in groups:
        joint = joining.joint(group, [states[n] for n in group.members])
        if len(joint.cuts) == 1:
            continue  # no cut is common to the operations
        every = memoized(numbers, len(joint.cuts), partial(np.arange, len(joint.cuts)))
        for n, (view, costs) in zip(group.members, joint.edges, strict=True):
            edges.append(Edge(n, len(states), produced=view, consumed=every, costs=costs))
        states.append(joint.cuts)
        alone.append(joint.costs)
        joined += 1
    return Model(states, alone, edges, joined)


def free_candidates(p: int, exactly: bool = True) -> Candidates:
    """Every viable vector of at most p calls.

    Args:
        p: The maximum of kernel calls.
        exactly: Whether contractions take exactly p calls.
    """
    return lambda v: viable(v, p, exactly=exactly and v.contraction)


class _Tables:
    """Views and tables, each computed once, because layers of a network repeat them."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._views: dict[object, tuple[np.ndarray, np.ndarray]] = {}
        self._repartitions: dict[object, np.ndarray] = {}
        self._vertices: dict[object, np.ndarray] = {}

    def vertex(self, v: Vertex, states: np.ndarray) -> np.ndarray:
        """Costs of a vertex's states."""
        key = (id(states), *cost_key(v))
        return memoized(self._vertices, key, lambda: self._objective.vertex(v, states))

    def made(self, v: Vertex, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The views of a vertex by its readers: the distinct views, and the view of each state."""
        key = (id(states), v.keys, v.holders)
        return memoized(self._views, key, lambda: distinct(self._objective.made(v, states)))

    def used(self, use: Use, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The views of a reader by an operand: the distinct views, and the view of each state."""
        key = (id(states), use.axes, "used")
        return memoized(self._views, key, lambda: distinct(self._objective.used(use, states)))

    def repartition(self, use: Use, made: np.ndarray, used: np.ndarray) -> np.ndarray:
        """The table of an edge."""
        key = (use.shape, use.width, use.nbytes, use.constant, made.tobytes(), used.tobytes())
        return memoized(
            self._repartitions, key, lambda: self._objective.repartition(use, made, used)
        )
