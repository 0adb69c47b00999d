"""The blocks of a sparse tensor that a commit writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.core.sparse.compressed import Compressed
from einsql.storage.database.layout import CSR, Layout, Segment
from einsql.storage.database.sparse_blocks import (
    COLUMNS,
    STARTS,
    cut,
    element_width,
    elements_before,
    starts_in,
    stored_in,
)
from einsql.storage.database.sparse_payload import arrays_of
from einsql.storage.database.stored import FieldsInFiles
from einsql.storage.database.tiles.newer_tiles import next_number, replaced_segments
from einsql.storage.database.tiles.tile_index import BLOCK_ENTRY
from einsql.storage.sparse_fields import SparseFields, sparse_fields_of

LEAST = 4
"""A commit writes a new base segment if less than 1/4 of the elements of the present one would be
read: the rest takes space on the disk. Appending never does so."""


@dataclass(frozen=True, slots=True, eq=False)
class NewerBlocks:
    """Blocks to be written as a segment; see `ChangedPart`.

    Attributes:
        fields: The elements with the changes.
        schema: The tensor's keys, and the arrays of the blocks as fields.
        rows: The first and the end position of the first key of each block, increasing: int64
            (blocks, 2).
        spans: The first and the end element of each block: int64 (blocks, 2).
        segment: The description of the segment without its places.
        replaced: The numbers of the segments of which no block remains.
    """

    fields: SparseFields
    schema: Schema
    rows: np.ndarray
    spans: np.ndarray
    segment: Segment
    replaced: frozenset[int]

    @property
    def boxes(self) -> np.ndarray:
        """The positions of the blocks: int64 (blocks, keys, 2)."""
        whole_keys = [(0, k.extent) for k in self.schema.keys]
        boxes = np.array([whole_keys] * len(self.rows), np.int64)
        boxes[:, 0] = self.rows
        return boxes

    @property
    def sizes(self) -> Mapping[str, np.ndarray]:
        """The number of elements of each block by array."""
        sizes = dict.fromkeys((f.name for f in self.schema.fields), np.diff(self.spans)[:, 0])
        return sizes | {STARTS: starts_in(self.schema, *self.rows.T)}

    def pieces(self, name: str) -> Iterator[np.ndarray]:
        """An array's elements of each block; its starts count from its first element."""
        matrix, kind = self.fields.matrix, self.schema.dtype(name).numpy
        elements = matrix.columns if name == COLUMNS else matrix.starts
        if name not in (STARTS, COLUMNS):
            elements = self.fields.taken(name).values
        for (lo, hi), (first, last) in zip(self.rows.tolist(), self.spans.tolist(), strict=True):
            if name != STARTS:
                yield elements[first:last].astype(kind, copy=False)
            elif len(self.schema.keys) > 1:
                yield (elements[lo : hi + 1] - elements.dtype.type(first)).astype(kind, copy=False)
            else:
                yield np.array([0, last - first], kind)

    def applied(self, layout: Layout, segment: Segment) -> Layout:
        """The layout in which the blocks have been written.

        Args:
            layout: The layout before.
            segment: The written segment.
        """
        starts, elements = self.sizes[STARTS], self.sizes[COLUMNS]
        entries = np.empty(len(self.rows), BLOCK_ENTRY)
        entries["tile"], entries["end"] = self.rows.T
        entries["stop"] = np.cumsum(elements)
        entries["start"] = entries["stop"] - elements
        entries["offset"] = np.cumsum(starts) - starts
        entries["segment"], entries["row"] = segment.number, np.arange(len(self.rows))
        kept = tuple(s for s in layout.newer if s.number not in self.replaced)
        index = layout.index.with_entries(entries)
        return Layout(layout.base, (*kept, segment), index, self.fields.stored)


def changed_blocks(fields: FieldsInFiles, schema: Schema) -> NewerBlocks | None:
    """The blocks that a commit writes; None for all rows, as a base segment.

    A newer block with changes is written in all its range, in several blocks if it has grown. Of
    the rows of the base segment, which no block has, those around the changes become blocks.

    Args:
        fields: Sparse fields with changes.
        schema: The tensor's keys and fields.
    """
    few = sparse_fields_of(fields)
    assert few is not None
    layout, matrix, width = fields.layout, few.matrix, element_width(fields.base)
    entries = layout.index.entries
    block_of = np.searchsorted(entries["tile"], fields.dirty, side="right") - 1
    in_block = block_of >= 0
    in_block[in_block] = fields.dirty[in_block] < entries["end"][block_of[in_block]]
    changed = np.zeros(len(entries), np.bool_)
    changed[block_of[in_block]] = True
    live = entries[~changed]
    rows = _around(fields.dirty[~in_block], entries, matrix, width)
    replaced = replaced_segments(layout, live, int(changed.sum()) + len(rows))
    moved = np.isin(live["segment"], list(replaced))
    for block in (*entries[changed], *live[moved]):
        bounds = cut(matrix, int(block["tile"]), int(block["end"]), width)
        rows.append(np.stack([bounds[:-1], bounds[1:]], axis=-1))
    written = np.concatenate(rows)
    written = written[np.argsort(written[:, 0])]
    others = live[~moved]
    ranges = np.concatenate([written, np.stack([others["tile"], others["end"]], axis=-1)])
    left = matrix.stored - int(np.diff(elements_before(matrix, ranges)).sum())
    if not left or left * LEAST < stored_in(Layout(layout.base)):
        return None
    spans = elements_before(matrix, written)
    arrays = arrays_of(schema, int(np.diff(spans).sum()))
    segment = Segment("", 0, (), 0, 0, 0, None, next_number(layout), CSR, layout.base.fill)
    named = Schema(schema.keys, arrays.fields)
    return NewerBlocks(few, named, written, spans, segment, replaced)


def _around(
    dirty: np.ndarray, entries: np.ndarray, matrix: Compressed, width: int
) -> list[np.ndarray]:
    """The blocks of rows between newer blocks that have changes: int64 (blocks, 2) each.

    Args:
        dirty: The positions of the first key with changes, increasing, in no newer block.
        entries: The newer blocks.
        matrix: The elements after the changes.
        width: The bytes of an element.
    """
    rows = list[np.ndarray]()
    gaps = np.searchsorted(entries["tile"], dirty)
    for gap in np.unique(gaps).tolist():
        lo = int(entries["end"][gap - 1]) if gap else 0
        extent = matrix.extents[0]
        hi = int(entries["tile"][gap]) if gap < len(entries) else extent
        bounds = cut(matrix, lo, hi, width)
        here = np.unique(np.searchsorted(bounds, dirty[gaps == gap], side="right") - 1)
        rows.append(np.stack([bounds[here], bounds[here + 1]], axis=-1))
    return rows
