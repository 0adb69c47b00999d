"""Dictionaries that are filled step by step: memoized values and groups."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def memoized(known: dict[K, V], key: K, compute: Callable[[], V]) -> V:
    """The value of a key; it is computed and stored if the dictionary lacks it."""
    if key not in known:
        known[key] = compute()
    return known[key]


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The values of each key, in order; keys in the order of their first occurrence."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
