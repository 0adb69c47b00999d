"""Immutable arrays that compare and hash by value, for types and other keys of dictionaries."""

from __future__ import annotations

import numpy as np

from einsql.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Table:
    """An array as a value.

    Attributes:
        data: The elements in row-major order; Python caches the hash of bytes.
        shape: The shape of the array.
        dtype: The type of the elements, in NumPy's notation.
    """

    data: bytes
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, array: np.ndarray) -> Table:
        """A copy of an array."""
        return cls(array.tobytes(), array.shape, array.dtype.str)

    @property
    def array(self) -> np.ndarray:
        """The array, read-only, without a copy."""
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Table({self.array.tolist()})"
