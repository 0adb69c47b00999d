"""Transfer of arrays between sites: one protocol for virtual sites and ranks.

The transfers of a step follow from the plan alone, so every process knows them in advance:
there are no requests, and no messages about sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from einsql.core.records import dataclass
from einsql.kernels.kernel import Arrays as Arrays

Cut = Callable[[int], Arrays]
"""Cuts the arrays of a route, by its number; called at the source site."""
Room = Callable[[int], Arrays | None]
"""Returns the target arrays of a route by its number, or None."""


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """All transfers of one step, in an order that is the same in all processes.

    Attributes:
        sources: int64 (routes,), the source site of each route.
        targets: int64 (routes,), the target site, which may be the same.
        shapes: int64 (routes, axes), extents of the arrays.
        dtypes: The dtype of each field.
        pieces: int64 (routes,), routes with the same number carry the same arrays.
        derived: A transport's derived data of these routes, cached with them.
    """

    sources: np.ndarray
    targets: np.ndarray
    shapes: np.ndarray
    dtypes: Mapping[str, np.dtype]
    pieces: np.ndarray
    derived: dict[object, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.sources)

    @property
    def nbytes(self) -> np.ndarray:
        """int64 (routes,), the bytes of each route by its shape; a transport counts those sent."""
        width = sum(d.itemsize for d in self.dtypes.values())
        return np.asarray(self.shapes.prod(axis=1, dtype=np.int64) * width)


class Transport(Protocol):
    """Moves arrays between sites; a process sends and receives for the sites it owns.

    Attributes:
        sent: Bytes that left each owned site for another one.
        received: Bytes that reached each owned site from another one.
    """

    sent: list[int]
    received: list[int]

    @property
    def owned(self) -> Sequence[int]:
        """The sites whose work is done in this process."""

    def exchange(
        self, routes: Routes, cut: Cut, room: Room | None = None, window: int | None = None
    ) -> Iterator[tuple[int, Arrays]]:
        """Sends the pieces that leave owned sites, and yields the pieces that arrive there.

        All processes call this in the same order.

        Args:
            routes: The transfers.
            cut: Cuts the arrays of each route.
            room: Returns target arrays for pieces, which saves a copy.
            window: Greatest number of messages in transfer to a process. With a window the messages
                arrive in the same order in every run.

        Returns:
            The numbers of routes that end at owned sites, in any order, and their arrays: those of
            `room` if the piece was received there, else read-only arrays.
        """

    def post(self, routes: Routes, cut: Cut, room: Room | None = None) -> PostedExchange:
        """Starts an exchange without waiting for its pieces; see `exchange`."""


class PostedExchange(Protocol):
    """An exchange that has started, and that work of its sites overlaps."""

    def pieces(self) -> Iterator[tuple[int, Arrays]]:
        """Yields the arriving pieces as `Transport.exchange` does, and completes the exchange."""

    def poll(self) -> None:
        """Lets data move; called between pieces of work."""

    def end(self) -> None:
        """Completes the exchange without its pieces, after a failure."""


class LocalTransport:
    """Virtual sites in one process: no array is copied; the bytes between sites are counted.

    Attributes:
        sent: Bytes that left each site for another one.
        received: Bytes that reached each site from another one.
    """

    def __init__(self, sites: int) -> None:
        self.owned: Sequence[int] = range(sites)
        self.sent = [0] * sites
        self.received = [0] * sites

    def exchange(
        self, routes: Routes, cut: Cut, room: Room | None = None, window: int | None = None
    ) -> Iterator[tuple[int, Arrays]]:
        """Passes the arrays on without a copy."""
        ends = zip(routes.sources.tolist(), routes.targets.tolist(), strict=True)
        for n, (source, target) in enumerate(ends):
            arrays = cut(n)
            if source != target:
                nbytes = sum(a.nbytes for a in arrays.values())
                self.sent[source] += nbytes
                self.received[target] += nbytes
            yield n, arrays

    def post(self, routes: Routes, cut: Cut, room: Room | None = None) -> PostedExchange:
        """Returns an exchange that passes the arrays on when its pieces are taken."""
        return _Passed(self.exchange(routes, cut, room))


@dataclass(frozen=True, slots=True)
class _Passed:
    """A posted exchange of virtual sites, which passes arrays on."""

    arrays: Iterator[tuple[int, Arrays]]

    def pieces(self) -> Iterator[tuple[int, Arrays]]:
        return self.arrays

    def poll(self) -> None:
        """Does nothing: no data moves."""

    def end(self) -> None:
        """Does nothing: no data moves."""
