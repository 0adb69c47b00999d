"""Exchanges and completions of a placed program at the owned sites of a transport.

The transfers of a step follow from the program alone. They are computed at the first run of the
step and cached, because for small tensors computing them takes as long as the statement.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from types import EllipsisType

import numpy as np

from einsql.core.boxes import extents
from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.core.sparse.arrays import Elements, arrays_in
from einsql.core.sparse.pattern import mark
from einsql.core.sparse.tiles import (
    Origin,
    as_elements,
    assembled,
    dtypes_of,
    empty_tile,
    part_of,
    renamed_tile,
)
from einsql.engine.routes import Moves, completing, gathering
from einsql.engine.sparse.selected_exchange import SelectedExchange
from einsql.engine.sparse.stored_elements import SizedExchange, StoredTotal
from einsql.engine.step import Measure
from einsql.engine.transport import Arrays, Cut, PostedExchange, Transport
from einsql.ir.einsum.partial_merge import Total
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Complete, Exchange, Program, View

Held = dict[int, Arrays]
"""Fields of the tiles at owned sites, by the tile's number; a sparse tile is an `Elements`."""
Index = tuple[slice | EllipsisType, ...]


@dataclass(frozen=True, slots=True)
class LocalCut:
    """A tile that is cut from another tile at its site.

    Attributes:
        tile: The new tile.
        step: The step that has the source tile.
        number: The number of the source tile.
        at: The part of the source tile, or None for all of it.
    """

    tile: int
    step: int
    number: int
    at: Index | None

    def fields(self, tiles_of: Mapping[int, Held]) -> Arrays:
        """Returns the fields of the new tile."""
        fields = tiles_of[self.step][self.number]
        return fields if self.at is None else part_of(fields, self.at)


@dataclass(frozen=True, slots=True)
class _Exchanging:
    """The work of an exchange at owned sites: tiles from one tile, and from several pieces."""

    taken: tuple[LocalCut, ...]
    gathered: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """The target of a piece that moves.

    Attributes:
        tile: The target tile.
        at: The position in it; None if the piece is the complete tile.
        is_empty: Whether the piece has no elements.
    """

    tile: int
    at: Index | None
    is_empty: bool


@dataclass(frozen=True, slots=True)
class Exchanged:
    """An exchange that has started.

    Attributes:
        tiles: Waits for the needed tiles at owned sites, and returns them.
        flight: The transfer; None if nothing moves.
    """

    tiles: Callable[[], Held]
    flight: PostedExchange | None


class Moving:
    """The steps of a program in which arrays move between sites."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._sites: Sequence[int] = ()
        self._owned: dict[int, list[int]] = {}
        self._exchanging: dict[int, _Exchanging] = {}
        self._moves: dict[int, Moves] = {}
        self._rounds: dict[int, list[Moves]] = {}
        self._shares: dict[tuple[int, int], tuple[int, Index | None]] = {}
        self._pieces: dict[tuple[int, int], _Piece] = {}
        self._targets: dict[int, dict[int, list[tuple[int, Index | None]]]] = {}

    def begin(self, transport: Transport) -> None:
        """Prepares a run at the owned sites of a transport."""
        if transport.owned != self._sites:
            self._sites = transport.owned
            self._owned.clear()
            self._exchanging.clear()

    def owned(self, number: int, tiles: Tiles, transport: Transport) -> list[int]:
        """Returns the numbers of a step's tiles at owned sites."""
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
        return self.post(number, step, tiles_of, transport).tiles()

    def post(
        self, number: int, step: Exchange, tiles_of: Mapping[int, Held], transport: Transport
    ) -> Exchanged:
        """Starts an exchange, whose tiles are taken later."""
        need, base = step.tiles, step.sources[0]
        does = self._exchanging.get(number)
        if does is None:
            does = self._exchanging[number] = self._does(number, step, transport)
        if self._program.relation(base).sparse:
            return self._post_sparse(number, step, tiles_of, transport)
        if step.selection is not None:
            return self._post_selected(number, step, tiles_of, transport)
        taken: Held = {t.tile: t.fields(tiles_of) for t in does.taken}
        wanted: dict[int, dict[str, np.ndarray]] = {n: {} for n in does.gathered}
        moves = self.gathering(number, step)
        places: dict[int, Arrays] = {}

        def room(n: int) -> Arrays | None:
            piece = self._piece(number, need, moves, n)
            if piece.at is None:
                return None  # the piece is the complete tile
            if not wanted[piece.tile]:
                wanted[piece.tile].update(self.nothing(base, need.areas[piece.tile]))
            places[n] = {k: a[piece.at] for k, a in wanted[piece.tile].items()}
            return places[n]

        flight: PostedExchange | None = None
        if len(moves.routes):
            flight = transport.post(moves.routes, self.share(number, moves, step, tiles_of), room)

        def tiles() -> Held:
            pieces = () if flight is None else flight.pieces()
            for n, arrays in pieces:
                if arrays is not places.get(n):
                    piece = self._piece(number, need, moves, n)
                    _put(wanted[piece.tile], piece, arrays, need)
            for n in does.gathered:
                if not wanted[n]:  # an empty tile intersects no other
                    wanted[n].update(self.nothing(base, need.areas[n]))
            return taken | wanted

        return Exchanged(tiles, flight)

    def _post_sparse(
        self, number: int, step: Exchange, tiles_of: Mapping[int, Held], transport: Transport
    ) -> Exchanged:
        """Starts an exchange of sparse tiles."""
        need, base, does = step.tiles, step.sources[0], self._exchanging[number]
        schema, moves = self._program.relation(base).schema, self.gathering(number, step)
        share = self.share(number, moves, step, tiles_of)
        sized: SizedExchange | None = None
        if len(moves.routes):
            sized = SizedExchange(moves.routes, _stored(share), schema, transport)

        def tiles() -> Held:
            pieces: dict[int, list[tuple[Origin, Elements]]] = {n: [] for n in does.gathered}
            for n, piece in () if sized is None else sorted(sized.pieces(), key=itemgetter(0)):
                tile = int(moves.need[n])
                origin = (moves.boxes[n][:, 0] - need.areas[tile][:, 0]).tolist()
                pieces[tile].append((tuple(origin), piece))
            done: Held = {t.tile: t.fields(tiles_of) for t in does.taken}
            for n, parts in pieces.items():
                shape = tuple(extents(need.areas[n]).tolist())
                none = (0,) * len(shape), empty_tile(shape, dtypes_of(schema))
                done[n] = assembled(parts or [none], shape)
            return done

        return Exchanged(tiles, None if sized is None else sized.flight)

    def _post_selected(
        self, number: int, step: Exchange, tiles_of: Mapping[int, Held], transport: Transport
    ) -> Exchanged:
        """Starts an exchange of the elements that sparse tiles join."""
        assert step.selection is not None
        base, moves, does = step.sources[0], self.gathering(number, step), self._exchanging[number]
        selecting = SelectedExchange(
            moves,
            step.selection.axis,
            {n: self._needed(step, n, tiles_of) for n in does.gathered},
            step.tiles,
            self.share(number, moves, step, tiles_of),
            transport,
        )

        def tiles() -> Held:
            wanted: dict[int, dict[str, np.ndarray]] = {n: {} for n in does.gathered}
            for n in does.gathered:
                for name, array in self.nothing(base, step.tiles.areas[n]).items():
                    array[...] = 0
                    wanted[n][name] = array
            for n, index, arrays in selecting.pieces():
                for name, a in arrays.items():
                    wanted[int(moves.need[n])][name][index] = a
            return {t.tile: t.fields(tiles_of) for t in does.taken} | wanted

        return Exchanged(tiles, selecting.flight)

    def _needed(self, step: Exchange, tile: int, tiles_of: Mapping[int, Held]) -> np.ndarray:
        """Returns flags of the needed elements of a tile along the axis of its selection."""
        assert step.selection is not None
        lo, hi = step.tiles.areas[tile, step.selection.axis].tolist()
        flags = np.zeros(hi - lo, np.bool_)
        for source, number, key in step.selection.by[tile]:
            first = int(self._program.steps[source].tiles.areas[number, key, 0])
            structure = as_elements(tiles_of[source][number]).structure
            mark(flags, lo, structure.occupied(key), first)
        return flags

    def _does(self, number: int, step: Exchange, transport: Transport) -> _Exchanging:
        own = self.owned(number, step.tiles, transport)
        taken = [t for n in own if (t := self.local_cut(step, n)) is not None]
        gathered = tuple(n for n in own if step.at_hand[n, 0] < 0)
        return _Exchanging(tuple(taken), gathered)

    def local_cut(self, step: Exchange, tile: int) -> LocalCut | None:
        """Returns the cut of a tile from one at its site, or None if it has several pieces."""
        source, number = (int(k) for k in step.at_hand[tile])
        if source < 0:
            return None
        at = step.sources[source]
        area, other = step.tiles.areas[tile], self._program.steps[at].tiles.areas[number]
        return LocalCut(tile, at, number, cut_of(area, other))

    def at_hand(self, step: Exchange, tile: int, tiles_of: Mapping[int, Held]) -> Arrays:
        """Returns a tile that is cut from one at its site; empty if it has several pieces."""
        taken = self.local_cut(step, tile)
        return {} if taken is None else taken.fields(tiles_of)

    def gathering(self, number: int, step: Exchange) -> Moves:
        """Returns the pieces of the tiles that are assembled."""
        if number not in self._moves:
            base = step.sources[0]
            gathered = np.flatnonzero(step.at_hand[:, 0] < 0)
            have, schema = self._program.steps[base].tiles, self._program.relation(base).schema
            sites = self._program.sites
            self._moves[number] = gathering(have, step.tiles, gathered, sites, schema)
        return self._moves[number]

    def share(self, number: int, moves: Moves, step: Exchange, tiles_of: Mapping[int, Held]) -> Cut:
        """Returns the function that cuts the piece of a route."""
        base = step.sources[0]
        have = self._program.steps[base].tiles

        def share(n: int) -> Arrays:
            known = self._shares.get((number, n))
            if known is None:
                tile = int(moves.have[n])
                known = tile, cut_of(moves.boxes[n], have.areas[tile])
                self._shares[number, n] = known
            tile, at = known
            fields = tiles_of[base][tile]
            return fields if at is None else part_of(fields, at)

        return share

    def _piece(self, number: int, need: Tiles, moves: Moves, n: int) -> _Piece:
        piece = self._pieces.get((number, n))
        if piece is None:
            tile, box = int(moves.need[n]), moves.boxes[n]
            empty_ = bool((box[:, 0] >= box[:, 1]).any())
            piece = _Piece(tile, cut_of(box, need.areas[tile]), empty_)
            self._pieces[number, n] = piece
        return piece

    def nothing(self, step: int, box: np.ndarray) -> dict[str, np.ndarray]:
        """Allocates a tile of the relation of a step, given the box of its arrays."""
        fields = self._program.relation(step).schema.fields
        shape = tuple(extents(box).tolist())
        return {f.name: empty(shape, f.dtype.numpy) for f in fields}

    # ---- views and completions

    def view(self, number: int, step: View, source: Held, transport: Transport) -> Held:
        """Returns tiles under their new numbers and names."""
        tiles = {n: source[int(step.picks[n])] for n in self.owned(number, step.tiles, transport)}
        if step.relation is None:
            return tiles
        old = (f.name for f in self._program.relation(step.source).schema.fields)
        new = (f.name for f in step.relation.schema.fields)
        names = dict(zip(new, old, strict=True))
        return {n: renamed_tile(fields, names) for n, fields in tiles.items()}

    def merge(self, number: int, step: Complete, measure: Measure) -> Merging:
        """Returns a merge without parts, to which a site adds its partial tiles."""
        targets = self._targets.get(number)
        partial = self._program.steps[step.source].tiles
        if targets is None:
            targets = self._targets[number] = {}
            for tile, part in np.argwhere(step.parts >= 0).tolist():
                member = int(step.parts[tile, part])
                at = cut_of(step.tiles.areas[tile], partial.areas[member])
                targets.setdefault(member, []).append((tile, at))
        return Merging(step, partial.sites, targets, measure)

    def complete(self, number: int, step: Complete, merging: Merging, transport: Transport) -> Held:
        """Forwards the partial tiles of each site until all are merged at the site of the tile."""
        if number not in self._rounds:
            partial, schema = self._program.steps[step.source].tiles, merging.node.schema
            self._rounds[number] = completing(partial, step, schema)
        # Parts are merged before they leave a site, or at the end: sums are rounded once.
        for moves in self._rounds[number]:
            sources, targets = moves.routes.sources.tolist(), moves.routes.targets.tolist()
            tiles = moves.have.tolist()

            def contribution(
                n: int, tiles: list[int] = tiles, sources: list[int] = sources
            ) -> Arrays:
                return merging.totals.pop((tiles[n], sources[n])).result()

            arriving: Iterable[tuple[int, Arrays]]
            if merging.node.sparse:
                pieces = _stored(contribution)
                sized = SizedExchange(moves.routes, pieces, merging.node.schema, transport)
                arriving = sized.pieces()
            else:
                arriving = transport.exchange(moves.routes, contribution)
            for n, arrays in sorted(arriving, key=itemgetter(0)):  # independent of arrival
                merging.add_to(tiles[n], targets[n], arrays)
        names = [o.name for o in (merging.node if step.partial else step.node).outputs]
        totals = {
            n: merging.totals[n, int(step.tiles.sites[n])].result()
            for n in self.owned(number, step.tiles, transport)
        }
        kept = {name: name for name in names}
        return {n: renamed_tile(fields, kept) for n, fields in totals.items()}


class Merging:
    """The running merge of a completion at the owned sites.

    Attributes:
        node: The operation, with the state that merging needs.
        totals: The merged parts of each tile at each site.
    """

    def __init__(
        self,
        step: Complete,
        sites: np.ndarray,
        targets: Mapping[int, Sequence[tuple[int, Index | None]]],
        measure: Measure,
    ) -> None:
        """Starts without parts.

        Args:
            step: The completion.
            sites: int64 (partial tiles,), the site of each partial tile.
            targets: By partial tile the tiles to which it contributes, each with the part of the
                partial tile that it takes, or None for all of it.
            measure: The measure of the run, which counts the merges.
        """
        self.node = with_state(step.node)
        self.totals: dict[tuple[int, int], Total | StoredTotal] = {}
        self._sites = sites
        self._targets = targets
        self._measure = measure

    def add(self, part: int, fields: Arrays) -> None:
        """Merges a partial tile of an owned site into the tiles to which it contributes.

        Raises:
            DataError: An integer sum overflows.
        """
        for tile, at in self._targets.get(part, ()):
            arrays = fields if at is None else part_of(fields, at)
            self.add_to(tile, int(self._sites[part]), arrays)

    def add_to(self, tile: int, site: int, arrays: Arrays) -> None:
        """Merges one more part of a tile at a site."""
        start = time.perf_counter()
        total, few = self.totals.get((tile, site)), self.node.sparse
        if total is None:
            total = StoredTotal(self.node) if few else Total(self.node)
            self.totals[tile, site] = total
        else:
            self._measure.flops[site] += sum(a.size for a in arrays_in(arrays))
        total.add(arrays)
        self._measure.seconds[site] += time.perf_counter() - start


def _stored(cut: Cut) -> Callable[[int], Elements]:
    """Returns the function that cuts the sparse piece of a route."""
    return lambda n: as_elements(cut(n))


def _put(fields: dict[str, np.ndarray], piece: _Piece, arrays: Arrays, need: Tiles) -> None:
    """Adds an arrived piece to the fields of its tile."""
    if not fields and piece.at is None:
        fields.update(arrays)
    elif not (fields and piece.is_empty):  # such a tile may be read-only
        for name, part in arrays.items():
            if name not in fields:
                shape = tuple(extents(need.areas[piece.tile]).tolist())
                fields[name] = empty(shape, part.dtype)
            fields[name][... if piece.at is None else piece.at] = part


def cut_of(box: np.ndarray, of: np.ndarray) -> Index | None:
    """Returns the part of a tile within a box, or None for all of it.

    Args:
        box: int64 (keys, 2).
        of: The keys of the tile, int64 (keys, 2).
    """
    return None if (box == of).all() else slices(box, of[:, 0])


def slices(box: np.ndarray | Sequence[Sequence[int]], origin: np.ndarray | Sequence[int]) -> Index:
    """Returns slices of a box; with the ellipsis, a single value stays an array."""
    along = (slice(int(lo - at), int(hi - at)) for (lo, hi), at in zip(box, origin, strict=True))
    return (*along, ...)


def paste(fields: dict[str, np.ndarray], at: np.ndarray, arrays: Arrays, box: np.ndarray) -> None:
    """Copies a piece into its tile; a piece that is the complete tile is not copied.

    Args:
        fields: The fields of the tile so far.
        at: The keys of the piece, int64 (keys, 2).
        arrays: The piece.
        box: The keys of the tile, int64 (keys, 2).
    """
    if not fields and (at == box).all():
        fields.update(arrays)
        return
    if fields and (at[:, 0] >= at[:, 1]).any():
        return  # a complete tile, which may be read-only
    for name, part in arrays.items():
        if name not in fields:
            fields[name] = empty(tuple(extents(box).tolist()), part.dtype)
        fields[name][slices(at, box[:, 0])] = part
