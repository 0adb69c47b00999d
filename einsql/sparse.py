"""Matrices of which only some elements are stored, as the engine keeps and kernels read them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Compressed:
    """A matrix of which some elements are stored, row by row (CSR).

    Attributes:
        shape: Rows and columns.
        starts: Where each row begins among the elements, and where the last one ends; an
            array of rows + 1 integers.
        columns: Column of each element; those of a row increase.
        values: Value of each element.
    """

    shape: tuple[int, int]
    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    @property
    def stored(self) -> int:
        """How many elements are stored."""
        return len(self.columns)

    @property
    def nbytes(self) -> int:
        """Bytes of the three arrays."""
        return self.starts.nbytes + self.columns.nbytes + self.values.nbytes

    @property
    def counts(self) -> np.ndarray:
        """How many elements each row has."""
        return np.diff(self.starts)

    @property
    def rows(self) -> np.ndarray:
        """Row of each element."""
        return np.repeat(np.arange(self.shape[0]), self.counts)

    def of(self, values: np.ndarray) -> Compressed:
        """Other values at the same places."""
        return Compressed(self.shape, self.starts, self.columns, values)

    def part(self, rows: slice, columns: slice) -> Compressed:
        """Some rows and columns; nothing is copied while all columns are taken.

        Args:
            rows: With a start and a stop within the rows.
            columns: Likewise.
        """
        if (rows, columns) == (slice(0, self.shape[0]), slice(0, self.shape[1])):
            return self
        starts = self.starts[rows.start : rows.stop + 1]
        held = slice(int(starts[0]), int(starts[-1]))
        starts = starts - starts[0]
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        found, values = self.columns[held], self.values[held]
        if columns == slice(0, self.shape[1]):
            return Compressed(shape, starts, found, values)
        inside = (found >= columns.start) & (found < columns.stop)
        return Compressed(shape, starts, found - columns.start, values).only(inside)

    def only(self, kept: np.ndarray) -> Compressed:
        """Those elements that a flag is true for."""
        before = np.concatenate(([0], np.cumsum(kept)))
        starts = before[self.starts].astype(self.starts.dtype)
        return Compressed(self.shape, starts, self.columns[kept], self.values[kept])

    def into(self, array: np.ndarray) -> None:
        """Writes the elements into an array of the matrix's shape, and nothing else."""
        array[self.rows, self.columns] = self.values


class Sparse:
    """What fields are besides a mapping where their one value is stored sparsely.

    Attributes:
        matrix: The stored elements.
        turned: Whether the matrix's rows are the relation's second key.
        filled: Whether every key exists, with value 0 where nothing is stored.
    """

    matrix: Compressed
    turned: bool
    filled: bool

    @abstractmethod
    def narrowed(self, spans: tuple[slice, slice]) -> Mapping[str, np.ndarray]:
        """The fields over a part of the keys, stored sparsely too.

        Args:
            spans: The positions of both keys, each with a start and a stop.
        """

    def part(self, spans: tuple[slice, slice]) -> Compressed:
        """The part of the matrix over a part of the relation's keys."""
        return self.matrix.part(*(spans[::-1] if self.turned else spans))
