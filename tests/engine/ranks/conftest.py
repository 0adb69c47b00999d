"""Ranks that several tests share, for starting them takes longer than most tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import einsql
from tests.engine.ranks.processes import SHARED, descendants

if TYPE_CHECKING:
    from einsql.engine.ranks.driver import Cluster

Connected = Callable[[int], einsql.Connection]
"""Gives a connection of its own to so many ranks."""


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[[int], Cluster]]:
    """Gives so many ranks. Once started, they serve the tests of all files."""
    from einsql.engine.ranks.driver import Cluster
    from einsql.engine.ranks.start import starting

    known: dict[int, Cluster] = {}

    def of(count: int) -> Cluster:
        if count not in known:
            others = descendants(os.getpid())
            known[count] = Cluster(starting(count))
            SHARED.update(p for p in descendants(os.getpid()) if p not in others)
        return known[count]

    yield of
    for cluster in known.values():
        cluster.close()


@pytest.fixture
def connected(ranks: Callable[[int], Cluster]) -> Iterator[Connected]:
    """Connections to shared ranks, forgotten after the test."""
    made: list[einsql.Connection] = []

    def to(count: int) -> einsql.Connection:
        con = einsql.Connection(ranks(count))
        con.execute(f"SET sites = {count}")
        made.append(con)
        return con

    yield to
    for con in made:
        close_alone(con)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, which it does not in pytest-xdist's workers."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def close_alone(con: einsql.Connection) -> None:
    """Closes a connection; its ranks stay, though it may be the last one that uses them."""
    con.context.cluster = None
    con.close()
