"""The description of a tensor's files in the catalog: segments, the places in them, newer tiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Field, Schema
from einsql.storage.database.tiles.tile_grid import TileGrid, tile_shape
from einsql.storage.database.tiles.tile_index import TileIndex

Fill = bool | int | float | None
"""A value of a catalog; None if there is none."""
DENSE, CSR = "dense", "csr"
"""Formats: the arrays of the fields, or those of a sparse matrix in CSR."""


@dataclass(frozen=True, slots=True)
class Part:
    """The place of a field's elements in a segment.

    Attributes:
        name: The field.
        offset: The offset of the first byte in the file.
        shape: The stored shape: an axis along which all elements are equal has extent 1. In a
            segment of newer tiles the elements of each row follow those of the row before.
        first: The number of its first checksum.
    """

    name: str
    offset: int
    shape: tuple[int, ...]
    first: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The description of an immutable file.

    Attributes:
        file: Its name in the payload directory.
        size: The size of the file in bytes.
        parts: One for each field.
        sums: The offset of the checksums, uint32.
        count: The number of checksums.
        frame: CRC-32 of all bytes outside of the fields' elements, checksums included.
        tile: The extents of its tiles, without those that the end of an axis shortens; None in
            format 1 and in CSR, which have one row and a checksum for each MiB of a field.
        number: The number by which the tile index names it; 0 is the base segment.
        format: `DENSE` or `CSR`. A newer CSR segment has a row and a checksum of each array for
            each block.
        fill: The value of the keys that a CSR segment does not store, or one for each value of the
            tensor if they differ; None if these keys are absent.
        statistics: The offset of the statistics, a `tile_statistics.RECORD` for each field of each
            tile; None without any, as in formats 1 and 2.
    """

    file: str
    size: int
    parts: tuple[Part, ...]
    sums: int
    count: int
    frame: int
    tile: tuple[int, ...] | None = None
    number: int = 0
    format: str = DENSE
    fill: Fill | tuple[Fill, ...] = None
    statistics: int | None = None

    @classmethod
    def read(cls, description: Mapping[str, Any]) -> Segment:
        """The segment from JSON values.

        Raises:
            ValueError: It has an unknown format.
            TypeError: An entry has another type.
        """
        parts = tuple(Part(**{**p, "shape": tuple(p["shape"])}) for p in description["parts"])
        tile = description.get("tile")
        tile = None if tile is None else tuple(tile)
        fill = description.get("fill")
        fill = tuple(map(read_value, fill)) if isinstance(fill, list) else read_value(fill)
        segment = cls(**{**description, "parts": parts, "tile": tile, "fill": fill})
        if segment.format not in (DENSE, CSR):
            raise ValueError(f"the payload has the format {segment.format!r:.60}")
        return segment

    def description(self) -> dict[str, Any]:
        """The segment as JSON values, without entries that say nothing."""
        fill = self.fill
        written = [*map(written_value, fill)] if isinstance(fill, tuple) else written_value(fill)
        values = {**asdict(self), "fill": written}
        if self.format == DENSE:
            del values["format"], values["fill"]
        if self.statistics is None:
            del values["statistics"]
        return values

    @property
    def rows(self) -> int:
        """The number of tiles in the file."""
        return self.count // max(1, len(self.parts))

    def sums_of(self, part: Part, sums: np.ndarray) -> np.ndarray:
        """The checksums of a field, by row; of MiBs from its first one on.

        Args:
            part: The field.
            sums: All checksums of the file.
        """
        by_row = self.tile is not None or self.number
        return sums[part.first :: len(self.parts)] if by_row else sums[part.first :]


@dataclass(frozen=True, slots=True)
class Layout:
    """The description of a version of a tensor.

    Attributes:
        base: The segment with all tiles.
        newer: The segments with the newest versions of some tiles.
        index: The place of each of these tiles.
        stored: The number of stored elements of a sparse tensor with newer blocks; else None.
    """

    base: Segment
    newer: tuple[Segment, ...] = ()
    index: TileIndex = field(default_factory=TileIndex)
    stored: int | None = None

    def grid(self, schema: Schema) -> TileGrid | None:
        """The tiles of the tensor, which newer tiles follow; None in format 1 and in CSR.

        Args:
            schema: The keys and fields.
        """
        base, full = self.base, schema.shape
        if base.tile is None:
            return None
        if self.newer:
            return TileGrid(full, self.newer[0].tile or ())
        if all(p.shape == full for p in base.parts):
            return TileGrid(full, base.tile)
        return TileGrid(full, tile_shape(full, widest(schema)))

    def is_uniform(self, schema: Schema) -> bool:
        """Whether newer tiles can replace those of the base segment in a copy of its file."""
        if self.base.format == CSR:
            return False
        names = tuple(f.name for f in schema.fields)
        every = (tuple(p.name for p in s.parts) for s in (self.base, *self.newer))
        full = all(p.shape == schema.shape for p in self.base.parts)
        return full and all(found == names for found in every)

    @property
    def files(self) -> frozenset[str]:
        """The names of all files."""
        return frozenset((self.base.file, *(s.file for s in self.newer)))

    @property
    def is_tiled(self) -> bool:
        """Whether the elements are in several tiles."""
        return self.base.tile is not None and self.base.rows > 1

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return self.base.size + sum(s.size for s in self.newer)

    def description(self) -> dict[str, Any]:
        """The layout as JSON values, without the tile index, of which it has the checksum."""
        newer = [s.description() for s in self.newer]
        more = {"newer": newer, "index": self.index.checksum} if newer else {}
        stored = {} if self.stored is None else {"stored": self.stored}
        return {**self.base.description(), **more, **stored}

    @classmethod
    def read(
        cls, description: Mapping[str, Any], chunks: Mapping[int, bytes], extents: Sequence[int]
    ) -> Layout:
        """The layout from JSON values and the chunks of its tile index.

        Args:
            description: The JSON values.
            chunks: The chunks.
            extents: The number of values of each key.

        Raises:
            ValueError: The index is damaged.
        """
        rest = {**description}
        newer = tuple(Segment.read(s) for s in rest.pop("newer", ()))
        checksum, stored = rest.pop("index", 0), rest.pop("stored", None)
        base = Segment.read(rest)
        of_blocks = base.format == CSR and len(extents) > 0
        index = (TileIndex.of_blocks(extents[0]) if of_blocks else TileIndex()).read(chunks)
        if index.checksum != checksum:
            raise ValueError("the checksum of its tile index is wrong")
        return cls(base, newer, index, stored)


def widest(schema: Schema) -> int:
    """The bytes of the largest element of a tensor."""
    return max((f.dtype.numpy.itemsize for f in schema.fields), default=1)


def schema_in(segment: Segment, schema: Schema) -> Schema:
    """The keys of a tensor with the fields that a dense segment of it has.

    A segment without flags has tiles in which every key exists. The flags of an older segment
    are not read if no key of the tensor is absent.
    """
    types = {f.name: f.dtype for f in schema.fields}
    fields = [Field(p.name, types.get(p.name, DType.BOOLEAN)) for p in segment.parts]
    values = [f.name for f in fields if f.name != PRESENT]
    if values != [f.name for f in schema.values] or len(fields) > len(values) + 1:
        raise ValueError("the payload has other fields")
    return Schema(schema.keys, tuple(fields))


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
