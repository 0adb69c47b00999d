"""Results over sparse matrices: rows of stored elements in key order, and SciPy's matrices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.schema import PRESENT, DType, Schema, valid
from einsql.errors import InterfaceError
from einsql.storage.fields import Fields
from einsql.storage.sparse_fields import SparseFields, sparse_fields_of

ONE_KEY = ("csr", "coo", "dok")
"""SciPy's formats of arrays of rank 1."""
Values = tuple[np.ndarray, np.ndarray | None]
"""The values of a column, and the flags of those that are not NULL; None if no value is NULL."""


class Column(Protocol):
    """A column of a result: a key of the relation or one of its fields."""

    @property
    def name(self) -> str:
        """The column's name."""

    @property
    def dtype(self) -> DType:
        """The column's type."""

    @property
    def key(self) -> str | None:
        """The key; None for a field."""

    @property
    def field(self) -> str | None:
        """The field; None for a key."""


class Rows(Protocol):
    """A result with keys."""

    schema: Schema
    fields: Fields
    hidden: tuple[str, ...]

    @property
    def columns(self) -> Sequence[Column]:
        """The columns in SELECT order."""


def has_stored_rows(fields: Mapping[str, np.ndarray]) -> bool:
    """Whether the rows of a result are the stored elements of a sparse matrix."""
    few = sparse_fields_of(fields)
    return few is not None and not few.filled


def chunks(result: Rows, size: int) -> Iterator[list[Values]]:
    """The columns of up to `size` rows at a time, in key order.

    Args:
        result: A result whose rows are stored elements.
        size: The greatest number of rows.
    """
    fields = sparse_fields_of(result.fields)
    assert fields is not None
    ordered = fields.in_key_order()
    matrix, keys = ordered.matrix, result.schema.keys
    for start in range(0, matrix.stored, size):
        here = slice(start, min(start + size, matrix.stored))
        positions = matrix.positions_of(here.start, here.stop)
        places = {key.name: (at, key.lo) for key, at in zip(keys, positions, strict=True)}
        columns: list[Values] = []
        for c in result.columns:
            if c.key is not None:
                at, lo = places[c.key]
                shifted = lo or at.dtype != np.int64
                columns.append((np.add(at, np.int64(lo)) if shifted else at, None))
            else:
                columns.append(_values(ordered, c, here))
        yield columns


def _values(fields: SparseFields, column: Column, here: slice) -> Values:
    assert column.field is not None
    flag = valid(column.field)
    known = fields.taken(flag).values[here] if flag in fields.names else None
    return loaded(fields.taken(column.field).values[here], column.dtype), known


def without_zeros(fields: Fields) -> Fields:
    """The stored elements alone, if the other ones are 0; other fields unchanged."""
    few = sparse_fields_of(fields)
    if few is None or not few.zeros:
        return fields
    return few.of({name: few.taken(name).values for name in few.names})


# ---- SciPy


def scipy_matrices(result: Rows, form: str) -> Any:
    """The result as a SciPy sparse array, or as a dict of them by column name.

    Args:
        result: The result.
        form: The format, such as "csr".

    Raises:
        InterfaceError: The result has no key or more than two, a value is NULL, or absent keys
            have another value than 0.
    """
    values = [c for c in result.columns if c.field is not None]
    names = [c.name for c in values]
    keys = len(result.schema.keys)
    shown = sum(c.key is not None for c in result.columns)
    if result.hidden or keys not in (1, 2) or shown != keys:
        raise InterfaceError(
            f"fetch_scipy returns arrays of one key or two, and the result has {keys}",
            hint="Select one or two keys and a value: a SELECT for each value of a further key, or "
            "two keys in one, i * 1000 + j AS ij. fetch_arrow_table returns the rows.",
        )
    if not values or len(set(names)) != len(names):
        raise InterfaceError(
            "fetch_scipy needs value columns with different names", hint="Rename one with AS."
        )
    arrays = {c.name: _matrix(result, c, form) for c in values}
    return arrays[names[0]] if len(names) == 1 else arrays


def _matrix(result: Rows, column: Column, form: str) -> Any:
    from scipy import sparse  # takes 0.2 s, and few callers need it

    assert column.field is not None
    fields, few = result.fields, sparse_fields_of(result.fields)
    if few is not None:
        if few.fill(column.field).any():
            raise InterfaceError(
                f"Keys that are not stored have the value {few.fill(column.field)}, and SciPy's "
                "have 0",
                hint="fetch_numpy returns every element.",
            )
        constant = few.constant().in_key_order()
        refuse_null(constant, column)
        matrix = constant.taken(column.field)
        elements = _for_scipy(loaded(matrix.values, column.dtype))
        if len(matrix.extents) == 1:
            return _vector(elements, matrix.columns, matrix.extents, form)
        parts = (elements, matrix.columns, matrix.starts)
        array = sparse.csr_array(parts, shape=matrix.shape)
    else:
        refuse_null(fields, column)
        present = fields[PRESENT] if PRESENT in fields else np.ones(result.schema.shape, np.bool_)
        at = np.nonzero(present)
        elements = _for_scipy(loaded(fields[column.field], column.dtype)[at])
        if len(at) == 1:
            return _vector(elements, at[0], result.schema.shape, form)
        array = sparse.coo_array((elements, at), shape=result.schema.shape).tocsr()
    first = next(c.key for c in result.columns if c.key is not None)
    turned = first != result.schema.keys[0].name
    return (array.T if turned else array).asformat(form)


def _vector(elements: np.ndarray, places: np.ndarray, shape: tuple[int, ...], form: str) -> Any:
    """The elements of a result with one key."""
    from scipy import sparse  # as above

    if form not in ONE_KEY:
        raise InterfaceError(
            f"SciPy has no {form.upper()} array of one key",
            hint=f"Formats of one key are {', '.join(ONE_KEY)}.",
        )
    return sparse.coo_array((elements, (places,)), shape=shape).asformat(form)


def refuse_null(fields: Fields, column: Column) -> None:
    """Refuses NULL in a column.

    Raises:
        InterfaceError: A present value is NULL.
    """
    assert column.field is not None
    flag = valid(column.field)
    if flag not in fields:
        return
    few = sparse_fields_of(fields)
    if few is not None:
        known = few.taken(flag).values
    else:
        known = fields[flag] | ~fields[PRESENT] if PRESENT in fields else fields[flag]
    if not known.all():
        raise InterfaceError(
            f"{column.name} has NULL, and SciPy's matrices do not",
            hint="COALESCE(…, 0) gives NULL a value; WHERE … IS NOT NULL leaves it out.",
        )


def _for_scipy(elements: np.ndarray) -> np.ndarray:
    """The elements in a type of SciPy's arrays, which have no HALF."""
    return elements.astype(np.float32) if elements.dtype == np.float16 else elements
