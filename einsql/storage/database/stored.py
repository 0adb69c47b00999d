"""Fields in segments, mapped at their first read after a verification of their checksums."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from einsql.core.records import cached_property
from einsql.core.schema import PRESENT, DType, Field, Schema
from einsql.storage.database.layout import Layout
from einsql.storage.database.segment_file import SegmentFile
from einsql.storage.database.tiles.tile_memory import TileMemory
from einsql.storage.database.tiles.tile_statistics import RECORD, UNKNOWN, ranges_in
from einsql.storage.fields import Fields, InPlace, LocalFields, RemoteFields, StoredTiles
from einsql.storage.out_of_memory import available
from einsql.storage.undo_log import Index

REWRITTEN = 4
"""A statement that changes more than 1/4 of the tiles replaces the arrays.

A commit replaces the base segment if more than 1/4 of the tiles would be newer than it: a newer
tile takes memory, and 2 ms at the first read of each version, where an old one takes 0.7 ms (256
tiles of 1 MiB, benchmarks/tiles.py).
"""
REPEATED = 4
"""Tiles that a base segment repeats take at most 1/4 of the free memory after the first change."""


class FieldsInFiles(RemoteFields):
    """The fields of a version of a tensor in segments.

    Attributes:
        layout: The description of the committed version.
        schema: The tensor's keys and fields.
        base: The segment with all elements.
        newer: The segments with newer versions of tiles or blocks, by number.
        memory: The tiles in private memory, if any have changed or are newer than the base segment.
    """

    layout: Layout
    schema: Schema
    base: SegmentFile
    newer: Mapping[int, SegmentFile]
    memory: TileMemory | None = None

    @property
    def segments(self) -> tuple[SegmentFile, ...]:
        """All files."""
        return (self.base, *self.newer.values())

    @property
    def unmapped(self) -> frozenset[str]:
        """See `Fields.unmapped`."""
        return frozenset(s.segment.file for s in self.segments if not s.is_mapped)

    @property
    def directory(self) -> str | None:
        """See `Fields.directory`."""
        return None if len(self.dirty) else os.path.dirname(os.path.abspath(self.base.path))

    @property
    def needs_base(self) -> bool:
        """Whether a commit of the changes should write a new base segment."""
        if self.memory is None:
            return False
        newer = self.memory.dirty.copy()
        newer[self.layout.index.entries["tile"]] = True
        many = int(np.count_nonzero(newer)) > len(newer) // REWRITTEN
        return many and bool(self.memory.dirty.any())

    @property
    def dirty(self) -> np.ndarray:
        """The numbers of the tiles with changes that are not committed."""
        return np.zeros(0, np.int64) if self.memory is None else np.flatnonzero(self.memory.dirty)


class StoredFields(FieldsInFiles):
    """The fields of a dense tensor in segments, with changes that are not committed.

    Reading a field verifies all of it; `verified`, `part` and `window` verify only a box.
    """

    def __init__(
        self,
        layout: Layout,
        schema: Schema,
        base: SegmentFile,
        newer: Mapping[int, SegmentFile],
        memory: TileMemory | None = None,
    ) -> None:
        """Describes the fields; no file is opened.

        Args:
            layout: The catalog's description.
            schema: The keys and fields.
            base: The segment with all tiles.
            newer: The segments with newer versions of tiles, by number.
            memory: The memory with changes that are not committed.
        """
        self.layout = layout
        self.base = base
        self.newer = newer
        self.memory = memory
        self.schema = schema
        self._arrays = LocalFields()
        self._mapping = threading.Lock()
        self._known_tiles: tuple[bytes, StoredTiles] | None = None
        """The box of the last call of `tiles_in`, and its result: 0.1 ms for eight tiles."""
        self._verified = False
        """Whether every element has been verified."""
        if memory is not None:
            self._arrays = memory.shown(self)

    def local(self) -> Mapping[str, np.ndarray]:
        """The arrays, if the files are mapped."""
        return self._arrays

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._mapped()[name]
        if not self._verified:
            self._verify(name, None)
        return array

    def __iter__(self) -> Iterator[str]:
        return (f.name for f in self.schema.fields)

    def __len__(self) -> int:
        return len(self.schema.fields)

    def all_set(self, name: str) -> bool:
        """See `Fields.all_set`; tiles are read from the last one on, until one says no."""
        _ = self._mapped()
        if self.memory is None:
            return super().all_set(name)
        grid, memory = self.memory.grid, self.memory
        for tile in range(grid.count - 1, -1, -1):
            at = np.array([tile])
            memory.load_tiles(name, at)
            (piece,) = memory.pieces(name, at)
            if not piece.all():
                return False
        return True

    def part(self, names: Sequence[str], box: np.ndarray) -> LocalFields:
        """See `Fields.part`; only the box is verified."""
        arrays = self._mapped()
        if not self._verified:
            for name in names:
                self._verify(name, box)
        return arrays.part(names, box)

    def window(self, at: Sequence[slice], axes: Sequence[int]) -> Fields:
        """See `Fields.window`; reads of the part are verified."""
        lows = np.array([k.lo for k in self.schema.keys], np.int64)
        box = np.array([(s.start, s.stop) for s in at], np.int64).reshape(-1, 2)
        return self.verified(box + lows[:, None]).window(at, axes)

    def verified(self, box: np.ndarray) -> LocalFields:
        """Returns arrays of all keys, of which only a box may be read; see `Fields.verified`."""
        arrays = self._mapped()
        if not self._verified:
            lows = np.array([k.lo for k in self.schema.keys], np.int64).reshape(-1, 1)
            for name in self:
                self._verify(name, box - lows)
        return arrays

    def tiles_in(self, box: np.ndarray) -> StoredTiles | None:
        """See `Fields.tiles_in`; tiles with changes that are not committed have no statistics."""
        _ = self._mapped()
        place, changed = box.tobytes(), len(self.dirty) > 0
        if self._known_tiles is not None and self._known_tiles[0] == place and not changed:
            return self._known_tiles[1]
        grid, segments = self.layout.grid(self.schema), (self.layout.base, *self.layout.newer)
        full = all(p.shape == self.schema.shape for p in self.layout.base.parts)
        if grid is None or not full or all(s.statistics is None for s in segments):
            return None
        lows = np.array([k.lo for k in self.schema.keys], np.int64).reshape(-1, 1)
        tiles = grid.covering(box - lows)
        ranges = {}
        for f in self.schema.fields:
            column = self._statistics[f.name][tiles]
            if self.memory is not None:
                column[self.memory.dirty[tiles]] = np.array(UNKNOWN, RECORD)
            ranges[f.name] = ranges_in(column, f.dtype)
        stored_tiles = StoredTiles(grid.boxes(tiles) + lows, ranges)
        self._known_tiles = None if changed else (place, stored_tiles)
        return stored_tiles

    @cached_property
    def _statistics(self) -> dict[str, np.ndarray]:
        """The statistics of the committed versions of all tiles, by field."""
        entries = self.layout.index.entries
        table = {}
        for name in self:
            known = self.base.statistics_of(name)
            if len(entries):
                known = known.copy()
            for number, segment in self.newer.items():
                here = entries[entries["segment"] == number]
                known[here["tile"]] = segment.statistics_of(name)[here["row"]]
            table[name] = known
        return table

    def unread(self) -> Mapping[str, np.ndarray]:
        """See `Fields.unread`."""
        return self._mapped()

    def _verify(self, name: str, box: np.ndarray | None) -> None:
        if self.memory is not None:
            self.memory.load(name, box)
            self._verified = self.memory.is_loaded
            return
        (part,) = (p for p in self.layout.base.parts if p.name == name)
        self.base.verify(part, None if box is None else self.base.units[name].covering(box))
        self._verified = self.base.is_verified

    def _mapped(self) -> LocalFields:
        if not self._arrays:
            with self._mapping:
                if not self._arrays:
                    self._arrays = self._opened()
        return self._arrays

    def _opened(self) -> LocalFields:
        for segment in self.segments:  # once they are mapped, they may be unlinked
            _ = segment.memory
        if self.newer:
            self.memory = TileMemory(self.base, self.newer, self.layout, self.schema, None)
            return self.memory.shown(self)
        arrays = LocalFields()
        for part in self.layout.base.parts:  # without newer tiles it has all fields
            stored = self.base.array(part)
            is_full = stored.shape == self.schema.shape
            arrays[part.name] = stored if is_full else np.broadcast_to(stored, self.schema.shape)
        return arrays

    # ---- changes

    def in_place(
        self, names: Sequence[str], at: Index, flat: bool, since: object
    ) -> InPlace | None:
        """See `Fields.in_place`; flags of absent keys are added if they are among the names."""
        schema = self.schema
        if PRESENT in names and not schema.has(PRESENT):
            schema = Schema(schema.keys, (*schema.fields, Field(PRESENT, DType.BOOLEAN)))
        grid = self.layout.grid(schema)
        if grid is None:
            return None
        tiles = grid.of_cells(at, flat=flat)
        if len(tiles) > grid.count // REWRITTEN or not self._has_room(schema):
            return None
        for segment in self.segments:
            _ = segment.memory
        memory = self.memory
        if memory is None or schema is not self.schema or not memory.writable(since):
            memory = TileMemory(self.base, self.newer, self.layout, schema, since, memory)
        for name in names:
            memory.load_tiles(name, tiles)
        memory.dirty[tiles] = True
        changed = StoredFields(self.layout, schema, self.base, self.newer, memory)
        return InPlace(changed, {name: memory.arrays[name] for name in names})

    def _has_room(self, schema: Schema) -> bool:
        """Whether tiles that the base segment repeats fit into memory; zeros take none."""
        parts = {p.name: p for p in self.layout.base.parts}
        nbytes = 0
        for f in schema.fields:
            part = parts.get(f.name)
            if part is None or part.shape != schema.shape:
                single = self.base.array(part) if part and prod(part.shape) == 1 else None
                if single is None or single.tobytes().strip(b"\0"):
                    nbytes += schema.size * f.dtype.numpy.itemsize
        free = available() if nbytes else None
        return free is None or nbytes <= free // REPEATED

    def without_flags(self) -> StoredFields:
        """See `Fields.without_flags`."""
        schema = Schema(self.schema.keys, self.schema.values)
        return StoredFields(self.layout, schema, self.base, self.newer, self.memory)
