"""Copies a stored tensor's base segment with its newer tiles in their places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import IO

import numpy as np

from einsql.storage.database.checks import checksums
from einsql.storage.database.layout import Part, Segment
from einsql.storage.database.payload import SLAB, Progress, frame_of, with_frame
from einsql.storage.database.segment_file import FRAME
from einsql.storage.database.stored import FieldsInFiles
from einsql.storage.database.tiles.tile_statistics import RECORD, UNKNOWN
from einsql.storage.database.units import Units
from einsql.storage.files.drafts import write_all

Read = Callable[[int, int], bytes]
"""Reads a number of bytes at an offset."""


def merged_into(file: IO[bytes], fields: FieldsInFiles, tick: Progress) -> Segment:
    """Copies the base segment into another file; each tile is verified before its copy.

    Args:
        file: An empty file, open for writing and reading.
        fields: The stored fields, without changes that are not committed.
        tick: Callback with the number of bytes after each piece; raises to cancel.

    Returns:
        The description of the copy.

    Raises:
        OperationalError: A segment is missing, truncated or damaged.
        OSError: The file cannot be written.
    """
    base, schema, target = fields.base.segment, fields.base.schema, file.fileno()
    with ExitStack() as stack:
        read = stack.enter_context(fields.base.reading())
        reads = {n: stack.enter_context(s.reading()) for n, s in fields.newer.items()}
        newer = _Newer(fields, reads)

        def copied(lo: int, hi: int) -> bytes:
            between = read(lo, hi - lo)
            write_all(target, memoryview(between), lo)
            return between

        if frame_of(base, schema, copied) != base.frame:
            raise fields.base.damaged(FRAME)
        sums = np.frombuffer(read(base.sums, 4 * base.count), "<u4").copy()
        for part in base.parts:
            units = fields.base.units[part.name]
            expected = base.sums_of(part, sums)
            for at, slab, numbers in _slabs(read, part, units):
                spans = units.spans(numbers) - (at - part.offset)
                for n in newer.places.keys() & set(numbers.tolist()) if newer.places else ():
                    lo, hi = spans[n - int(numbers[0])].tolist()
                    slab[lo:hi], expected[n] = newer.read(n, part.name, hi - lo)
                actual = checksums([memoryview(slab)[lo:hi] for lo, hi in spans.tolist()])
                wrong = np.flatnonzero(expected[numbers] != np.array(actual, np.uint32))
                if len(wrong):
                    raise fields.base.wrong(part, int(numbers[wrong[0]]))
                write_all(target, memoryview(slab), at)
                tick(len(slab))
        write_all(target, sums.view(np.uint8).data, base.sums)
        if base.statistics is not None:
            table = newer.over(statistics_in(base, read))
            write_all(target, table.reshape(-1).view(np.uint8).data, base.statistics)
    return with_frame(base, schema, target) if fields.newer else base


def _slabs(read: Read, part: Part, units: Units) -> Iterator[tuple[int, bytearray, np.ndarray]]:
    """The bytes of some units at a time, with their offset and the numbers of the units."""
    ends = units.spans(np.arange(units.count))[:, 1]
    first = 0
    while first < units.count:
        start = 0 if first == 0 else int(ends[first - 1])
        last = max(first + 1, int(np.searchsorted(ends, start + SLAB, side="right")))
        numbers = np.arange(first, last)
        at = part.offset + start
        yield at, bytearray(read(at, int(ends[last - 1]) - start)), numbers
        first = last


class _Newer:
    """The newer versions of tiles.

    Attributes:
        places: The number of elements before each tile in its segment, the segment, and the row.
    """

    def __init__(self, fields: FieldsInFiles, reads: Mapping[int, Read]) -> None:
        self._entries = fields.layout.index.entries
        entries = self._entries.tolist()
        self.places = {tile: (start, number, row) for tile, start, number, row in entries}
        self._segments = fields.newer
        self._grid = fields.layout.grid(fields.base.schema)
        self._reads = reads

    def read(self, tile: int, name: str, size: int) -> tuple[bytes, int]:
        """The bytes of a field in a tile, and its checksum.

        Args:
            tile: The tile.
            name: The field.
            size: The number of bytes.

        Raises:
            OperationalError: The checksum is wrong.
        """
        start, number, row = self.places[tile]
        file, read = self._segments[number], self._reads[number]
        segment = file.segment
        part = next(p for p in segment.parts if p.name == name)
        at = segment.sums + 4 * (part.first + row * len(segment.parts))
        (crc,) = np.frombuffer(read(at, 4), "<u4").tolist()
        elements = read(part.offset + start * file.itemsize(part), size)
        if checksums([memoryview(elements)]) != [crc]:
            assert self._grid is not None  # there are newer tiles
            raise file.wrong_newer(part, self._grid, tile)
        return elements, int(crc)

    def over(self, table: np.ndarray) -> np.ndarray:
        """The statistics of the newest versions of all tiles.

        Args:
            table: The statistics of the base segment.
        """
        newest = table.copy()
        for number, file in self._segments.items():
            here = self._entries[self._entries["segment"] == number]
            known = statistics_in(file.segment, self._reads[number])
            newest[here["tile"]] = known[here["row"]]
        return newest


def statistics_in(segment: Segment, read: Read) -> np.ndarray:
    """The statistics of each field in each row of a segment, (rows, fields)."""
    shape = (segment.rows, len(segment.parts))
    if segment.statistics is None:
        return np.full(shape, np.array(UNKNOWN, RECORD))
    nbytes = RECORD.itemsize * shape[0] * shape[1]
    return np.frombuffer(read(segment.statistics, nbytes), RECORD).reshape(shape)
