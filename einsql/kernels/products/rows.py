"""Products added row by row: rows of each operand side by side, no matrices in between."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from einsql.buffers import empty
from einsql.kernels import pool
from einsql.kernels.kernel import Tick
from einsql.kernels.products.layout import Labels
from einsql.kernels.products.pieces import SPREAD, Work, cut, slices, wanted

IN_LINE = 3.5e-10
"""Seconds per point where every operand steps by one element or not at all."""


def by_rows(labels: Labels, work: np.dtype) -> Callable[[np.ndarray, np.ndarray, Tick], np.ndarray]:
    """Sums of products by numpy.einsum, whose sums start at 0: none is -0.0.

    Args:
        labels: The labels, of any roles.
        work: The type to compute in; terms are added one after another.

    Returns:
        What multiplies two arrays with axes as the labels say, into an array in C order.
    """
    letter = dict(zip(labels.extent, ascii_letters, strict=False))
    terms = ["".join(letter[x] for x in t) for t in (labels.left, labels.right, labels.keys)]
    spec = f"{terms[0]},{terms[1]}->{terms[2]}"
    shape = tuple(labels.extent[x] for x in labels.keys)
    places = [
        [labels.keys.index(x) if x in labels.keys else None for x in t]
        for t in (labels.left, labels.right)
    ]
    todo = Work(2.0 * labels.size(labels.extent), prod(shape) * work.itemsize, work.itemsize)
    seconds = max(todo.seconds, labels.size(labels.extent) * IN_LINE)

    def part_of(array: np.ndarray, place: list[int | None], piece: tuple[slice, ...]) -> np.ndarray:
        return array[tuple(slice(None) if n is None else piece[n] for n in place)]

    def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        out = empty(shape, work)
        if seconds < SPREAD:
            return np.einsum(spec, a, b, out=out, dtype=work, casting="same_kind")
        pieces = wanted(seconds)
        parts = cut(shape, len(shape), pieces)

        def one(piece: tuple[slice, ...]) -> None:
            left, right = (part_of(x, p, piece) for x, p in zip((a, b), places, strict=True))
            into: tuple[Any, ...] = (*piece, ...)  # a view, even of an array without axes
            np.einsum(spec, left, right, out=out[into], dtype=work, casting="same_kind")

        pool.run(one, slices(shape, parts), prod(parts), tick)
        return out

    return run
