"""The undo log: elements that a transaction has overwritten in place."""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType, ref

import numpy as np

Index = Any
"""An index of a NumPy array: slices, arrays of positions, a mask."""


class Overwritten(list[tuple[np.ndarray, Index, np.ndarray]]):
    """Overwrites in place: array, index and previous values."""

    __slots__ = ("__weakref__",)

    def undo(self) -> None:
        """Restores the previous values, the latest overwrite first."""
        while self:
            array, at, values = self[-1]
            array[at] = values
            self.pop()


class UndoLog(Overwritten):
    """The overwrites of the running statement, which savepoints record, too."""

    __slots__ = ("_savepoints",)

    def __init__(self) -> None:
        super().__init__()
        self._savepoints: list[ReferenceType[Overwritten]] = []

    def overwrite(self, array: np.ndarray, at: Index, values: np.ndarray | np.bool_) -> None:
        """Writes into an array, and records the previous values."""
        before = array, at, np.array(array[at])
        self.append(before)
        for savepoint in self._savepoints:
            since = savepoint()
            if since is not None:
                since.append(before)
        array[at] = values

    def savepoint(self) -> Overwritten:
        """The later overwrites of this statement and of those after it, while it is referenced.

        Savepoints may nest.
        """
        overwritten = Overwritten()
        self._savepoints = [r for r in self._savepoints if r() is not None]
        self._savepoints.append(ref(overwritten))
        return overwritten
