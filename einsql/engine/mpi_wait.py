"""Waiting for MPI without occupying a core that other ranks need.

MPI's own waits spin. These functions poll, yield the core, and poll again. The pauses grow with
the time waited, so a wait takes little time of the core and ends at most a twentieth late.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

EAGER = 3e-4
"""Seconds of polling without a pause; a sleep of 0.05 ms takes 0.1 ms."""
SHORTEST, LONGEST = 5e-5, 2e-3
"""Limits of a pause in seconds; the longest one keeps a link with buffers busy."""

_let_others: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Patience:
    """The pauses between polls."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def pause(self) -> None:
        """Yields the core, then sleeps."""
        waited = time.perf_counter() - self._start
        if waited > EAGER:
            time.sleep(min(max(SHORTEST, waited / 20), LONGEST))
        else:
            _let_others()

    def refresh(self) -> None:
        """Resets the pauses after an arrival: the remaining messages will follow soon."""
        self._start = time.perf_counter()


def finish(requests: Sequence[MPI.Request]) -> None:
    """Waits until all requests are complete."""
    from mpi4py import MPI

    patience = Patience()
    while not MPI.Request.Testall(requests):
        patience.pause()


def arrivals(groups: Sequence[Sequence[MPI.Request]]) -> Iterator[int]:
    """Yields the number of each group of requests on its completion; the others continue."""
    from mpi4py import MPI

    flat = [r for requests in groups for r in requests]
    owner = [n for n, requests in enumerate(groups) for _ in requests]
    missing = [len(requests) for requests in groups]
    left = len(flat)
    yield from (n for n, count in enumerate(missing) if count == 0)
    patience = Patience()
    while left:
        done = MPI.Request.Testsome(flat)
        if not done:
            patience.pause()
            continue
        for at in done:
            missing[owner[at]] -= 1
        left -= len(done)
        yield from sorted({owner[at] for at in done if missing[owner[at]] == 0})
        patience.refresh()
