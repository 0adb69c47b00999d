"""An exchange of the elements that readers need: flags to the sources, then the elements.

Both ends of a message know its size from the flags. The other processes take part in neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from einsql.engine.routes import Moves
from einsql.engine.transport import Arrays, Cut, PostedExchange, Routes, Transport
from einsql.ir.layout import Tiles

FLAGS = "flags"
"""The field of a message with the flags of the needed elements, one bit each."""

Index = tuple[slice | np.ndarray, ...]


class SelectedExchange:
    """An exchange of selected elements that has started.

    Attributes:
        flight: The transfer of the elements that leave their site; None if there are none.
    """

    def __init__(
        self,
        moves: Moves,
        axis: int,
        needed: Mapping[int, np.ndarray],
        need: Tiles,
        cut: Cut,
        transport: Transport,
    ) -> None:
        """Sends the flags, and starts the transfer of the elements.

        Args:
            moves: The pieces of complete tiles.
            axis: The axis along which elements are selected.
            needed: By needed tile at owned sites the flags along this axis.
            need: The needed tiles.
            cut: Returns the complete piece of a route, at its source.
            transport: The transport.
        """
        self._moves, self._axis, self._need, self._cut = moves, axis, need, cut
        routes, self._owned = moves.routes, set(transport.owned)
        self._crossing = np.flatnonzero(routes.sources != routes.targets)
        self._stays = np.flatnonzero(routes.sources == routes.targets).tolist()
        self._flags: dict[int, np.ndarray] = {}
        self.flight: PostedExchange | None = None
        if not len(self._crossing):
            return
        wanted = {
            n: self._of_piece(n, needed[int(moves.need[n])])
            for n in self._crossing.tolist()
            if int(routes.targets[n]) in self._owned
        }
        self._flags.update(wanted)
        self._ask(wanted, transport)
        self.flight = transport.post(self._sized(), self._selected)

    def pieces(self) -> Iterator[tuple[int, Index, Arrays]]:
        """Yields routes that end at owned sites, with the positions and elements in the tile."""
        for n in self._stays:
            if int(self._moves.routes.sources[n]) in self._owned:
                yield n, self._inside(n), self._cut(n)
        for k, arrays in () if self.flight is None else self.flight.pieces():
            n = int(self._crossing[k])
            inside, at = self._inside(n), self._positions(n)
            first = inside[self._axis]
            assert isinstance(first, slice)
            index = (*inside[: self._axis], at + first.start, *inside[self._axis + 1 :])
            yield n, index, arrays

    def _ask(self, wanted: Mapping[int, np.ndarray], transport: Transport) -> None:
        """Sends the flags of the needed elements to the sources of the pieces."""
        routes, crossing = self._moves.routes, self._crossing
        shapes = -(-routes.shapes[crossing, self._axis] // 8)
        asked = Routes(
            routes.targets[crossing],
            routes.sources[crossing],
            shapes.reshape(-1, 1),
            {FLAGS: np.dtype(np.uint8)},
            np.arange(len(crossing)),
        )
        bits = {n: np.packbits(flags) for n, flags in wanted.items()}
        for k, arrays in transport.exchange(asked, lambda k: {FLAGS: bits[int(crossing[k])]}):
            n = int(crossing[k])
            count = int(routes.shapes[n, self._axis])
            self._flags[n] = np.unpackbits(arrays[FLAGS], count=count).view(np.bool_)

    def _sized(self) -> Routes:
        """The routes of the elements, none of them empty; other processes do not need the sizes."""
        routes, crossing = self._moves.routes, self._crossing
        shapes = routes.shapes[crossing].copy()
        shapes[:, self._axis] = 1
        for k, n in enumerate(crossing.tolist()):
            if n in self._flags:
                shapes[k, self._axis] = len(self._positions(n))
        ends = routes.sources[crossing], routes.targets[crossing]
        return Routes(*ends, shapes, routes.dtypes, np.arange(len(crossing)))

    def _selected(self, k: int) -> Arrays:
        n = int(self._crossing[k])
        at, fields = self._positions(n), self._cut(n)
        return {name: np.take(np.asarray(a), at, axis=self._axis) for name, a in fields.items()}

    def _positions(self, n: int) -> np.ndarray:
        """The positions of the elements of a route in its piece, at least one."""
        at = np.flatnonzero(self._flags[n])
        return at if len(at) else np.zeros(1, np.int64)

    def _of_piece(self, n: int, flags: np.ndarray) -> np.ndarray:
        """The part of the flags of a tile that concerns a piece."""
        inside = self._inside(n)[self._axis]
        assert isinstance(inside, slice)
        return flags[inside]

    def _inside(self, n: int) -> Index:
        """The position of a complete piece in its tile."""
        box, area = self._moves.boxes[n], self._need.areas[int(self._moves.need[n])]
        return tuple(slice(int(lo), int(hi)) for lo, hi in box - area[:, :1])
