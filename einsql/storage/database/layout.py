"""The description of a payload file in the catalog: the places of its fields and checksums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from einsql.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """The place of a field's elements in the file.

    Attributes:
        name: The field.
        offset: The offset of the first byte in the file.
        shape: The stored shape: an axis along which all elements are equal has extent 1.
        first: The number of its first checksum.
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
        size: The size of the file in bytes.
        parts: One for each field.
        sums: The offset of the checksums, uint32.
        count: The number of checksums.
        frame: CRC-32 of all bytes outside of the fields' elements, checksums included.
    """

    file: str
    size: int
    parts: tuple[Part, ...]
    sums: int
    count: int
    frame: int

    @classmethod
    def read(cls, description: Mapping[str, Any]) -> Layout:
        """The layout from JSON values."""
        parts = tuple(Part(**{**p, "shape": tuple(p["shape"])}) for p in description["parts"])
        return cls(**{**description, "parts": parts})
