"""Sparse matrices as the fields of a relation: the results of kernels, and dense arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from einsql.core.free_memory import require_dense
from einsql.core.schema import PRESENT
from einsql.core.sparse.compressed import Compressed
from einsql.core.sparse.matrix import Fills, Sparse, sparse_of


def dense_array(fields: Sparse, name: str) -> np.ndarray:
    """A field of a sparse relation as an array.

    Args:
        fields: The relation.
        name: A value, or the flag of the existing keys.

    Raises:
        KeyError: The relation has no such field.
        OperationalError: The array does not fit into memory.
    """
    is_flag = name == PRESENT and not fields.filled
    if not is_flag and name not in fields.names:
        raise KeyError(name)
    matrix = fields.taken(None if is_flag else name)
    if is_flag:
        matrix = matrix.of(np.ones(matrix.stored, np.bool_))
    # A reader of one field will read the other one next.
    widths = fields.matrix.values.itemsize + (0 if fields.filled else 1)
    shape = fields.extents
    require_dense(matrix.size * widths, shape)
    fill = np.asarray(False) if is_flag else fields.fill(name)
    if fill.tobytes().strip(b"\0"):  # -0.0 has a bit
        array = np.full(shape, fill, matrix.values.dtype)
    else:
        array = np.zeros(shape, matrix.values.dtype)
    matrix.into(array.T if fields.turned else array.reshape(matrix.shape))
    return array


class Elements(Mapping[str, np.ndarray], Sparse):
    """The stored elements that a kernel has computed or that it reads.

    Attributes:
        structure: The positions of the elements; columns increase in each row.
        values_by_name: The values of each field; none if only the keys exist.
        fills: The values of the keys without a stored element; None if these keys are absent.
        turned: Whether the rows are the second one of two keys; those of results are the first.
    """

    known_order = True

    def __init__(
        self,
        structure: Compressed,
        values: Mapping[str, np.ndarray],
        fills: Fills | None = None,
        turned: bool = False,
        is_constant: bool = True,
    ) -> None:
        self.structure = structure
        self.values_by_name = dict(values)
        self.fills = fills
        self.turned = turned
        self.is_constant = is_constant
        self.is_tile = not turned

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override] # computed from the values
        """The names of the values."""
        return tuple(self.values_by_name)

    @property
    def matrix(self) -> Compressed:
        """The elements of the first value."""
        return self.taken()

    def taken(self, name: str | None = None) -> Compressed:
        """The elements of a value, by default the first one."""
        values = self.values_by_name
        if name is None and not values:
            return self.structure
        return self.structure.of(values[next(iter(values)) if name is None else name])

    def over(self, change: Callable[[np.ndarray], np.ndarray]) -> Elements:
        """The same elements in other arrays, each of which a function returns."""
        s = self.structure
        structure = Compressed(s.extents, change(s.starts), change(s.columns), s.values)
        values = {name: change(a) for name, a in self.values_by_name.items()}
        return Elements(structure.of(structure.columns), values, self.fills)

    def narrowed(self, spans: Sequence[slice]) -> Elements:
        """The elements over a part of the keys."""
        values = {name: self.submatrix(spans, name).values for name in self.names}
        structure = self.submatrix(spans)
        return Elements(structure, values, self.fills, self.turned, self.is_constant)

    def __getitem__(self, name: str) -> np.ndarray:
        return dense_array(self, name)

    def __contains__(self, name: object) -> bool:
        return any(name == known for known in self)  # Mapping's method would make an array

    def __iter__(self) -> Iterator[str]:
        yield from self.values_by_name
        if not self.filled:
            yield PRESENT

    def __len__(self) -> int:
        return len(self.values_by_name) + (not self.filled)


def arrays_in(fields: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """The arrays of fields; of sparse ones the stored arrays, without making them dense."""
    few = sparse_of(fields)
    if few is None:
        return list(fields.values())
    matrix = few.taken()
    values = [few.taken(name).values for name in few.names]
    return [matrix.starts, matrix.columns, *values]
