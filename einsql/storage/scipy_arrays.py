"""SciPy's sparse arrays as relations."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsql.core.schema import PRESENT, DType, Field, Schema
from einsql.core.sparse.matrix import Compressed, index_type
from einsql.errors import InterfaceError, OperationalError
from einsql.storage.fields import LocalFields
from einsql.storage.out_of_memory import require
from einsql.storage.relation import Relation as Stored
from einsql.storage.relation import schema_of
from einsql.storage.sparse_fields import Owner, SparseFields
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
        The relation; a matrix stays sparse, an array of another rank becomes dense.

    Raises:
        InterfaceError: The dtype is no tensor type, an element is stored twice, the index arrays
            are inconsistent, names do not fit, or `fill` is neither 0 nor None.
        OperationalError: An array of another rank, or the conversion of a matrix, does not fit
            into memory.
    """
    if fill is not None and fill != 0:
        raise InterfaceError(
            f"A sparse array cannot be filled with {fill!r}",
            hint="fill=0 makes what is not stored zeros; without it these keys are absent.",
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
    if len(shape) != 2:
        return Stored(schema, LocalFields(_scattered(array, schema, value.name)))
    matrix, turned, owner = _compressed(array)
    fills = None if fill is None else {value.name: np.zeros((), value.dtype.numpy)}
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


def _scattered(array: Any, schema: Schema, name: str) -> dict[str, np.ndarray]:
    """Returns the dense fields of a sparse array of any rank."""
    elements = array.tocoo()
    require(schema.size * sum(f.dtype.numpy.itemsize for f in schema.fields))
    values, present = np.zeros(schema.shape, elements.dtype), np.zeros(schema.shape, np.bool_)
    values[elements.coords], present[elements.coords] = elements.data, True
    if np.count_nonzero(present) < len(elements.data):
        raise _twice(array)
    dense = values.astype(schema.dtype(name).numpy, copy=False)
    return {name: dense, PRESENT: present} if schema.has(PRESENT) else {name: dense}


def _twice(array: Any) -> InterfaceError:
    return InterfaceError(
        f"The {array.format.upper()} array stores an element more than once, and a key is "
        "there once",
        hint="array.sum_duplicates() adds them up.",
    )
