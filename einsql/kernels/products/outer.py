"""Products without a sum: elements of two operands multiplied, in blocks that stay in cache."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, prod

import numpy as np

from einsql.buffers import empty
from einsql.kernels import pool
from einsql.kernels.kernel import Tick
from einsql.kernels.products.layout import Labels
from einsql.kernels.products.pieces import SPREAD, TRAFFIC, cut, slices
from einsql.kernels.sums import from_zero

BLOCK = 2**18
"""Bytes of the result that are multiplied, and then made sums of, at a time."""


def element_by_element(
    labels: Labels, work: np.dtype
) -> Callable[[np.ndarray, np.ndarray, Tick], np.ndarray]:
    """Products of elements: outer products, and element-wise ones.

    Args:
        labels: The labels, all of which are keys.
        work: The type to compute in.

    Returns:
        What multiplies two arrays with axes as the labels say, into an array in C order. Each
        element is a sum of one term, so none is -0.0.
    """
    keys = labels.keys
    shape = tuple(labels.extent[x] for x in keys)
    nbytes = prod(shape) * work.itemsize
    turns = [tuple(t.index(x) for x in keys if x in t) for t in (labels.left, labels.right)]
    lifts = [
        tuple(slice(None) if x in t else None for x in keys) for t in (labels.left, labels.right)
    ]
    few = nbytes / TRAFFIC < SPREAD
    parts = (1,) * len(shape) if few else cut(shape, len(shape), ceil(nbytes / BLOCK))

    def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        out = empty(shape, work)
        left, right = (
            np.broadcast_to(x.transpose(turn)[lift], shape)
            for x, turn, lift in zip((a, b), turns, lifts, strict=True)
        )

        def one(piece: tuple[slice, ...]) -> None:
            part = out[*piece, ...]
            np.multiply(left[piece], right[piece], out=part, dtype=work, casting="same_kind")
            from_zero(part, out=part)

        pool.run(one, slices(shape, parts), prod(parts), tick)
        return out

    return run
