"""Transfer of arrays between sites on MPI ranks.

Before an exchange all ranks agree that none has failed or is cancelled; otherwise all of them
leave the program. An exchange that has begun is therefore always completed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.buffer_pool import contiguous, empty
from einsql.engine.communicator import Fabric
from einsql.engine.mpi_schedule import AllGather, Schedule, scheduled
from einsql.engine.mpi_wait import arrivals, finish
from einsql.engine.transport import Arrays, Cut, Room, Routes

if TYPE_CHECKING:
    from mpi4py import MPI

READY, COMPILING, FAILED, CANCELLED = range(4)
"""Statuses of a rank before an exchange; the greatest one applies to all ranks.

A rank is COMPILING that changes its tier: all ranks begin the program anew, see
`tiered_ranks.py`.
"""

LARGEST = 2**30
"""Greatest size of a message in bytes: counts are 32 bits wide in MPI 3."""


class Abandoned(Exception):  # noqa: N818 - a stop after the error of another rank
    """A rank failed, was cancelled, or changes its tier, so this rank stops too.

    Attributes:
        status: COMPILING, FAILED or CANCELLED.
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class TornError(Exception):
    """An exchange has only begun in part at this rank, so other ranks wait without end."""


class RankTransport:
    """The sites of one rank of a communicator.

    Attributes:
        rank: The number of this rank.
        ranks: int64 (sites,), the rank of each site.
        owned: The sites of this rank; sites are distributed evenly, neighbours together.
        sent: By owned site the bytes of the buffers passed to MPI, once for each receiving site. A
            broadcast counts once for each receiver but the root. An all-gather counts a rank's own
            piece once for each other member. A message for several sites of a rank counts once for
            each of them. Arrays between two sites of this rank are included.
        received: By owned site the bytes of the buffers that MPI has filled, and of the arrays from
            other sites of the rank.
    """

    def __init__(self, comm: MPI.Intracomm, sites: int, cancelled: Callable[[], bool]) -> None:
        """Creates the transport of this rank's sites; the call is collective.

        Args:
            comm: A communicator of all ranks.
            sites: The number of sites on all ranks together.
            cancelled: Called before each exchange; returns whether to stop.
        """
        self._comm = comm
        self._fabric = Fabric.of(comm)
        self._cancelled = cancelled
        self.ranks = self._fabric.ranks_of(sites)
        self.owned: Sequence[int] = self._fabric.owned(sites)
        self.rank = comm.rank
        self.sent = [0] * sites
        self.received = [0] * sites

    def exchange(
        self, routes: Routes, cut: Cut, room: Room | None = None, window: int | None = None
    ) -> Iterator[tuple[int, Arrays]]:
        """Sends the pieces that leave owned sites, and yields the arriving pieces.

        Raises:
            Abandoned: A rank has failed, was cancelled, or changes its tier.
            TornError: The start of the exchange failed.
        """
        yield from self.post(routes, cut, room, window).pieces()

    def post(
        self, routes: Routes, cut: Cut, room: Room | None = None, window: int | None = None
    ) -> PostedExchange:
        """Starts the sends and receives of an exchange, which `pieces` completes.

        Raises:
            Abandoned: A rank has failed, was cancelled, or changes its tier.
            TornError: The start of the exchange failed.
        """
        schedule = self._schedule(routes)
        flight = _Flight(self._fabric, schedule, routes, cut, room, window)
        if schedule.crosses:
            self.agree(CANCELLED if self._cancelled() else READY)
        try:
            flight.begin()
        except Exception as error:
            raise TornError from error
        for n, nbytes in flight.given.items():
            self.sent[routes.sources[n]] += nbytes * schedule.feeds[n]
        return PostedExchange(self, flight, schedule, routes, cut)

    def agree(self, status: int) -> None:
        """Shares the status of this rank with all ranks; the call is collective.

        Raises:
            Abandoned: A rank is not ready.
        """
        worst = self._fabric.worst(status)
        if worst != READY:
            raise Abandoned(worst)

    def _schedule(self, routes: Routes) -> Schedule:
        """Returns the schedule of this rank, cached for each step."""
        key = type(self), self._comm.size, self._comm.rank
        if key not in routes.derived:
            nodes = self._fabric.nodes
            routes.derived[key] = scheduled(routes, self.ranks, nodes, self._comm.rank)
        schedule: Schedule = routes.derived[key]
        return schedule


class PostedExchange:
    """An exchange of one rank that has started. It must end, by `pieces` or by `end`."""

    def __init__(
        self,
        transport: RankTransport,
        flight: _Flight,
        schedule: Schedule,
        routes: Routes,
        cut: Cut,
    ) -> None:
        self._transport, self._flight, self._schedule = transport, flight, schedule
        self._routes, self._cut = routes, cut

    def pieces(self) -> Iterator[tuple[int, Arrays]]:
        """Yields the arriving pieces, and completes the exchange."""
        transport, flight, routes = self._transport, self._flight, self._routes
        here = transport.rank
        try:
            for n in self._schedule.stays:
                source, target = int(routes.sources[n]), int(routes.targets[n])
                if transport.ranks[source] != here:
                    yield n, _nothing(routes, n)
                    continue
                arrays = self._cut(n)
                if source != target:
                    nbytes = sum(a.nbytes for a in arrays.values())
                    transport.sent[source] += nbytes
                    transport.received[target] += nbytes
                yield n, arrays
            for n, arrays in flight.arrivals():
                nbytes = flight.taken.pop(n)
                for served in self._schedule.serves[n]:
                    transport.received[routes.targets[served]] += nbytes
                    yield served, arrays
        finally:  # the exchange must complete even if the consumer fails
            self.end()

    def poll(self) -> None:
        """Lets MPI move data: without calls of MPI, few libraries move large messages."""
        self._flight.poll()

    def end(self) -> None:
        """Waits until the exchange is complete."""
        self._flight.end()


class _Flight:
    """One exchange of one rank: departing arrays, and buffers for arriving ones.

    Attributes:
        given: By departing route the bytes of the buffers that MPI sends.
        taken: By arriving route the bytes of the buffers that MPI fills.
    """

    def __init__(
        self,
        fabric: Fabric,
        schedule: Schedule,
        routes: Routes,
        cut: Cut,
        room: Room | None,
        window: int | None,
    ) -> None:
        """Does all preparations that may fail."""
        here = fabric.comm.rank
        self._fabric, self._schedule, self._routes = fabric, schedule, routes
        self._fields = tuple(routes.dtypes)
        self._window = window
        self._lines: dict[AllGather, dict[str, np.ndarray]] = {}
        self._incoming: dict[int, Arrays] = {}
        leaving = dict.fromkeys(n for n, _ in schedule.sends)
        coming = [n for n, _ in schedule.receives[:window]]
        later = [n for n, _ in schedule.receives[len(coming) :]]
        for c in (c for c in schedule.collectives if here in c.members):
            if isinstance(c, AllGather):
                leaving[c.routes[c.members.index(here)]] = None
                self._lines[c] = self._line_up(c)
            elif c.root == here:
                leaving[c.route] = None
            else:
                coming.append(c.route)
        self._outgoing = {n: {k: contiguous(a) for k, a in cut(n).items()} for n in leaving}
        for n in coming:
            arrays = None if room is None else room(schedule.serves[n][0])
            fits = arrays is not None and all(a.flags.c_contiguous for a in arrays.values())
            self._incoming[n] = arrays if arrays is not None and fits else _nothing(routes, n)
        # Memory for pieces after a failure of the consumer; otherwise unused.
        self._spare = np.empty(int(routes.nbytes[later].max(initial=0)), np.uint8)
        self._receiving: dict[int, list[MPI.Request]] = {}
        self._gathering: list[tuple[Sequence[int], list[MPI.Request]]] = []
        self._sending: list[MPI.Request] = []
        self.given: dict[int, int] = defaultdict(int)
        self.taken: dict[int, int] = defaultdict(int)

    def begin(self) -> None:
        """Starts all operations; the call is collective."""
        comm, schedule = self._fabric.comm, self._schedule
        for n, rank in schedule.receives[: self._window]:
            self._receive(n, rank)
        for n, rank in schedule.sends:
            pieces = self._messages(n, self._outgoing[n], self.given)
            self._sending += [comm.Isend(p, rank) for p in pieces]
        for c in schedule.collectives:
            group = self._fabric.group(c.members)
            if group is None:
                continue
            if isinstance(c, AllGather):
                self._gathering.append((c.routes, self._gather(c, group)))
                continue
            at = c.members.index(c.root)
            root = group.rank == at
            arrays = (self._outgoing if root else self._incoming)[c.route]
            pieces = self._messages(c.route, arrays, self.given if root else self.taken)
            requests = [group.Ibcast(p, at) for p in pieces]
            if root:
                self._sending += requests
            else:
                self._gathering.append(((c.route,), requests))

    def poll(self) -> None:
        """Tests an operation that is not complete, without completing it."""
        for requests in (*self._receiving.values(), self._sending):
            if not all(r.Get_status() for r in requests):
                return

    def arrivals(self) -> Iterator[tuple[int, Arrays]]:
        """Yields numbers of routes with their arrays, on arrival or in order."""
        if self._window is None:
            pairs = [([n], requests) for n, requests in self._receiving.items()]
            posted = [*pairs, *self._gathering]
            for at in arrivals([requests for _, requests in posted]):
                yield from self._brought(posted[at][0])
            return
        receives = self._schedule.receives
        for at, (n, _) in enumerate(receives):
            finish(self._receiving[n])
            following = at + self._window
            if following < len(receives):
                later, rank = receives[following]
                self._incoming[later] = _nothing(self._routes, later)
                self._receive(later, rank)
            yield from self._brought((n,))
        for numbers, requests in self._gathering:
            finish(requests)
            yield from self._brought(numbers)

    def end(self) -> None:
        """Waits for all operations, needed or not."""
        for n, rank in self._schedule.receives:
            if n not in self._receiving:
                self._incoming[n] = self._thrown_away(n)
                self._receive(n, rank)
                finish(self._receiving[n])
        finish([r for requests in self._receiving.values() for r in requests])
        finish([r for _, requests in self._gathering for r in requests] + self._sending)

    def _receive(self, n: int, rank: int) -> None:
        messages = self._messages(n, self._incoming[n], self.taken)
        self._receiving[n] = [self._fabric.comm.Irecv(p, rank) for p in messages]

    def _brought(self, numbers: Sequence[int]) -> Iterator[tuple[int, Arrays]]:
        for n in numbers:
            if n not in self._outgoing:
                yield n, self._incoming.pop(n)

    def _thrown_away(self, n: int) -> Arrays:
        shape, at = self._routes.shapes[n], 0
        arrays = {}
        for k, dtype in self._routes.dtypes.items():
            nbytes = int(shape.prod()) * dtype.itemsize
            arrays[k] = self._spare[at : at + nbytes]
            at += nbytes
        return arrays

    def _line_up(self, c: AllGather) -> dict[str, np.ndarray]:
        """Allocates contiguous buffers for the pieces of all members, by field."""
        shapes = self._routes.shapes[list(c.routes)]
        ends = np.cumsum(shapes.prod(axis=1, dtype=np.int64)).tolist()
        lines = {k: np.empty(ends[-1], d) for k, d in self._routes.dtypes.items()}
        for n, shape, lo, hi in zip(c.routes, shapes.tolist(), [0, *ends], ends, strict=False):
            self._incoming[n] = {k: line[lo:hi].reshape(shape) for k, line in lines.items()}
        return lines

    def _gather(self, c: AllGather, group: MPI.Intracomm) -> list[MPI.Request]:
        from mpi4py import MPI

        own = c.routes[group.rank]
        requests = []
        for k in self._fields:
            self._incoming[own][k][...] = self._outgoing[own][k]
            counts = [self._incoming[n][k].nbytes for n in c.routes]
            for n, nbytes in zip(c.routes, counts, strict=True):
                (self.given if n == own else self.taken)[n] += nbytes
            line = self._lines[c][k].view(np.uint8)
            requests.append(group.Iallgatherv(MPI.IN_PLACE, [line, counts, MPI.BYTE]))
        return requests

    def _messages(self, n: int, arrays: Arrays, counts: dict[int, int]) -> Iterator[Any]:
        """Yields the bytes of a route's fields in pieces within MPI's count, and counts them."""
        from mpi4py import MPI

        for k in self._fields:
            flat = arrays[k].reshape(-1).view(np.uint8)
            for at in range(0, flat.nbytes, LARGEST):
                piece = flat[at : at + LARGEST]
                counts[n] += piece.nbytes
                yield [piece, MPI.BYTE]


def _nothing(routes: Routes, n: int) -> Arrays:
    """Returns uninitialised arrays for a route."""
    shape = tuple(routes.shapes[n].tolist())
    return {k: empty(shape, d) for k, d in routes.dtypes.items()}
