"""The description of a payload file in the catalog: the places of its fields and checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Part:
    """The place of a field's elements in the file.

    Attributes:
        name: The field.
        offset: Of the first byte in the file.
        shape: What is stored: an axis along which everything is the same has extent 1.
        first: Number of its first checksum.
    """

    name: str
    offset: int
    shape: tuple[int, ...]
    first: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The description of a payload in the catalog.

    Attributes:
        file: Its name in the payload directory.
        size: Bytes.
        parts: One for each field.
        sums: Offset of the checksums, uint32.
        count: The number of checksums.
        frame: CRC-32 of all other bytes than the fields' elements, with the checksums.
    """

    file: str
    size: int
    parts: tuple[Part, ...]
    sums: int
    count: int
    frame: int

    def told(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @classmethod
    def read(cls, description: Mapping[str, Any]) -> Layout:
        """From JSON."""
        parts = tuple(Part(**{**p, "shape": tuple(p["shape"])}) for p in description["parts"])
        return cls(**{**description, "parts": parts})
