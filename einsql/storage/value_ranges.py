"""The least and the greatest value of an integer field, computed once for a stored version."""

from __future__ import annotations

from weakref import ReferenceType, ref

import numpy as np

from einsql.errors import Error
from einsql.storage.array_ownership import distinct
from einsql.storage.fields import Fields

Range = tuple[int, int]
"""The least and the greatest value, both inclusive."""

PIECE = 2**18
"""Elements whose extremes are computed at a time: the second pass reads them from the cache."""


def range_of(fields: Fields, name: str) -> Range | None:
    """The range of all stored elements of an integer field, absent and NULL ones included.

    Args:
        fields: The fields; placed and sparse fields have no known range.
        name: The field.

    Returns:
        None also for a field without elements, and for one that cannot be read.
    """
    if fields.sites is not None or fields.is_sparse or fields.summands is not None:
        return None
    try:
        stored = distinct(fields[name])
    except Error:
        return None  # the statement reports it when it reads the field
    if not stored.size:
        return None
    if stored.nbytes <= PIECE or not stored.flags.c_contiguous:
        return int(stored.min()), int(stored.max())
    flat = stored.reshape(-1)
    pieces = [flat[start : start + PIECE] for start in range(0, flat.size, PIECE)]
    return int(min(np.min(p) for p in pieces)), int(max(np.max(p) for p in pieces))


class KnownRanges:
    """Ranges of the fields of stored tensors, each valid for one version of its tensor."""

    def __init__(self) -> None:
        self._by_field: dict[tuple[str, str], tuple[ReferenceType[Fields], Range | None]] = {}

    def of(self, tensor: str, name: str, version: Fields) -> Range | None:
        """The range of a field of a stored tensor; see `range_of`.

        Args:
            tensor: The tensor's lower-case name.
            name: The field.
            version: The tensor's fields. Every change of the tensor replaces them.
        """
        known = self._by_field.get((tensor, name))
        if known is not None and known[0]() is version:
            return known[1]
        least_and_most = range_of(version, name)
        self._by_field[tensor, name] = ref(version), least_and_most
        return least_and_most

    def move(self, tensor: str, before: object, now: Fields) -> None:
        """Keeps the ranges of a tensor whose elements are placed elsewhere.

        Args:
            tensor: The tensor's lower-case name.
            before: The previous fields.
            now: The fields with the same elements.
        """
        for (name, field), (version, known) in list(self._by_field.items()):
            if name == tensor and version() is before:
                self._by_field[name, field] = ref(now), known
