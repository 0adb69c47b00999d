"""Sparse matrices: the format in which the engine stores them and kernels read them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.free_memory import available
from einsql.core.records import dataclass
from einsql.errors import InterfaceError

Fills = Mapping[str, np.ndarray]
"""The value of keys without a stored element for each field: an array of rank 0 of its dtype."""


FEW = 16
"""Stored elements for each position from which a binary search in rows is faster than a search in
the positions of all elements, which takes 20 ms for 10 of 5 M elements to compute them."""


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
        """A copy of all arrays, with indices of the smallest type."""
        kind = index_type(self.stored, *self.shape)
        starts, columns = (a.astype(kind) for a in (self.starts, self.columns))
        return Compressed(self.shape, starts, columns, self.values.copy())

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

    def shares_structure(self, other: Compressed) -> bool:
        """Whether both have the same arrays of positions."""
        return self.starts is other.starts and self.columns is other.columns

    def only(self, kept: np.ndarray) -> Compressed:
        """The matrix of the elements whose flag is true."""
        return self.at(np.flatnonzero(kept))

    def at(self, numbers: np.ndarray) -> Compressed:
        """The matrix of some elements, by their increasing numbers."""
        starts = np.searchsorted(numbers, self.starts).astype(self.starts.dtype)
        return Compressed(self.shape, starts, self.columns[numbers], self.values[numbers])

    def places(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The number of the element at each position, or -1 where no element is stored.

        Args:
            rows: The rows, within the matrix.
            columns: The columns, of the same number.
        """
        if not self.stored:
            return np.full(len(rows), -1, np.int64)
        if len(rows) * FEW < self.stored and self.increases:
            at = self.lower_bounds(rows, columns)
            there = np.minimum(at, self.stored - 1)
            met = (at < self.starts[rows + 1]) & (self.columns[there] == columns)
            return np.asarray(np.where(met, at, -1))
        asked = rows.astype(np.int64) * self.shape[1] + columns
        here = self.rows * self.shape[1] + self.columns
        order = None if (here[1:] > here[:-1]).all() else np.argsort(here)
        at = np.minimum(np.searchsorted(here, asked, sorter=order), self.stored - 1)
        at = at if order is None else order[at]
        return np.where(here[at] == asked, at, -1)

    def lower_bounds(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """The number of the first element of each row with this column or a greater one.

        Args:
            rows: The rows, within the matrix, whose columns increase.
            columns: The columns, of the same number.
        """
        first, last = self.starts[rows].astype(np.int64), self.starts[rows + 1].astype(np.int64)
        while (first < last).any():
            middle = (first + last) // 2
            open_ones = first < last
            less = open_ones & (self.columns[np.where(open_ones, middle, 0)] < columns)
            first = np.where(less, middle + 1, first)
            last = np.where(open_ones & ~less, middle, last)
        return np.asarray(first)

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


def transposed(matrix: Compressed) -> Compressed:
    """The transposed matrix, row by row."""
    from scipy.sparse import csr_array  # takes 0.2 s, and few statements need it

    kind = index_type(matrix.stored, *matrix.shape)
    indices = (a.astype(kind, copy=False) for a in (matrix.columns, matrix.starts))
    csc = csr_array((matrix.values, *indices), shape=matrix.shape).tocsc()
    return Compressed(matrix.shape[::-1], csc.indptr, csc.indices, csc.data)


@dataclass(frozen=True, slots=True)
class _Turned:
    """The transposed matrix of fields.

    Attributes:
        structure: The transposed matrix; its values are the numbers of the elements.
        values: The values in the transposed order, by field.
    """

    structure: Compressed
    values: dict[str | None, np.ndarray]


class Sparse:
    """An interface of fields whose values are sparse matrices of one structure.

    Attributes:
        matrix: The stored elements, unchecked; `taken` returns them checked.
        names: The names of the values.
        turned: Whether the matrix's rows are the relation's second key.
        fills: The values of the keys without a stored element; None if these keys are absent.
        is_constant: Whether nobody changes the arrays, so that results may share them.
        known_order: Whether the columns of every row increase; None if it is not known.
        is_tile: Whether they are an `Elements` by rows of the first key: in order, in memory.
    """

    names: tuple[str, ...]
    turned: bool
    fills: Fills | None
    is_constant: bool = True
    is_tile: bool = False
    known_order: bool | None = None
    _turned: _Turned | None = None

    @property
    def increases(self) -> bool:
        """Whether the columns of every row increase."""
        if not self.is_constant:
            return self.taken().increases
        if self.known_order is None:
            self.known_order = self.taken().increases
        return self.known_order

    @property
    def filled(self) -> bool:
        """Whether every key exists."""
        return self.fills is not None

    @property
    def zeros(self) -> bool:
        """Whether every field is 0 at the keys without a stored element."""
        return self.fills is not None and not any(self.fills.values())

    def fill(self, name: str) -> np.ndarray:
        """The value of a field at the keys without a stored element; of absent keys any value."""
        return np.asarray(0) if self.fills is None else self.fills[name]

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

    def rows_of(self, key: int, name: str | None = None) -> Compressed:
        """The current stored elements by rows of a key.

        The transposed matrix of constant fields is kept, unless it takes much of the free memory.

        Args:
            key: The key, 0 or 1.
            name: The value; None for the first one.

        Raises:
            InterfaceError: The owner of the arrays has made the structure invalid.
        """
        if name is None and self.names:
            name = self.names[0]
        matrix = self.taken(name)
        if key == int(self.turned):
            return matrix
        if not self.is_constant:
            return transposed(matrix)
        turned = self._turned
        if turned is None:
            kind = index_type(matrix.stored)
            turned = _Turned(transposed(matrix.of(np.arange(matrix.stored, dtype=kind))), {})
            if 3 * turned.structure.nbytes < (available() or 0):
                self._turned = turned
        values = turned.values.get(name)
        if values is None:
            values = turned.values[name] = matrix.values[turned.structure.values]
        return turned.structure.of(values)

    def has_rows_of(self, key: int) -> bool:
        """Whether the elements by rows of a key need not be computed."""
        return key == int(self.turned) or self._turned is not None

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
