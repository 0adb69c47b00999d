"""The placement of one operation: the grid order and the completions that move least."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import inf

import numpy as np

from einsql.core.boxes import volumes
from einsql.core.records import dataclass
from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.rings import is_turn
from einsql.ir.layout import Partial, Tiles
from einsql.ir.spmd.program import COPIES, state_bytes, tuple_bytes
from einsql.ir.tile_transfers import here, lacking
from einsql.optimizer.decomposition import Cut
from einsql.optimizer.placement.completion import Completion, PartialResult, completions, merging
from einsql.optimizer.placement.deferred_reduction import completed_cells, partial_cells
from einsql.optimizer.placement.layouts import (
    Cells,
    distinct,
    following,
    gridded,
    grids,
    groups,
    laid,
    made,
    made_layout,
    needed,
    pinned_cells,
)
from einsql.optimizer.placement.traffic import leaving

FOLLOWED = 256
"""The maximum of cells of an operation that may run at the sites with most of its data.

Each cell is compared with each stored tile, so the work is quadratic.
"""

Ways = Mapping[int, Sequence[Completion]]
"""The completions of partial sources, by the sources' identity."""

Intern = Callable[[Tiles], Tiles]
"""Interns tiles: equal tiles become the same object, so they compare by identity."""


@dataclass(frozen=True, slots=True)
class Source:
    """The placement of a relation that an operation reads.

    Attributes:
        versions: Stored tiles, complete ones first; empty while the relation is partial,
            and for a stored tensor without fixed sites.
        partial: The partial result, if it is not completed yet.
        shared: True if there are other readers.
    """

    versions: tuple[Tiles, ...] = ()
    partial: PartialResult | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """The movement of an operand to the cells that read it.

    Attributes:
        need: The tiles that cells read.
        nbytes: Bytes that move, beyond those that sites store.
    """

    need: Tiles
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A placement of one operation.

    Attributes:
        closing: The completion of each source that was partial, by the source's number.
        fetches: The movement of each operand.
        tiles: The tiles of the result.
        partial: The partial result, if tiles must be merged.
    """

    cells: Cells
    closing: dict[int, Completion]
    fetches: tuple[Fetch, ...]
    tiles: Tiles
    partial: PartialResult | None


def choose(
    node: EinSum,
    cut: Cut,
    sites: int,
    sources: Sequence[Source],
    intern: Intern,
    wish: PartialResult | None = None,
    *,
    free: bool = False,
) -> Choice:
    """The placement of an operation that moves least; among equals the most balanced one.

    Args:
        node: The operation.
        cut: The operation's cut.
        sites: The number of sites.
        sources: The source of each operand; operands of the same relation share the object.
        intern: Interns tiles: equal tiles become the same object.
        wish: The partial result to prefer, if a grid of the operation yields it.
        free: True if a map may be cut differently, provided that no cell grows.
    """
    pinned = gridded(node, sites) or pinned_cells(node, cut, sites)
    waiting = [None if s.shared else s.partial for s in sources]
    late = partial_cells(node, waiting, sites) if waiting and pinned is None else None
    if late is not None:
        return _still_partial(node, late, [p for p in waiting if p is not None], intern)
    ways = {id(s): completions(s.partial) for s in sources if s.partial is not None}
    wished = (c for c in grids(node, cut, sites) if wish and _makes(node, c, wish))
    candidates: Iterable[Cells] = [*islice(wished, 1)] if pinned is None else [pinned]
    candidates = candidates or _candidates(node, cut, sites, sources, ways, free)
    cells, closing = _least(node, candidates, sources, ways)
    tiles = intern(laid(made(node, cells), made_layout(node, cells)))
    return Choice(
        cells,
        {n: closing[id(s)] for n, s in enumerate(sources) if id(s) in closing},
        _fetches(node, cells, sources, closing, intern),
        tiles,
        _partial(node, cells, tiles),
    )


def _least(
    node: EinSum, candidates: Iterable[Cells], sources: Sequence[Source], ways: Ways
) -> tuple[Cells, dict[int, Completion]]:
    """The cells whose operands move least, with the completions of these operands.

    Among equals it is the first whose busiest site moves least.
    """
    best: tuple[float, Cells, dict[int, Completion]] | None = None
    peak: float | None = None  # of the best cells, computed on demand
    floor = sum(w[0].nbytes for w in ways.values())  # every completion sends these bytes
    for cells in candidates:
        moved, closing = _cost(node, cells, sources, ways)
        if best is None or moved < best[0]:
            best, peak = (moved, cells, closing), None
        elif moved == best[0]:
            if peak is None:
                peak = _peak(node, best[1], sources, best[2])
            other = _peak(node, cells, sources, closing, peak)
            if other < peak:
                best, peak = (moved, cells, closing), other
        if peak is not None and peak * cells.among <= best[0]:
            peak = 0  # all sites move equally many bytes
        if best[0] == 0 or (best[0] == floor and peak == 0):
            break
    assert best is not None
    return best[1:]


def _peak(
    node: EinSum,
    cells: Cells,
    sources: Sequence[Source],
    closing: Mapping[int, Completion],
    limit: float = inf,
) -> float:
    """Bytes that the busiest site sends or receives when operands move to cells.

    If some site receives as much as the limit, sent bytes are not computed.
    """
    sent, received = np.zeros((2, cells.among))
    exchanges: list[tuple[Tiles, Tiles, float]] = []
    alone = len(np.unique(cells.sites)) == len(cells.sites)
    for n, (o, s) in enumerate(zip(node.operands, sources, strict=True)):
        versions, width = s.versions, tuple_bytes(o.source)
        if s.partial is not None:
            way = closing[id(s)]
            versions = (way.tiles,)
            if not any(s is before for before in sources[:n]):
                out, into = merging(s.partial, way, cells.among) * s.partial.width
                sent, received = sent + out, received + into
        if versions:
            need = needed(node, n, cells) if alone else distinct(needed(node, n, cells))
            present, holder = here(need, versions[0])
            absent = holder < 0
            for more in versions[1:]:
                absent &= here(need, more)[1] < 0
            if absent.any():
                missing = (need.volumes - present)[absent] * width
                received += np.bincount(need.sites[absent], missing, cells.among)
                lacked = Tiles(need.sites[absent], need.boxes[absent])
                exchanges.append((versions[0], lacked, width))
    if received.max() >= limit:
        return float(received.max())
    for have, need, width in exchanges:
        sent += leaving(have, need, cells.among) * width
    return float(max(sent.max(), received.max()))


def _partial(node: EinSum, cells: Cells, tiles: Tiles) -> PartialResult | None:
    """The partial result of cells, if several cells share a tile."""
    members = groups(node, cells)
    if members is None:
        return None
    cut = (x for x, _ in cells.grid if x != COPIES and x not in node.keys)
    return PartialResult(tiles, members, state_bytes(node), tuple(map(cells.labels.index, cut)))


def _makes(node: EinSum, cells: Cells, wish: PartialResult) -> bool:
    """True if cells yield the preferred partial tiles at the preferred sites."""
    tiles, members = made(node, cells), groups(node, cells)
    return members is not None and (
        np.array_equal(tiles.sites, wish.tiles.sites)
        and np.array_equal(tiles.boxes, wish.tiles.boxes)
        and np.array_equal(members, wish.members)
    )


def _still_partial(
    node: EinSum, cells: Cells, waiting: Sequence[PartialResult], intern: Intern
) -> Choice:
    """The placement of a map that runs on partial values and returns partial values."""
    fetches = tuple(Fetch(p.tiles, 0) for p in waiting)
    layout = made_layout(node, cells, copies=Partial())
    tiles = intern(laid(made(node, cells), layout))
    width = tuple_bytes(node)
    return Choice(cells, {}, fetches, tiles, PartialResult(tiles, waiting[0].members, width, (-1,)))


def _candidates(
    node: EinSum, cut: Cut, sites: int, sources: Sequence[Source], ways: Ways, free: bool
) -> Iterator[Cells]:
    """Cells under each order of the grid, and at the sites of data for maps or few cells."""
    first: Cells | None = None
    for cells in grids(node, cut, sites):
        first = first or cells
        yield cells
    if first is None or is_turn(node) or not (node.is_elementwise or len(first.sites) < sites):
        return
    if free and node.is_elementwise:
        largest = volumes(first.boxes).max()
        for n, s in enumerate(sources):
            for way in ways.get(id(s), ()):
                pieces = completed_cells(node, n, way.tiles, sites)
                if pieces is not None and volumes(pieces.boxes).max() <= largest:
                    yield pieces
    if len(first.sites) > FOLLOWED:
        return
    most = -(-len(first.sites) // sites)
    for n, s in enumerate(sources):
        need = needed(node, n, first)
        for have in (*s.versions[:1], *(w.tiles for w in ways.get(id(s), ()))):
            followed = following(need, have, most)
            if followed is not None:
                yield replace(first, sites=followed)


def _cost(
    node: EinSum, cells: Cells, sources: Sequence[Source], ways: Ways
) -> tuple[float, dict[int, Completion]]:
    """Bytes that move when operands are fetched to cells, and the completions used."""
    needs: dict[int, list[Tiles]] = {}
    widths: dict[int, float] = {}
    for n, (o, s) in enumerate(zip(node.operands, sources, strict=True)):
        if s.versions or s.partial:
            needs.setdefault(id(s), []).append(needed(node, n, cells))
            widths[id(s)] = tuple_bytes(o.source)
    total, closing = 0.0, {}
    for s in {id(s): s for s in sources if id(s) in needs}.values():
        if s.partial is None:
            elements = sum(lacking(need, s.versions)[0] for need in needs[id(s)])
            total += elements * widths[id(s)]
            continue
        costs = [
            (way.nbytes + widths[id(s)] * sum(lacking(n, (way.tiles,))[0] for n in needs[id(s)]))
            for way in ways[id(s)]
        ]
        # Among equal costs the first way does least work; if all need the result, all share it.
        chosen = costs.index(min(costs))
        if costs[chosen] > ways[id(s)][chosen].nbytes:
            chosen = len(costs) - 1 - costs[::-1].index(costs[chosen])
        total += costs[chosen]
        closing[id(s)] = ways[id(s)][chosen]
    return total, closing


def _fetches(
    node: EinSum,
    cells: Cells,
    sources: Sequence[Source],
    closing: dict[int, Completion],
    intern: Intern,
) -> tuple[Fetch, ...]:
    """The fetch of each operand; later operands reuse the tiles of earlier operands."""
    versions = {id(s): list(s.versions) for s in sources}
    for read, way in closing.items():
        versions[read] = [intern(way.tiles)]
    fetches = []
    for n, (o, s) in enumerate(zip(node.operands, sources, strict=True)):
        need, known = intern(distinct(needed(node, n, cells))), versions[id(s)]
        elements = lacking(need, known)[0] if known else 0
        fetches.append(Fetch(need, round(elements * tuple_bytes(o.source))))
        if elements:
            known.append(need)
    return tuple(fetches)
