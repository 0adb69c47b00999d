"""Sparse tensors in segments: the starts of rows, the columns and the values are columns.

A base segment has them as the parts of its only row (`payload.write_csr`), and its description in
the catalog says that they are a sparse matrix (`Segment.format`). A newer segment has a row for
each block (`sparse_blocks.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import IO

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.core.sparse.compressed import Compressed
from einsql.core.sparse.matrix import Fills
from einsql.core.sparse.numbering import index_type, matrix_shape
from einsql.errors import InterfaceError
from einsql.storage.database.layout import Fill, Layout, Segment
from einsql.storage.database.payload import Progress, write_csr
from einsql.storage.database.segment_file import SegmentFile
from einsql.storage.database.sparse_blocks import (
    COLUMNS,
    STARTS,
    BlockReader,
    Zone,
    element_width,
    stored_in,
)
from einsql.storage.database.stored import FieldsInFiles
from einsql.storage.sparse_fields import SparseFields, stored_fields


def arrays_of(schema: Schema, stored: int) -> Schema:
    """The schema of the arrays in a segment.

    Args:
        schema: The tensor's keys and fields.
        stored: The number of stored elements.
    """
    index = DType.of(index_type(stored, *matrix_shape(schema.shape)))
    assert index is not None
    fields = (Field(STARTS, index), Field(COLUMNS, index), *schema.values)
    return Schema((Key("element", 0, stored),), fields)


def arrays_in(segment: Segment, schema: Schema) -> Schema:
    """The schema of the arrays in a segment of a tensor.

    Args:
        segment: A segment of format CSR.
        schema: The tensor's keys and fields.

    Raises:
        ValueError: The tensor has no keys, or the arrays are not those of its elements.
    """
    if not schema.keys or not schema.values or schema.has(PRESENT) != (segment.fill is None):
        raise ValueError("a sparse payload has keys and a value")
    every = segment.fill if isinstance(segment.fill, tuple) else ()
    if every and (len(every) != len(schema.values) or None in every):
        raise ValueError("the payload has values of other fields")
    try:
        _read(segment.fill, schema)
    except OverflowError:
        raise ValueError("the payload has values of other types") from None
    columns = [prod(p.shape) for p in segment.parts if p.name == COLUMNS]
    if len(columns) != 1 or columns[0] < 0:
        raise ValueError("the payload has no columns")
    arrays = arrays_of(schema, columns[0])
    rows, _ = matrix_shape(schema.shape)
    shapes = {f.name: (columns[0],) for f in arrays.fields} | {STARTS: (rows + 1,)}
    if segment.number and segment.parts[0].name == STARTS:  # of some rows, as the index says
        shapes[STARTS] = (prod(segment.parts[0].shape),)
    if [(p.name, p.shape) for p in segment.parts] != list(shapes.items()):
        raise ValueError("the payload has other arrays")
    return arrays


def _written(fills: Fills | None, schema: Schema) -> Fill | tuple[Fill, ...]:
    """The values of the keys that are not stored: one if they are equal, else one per field."""
    if fills is None:
        return None
    every: list[Fill] = [fills[f.name].item() for f in schema.values]
    kinds = {(type(value), repr(value)) for value in every}
    return every[0] if len(kinds) == 1 else tuple(every)


def _read(fill: Fill | tuple[Fill, ...], schema: Schema) -> Fills | None:
    """The values of the keys that are not stored, as arrays of the fields' dtypes."""
    if fill is None:
        return None
    every = fill if isinstance(fill, tuple) else (fill,) * len(schema.values)
    return {
        f.name: np.asarray(value, f.dtype.numpy)
        for f, value in zip(schema.values, every, strict=True)
    }


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """The elements of a stored tensor after changes that are not committed.

    Attributes:
        structure: The positions of the elements in key order; its values are not used.
        values: The values of each field.
        rows: The positions of the first key with changes, increasing.
    """

    structure: Compressed
    values: Mapping[str, np.ndarray]
    rows: np.ndarray


def write(
    file: IO[bytes], name: str, schema: Schema, fields: SparseFields, tick: Progress
) -> Segment:
    """Writes a sparse tensor as a segment, by rows of its first key.

    Args:
        file: An empty file, open for writing and reading.
        name: Its final name.
        schema: Keys and fields.
        fields: The fields.
        tick: Callback with the number of bytes after each piece.

    Raises:
        OSError: The disk is full, or the file cannot be written.
    """
    ordered = fields.in_key_order()
    matrix = ordered.taken()
    described = Schema(schema.keys, arrays_of(schema, matrix.stored).fields)
    index = described.dtype(STARTS).numpy
    arrays = {f.name: ordered.taken(f.name).values for f in schema.values}
    arrays[STARTS] = matrix.starts.astype(index, copy=False)
    arrays[COLUMNS] = matrix.columns.astype(index, copy=False)
    return write_csr(file, name, described, arrays, _written(fields.fills, schema), tick)


class StoredSparseFields(SparseFields, FieldsInFiles):
    """The fields of a sparse tensor in segments, with changes that are not committed.

    The arrays of a version without newer blocks are views of its file. Those of another version are
    copied into memory when they are first read.
    """

    def __init__(
        self,
        layout: Layout,
        schema: Schema,
        base: SegmentFile,
        newer: Mapping[int, SegmentFile],
        change: Change | None = None,
    ) -> None:
        """Describes the fields; no file is opened.

        Args:
            layout: The catalog's description.
            schema: The tensor's keys and fields.
            base: The segment with all rows, of format CSR.
            newer: The segments with newer blocks, by number.
            change: The elements after changes that are not committed.
        """
        first, *more = schema.values
        nothing = np.zeros(0, first.dtype.numpy)
        unread = Compressed(schema.shape, nothing, nothing, nothing)
        names = (f.name for f in more)
        fills = _read(layout.base.fill, schema)
        super().__init__(unread, False, fills, first.name, more=dict.fromkeys(names, nothing))
        self.layout = layout
        self.base = base
        self.newer = newer
        self.schema = schema
        self._change = change
        self._reader = BlockReader(layout, schema, base, newer)
        self._zones: list[Zone] = []
        self._partly: tuple[int, int, SparseFields] | None = None
        """The range of the last partial read, and its result."""
        self._room = self.nbytes(schema)
        """The bytes that partial reads may still take."""
        self._values: dict[str, np.ndarray] = {} if change is None else {**change.values}
        self._matrix: Compressed | None = None
        if change is not None:
            self._matrix = change.structure.of(self._values[self.name])
            self.known_order = True

    @property
    def matrix(self) -> Compressed:
        """The stored elements, all of them verified by the first read."""
        if self._matrix is None:
            zones = self._reader.zones(0, self.schema.shape[0])
            structure = self._structure(zones)
            self._zones = zones
            self._matrix = structure.of(self._values_of(self.name))
        return self._matrix

    def taken(self, name: str | None = None) -> Compressed:
        """See `SparseFields.taken`."""
        matrix = self.matrix
        return matrix if name in (None, self.name) else matrix.of(self._values_of(str(name)))

    def _values_of(self, name: str) -> np.ndarray:
        """The values of a field; `_zones` are known."""
        if name not in self._values:
            self._values[name] = self._reader.elements(name, self._zones)
        return self._values[name]

    def _structure(self, zones: Sequence[Zone]) -> Compressed:
        """The checked structure of zones."""
        try:
            return self._reader.structure(zones).checked()
        except InterfaceError as error:
            raise self.base.damaged(error.reason) from None

    def local(self) -> Mapping[str, np.ndarray]:
        """The arrays of the base segment, if it is mapped."""
        parts = self.layout.base.parts
        return {p.name: self.base.array(p) for p in parts} if self.base.is_mapped else {}

    @property
    def stored(self) -> int:
        """See `SparseFields.stored`; opens no file."""
        if self._change is not None:
            return self._change.structure.stored
        return stored_in(self.layout)

    @property
    def dirty(self) -> np.ndarray:
        """The positions of the first key with changes that are not committed, increasing."""
        return np.zeros(0, np.int64) if self._change is None else self._change.rows

    def nbytes(self, schema: Schema) -> int:
        """See `Fields.nbytes`; opens no file."""
        starts = next(p for p in self.layout.base.parts if p.name == STARTS)
        row, element = self.base.itemsize(starts), element_width(self.base)
        return prod(starts.shape) * row + self.stored * element

    def verified(self, box: np.ndarray) -> SparseFields:
        """See `Fields.verified`; elements of other rows of the first key are absent.

        When such reads have taken as much memory as the tensor, it is read completely.
        """
        key = self.schema.keys[0]
        lo, hi = (box[0] - key.lo).tolist()
        if self._partly is not None and self._partly[:2] == (lo, hi):
            return self._partly[2]
        if self._matrix is not None or not lo < hi < lo + key.extent or self._room < 0:
            for name in self.names:
                self.taken(name)
            return self
        fields = RowsInFile(self, lo, self._rows(lo, hi))
        left = self._room - fields.nbytes(self.schema)
        self._partly, self._room = (lo, hi, fields), left
        return fields

    def _rows(self, lo: int, hi: int) -> SparseFields:
        """The fields over a range of positions of the first key; only their pieces are verified."""
        zones = self._reader.zones(lo, hi)
        values = {name: self._reader.elements(name, zones) for name in self.names}
        return stored_fields(self._structure(zones), values, self.fills)

    def narrowed(self, spans: Sequence[slice]) -> SparseFields:
        """See `SparseFields.narrowed`; of a tensor that is not read yet only the rows are."""
        first, *others = spans
        if self._matrix is not None or (first.start, first.stop) == (0, self.schema.shape[0]):
            return super().narrowed(spans)
        rows = self._rows(first.start, max(first.start, first.stop))
        return rows.narrowed([slice(0, rows.extents[0]), *others])

    def with_elements(
        self, structure: Compressed, values: Mapping[str, np.ndarray], rows: np.ndarray
    ) -> StoredSparseFields:
        """See `SparseFields.with_elements`; a commit writes the blocks of the rows."""
        change = Change(structure, values, np.union1d(self.dirty, rows))
        return StoredSparseFields(self.layout, self.schema, self.base, self.newer, change)


class RowsInFile(SparseFields):
    """Fields over all keys of a stored tensor with the elements of some rows only.

    Args:
        whole: The tensor.
        lo: The position of the first row.
        rows: The fields over the rows.
    """

    def __init__(self, whole: StoredSparseFields, lo: int, rows: SparseFields) -> None:
        matrix, extents = rows.matrix, whole.schema.shape
        starts, columns = matrix.starts, matrix.columns
        if len(extents) == 1:
            columns = columns + columns.dtype.type(lo)
        else:
            after = extents[0] - lo - rows.extents[0]
            starts = np.pad(starts, (lo, after), mode="edge")
        more = {name: rows.taken(name).values for name in rows.names[1:]}
        structure = Compressed(extents, starts, columns, matrix.values)
        super().__init__(structure, False, rows.fills, rows.name, more=more)
        self._whole = whole

    def local(self) -> Mapping[str, np.ndarray]:
        """See `StoredSparseFields.local`."""
        return self._whole.local()

    def verified(self, box: np.ndarray) -> SparseFields:
        """See `StoredSparseFields.verified`."""
        return self._whole.verified(box)


def in_memory(fields: SparseFields, copied: Callable[[np.ndarray], np.ndarray]) -> SparseFields:
    """The fields with copies of all arrays."""
    matrix = fields.taken()
    structure = Compressed(
        matrix.extents, copied(matrix.starts), copied(matrix.columns), matrix.values
    )
    values = {name: copied(fields.taken(name).values) for name in fields.names}
    return stored_fields(structure, values, fields.fills)
