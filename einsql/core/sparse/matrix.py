"""Sparse matrices: the format in which the engine stores them and kernels read them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.errors import InterfaceError

Fill = bool | int | float | None
"""The value of keys without a stored element; None if these keys are absent."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """A sparse matrix in compressed sparse row format (CSR).

    Attributes:
        shape: The numbers of rows and columns.
        starts: The offset of each row's first element, and the number of elements; an array of
            rows + 1 integers.
        columns: The column of each element. The columns of a row are distinct. They increase,
            unless the owner of the array has reordered them.
        values: The value of each element.
    """

    shape: tuple[int, int]
    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    @property
    def stored(self) -> int:
        """The number of stored elements."""
        return len(self.columns)

    @property
    def nbytes(self) -> int:
        """The size of the three arrays in bytes."""
        return self.starts.nbytes + self.columns.nbytes + self.values.nbytes

    @property
    def counts(self) -> np.ndarray:
        """The number of elements of each row."""
        # np.diff would allocate a large array, which costs more than the differences.
        out = empty((len(self.starts) - 1,), self.starts.dtype)
        np.subtract(self.starts[1:], self.starts[:-1], out=out)
        return out

    @property
    def rows(self) -> np.ndarray:
        """The row of each element."""
        return np.repeat(np.arange(self.shape[0]), self.counts)

    @property
    def increases(self) -> bool:
        """Whether the columns of every row increase."""
        later = self.columns[1:] > self.columns[:-1]
        firsts = self.starts[1:-1]
        later[firsts[(firsts > 0) & (firsts < self.stored)] - 1] = True
        return bool(later.all())

    def occupied(self, axis: int) -> np.ndarray:
        """Flags of the rows, or of the columns for axis 1, that have elements."""
        if axis == 0:
            return self.counts > 0
        flags = np.zeros(self.shape[1], np.bool_)
        flags[self.columns] = True
        return flags

    def of(self, values: np.ndarray) -> Compressed:
        """A matrix with the same structure and other values."""
        return Compressed(self.shape, self.starts, self.columns, values)

    def checked(self) -> Compressed:
        """The matrix without surplus elements behind its last row; its structure is checked.

        Another object may own the arrays and write into them. For example, SciPy's
        `eliminate_zeros()` moves elements to the front. Compiled code does not check indices, so
        an invalid structure would make it read outside of the arrays.

        Raises:
            InterfaceError: The starts of the rows decrease, or a column is outside of the matrix.
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
        # One pass suffices: a negative number becomes a very large unsigned one.
        unsigned = columns.view(columns.dtype.str.replace("i", "u"))
        if end and int(unsigned.max()) >= self.shape[1]:
            raise changed(f"columns lie outside its {self.shape[1]:,}")
        if end == len(self.columns) == len(self.values):
            return self
        return Compressed(self.shape, starts, columns, self.values[:end])

    def copied(self) -> Compressed:
        """A copy of all arrays."""
        starts, columns, values = (a.copy() for a in (self.starts, self.columns, self.values))
        return Compressed(self.shape, starts, columns, values)

    def part(self, rows: slice, columns: slice) -> Compressed:
        """A submatrix; it shares the arrays if it has all columns.

        Args:
            rows: The rows, a slice with a start and a stop within the matrix.
            columns: The columns, a slice of the same form.
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
        """The matrix of the elements whose flag is true."""
        before = np.concatenate(([0], np.cumsum(kept)))
        starts = before[self.starts].astype(self.starts.dtype)
        return Compressed(self.shape, starts, self.columns[kept], self.values[kept])

    def places(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The number of the element at each position, or -1 where no element is stored.

        Args:
            rows: The rows, within the matrix.
            columns: The columns, of the same number.
        """
        if not self.stored:
            return np.full(len(rows), -1, np.int64)
        asked = rows.astype(np.int64) * self.shape[1] + columns
        here = self.rows * self.shape[1] + self.columns
        order = None if (here[1:] > here[:-1]).all() else np.argsort(here)
        at = np.minimum(np.searchsorted(here, asked, sorter=order), self.stored - 1)
        at = at if order is None else order[at]
        return np.where(here[at] == asked, at, -1)

    def into(self, array: np.ndarray) -> None:
        """Writes the stored elements into an array of the matrix's shape; it changes no other."""
        array[self.rows, self.columns] = self.values


def index_type(*numbers: int) -> np.dtype:
    """The type of the starts and columns of a matrix with these numbers: int32 where they fit."""
    return np.dtype(np.int32 if max(numbers, default=0) < 2**31 else np.int64)


def sorted_matrix(
    shape: tuple[int, int], rows: np.ndarray, columns: np.ndarray
) -> tuple[Compressed, np.ndarray | None]:
    """The matrix of elements in any order; its values are the numbers of the elements.

    Args:
        shape: The numbers of rows and columns.
        rows: The row of each element.
        columns: The column of each element.

    Returns:
        The matrix, and the numbers of elements whose position an earlier element has; None if
        there are none. The matrix is valid only without such elements.
    """
    flat = rows.astype(np.int64) * shape[1] + columns
    numbers = np.arange(len(flat))
    twice = None
    if not (flat[1:] > flat[:-1]).all():
        numbers = np.argsort(flat)
        ordered = flat[numbers]
        again = ordered[1:] == ordered[:-1]
        twice = numbers[1:][again] if again.any() else None
    kind = index_type(len(flat), *shape)
    starts = np.zeros(shape[0] + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=shape[0]), out=starts[1:])
    ordered_columns = columns[numbers].astype(kind, copy=False)
    return Compressed(shape, starts.astype(kind), ordered_columns, numbers), twice


class Sparse:
    """An interface of fields whose values are sparse matrices of one structure.

    Attributes:
        matrix: The stored elements, unchecked; `taken` returns them checked.
        names: The names of the values.
        turned: Whether the matrix's rows are the relation's second key.
        fill: The value of the keys without a stored element; None if these keys are absent.
        is_constant: Whether nobody changes the arrays, so that results may share them.
        is_tile: Whether they are an `Elements`: in the order of both keys, in memory.
    """

    names: tuple[str, ...]
    turned: bool
    fill: Fill
    is_constant: bool = True
    is_tile: bool = False

    @property
    def filled(self) -> bool:
        """Whether every key exists."""
        return self.fill is not None

    @property
    @abstractmethod
    def matrix(self) -> Compressed:
        """The stored elements of the first value, unchecked."""

    @abstractmethod
    def taken(self, name: str | None = None) -> Compressed:
        """The current stored elements, with a valid structure.

        Args:
            name: The value; None for the first one.

        Raises:
            InterfaceError: The owner of the arrays has made the structure invalid.
        """

    @abstractmethod
    def narrowed(self, spans: tuple[slice, slice]) -> Mapping[str, np.ndarray]:
        """The fields over a part of the keys, which are sparse as well.

        Args:
            spans: The positions of both keys, slices with a start and a stop.

        Raises:
            InterfaceError: The owner of the arrays has made the structure invalid.
        """

    def submatrix(self, spans: tuple[slice, slice], name: str | None = None) -> Compressed:
        """The current submatrix of a value over a part of the relation's keys."""
        return self.taken(name).part(*(spans[::-1] if self.turned else spans))


def sparse_of(fields: object) -> Sparse | None:
    """The fields as sparse ones; None for arrays."""
    return fields if isinstance(fields, Sparse) else None


def changed(how: str) -> InterfaceError:
    """The error for a registered matrix whose owner has changed its structure."""
    return InterfaceError(
        f"A sparse matrix has been changed since it was registered: {how}",
        hint="Register it again. Until then its values may change, and its elements as long "
        "as its three arrays fit together.",
    )
