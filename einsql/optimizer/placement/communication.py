"""The cheapest collectives along mesh axes from one placement to another.

Every count of bytes is exact, also for uneven pieces.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import prod

from einsql.core.boxes import common_volumes
from einsql.core.mappings import memoized
from einsql.core.records import dataclass
from einsql.errors import InterfaceError, InternalError
from einsql.ir.layout import (
    Entry,
    Mesh,
    Partial,
    Placement,
    Region,
    Replicate,
    Shard,
    Single,
    region,
)
from einsql.ir.spmd.program import CollectiveName

COLLECTIVES: Mapping[tuple[type[Entry], type[Entry]], CollectiveName] = {
    (Shard, Replicate): "all-gather",
    (Shard, Shard): "all-to-all",
    (Shard, Single): "gather",
    (Replicate, Shard): "slice",
    (Replicate, Single): "slice",
    (Partial, Replicate): "all-reduce",
    (Partial, Shard): "reduce-scatter",
    (Partial, Single): "reduce",
    (Single, Replicate): "broadcast",
    (Single, Shard): "scatter",
}
"""The collectives that change one entry of a mesh axis into another."""

GENERAL: CollectiveName = "all-to-all"
"""A collective along several mesh axes: sites receive their missing elements (Alltoallv)."""


@dataclass(frozen=True, slots=True)
class Move:
    """One collective.

    Attributes:
        collective: The collective's name.
        along: The mesh axes along which sites communicate.
        before: The placement before it.
        after: The placement after it.
        nbytes: Bytes that cross sites.
    """

    collective: CollectiveName
    along: tuple[str, ...]
    before: Placement
    after: Placement
    nbytes: int


def lacking(before: Region, after: Region) -> int:
    """The number of elements that sites need and do not store."""
    kept = common_volumes(before.boxes, after.boxes) * before.there * after.there
    return int(after.volumes.sum() - kept.sum())


def solve(
    mesh: Mesh, source: Placement, target: Placement, shape: Sequence[int], width: int
) -> tuple[Move, ...]:
    """The cheapest sequence of collectives that turns one placement into another.

    Among sequences that send the same bytes, those without the general exchange have
    priority, then the shorter ones.

    Args:
        mesh: The mesh.
        source: The tensor's current placement.
        target: The required placement.
        shape: The tensor's extents.
        width: Bytes of an element.

    Returns:
        The collectives in order; empty if the placements are equal.

    Raises:
        InterfaceError: The target is partial along a mesh axis along which the source is not.
    """
    for current, wanted, (axis, _) in zip(source, target, mesh.axes, strict=True):
        if isinstance(wanted, Partial) and current != wanted:
            raise InterfaceError(
                f'The tensor is not partial along "{axis}", so no collective makes it partial',
                hint="Only a sum over a cut index leaves partial values.",
            )
    regions: dict[Placement, Region] = {}

    def region_of(placed: Placement) -> Region:
        return memoized(regions, placed, lambda: region(mesh, placed, shape))

    order = count()  # placements do not compare
    queue: list[tuple[int, int, int, int, Placement, tuple[Move, ...]]]
    queue = [(0, 0, 0, next(order), source, ())]
    done: set[Placement] = set()
    while queue:
        nbytes, general, length, _, placed, moves = heapq.heappop(queue)
        if placed == target:
            return moves
        if placed in done:
            continue
        done.add(placed)
        for along, after, name in _moves(placed, source, target, len(shape)):
            if after in done:
                continue
            sent = _sent(mesh, along, region_of(placed), region_of(after), placed, after) * width
            move = Move(name, tuple(mesh.axes[n][0] for n in along), placed, after, sent)
            more = general + (name == GENERAL and len(along) > 1)
            path = (*moves, move)
            heapq.heappush(queue, (nbytes + sent, more, length + 1, next(order), after, path))
    raise InternalError("No collective leads from one placement to the other")


def fused(moves: Sequence[Move], mesh: Mesh, shape: Sequence[int], width: int) -> tuple[Move, ...]:
    """Fuses consecutive redistributions along the same mesh axis in pairs.

    A reduce-scatter and an all-gather become an all-reduce, two all-to-alls become one, a
    gather and a scatter become an all-to-all. A pair that restores the placement is dropped.

    Args:
        moves: Collectives; each one starts from the placement after the one before it.
        mesh: The mesh.
        shape: The tensor's extents.
        width: Bytes of an element.
    """
    kept: list[Move] = []
    for move in moves:
        last = kept.pop() if kept and kept[-1].along == move.along else None
        if last is None:
            kept.append(move)
        elif last.before != move.after:
            one = solve(mesh, last.before, move.after, shape, width)
            kept += one if len(one) == 1 else (last, move)
    return tuple(kept)


def _moves(
    placed: Placement, source: Placement, target: Placement, rank: int
) -> Iterator[tuple[tuple[int, ...], Placement, CollectiveName]]:
    """Possible next collectives: their mesh axes, the placement after them and their name."""
    for n, entry in enumerate(placed):
        if entry == target[n]:  # the entry is final
            continue
        options: list[Entry] = [target[n], Replicate()]
        # The value may be merged by pieces, moved along other axes and gathered last.
        if isinstance(source[n], Partial) and not isinstance(target[n], Shard):
            options += map(Shard, range(rank))
        for option in dict.fromkeys(options):
            name = COLLECTIVES.get((type(entry), type(option)))
            if name is not None and option != entry and _innermost(placed, n, entry, option):
                yield (n,), (*placed[:n], option, *placed[n + 1 :]), name
    changed = [n for n, (a, b) in enumerate(zip(placed, target, strict=True)) if a != b]
    merged = [n for n in changed if (placed[n], target[n]) == (placed[changed[0]], Replicate())]
    if len(merged) > 1 and isinstance(placed[merged[0]], Partial):
        after = tuple(target[n] if n in merged else e for n, e in enumerate(placed))
        yield tuple(merged), after, "all-reduce"
    if not any(isinstance(placed[n], Partial) for n in changed):
        cut = {e.axis for n in changed for e in (placed[n], target[n]) if isinstance(e, Shard)}
        along = tuple(
            n
            for n, e in enumerate(placed)
            if n in changed or (isinstance(e, Shard) and e.axis in cut)
        )
        if len(along) > 1:
            yield along, target, GENERAL


def _innermost(placed: Placement, at: int, *entries: Entry) -> bool:
    """True if no other mesh axis cuts the pieces of these entries further."""
    return not any(
        isinstance(inner, Shard) and inner.axis == e.axis and (inner.depth, n) > (e.depth, at)
        for e in entries
        if isinstance(e, Shard)
        for n, inner in enumerate(placed)
        if n != at
    )


def _sent(
    mesh: Mesh,
    along: Sequence[int],
    held: Region,
    wanted: Region,
    placed: Placement,
    after: Placement,
) -> int:
    if not isinstance(placed[along[0]], Partial):
        return lacking(held, wanted)
    parts = prod(mesh.shape[n] for n in along)
    merged = int(held.volumes.sum()) // parts * (parts - 1)
    return merged * 2 if isinstance(after[along[0]], Replicate) else merged
