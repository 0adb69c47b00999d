"""The tile index: the places of the newest versions of a tensor's tiles, in chunks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import field
from typing import Self

import numpy as np

from einsql.core.records import dataclass

ENTRY = np.dtype([("tile", "<i8"), ("start", "<i8"), ("segment", "<u4"), ("row", "<u4")])
"""A tile's number, the number of elements before it in its segment, the segment, and its row."""
PER_CHUNK = 2**12
"""Tiles of a chunk, which a commit writes if it changes one of them: at most 96 KiB."""


@dataclass(frozen=True, slots=True)
class TileIndex:
    """The tiles that have a newer version than that of the base segment; immutable.

    Attributes:
        chunks: The entries of each chunk that has any, by its number, as bytes.
    """

    chunks: Mapping[int, bytes] = field(default_factory=dict)

    @classmethod
    def read(cls, chunks: Mapping[int, bytes]) -> Self:
        """The index of stored chunks.

        Raises:
            ValueError: A chunk has no entries, or entries of other chunks or in another order.
        """
        for number, chunk in chunks.items():
            if not chunk or len(chunk) % ENTRY.itemsize:
                raise ValueError(f"chunk {number} of its tile index has {len(chunk)} bytes")
            tiles = np.frombuffer(chunk, ENTRY)["tile"]
            if (tiles // PER_CHUNK != number).any() or (np.diff(tiles) <= 0).any():
                raise ValueError(f"chunk {number} of its tile index has other tiles")
        return cls(chunks)

    @property
    def checksum(self) -> int:
        """CRC-32 of the numbers and the checksums of all chunks; 0 without any."""
        sums = [(n, zlib.crc32(chunk)) for n, chunk in sorted(self.chunks.items())]
        return zlib.crc32(np.array(sums, "<i8").tobytes()) if sums else 0

    @property
    def entries(self) -> np.ndarray:
        """All entries, in the order of the tiles."""
        ordered = [chunk for _, chunk in sorted(self.chunks.items())]
        return np.frombuffer(b"".join(ordered), ENTRY)

    def with_entries(self, entries: np.ndarray) -> TileIndex:
        """The index in which tiles have new places.

        Args:
            entries: The new entries, in the order of the tiles.
        """
        chunks = dict(self.chunks)
        numbers = entries["tile"] // PER_CHUNK
        for number in np.unique(numbers).tolist():
            new = entries[numbers == number]
            old = np.frombuffer(chunks.get(number, b""), ENTRY)
            both = np.concatenate([old[~np.isin(old["tile"], new["tile"])], new])
            chunks[number] = both[np.argsort(both["tile"])].tobytes()
        return TileIndex(chunks)
