"""Fields of a relation over sparse matrices, converted to dense arrays only on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from einsql.core.schema import PRESENT, Schema
from einsql.core.sparse.arrays import Elements, dense_array
from einsql.core.sparse.compressed import Compressed, changed, sorted_matrix
from einsql.core.sparse.matrix import Fills, Sparse
from einsql.storage.fields import Fields, LocalFields, RemoteFields, Term


class Owner(Protocol):
    """The caller's SciPy matrix, CSR or CSC; the caller may replace its arrays at any time."""

    shape: tuple[int, ...]
    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray


class SparseFields(RemoteFields, Sparse):
    """The value fields of a sparse matrix, and the flag of its existing keys.

    Dense arrays are not cached. A caller's matrix may change, and a dense array may be large.

    Args:
        matrix: The stored elements, with the values of the first field.
        turned: Whether the matrix's rows are the second one of two keys.
        fills: The values of the keys without a stored element; None if these keys are absent.
        name: The name of the first field; `PRESENT` if there are keys only.
        owner: The source that each statement reads again; None for a constant matrix.
        more: The values of further fields of the stored elements, in the order of `matrix`.
    """

    is_sparse = True

    def __init__(
        self,
        matrix: Compressed,
        turned: bool,
        fills: Fills | None,
        name: str,
        owner: Owner | None = None,
        more: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        self.stored_extents, self.dtype = matrix.extents, matrix.values.dtype
        self.owner = owner
        self._given = matrix if owner is None else None
        self._more = dict(more or {})
        self.turned = turned
        self.fills = fills
        self.name = name

    @property
    def names(self) -> tuple[str, ...]:  # type: ignore[override] # computed from two attributes
        """The names of the values."""
        return (self.name, *self._more)

    @property
    def extents(self) -> tuple[int, ...]:
        """See `Sparse.extents`; does not read the elements."""
        return self.stored_extents[::-1] if self.turned else self.stored_extents

    @property
    def is_constant(self) -> bool:  # type: ignore[override] # depends on the matrix
        """Whether the matrix is constant."""
        return self.owner is None

    @property
    def is_detached(self) -> bool:  # type: ignore[override] # depends on the matrix
        """Whether the elements stay unchanged: the matrix is constant."""
        return self.owner is None

    @property
    def matrix(self) -> Compressed:
        """The stored elements, without checks."""
        if self._given is not None:
            return self._given
        assert self.owner is not None
        return Compressed(
            self.stored_extents, self.owner.indptr, self.owner.indices, self.owner.data
        )

    @property
    def stored(self) -> int:
        """The number of stored elements."""
        return self.matrix.stored

    def nbytes(self, schema: Schema) -> int:
        """Bytes of the three arrays of the matrix, and of the further values."""
        return self.matrix.nbytes + sum(a.nbytes for a in self._more.values())

    def taken(self, name: str | None = None) -> Compressed:
        """Returns the present stored elements of a field, by default of the first one."""
        if self.owner is None:
            same = name in (None, self.name)
            return self.matrix if same else self.matrix.of(self._more[str(name)])
        return self.present().checked()

    def with_checked_rows(self, name: str | None = None) -> Compressed:
        """See `Sparse.with_checked_rows`."""
        return self.taken(name) if self.owner is None else self.present().with_checked_rows()

    def present(self) -> Compressed:
        """Returns the arrays of the owner, whose shape and type are checked."""
        assert self.owner is not None
        matrix = self.matrix
        shape = self.owner.shape[::-1] if self.turned else self.owner.shape
        if tuple(shape) != self.stored_extents:
            raise changed("it has another shape")
        if matrix.values.dtype != self.dtype:
            raise changed(f"its dtype is {matrix.values.dtype}, not {self.dtype}")
        return matrix

    def constant(self) -> SparseFields:
        """Returns the present elements as fields that do not change with the caller's matrix."""
        if self.owner is None:
            return self
        return SparseFields(self.taken().copied(), self.turned, self.fills, self.name)

    def __getitem__(self, name: str) -> np.ndarray:
        return dense_array(self, name)

    def of(self, values: Mapping[str, np.ndarray], fills: Fills | None = None) -> SparseFields:
        """Returns fields with the same structure and other values, at least one."""
        (name, first), *more = values.items()
        return SparseFields(self.matrix.of(first), self.turned, fills, name, more=dict(more))

    def with_elements(
        self, structure: Compressed, values: Mapping[str, np.ndarray], rows: np.ndarray
    ) -> SparseFields:
        """Returns the fields after a change of some elements.

        Args:
            structure: The positions of all elements, in key order; its values are not used.
            values: The values of each field.
            rows: The positions of the first key with changes, increasing.
        """
        return stored_fields(structure, values, self.fills)

    def in_key_order(self) -> SparseFields:
        """Returns the fields by rows of the first key, with increasing columns."""
        matrix = self.taken()
        if not self.turned and self.increases:
            return self
        places = (matrix.rows, matrix.columns)
        ordered, _ = sorted_matrix(self.extents, *(places[::-1] if self.turned else places))
        values = {name: self.taken(name).values[ordered.values] for name in self.names}
        return stored_fields(ordered, values, self.fills)

    def renamed(self, schema: Schema, names: Mapping[str, str], title: str) -> SparseFields:
        """See `Fields.renamed`."""
        own = self.constant()
        values = {n: own.taken(o).values for n, o in names.items() if o != PRESENT}
        fills = own.fills and {n: own.fills[o] for n, o in names.items() if o != PRESENT}
        return own.of(values, fills)

    def narrowed(self, spans: Sequence[slice]) -> SparseFields:
        """Returns the fields over a part of the keys."""
        matrix = self.submatrix(spans)
        more = {name: self.submatrix(spans, name).values for name in self._more}
        return SparseFields(matrix, self.turned, self.fills, self.name, more=more)

    def crop(self, box: np.ndarray) -> SparseFields:
        """See `Fields.crop`."""
        return self.narrowed([slice(lo, hi) for lo, hi in box.tolist()])

    def part(self, names: Sequence[str], box: np.ndarray) -> LocalFields:
        """See `Fields.part`; only the box becomes dense."""
        part = self.crop(box)
        return LocalFields({name: part[name] for name in names})

    def window(self, at: Sequence[slice], axes: Sequence[int]) -> Fields:
        """See `Fields.window`."""
        return self.narrowed(at)

    def count(self, *terms: Term) -> int:
        """See `Fields.count`."""
        matrix = self.taken()
        met: np.ndarray | None = None
        every = rest = True
        for term in terms:
            if term.name == PRESENT:
                every = every and term.holds
                rest = rest and (not self.filled) != term.holds
                continue
            holds = (self.taken(term.name).values > term.above) == term.holds
            met = holds if met is None else met & holds
            rest = rest and bool(self.fill(term.name) > term.above) == term.holds
        stored = matrix.stored if met is None else int(np.count_nonzero(met))
        return (stored if every else 0) + (matrix.size - matrix.stored if rest else 0)

    def __iter__(self) -> Iterator[str]:
        yield self.name
        yield from self._more
        if self._has_flag:
            yield PRESENT

    def __len__(self) -> int:
        return 1 + len(self._more) + self._has_flag

    @property
    def _has_flag(self) -> bool:
        """Whether the flag of existing keys is a field besides the named ones."""
        return not self.filled and self.name != PRESENT


def stored_fields(
    structure: Compressed, values: Mapping[str, np.ndarray], fills: Fills | None
) -> SparseFields:
    """Returns fields over stored elements, whose rows are the first key.

    Args:
        structure: The positions of the elements; its values are not used.
        values: The values of each field, at least one.
        fills: The values of the keys without a stored element; None if these keys are absent.
    """
    (name, first), *more = values.items()
    return SparseFields(structure.of(first), False, fills, name, more=dict(more))


def sparse_fields_of(fields: Mapping[str, np.ndarray]) -> SparseFields | None:
    """The fields as sparse ones; None for other fields."""
    return fields if isinstance(fields, SparseFields) else None


def as_shown(arrays: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    """Returns the elements that a kernel computed as fields; other arrays unchanged."""
    if not isinstance(arrays, Elements):
        return arrays
    flags = {PRESENT: np.ones(arrays.structure.stored, np.bool_)}
    shown = stored_fields(arrays.structure, arrays.values_by_name or flags, arrays.fills)
    shown.known_order = True
    return shown
