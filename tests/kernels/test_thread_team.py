"""Short pieces of compiled kernels, on threads that stay at hand."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from math import inf
from typing import Any

import numpy as np
import pytest

from einsql.kernels.matmul import multiply
from einsql.kernels.matmul.layout import Labels
from einsql.kernels.matmul.multiply import Multiplied
from einsql.kernels.runtime import compile_cache, thread_pool, thread_team

_COUNT = """\
from einsql.kernels.runtime.atomics import add, load, store


@njit("int64(int64, int64[::1], int64, int64)")
def kernel(piece, done, both, whose):
    done[piece] += 1
    if both:  # waits for the other thread
        add(both, 1)
        while load(both) < 2:
            pass
    if whose:
        add(whose, 1)
    return 1 << (piece % 8)
"""


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", "2")
    monkeypatch.setattr(thread_team, "_asked", -inf)  # so that it is seen


THREADS = 2


def _counting() -> int:
    return compile_cache.load(_COUNT).address


def _rows(done: np.ndarray, both: int = 0) -> np.ndarray:
    rows = np.zeros((len(done), 10), np.int64)
    rows[:, 0] = range(len(done))
    rows[:, 1:8] = thread_team.array_words(done)
    rows[:, 8] = both
    return rows


@pytest.mark.parametrize("threads", [1, 2])
def test_every_piece_is_done_once_and_its_bits_united(threads: int) -> None:
    for count in (1, 2, 3, 90):
        done = np.zeros(count, np.int64)
        for _ in range(50):
            assert thread_team.run(_counting(), _rows(done), threads) == 2 ** min(count, 8) - 1
        assert (done == 50).all()


def test_a_million_pieces_take_no_stack() -> None:
    done = np.zeros(2**20 - 1, np.int64)
    thread_team.run(_counting(), _rows(done), 1)
    assert (done == 1).all()


def test_two_pieces_run_at_once() -> None:
    done, both = np.zeros(2, np.int64), np.zeros(1, np.int64)
    thread_team.run(_counting(), _rows(done, both.ctypes.data), THREADS)
    assert both[0] == 2


def test_each_thread_passes_arguments_of_its_own() -> None:
    done, both, counts = (np.zeros(2, np.int64) for _ in range(3))
    own = counts.ctypes.data + 8 * np.arange(2).reshape(2, 1)
    thread_team.run(_counting(), _rows(done, both.ctypes.data), THREADS, own, first=9)
    assert counts.tolist() == [1, 1]


def test_several_callers_do_not_meet() -> None:
    counts = [np.zeros(7, np.int64) for _ in range(4)]

    def call(done: np.ndarray) -> None:
        for _ in range(200):
            assert thread_team.run(_counting(), _rows(done), THREADS) == 127

    callers = [threading.Thread(target=call, args=(done,)) for done in counts]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all((done == 200).all() for done in counts)


def test_the_pool_gets_its_threads_back() -> None:
    done = np.zeros(8, np.int64)
    both = threading.Barrier(2, timeout=10)

    def meet(_: int) -> None:
        both.wait()

    for _ in range(20):
        thread_team.run(_counting(), _rows(done), THREADS)
        thread_pool.run(meet, range(2), 2, lambda _: None)
    assert (done == 20).all()


def test_work_alone_wakes_nobody_unless_it_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    thread_team.run(_counting(), _rows(np.zeros(2, np.int64)), THREADS)
    threads, end = 2, time.monotonic() + 60
    while threads > 1 and time.monotonic() < end:  # a busy machine's threads sleep later
        time.sleep(max(thread_team.STREAM, thread_team.SPIN) * 20)
        threads = thread_team.at_hand(thread_team.WAKE / 2)
    assert threads == 1
    monkeypatch.setattr(thread_team, "STREAM", 1000.0)  # on however slow a machine
    assert thread_team.at_hand(thread_team.WAKE / 2) == 2  # it follows
    assert thread_team.at_hand(thread_team.LEAST / 2) == thread_team.at_hand(thread_team.LONG) == 1


def test_a_process_ends_while_threads_look_for_work() -> None:
    code = (
        "import sys; sys.path.insert(0, 'tests/kernels')\n"
        "from einsql.kernels.runtime import thread_team\n"
        "thread_team.SPIN = 0.2\n"
        "import numpy as np, test_thread_team as t\n"
        "for _ in range(3): thread_team.run(t._counting(), t._rows(np.zeros(4, np.int64)), 2)\n"
    )
    environment = os.environ | {"NUMBA_NUM_THREADS": "2"}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100
    )
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # it is what is tested
def test_a_forked_child_has_threads_of_its_own() -> None:
    thread_team.run(_counting(), _rows(np.zeros(4, np.int64)), THREADS)
    child = os.fork()
    if not child:
        both = np.zeros(1, np.int64)
        thread_team.run(_counting(), _rows(np.zeros(2, np.int64), both.ctypes.data), THREADS)
        os._exit(int(both[0]))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


_PRODUCTS = [
    ({"i": 96, "j": 80, "k": 64}, "ik", "kj", "ij"),
    ({"i": 96, "j": 80, "k": 64}, "ki", "jk", "ij"),
    ({"i": 96, "j": 80, "k": 64}, "ik", "jk", "ji"),
    ({"i": 1200, "k": 300}, "ik", "k", "i"),
    ({"i": 1200, "k": 300}, "k", "ki", "i"),
    ({"i": 1, "j": 1200, "k": 300}, "ik", "jk", "ij"),
    ({"i": 1203, "k": 70}, "ik", "k", "i"),
    ({"i": 603, "k": 4301}, "k", "ik", "i"),
    ({"i": 603, "k": 8195}, "ik", "k", "i"),
    ({"i": 1000, "k": 50}, "ik", "k", "i"),
    ({"b": 6, "i": 96, "j": 56, "k": 64}, "bik", "bkj", "bij"),
    ({"b": 6, "i": 96, "j": 56, "k": 64}, "bik", "kj", "ibj"),
    ({"b": 3, "i": 3, "j": 1000, "k": 64}, "bik", "bjk", "bij"),
    ({"b": 2, "i": 4, "j": 501, "k": 70}, "bki", "bjk", "bji"),
    ({"i": 80, "p": 4, "q": 8, "k": 16, "l": 24}, "ikl", "pqkl", "ipq"),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("extents", "left", "right", "keys"), _PRODUCTS)
def test_products_are_those_of_numpy_however_they_lie(
    extents: dict[str, int], left: str, right: str, keys: str, dtype: type,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    compile_cache.load(_COUNT)  # the process has loaded a kernel
    monkeypatch.setattr(thread_team, "LEAST", 0.0)
    monkeypatch.setattr(thread_team, "WAKE", 0.0)
    monkeypatch.setattr(multiply, "ELSE", inf)  # as if other kernels had just run
    called: list[int] = []
    start = thread_team.start

    def noted(job: tuple[int, ...], *more: Any) -> int:
        called.append(job[0])
        return start(job, *more)

    monkeypatch.setattr(thread_team, "start", noted)
    chance = np.random.default_rng(len(left))
    product = Multiplied(Labels(tuple(left), tuple(right), tuple(keys), extents), np.dtype(dtype))
    for layout in ("C", "F", "apart"):
        pair: list[np.ndarray] = [
            chance.integers(-4, 5, [extents[x] for x in t]).astype(dtype) for t in (left, right)
        ]
        a, b = pair
        expected = np.einsum(f"{left},{right}->{keys}", a, b)
        if layout == "F":
            a, b = np.asfortranarray(a), np.asfortranarray(b)
        elif layout == "apart":
            a, b = (np.concatenate([x, x], axis=-1)[..., : x.shape[-1]] for x in (a, b))
        for _ in range(2):
            np.testing.assert_array_equal(product(a, b, lambda _: None), expected)
    assert called
