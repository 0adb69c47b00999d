"""The choice of cuts as a sum of tables: one for each vertex, one for each edge.

A vertex has states: the vectors by which it may be cut. An edge's costs depend on a state only
through a *view*, the cut of one operand or of the result, so its table stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from einsql.core.mappings import memoized
from einsql.core.records import dataclass
from einsql.optimizer.decomposition.objective import FLOATS, Objective, fitting
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
    """The cost of a choice: Σ alone[v][state] + Σ edges' tables."""

    states: list[np.ndarray]
    alone: list[np.ndarray]
    edges: list[Edge]

    def cost(self, choice: Sequence[int]) -> float:
        """The cost of a choice, in the objective's unit."""
        total = sum(float(a[s]) for a, s in zip(self.alone, choice, strict=True))
        return total + sum(
            float(e.costs[e.produced[choice[e.source]], e.consumed[choice[e.target]]])
            for e in self.edges
        )

    def vectors(self, choice: Sequence[int]) -> list[np.ndarray]:
        """The chosen vector of each vertex."""
        return [s[c] for s, c in zip(self.states, choice, strict=True)]

    @property
    def around(self) -> list[list[Edge]]:
        """The edges at each vertex."""
        incident: list[list[Edge]] = [[] for _ in self.states]
        for e in self.edges:
            incident[e.source].append(e)
            incident[e.target].append(e)
        return incident


Candidates = Callable[[Vertex], np.ndarray]


def model_of(problem: Problem, candidates: Candidates, objective: Objective = FLOATS) -> Model:
    """Tables of a problem over the vectors that `candidates` returns for each vertex."""
    states = [candidates(v) for v in problem.vertices]
    tables = _Tables(objective)
    alone = [tables.vertex(v, s) for v, s in zip(problem.vertices, states, strict=True)]
    edges = []
    for n, v in enumerate(problem.vertices):
        for use in v.uses:
            if use.producer is None:
                continue
            source = problem.vertices[use.producer]
            produced, rows = tables.made(source, states[use.producer])
            used, columns = tables.used(use, states[n])
            costs = tables.repartition(use, produced, used)
            edges.append(Edge(use.producer, n, produced=rows, consumed=columns, costs=costs))
    return Model(states, alone, edges)


def free_candidates(p: int, exactly: bool = True, memory: int | None = None) -> Candidates:
    """Every viable vector of at most p calls.

    Args:
        p: The maximum of kernel calls.
        exactly: Whether contractions take exactly p calls.
        memory: The maximum of bytes of a cell.

    Raises:
        OperationalError: Raised by the returned function: no vector of a vertex fits the memory.
    """
    fitting_states: dict[object, np.ndarray] = {}

    def candidates(v: Vertex) -> np.ndarray:
        states = viable(v, p, exactly=exactly and v.contraction)
        if memory is None or not v.computes:
            return states
        key = (id(states), *cost_key(v))  # equal vertices share one array
        return memoized(fitting_states, key, lambda: fitting(v, states, memory))

    return candidates


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
