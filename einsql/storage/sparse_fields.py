"""Fields of a relation over a sparse matrix, converted to a dense array only on request."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from einsql.core.schema import PRESENT, Schema
from einsql.core.sparse_matrix import Compressed, Sparse, changed
from einsql.errors import OperationalError
from einsql.storage.fields import RemoteFields
from einsql.storage.out_of_memory import NOTICED, available


class Owner(Protocol):
    """The caller's SciPy matrix, CSR or CSC; the caller may replace its arrays at any time."""

    shape: tuple[int, ...]
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray


class SparseFields(RemoteFields, Sparse):
    """The value field of a sparse matrix, and the flag of its existing keys.

    Dense arrays are not cached: the matrix belongs to the caller, who may change it.

    Args:
        matrix: The stored elements.
        turned: Whether the matrix's rows are the relation's second key.
        filled: Whether every key exists, with value 0 for elements that are not stored.
        name: The name of the value.
        owner: The source that each statement reads again; None for a constant matrix.
    """

    is_sparse = True

    def __init__(
        self, matrix: Compressed, turned: bool, filled: bool, name: str, owner: Owner | None = None
    ) -> None:
        self.shape, self.dtype = matrix.shape, matrix.values.dtype
        self.owner = owner
        self._given = matrix if owner is None else None
        self.turned = turned
        self.filled = filled
        self.name = name

    @property
    def matrix(self) -> Compressed:
        """The stored elements, without checks."""
        if self._given is not None:
            return self._given
        assert self.owner is not None
        return Compressed(self.shape, self.owner.indptr, self.owner.indices, self.owner.data)

    def nbytes(self, schema: Schema) -> int:
        """Bytes of the three arrays of the matrix."""
        return self.matrix.nbytes

    def taken(self) -> Compressed:
        """Returns the present stored elements."""
        matrix = self.matrix
        if self.owner is not None:
            shape = self.owner.shape[::-1] if self.turned else self.owner.shape
            if tuple(shape) != self.shape:
                raise changed("it has another shape")
            if matrix.values.dtype != self.dtype:
                raise changed(f"its dtype is {matrix.values.dtype}, not {self.dtype}")
        return matrix.checked()

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self:
            raise KeyError(name)
        matrix = self.taken()
        if name == PRESENT:
            matrix = matrix.of(np.ones(matrix.stored, np.bool_))
        rows, columns = matrix.shape
        # A reader of one field will read the other one next.
        widths = [self.dtype.itemsize, *([] if self.filled else [1])]
        _require(rows * columns * sum(widths), matrix)
        array = np.zeros((columns, rows) if self.turned else matrix.shape, matrix.values.dtype)
        matrix.into(array.T if self.turned else array)
        return array

    def narrowed(self, spans: tuple[slice, slice]) -> SparseFields:
        """Returns the fields over a part of the keys."""
        return SparseFields(self.submatrix(spans), self.turned, self.filled, self.name)

    def __iter__(self) -> Iterator[str]:
        yield self.name
        if not self.filled:
            yield PRESENT

    def __len__(self) -> int:
        return 1 if self.filled else 2


def _require(nbytes: int, matrix: Compressed) -> None:
    """Raises an error if an array does not fit into memory, before the system kills the process."""
    free = available() if nbytes >= NOTICED else None
    if free is not None and nbytes > free:
        rows, columns = matrix.shape
        raise OperationalError(
            f"There is not enough memory: the statement needs a sparse matrix of {rows:,} × "
            f"{columns:,} as an array of {nbytes / 2**30:,.1f} GiB, and "
            f"{free / 2**30:,.1f} are free",
            hint="Sums of products with dense tensors, and sums of its rows or columns, read "
            "it as it is stored.",
        )
