"""Fields of a relation over a sparse matrix, made dense only where an array is asked for."""

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
    """A SciPy matrix of the caller's, CSR or CSC; its arrays may be others at any time."""

    shape: tuple[int, ...]
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray


class SparseFields(RemoteFields, Sparse):
    """The value of a sparse matrix, and which of its keys exist.

    Nothing that is made dense is kept: the matrix stays its owner's, who may change it.

    Args:
        matrix: The stored elements.
        turned: Whether the matrix's rows are the relation's second key.
        filled: Whether every key exists, with value 0 where nothing is stored.
        name: Of the value.
        owner: What the matrix is read from at each statement; without, it stays as given.
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
        """The stored elements, unchecked."""
        if self._given is not None:
            return self._given
        assert self.owner is not None
        return Compressed(self.shape, self.owner.indptr, self.owner.indices, self.owner.data)

    def nbytes(self, schema: Schema) -> int:
        """Bytes of the three arrays of the matrix."""
        return self.matrix.nbytes

    def taken(self) -> Compressed:
        """The stored elements as they are now."""
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
        # Whoever asks for one of the fields is about to ask for the other.
        widths = [self.dtype.itemsize, *([] if self.filled else [1])]
        _require(rows * columns * sum(widths), matrix)
        array = np.zeros((columns, rows) if self.turned else matrix.shape, matrix.values.dtype)
        matrix.into(array.T if self.turned else array)
        return array

    def narrowed(self, spans: tuple[slice, slice]) -> SparseFields:
        """The fields over a part of the keys."""
        return SparseFields(self.submatrix(spans), self.turned, self.filled, self.name)

    def __iter__(self) -> Iterator[str]:
        yield self.name
        if not self.filled:
            yield PRESENT

    def __len__(self) -> int:
        return 1 if self.filled else 2


def _require(nbytes: int, matrix: Compressed) -> None:
    """Refuses an array that does not fit into memory; the system would kill the process."""
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
