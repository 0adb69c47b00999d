"""Sparse tensors in payload files: the starts of rows, the columns and the values are columns.

The file has the format of dense payloads, with one list for each array and with checksums. The
layout in the catalog says that the arrays are those of a sparse matrix (`Layout.format`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from einsql.core.schema import DType, Field, Key, Schema
from einsql.core.sparse.matrix import Compressed, Fill, index_type
from einsql.errors import InterfaceError, OperationalError
from einsql.storage.database.layout import CSR, Layout
from einsql.storage.database.stored import StoredFields
from einsql.storage.fields import LocalFields
from einsql.storage.sparse_fields import SparseFields, stored_fields

STARTS, COLUMNS = ".starts", ".columns"
"""The names of the arrays of the structure; not valid names of fields."""


def payload_schema(schema: Schema, stored: int) -> Schema:
    """The schema of the arrays in the file.

    Args:
        schema: The tensor's keys and fields.
        stored: The number of stored elements.
    """
    index = DType.of(index_type(stored, *schema.shape))
    assert index is not None
    fields = (Field(STARTS, index), Field(COLUMNS, index), *schema.values)
    return Schema((Key("element", 0, stored),), fields)


def arrays_of(schema: Schema, fields: SparseFields) -> tuple[Schema, LocalFields]:
    """The arrays to write for a tensor, by rows of its first key, with their schema."""
    ordered = fields.in_key_order()
    matrix = ordered.taken()
    written = payload_schema(schema, matrix.stored)
    index = written.dtype(STARTS).numpy
    arrays = LocalFields({f.name: ordered.taken(f.name).values for f in schema.values})
    arrays[STARTS] = matrix.starts.astype(index, copy=False)
    arrays[COLUMNS] = matrix.columns.astype(index, copy=False)
    return written, arrays


def shapes_of(layout: Layout, schema: Schema) -> dict[str, tuple[int, ...]]:
    """The shapes that the arrays of a layout must have, by name, in their order.

    Raises:
        ValueError: The layout has no columns, or the tensor has not two keys.
    """
    if len(schema.keys) != 2:
        raise ValueError("a sparse payload has two keys")
    stored = _stored(layout)
    names = (f.name for f in payload_schema(schema, stored).fields)
    return {name: (schema.shape[0] + 1 if name == STARTS else stored,) for name in names}


def _stored(layout: Layout) -> int:
    for part in layout.parts:
        if part.name == COLUMNS:
            return prod(part.shape)
    raise ValueError("the payload has no columns")


def sparse_fields_of(path: str, layout: Layout, schema: Schema, title: str) -> StoredSparseFields:
    """The fields of a sparse payload, which is opened with the first read.

    Args:
        path: The payload's path.
        layout: The catalog's layout of the payload.
        schema: The tensor's keys and fields.
        title: The tensor's name, for messages.
    """
    written = payload_schema(schema, _stored(layout))
    return StoredSparseFields(StoredFields(path, layout, written, title), schema, layout.fill)


class StoredSparseFields(SparseFields):
    """The fields of a sparse tensor in a payload file.

    Attributes:
        payload: The arrays in the file.
    """

    def __init__(self, payload: StoredFields, schema: Schema, fill: Fill) -> None:
        rows, columns = schema.shape
        first, *more = schema.values
        nothing = np.zeros(0, first.dtype.numpy)
        unread = Compressed((rows, columns), nothing, nothing, nothing)
        super().__init__(
            unread, False, fill, first.name, more=dict.fromkeys((f.name for f in more), nothing)
        )
        self.payload = payload
        self.layout = payload.layout
        self._matrix: Compressed | None = None

    @property
    def matrix(self) -> Compressed:
        """The stored elements, all of them verified by the first read."""
        if self._matrix is None:
            arrays = [self.payload[name] for name in (STARTS, COLUMNS, self.name)]
            try:
                matrix = Compressed(self.shape, *arrays).checked()
            except InterfaceError as error:
                raise OperationalError(
                    f"'{self.payload.path}' is damaged: {error.reason}",
                    hint="Restore a copy of the database, or DROP TENSOR and make it again.",
                ) from None
            self._matrix = matrix
        return self._matrix

    def taken(self, name: str | None = None) -> Compressed:
        """See `SparseFields.taken`."""
        matrix = self.matrix
        return matrix if name in (None, self.name) else matrix.of(self.payload[str(name)])

    def local(self) -> Mapping[str, np.ndarray]:
        """The arrays of the file, if it is mapped."""
        return self.payload.local()

    def nbytes(self, schema: Schema) -> int:
        """See `Fields.nbytes`; does not open the file."""
        layout, types = self.payload.layout, self.payload.schema
        return sum(prod(p.shape) * types.dtype(p.name).numpy.itemsize for p in layout.parts)

    def verified(self, box: np.ndarray) -> StoredSparseFields:
        """See `Fields.verified`; every element is verified."""
        _ = self.matrix
        return self


def in_memory(fields: SparseFields, copied: Callable[[np.ndarray], np.ndarray]) -> SparseFields:
    """The fields with copies of all arrays."""
    matrix = fields.taken()
    structure = Compressed(
        matrix.shape, copied(matrix.starts), copied(matrix.columns), matrix.values
    )
    values = {name: copied(fields.taken(name).values) for name in fields.names}
    return stored_fields(structure, values, fields.fill)


def layout_of(layout: Layout, fill: Fill) -> Layout:
    """The layout of a written sparse payload."""
    return Layout(
        file=layout.file,
        size=layout.size,
        parts=layout.parts,
        sums=layout.sums,
        count=layout.count,
        frame=layout.frame,
        format=CSR,
        fill=fill,
    )
