"""Fields that are stored sparsely: their elements by rows of a key."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from einsql.core.free_memory import available
from einsql.core.records import dataclass
from einsql.core.sparse.compressed import Compressed, by_rows_of
from einsql.core.sparse.numbering import Extents, index_type

Fills = Mapping[str, np.ndarray]
"""The value of keys without a stored element for each field: an array of rank 0 of its dtype."""


ROWS, ROWS_EACH = 2**24, 1000
"""The greatest number of rows of another arrangement of elements, or of rows for each element: it
stores the start of every row."""


@dataclass(frozen=True, slots=True)
class _Turned:
    """Fields by rows of another key.

    Attributes:
        structure: The matrix; its values are the numbers of the elements.
        values: The values in its order, by field.
    """

    structure: Compressed
    values: dict[str | None, np.ndarray]


class Sparse:
    """An interface of fields whose values are sparse matrices of one structure.

    Attributes:
        matrix: The stored elements, unchecked; `taken` returns them checked.
        names: The names of the values.
        turned: Whether the matrix's rows are the second one of two keys.
        fills: The values of the keys without a stored element; None if these keys are absent.
        is_constant: Whether the arrays never change, so that results may share them.
        known_order: Whether the columns of every row increase; None if it is not known.
        is_tile: Whether they are an `Elements` by rows of the first key: in order, in memory.
    """

    names: tuple[str, ...]
    turned: bool
    fills: Fills | None
    is_constant: bool = True
    is_tile: bool = False
    known_order: bool | None = None
    _by_key: Mapping[int, _Turned] = {}

    @property
    def extents(self) -> Extents:
        """The number of values of each key of the relation."""
        extents = self.matrix.extents
        return extents[::-1] if self.turned else extents

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

    def with_checked_rows(self, name: str | None = None) -> Compressed:
        """The current stored elements as of `taken`, whose columns may be outside of the matrix.

        Its reader checks each column that it reads.

        Args:
            name: The value; None for the first one.

        Raises:
            InterfaceError: The owner of the arrays has made the rows invalid.
        """
        return self.taken(name)

    @abstractmethod
    def narrowed(self, spans: Sequence[slice]) -> Mapping[str, np.ndarray]:
        """The fields over a part of the keys, which are sparse as well.

        Args:
            spans: The positions along each key, slices with a start and a stop.

        Raises:
            InterfaceError: The owner of the arrays has made the structure invalid.
        """

    def rows_of(self, key: int, name: str | None = None) -> Compressed:
        """The current stored elements by rows of a key; see `by_rows_of`.

        The arrangement of constant fields is kept, unless it takes much of the free memory.

        Args:
            key: The number of the key.
            name: The value; None for the first one.

        Raises:
            InterfaceError: The owner of the arrays has made the structure invalid.
        """
        if name is None and self.names:
            name = self.names[0]
        matrix = self.taken(name)
        if self._is_by_rows_of(key):
            return matrix
        axis = 1 - key if self.turned else key
        if not self.is_constant:
            return by_rows_of(matrix, axis)
        turned = self._by_key.get(key)
        if turned is None:
            kind = index_type(matrix.stored)
            numbered = matrix.of(np.arange(matrix.stored, dtype=kind))
            turned = _Turned(by_rows_of(numbered, axis), {})
            if 3 * turned.structure.nbytes < (available() or 0):
                self._by_key = {**self._by_key, key: turned}
        values = turned.values.get(name)
        if values is None:
            values = turned.values[name] = matrix.values[turned.structure.values]
        return turned.structure.of(values)

    def can_have_rows_of(self, key: int) -> bool:
        """Whether the elements by rows of a key take little memory."""
        most = max(ROWS, ROWS_EACH * self.matrix.stored)
        return self._is_by_rows_of(key) or self.extents[key] <= most

    def has_rows_of(self, key: int) -> bool:
        """Whether the elements by rows of a key need not be computed."""
        return self._is_by_rows_of(key) or key in self._by_key

    def _is_by_rows_of(self, key: int) -> bool:
        return key == int(self.turned) and len(self.extents) > 1

    def submatrix(self, spans: Sequence[slice], name: str | None = None) -> Compressed:
        """The current elements of a value over a part of the relation's keys."""
        return self.taken(name).part(*(spans[::-1] if self.turned else spans))


def sparse_of(fields: object) -> Sparse | None:
    """The fields as sparse ones; None for arrays."""
    return fields if isinstance(fields, Sparse) else None
