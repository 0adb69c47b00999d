"""The undo log: elements that a transaction has overwritten in place."""

from __future__ import annotations

from typing import Any

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
