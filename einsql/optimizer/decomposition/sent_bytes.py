"""An estimate of the bytes that cuts send between sites, before anything is placed.

It ranks the cuts that rules propose. Like the objective of seconds it assumes that every site
has the tile of its operand that overlaps the needed one most.
"""

from __future__ import annotations

import numpy as np

from einsql.core.records import dataclass
from einsql.optimizer.decomposition.costs import tiles
from einsql.optimizer.decomposition.problem import Use, Vertex
from einsql.optimizer.decomposition.vectors import restricted


@dataclass(frozen=True, slots=True)
class SentBytes:
    """Bytes that cells lack, and bytes that merging partial results moves."""

    memory: int | None = None

    @property
    def exactly(self) -> bool:
        """True, because a single cell would send nothing."""
        return True

    @property
    def gains_by_groups(self) -> bool:
        """True with a limit of memory, because operations that are cut alike send nothing."""
        return self.memory is not None

    @property
    def without_network(self) -> None:
        """None."""
        return None

    def vertex(self, v: Vertex, vectors: np.ndarray) -> np.ndarray:
        """Bytes that merging partial results moves."""
        group = vectors[:, list(v.reduced)].prod(axis=1)
        result = _volume(v.shape, restricted(vectors, v.keys)) * v.state_bytes
        return np.asarray(vectors.prod(axis=1) / group * (group - 1) * result)

    def made(self, v: Vertex, vectors: np.ndarray) -> np.ndarray:
        """The cut of the result, the sites that have parts of it, and the sites of each tile."""
        calls = np.full(len(vectors), v.holders) if v.holders else vectors.prod(axis=1)
        group = vectors[:, list(v.reduced)].prod(axis=1)
        return np.column_stack([restricted(vectors, v.keys), calls, group])

    def used(self, use: Use, vectors: np.ndarray) -> np.ndarray:
        """The cut of the operand, and the calls that read it."""
        return np.column_stack([restricted(vectors, use.axes), vectors.prod(axis=1)])

    def repartition(self, use: Use, made: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Bytes of the operand that its readers lack, for every pair of rows; (a, b)."""
        axes = len(use.shape)
        have, need = (tiles(use.shape, cut[:, :axes]) for cut in (made, used))
        common = np.minimum(have[:, None], need[None]).prod(axis=2, dtype=np.float64)
        # A merge leaves a share of each tile at each site of its group.
        share = have.prod(axis=1, dtype=np.float64) / made[:, axes + 1]
        readers = used[None, :, axes]
        local = np.minimum(readers, made[:, None, axes]) * np.minimum(common, share[:, None])
        read = readers * need.prod(axis=1, dtype=np.float64)[None]
        return np.asarray(np.maximum(0.0, read - local) * use.nbytes)

    def repeated(self, copies: int) -> float:
        """The number of groups, because every group receives its own operands."""
        return copies


def _volume(shape: tuple[int, ...], cuts: np.ndarray) -> np.ndarray:
    return np.asarray(tiles(shape, cuts).prod(axis=1, dtype=np.float64))
