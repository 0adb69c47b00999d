"""Products without a sum over both operands: every element by those it shares a key with."""

from __future__ import annotations

from math import ceil, prod

import numpy as np

from einsql.buffers import empty
from einsql.kernels import pool
from einsql.kernels.kernel import Tick
from einsql.kernels.products.layout import Labels
from einsql.kernels.products.pieces import Work, cut, slices, wanted
from einsql.kernels.sums import from_zero

IN_CACHE = 2**17
"""Bytes that are still in cache when they are read again."""


class Outer:
    """Multiplies arrays element by element, repeating each over the keys it does not have.

    Args:
        labels: The labels; all are keys.
        work: The type to compute in.
    """

    def __init__(self, labels: Labels, work: np.dtype) -> None:
        self.work = work
        self.shape = tuple(labels.extent[x] for x in labels.keys)
        turns = []
        for held in (labels.left, labels.right):
            order = tuple(held.index(x) for x in labels.keys if x in held)
            lift = tuple(slice(None) if x in held else None for x in labels.keys)
            turns.append((order, lift))
        self.left, self.right = turns

    def __call__(self, a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        """The products, in C order; none is -0.0."""
        out = empty(self.shape, self.work)
        a, b = a.transpose(self.left[0])[self.left[1]], b.transpose(self.right[0])[self.right[1]]
        if out.nbytes <= IN_CACHE:
            return _multiply(a, b, out)
        a, b = np.broadcast_to(a, self.shape), np.broadcast_to(b, self.shape)
        pieces = wanted(Work(0.0, 3.0 * out.nbytes, self.work.itemsize))
        parts = cut(self.shape, len(self.shape), pieces)

        def one(piece: tuple[slice, ...]) -> None:
            _in_blocks(a[piece], b[piece], out[piece])

        pool.run(one, slices(self.shape, parts), prod(parts), tick)
        return out


def _in_blocks(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> None:
    """A few rows at a time: products are still in cache when they become sums."""
    width = prod(out.shape[1:]) * out.itemsize
    if width > 4 * IN_CACHE:
        for n in range(len(out)):
            _in_blocks(a[n], b[n], out[n])
        return
    rows = max(1, IN_CACHE // max(1, width))
    for n in range(ceil(len(out) / rows)):
        part = slice(n * rows, (n + 1) * rows)
        _multiply(a[part], b[part], out[part])


def _multiply(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> np.ndarray:
    return from_zero(np.multiply(a, b, out=out, dtype=out.dtype), out=out)
