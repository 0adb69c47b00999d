"""The tiles of one rank: storing, changing, reading, writing, counting and sending."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from einsql.core.boxes import extents
from einsql.core.records import dataclass
from einsql.core.sparse.arrays import arrays_in
from einsql.core.sparse.matrix import sparse_of
from einsql.core.sparse.tiles import as_elements, part_of, stored_elements
from einsql.engine.exchange import Held, Index, slices
from einsql.engine.ranks.messages import (
    Change,
    Collect,
    Count,
    Fetch,
    FilesApartError,
    Fill,
    Handle,
    Mapped,
    Paste,
    Read,
    Write,
)
from einsql.engine.step import Arrays
from einsql.storage import files
from einsql.storage.array_ownership import distinct, owner
from einsql.storage.fields import count_keys
from einsql.storage.out_of_memory import enough_memory

Alone = Fill | Paste | Write | Count | Collect | Fetch
"""Commands that involve no other rank."""


Place = tuple[int, str]
"""The number of a tile, and a field."""
Overwritten = tuple[Place, Index | None, np.ndarray]
"""Where a tile differs from its next version, and its elements there; None for all of the tile."""


@dataclass(frozen=True, slots=True)
class _Older:
    """Tiles as they were before changes.

    Attributes:
        newer: The handle of the tiles after the changes.
        undo: The overwritten elements, the latest change first.
    """

    newer: Handle
    undo: tuple[Overwritten, ...]


class TileStore:
    """The tiles of a rank, by handle.

    A change of some elements makes a new version under a new handle. An array that nothing but
    versions of one tensor refers to is changed in place; the older version then consists of the
    newer one and the overwritten elements. It becomes complete again if it is read, or if the
    newer version is released first.
    """

    def __init__(self) -> None:
        self._tiles: dict[Handle, Held] = {}
        self._older: dict[Handle, _Older] = {}
        self._before: dict[Handle, Handle] = {}
        self._own: dict[Handle, set[Place]] = {}

    def __getitem__(self, handle: Handle) -> Held:
        older = self._older.pop(handle, None)
        if older is not None:
            tiles = _restored(self[older.newer], older.undo)
            del self._before[older.newer]
            self._own.pop(self._newest(older.newer), None)  # both versions share some arrays
            self._tiles[handle] = tiles
        return self._tiles[handle]

    def __setitem__(self, handle: Handle, tiles: Held) -> None:
        """Stores tiles, whose arrays may be those of other tiles."""
        self._tiles[handle] = tiles
        if self._own:
            owners = {id(owner(a)) for fields in tiles.values() for a in arrays_in(fields)}
            for other, places in self._own.items():
                others = self._tiles[other]
                places -= {p for p in places if id(others[p[0]][p[1]]) in owners}

    def release(self, handle: Handle) -> None:
        """Removes tiles, if they are stored here."""
        before = self._before.pop(handle, None)
        own = self._own.pop(handle, set())
        older = self._older.pop(handle, None)
        if older is not None:
            del self._before[older.newer]
            if before is not None:
                self._link(before, older.newer, older.undo + self._older[before].undo)
            return
        tiles = self._tiles.pop(handle, None)
        if before is not None and tiles is not None:
            undo = self._older.pop(before).undo
            self._own[before] = own - {p for p, at, _ in undo if at is None}
            self._tiles[before] = _restored(tiles, undo, own)

    def change(self, command: Change) -> None:
        """Changes some elements of stored tiles under a new handle."""
        tiles = self[command.handle]
        own = self._own.pop(command.handle, set())
        changed, undo = dict(tiles), list[Overwritten]()
        writes: list[tuple[np.ndarray, Index, np.ndarray]] = []
        copied = set[Place]()
        for n, (at, values) in command.pieces.items():
            fields = dict(tiles[n])
            changed[n] = fields
            for name, piece in values.items():
                array = tiles[n][name]
                if (n, name) in own:
                    undo.append(((n, name), at, array[at].copy()))
                else:
                    undo.append(((n, name), None, array))
                    array = fields[name] = array.copy()
                    copied.add((n, name))
                writes.append((array, at, piece))
        for array, at, piece in writes:  # all memory is allocated
            array[at] = piece
        del self._tiles[command.handle]
        self._tiles[command.made] = changed
        self._own[command.made] = own | copied
        self._link(command.handle, command.made, tuple(undo))

    def _link(self, handle: Handle, newer: Handle, undo: tuple[Overwritten, ...]) -> None:
        self._older[handle] = _Older(newer, undo)
        self._before[newer] = handle

    def _newest(self, handle: Handle) -> Handle:
        while handle in self._older:
            handle = self._older[handle].newer
        return handle


def _restored(tiles: Held, undo: Sequence[Overwritten], own: Collection[Place] = ()) -> Held:
    """Returns tiles without changes.

    Args:
        tiles: The tiles with the changes.
        undo: The overwritten elements, the latest change first.
        own: The arrays that may be changed in place; others are copied.
    """
    restored, private = {n: dict(fields) for n, fields in tiles.items()}, set(own)
    for (n, name), at, values in undo:
        if at is None:
            restored[n][name] = values
            private.discard((n, name))
            continue
        if (n, name) not in private:
            restored[n][name] = restored[n][name].copy()
            private.add((n, name))
        restored[n][name][at] = values
    return dict(restored)


def obey(command: Alone, known: TileStore, proceed: Callable[[], None]) -> object:
    """Executes a command that involves no other rank.

    Args:
        command: The command.
        known: All tiles of this rank.
        proceed: Called between tiles; raises to cancel.

    Returns:
        The answer to the driver.

    Raises:
        OperationalError: A file has changed or cannot be written, or memory is short.
    """
    with enough_memory:
        if isinstance(command, Fill):
            known[command.handle] = tiles = read(command.source, proceed)
            return nbytes(tiles)
        if isinstance(command, Paste):
            for change in command.changes:
                known.change(change)
            return None
        stored = known[command.handle]
        if isinstance(command, Write):
            return _write(command, stored, proceed)
        if isinstance(command, Collect):
            return [stored[n] for n in command.tiles]
        if isinstance(command, Count):
            return sum(count_keys(stored[n], command.terms) for n in command.tiles)
        return _parts(command, stored)


def read(source: Read, proceed: Callable[[], None]) -> Held:
    """Reads tiles of a file; sites of one rank with equal tiles share one array.

    Raises:
        OperationalError: The file has changed since it was described.
    """
    by_content: dict[bytes, dict[str, np.ndarray]] = {}
    tiles: Held = {}
    file = files.reopen(source.file) if source.boxes else None
    for n, box in source.boxes.items():
        proceed()
        assert file is not None
        key = box.tobytes()
        if key not in by_content:
            sound = np.stack([box[:, 0], box[:, 0] + extents(box)], axis=1)
            by_content[key] = {source.name: file.read(sound)}
        tiles[n] = by_content[key]
    return tiles


def read_mapped(source: Mapped, proceed: Callable[[], None]) -> Held:
    """Maps the files of a stored tensor, and verifies the tiles of this rank.

    Raises:
        FilesApartError: This rank does not find the files.
        OperationalError: A file is damaged in one of these tiles.
    """
    if not source.files.are_here:
        raise FilesApartError(f"The files of {source.files.title} are not at this rank")
    schema = source.files.schema
    fields, lows = source.files.fields(), [k.lo for k in schema.keys]
    few, names = sparse_of(fields), [f.name for f in schema.fields]
    tiles: Held = {}
    for n, box in source.boxes.items():
        proceed()
        positions = box - np.array(lows, np.int64).reshape(-1, 1)
        positions[:, 1] = positions.max(axis=1)
        if few is None:
            tiles[n] = dict(fields.part(names, positions))
        else:
            tiles[n] = as_elements(part_of(fields, slices(positions, [0] * len(lows))))
    return tiles


def nbytes(tiles: Held) -> int:
    """Returns the bytes of tiles; shared arrays count once."""
    return sum({id(a): a.nbytes for fields in tiles.values() for a in arrays_in(fields)}.values())


def _write(command: Write, tiles: Held, proceed: Callable[[], None]) -> int:
    """Writes tiles, and returns the number of bytes."""
    written = 0
    for n, box in command.boxes.items():
        proceed()
        tile = tiles[n][command.name].transpose(command.axes)
        files.write_box(command.draft, box, tile)
        written += tile.nbytes
    return written


def _parts(command: Fetch, tiles: Held) -> Sequence[np.ndarray]:
    """Returns contiguous parts of tiles, which are sent without a copy."""
    return [
        np.asarray(tiles[n][name][where], order="C")
        for n, where in command.parts
        for name in command.names
    ]


def compact(tiles: Held) -> Held:
    """Returns the tiles; arrays that keep much unused memory alive are copied."""
    return {n: _compact(fields) for n, fields in tiles.items()}


def _compact(fields: Arrays) -> Arrays:
    few = stored_elements(fields)
    return {k: _own(a) for k, a in fields.items()} if few is None else few.over(_own)


def _own(array: np.ndarray) -> np.ndarray:
    """Returns the array, copied if it is less than half of the memory that it keeps alive."""
    base = owner(array)
    total = base.nbytes if isinstance(base, np.ndarray | memoryview) else 0
    return array if total <= 2 * distinct(array).nbytes else array.copy()
