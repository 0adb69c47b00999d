"""The parts of a field that have a checksum each: tiles, or in format 1 a MiB of its bytes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.storage.database.checks import CHUNK, chunks_of
from einsql.storage.database.layout import Part, Segment
from einsql.storage.database.tiles.tile_grid import TileGrid


@dataclass(frozen=True, slots=True)
class Units(ABC):
    """The units of a field in a segment with all its elements, numbered in C order.

    Attributes:
        shape: The stored shape.
        full: The shape of the keys.
        itemsize: Size of an element in bytes.
    """

    shape: tuple[int, ...]
    full: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return prod(self.shape) * self.itemsize

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of units."""

    @abstractmethod
    def spans(self, units: np.ndarray) -> np.ndarray:
        """The first and the end byte of units: int64 (units, 2)."""

    @abstractmethod
    def covering(self, box: np.ndarray) -> np.ndarray:
        """The numbers of the units that contain a box of positions, increasing.

        Args:
            box: int64 (axes, 2), within the shape of the keys.
        """

    def _stored(self, box: np.ndarray) -> np.ndarray:
        """The box in the stored shape: an axis of equal elements has extent 1."""
        repeated = np.array(self.shape, np.int64) != np.array(self.full, np.int64)
        return np.where(repeated[:, None], (box[:, 1:] > box[:, :1]) * (0, 1), box)


@dataclass(frozen=True, slots=True)
class Tiled(Units):
    """Units that are tiles.

    Attributes:
        grid: The tiles of the segment.
    """

    grid: TileGrid

    @property
    def count(self) -> int:
        """See `Units.count`."""
        return self.grid.count

    def spans(self, units: np.ndarray) -> np.ndarray:
        """See `Units.spans`."""
        return self.grid.spans(units, self.shape) * self.itemsize

    def covering(self, box: np.ndarray) -> np.ndarray:
        """See `Units.covering`."""
        return self.grid.covering(self._stored(box))


@dataclass(frozen=True, slots=True)
class Chunked(Units):
    """The units of format 1."""

    @property
    def count(self) -> int:
        """See `Units.count`."""
        return -(-self.nbytes // CHUNK)

    def spans(self, units: np.ndarray) -> np.ndarray:
        """See `Units.spans`."""
        lo = units * CHUNK
        return np.stack([lo, np.minimum(lo + CHUNK, self.nbytes)], axis=-1)

    def covering(self, box: np.ndarray) -> np.ndarray:
        """See `Units.covering`."""
        return chunks_of(self.shape, self.itemsize, self._stored(box))


def stored_shape(parts: tuple[Part, ...], rank: int) -> tuple[int, ...]:
    """The extents that the fields of a segment store along each axis, at most."""
    return tuple(max((p.shape[axis] for p in parts), default=1) for axis in range(rank))


def units_of(segment: Segment, part: Part, schema: Schema) -> Units:
    """The units of a field of a segment with all elements."""
    full, itemsize = schema.shape, schema.dtype(part.name).numpy.itemsize
    if segment.tile is None:
        return Chunked(part.shape, full, itemsize)
    grid = TileGrid(stored_shape(segment.parts, len(full)), segment.tile)
    return Tiled(part.shape, full, itemsize, grid)


def unit_text(units: Units, schema: Schema, unit: int) -> str:
    """The keys of a unit, as `from i = 0, j = 0 to i = 3, j = 7`."""
    ((lo, hi),) = (units.spans(np.array([unit])) // units.itemsize).tolist()
    shape = units.shape
    return box_text(schema, _cell(lo, shape), _cell(max(lo, hi - 1), shape))


def _cell(flat: int, shape: tuple[int, ...]) -> list[int]:
    return [int(n) for n in np.unravel_index(flat, shape)] if shape else []


def box_text(schema: Schema, first: Sequence[int], last: Sequence[int]) -> str:
    """Keys as `from i = 0, j = 0 to i = 3, j = 7`.

    Args:
        schema: The keys.
        first: The positions of the first keys.
        last: The positions of the last keys.
    """
    ends = [
        ", ".join(f"{k.name} = {k.lo + n}" for k, n in zip(schema.keys, cell, strict=True))
        for cell in (first, last)
    ]
    return f"from {ends[0]} to {ends[1]}"
