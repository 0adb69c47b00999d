"""The cost of other vectors of one operation, while all other operations keep their cuts."""

from __future__ import annotations

import numpy as np

from einsql.optimizer.decomposition.groups import groups_of
from einsql.optimizer.decomposition.joint_cuts import savings
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
        self._group_of = {n: group for group in groups_of(published) for n in group.members}

    def costs(self, n: int, vectors: np.ndarray, copies: int = 1) -> np.ndarray:
        """The cost of an operation and of the edges to its operands and readers.

        Args:
            n: The number of the vertex.
            vectors: int64 (vectors, labels).
            copies: The number of groups of sites that each run all the calls.

        Returns:
            float64 (vectors,), in the unit of the objective.
        """
        if not len(vectors):  # a hint may leave no alternative
            return np.zeros(0)
        objective, vertices = self.objective, self.problem.vertices
        v = read_by(vertices[n], copies)
        total: np.ndarray = np.array(objective.vertex(v, vectors), np.float64)
        for use in v.uses:
            if use.producer is not None and not self._everywhere(use.producer):
                row = objective.made(vertices[use.producer], self._vector(use.producer))
                total += objective.repartition(use, row, objective.used(use, vectors))[0]
        if n in self._group_of:
            total -= self._saved(n, vectors, copies)
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

    def _saved(self, n: int, vectors: np.ndarray, copies: int) -> np.ndarray:
        """The savings of vectors under which an operation runs in its group, float64 (vectors,)."""
        group = self._group_of[n]
        own = [self.schedules[m] for m in group.members]
        position = group.members.index(n)
        saved = np.zeros(len(vectors))
        if any(s.copies != copies for k, s in enumerate(own) if k != position):
            return saved
        cut = group.cuts((position + 1) % len(own), own[(position + 1) % len(own)].vector[None])
        (vector,) = group.vectors(position, cut)
        chosen = [vector if k == position else s.vector for k, s in enumerate(own)]
        if group.is_cut_alike(chosen):
            is_common = (vectors == vector).all(axis=1)
            saved[is_common] = savings(group, cut, self.objective)[0]
        return saved

    def _vector(self, n: int) -> np.ndarray:
        return self.schedules[n].vector[None]

    def _everywhere(self, n: int) -> bool:
        return is_everywhere(self.problem, self.schedules, n, self.sites)
