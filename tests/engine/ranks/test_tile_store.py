"""The tiles of a rank: every version of a tensor keeps its elements while others change."""

from __future__ import annotations

import numpy as np
import pytest

from einsql.engine.exchange import Held, slices
from einsql.engine.ranks.messages import Change
from einsql.engine.ranks.tile_store import TileStore
from tests.support.samples import spread

SHAPE = (3, 5)


def tiles(start: float) -> Held:
    return {n: {"val": np.full(SHAPE, start + n), "other": np.zeros(2)} for n in range(2)}


def paste(store: TileStore, handle: int, made: int, tile: int, row: int, value: float) -> None:
    at = slices([(row, row + 1), (1, 4)], [0, 0])
    store.change(Change(handle, made, {tile: (at, {"val": np.full((1, 3), value)})}))


def same(held: Held, expected: Held) -> None:
    for n, fields in expected.items():
        for name, array in fields.items():
            np.testing.assert_array_equal(held[n][name], array)


def copied(held: Held) -> Held:
    return {n: {k: a.copy() for k, a in fields.items()} for n, fields in held.items()}


def test_the_second_change_is_made_in_place() -> None:
    store = TileStore()
    given = store[1] = tiles(0.0)
    paste(store, 1, 2, 0, 0, 7.0)
    assert store[2][0]["val"] is not given[0]["val"]
    assert store[2][1]["val"] is given[1]["val"]
    first = store[2][0]["val"]
    paste(store, 2, 3, 0, 1, 8.0)
    store.release(2)
    assert store[3][0]["val"] is first
    assert first[0, 1] == 7.0
    assert first[1, 1] == 8.0
    same(given, tiles(0.0))


def test_a_change_is_undone_by_the_release_of_its_version() -> None:
    store = TileStore()
    store[1] = tiles(0.0)
    paste(store, 1, 2, 0, 0, 7.0)
    array, before = store[2][0]["val"], copied(store[2])
    paste(store, 2, 3, 0, 0, 8.0)
    paste(store, 3, 4, 1, 0, 9.0)
    store.release(4)
    store.release(3)
    same(store[2], before)
    assert store[2][0]["val"] is array


def test_a_result_with_the_same_memory_keeps_its_elements() -> None:
    store = TileStore()
    store[1] = tiles(0.0)
    paste(store, 1, 2, 0, 0, 7.0)
    result: Held = {0: {"x": store[2][0]["val"][1:]}}
    store[5] = result
    before = copied(result)
    paste(store, 2, 3, 0, 1, 8.0)
    same(store[5], before)
    assert store[3][0]["val"][1, 1] == 8.0


@pytest.mark.parametrize("seed", spread(range(20), 7))
def test_all_versions_keep_their_elements(seed: int) -> None:
    generator = np.random.default_rng(seed)
    store, expected = TileStore(), {0: tiles(0.0)}
    store[0] = tiles(0.0)
    for made in range(1, 120):
        known = list(expected)
        action, handle = generator.integers(8), int(generator.choice(known[-4:]))
        if action < 5:
            tile, row = (int(n) for n in generator.integers(2, size=2))
            paste(store, handle, made, tile, row, float(made))
            expected[made] = copied(expected[handle])
            expected[made][tile]["val"][row, 1:4] = made
        elif action == 5 and len(known) > 1:
            store.release(handle)
            del expected[handle]
        elif action == 6:
            same(store[handle], expected[handle])
        else:
            store[made] = {n: {"val": f["val"][:], **f} for n, f in store[handle].items()}
            expected[made] = copied(expected[handle])
    for handle in generator.permutation(list(expected)).tolist():
        same(store[handle], expected[handle])
