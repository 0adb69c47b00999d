"""Arrays between sites on MPI ranks.

Before anything moves all ranks agree that none has failed or was told to stop; else all
of them leave the program together. So an exchange that has begun is always completed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.engine.transport import Arrays, Cut, Routes

if TYPE_CHECKING:
    from mpi4py import MPI

READY, FAILED, CANCELLED = range(3)
"""What a rank says before an exchange; the greatest of all holds for all."""

LARGEST = 2**30
"""Bytes of a message, at most: counts are 32 bits wide in MPI 3."""

_EAGER = 2e-4
"""Seconds of waiting before a rank lets others have its core for longer."""


class Abandoned(Exception):  # noqa: N818 - it ends a program without being its error
    """Another rank failed or was cancelled, so this one stops too.

    Attributes:
        status: FAILED or CANCELLED.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class RankTransport:
    """The sites of one rank of a communicator.

    Attributes:
        owned: Sites are dealt to the ranks evenly, neighbours together.
        sent: Bytes that left each owned site for another one.
        received: Bytes that reached each owned site from another one.
    """

    def __init__(self, comm: MPI.Intracomm, sites: int, cancelled: Callable[[], bool]) -> None:
        """Speaks for the sites of this rank.

        Args:
            comm: Of all ranks.
            sites: How many there are on all ranks together.
            cancelled: Asked before each exchange whether to stop.
        """
        self._comm = comm
        self._cancelled = cancelled
        self.ranks = np.arange(sites) * comm.size // sites
        self.owned: Sequence[int] = np.flatnonzero(self.ranks == comm.rank).tolist()
        self.sent = [0] * sites
        self.received = [0] * sites

    def exchange(self, routes: Routes, cut: Cut) -> Iterator[tuple[int, Arrays]]:
        """Sends what leaves owned sites, and gives what arrives at them.

        Raises:
            Abandoned: A rank has failed or was cancelled.
        """
        here, (out, into) = (
            self._comm.rank,
            (self.ranks[s] for s in (routes.sources, routes.targets)),
        )
        nbytes, sizes = routes.nbytes, routes.shapes.tolist()
        remote = (out != into) & (nbytes > 0)
        leaving = [
            (n, {k: np.ascontiguousarray(a) for k, a in cut(n).items()})
            for n in np.flatnonzero(remote & (out == here)).tolist()
        ]
        arriving = [
            (n, {k: np.empty(sizes[n], d) for k, d in routes.dtypes.items()})
            for n in np.flatnonzero(remote & (into == here)).tolist()
        ]
        self._count(routes, nbytes, out, into)
        if remote.any():
            self.agree(CANCELLED if self._cancelled() else READY)
        receiving = [
            [self._comm.Irecv(part, int(out[n])) for a in arrays.values() for part in _parts(a)]
            for n, arrays in arriving
        ]
        sending = [
            self._comm.Isend(part, int(into[n]))
            for n, arrays in leaving
            for k in routes.dtypes
            for part in _parts(arrays[k])
        ]
        try:
            for n in np.flatnonzero(~remote & (into == here)).tolist():
                yield n, cut(n) if out[n] == here else _nothing(routes, sizes[n])
            for (n, arrays), requests in zip(arriving, receiving, strict=True):
                self._wait(requests)
                yield n, arrays
        finally:  # whoever takes what arrives may fail, but not the exchange
            self._wait([r for requests in receiving for r in requests] + sending)

    def agree(self, status: int) -> None:
        """Tells all ranks how this one is; every rank calls it at the same point.

        Raises:
            Abandoned: One of them is not ready.
        """
        mine, worst = np.array([status], np.int32), np.zeros(1, np.int32)
        self._wait([self._comm.Iallreduce(mine, worst, _max())])
        if worst[0] != READY:
            raise Abandoned(int(worst[0]))

    def _count(
        self, routes: Routes, nbytes: np.ndarray, out: np.ndarray, into: np.ndarray
    ) -> None:  # fmt: skip
        crossing = routes.sources != routes.targets
        for n in np.flatnonzero(crossing & (out == self._comm.rank)).tolist():
            self.sent[routes.sources[n]] += int(nbytes[n])
        for n in np.flatnonzero(crossing & (into == self._comm.rank)).tolist():
            self.received[routes.targets[n]] += int(nbytes[n])

    def _wait(self, requests: list[MPI.Request]) -> None:
        """Waits without keeping the core from ranks that share it."""
        from mpi4py import MPI

        start = time.perf_counter()
        while not MPI.Request.Testall(requests):
            time.sleep(0 if time.perf_counter() - start < _EAGER else 5e-5)


def _max() -> MPI.Op:
    from mpi4py import MPI

    return MPI.MAX


def _nothing(routes: Routes, shape: Sequence[int]) -> Arrays:
    return {k: np.empty(shape, d) for k, d in routes.dtypes.items()}


def _parts(array: np.ndarray) -> list[Any]:
    """The bytes of an array as messages."""
    from mpi4py import MPI

    flat = array.reshape(-1).view(np.uint8)
    return [[flat[n : n + LARGEST], MPI.BYTE] for n in range(0, flat.nbytes, LARGEST)]
