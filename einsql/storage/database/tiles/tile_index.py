"""The tile index: the places of the newest versions of a tensor's tiles, in chunks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Self

import numpy as np

from einsql.core.records import dataclass

ENTRY = np.dtype([("tile", "<i8"), ("start", "<i8"), ("segment", "<u4"), ("row", "<u4")])
"""A tile's number, the number of elements before it in its segment, the segment, and its row."""
BLOCK_ENTRY = np.dtype(
    [("tile", "<i8"), ("end", "<i8"), ("start", "<i8"), ("stop", "<i8"), ("offset", "<i8"),
     ("segment", "<u4"), ("row", "<u4")]
)  # fmt: skip
"""A block of a sparse tensor: the positions of its first and its end value of the first key, the
numbers of stored elements before its first one and before its end in its segment, the number of
starts of rows before its first one, the segment, and its row."""
PER_CHUNK = 2**12
"""Tiles of a chunk, which a commit writes if it changes one of them: at most 96 KiB."""
CHUNKS = 64
"""Chunks of the blocks of a sparse tensor: a commit writes those with a block that it changes."""


@dataclass(frozen=True, slots=True)
class TileIndex:
    """The tiles that have a newer version than that of the base segment; immutable.

    Attributes:
        chunks: The entries of each chunk that has any, by its number, as bytes.
        entry: `ENTRY`, or `BLOCK_ENTRY` of a sparse tensor.
        per_chunk: The number of tiles of a chunk; of a sparse tensor of values of the first key.
    """

    chunks: Mapping[int, bytes] = field(default_factory=dict)
    entry: np.dtype = ENTRY
    per_chunk: int = PER_CHUNK

    @classmethod
    def of_blocks(cls, extent: int) -> Self:
        """An index without blocks of a sparse tensor.

        Args:
            extent: The number of values of the first key.
        """
        return cls({}, BLOCK_ENTRY, max(1, -(-extent // CHUNKS)))

    def read(self, chunks: Mapping[int, bytes]) -> TileIndex:
        """The index of stored chunks, of the same kind.

        Raises:
            ValueError: A chunk has no entries, or entries of other chunks or in another order.
        """
        for number, chunk in chunks.items():
            if not chunk or len(chunk) % self.entry.itemsize:
                raise ValueError(f"chunk {number} of its tile index has {len(chunk)} bytes")
            tiles = np.frombuffer(chunk, self.entry)["tile"]
            if (tiles // self.per_chunk != number).any() or (np.diff(tiles) <= 0).any():
                raise ValueError(f"chunk {number} of its tile index has other tiles")
        return replace(self, chunks=chunks)

    @property
    def checksum(self) -> int:
        """CRC-32 of the numbers and the checksums of all chunks; 0 without any."""
        sums = [(n, zlib.crc32(chunk)) for n, chunk in sorted(self.chunks.items())]
        return zlib.crc32(np.array(sums, "<i8").tobytes()) if sums else 0

    @property
    def entries(self) -> np.ndarray:
        """All entries, in the order of the tiles."""
        ordered = [chunk for _, chunk in sorted(self.chunks.items())]
        return np.frombuffer(b"".join(ordered), self.entry)

    def with_entries(self, entries: np.ndarray) -> TileIndex:
        """The index in which tiles have new places.

        Args:
            entries: The new entries, in the order of the tiles.
        """
        chunks = dict(self.chunks)
        numbers = entries["tile"] // self.per_chunk
        for number in np.unique(numbers).tolist():
            new = entries[numbers == number]
            old = np.frombuffer(chunks.get(number, b""), self.entry)
            both = np.concatenate([old[~np.isin(old["tile"], new["tile"])], new])
            chunks[number] = both[np.argsort(both["tile"])].tobytes()
        return replace(self, chunks=chunks)
