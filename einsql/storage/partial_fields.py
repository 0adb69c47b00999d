"""Fields of a tensor that is kept unreduced: its value is the sum of parts on the sites."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from einsql.core.schema import Schema
from einsql.storage.fields import Fields, RemoteFields, Summands


class PartialFields(RemoteFields):
    """The sum of parts.

    A plan on the same mesh reads the parts. Every other reader reads the fields, which completes
    the sum once.
    """

    def __init__(self, summands: Summands) -> None:
        self.summands: Summands = summands
        self._completed: dict[str, np.ndarray] = {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._completed:
            array = np.asarray(np.add.reduce(self.summands.fields[name], axis=0))
            array.flags.writeable = False
            self._completed[name] = array
        return self._completed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.summands.fields)

    def __len__(self) -> int:
        return len(self.summands.fields)

    def nbytes(self, schema: Schema) -> int:
        """See `Fields.nbytes`."""
        return self.summands.fields.nbytes(self.summands.schema)

    def placed_like(self, other: Fields) -> bool:
        """See `Fields.placed_like`."""
        return other.summands is not None and self.summands.placed_like(other.summands)
