"""A tensor file's array as the field of a relation, loaded at its first read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from einsql.storage.fields import RemoteFields, WindowFields
from einsql.storage.files.tensor import FileTensor, Tick, no_tick


class FileFields(RemoteFields):
    """The single field of a tensor in a file.

    Attributes:
        file: The tensor.
        name: The field's name.
    """

    def __init__(self, file: FileTensor, name: str, tick: Tick = no_tick) -> None:
        self.file = file
        self.name = name
        self._tick = tick
        self._local: dict[str, np.ndarray] = {}

    def local(self) -> Mapping[str, np.ndarray]:
        """The array, if it has been read."""
        return self._local

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._local:
            if name != self.name:
                raise KeyError(name)
            self._local[name] = self.file.loaded(self._tick)
        return self._local[name]

    def window(self, at: Sequence[slice], axes: Sequence[int]) -> WindowFields:
        """Returns a part without reading it; see `Fields.window`."""
        return WindowFields(self, at, axes)

    def __iter__(self) -> Iterator[str]:
        return iter((self.name,))

    def __len__(self) -> int:
        return 1
