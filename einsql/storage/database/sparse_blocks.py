"""Blocks of a sparse tensor: ranges of values of its first key, and the arrays of a version.

The base segment has all rows. A newer block replaces the rows of its range, and the other rows are
those of the base segment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import Key, Schema
from einsql.core.sparse.compressed import Compressed
from einsql.core.sparse.numbering import index_type, matrix_shape
from einsql.storage.database.checks import CHUNK
from einsql.storage.database.layout import Layout, Part
from einsql.storage.database.segment_file import SegmentFile
from einsql.storage.database.tiles import tile_grid
from einsql.storage.out_of_memory import require

STARTS, COLUMNS = ".starts", ".columns"
"""The names of the arrays of the structure; not valid names of fields."""


def elements_before(matrix: Compressed, positions: np.ndarray) -> np.ndarray:
    """The number of stored elements before values of the first key.

    Args:
        matrix: The elements in key order.
        positions: Positions of the first key, up to its extent.
    """
    if len(matrix.extents) == 1:
        return np.searchsorted(matrix.columns, positions)
    return np.asarray(matrix.starts[positions], np.int64)


def cut(matrix: Compressed, lo: int, hi: int, width: int) -> np.ndarray:
    """Cuts a range of the first key into blocks of at most `tile_grid.TILE` bytes and equal sizes.

    A single value of the key may have more.

    Args:
        matrix: The elements in key order.
        lo: The first position.
        hi: The end.
        width: The bytes of an element: of its column, and of its values.

    Returns:
        The first position of each block, and the end.
    """
    first, last = elements_before(matrix, np.array([lo, hi])).tolist()
    if len(matrix.extents) == 1:
        run = _share(last - first, max(1, tile_grid.TILE // width))
        inner = matrix.columns[first + run : last : run]
        return np.concatenate([[lo], inner, [hi]]).astype(np.int64)
    starts = matrix.starts[lo : hi + 1].astype(np.int64)
    weights = (starts - first) * width + np.arange(hi - lo + 1) * matrix.starts.itemsize
    share = _share(int(weights[-1]), tile_grid.TILE)
    bounds = [0]
    while bounds[-1] < hi - lo:
        at = bounds[-1]
        end = int(np.searchsorted(weights, weights[at] + share, side="right")) - 1
        bounds.append(max(at + 1, end))
    return lo + np.array(bounds, np.int64)


def _share(total: int, most: int) -> int:
    """The size of equal parts of at most `most`."""
    return max(1, -(-total // max(1, -(-total // most))))


def element_width(base: SegmentFile) -> int:
    """The bytes of a stored element: of its column, and of its values.

    Args:
        base: The base segment of the tensor.
    """
    return sum(base.itemsize(p) for p in base.segment.parts if p.name != STARTS)


def stored_in(layout: Layout) -> int:
    """The number of stored elements of a version."""
    (columns,) = (p.shape[0] for p in layout.base.parts if p.name == COLUMNS)
    return columns if layout.stored is None else layout.stored


def rows_text(key: Key, lo: int, hi: int) -> str:
    """The values of the first key in a range of positions, as `from u = 3 to u = 7`."""
    return f"from {key.name} = {key.lo + lo} to {key.name} = {key.lo + hi - 1}"


def starts_in(schema: Schema, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    """The number of starts of rows in blocks of a tensor.

    Args:
        schema: The tensor's keys.
        lo: The first position of the first key in each block.
        hi: The end of each.
    """
    return hi - lo + 1 if len(schema.keys) > 1 else np.full(len(lo), 2)


def spans_in(name: str, schema: Schema, entries: np.ndarray) -> np.ndarray:
    """The elements of an array of newer blocks in their segments: int64 (blocks, 2).

    Args:
        name: The array.
        schema: The tensor's keys.
        entries: The entries of the blocks.
    """
    if name != STARTS:
        return np.stack([entries["start"], entries["stop"]], axis=-1)
    starts = starts_in(schema, entries["tile"], entries["end"])
    return np.stack([entries["offset"], entries["offset"] + starts], axis=-1)


@dataclass(frozen=True, slots=True, eq=False)
class Zone:
    """Adjacent rows of one source.

    Attributes:
        lo: The position of the first value of the first key.
        hi: The end.
        first: The number of the first element in the source.
        last: The end.
        block: The entry of the newer block that has the rows; None if the base segment has them.
    """

    lo: int
    hi: int
    first: int
    last: int
    block: np.void | None = None


class BlockReader:
    """Reads the arrays of a committed version, and verifies what it reads.

    Arrays that come from one source are views of it.
    """

    def __init__(
        self,
        layout: Layout,
        schema: Schema,
        base: SegmentFile,
        newer: Mapping[int, SegmentFile],
    ) -> None:
        """Describes the arrays; no file is opened.

        Args:
            layout: The description of the version.
            schema: The tensor's keys and fields.
            base: The segment with all rows.
            newer: The segments with newer blocks, by number.
        """
        self._schema = schema
        self._base = base
        self._newer = newer
        self._entries = layout.index.entries
        self._parts = {p.name: p for p in layout.base.parts}
        self._stored = stored_in(Layout(layout.base))

    def zones(self, lo: int, hi: int) -> list[Zone]:
        """The sources of a range of positions of the first key, in order; at least one."""
        zones, at = list[Zone](), lo
        first = int(np.searchsorted(self._entries["end"], lo, side="right"))
        last = int(np.searchsorted(self._entries["tile"], hi))
        for block in self._entries[first:last]:
            begin, end = int(block["tile"]), int(block["end"])
            if at < begin:
                zones.append(self._of_base(at, begin))
            zones.append(self._of_block(block, max(begin, lo), min(end, hi)))
            at = end
        if at < hi or not zones:
            zones.append(self._of_base(at, hi))
        return zones

    def structure(self, zones: Sequence[Zone]) -> Compressed:
        """The structure of zones; its extent of the first key is theirs. Its values are columns."""
        lo, hi = zones[0].lo, zones[-1].hi
        extents = (hi - lo, *self._schema.shape[1:])
        stored = sum(z.last - z.first for z in zones)
        kind = index_type(stored, *matrix_shape(self._schema.shape))
        columns = self.elements(COLUMNS, zones).astype(kind, copy=False)
        if len(extents) == 1 and lo:
            columns = columns - kind.type(lo)
        return Compressed(extents, self._starts(zones, stored, kind), columns, columns)

    def elements(self, name: str, zones: Sequence[Zone]) -> np.ndarray:
        """The columns or the values of a field in zones."""
        itemsize = self._base.itemsize(self._parts[name])
        if len(zones) > 1:
            require(itemsize * sum(z.last - z.first for z in zones))
        pieces = [
            self._in_base(name, z.first, z.last)
            if z.block is None
            else self._in_block(name, z.block)[z.first : z.last]
            for z in zones
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _starts(self, zones: Sequence[Zone], stored: int, kind: np.dtype) -> np.ndarray:
        if len(self._schema.keys) == 1:
            return np.array([0, stored], kind)
        if len(zones) == 1 and not zones[0].first:
            return self._starts_of(zones[0]).astype(kind, copy=False)
        pieces, before = list[np.ndarray](), 0
        for zone in zones:
            starts = self._starts_of(zone)
            pieces.append(starts[:-1].astype(kind) + kind.type(before - zone.first))
            before += zone.last - zone.first
        return np.concatenate([*pieces, [stored]]).astype(kind, copy=False)

    def _starts_of(self, zone: Zone) -> np.ndarray:
        """The starts of the rows of a zone in its source, and the end."""
        if zone.block is None:
            return self._in_base(STARTS, zone.lo, zone.hi + 1)
        begin = int(zone.block["tile"])
        return self._in_block(STARTS, zone.block)[zone.lo - begin : zone.hi - begin + 1]

    # ---- sources

    def _of_base(self, lo: int, hi: int) -> Zone:
        if (lo, hi) == (0, self._schema.shape[0]):
            return Zone(lo, hi, 0, self._stored)
        if len(self._schema.keys) == 1:
            columns = self._in_base(COLUMNS, 0, self._stored)
            first, last = np.searchsorted(columns, [lo, hi]).tolist()
        else:
            starts = self._in_base(STARTS, lo, hi + 1)
            first, last = int(starts[0]), int(starts[-1])
        if not 0 <= first <= last <= self._stored:
            raise self._base.damaged("its rows lie outside its elements")
        return Zone(lo, hi, first, last)

    def _of_block(self, block: np.void, lo: int, hi: int) -> Zone:
        begin, end, stored = (int(block[n]) for n in ("tile", "end", "stop"))
        stored -= int(block["start"])
        if (lo, hi) == (begin, end):
            return Zone(lo, hi, 0, stored, block)
        if len(self._schema.keys) == 1:
            first, last = np.searchsorted(self._in_block(COLUMNS, block), [lo, hi]).tolist()
        else:
            starts = self._in_block(STARTS, block)
            first, last = int(starts[lo - begin]), int(starts[hi - begin])
        if not 0 <= first <= last <= stored:
            segment = self._newer[int(block["segment"])]
            raise segment.damaged("its rows lie outside its elements")
        return Zone(lo, hi, first, last, block)

    def _in_base(self, name: str, first: int, last: int) -> np.ndarray:
        """Some elements of an array of the base segment, whose MiBs are verified."""
        part: Part = self._parts[name]
        size = self._base.itemsize(part)
        if first < last:
            self._base.verify(part, np.arange(first * size // CHUNK, -(-last * size // CHUNK)))
        return self._base.array(part)[first:last]

    def _in_block(self, name: str, block: np.void) -> np.ndarray:
        """An array of a newer block, verified."""
        segment, row = self._newer[int(block["segment"])], int(block["row"])
        part = next(p for p in segment.segment.parts if p.name == name)
        ((first, last),) = spans_in(name, self._schema, block.reshape(1)).tolist()
        elements = segment.piece(part, first, last, row)
        if elements is None:
            where = rows_text(self._schema.keys[0], int(block["tile"]), int(block["end"]))
            raise segment.damaged(f"the checksum of the block of {name} {where} is wrong")
        return elements
