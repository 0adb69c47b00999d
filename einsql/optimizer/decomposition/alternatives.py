"""The cost of other vectors of one operation, while all other operations keep their cuts."""

from __future__ import annotations

import numpy as np

from einsql.optimizer.decomposition.objective import Objective
from einsql.optimizer.decomposition.problem import Problem
from einsql.optimizer.decomposition.schedules import (
    Schedules,
    completed,
    is_everywhere,
    read_by,
)


class Alternatives:
    """Compares vectors of an operation.

    Args:
        published: The problem with publishing vertices.
        schedules: The schedules of the other vertices; the best layouts of published results
            are added.
        sites: p, the number of sites.
        objective: The objective of the costs.

    Raises:
        OperationalError: A cell takes more memory than the objective allows.
    """

    def __init__(
        self, published: Problem, schedules: Schedules, sites: int, objective: Objective
    ) -> None:
        self.problem, self.sites, self.objective = published, sites, objective
        self.schedules, _ = completed(published, schedules, sites, objective)
        self._readers = published.readers

    def costs(self, n: int, vectors: np.ndarray, copies: int = 1) -> np.ndarray:
        """The cost of an operation and of the edges to its operands and readers.

        Args:
            n: The number of the vertex.
            vectors: int64 (vectors, labels).
            copies: The number of groups of sites that each run all the calls.

        Returns:
            float64 (vectors,), in the unit of the objective.
        """
        objective, vertices = self.objective, self.problem.vertices
        v = read_by(vertices[n], copies)
        total: np.ndarray = np.array(objective.vertex(v, vectors), np.float64)
        for use in v.uses:
            if use.producer is not None and not self._everywhere(use.producer):
                row = objective.made(vertices[use.producer], self._vector(use.producer))
                total += objective.repartition(use, row, objective.used(use, vectors))[0]
        total *= objective.repeated(copies)
        if copies > 1 and self._everywhere(n):
            return total
        views = objective.made(v, vectors)
        for m, k in self._readers[n]:
            use = vertices[m].uses[k]
            column = objective.used(use, self._vector(m))
            many = objective.repeated(self.schedules[m].copies)
            total += many * objective.repartition(use, views, column)[:, 0]
        return total

    def _vector(self, n: int) -> np.ndarray:
        return self.schedules[n].vector[None]

    def _everywhere(self, n: int) -> bool:
        return is_everywhere(self.problem, self.schedules, n, self.sites)
