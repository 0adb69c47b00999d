"""Memory is lent again only when nothing shows it any more."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from einsql.core import buffer_pool
from einsql.core.buffer_pool import contiguous, converted, empty

F = np.dtype(np.float32)
SIDE = 1024  # 4 MiB of float32, enough to be kept


@pytest.fixture(autouse=True)
def _no_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "_blocks", {})


def address(array: np.ndarray) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


def test_what_is_alive_is_never_lent_again() -> None:
    first = empty((SIDE, SIDE), F)
    first[:] = 1.0
    kept = first[::2].T[3:]
    del first
    second = empty((SIDE, SIDE), F)
    second[:] = 2.0
    assert not np.shares_memory(kept, second)
    assert (kept == 1.0).all()


def test_what_is_gone_is_lent_again_to_its_size_alone() -> None:
    array = empty((SIDE, SIDE), F)
    at = address(array)
    del array
    larger = empty((2 * SIDE, SIDE), F)
    assert address(larger) != at
    again = empty((SIDE // 2, SIDE), np.dtype(np.float64))
    assert address(again) == at
    assert again.flags.c_contiguous
    assert at % 64 == 0
    assert again.flags.writeable


def test_few_bytes_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffer_pool, "KEPT", 4 * SIDE * SIDE * F.itemsize)
    held = [empty((SIDE, SIDE), F) for _ in range(5)]
    assert [len(same) for same in buffer_pool._blocks.values()] == [3]
    assert len({address(a) for a in held}) == 5
    assert empty((SIDE, 4 * SIDE), F).flags.owndata
    assert empty((2, 2), F).flags.owndata
    smaller = [empty((SIDE, SIDE // 2), F) for _ in range(3)]
    assert [len(same) for same in buffer_pool._blocks.values()] == [2, 3]  # the oldest have gone
    assert not any(np.shares_memory(a, b) for a in held for b in smaller)


def test_copies_are_equal_and_take_such_memory() -> None:
    array = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE)
    at = address(empty((SIDE, SIDE), F))
    turned = contiguous(array.T)
    assert address(turned) == at
    assert turned.flags.c_contiguous
    np.testing.assert_array_equal(turned, array.T)
    assert contiguous(array) is array
    wide = converted(array.T, np.dtype(np.float64))
    assert wide.flags.f_contiguous  # as the array, so that adding to it runs along memory
    np.testing.assert_array_equal(wide, array.T)


def test_threads_never_share_a_block() -> None:
    def fill(number: int) -> bool:
        for turn in range(50):
            array = empty((SIDE, SIDE), F)
            value = number * 100 + turn
            array[:] = value
            if not (array == value).all():
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(fill, range(4)))
