"""The objectives of a search: EinDecomp's floats, or predicted seconds.

An objective gives a table for each vertex and one for each edge; their sum is the cost of a
choice of cuts. It may also limit the memory of a cell.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from einsql.core.records import dataclass
from einsql.errors import OperationalError
from einsql.optimizer.decomposition.costs import repartition_floats, tiles, vertex_floats
from einsql.optimizer.decomposition.problem import Use, Vertex
from einsql.optimizer.decomposition.vectors import restricted


class Objective(Protocol):
    """The cost that a choice of cuts minimises.

    An edge's table has a row for each different row of `made` and a column for each
    different row of `used`, whose first columns are the cuts of the relation's axes.
    """

    @property
    def memory(self) -> int | None:
        """The maximum of bytes of a cell; None for no limit."""

    @property
    def exactly(self) -> bool:
        """True if a contraction must take exactly one call per site, independent of cost."""

    @property
    def gains_by_groups(self) -> bool:
        """True if a group under a common cut can cost less, or fit where its operations do not."""

    @property
    def without_network(self) -> Objective | None:
        """The same costs if the network were free; None if nothing else has a cost."""

    def vertex(self, v: Vertex, vectors: np.ndarray) -> np.ndarray:
        """Cost of an operation under each of its vectors."""

    def made(self, v: Vertex, vectors: np.ndarray) -> np.ndarray:
        """The properties of a result's cut that determine reading costs, for each vector."""

    def used(self, use: Use, vectors: np.ndarray) -> np.ndarray:
        """The properties of an operand's cut that determine reading costs, for each vector."""

    def repartition(self, use: Use, made: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Cost of bringing a result into a reader's cut, for every pair of rows; (a, b)."""

    def repeated(self, copies: int) -> float:
        """The factor of the cost of one group of sites if several groups repeat the work."""


@dataclass(frozen=True, slots=True)
class Floats:
    """An upper bound of the floats moved, as EinDecomp counts them (EinDecomp §7)."""

    memory: int | None = None

    @property
    def exactly(self) -> bool:
        """True, as in EinDecomp: fewer calls move fewer floats, so a single call would be best."""
        return True

    @property
    def gains_by_groups(self) -> bool:
        """True with a limit of memory, because EinDecomp's count has no cache."""
        return self.memory is not None

    @property
    def without_network(self) -> None:
        """None."""
        return None

    def vertex(self, v: Vertex, vectors: np.ndarray) -> np.ndarray:
        """Floats that calls read and floats that merging moves."""
        return vertex_floats(v, vectors)

    def made(self, v: Vertex, vectors: np.ndarray) -> np.ndarray:
        """The cut of the result."""
        return restricted(vectors, v.keys)

    def used(self, use: Use, vectors: np.ndarray) -> np.ndarray:
        """The cut of the operand."""
        return restricted(vectors, use.axes)

    def repartition(self, use: Use, made: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Floats that changing the cut moves."""
        return repartition_floats(use.shape, use.width, made, used)

    def repeated(self, copies: int) -> float:
        """The number of groups, because every group moves its own floats."""
        return copies


FLOATS = Floats()


def cell_bytes(v: Vertex, vectors: np.ndarray) -> np.ndarray:
    """Memory of an operation's largest cell under each vector, in bytes.

    A cell stores the tiles of its operands and of its result. If partial results are merged,
    it also receives one more tile of the result from its group, because the group shares the
    merge.
    """
    total: np.ndarray = np.zeros(len(vectors))
    for use in v.uses:
        cut = restricted(vectors, use.axes)
        total += tiles(use.shape, cut).prod(axis=1, dtype=np.float64) * use.nbytes
    result = tiles(v.shape, restricted(vectors, v.keys)).prod(axis=1, dtype=np.float64)
    merged = vectors[:, list(v.reduced)].prod(axis=1) > 1
    return np.asarray(total + result * np.where(merged, 2 * v.state_bytes, v.nbytes))


def fits(v: Vertex, vectors: np.ndarray, memory: int | None) -> np.ndarray:
    """True for the vectors whose cells fit the memory."""
    if memory is None or not v.computes:
        return np.ones(len(vectors), bool)
    return np.asarray(cell_bytes(v, vectors) <= memory)


def fitting(v: Vertex, vectors: np.ndarray, memory: int | None) -> np.ndarray:
    """The vectors whose cells fit the memory.

    Raises:
        OperationalError: No vector's cells fit.
    """
    fit = fits(v, vectors, memory)
    if not fit.any():
        least = int(cell_bytes(v, vectors).min())
        raise OperationalError(
            f"The operation {v.name} over {', '.join(v.labels) or 'no key'} fits no site: its "
            f"smallest cut takes {least:,} bytes a site, and site_memory is {memory:,}",
            hint="More sites or more memory help: SET sites, SET site_memory.",
        )
    return vectors if fit.all() else vectors[fit]
