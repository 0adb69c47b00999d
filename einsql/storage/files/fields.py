"""A tensor file's array as the field of a relation, read when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from einsql.storage.files.tensor import FileTensor, Tick, no_tick
from einsql.storage.relation import DistantFields, Fields


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

    def within(self, box: np.ndarray, windows: Sequence[int]) -> FilePart:
        """A part, of which nothing is read yet.

        Args:
            box: int64 (keys, 2), within the bounds of the keys.
            windows: Numbers of the keys that the part counts from 0, wherever the box begins.
        """
        return FilePart(self, box, windows)

    def __iter__(self) -> Iterator[str]:
        return iter((self.name,))

    def __len__(self) -> int:
        return 1


class FilePart(DistantFields):
    """A box of the one field of a tensor in a file.

    Attributes:
        whole: The field.
        box: int64 (keys, 2); a file counts its keys from 0.
        windows: Numbers of the keys that the part counts from 0, wherever the box begins.
    """

    def __init__(self, whole: FileFields, box: np.ndarray, windows: Sequence[int]) -> None:
        self.whole = whole
        self.box = box
        self.windows = windows

    @property
    def here(self) -> Fields:
        """The array, if the field has been asked for."""
        return self.whole.here

    def __getitem__(self, name: str) -> np.ndarray:
        at = tuple(slice(lo, hi) for lo, hi in self.box.tolist())
        return self.whole[name][at]

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)
