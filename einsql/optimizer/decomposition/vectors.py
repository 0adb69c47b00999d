"""Partition vectors: the number of parts of each label of an operation (EinDecomp §6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import isqrt, prod

import numpy as np

from einsql.optimizer.decomposition.problem import Vertex
from einsql.optimizer.decomposition.products import Roles, allowed


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
    # An additional label takes the remaining factor of p.
    return np.ascontiguousarray(products(p, (*bounds, p))[:, :-1])


def divisors(n: int) -> list[int]:
    """The divisors of a number, ascending."""
    small = [k for k in range(1, isqrt(n) + 1) if n % k == 0]
    return small + [n // k for k in reversed(small) if k * k != n]


def viable(v: Vertex, p: int, *, exactly: bool) -> np.ndarray:
    """The vectors by which an operation may be cut, over its labels.

    Args:
        v: The operation.
        p: The number of kernel calls.
        exactly: Whether to take exactly p calls, or the most below p that the extents allow;
            otherwise any divisor of that number, most first. Labels with fixed parts keep
            them, and the other labels share the remaining factor of p.
    """
    if v.disabled:
        return _allowed(p, v.extents, v.fixed, exactly, v.roles, v.disabled)
    return _unrestricted(p, v.extents, v.fixed, exactly)


def _unrestricted(
    p: int, extents: tuple[int, ...], fixed: tuple[int | None, ...], exactly: bool
) -> np.ndarray:
    """The viable vectors of an operation without disabled rules."""
    return _around_fixed(p, extents, fixed, exactly) if fixed else _viable(p, extents, exactly)


@lru_cache(maxsize=4096)  # equal operations share one array
def _allowed(
    p: int,
    extents: tuple[int, ...],
    fixed: tuple[int | None, ...],
    exactly: bool,
    roles: Roles,
    disabled: frozenset[str],
) -> np.ndarray:
    """The viable vectors that imply no disabled rule."""
    vectors = _unrestricted(p, extents, fixed, exactly)
    return np.asarray(vectors[allowed(roles, vectors, disabled)])


@lru_cache(maxsize=4096)
def _viable(p: int, bounds: tuple[int, ...], exactly: bool) -> np.ndarray:
    most = min(p, prod(max(1, b) for b in bounds))
    calls = next(n for n in range(most, 0, -1) if len(products(n, bounds)))
    if exactly:
        return products(calls, bounds)
    if calls == p:
        return busiest_first(at_most(p, bounds))
    both = np.concatenate([at_most(p, bounds), at_most(calls, bounds)])
    return busiest_first(np.unique(both, axis=0))


def busiest_first(vectors: np.ndarray) -> np.ndarray:
    """Sorts vectors by calls, most first, because searches take the first of equal costs."""
    return np.asarray(vectors[np.argsort(-vectors.prod(axis=1), kind="stable")])


@lru_cache(maxsize=4096)
def _around_fixed(
    p: int, extents: tuple[int, ...], fixed: tuple[int | None, ...], exactly: bool
) -> np.ndarray:
    """The vectors with the fixed parts."""
    free = [n for n, parts in enumerate(fixed) if parts is None]
    fixed_product = prod(parts for parts in fixed if parts is not None)
    rest = _viable(max(1, p // fixed_product), tuple(extents[n] for n in free), exactly)
    vectors = np.empty((len(rest), len(fixed)), np.int64)
    vectors[:] = [parts or 1 for parts in fixed]
    vectors[:, free] = rest
    return vectors


def distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows in lexicographic order, and the number of each row among them.

    Args:
        rows: Non-negative integers, (rows, columns).
    """
    keys, size = np.zeros(len(rows), np.int64), 1
    for column in rows.T:
        most = int(column.max(initial=0)) + 1
        size *= most
        keys = keys * most + column
    if size >= 2**63:  # too many combinations to number
        unique, index = np.unique(rows, axis=0, return_inverse=True)
        return unique, index.reshape(-1)
    _, first, index = np.unique(keys, return_index=True, return_inverse=True)
    return rows[first], index.reshape(-1)


def restricted(vectors: np.ndarray, axes: Sequence[int | None]) -> np.ndarray:
    """Vectors over labels as vectors over axes; an axis that is never cut gets 1."""
    out = np.ones((len(vectors), len(axes)), np.int64)
    for n, a in enumerate(axes):
        if a is not None:
            out[:, n] = vectors[:, a]
    return out
