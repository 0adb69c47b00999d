"""Sparse tensors in compressed sparse row format."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.free_memory import require
from einsql.core.records import dataclass
from einsql.core.sparse.numbering import (
    Extents,
    are_within,
    index_type,
    matrix_shape,
    numbers_of,
    places_of,
)
from einsql.core.sparse.selection import selected
from einsql.errors import InterfaceError

OUTSIDE = "rows or columns lie outside of it"
"""The error of a matrix whose owner has changed its numbers of elements or its columns."""
ROW = 24
"""Bytes for each row while the starts of rows are counted: counts, their sums and the starts."""
FEW = 16
"""Stored elements for each position from which a binary search in rows is faster than a search in
the positions of all elements, which takes 20 ms for 10 of 5 M elements to compute them."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """A sparse tensor in compressed sparse row format (CSR).

    Attributes:
        extents: The number of values of each key: of the rows, and of the keys that the columns
            number in mixed radix. A single key is that of the columns.
        starts: The offset of each row's first element, and the number of elements; an array of
            rows + 1 integers.
        columns: The column of each element. The columns of a row are distinct. They increase,
            unless the owner of the array has reordered them.
        values: The value of each element.
    """

    extents: Extents
    starts: np.ndarray
    columns: np.ndarray
    values: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of rows and columns."""
        return matrix_shape(self.extents)

    @property
    def size(self) -> int:
        """The number of positions."""
        return prod(self.extents)

    @property
    def positions(self) -> tuple[np.ndarray, ...]:
        """The position of each element along each key."""
        return self.positions_of(0, self.stored)

    def positions_of(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """The positions of the elements `[start, stop)` along each key.

        Some have the type of the columns, int32: convert them before arithmetic.
        """
        columns = self.columns[start:stop]
        if len(self.extents) == 1:
            return (columns,)
        ends = np.array([start, stop], self.starts.dtype)  # another type would copy the starts
        first = int(np.searchsorted(self.starts, ends[0], side="right")) - 1
        last = int(np.searchsorted(self.starts, ends[1], side="left"))
        counts = np.diff(self.starts[first : last + 1].clip(start, stop))
        rows = np.repeat(np.arange(first, last), counts)
        return (rows, *places_of(columns, self.extents[1:]))

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
        """Flags of the values of a key that have elements."""
        if axis == 0 and len(self.extents) > 1:
            return self.counts > 0
        flags = np.zeros(self.extents[axis], np.bool_)
        flags[self.positions[axis]] = True
        return flags

    def counts_along(self, axis: int) -> np.ndarray:
        """The number of elements of each value of a key."""
        if axis == 0 and len(self.extents) > 1:
            return self.counts
        return np.bincount(self.positions[axis], minlength=self.extents[axis])

    def of(self, values: np.ndarray) -> Compressed:
        """A matrix with the same structure and other values."""
        return Compressed(self.extents, self.starts, self.columns, values)

    def checked(self) -> Compressed:
        """The matrix without surplus elements behind its last row; its structure is checked.

        Another object may own the arrays and write into them. For example, SciPy's
        `eliminate_zeros()` moves elements to the front. Compiled code does not check indices, so
        an invalid structure would make it read outside of the arrays.

        Raises:
            InterfaceError: The starts of the rows decrease, or a column is outside of the matrix.
        """
        matrix = self.with_checked_rows()
        columns = matrix.columns
        # One pass suffices: a negative number becomes a very large unsigned one.
        unsigned = columns.view(columns.dtype.str.replace("i", "u"))
        if len(columns) and int(unsigned.max()) >= self.shape[1]:
            raise changed(OUTSIDE)
        return matrix

    def with_checked_rows(self) -> Compressed:
        """The matrix as of `checked`, whose columns may be outside of the matrix.

        Raises:
            InterfaceError: The starts of the rows decrease, or are outside of the elements.
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
        if end == len(self.columns) == len(self.values):
            return self
        return Compressed(self.extents, starts, self.columns[:end], self.values[:end])

    def copied(self) -> Compressed:
        """A copy of all arrays, with indices of the smallest type."""
        kind = index_type(self.stored, *self.shape)
        starts, columns = (a.astype(kind) for a in (self.starts, self.columns))
        return Compressed(self.extents, starts, columns, self.values.copy())

    def part(self, *spans: slice) -> Compressed:
        """The elements of a box; it shares the arrays if it has all columns of its rows.

        Args:
            spans: The positions along each key, slices with a start and a stop within the tensor.
        """
        every = tuple(slice(0, extent) for extent in self.extents)
        if spans == every:
            return self
        inner = slice(0 if len(spans) == 1 else 1, None)
        rows = slice(0, 1) if len(spans) == 1 else spans[0]
        starts = self.starts[rows.start : rows.stop + 1]
        entries = slice(int(starts[0]), int(starts[-1]))
        starts = starts - starts[0]
        extents = tuple(s.stop - s.start for s in spans)
        columns, values = self.columns[entries], self.values[entries]
        if spans[inner] == every[inner]:
            return Compressed(extents, starts, columns, values)
        places = places_of(columns, self.extents[inner])
        shifted = [p - p.dtype.type(s.start) for p, s in zip(places, spans[inner], strict=True)]
        own = numbers_of(shifted, extents[inner]).astype(columns.dtype, copy=False)
        return Compressed(extents, starts, own, values).only(are_within(places, spans[inner]))

    def stored_within(self, *spans: slice) -> int:
        """The number of stored elements of a box; see `part`."""
        if len(spans) == 1:
            return int(np.count_nonzero(are_within((self.columns,), spans)))
        begin, end = int(self.starts[spans[0].start]), int(self.starts[spans[0].stop])
        if spans[1:] == tuple(slice(0, extent) for extent in self.extents[1:]):
            return end - begin
        places = places_of(self.columns[begin:end], self.extents[1:])
        return int(np.count_nonzero(are_within(places, spans[1:])))

    def part_of_rows(self, rows: slice) -> Compressed:
        """The elements of consecutive rows; it shares the arrays.

        Args:
            rows: The values of the first of several keys.
        """
        return self.part(rows, *(slice(0, extent) for extent in self.extents[1:]))

    def moved(self, spans: Sequence[slice], to: Sequence[int], extents: Extents) -> Compressed:
        """The elements of a box at other positions of a tensor with other extents, in their order.

        It shares the arrays if only the rows move.

        Args:
            spans: The box; see `part`.
            to: The position of the box's first element along each key of the new tensor.
            extents: The extents of the new tensor, which contains the box.
        """
        part = self.part(*spans)
        if extents == part.extents:
            return part
        kind = index_type(part.stored, *matrix_shape(extents))
        inner = slice(0 if len(extents) == 1 else 1, None)
        columns = part.columns
        if extents[inner] != part.extents[inner]:
            places = places_of(columns, part.extents[inner])
            shifted = [p.astype(np.int64) + at for p, at in zip(places, to[inner], strict=True)]
            columns = numbers_of(shifted, extents[inner])
        starts = part.starts
        if len(extents) > 1:
            starts = np.empty(extents[0] + 1, kind)
            first, end = to[0], to[0] + len(part.starts)
            starts[:first], starts[first:end], starts[end:] = 0, part.starts, part.stored
        return Compressed(
            extents, starts.astype(kind, copy=False), columns.astype(kind, copy=False), part.values
        )

    def shares_structure(self, other: Compressed) -> bool:
        """Whether both have the same arrays of positions."""
        return self.starts is other.starts and self.columns is other.columns

    def only(self, kept: np.ndarray) -> Compressed:
        """The matrix of the elements whose flag is true."""
        starts, (columns, values) = selected(kept, self.starts, self.columns, self.values)
        return Compressed(self.extents, starts, columns, values)

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

    def numbers_at(self, positions: Sequence[np.ndarray]) -> np.ndarray:
        """The number of the element at each position, or -1 where no element is stored.

        Args:
            positions: The position along each key, within the tensor.
        """
        if len(positions) == 1:
            return self.places(np.zeros(len(positions[0]), np.int64), positions[0])
        return self.places(positions[0], numbers_of(positions[1:], self.extents[1:]))

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


def sorted_matrix(
    extents: Extents, rows: np.ndarray, columns: np.ndarray
) -> tuple[Compressed, np.ndarray | None]:
    """The matrix of elements in any order; its values are the numbers of the elements.

    Args:
        extents: The number of values of each key.
        rows: The row of each element.
        columns: The column of each element.

    Returns:
        The matrix, and the numbers of elements whose position an earlier element has; None if
        there are none. The matrix is valid only without such elements.

    Raises:
        OperationalError: The starts of the rows do not fit into memory.
    """
    shape = matrix_shape(extents)
    require(ROW * shape[0])
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
    return Compressed(extents, starts.astype(kind), ordered_columns, numbers), twice


def at_cells(extents: Extents, cells: np.ndarray) -> tuple[Compressed, np.ndarray | None]:
    """The tensor of elements at positions in key order; see `sorted_matrix`."""
    return sorted_matrix(extents, *np.divmod(cells, max(1, matrix_shape(extents)[1])))


def reshaped(matrix: Compressed, extents: Extents) -> Compressed:
    """The elements of a tensor as one of other keys, with the same positions in key order."""
    if matrix_shape(extents) == matrix.shape:
        return Compressed(extents, matrix.starts, matrix.columns, matrix.values)
    cells = matrix.rows * matrix.shape[1] + matrix.columns
    structure, _ = at_cells(extents, cells)
    return structure.of(matrix.values[structure.values])


def transposed(matrix: Compressed) -> Compressed:
    """The transposed matrix, row by row."""
    from scipy.sparse import csr_array  # takes 0.2 s, and few statements need it

    kind = index_type(matrix.stored, *matrix.shape)
    indices = (a.astype(kind, copy=False) for a in (matrix.columns, matrix.starts))
    csc = csr_array((matrix.values, *indices), shape=matrix.shape).tocsc()
    return Compressed(matrix.shape[::-1], csc.indptr, csc.indices, csc.data)


def by_rows_of(matrix: Compressed, axis: int) -> Compressed:
    """The tensor with a key as its rows; its other keys keep their order.

    A tensor with one key gets rows of one column.

    Args:
        matrix: The tensor.
        axis: The number of the key.
    """
    extents = matrix.extents
    if len(extents) == 2:
        return transposed(matrix) if axis else matrix
    if len(extents) > 1 and axis == 0:
        return matrix
    places = matrix.positions
    others = [n for n in range(len(extents)) if n != axis]
    kept = tuple(extents[n] for n in others)
    columns = numbers_of([places[n] for n in others], kept) if others else np.zeros_like(places[0])
    kind = index_type(matrix.stored, extents[axis], prod(kept))
    require(kind.itemsize * (extents[axis] + 1 + 3 * matrix.stored))
    numbers = np.arange(matrix.stored, dtype=kind)
    flat = Compressed(
        (1, extents[axis]), np.array([0, matrix.stored], kind), places[axis].astype(kind), numbers
    )
    turned = transposed(flat)  # it counts instead of sorting, and keeps the order within a row
    order = turned.values
    structure = (turned.starts, columns[order].astype(kind), matrix.values[order])
    return Compressed((extents[axis], *(kept or (1,))), *structure)


def changed(how: str) -> InterfaceError:
    """The error for a registered matrix whose owner has changed its structure."""
    return InterfaceError(
        f"A sparse matrix has been changed since it was registered: {how}",
        hint="Register it again. Until then its values may change, and its elements as long "
        "as its three arrays fit together.",
    )
