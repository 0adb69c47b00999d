"""SciPy's sparse arrays as relations."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from einsql.core.schema import PRESENT, DType, Field, Schema
from einsql.core.sparse.compressed import Compressed, at_cells
from einsql.core.sparse.numbering import index_type, matrix_shape, numbers_of
from einsql.errors import InterfaceError, OperationalError
from einsql.storage.out_of_memory import require
from einsql.storage.relation import Relation as Stored
from einsql.storage.relation import schema_of
from einsql.storage.sparse_choice import MAX_KEYS
from einsql.storage.sparse_fields import Owner, SparseFields, stored_fields
from einsql.storage.widened_fields import widened, wider

_COMPRESSED = ("csr", "csc")


def sparse_relation(
    array: Any, dims: tuple[str, ...] | None = None, fill: int | None = None, name: str = "val"
) -> Stored:
    """Returns a relation over a SciPy sparse array of any rank and format.

    Args:
        array: The array. CSR and CSC with sorted indices are used without a copy; all other
            formats are converted to CSR.
        dims: One key name per axis; the default is `d0`, `d1`, ….
        fill: 0 if every key exists, with value 0 for elements that are not stored; None if the
            keys of these elements are absent.
        name: The name of the value column.

    Returns:
        The relation. The elements of an array of another rank than 2 are copied.

    Raises:
        InterfaceError: The dtype is no tensor type, an element is stored twice, the index arrays
            are inconsistent, names do not fit, or `fill` is neither 0 nor None.
        OperationalError: The conversion of a matrix does not fit into memory.
    """
    if fill is not None and fill != 0:
        raise InterfaceError(
            f"A sparse array cannot be filled with {fill!r}",
            hint="fill=0 makes absent elements zeros; without it their keys are absent.",
        )
    other = wider(array.dtype)
    if other is not None:
        widened(array.data, other)  # refuses values that do not fit
        array = array.astype(other.numpy)
    names = tuple(f"d{n}" for n in range(array.ndim)) if dims is None else dims
    shape = tuple(int(n) for n in array.shape)
    schema = schema_of(array.dtype, shape, names, name)
    if fill is None:
        schema = Schema(schema.keys, (*schema.fields, Field(PRESENT, DType.BOOLEAN)))
    (value,) = schema.values
    fills = None if fill is None else {value.name: np.zeros((), value.dtype.numpy)}
    if len(shape) != 2:
        structure = _located(array)
        return Stored(schema, stored_fields(structure, {value.name: structure.values}, fills))
    matrix, turned, owner = _compressed(array)
    return Stored(schema, SparseFields(matrix, turned, fills, value.name, owner))


def _compressed(array: Any) -> tuple[Compressed, bool, Owner | None]:
    """Returns a matrix in CSR or, transposed, CSC, and the caller's object if it is used."""
    from scipy import sparse  # already imported by the caller

    kept = array.format if array.format in _COMPRESSED else "csr"
    make = sparse.csc_array if kept == "csc" else sparse.csr_array
    try:
        converted = array if array.format == kept else array.tocsr()
    except (MemoryError, ValueError) as error:  # NumPy raises either one
        raise OperationalError(
            f"A {array.format.upper()} array of {array.shape[0]:,} × {array.shape[1]:,} cannot "
            f"be converted to CSR: {error}",
            hint="CSR needs memory for every row, CSC for every column.",
        ) from error
    if array.format in ("coo", "bsr") and converted.nnz < array.nnz:
        raise _twice(array)  # the conversion has summed duplicates
    try:
        # A new object: the caller's flag of sorted indices may be out of date.
        own = make((converted.data, converted.indices, converted.indptr), shape=converted.shape)
        own.check_format()
    except ValueError as error:
        raise InterfaceError(f"The {kept.upper()} array is malformed: {error}") from error
    arrays = [
        (converted.data, own.data),
        (converted.indices, own.indices),
        (converted.indptr, own.indptr),
    ]
    # Either all arrays belong to the caller, who may change them together, or all are copies.
    if own.has_canonical_format and all(a.dtype == b.dtype for a, b in arrays):
        own = converted
    else:
        own = own.copy()
        own.sort_indices()
        if not own.has_canonical_format:
            raise _twice(array)
    rows, columns = (int(n) for n in own.shape)
    shape = (columns, rows) if kept == "csc" else (rows, columns)
    if own is array:
        return Compressed(shape, own.indptr, own.indices, own.data), kept == "csc", array
    kind = index_type(own.nnz, *shape)
    starts, columns = (a.astype(kind, copy=False) for a in (own.indptr, own.indices))
    return Compressed(shape, starts, columns, own.data), kept == "csc", None


def _located(array: Any) -> Compressed:
    """Returns the elements of an array of another rank than 2."""
    elements = array.tocoo()
    shape = tuple(int(n) for n in array.shape)
    if prod(shape) > MAX_KEYS:
        raise OperationalError(
            f"An array of {prod(shape):,} elements has more keys than a tensor may have",
            hint=f"There are at most {MAX_KEYS:,}.",
        )
    require(8 * matrix_shape(shape)[0] + 24 * len(elements.data))
    cells = numbers_of([np.asarray(at, np.int64) for at in elements.coords], shape)
    structure, twice = at_cells(shape, cells)
    if twice is not None:
        raise _twice(array)
    return structure.of(elements.data[structure.values])


def _twice(array: Any) -> InterfaceError:
    return InterfaceError(
        f"The {array.format.upper()} array stores an element more than once, and a key is "
        "there once",
        hint="array.sum_duplicates() adds them up.",
    )
