"""A tensor file's array as the field of a relation, read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from einsql.engine.files.tensor import FileTensor, Tick, no_tick
from einsql.engine.relation import DistantFields, Fields


class FileFields(DistantFields):
    """The one field of a tensor in a file.

    Attributes:
        file: The tensor.
        name: The field's name.
    """

    def __init__(self, file: FileTensor, name: str, tick: Tick = no_tick) -> None:
        self.file = file
        self.name = name
        self._tick = tick
        self._here: dict[str, np.ndarray] = {}

    @property
    def here(self) -> Fields:
        """The array, if it has been asked for."""
        return self._here

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._here:
            if name != self.name:
                raise KeyError(name)
            self._here[name] = self.file.loaded(self._tick)
        return self._here[name]

    def __iter__(self) -> Iterator[str]:
        return iter((self.name,))

    def __len__(self) -> int:
        return 1
