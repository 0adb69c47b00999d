"""Waiting for MPI without occupying a core that other ranks need.

MPI's own waits spin. These functions poll, yield the core, and poll again. The pauses grow with
the time waited, so a waiting rank costs nothing and is late by at most a twentieth of its wait.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

EAGER = 3e-4
"""Seconds of looking without a pause: a sleep of a twentieth of a millisecond lasts two."""
SHORTEST, LONGEST = 5e-5, 2e-3
"""Seconds of a pause; the longest is short enough to keep a link with buffers busy."""

_let_others: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Patience:
    """The pauses between looks."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def pause(self) -> None:
        """Lets others run."""
        waited = time.perf_counter() - self._start
        if waited > EAGER:
            time.sleep(min(max(SHORTEST, waited / 20), LONGEST))
        else:
            _let_others()

    def refresh(self) -> None:
        """Something has come, so the rest will be there soon."""
        self._start = time.perf_counter()


def finish(requests: Sequence[MPI.Request]) -> None:
    """Waits until all of them are complete."""
    from mpi4py import MPI

    patience = Patience()
    while not MPI.Request.Testall(requests):
        patience.pause()


def arrivals(groups: Sequence[Sequence[MPI.Request]]) -> Iterator[int]:
    """Numbers of groups of requests as they are complete; the others go on meanwhile."""
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
