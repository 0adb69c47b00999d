"""Matrices of which only some elements are stored, as the engine keeps and kernels read them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.errors import InterfaceError


@dataclass(frozen=True, slots=True)
class Compressed:
    """A matrix of which some elements are stored, row by row (CSR).

    Attributes:
        shape: Rows and columns.
        starts: Where each row begins among the elements, and where the last one ends; an
            array of rows + 1 integers.
        columns: Column of each element; those of a row differ, and increase unless an owner
            has put them out of order.
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
        # Not np.diff: a large array of its own costs more than the differences.
        out = empty((len(self.starts) - 1,), self.starts.dtype)
        np.subtract(self.starts[1:], self.starts[:-1], out=out)
        return out

    @property
    def rows(self) -> np.ndarray:
        """Row of each element."""
        return np.repeat(np.arange(self.shape[0]), self.counts)

    def of(self, values: np.ndarray) -> Compressed:
        """Other values at the same places."""
        return Compressed(self.shape, self.starts, self.columns, values)

    def checked(self) -> Compressed:
        """The matrix without elements after its last row, if its structure is valid.

        Its arrays may be those of an owner who writes into them: SciPy's
        `eliminate_zeros()` moves elements to the front, and compiled code that reads them
        would follow any number.

        Raises:
            InterfaceError: Rows do not follow each other, or columns are outside of the matrix.
        """
        starts, end = self.starts, int(self.starts[-1])
        if (
            len(starts) != self.shape[0] + 1
            or starts[0] != 0
            or end > min(len(self.columns), len(self.values))
        ):
            raise changed("its rows lie outside its elements")
        if (starts[1:] < starts[:-1]).any():
            raise changed("its rows do not follow each other")
        columns = self.columns[:end]
        # One pass: a number below 0 is the largest as an unsigned one.
        unsigned = columns.view(columns.dtype.str.replace("i", "u"))
        if end and int(unsigned.max()) >= self.shape[1]:
            raise changed(f"columns lie outside its {self.shape[1]:,}")
        if end == len(self.columns) == len(self.values):
            return self
        return Compressed(self.shape, starts, columns, self.values[:end])

    def part(self, rows: slice, columns: slice) -> Compressed:
        """Some rows and columns; nothing is copied while all columns are taken.

        Args:
            rows: With a start and a stop within the rows.
            columns: Likewise.
        """
        if (rows, columns) == (slice(0, self.shape[0]), slice(0, self.shape[1])):
            return self
        starts = self.starts[rows.start : rows.stop + 1]
        entries = slice(int(starts[0]), int(starts[-1]))
        starts = starts - starts[0]
        shape = (rows.stop - rows.start, columns.stop - columns.start)
        own_columns, values = self.columns[entries], self.values[entries]
        if columns == slice(0, self.shape[1]):
            return Compressed(shape, starts, own_columns, values)
        inside = (own_columns >= columns.start) & (own_columns < columns.stop)
        return Compressed(shape, starts, own_columns - columns.start, values).only(inside)

    def only(self, kept: np.ndarray) -> Compressed:
        """Those elements that a flag is true for."""
        before = np.concatenate(([0], np.cumsum(kept)))
        starts = before[self.starts].astype(self.starts.dtype)
        return Compressed(self.shape, starts, self.columns[kept], self.values[kept])

    def into(self, array: np.ndarray) -> None:
        """Writes the stored elements into an array of the matrix's shape; others stay."""
        array[self.rows, self.columns] = self.values


class Sparse:
    """What fields are besides a mapping where their one value is stored sparsely.

    Attributes:
        matrix: The stored elements, as their owner left them; `taken` is what may be read.
        turned: Whether the matrix's rows are the relation's second key.
        filled: Whether every key exists, with value 0 where nothing is stored.
    """

    turned: bool
    filled: bool

    @property
    @abstractmethod
    def matrix(self) -> Compressed:
        """The stored elements, unchecked."""

    @abstractmethod
    def taken(self) -> Compressed:
        """The stored elements as they are now.

        Raises:
            InterfaceError: Their owner has changed the structure.
        """

    @abstractmethod
    def narrowed(self, spans: tuple[slice, slice]) -> Mapping[str, np.ndarray]:
        """The fields over a part of the keys, stored sparsely too.

        Args:
            spans: The positions of both keys, each with a start and a stop.

        Raises:
            InterfaceError: As `taken`.
        """

    def submatrix(self, spans: tuple[slice, slice]) -> Compressed:
        """The part of the matrix over a part of the relation's keys, as it is now."""
        return self.taken().part(*(spans[::-1] if self.turned else spans))


def changed(how: str) -> InterfaceError:
    """The error for a matrix that is no longer what was registered."""
    return InterfaceError(
        f"A sparse matrix has been changed since it was registered: {how}",
        hint="Register it again. Until then its values may change, and its elements as long "
        "as its three arrays fit together.",
    )
