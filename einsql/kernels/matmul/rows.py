"""Products that are added row by row, without intermediate matrices.

numpy.einsum adds one row after another to the result, in the result's type, which is accurate
for short sums.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.kernels.kernel import Tick
from einsql.kernels.matmul.layout import Labels
from einsql.kernels.matmul.pieces import SPREAD, Work, cut, slices, wanted
from einsql.kernels.runtime import thread_pool

IN_LINE = 3.5e-10
"""Seconds per point if every operand has stride 0 or 1."""


def by_rows(labels: Labels, work: np.dtype) -> Callable[[np.ndarray, np.ndarray, Tick], np.ndarray]:
    """Creates a function for sums of products by numpy.einsum; sums start at 0, so none is -0.0.

    Args:
        labels: The labels, with any roles; at most `long_sums.TERMS` products are added.
        work: The type to compute in.

    Returns:
        A function that multiplies two arrays with these axes into an array in C order.
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

    def multiply(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> None:
        np.einsum(spec, left, right, out=out, dtype=work, casting="same_kind")

    def part_of(array: np.ndarray, place: list[int | None], piece: tuple[slice, ...]) -> np.ndarray:
        return array[tuple(slice(None) if n is None else piece[n] for n in place)]

    def run(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        out = empty(shape, work)
        if seconds < SPREAD:
            multiply(a, b, out)
            return out
        pieces = wanted(seconds)
        parts = cut(shape, len(shape), pieces)

        def one(piece: tuple[slice, ...]) -> None:
            left, right = (part_of(x, p, piece) for x, p in zip((a, b), places, strict=True))
            into: tuple[Any, ...] = (
                *piece,
                ...,
            )  # `...` returns a view even of an array without axes
            multiply(left, right, out[into])

        thread_pool.run(one, slices(shape, parts), prod(parts), tick)
        return out

    return run
