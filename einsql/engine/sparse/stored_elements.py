"""Sparse tiles between sites: merging of partial results, and messages of sizes known at run time.

The number of stored elements of a piece follows from data. So the sites exchange the sizes of their
pieces first. From these every process computes the same `Routes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from einsql.core.boxes import extents
from einsql.core.schema import PRESENT, Schema
from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.compressed import at_cells
from einsql.core.sparse.matrix import sparse_of
from einsql.core.sparse.tiles import (
    Origin,
    as_elements,
    assembled,
    dtypes_of,
    elements_of,
    packed,
    part_of,
    unpacked,
)
from einsql.engine.transport import Arrays, PostedExchange, Routes, Transport
from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.partial_merge import Total
from einsql.storage.undo_log import Index

BYTES = "bytes"
"""The field of a message with a packed tile."""
_SIZES = "sizes"


def sparse_tile(fields: Arrays, at: Index | None) -> Elements:
    """Returns a tile of a sparse relation, given its part of the complete fields; None for all."""
    few = sparse_of(fields)
    if few is None:  # the tensor has become dense since the plan was made
        return as_elements(fields if at is None else part_of(fields, at))
    return elements_of(few) if at is None else as_elements(part_of(fields, at))


def whole_of(
    tiles: Mapping[int, Arrays], boxes: Mapping[int, np.ndarray], box: np.ndarray
) -> Elements:
    """Returns sparse tiles as one tile, in new arrays.

    Args:
        tiles: The tiles by number.
        boxes: The keys of the tiles that are taken, int64 (keys, 2), by number.
        box: The keys of the result, int64 (keys, 2).
    """
    pieces: list[tuple[Origin, Elements]] = []
    for n, own in boxes.items():
        pieces.append((tuple((own[:, 0] - box[:, 0]).tolist()), as_elements(tiles[n])))
    return assembled(pieces, tuple(extents(box).tolist()))


class StoredTotal:
    """The merge of one tile's sparse parts; an element that one part has stays as it is.

    Attributes:
        parts: The number of parts so far.
    """

    def __init__(self, node: EinSum) -> None:
        """Starts without parts.

        Args:
            node: The node of the parts, with the state that merging needs.
        """
        self._node = node
        self._parts: list[Elements] = []

    @property
    def parts(self) -> int:
        """The number of parts so far."""
        return len(self._parts)

    def add(self, part: Arrays) -> None:
        """Adds one more part."""
        self._parts.append(as_elements(part))

    def result(self) -> Elements:
        """Returns the merged parts as one part, which may be partial itself.

        Raises:
            DataError: An integer sum overflows.
        """
        parts = self._parts
        if len(parts) == 1:
            return parts[0]
        columns = max(1, parts[0].structure.shape[1])
        flat = np.concatenate([p.structure.rows * columns + p.structure.columns for p in parts])
        order = np.argsort(flat, kind="stable")  # equal positions in the order of the parts
        begins = np.ones(len(flat), np.bool_)
        begins[1:] = flat[order][1:] != flat[order][:-1]
        firsts = np.flatnonzero(begins)
        counts = np.diff(firsts, append=len(flat))
        by_name = {
            name: np.concatenate([p.values_by_name[name] for p in parts])[order]
            for name in parts[0].values_by_name
        }
        values = {name: a[firsts] for name, a in by_name.items()}
        for count in np.unique(counts[counts > 1]).tolist():
            groups = np.flatnonzero(counts == count)
            total = Total(self._node)
            for n in range(count):
                at = firsts[groups] + n
                fields = {name: a[at] for name, a in by_name.items()}
                total.add({**fields, PRESENT: np.ones(len(at), np.bool_)})
            merged = total.result()
            for name, a in values.items():
                a[groups] = merged[name]
        structure, _ = at_cells(parts[0].structure.extents, flat[order][firsts])
        return Elements(structure.of(structure.columns), values)


class SizedExchange:
    """An exchange of sparse pieces that has started.

    Attributes:
        flight: The transfer of the pieces that leave their site; None if there are none.
    """

    def __init__(
        self,
        routes: Routes,
        cut: Callable[[int], Elements],
        schema: Schema,
        transport: Transport,
    ) -> None:
        """Sends the sizes of the pieces to all sites, and starts their transfer.

        Args:
            routes: The pieces, with the shape of each one.
            cut: Returns the piece of a route, at its source.
            schema: The keys and fields of the relation.
            transport: The transport.
        """
        self._routes, self._cut = routes, cut
        self._dtypes = dtypes_of(schema)
        self._crossing = np.flatnonzero(routes.sources != routes.targets)
        self._stays = np.flatnonzero(routes.sources == routes.targets).tolist()
        self._owned = set(transport.owned)
        self._buffers: dict[int, np.ndarray] = {}
        self.flight: PostedExchange | None = None
        if len(self._crossing):
            self.flight = transport.post(self._sized(transport), self._bytes)

    def pieces(self) -> Iterator[tuple[int, Elements]]:
        """Yields the numbers of routes that end at owned sites, and their pieces."""
        for n in self._stays:
            if int(self._routes.sources[n]) in self._owned:
                yield n, self._cut(n)
        for k, arrays in () if self.flight is None else self.flight.pieces():
            n = int(self._crossing[k])
            buffer = np.ascontiguousarray(arrays[BYTES])
            yield n, unpacked(buffer, tuple(self._routes.shapes[n].tolist()), self._dtypes)

    def _bytes(self, k: int) -> Mapping[str, np.ndarray]:
        return {BYTES: self._buffer(int(self._crossing[k]))}

    def _buffer(self, n: int) -> np.ndarray:
        piece = int(self._routes.pieces[n])
        if piece not in self._buffers:
            self._buffers[piece] = packed(self._cut(n), self._dtypes)
        return self._buffers[piece]

    def _sized(self, transport: Transport) -> Routes:
        """The routes of the packed pieces that leave their site, after an exchange of sizes."""
        routes, crossing = self._routes, self._crossing
        pieces = routes.pieces[crossing]
        distinct, first = np.unique(pieces, return_index=True)
        route_of = crossing[first]
        sources = routes.sources[route_of]
        own = {
            int(s): np.array(
                [self._buffer(int(n)).nbytes for n in route_of[sources == s]], np.int64
            )
            for s in np.unique(sources)
            if int(s) in self._owned
        }
        sizes = np.zeros(len(distinct), np.int64)
        announced = announcement(sources, len(transport.sent))
        senders = announced.sources
        for k, arrays in transport.exchange(announced, lambda k: {_SIZES: own[int(senders[k])]}):
            sizes[sources == senders[k]] = arrays[_SIZES]
        for s, counted in own.items():
            sizes[sources == s] = counted
        shapes = sizes[np.searchsorted(distinct, pieces)].reshape(-1, 1)
        return Routes(
            routes.sources[crossing],
            routes.targets[crossing],
            shapes,
            {BYTES: np.dtype(np.uint8)},
            pieces,
        )


def announcement(sources: np.ndarray, sites: int) -> Routes:
    """The routes by which every site sends the sizes of its pieces to all others.

    Args:
        sources: int64 (pieces,), the site of each piece.
        sites: The number of sites.
    """
    senders, counts = np.unique(sources, return_counts=True)
    ends = np.array([(s, t) for s in senders.tolist() for t in range(sites) if s != t], np.int64)
    ends = ends.reshape(-1, 2)
    number = np.searchsorted(senders, ends[:, 0])
    dtypes = {_SIZES: np.dtype(np.int64)}
    return Routes(ends[:, 0], ends[:, 1], counts[number].reshape(-1, 1), dtypes, ends[:, 0])
