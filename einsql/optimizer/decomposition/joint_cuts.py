"""The tables of groups in a model: their common cuts, what these save, and their memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from einsql.core.mappings import memoized
from einsql.core.records import dataclass
from einsql.optimizer.decomposition.groups import Group
from einsql.optimizer.decomposition.objective import Objective, fits, fitting
from einsql.optimizer.decomposition.problem import Problem, Vertex, cost_key


@dataclass(frozen=True, slots=True, eq=False)
class JointCuts:
    """The cuts under which a group's operations run together.

    Attributes:
        cuts: int64 (1 + cuts, labels of the group); the first row stands for operations that run
            apart.
        costs: The cost of each row minus that of operations that run apart under the same cut.
        states: int64 (operations, cuts), the number of the vector of each operation.
        edges: For each operation the view of each of its vectors, and the table of the edge to
            the group: it excludes a common cut with another vector, and running apart with a
            vector that exceeds the memory.
    """

    cuts: np.ndarray
    costs: np.ndarray
    states: np.ndarray
    edges: tuple[tuple[np.ndarray, np.ndarray], ...]


class Joining:
    """Tables of groups, each computed once, because layers of a network repeat them.

    Args:
        objective: The objective of the costs.
        memory: The maximum of bytes of a cell, of an operation or of a group.
    """

    def __init__(self, objective: Objective, memory: int | None) -> None:
        self._objective, self._memory = objective, memory
        self._joint: dict[object, JointCuts] = {}
        self._fitting: dict[object, np.ndarray] = {}

    def joint(self, group: Group, states: Sequence[np.ndarray]) -> JointCuts:
        """The common cuts of a group over the vectors of its operations."""
        kinds = tuple(map(cost_key, group.inside)), group.labels
        key = tuple(map(id, states)), kinds
        return memoized(self._joint, key, lambda: self._common(group, states))

    def _common(self, group: Group, states: Sequence[np.ndarray]) -> JointCuts:
        cuts = np.unique(group.cuts(0, states[0]), axis=0)
        numbers = np.empty((len(states), len(cuts)), np.int64)
        for n, own in enumerate(states):
            number = {vector.tobytes(): k for k, vector in enumerate(own)}
            numbers[n] = [number.get(x.tobytes(), -1) for x in group.vectors(n, cuts)]
        possible = (numbers >= 0).all(axis=0)
        if self._memory is not None:
            possible &= group.cell_bytes(cuts) <= self._memory
        cuts, numbers = cuts[possible], numbers[:, possible]
        saved = savings(group, cuts, self._objective)
        edges = tuple(
            self._edge(v, own, common)
            for v, own, common in zip(group.inside, states, numbers, strict=True)
        )
        apart = np.zeros((1, len(group.labels)), np.int64)
        return JointCuts(
            np.concatenate([apart, cuts]), np.concatenate([[0.0], -saved]), numbers, edges
        )

    def _edge(
        self, v: Vertex, own: np.ndarray, common: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The views of an operation's vectors by the group, and the table of the edge."""
        view = np.zeros(len(own), np.int64)
        view[common] = 1 + np.arange(len(common))
        costs = np.full((len(common) + 1, len(common) + 1), np.inf)
        costs[:, 0] = 0.0
        costs[1:, 0] = np.where(fits(v, own[common], self._memory), 0.0, np.inf)
        np.fill_diagonal(costs[1:, 1:], 0.0)
        return view, costs

    def fitting(
        self, problem: Problem, states: Sequence[np.ndarray], groups: Sequence[Group]
    ) -> list[np.ndarray]:
        """The vectors whose cells fit the memory, alone or in a group.

        Raises:
            OperationalError: An operation has no such vector.
        """
        in_group: dict[int, np.ndarray] = {}
        for group in groups:
            joint = self.joint(group, [states[n] for n in group.members])
            in_group |= zip(group.members, joint.states, strict=True)
        chosen = []
        for n, (v, own) in enumerate(zip(problem.vertices, states, strict=True)):
            common = in_group.get(n, np.zeros(0, np.int64))

            key = id(own), cost_key(v), common.tobytes()
            fit = partial(self._fit, v, own, common)
            chosen.append(memoized(self._fitting, key, fit))
        return chosen

    def _fit(self, v: Vertex, own: np.ndarray, common: np.ndarray) -> np.ndarray:
        """The vectors that fit the memory, and those of a group's common cuts by their numbers."""
        mask = fits(v, own, self._memory)
        mask[common] = True
        return own[mask] if mask.any() else fitting(v, own, self._memory)


def savings(group: Group, cuts: np.ndarray, objective: Objective) -> np.ndarray:
    """The savings of running a group's operations together under each cut, float64 (cuts,)."""
    total = np.zeros(len(cuts))
    for n, v in enumerate(group.inside):
        vectors = group.vectors(n, cuts)
        total += objective.vertex(group.apart[n], vectors) - objective.vertex(v, vectors)
    return total
