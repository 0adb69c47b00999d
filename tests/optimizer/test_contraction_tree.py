"""Contraction paths that are improved, against exact orders of chains and the paths before."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import prod

import pytest

from einsql.optimizer.rewrite.contraction_tree import COPIED, WRITTEN, Path, improved


def _operations(
    path: Path,
    parts: Sequence[Collection[str]],
    keys: Collection[str],
    extents: Mapping[str, int],
) -> tuple[int, int]:
    """The points of all steps, and the elements of their results; every part is joined once."""
    points = elements = 0
    present = [frozenset(part) for part in parts]
    for step in path:
        assert len(set(step)) == 2
        joined = frozenset().union(*(present[n] for n in step))
        present = [part for n, part in enumerate(present) if n not in step]
        kept = joined & frozenset(keys).union(*present)
        points += prod(extents[x] for x in joined)
        elements += prod(extents[x] for x in kept)
        present.append(kept)
    assert present == [frozenset(keys)]
    return points, elements


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_has_the_best_order(seed: int) -> None:
    chance = random.Random(seed)
    labels = "abcdefghijk"
    extents = {x: chance.randint(10, 1000) for x in labels}
    parts = list(pairwise(labels))

    @cache
    def least(first: int, last: int) -> int:
        if last == first + 1:
            return 0
        outer = extents[labels[first]] * extents[labels[last]]
        return outer * WRITTEN + min(
            least(first, n) + least(n, last) + outer * extents[labels[n]]
            for n in range(first + 1, last)
        )

    from_left: Path = [(0, 1), *((0, n) for n in range(8, 0, -1))]
    path = improved(from_left, [frozenset(p) for p in parts], "ak", extents, WRITTEN)
    points, elements = _operations(path, parts, "ak", extents)
    assert points + WRITTEN * elements == least(0, 10)


@pytest.mark.parametrize("seed", range(10))
def test_a_path_of_a_network_is_valid_and_costs_no_more(seed: int) -> None:
    chance = random.Random(seed)
    labels = "abcdefghijklmnop"
    extents = {x: chance.choice((1, 2, 5, 20)) for x in labels}
    parts = [tuple(chance.sample(labels, chance.randint(1, 4))) for _ in range(12)]
    keys = set(chance.sample(labels, 3)).intersection(set().union(*parts))
    path: Path = [(0, 1)] * 11
    before = _operations(path, parts, keys, extents)
    unordered = [frozenset(part) for part in parts]
    better = improved(path, unordered, sorted(keys), extents, WRITTEN)
    points, elements = _operations(better, parts, keys, extents)
    assert points + WRITTEN * elements <= before[0] + WRITTEN * before[1]
    _operations(improved(path, parts, sorted(keys), extents, WRITTEN), parts, keys, extents)


def test_a_large_tensor_is_not_copied_for_a_sum_of_a_label_in_its_midst() -> None:
    extents = {"a": 30, "b": 30, "c": 30, "d": 2}
    parts = [("a", "b", "c"), ("b",), ("c", "d")]
    path: Path = [(0, 1), (0, 1)]
    assert extents["a"] < COPIED
    assert improved(path, [frozenset(p) for p in parts], "ad", extents, WRITTEN) == path
    assert improved(path, parts, "ad", extents, WRITTEN) != path
