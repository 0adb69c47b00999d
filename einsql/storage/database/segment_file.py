"""A segment on the disk: mapped at its first read, and verified unit by unit."""

from __future__ import annotations

import mmap
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

import numpy as np

from einsql.core.records import cached_property
from einsql.core.schema import Schema
from einsql.errors import OperationalError
from einsql.storage.database.checks import checksums
from einsql.storage.database.layout import Part, Segment
from einsql.storage.database.payload import frame_of
from einsql.storage.database.tiles.tile_grid import TileGrid
from einsql.storage.database.tiles.tile_statistics import RECORD, UNKNOWN
from einsql.storage.database.units import Units, box_text, unit_text, units_of
from einsql.storage.files.regular_files import open_regular

FRAME = "the checksum of its frame is wrong"
"""The fault of a file whose bytes outside of the fields' elements are wrong."""
NORESERVE = getattr(mmap, "MAPNORESERVE", 0x4000 if sys.platform == "linux" else 0)
"""Flag for a private mapping that may be larger than the memory, as only a few pages change."""


def _fetch(memory: mmap.mmap, spans: np.ndarray) -> None:
    """Makes the system read parts of a mapped file, and nothing else.

    Without it the first accesses to a MiB read up to 4 MiB more, in advance (benchmarks/tiles.py).

    Args:
        memory: The mapping.
        spans: The first and the end byte of each part, increasing: int64 (parts, 2).
    """
    if not hasattr(mmap, "MADV_WILLNEED"):
        return
    lo, hi = spans[:, 0] // mmap.PAGESIZE * mmap.PAGESIZE, spans[:, 1]
    apart = np.flatnonzero(lo[1:] > hi[:-1]) + 1
    starts, ends = lo[[0, *apart]], hi[[*(apart - 1), -1]]
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        memory.madvise(mmap.MADV_WILLNEED, start, end - start)


class SegmentFile:
    """An immutable file with tiles, which all versions of a tensor in this process share.

    Attributes:
        segment: The catalog's description of the file.
        path: The file's path.
        schema: The keys and the arrays in the file; those of CSR have one key, the element.
        is_mapped: Whether the file is mapped, so that it may be unlinked.
    """

    def __init__(self, path: str, segment: Segment, schema: Schema, title: str) -> None:
        """Describes the file; it is not opened.

        Args:
            path: The file's path.
            segment: The catalog's description of the file.
            schema: See the class.
            title: The tensor's name, for messages.
        """
        self.path = path
        self.segment = segment
        self.is_mapped = False
        self.schema = schema
        self._title = title
        self._memory: mmap.mmap | None = None
        self._mapping = threading.Lock()
        self._known: dict[str, np.ndarray] = {}

    @cached_property
    def units(self) -> dict[str, Units]:
        """The units of each field; of a segment with all elements only."""
        return {p.name: units_of(self.segment, p, self.schema) for p in self.segment.parts}

    @property
    def memory(self) -> mmap.mmap:
        """The mapping of the file.

        Raises:
            OperationalError: The file is missing, truncated, or damaged outside of its elements.
        """
        if self._memory is None:
            with self._mapping:  # after one session has mapped it, the file may be unlinked
                if self._memory is None:
                    self._memory = self._mapped()
                    self.is_mapped = True
        return self._memory

    def private(self) -> mmap.mmap | None:
        """A new mapping of the file whose pages are copied when they are written.

        Returns:
            None if the file cannot be mapped again: it has been unlinked, or the system refuses.
        """
        _ = self.memory  # checks the frame
        flags, access = mmap.MAP_PRIVATE | NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE
        try:
            with self.opened() as file:
                return mmap.mmap(file.fileno(), self.segment.size, flags, access)
        except (OSError, OperationalError):
            return None

    def array(self, part: Part) -> np.ndarray:
        """The elements of a field in the file, unverified."""
        dtype = self.schema.dtype(part.name).numpy
        return np.ndarray(part.shape, dtype, self.memory, part.offset)

    def piece(self, part: Part, start: int, stop: int, row: int) -> np.ndarray | None:
        """Some elements of a field; None if the checksum of their row is wrong.

        Args:
            part: The field.
            start: The number of elements before the first one.
            stop: The number of elements before the end.
            row: The number of the row that has these elements and no others.
        """
        dtype = self.schema.dtype(part.name).numpy
        elements = np.ndarray(
            (stop - start,), dtype, self.memory, part.offset + start * dtype.itemsize
        )
        (crc,) = checksums([elements.view(np.uint8).data])
        right = crc == int(self.segment.sums_of(part, self._sums)[row])
        return elements if right else None

    def verify(self, part: Part, wanted: np.ndarray | None = None) -> None:
        """Compares units of a field with their checksums, unless they are known to be right.

        Args:
            part: The field.
            wanted: The units; None for all.

        Raises:
            OperationalError: A checksum is wrong.
        """
        units, memory = self.units[part.name], self.memory
        known = self._known.get(part.name)
        if known is None:
            known = self._known.setdefault(part.name, np.zeros(units.count, np.bool_))
        wanted = np.arange(len(known)) if wanted is None else wanted
        wanted = wanted[~known[wanted]]
        if not len(wanted):
            return
        spans = units.spans(wanted)
        if len(wanted) < len(known):
            _fetch(memory, spans + part.offset)
        elements = memoryview(memory)[part.offset : part.offset + units.nbytes]
        actual = checksums([elements[lo:hi] for lo, hi in spans.tolist()])
        stored = self.segment.sums_of(part, self._sums)[wanted]
        right = stored == np.array(actual, np.uint32)
        if not right.all():
            raise self.wrong(part, int(wanted[~right][0]))
        known[wanted] = True

    @property
    def is_verified(self) -> bool:
        """Whether all units of all fields are known to be right."""
        parts = len(self.segment.parts)
        return len(self._known) == parts and all(bool(k.all()) for k in self._known.values())

    def statistics_of(self, name: str) -> np.ndarray:
        """The statistics of a field in each row; unknown ones if the file has none."""
        table = self.statistics
        for n, part in enumerate(self.segment.parts):
            if part.name == name and table is not None:
                return table[:, n]
        return np.full(self.segment.rows, np.array(UNKNOWN, RECORD))

    @property
    def statistics(self) -> np.ndarray | None:
        """The statistics of each field in each row, (rows, fields); None without any.

        Mapping the file has verified them.
        """
        at = self.segment.statistics
        if at is None:
            return None
        shape = (self.segment.rows, len(self.segment.parts))
        return np.ndarray(shape, RECORD, self.memory, at)

    @property
    def _sums(self) -> np.ndarray:
        return np.ndarray((self.segment.count,), "<u4", self.memory, self.segment.sums)

    def _mapped(self) -> mmap.mmap:
        segment = self.segment
        with self.opened() as file:
            try:
                memory = mmap.mmap(file.fileno(), segment.size, access=mmap.ACCESS_READ)
            except OSError as error:
                raise self.unreadable(error) from None
        if frame_of(segment, self.schema, lambda lo, hi: memory[lo:hi]) != segment.frame:
            raise self.damaged(FRAME)
        return memory

    # ---- reading without a mapping

    @contextmanager
    def reading(self) -> Iterator[Callable[[int, int], bytes]]:
        """Yields a function that reads a number of bytes at an offset.

        An unmapped file is read without mapping it, because a mapping would stay open.

        Raises:
            OperationalError: The file is missing or truncated.
        """
        try:
            file = None if self.is_mapped else self.opened()
        except OperationalError:
            if not self.is_mapped:  # else another session has mapped and unlinked it
                raise
            file = None
        if file is None:
            memory = self.memory
            yield lambda at, size: memory[at : at + size]
            return

        def read(at: int, size: int) -> bytes:
            pieces = list[bytes]()
            while size:
                try:
                    pieces.append(os.pread(file.fileno(), size, at))
                except OSError as error:
                    raise self.unreadable(error) from None
                if not pieces[-1]:
                    raise self.damaged("it has become shorter")
                at, size = at + len(pieces[-1]), size - len(pieces[-1])
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

        with file:
            yield read

    def opened(self) -> IO[bytes]:
        """Opens the file for reading.

        Raises:
            OperationalError: The file is missing, or has another size.
        """
        try:
            file = open_regular(self.path)
        except OSError as error:
            raise self.unreadable(error) from None
        size = os.fstat(file.fileno()).st_size
        if size != self.segment.size:
            file.close()
            raise self.damaged(f"it has {size:,} bytes, and should have {self.segment.size:,}")
        return file

    def itemsize(self, part: Part) -> int:
        """The bytes of an element of a field."""
        return self.schema.dtype(part.name).numpy.itemsize

    # ---- errors

    def unreadable(self, error: OSError) -> OperationalError:
        """The error for a file that cannot be read."""
        return OperationalError(
            f"'{self.path}', which holds {self._title}, cannot be read: {error.strerror}",
            hint="The database and its payload directory belong together.",
        )

    def damaged(self, why: str) -> OperationalError:
        """The error for a damaged file."""
        return OperationalError(
            f"'{self.path}', which holds {self._title}, is damaged: {why}",
            hint="Restore it from a copy of the database, or DROP TENSOR and make it again.",
        )

    def wrong(self, part: Part, unit: int) -> OperationalError:
        """The error for a wrong checksum of a unit."""
        where = self.keys_of(part, unit)
        return self.damaged(f"the checksum of tile {unit} of {part.name} is wrong ({where})")

    def wrong_newer(self, part: Part, grid: TileGrid, tile: int) -> OperationalError:
        """The error for a wrong checksum of the newer version of a tile."""
        where = self.keys_in(grid, tile)
        return self.damaged(f"the checksum of tile {tile} of {part.name} is wrong ({where})")

    def keys_of(self, part: Part, unit: int) -> str:
        """The keys of a unit, as text."""
        return unit_text(self.units[part.name], self.schema, unit)

    def keys_in(self, grid: TileGrid, tile: int) -> str:
        """The keys of a tile of a grid, as text."""
        (box,) = grid.boxes(np.array([tile]))
        return box_text(self.schema, box[:, 0].tolist(), (box[:, 1] - 1).tolist())
