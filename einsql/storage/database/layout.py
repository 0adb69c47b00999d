"""The description of a payload file in the catalog: the places of its fields and checksums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from einsql.core.records import dataclass
from einsql.core.sparse.matrix import Fill

DENSE, CSR = "dense", "csr"
"""Formats: the arrays of the fields, or those of a sparse matrix in CSR."""


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
        format: `DENSE` or `CSR`.
        fill: The value of the keys that a CSR payload does not store; None if they are absent.
    """

    file: str
    size: int
    parts: tuple[Part, ...]
    sums: int
    count: int
    frame: int
    format: str = DENSE
    fill: Fill = None

    @classmethod
    def read(cls, description: Mapping[str, Any]) -> Layout:
        """The layout from JSON values.

        Raises:
            ValueError: The payload has an unknown format.
        """
        parts = tuple(Part(**{**p, "shape": tuple(p["shape"])}) for p in description["parts"])
        layout = cls(**{**description, "parts": parts, "fill": read_value(description.get("fill"))})
        if layout.format not in (DENSE, CSR):
            raise ValueError(f"the payload has the format {layout.format!r:.60}")
        return layout

    def written(self) -> dict[str, Any]:
        """The layout as JSON values; a dense one has no entries of sparse ones."""
        values = {**asdict(self), "fill": written_value(self.fill)}
        if self.format == DENSE:
            del values["format"], values["fill"]
        return values


def written_value(value: Fill) -> Any:
    """A default as a JSON value; floats are hexadecimal."""
    return value if value is None or isinstance(value, bool | int) else float(value).hex()


def read_value(value: object) -> Fill:
    """A default from a JSON value.

    Raises:
        TypeError: It is of another type.
    """
    if value is None or isinstance(value, bool | int):
        return value
    if not isinstance(value, str):
        raise TypeError(f"its row has {value!r:.60} where str belongs")
    return float.fromhex(value)
