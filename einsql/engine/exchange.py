"""Exchanges and completions of a placed program, at the sites that a transport owns.

The transfers of a step follow from the program alone. They are computed when the step first
runs and cached, because for small tensors computing them takes as long as the statement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import EllipsisType

import numpy as np

from einsql.core.boxes import extents
from einsql.core.buffer_pool import empty
from einsql.engine.partial_merge import merged
from einsql.engine.routes import Moves, completing, gathering
from einsql.engine.transport import Arrays, Cut, Transport
from einsql.ir.einsum.graph import EinSum
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Complete, Exchange, Program

Held = dict[int, dict[str, np.ndarray]]
"""Fields of the tiles at owned sites, by the tile's number."""
Index = tuple[slice | EllipsisType, ...]


@dataclass(frozen=True, slots=True)
class _LocalCut:
    """A tile that is cut from another tile at its site.

    Attributes:
        tile: The tile that is wanted.
        step: The step that holds the other one.
        number: The number of that.
        at: The part of it; None for all of it.
    """

    tile: int
    step: int
    number: int
    at: Index | None

    def fields(self, tiles_of: Mapping[int, Held]) -> dict[str, np.ndarray]:
        """The wanted tile."""
        fields = tiles_of[self.step][self.number]
        return fields if self.at is None else {k: a[self.at] for k, a in fields.items()}


@dataclass(frozen=True, slots=True)
class _Exchanging:
    """The work of an exchange at owned sites: tiles cut from others, and tiles put together."""

    taken: tuple[_LocalCut, ...]
    gathered: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Where a piece that moves belongs.

    Attributes:
        tile: The tile it becomes part of.
        at: Where in it; None if it is the whole tile.
        is_empty: Whether it has no elements.
    """

    tile: int
    at: Index | None
    is_empty: bool


class Moving:
    """The steps of a program in which arrays get from site to site.

    Attributes:
        stated: The nodes of partial steps by number, with the state that merging needs.
    """

    def __init__(self, program: Program, stated: Mapping[int, EinSum]) -> None:
        self.stated = stated
        self._program = program
        self._sites: Sequence[int] = ()
        self._owned: dict[int, list[int]] = {}
        self._exchanging: dict[int, _Exchanging] = {}
        self._moves: dict[int, Moves] = {}
        self._rounds: dict[int, list[Moves]] = {}
        self._shares: dict[tuple[int, int], tuple[int, Index | None]] = {}
        self._pieces: dict[tuple[int, int], _Piece] = {}
        self._members: dict[tuple[int, int, int], list[tuple[int, Index | None]]] = {}

    def begin(self, transport: Transport) -> None:
        """Makes ready for a run at a transport's own sites."""
        if transport.owned != self._sites:
            self._sites = transport.owned
            self._owned.clear()
            self._exchanging.clear()

    def owned(self, number: int, tiles: Tiles, transport: Transport) -> list[int]:
        """The numbers of a step's tiles at owned sites."""
        numbers = self._owned.get(number)
        if numbers is None:
            here = np.zeros(len(transport.sent), bool)
            here[transport.owned] = True
            numbers = self._owned[number] = np.flatnonzero(here[tiles.sites]).tolist()
        return numbers

    # ---- exchanges

    def exchange(
        self, number: int, step: Exchange, tiles_of: Mapping[int, Held], transport: Transport
    ) -> Held:
        """Cuts tiles from tiles at the same site, and sends pieces of tiles to the other sites."""
        need, base = step.tiles, step.sources[0]
        does = self._exchanging.get(number)
        if does is None:
            does = self._exchanging[number] = self._does(number, step, transport)
        wanted: Held = {t.tile: t.fields(tiles_of) for t in does.taken}
        wanted.update((n, {}) for n in does.gathered)
        moves = self.gathering(number, step)
        if len(moves.routes):
            self._gather(number, step, moves, wanted, tiles_of, transport)
        for n in does.gathered:
            if not wanted[n]:  # a tile without elements meets no other
                wanted[n].update(self.nothing(base, need.boxes[n]))
        return wanted

    def _gather(
        self,
        number: int,
        step: Exchange,
        moves: Moves,
        wanted: Held,
        tiles_of: Mapping[int, Held],
        transport: Transport,
    ) -> None:
        """Puts tiles together of their shares of others."""
        places: dict[int, Arrays] = {}
        need, base = step.tiles, step.sources[0]

        def room(n: int) -> Arrays | None:
            piece = self._piece(number, need, moves, n)
            if piece.at is None:
                return None  # it is taken as it is
            if not wanted[piece.tile]:
                wanted[piece.tile].update(self.nothing(base, need.boxes[piece.tile]))
            places[n] = {k: a[piece.at] for k, a in wanted[piece.tile].items()}
            return places[n]

        share = self.share(number, moves, step, tiles_of)
        for n, arrays in transport.exchange(moves.routes, share, room):
            if arrays is places.get(n):
                continue
            piece = self._piece(number, need, moves, n)
            fields = wanted[piece.tile]
            if not fields and piece.at is None:
                fields.update(arrays)
            elif not (fields and piece.is_empty):  # a tile taken as it is may be read-only
                for name, part in arrays.items():
                    if name not in fields:
                        shape = tuple(extents(need.boxes[piece.tile]).tolist())
                        fields[name] = empty(shape, part.dtype)
                    fields[name][... if piece.at is None else piece.at] = part

    def _does(self, number: int, step: Exchange, transport: Transport) -> _Exchanging:
        own = self.owned(number, step.tiles, transport)
        taken = [t for n in own if (t := self._local_cut(step, n)) is not None]
        gathered = tuple(n for n in own if step.at_hand[n, 0] < 0)
        return _Exchanging(tuple(taken), gathered)

    def _local_cut(self, step: Exchange, tile: int) -> _LocalCut | None:
        """How a tile is cut from one at its site; None if it is put together."""
        source, number = (int(k) for k in step.at_hand[tile])
        if source < 0:
            return None
        at = step.sources[source]
        box, other = step.tiles.boxes[tile], self._program.steps[at].tiles.boxes[number]
        return _LocalCut(tile, at, number, cut_of(box, other))

    def at_hand(
        self, step: Exchange, tile: int, tiles_of: Mapping[int, Held]
    ) -> dict[str, np.ndarray]:
        """A tile that is cut from one at its site; nothing if it is put together."""
        taken = self._local_cut(step, tile)
        return {} if taken is None else taken.fields(tiles_of)

    def gathering(self, number: int, step: Exchange) -> Moves:
        """The pieces of the tiles that are put together."""
        if number not in self._moves:
            base = step.sources[0]
            gathered = np.flatnonzero(step.at_hand[:, 0] < 0)
            have, schema = self._program.steps[base].tiles, self._program.relation(base).schema
            sites = self._program.sites
            self._moves[number] = gathering(have, step.tiles, gathered, sites, schema)
        return self._moves[number]

    def share(self, number: int, moves: Moves, step: Exchange, tiles_of: Mapping[int, Held]) -> Cut:
        """The function that cuts the piece of a route."""
        base = step.sources[0]
        have = self._program.steps[base].tiles

        def share(n: int) -> Arrays:
            known = self._shares.get((number, n))
            if known is None:
                tile = int(moves.have[n])
                known = tile, cut_of(moves.boxes[n], have.boxes[tile])
                self._shares[number, n] = known
            tile, at = known
            fields = tiles_of[base][tile]
            return fields if at is None else {k: a[at] for k, a in fields.items()}

        return share

    def _piece(self, number: int, need: Tiles, moves: Moves, n: int) -> _Piece:
        piece = self._pieces.get((number, n))
        if piece is None:
            tile, box = int(moves.need[n]), moves.boxes[n]
            empty_ = bool((box[:, 0] >= box[:, 1]).any())
            piece = _Piece(tile, cut_of(box, need.boxes[tile]), empty_)
            self._pieces[number, n] = piece
        return piece

    def nothing(self, step: int, box: np.ndarray) -> dict[str, np.ndarray]:
        """Room for a tile of the relation that a step holds."""
        fields = self._program.relation(step).schema.fields
        shape = tuple(extents(box).tolist())
        return {f.name: empty(shape, f.dtype.numpy) for f in fields}

    # ---- completions

    def complete(self, number: int, step: Complete, own: Held, transport: Transport) -> Held:
        """Forwards a site's parts of a tile until all are merged at the site of the tile."""
        local = self._program.maker(step)
        node = self.stated[step.source]
        if number not in self._rounds:
            self._rounds[number] = completing(local, step, node.schema)
        # Parts are merged when they leave a site, or at the end: sums are rounded once.
        parts: dict[tuple[int, int], list[Arrays]] = {}

        def at_site(tile: int, site: int) -> list[Arrays]:
            partials = parts.get((tile, site))
            if partials is None:
                members = self._members.get((number, tile, site))
                if members is None:
                    members = self._members[number, tile, site] = _members(
                        step, local.tiles, tile, site
                    )
                partials = parts[tile, site] = [
                    own[m] if at is None else {k: a[at] for k, a in own[m].items()}
                    for m, at in members
                ]
            return partials

        for moves in self._rounds[number]:
            sources, targets = moves.routes.sources.tolist(), moves.routes.targets.tolist()
            tiles = moves.have.tolist()

            def contribution(
                n: int, tiles: list[int] = tiles, sources: list[int] = sources
            ) -> Arrays:
                total = merged(node, at_site(tiles[n], sources[n]))
                del parts[tiles[n], sources[n]]
                return total

            arrived = sorted(transport.exchange(moves.routes, contribution), key=itemgetter(0))
            for n, arrays in arrived:  # in this order, whichever came first
                at_site(tiles[n], targets[n]).append(arrays)
        names = [o.name for o in local.node.outputs]
        totals = {
            n: merged(node, at_site(n, int(step.tiles.sites[n])))
            for n in self.owned(number, step.tiles, transport)
        }
        return {n: {k: fields[k] for k in names} for n, fields in totals.items()}


def _members(
    step: Complete, partial: Tiles, tile: int, site: int
) -> list[tuple[int, Index | None]]:
    """The partial tiles at a site that are merged into a tile, with the part of each to use."""
    members, box = step.parts[tile], step.tiles.boxes[tile]
    there = members[partial.sites[members] == site].tolist()
    return [(m, cut_of(box, partial.boxes[m])) for m in there]


def cut_of(box: np.ndarray, of: np.ndarray) -> Index | None:
    """The part of a tile within a box; None for all of it.

    Args:
        box: int64 (keys, 2).
        of: int64 (keys, 2), the keys of the tile.
    """
    return None if (box == of).all() else slices(box, of[:, 0])


def slices(box: np.ndarray | Sequence[Sequence[int]], origin: np.ndarray | Sequence[int]) -> Index:
    """Slices of a box; with the ellipsis, a single value stays an array."""
    along = (slice(int(lo - at), int(hi - at)) for (lo, hi), at in zip(box, origin, strict=True))
    return (*along, ...)


def paste(fields: dict[str, np.ndarray], at: np.ndarray, arrays: Arrays, box: np.ndarray) -> None:
    """Puts a piece into its tile; a piece that is the whole tile is taken as it is.

    Args:
        fields: The tile so far.
        at: int64 (keys, 2), the keys of the piece.
        arrays: The piece.
        box: int64 (keys, 2), the keys of the tile.
    """
    if not fields and (at == box).all():
        fields.update(arrays)
        return
    if fields and (at[:, 0] >= at[:, 1]).any():
        return  # beside a tile that was taken as it is and may be read-only
    for name, part in arrays.items():
        if name not in fields:
            fields[name] = empty(tuple(extents(box).tolist()), part.dtype)
        fields[name][slices(at, box[:, 0])] = part
