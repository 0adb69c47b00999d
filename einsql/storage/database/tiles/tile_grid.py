"""Tiles: boxes of keys whose elements follow each other in C order, of about a MiB."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from einsql.core.records import dataclass
from einsql.storage.undo_log import Index

TILE = 2**20
"""Most bytes of a field in a tile: what the first access to an element reads and verifies."""


def tile_shape(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The extents of the tiles of an array: 1 along the first axes, all of the last ones.

    Along the axis between them tiles have equal extents, except for the last.

    Args:
        shape: The array's shape.
        itemsize: Size of the largest element in bytes.
    """
    row = itemsize
    for axis in range(len(shape) - 1, -1, -1):
        if row * shape[axis] > TILE:
            many = -(-shape[axis] // max(1, TILE // row))
            run = -(-shape[axis] // many)
            return (*(1 for _ in shape[:axis]), run, *shape[axis + 1 :])
        row *= shape[axis]
    return tuple(max(1, extent) for extent in shape)


@dataclass(frozen=True, slots=True)
class TileGrid:
    """An array's tiles, numbered in C order.

    Attributes:
        shape: The array's shape.
        tile: The extents of a tile that no end of an axis shortens.
    """

    shape: tuple[int, ...]
    tile: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """The number of tiles along each axis."""
        return tuple(-(-n // t) for n, t in zip(self.shape, self.tile, strict=True))

    @property
    def count(self) -> int:
        """The number of tiles."""
        return prod(self.counts)

    def boxes(self, tiles: np.ndarray) -> np.ndarray:
        """The positions of tiles.

        Args:
            tiles: Their numbers.

        Returns:
            int64 (tiles, axes, 2).
        """
        if not self.shape:
            return np.zeros((len(tiles), 0, 2), np.int64)
        extents = np.array(self.tile, np.int64)
        lo = np.stack(np.unravel_index(tiles, self.counts), axis=-1) * extents
        hi = np.minimum(lo + extents, np.array(self.shape, np.int64))
        return np.stack([lo, hi], axis=-1)

    def spans(self, tiles: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """The first and the end element of tiles in a field's elements in C order.

        Args:
            tiles: Their numbers.
            shape: The stored shape of the field. Along an axis of extent 1 its elements belong to
                the first tile, and the other tiles have none.

        Returns:
            int64 (tiles, 2).
        """
        boxes = self.boxes(tiles)
        lo, extents = boxes[:, :, 0], boxes[:, :, 1] - boxes[:, :, 0]
        repeated = np.array(shape, np.int64) != np.array(self.shape, np.int64)
        extents = np.where(repeated, lo == 0, extents)
        steps = np.array([prod(shape[n + 1 :]) for n in range(len(shape))], np.int64)
        start = (np.where(repeated, 0, lo) * steps).sum(axis=1)
        return np.stack([start, start + extents.prod(axis=1, dtype=np.int64)], axis=-1)

    def covering(self, box: np.ndarray) -> np.ndarray:
        """The numbers of the tiles that contain a box of positions, increasing.

        Args:
            box: int64 (axes, 2), within the shape.
        """
        if (box[:, 0] >= box[:, 1]).any():
            return np.zeros(0, np.int64)
        numbers = np.zeros((), np.int64)
        for (lo, hi), extent, many in zip(box.tolist(), self.tile, self.counts, strict=True):
            numbers = numbers[..., None] * many + np.arange(lo // extent, (hi - 1) // extent + 1)
        return numbers.reshape(-1)

    def of_cells(self, at: Index, *, flat: bool) -> np.ndarray:
        """The numbers of the tiles that an index selects cells of, increasing.

        Args:
            at: Slices, or an array of positions for each axis, or a mask; or positions in C order.
            flat: Whether these are positions in C order.
        """
        if isinstance(at, np.ndarray) and not flat:
            at, flat = np.flatnonzero(at), True
        if flat:
            at = np.unravel_index(at, self.shape) if self.shape else ()
        if not self.shape:
            return np.zeros(1, np.int64)
        if all(isinstance(span, slice) for span in at):
            return self.covering(np.array([(s.start, s.stop) for s in at], np.int64).reshape(-1, 2))
        numbers = np.zeros((), np.int64)
        for positions, extent, many in zip(at, self.tile, self.counts, strict=True):
            numbers = numbers * many + np.asarray(positions) // extent
        return np.unique(numbers)
