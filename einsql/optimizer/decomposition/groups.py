"""Groups of operations that a site runs together, and the cuts under which it does.

A site runs a group as one loop (softmax, norms, attention) if all of its operations are cut alike
and nothing moves between them. Then the results that only the group reads are passed in a cache,
and one call runs all operations. So a group under a common cut has costs and memory of its own.

Only labels that index every operation of a group and every result that is passed in it can be
cut. The cuts of these labels are the group's *vectors*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from einsql.core.records import dataclass
from einsql.optimizer.decomposition.costs import tiles
from einsql.optimizer.decomposition.problem import Problem, Use, Vertex
from einsql.optimizer.decomposition.vectors import restricted


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Operations that a site can run together.

    Attributes:
        members: The numbers of the operations, producers first.
        apart: The operations.
        inside: The operations as parts of the group: what they pass is not stored, and one call
            runs all of them.
        labels: For each label that the group can be cut by its position in each operation.
    """

    members: tuple[int, ...]
    apart: tuple[Vertex, ...]
    inside: tuple[Vertex, ...]
    labels: tuple[tuple[int, ...], ...]

    def vectors(self, member: int, cuts: np.ndarray) -> np.ndarray:
        """The vectors of an operation under cuts of the group.

        Args:
            member: The position of the operation in the group.
            cuts: int64 (cuts, labels).

        Returns:
            int64 (cuts, labels of the operation).
        """
        vectors = np.ones((len(cuts), len(self.inside[member].labels)), np.int64)
        for column, positions in enumerate(self.labels):
            vectors[:, positions[member]] = cuts[:, column]
        return vectors

    def cuts(self, member: int, vectors: np.ndarray) -> np.ndarray:
        """The cuts of the group by some vectors of an operation; see `vectors`."""
        return vectors[:, [positions[member] for positions in self.labels]]

    def is_cut_alike(self, vectors: Sequence[np.ndarray]) -> bool:
        """True for vectors of the operations, one each, under which they run together."""
        (cut,) = self.cuts(0, vectors[0][None])
        return all(
            np.array_equal(self.vectors(n, cut[None])[0], vector)
            for n, vector in enumerate(vectors)
        )

    def cell_bytes(self, cuts: np.ndarray) -> np.ndarray:
        """Memory of the largest cell under each cut, in bytes, float64 (cuts,).

        A cell stores the tiles that the group reads, each once, and those that it does not pass.
        """
        total = np.zeros(len(cuts))
        read: set[object] = set()
        for n, v in enumerate(self.inside):
            vectors = self.vectors(n, cuts)
            for use in v.uses:
                tile = restricted(vectors, use.axes)
                source = use.tensor if use.producer is None else use.producer
                key = source, tile.tobytes()
                if not use.passed and (source is None or key not in read):
                    read.add(key)
                    total += _volume(use.shape, tile) * use.nbytes
            if not v.passes:
                merged = vectors[:, list(v.reduced)].prod(axis=1) > 1
                width = np.where(merged, 2 * v.state_bytes, v.nbytes)
                total += _volume(v.shape, restricted(vectors, v.keys)) * width
        return total


def _volume(shape: tuple[int, ...], cuts: np.ndarray) -> np.ndarray:
    return np.asarray(tiles(shape, cuts).prod(axis=1, dtype=np.float64))


@lru_cache(maxsize=16)  # by identity; a plan asks for those of a few problems
def groups_of(problem: Problem) -> tuple[Group, ...]:
    """The groups of a problem, with or without publishing vertices, that some label can cut."""
    groups = (_group(problem, members) for members in problem.groups)
    return tuple(g for g in groups if g.labels)


def _group(problem: Problem, members: tuple[int, ...]) -> Group:
    readers, vertices = problem.readers, problem.vertices

    def outside(n: int) -> bool:
        """True if an operation outside of the group reads a result, or if nothing does."""
        return (
            any(outside(m) if vertices[m].publishes else m not in members for m, _ in readers[n])
            or not readers[n]
        )

    hidden = {n for n in members if not outside(n)}
    inside, edges = [], []
    for position, n in enumerate(members):
        uses: list[Use] = []
        for use in vertices[n].uses:
            source = _operation(problem, use)
            uses.append(replace(use, passed=source in hidden))
            if source in members:
                edges.append((members.index(source), position, use))
        follows = position < len(members) - 1
        inside.append(replace(vertices[n], uses=tuple(uses), passes=n in hidden, follows=follows))
    apart = tuple(vertices[n] for n in members)
    return Group(members, apart, tuple(inside), _common_labels(inside, edges))


def _operation(problem: Problem, use: Use) -> int | None:
    """The number of the vertex that computes or stores an operand."""
    source = use.producer
    while source is not None and problem.vertices[source].publishes:
        source = problem.vertices[source].uses[0].producer
    return source


def _common_labels(
    inside: Sequence[Vertex], edges: Sequence[tuple[int, int, Use]]
) -> tuple[tuple[int, ...], ...]:
    """The labels of all operations and of all results passed between them, by their positions.

    Args:
        inside: The operations.
        edges: The producing and the reading operation of each result passed, and the operand.
    """
    common = []
    for label in range(len(inside[-1].labels)):
        positions = {len(inside) - 1: label}
        fits, known = True, 0
        while fits and known < len(positions):  # results of a group may have no common reader
            known = len(positions)
            for source, target, use in reversed(edges):
                keys = inside[source].keys
                if target in positions:
                    at = positions[target]
                    key = keys[use.axes.index(at)] if at in use.axes else None
                    fits &= key is not None and positions.setdefault(source, key) == key
                elif source in positions:
                    at = positions[source]
                    axis = use.axes[keys.index(at)] if at in keys else None
                    fits &= axis is not None
                    if axis is not None:
                        positions[target] = axis
        extents = {inside[n].extents[at] for n, at in positions.items()}
        if fits and len(positions) == len(inside) and len(extents) == 1:
            common.append(tuple(positions[n] for n in range(len(inside))))
    return tuple(common)
