"""What a search minimises: EinDecomp's floats, or predicted seconds.

An objective gives a table for each vertex and one for each edge; their sum is what a
choice of cuts costs. It may also limit the memory a cell takes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from einsql.errors import OperationalError
from einsql.optimizer.decomposition.costs import repartition_floats, tiles, vertex_floats
from einsql.optimizer.decomposition.problem import Use, Vertex
from einsql.optimizer.decomposition.vectors import restricted


class Objective(Protocol):
    """The sum that a choice of cuts should make small.

    An edge's table has a row for each different row of `made` and a column for each
    different row of `used`, whose first columns are the cuts of the relation's axes.
    """

    @property
    def memory(self) -> int | None:
        """Bytes a cell may take; None for any number."""

    @property
    def exactly(self) -> bool:
        """True if a contraction takes exactly one call per site, whatever fewer would cost."""

    def vertex(self, v: Vertex, vectors: np.ndarray) -> np.ndarray:
        """Cost of an operation under each of its vectors."""

    def made(self, v: Vertex, vectors: np.ndarray) -> np.ndarray:
        """What the cost of reading a vertex's result depends on, for each of its vectors."""

    def used(self, use: Use, vectors: np.ndarray) -> np.ndarray:
        """What the cost of reading an operand depends on, for each vector of its reader."""

    def repartition(self, use: Use, made: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Cost of bringing a result into a reader's cut, for every pair of rows; (a, b)."""

    def repeated(self, copies: int) -> float:
        """How often what one group of sites does counts if so many groups do the same."""


@dataclass(frozen=True, slots=True)
class Floats:
    """Floats moved at worst, as EinDecomp counts them (EinDecomp §7)."""

    memory: int | None = None

    @property
    def exactly(self) -> bool:
        """As EinDecomp has it: a call that is not made moves nothing, so one would be best."""
        return True

    def vertex(self, v: Vertex, vectors: np.ndarray) -> np.ndarray:
        """Floats that calls read and merging moves."""
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
        """Every group moves its own."""
        return copies


FLOATS = Floats()


def cell_bytes(v: Vertex, vectors: np.ndarray) -> np.ndarray:
    """Memory of an operation's largest cell under each vector, in bytes.

    The tiles of its operands and of its result; where partial results are merged, what
    arrives from the rest of the group as well: another tile of the result, for the work
    of merging is spread over the group.
    """
    total: np.ndarray = np.zeros(len(vectors))
    for use in v.uses:
        cut = restricted(vectors, use.axes)
        total += tiles(use.shape, cut).prod(axis=1, dtype=np.float64) * use.nbytes
    result = tiles(v.shape, restricted(vectors, v.keys)).prod(axis=1, dtype=np.float64)
    merged = vectors[:, list(v.reduced)].prod(axis=1) > 1
    return np.asarray(total + result * np.where(merged, 2 * v.state_bytes, v.nbytes))


def fits(v: Vertex, vectors: np.ndarray, memory: int | None) -> np.ndarray:
    """True for the vectors whose cells take no more than so much memory."""
    if memory is None or not v.computes:
        return np.ones(len(vectors), bool)
    return np.asarray(cell_bytes(v, vectors) <= memory)


def fitting(v: Vertex, vectors: np.ndarray, memory: int | None) -> np.ndarray:
    """The vectors whose cells take no more than so much memory.

    Raises:
        OperationalError: There is none.
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
