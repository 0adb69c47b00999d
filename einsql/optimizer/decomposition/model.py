"""The choice of cuts as a sum of tables: one for each vertex, one for each edge.

A vertex has states, the vectors it may be cut by. An edge sees a state only through a
*view*, the cut of one operand or of the result, so its table stays small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from einsql.optimizer.decomposition.costs import repartition_floats, vertex_floats
from einsql.optimizer.decomposition.problem import Problem, Vertex
from einsql.optimizer.decomposition.vectors import restricted, viable

Choice = list[int]
"""The number of the chosen state of each vertex."""


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """A result read by an operand.

    Attributes:
        source: The producing vertex.
        target: The reading vertex.
        made: For each state of the source the row of the table.
        used: For each state of the target the column of the table.
        floats: Cost of the repartition between them.
    """

    source: int
    target: int
    made: np.ndarray
    used: np.ndarray
    floats: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """What a choice costs: Σ alone[v][state] + Σ edges' tables."""

    states: list[np.ndarray]
    alone: list[np.ndarray]
    edges: list[Edge]

    def cost(self, choice: Sequence[int]) -> float:
        """Floats moved under a choice."""
        total = sum(float(a[s]) for a, s in zip(self.alone, choice, strict=True))
        return total + sum(self.edge_cost(e, choice) for e in self.edges)

    @staticmethod
    def edge_cost(e: Edge, choice: Sequence[int]) -> float:
        """Floats an edge's repartition moves under a choice."""
        return float(e.floats[e.made[choice[e.source]], e.used[choice[e.target]]])

    @property
    def around(self) -> list[list[Edge]]:
        """The edges at each vertex."""
        found: list[list[Edge]] = [[] for _ in self.states]
        for e in self.edges:
            found[e.source].append(e)
            found[e.target].append(e)
        return found


Candidates = Callable[[Vertex], np.ndarray]


def model_of(problem: Problem, candidates: Candidates) -> Model:
    """Tables of a problem over the vectors that `candidates` gives for each vertex."""
    states = [candidates(v) for v in problem.vertices]
    tables = _Tables()
    alone = [tables.vertex(v, s) for v, s in zip(problem.vertices, states, strict=True)]
    edges = []
    for n, v in enumerate(problem.vertices):
        for use in v.uses:
            if use.producer is None:
                continue
            source = problem.vertices[use.producer]
            made, rows = tables.view(states[use.producer], source.keys)
            used, columns = tables.view(states[n], use.axes)
            floats = tables.repartition(use.shape, use.width, made, used)
            edges.append(Edge(use.producer, n, rows, columns, floats))
    return Model(states, alone, edges)


def free_candidates(p: int) -> Candidates:
    """Every viable vector: exactly p calls for contractions, at most p for the rest."""
    return lambda v: viable(v, p, exactly=v.contraction)


class _Tables:
    """Views and tables, each computed once: layers of a network repeat them."""

    def __init__(self) -> None:
        self._views: dict[object, tuple[np.ndarray, np.ndarray]] = {}
        self._repartitions: dict[object, np.ndarray] = {}
        self._vertices: dict[object, np.ndarray] = {}

    def vertex(self, v: Vertex, states: np.ndarray) -> np.ndarray:
        uses = tuple((u.axes, u.shape, u.width) for u in v.uses)
        key = (id(states), v.extents, uses, v.keys, v.shape, v.width, v.renames, v.publishes)
        if key not in self._vertices:
            self._vertices[key] = vertex_floats(v, states)
        return self._vertices[key]

    def view(
        self, states: np.ndarray, axes: tuple[int | None, ...]
    ) -> tuple[np.ndarray, np.ndarray]:
        key = (id(states), axes)
        if key not in self._views:
            cuts, index = np.unique(restricted(states, axes), axis=0, return_inverse=True)
            self._views[key] = (cuts, index.reshape(-1))
        return self._views[key]

    def repartition(
        self, shape: tuple[int, ...], width: int, made: np.ndarray, used: np.ndarray
    ) -> np.ndarray:
        key = (shape, width, made.tobytes(), used.tobytes())
        if key not in self._repartitions:
            self._repartitions[key] = repartition_floats(shape, width, made, used)
        return self._repartitions[key]
