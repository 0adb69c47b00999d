"""The kernel of sums over joined elements: its methods, in order of preference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from einsql.ir.einsum.graph import EinSum
from einsql.kernels.kernel import Arrays, Runner, Tick
from einsql.kernels.sparse.sides import Compile, Joined, find
from einsql.kernels.sparse.stored import Sums, over_stored
from einsql.kernels.sparse.tiled import by_tiles
from einsql.kernels.storage_choice import Choosing
from einsql.kernels.vectorized.sums import from_zero
from einsql.kernels.vectorized.views import unrepeated


def compile_sparse(
    node: EinSum, compile_node: Compile, otherwise: Callable[[], Runner]
) -> Runner | None:
    """Matches sums of products over the present elements of two operands.

    Args:
        node: The node.
        compile_node: Compiles a node that computes which elements are present.
        otherwise: Compiles this node with another kernel, for unsupported data.

    Returns:
        The runner, or None. FLOAT sums are as accurate as in `blas`.
    """
    joined = find(node)
    if joined is None:
        return None
    stored = over_stored(node, joined, compile_node)
    tiled = by_tiles(node, joined, compile_node)
    if stored is None and tiled is None:
        return None
    other = cache(otherwise)
    ways = [way for way in (None if stored is None else stored.run, tiled) if way is not None]

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        with np.errstate(all="ignore"):
            for way in ways:
                sums = way(operands, tick)
                if sums is not None:
                    return _finished(joined, sums)
        return other()(operands, tick)

    choice = None if stored is None else stored.choice
    return run if choice is None else Choosing(run, choice)


def _finished(joined: Joined, sums_and_counts: Sums) -> dict[str, np.ndarray]:
    """The fields of the result: constants, rounding to HALF, and the presence of groups."""
    sums, counts = sums_and_counts
    fields: dict[str, np.ndarray] = {}
    for term, values in zip(joined.terms, sums, strict=True):
        if term.scale != 1.0:
            values = from_zero(np.asarray(values * values.dtype.type(term.scale)))
        fields[term.output.name] = values.astype(term.output.dtype.numpy, copy=False)
    # A count that is broadcast along an axis stays broadcast.
    group_counts = unrepeated(counts)
    for o in joined.counts:
        presence = group_counts.astype(np.int64) if o.reduction == "sum" else group_counts > 0
        fields[o.name] = np.broadcast_to(presence, counts.shape)
    return fields
