"""Products that are added row by row, without intermediate matrices.

numpy.einsum adds one row after another to the result, in the result's type. Long sums are cut
into blocks of terms, and the blocks' sums are added.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from string import ascii_letters
from typing import Any

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.kernels.kernel import Tick
from einsql.kernels.matmul.layout import Labels
from einsql.kernels.matmul.long_sums import TERMS
from einsql.kernels.matmul.pieces import SPREAD, Work, cut, slices, wanted
from einsql.kernels.runtime import thread_pool

IN_LINE = 3.5e-10
"""Seconds per point if every operand has stride 0 or 1."""

BLOCK = TERMS // 2
"""Terms of one of several partial sums."""


def by_rows(labels: Labels, work: np.dtype) -> Callable[[np.ndarray, np.ndarray, Tick], np.ndarray]:
    """Creates a function for sums of products by numpy.einsum; sums start at 0, so none is -0.0.

    Args:
        labels: The labels, with any roles.
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

    many = labels.size(x for x in labels.extent if x not in labels.keys) > TERMS
    multiply = _in_blocks(labels, work) if many else partial(_einsum, spec, work)

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


def _einsum(
    spec: str, work: np.dtype, left: np.ndarray, right: np.ndarray, out: np.ndarray
) -> np.ndarray:
    return np.einsum(spec, left, right, out=out, dtype=work, casting="same_kind")


def _in_blocks(
    labels: Labels, work: np.dtype
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """Creates a function for sums of up to `BLOCK` products each, and their sums.

    Args:
        labels: The labels; summed labels are in both operands.
        work: The type to compute in.
    """
    longest, *others = sorted(
        (x for x in labels.extent if x not in labels.keys), key=lambda x: -labels.extent[x]
    )
    apart = []  # labels with separate sums per value
    while labels.size(others) > BLOCK:
        apart.append(others.pop(0))
    step = max(1, BLOCK // labels.size(others))
    even = labels.extent[longest] // step * step
    block = ascii_letters[-1]
    letter = dict(zip(labels.extent, ascii_letters[:-1], strict=False))

    def spec(has_blocks: bool) -> str:
        left, right = (
            "".join((block if x == longest and has_blocks else "") + letter[x] for x in own)
            for own in (labels.left, labels.right)
        )
        kept = "".join(letter[x] for x in (*apart, *labels.keys))
        return f"{left},{right}->{block if has_blocks else ''}{kept}"

    specs = spec(True), spec(False)
    places = labels.left.index(longest), labels.right.index(longest)

    def part_of(array: np.ndarray, place: int, part: slice) -> np.ndarray:
        return array[(*[slice(None)] * place, part)]

    def split(array: np.ndarray, place: int) -> np.ndarray:
        array = part_of(array, place, slice(even))
        shape = *array.shape[:place], -1, step, *array.shape[place + 1 :]
        return array.reshape(shape, copy=False)

    def multiply(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> np.ndarray:
        sides = list(zip((left, right), places, strict=True))
        sums = np.einsum(specs[0], *(split(*s) for s in sides), dtype=work, casting="same_kind")
        np.add.reduce(sums, axis=tuple(range(1 + len(apart))), out=out)
        if even < labels.extent[longest]:
            rest = [part_of(*s, slice(even, None)) for s in sides]
            sums = np.einsum(specs[1], *rest, dtype=work, casting="same_kind")
            out += np.add.reduce(sums, axis=tuple(range(len(apart)))) if apart else sums
        return out

    return multiply
