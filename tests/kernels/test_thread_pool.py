"""Pieces of a kernel's work on several threads."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest

from einsql.kernels.runtime import thread_pool


@pytest.fixture(autouse=True)
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", "2")


def test_two_pieces_run_at_once() -> None:
    both = threading.Barrier(2, timeout=10)

    def work(_: int) -> None:
        both.wait()

    thread_pool.run(work, range(2), 2, lambda _: None)


def test_every_piece_is_done_once_and_told() -> None:
    done: list[int] = []
    told: list[float] = []
    thread_pool.run(done.append, range(1000), 1000, told.append)
    assert sorted(done) == list(range(1000))
    assert told[-1] == 1.0


@pytest.mark.parametrize("threads", ["1", "2"])
def test_an_error_reaches_the_caller_and_ends_the_rest(
    threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_NUM_THREADS", threads)
    begun: list[int] = []

    def work(piece: int) -> None:
        begun.append(piece)
        if piece == 3:
            raise ValueError(piece)

    with pytest.raises(ValueError, match="3"):
        thread_pool.run(work, count(), 10**6, lambda _: None)
    assert len(begun) < 10**5


def test_a_cancelled_run_leaves_nothing_running() -> None:
    begun, ended = threading.Event(), threading.Event()
    caller = threading.get_ident()

    def work(_: int) -> None:
        if threading.get_ident() == caller:
            begun.wait(10)
            return
        begun.set()
        time.sleep(0.2)  # it is at work when the caller is cancelled
        ended.set()

    def tick(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        thread_pool.run(work, count(), 10**6, tick)
    assert begun.is_set()
    assert ended.is_set()


def test_a_piece_may_be_cut_itself() -> None:
    threads: set[int] = set()

    def inner(_: int) -> None:
        threads.add(thread_pool.threads())

    thread_pool.run(
        lambda _: thread_pool.run(inner, range(3), 3, lambda _: None), range(4), 4, lambda _: None
    )
    assert threads == {1}


def test_nothing_is_held_after_a_run() -> None:
    # A result that a helper's last frame still held would not be lent again.
    array = np.empty(1)
    known = sys.getrefcount(array)

    def work(_: int, held: np.ndarray = array) -> None:
        held.sum()

    thread_pool.run(work, range(2), 2, lambda _: None)
    del work
    assert sys.getrefcount(array) == known


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="threads cannot be bound here")
def test_the_caller_may_run_where_it_might_before() -> None:
    before = os.sched_getaffinity(0)
    thread_pool.run(lambda _: None, range(2), 2, lambda _: None)
    assert os.sched_getaffinity(0) == before

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        thread_pool.run(lambda _: None, range(2), 2, stop)
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="there is one core, or threads cannot be bound to theirs",
)
def test_an_interrupt_while_helpers_end_leaves_the_caller_its_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, take_back = os.sched_getaffinity(0), thread_pool._take_back
    bound: list[int] = []

    def interrupted(turns: Sequence[thread_pool._Turn]) -> None:
        bound.append(len(os.sched_getaffinity(0)))
        take_back(turns)
        raise KeyboardInterrupt

    monkeypatch.setattr(thread_pool, "_take_back", interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread_pool.run(lambda _: None, range(2), 2, lambda _: None)
    assert bound == [1]
    assert os.sched_getaffinity(0) == before
