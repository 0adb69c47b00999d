"""The communication of ranks in an exchange: messages between pairs, and faster collectives.

The schedule follows from the routes, so every rank computes the same one without communication. A
piece is sent to a rank once, also for several sites of the rank.

Choice of collectives. Within a node pairs are faster. On two cores, shared with other work, a
broadcast took (MPICH 5, the shortest of up to a hundred, in µs)

    ranks    1 kB: pairs, tree    1 MB: pairs, tree    64 MB: pairs, tree
      2            6,   61            177,  223            4657,  4666
      4            5,  235            426,  594           11474, 11569

and an all-gather or all-to-all was not faster than pairs beyond the noise. No measurement exists
between nodes. There n − 1 messages leave the root over one link, and a tree takes log₂ n rounds.
So a broadcast is used if at least `FAR` members are on other nodes than the root. An all-gather
by pairs already loads every link equally, but takes n − 1 messages instead of log₂ n rounds: the
collective is used for pieces of up to `SMALL` bytes. Scatter, gather and all-to-all of unequal
pieces send as many bytes over the same links in both cases, and would need packing.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from einsql.core.records import dataclass
from einsql.engine.transport import Routes

FAR = 3
"""Least number of members on other nodes for a collective: three sends against two rounds."""

SMALL = 2**16
"""Greatest size in bytes of a piece in an all-gather."""


@dataclass(frozen=True, slots=True)
class Broadcast:
    """One piece goes from a rank to all others of a group.

    Attributes:
        members: The ranks, in order.
        root: The rank that has the piece.
        route: A route that carries the piece.
    """

    members: tuple[int, ...]
    root: int
    route: int

    @property
    def routes(self) -> tuple[int, ...]:
        """The route of the piece."""
        return (self.route,)


@dataclass(frozen=True, slots=True)
class AllGather:
    """Every rank of a group has a piece for all others.

    Attributes:
        members: The ranks, in order.
        routes: For each member a route that carries its piece.
    """

    members: tuple[int, ...]
    routes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The communication of one rank in an exchange.

    Attributes:
        crosses: Whether any piece moves between ranks, here or elsewhere.
        stays: Routes that end here and come from here, or carry no bytes.
        sends: Each route that leaves this rank, and the rank of its target.
        receives: Each route that arrives at this rank, and the rank of its source.
        collectives: The collectives of all ranks, in the order in which their members call them.
        serves: For each of these routes that arrives here, all routes with the same piece.
        feeds: For each route that leaves this rank, alone or in a collective, the number of sites
            of other ranks that receive it.
    """

    crosses: bool
    stays: tuple[int, ...]
    sends: tuple[tuple[int, int], ...]
    receives: tuple[tuple[int, int], ...]
    collectives: tuple[Broadcast | AllGather, ...]
    serves: dict[int, tuple[int, ...]]
    feeds: dict[int, int]


def scheduled(routes: Routes, ranks: np.ndarray, nodes: np.ndarray, here: int) -> Schedule:
    """Computes the schedule of one rank.

    Args:
        routes: The transfers between sites.
        ranks: int64 (sites,), the rank of each site.
        nodes: int64 (ranks,), equal where ranks share their memory.
        here: The number of the rank.
    """
    out, into = ranks[routes.sources], ranks[routes.targets]
    crosses = (out != into) & (routes.nbytes > 0)
    ends = into == here
    crossing = np.flatnonzero(crosses)
    # A piece takes the position of its first route to a rank, so all ranks use one order.
    pairs = routes.pieces[crossing] * len(nodes) + into[crossing]
    _, first, which = np.unique(pairs, return_index=True, return_inverse=True)
    once = np.sort(first)
    carried = crossing[once]
    stands = crossing[first[which]]
    serves: defaultdict[int, list[int]] = defaultdict(list)
    for n, by in zip(
        crossing[ends[crossing]].tolist(), stands[ends[crossing]].tolist(), strict=True
    ):
        serves[by].append(n)
    collectives, taken = _collectives(routes, carried, out, into, nodes)
    mine = carried[ends[carried]]
    stood = dict(zip(routes.pieces[mine].tolist(), mine.tolist(), strict=True))
    for c in collectives:
        for n in c.routes:
            own = stood.get(int(routes.pieces[n]), n)
            if own != n:
                serves[n] = serves.pop(own)
    left = carried[~np.isin(routes.pieces[carried], taken)]
    reached = dict(zip(*np.unique(stands, return_counts=True), strict=True))
    feeds = {n: int(reached[n]) for n in left[out[left] == here].tolist()}
    for c in collectives:
        for n in (m for m in c.routes if out[m] == here):
            feeds[n] = int((routes.pieces[crossing] == routes.pieces[n]).sum())
    return Schedule(
        crosses=len(crossing) > 0,
        stays=tuple(np.flatnonzero(~crosses & ends).tolist()),
        sends=tuple((n, int(into[n])) for n in left[out[left] == here].tolist()),
        receives=tuple((n, int(out[n])) for n in left[into[left] == here].tolist()),
        collectives=tuple(collectives),
        serves={n: tuple(served) for n, served in serves.items()},
        feeds=feeds,
    )


def _collectives(
    routes: Routes, carried: np.ndarray, out: np.ndarray, into: np.ndarray, nodes: np.ndarray
) -> tuple[list[Broadcast | AllGather], list[int]]:
    """Returns the collectives that are faster than pairs, and the pieces they carry."""
    far = carried[nodes[out[carried]] != nodes[into[carried]]]
    pieces, counts = np.unique(routes.pieces[far], return_counts=True)
    shared = pieces[counts >= FAR]
    sizes = routes.nbytes
    groups: defaultdict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)
    meant = carried[np.isin(routes.pieces[carried], shared)]
    by_piece: defaultdict[int, list[int]] = defaultdict(list)
    for n, piece in zip(meant.tolist(), routes.pieces[meant].tolist(), strict=True):
        by_piece[piece].append(n)
    for numbers in by_piece.values():
        root = int(out[numbers[0]])
        members = tuple(sorted({root, *into[numbers].tolist()}))
        groups[members].append((root, numbers[0]))
    collectives: list[Broadcast | AllGather] = []
    for members, roots in groups.items():
        small = all(sizes[n] <= SMALL for _, n in roots)
        if small and sorted(r for r, _ in roots) == list(members):
            collectives.append(AllGather(members, tuple(n for _, n in sorted(roots))))
        else:
            collectives += [Broadcast(members, root, n) for root, n in roots]
    return collectives, list(by_piece)
