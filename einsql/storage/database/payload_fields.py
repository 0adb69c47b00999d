"""Fields of a version of a tensor in its files, in the process of the database and on ranks."""

from __future__ import annotations

import os
from collections.abc import Callable

from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.storage.database import sparse_payload
from einsql.storage.database.layout import CSR, Layout, Segment, schema_in
from einsql.storage.database.segment_file import SegmentFile
from einsql.storage.database.sparse_payload import StoredSparseFields
from einsql.storage.database.stored import FieldsInFiles, StoredFields

Open = Callable[[Segment, Schema], SegmentFile]
"""Returns a segment, given its description and the keys and arrays in it."""


def fields_in_files(layout: Layout, schema: Schema, segment: Open) -> FieldsInFiles:
    """The fields of a tensor's segments; no file is opened."""
    if layout.base.format == CSR:
        base = segment(layout.base, sparse_payload.arrays_in(layout.base, schema))
        newer = {s.number: segment(s, sparse_payload.arrays_in(s, schema)) for s in layout.newer}
        return StoredSparseFields(layout, schema, base, newer)
    newer = {s.number: segment(s, schema_in(s, schema)) for s in layout.newer}
    base = segment(layout.base, schema_in(layout.base, schema))
    return StoredFields(layout, schema, base, newer)


@dataclass(frozen=True)
class PayloadFiles:
    """The files of a committed version of a tensor, for another process that maps them.

    Attributes:
        directory: The path of the payload directory.
        layout: The catalog's description of the version.
        schema: The keys and fields.
        title: The tensor's name, for messages.
    """

    directory: str
    layout: Layout
    schema: Schema
    title: str

    @property
    def are_here(self) -> bool:
        """Whether this process finds all files under their paths, with their sizes."""
        try:
            return all(
                os.path.getsize(os.path.join(self.directory, s.file)) == s.size
                for s in (self.layout.base, *self.layout.newer)
            )
        except OSError:
            return False

    def fields(self) -> FieldsInFiles:
        """The fields; reads map the files, and verify what they read."""
        return fields_in_files(self.layout, self.schema, self._segment)

    def _segment(self, segment: Segment, schema: Schema) -> SegmentFile:
        path = os.path.join(self.directory, segment.file)
        return SegmentFile(path, segment, schema, self.title)
