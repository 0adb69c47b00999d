"""EinDecomp's cost of a cut: an upper bound of the floats moved (EinDecomp §7, corrected).

The formulas count per kernel call, with `ceil` for uneven cuts. All of them are vectorized:
the first axis of each argument runs over the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einsql.optimizer.decomposition.problem import Vertex
from einsql.optimizer.decomposition.vectors import restricted


def tiles(shape: Sequence[int], cuts: np.ndarray) -> np.ndarray:
    """Extents of the largest tile; `cuts` has one column per axis."""
    return np.asarray(-(-np.asarray(shape, np.int64) // cuts))


def join_floats(v: Vertex, vectors: np.ndarray) -> np.ndarray:
    """Floats that the kernel calls read: p · Σ n_X over the operands; 0 for a renaming."""
    if v.renames:
        return np.zeros(len(vectors))
    calls = vectors.prod(axis=1)
    total: np.ndarray = np.zeros(len(vectors))
    for use in v.uses:
        total += calls * tiles(use.shape, restricted(vectors, use.axes)).prod(axis=1) * use.width
    return total


def aggregate_floats(v: Vertex, vectors: np.ndarray) -> np.ndarray:
    """Floats moved to merge partial results: (p / n_agg) · (n_agg - 1) · n_Z."""
    parts = vectors[:, list(v.reduced)].prod(axis=1)
    width = v.width + v.state_fields
    result = tiles(v.shape, restricted(vectors, v.keys)).prod(axis=1) * width
    return np.asarray(vectors.prod(axis=1) / parts * (parts - 1) * result)


def vertex_floats(v: Vertex, vectors: np.ndarray) -> np.ndarray:
    """Floats of join and aggregation; 0 for a vertex that computes nothing."""
    if not v.computes:
        return np.zeros(len(vectors))
    return np.asarray(join_floats(v, vectors) + aggregate_floats(v, vectors))


def repartition_floats(
    shape: Sequence[int], width: float, produced: np.ndarray, consumed: np.ndarray
) -> np.ndarray:
    """Floats moved to change a cut, for every pair of a produced and a consumed cut.

    Args:
        shape: Extents of the result.
        width: Fields of a tuple.
        produced: Cuts on the producer's side, (a, axes).
        consumed: Cuts on the consumer's side, (b, axes).

    Returns:
        float64 of shape (a, b).
    """
    produced_tiles, consumed_tiles = tiles(shape, produced), tiles(shape, consumed)
    n_p = produced_tiles.prod(axis=1, dtype=np.float64)[:, None]
    n_c = consumed_tiles.prod(axis=1, dtype=np.float64)[None, :]
    n_int = np.ones((len(produced_tiles), len(consumed_tiles)))
    for axis in range(len(shape)):
        n_int *= np.minimum(produced_tiles[:, None, axis], consumed_tiles[None, :, axis])
    calls = consumed.prod(axis=1)[None, :]
    moved = (n_c / np.maximum(1, n_int) - 1) * calls * (n_c + n_p) + (n_p != n_int) * n_p * calls
    return np.asarray(moved * width)
