"""Tiles in private memory over a base segment: newer versions, and changes to be committed."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterator, Mapping

import numpy as np

from einsql.core.schema import Schema
from einsql.storage.array_ownership import Private, private_over
from einsql.storage.database.layout import Layout, Part
from einsql.storage.database.segment_file import SegmentFile
from einsql.storage.database.tile_grid import TileGrid
from einsql.storage.fields import LocalFields


class TileMemory:
    """The arrays of a tensor whose tiles are loaded when they are first read.

    The arrays are a mapping of the base segment whose pages are copied when they are written. A
    tile is loaded by a comparison with its checksum; a newer version is then copied to its place.

    Attributes:
        grid: The tiles.
        arrays: The fields. Only loaded tiles may be read, only tiles in `dirty` written.
        dirty: Whether each tile has changes that are not committed.
    """

    def __init__(
        self,
        base: SegmentFile,
        newer: Mapping[int, SegmentFile],
        layout: Layout,
        schema: Schema,
        since: object,
        before: TileMemory | None = None,
    ) -> None:
        """Maps the base segment.

        Args:
            base: The segment with all tiles; each field has all elements.
            newer: The segments with newer versions of tiles, by number.
            layout: The description of the committed version.
            schema: The keys and fields.
            since: The store's mark; None if nothing may be changed.
            before: The memory whose changes are copied.
        """
        assert layout.base.tile is not None
        self.grid = TileGrid(schema.shape, layout.base.tile)
        self.dirty = np.zeros(self.grid.count, np.bool_)
        self._base = base
        self._newer = newer
        self._entries = layout.index.entries
        self._loading = threading.Lock()
        self._parts = {p.name: p for p in layout.base.parts}
        memory = base.private()
        self._is_mapped = memory is not None
        self._block = self._private(memory, base.segment.size, since)
        self.arrays = {
            p.name: np.ndarray(p.shape, schema.dtype(p.name).numpy, self._block, p.offset)
            for p in layout.base.parts
        }
        self._loaded = {name: np.zeros(self.grid.count, np.bool_) for name in self.arrays}
        if before is not None:
            self._copy(before)

    @staticmethod
    def _private(memory: mmap.mmap | None, size: int, since: object) -> Private:
        block = private_over(mmap.mmap(-1, size) if memory is None else memory)
        block.since = since
        return block

    def _copy(self, before: TileMemory) -> None:
        changed = np.flatnonzero(before.dirty)
        for name in self.arrays:
            before.load_tiles(name, changed)
            sources = before.pieces(name, changed)
            for target, source in zip(self.pieces(name, changed), sources, strict=True):
                target[:] = source
            self._loaded[name][changed] = True
        self.dirty[changed] = True

    # ---- reading

    def shown(self) -> LocalFields:
        """New read-only views of the arrays: copies on other devices are kept by identity."""
        views = LocalFields()
        for name, array in self.arrays.items():
            views[name] = array.view()
            views[name].flags.writeable = False
        return views

    @property
    def is_loaded(self) -> bool:
        """Whether all tiles of all fields are loaded."""
        return all(bool(loaded.all()) for loaded in self._loaded.values())

    def load(self, name: str, box: np.ndarray | None) -> None:
        """Loads the tiles of a field that contain a box of positions, or all of them.

        Raises:
            OperationalError: The checksum of one of them is wrong.
        """
        self.load_tiles(
            name, np.arange(self.grid.count) if box is None else self.grid.covering(box)
        )

    def load_tiles(self, name: str, tiles: np.ndarray) -> None:
        """Loads tiles of a field.

        Raises:
            OperationalError: The checksum of one of them is wrong.
        """
        loaded, part = self._loaded[name], self._parts[name]
        if loaded[tiles].all():
            return
        with self._loading:
            tiles = tiles[~loaded[tiles]]
            places = np.searchsorted(self._entries["tile"], tiles)
            places[places == len(self._entries)] = 0
            is_newer = np.zeros(len(tiles), np.bool_)
            if len(self._entries):
                is_newer = self._entries["tile"][places] == tiles
            old = tiles[~is_newer]
            self._base.verify(part, old)
            if not self._is_mapped:
                source = self._base.array(part).reshape(-1)
                for (lo, hi), target in zip(
                    self.grid.spans(old, part.shape).tolist(), self.pieces(name, old), strict=True
                ):
                    target[:] = source[lo:hi]
            self._copy_newer(part, tiles[is_newer], self._entries[places[is_newer]])
            loaded[tiles] = True

    def _copy_newer(self, part: Part, tiles: np.ndarray, entries: np.ndarray) -> None:
        places = zip(self.pieces(part.name, tiles), entries.tolist(), strict=True)
        for target, (tile, start, number, row) in places:
            segment = self._newer[number]
            source = next(p for p in segment.segment.parts if p.name == part.name)
            elements = segment.piece(source, start, start + len(target), row)
            if elements is None:
                raise segment.wrong_newer(source, self.grid, tile)
            target[:] = elements

    def pieces(self, name: str, tiles: np.ndarray) -> Iterator[np.ndarray]:
        """Views of a field's elements of tiles, in one axis."""
        flat = self.arrays[name].reshape(-1)
        for lo, hi in self.grid.spans(tiles, self.grid.shape).tolist():
            yield flat[lo:hi]

    # ---- changes

    def writable(self, since: object) -> bool:
        """Whether no reader may see a change.

        Args:
            since: The store's current mark.
        """
        return not self._block.shown and self._block.since is since
