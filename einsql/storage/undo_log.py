"""The undo log: elements that a transaction has overwritten in place."""

from __future__ import annotations

from typing import Any

import numpy as np

Index = Any
"""An index as NumPy takes it between brackets."""


class Overwritten(list[tuple[np.ndarray, Index, np.ndarray]]):
    """An overwrite in place: the array, the cells, and their former values."""

    __slots__ = ("__weakref__",)

    def take_back(self) -> None:
        """Writes it again, the latest first."""
        while self:
            array, at, values = self[-1]
            array[at] = values
            self.pop()
