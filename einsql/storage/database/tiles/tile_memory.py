"""Tiles in private memory over a base segment: newer versions, and changes to be committed."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Iterable, Iterator, Mapping
from math import prod

import numpy as np

from einsql.core.schema import Field, Schema
from einsql.storage.array_ownership import Private, distinct, private_over
from einsql.storage.database.layout import Layout, Part
from einsql.storage.database.segment_file import NORESERVE, SegmentFile
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
        grid = layout.grid(schema)
        assert grid is not None
        self.grid = grid
        self.dirty = np.zeros(self.grid.count, np.bool_)
        self._base = base
        self._newer = newer
        self._entries = layout.index.entries
        self._loading = threading.Lock()
        self._parts = {p.name: p for p in layout.base.parts}
        memory = base.private()
        self._is_mapped = memory is not None
        self._blocks = [self._private(memory, base.segment.size, since)]
        self.arrays = {f.name: self._array(f, since) for f in schema.fields}
        self._loaded = {name: np.zeros(self.grid.count, np.bool_) for name in self.arrays}
        if before is not None:
            self._copy(before)

    @staticmethod
    def _private(memory: mmap.mmap | None, size: int, since: object) -> Private:
        block = private_over(mmap.mmap(-1, size) if memory is None else memory)
        block.since = since
        return block

    def _array(self, field: Field, since: object) -> np.ndarray:
        """The place of a field: in the mapping, or in memory if the base segment repeats it.

        Pages of this memory take none until they are written.
        """
        shape, dtype, part = self.grid.shape, field.dtype.numpy, self._parts.get(field.name)
        if part is not None and part.shape == shape:
            return np.ndarray(shape, dtype, self._blocks[0], part.offset)
        nbytes = max(1, prod(shape) * dtype.itemsize)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
        self._blocks.append(self._private(mmap.mmap(-1, nbytes, flags), nbytes, since))
        return np.ndarray(shape, dtype, self._blocks[-1])

    def _copy(self, before: TileMemory) -> None:
        changed = np.flatnonzero(before.dirty)
        for name in self.arrays:
            if name not in before.arrays:  # the flags: there every key existed
                for target in self.pieces(name, changed):
                    target[:] = True
                self._loaded[name][changed] = True
                continue
            before.load_tiles(name, changed)
            sources = before.pieces(name, changed)
            for target, source in zip(self.pieces(name, changed), sources, strict=True):
                target[:] = source
            self._loaded[name][changed] = True
        self.dirty[changed] = True

    # ---- reading

    def shown(self, names: Iterable[str]) -> LocalFields:
        """New read-only views of arrays: copies on other devices are kept by identity."""
        views = LocalFields()
        for name in names:
            views[name] = self.arrays[name].view()
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
        loaded, part = self._loaded[name], self._parts.get(name)
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
            if part is None:  # the flags: the base segment has every key
                for target in self.pieces(name, old):
                    target[:] = True
            elif part.shape != self.grid.shape:
                self._repeat(part, old)
            else:
                self._base.verify(part, old)
                self._copy_base(part, old)
            self._copy_newer(name, tiles[is_newer], self._entries[places[is_newer]])
            loaded[tiles] = True

    def _copy_base(self, part: Part, tiles: np.ndarray) -> None:
        """Copies tiles of the base segment, if its pages are not those of the arrays."""
        if self._is_mapped:
            return
        source = self._base.array(part).reshape(-1)
        spans = self.grid.spans(tiles, part.shape).tolist()
        for (lo, hi), target in zip(spans, self.pieces(part.name, tiles), strict=True):
            target[:] = source[lo:hi]

    def _repeat(self, part: Part, tiles: np.ndarray) -> None:
        """Writes tiles whose elements the base segment repeats along an axis; not zeros."""
        units, source = self._base.units[part.name], self._base.array(part)
        repeated = np.broadcast_to(source, self.grid.shape)
        for box, target in zip(self.grid.boxes(tiles), self.pieces(part.name, tiles), strict=True):
            self._base.verify(part, units.covering(box))
            piece = repeated[tuple(slice(lo, hi) for lo, hi in box.tolist())]
            if distinct(piece).tobytes().strip(b"\0"):
                target[:] = piece.reshape(-1)

    def _copy_newer(self, name: str, tiles: np.ndarray, entries: np.ndarray) -> None:
        places = zip(self.pieces(name, tiles), entries.tolist(), strict=True)
        for target, (tile, start, number, row) in places:
            segment = self._newer[number]
            source = next((p for p in segment.segment.parts if p.name == name), None)
            if source is None:  # the flags: the tile has every key
                target[:] = True
                continue
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
        return all(not block.shown and block.since is since for block in self._blocks)
