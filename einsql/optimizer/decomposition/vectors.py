"""Partition vectors: how many ways each label of an operation may be cut (EinDecomp §6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

import numpy as np

from einsql.optimizer.decomposition.problem import Vertex


@lru_cache(maxsize=4096)
def products(p: int, bounds: tuple[int, ...]) -> np.ndarray:
    """Every vector d with product p and d_i <= bounds_i, in lexicographic order.

    Returns:
        int64 of shape (vectors, labels).
    """
    if not bounds:
        return np.zeros((1 if p == 1 else 0, 0), np.int64)
    first, rest = bounds[0], bounds[1:]
    parts = []
    for n in divisors(p):
        if n <= max(1, first):
            tails = products(p // n, rest)
            parts.append(np.insert(tails, 0, n, axis=1))
    return np.concatenate(parts)


@lru_cache(maxsize=4096)
def at_most(p: int, bounds: tuple[int, ...]) -> np.ndarray:
    """Every vector whose product divides p; shape (vectors, labels)."""
    # One more label takes what is left of p.
    return np.ascontiguousarray(products(p, (*bounds, p))[:, :-1])


def divisors(n: int) -> list[int]:
    """The divisors of a number, ascending."""
    return [k for k in range(1, n + 1) if n % k == 0]


def viable(v: Vertex, p: int, *, exactly: bool) -> np.ndarray:
    """The vectors an operation may be cut by, over its labels.

    Args:
        v: The operation.
        p: Kernel calls wanted.
        exactly: Exactly p calls, or as many below p as the extents allow; otherwise any
            number of calls that divides p. Labels with fixed parts keep to them, and
            the others share what is left of p.
    """
    if v.fixed:
        return _around_fixed(p, v.extents, v.fixed, exactly)
    return _viable(p, v.extents, exactly)


def _viable(p: int, bounds: tuple[int, ...], exactly: bool) -> np.ndarray:
    if not exactly:
        return at_most(p, bounds)
    for calls in range(p, 0, -1):
        found = products(calls, bounds)
        if len(found):
            return found
    raise AssertionError("one call is always viable")


@lru_cache(maxsize=4096)
def _around_fixed(
    p: int, extents: tuple[int, ...], fixed: tuple[int | None, ...], exactly: bool
) -> np.ndarray:
    """Vectors that keep the fixed parts."""
    free = [n for n, parts in enumerate(fixed) if parts is None]
    given = prod(parts for parts in fixed if parts is not None)
    rest = _viable(max(1, p // given), tuple(extents[n] for n in free), exactly)
    found = np.empty((len(rest), len(fixed)), np.int64)
    found[:] = [parts or 1 for parts in fixed]
    found[:, free] = rest
    return found


def restricted(vectors: np.ndarray, axes: Sequence[int | None]) -> np.ndarray:
    """Vectors over labels as vectors over axes; an axis that is never cut gets 1."""
    out = np.ones((len(vectors), len(axes)), np.int64)
    for n, a in enumerate(axes):
        if a is not None:
            out[:, n] = vectors[:, a]
    return out
