"""Rows of sparsely stored tensors: the choice of the storage, and changes of stored elements."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

import numpy as np

from einsql.core.free_memory import require_dense
from einsql.core.schema import PRESENT, DType, Field, Schema
from einsql.core.sparse.compressed import Compressed, at_cells
from einsql.core.sparse.matrix import Fills, Sparse
from einsql.core.sparse.numbering import index_type, matrix_shape
from einsql.errors import IntegrityError, NotSupportedError
from einsql.kernels.sparse.union import united
from einsql.session.statements.target import changed, key_text
from einsql.storage.array_ownership import distinct
from einsql.storage.objects import Tensor
from einsql.storage.out_of_memory import require
from einsql.storage.relation import Relation
from einsql.storage.sparse_choice import pays
from einsql.storage.sparse_fields import SparseFields, sparse_fields_of, stored_fields

WIDTH = 40
"""Bytes that a change takes for each stored element: positions, their order and copies."""


def is_chosen(schema: Schema, rows: int, storage: str | None) -> bool:
    """Whether a tensor with a number of rows is stored sparsely.

    Args:
        schema: Keys and values.
        rows: The number of rows.
        storage: "sparse" or "dense" of STORAGE; None leaves the choice to the number of rows.

    Raises:
        NotSupportedError: STORAGE SPARSE of a tensor without keys.
    """
    if storage == "sparse" and not schema.keys:
        raise NotSupportedError(
            "STORAGE SPARSE needs a key, and there is none",
            hint="Without the clause the tensor has one element.",
        )
    return storage == "sparse" or (storage is None and pays(schema, rows))


def with_flag(schema: Schema, filled: bool) -> Schema:
    """The schema of a sparsely stored tensor: keys may be absent, unless all of them exist."""
    flag = () if filled else (Field(PRESENT, DType.BOOLEAN),)
    return Schema(schema.keys, (*schema.values, *flag))


def empty_fields(schema: Schema, fills: Fills | None) -> SparseFields:
    """The fields of a tensor without stored elements.

    Args:
        schema: Keys and values.
        fills: The values of all keys; None if no key exists.
    """
    none = {f.name: np.zeros(0, f.dtype.numpy) for f in schema.values}
    require(8 * matrix_shape(schema.shape)[0])
    structure, _ = at_cells(schema.shape, np.zeros(0, np.int64))
    return stored_fields(structure, none, fills)


def _fills(tensor: Tensor) -> Fills | None:
    """The values of the keys of a tensor without rows, each equal in all keys; None without any."""
    if tensor.default is None:
        return None
    fields, schema = tensor.relation.fields, tensor.relation.schema
    few = sparse_fields_of(fields)
    if few is not None:
        return few.fills
    equal = ((f, distinct(fields[f.name]).reshape(-1)[:1]) for f in schema.values)
    return {f.name: np.array(a[0] if len(a) else 0, f.dtype.numpy) for f, a in equal}


def filled_rows(tensor: Tensor, cells: np.ndarray, values: Mapping[str, np.ndarray]) -> Tensor:
    """Returns an empty tensor with rows, stored sparsely.

    Args:
        tensor: The tensor, without rows.
        cells: The position of each row in key order.
        values: The values of the rows as they are stored.

    Raises:
        IntegrityError: A key occurs twice.
    """
    schema = with_flag(tensor.relation.schema, tensor.default is not None)
    require(WIDTH * len(cells) + 8 * matrix_shape(schema.shape)[0])
    structure, twice = at_cells(schema.shape, cells)
    if twice is not None:
        key = key_text(schema, int(cells[twice[0]]))
        raise IntegrityError(f"The key ({key}) is inserted twice")
    ordered = {f.name: values[f.name][structure.values] for f in schema.values}
    fields = stored_fields(structure, ordered, _fills(tensor))
    return tensor.with_relation(Relation(schema, fields))


def with_array(tensor: Tensor, array: np.ndarray) -> Tensor:
    """Returns a sparsely stored tensor of one value with an array's elements.

    Elements with the DEFAULT are not stored. Without a DEFAULT all of them are rows.

    Args:
        tensor: The tensor.
        array: The elements as they are stored, over all keys.
    """
    (value,), few = tensor.relation.schema.values, _ordered(tensor)
    if few.fills is None:
        require(WIDTH * array.size)
        cells = np.arange(array.size)
    else:
        bits = np.dtype(f"u{array.dtype.itemsize}")
        differs = array.view(bits) != few.fill(value.name).view(bits)
        require(WIDTH * int(np.count_nonzero(differs)))
        cells = np.flatnonzero(differs)
    structure, _ = at_cells(tensor.relation.schema.shape, cells)
    fields = stored_fields(structure, {value.name: array.reshape(-1)[cells]}, few.fills)
    return tensor.with_relation(Relation(tensor.relation.schema, fields))


def stored_at(tensor: Tensor, cells: np.ndarray) -> np.ndarray:
    """Flags of the positions in key order at which a sparsely stored tensor has a row."""
    if _ordered(tensor).filled:
        return np.ones(len(cells), np.bool_)
    return _places(_ordered(tensor), cells) >= 0


def _ordered(tensor: Tensor) -> SparseFields:
    fields = sparse_fields_of(tensor.relation.fields)
    assert fields is not None
    return fields.in_key_order()


def _places(fields: SparseFields, cells: np.ndarray) -> np.ndarray:
    return fields.taken().places(*np.divmod(cells, max(1, matrix_shape(fields.extents)[1])))


def with_cells(
    tensor: Tensor, cells: np.ndarray, values: Mapping[str, np.ndarray], presence: bool | None
) -> Tensor:
    """Returns a sparsely stored tensor with other elements at some positions.

    Args:
        tensor: The tensor.
        cells: The positions in key order, each once.
        values: The new values of some fields at these positions, as they are stored.
        presence: False removes the elements.

    Raises:
        OperationalError: The stored elements would not fit into memory.
    """
    fields = _ordered(tensor)
    if presence is False and fields.filled:
        return _without(tensor, cells)
    require(WIDTH * (fields.matrix.stored + len(cells)))
    places = _places(fields, cells)
    here = places >= 0
    columns = {name: fields.taken(name).values for name in fields.names}
    if presence is False:
        kept = np.ones(fields.matrix.stored, np.bool_)
        kept[places[here]] = False
        columns = {name: array[kept] for name, array in columns.items()}
        structure = fields.matrix.only(kept)
    else:
        for name, new in values.items():
            columns[name] = columns[name].copy()
            columns[name][places[here]] = new[here]
        structure = fields.matrix
        if not here.all():
            structure, columns = _merged(fields, columns, cells[~here], values, ~here)
    rows = np.unique(cells // max(1, prod(fields.extents[1:])))
    new_fields = fields.with_elements(structure, columns, rows)
    return tensor.with_relation(Relation(tensor.relation.schema, new_fields))


def overwritten(tensor: Tensor, result: SparseFields, columns: Collection[str]) -> Tensor | None:
    """Returns a sparsely stored tensor with new values of all its keys.

    Args:
        tensor: The tensor.
        result: The new values, over the keys of the tensor.
        columns: The changed columns.

    Returns:
        None if the result has only some of the keys.
    """
    schema, own = tensor.relation.schema, _ordered(tensor)
    if own.filled != result.filled:
        return None
    ordered = result.in_key_order()
    both: Sequence[Sparse] = own, ordered
    if not own.taken().shares_structure(ordered.taken()):
        if not own.filled:
            return None
        labels = tuple(k.name for k in schema.keys)
        both = united([(own, labels), (ordered, labels)])
    number = {f.name: int(f.name in columns) for f in schema.values}
    values = {name: both[n].taken(name).values for name, n in number.items()}
    fills = {name: (own, result)[n].fill(name) for name, n in number.items()}
    fields = stored_fields(both[0].taken(), values, fills if own.filled else None)
    return tensor.with_relation(Relation(schema, fields))


def without_rows(tensor: Tensor) -> Tensor:
    """Returns a sparsely stored tensor without any row."""
    schema = with_flag(Schema(tensor.relation.schema.keys, tensor.relation.schema.values), False)
    return tensor.with_relation(Relation(schema, empty_fields(schema, None)))


def _without(tensor: Tensor, cells: np.ndarray) -> Tensor:
    """Returns a tensor without some rows, of which every key had one; it becomes dense."""
    schema, fields = tensor.relation.schema, tensor.relation.fields
    widths = sum(f.dtype.numpy.itemsize for f in schema.values) + 1
    require_dense(schema.size * widths, schema.shape)
    mask = np.ones(schema.shape, np.bool_)
    mask.reshape(-1)[cells] = False
    return changed(tensor, {f.name: fields[f.name] for f in schema.values}, mask)


def _merged(
    fields: SparseFields,
    columns: Mapping[str, np.ndarray],
    cells: np.ndarray,
    values: Mapping[str, np.ndarray],
    chosen: np.ndarray,
) -> tuple[Compressed, dict[str, np.ndarray]]:
    """Returns the structure and the values with further elements at `cells`."""
    order = np.argsort(cells)
    matrix = fields.matrix
    rows, across = np.divmod(cells[order], matrix.shape[1])
    at = matrix.lower_bounds(rows, across)
    kind = index_type(matrix.stored + len(cells), *matrix.shape)
    starts = matrix.starts.astype(np.int64)
    starts[1:] += np.cumsum(np.bincount(rows, minlength=matrix.shape[0]))
    structure = Compressed(
        matrix.extents,
        starts.astype(kind),
        np.insert(matrix.columns.astype(kind, copy=False), at, across.astype(kind)),
        matrix.values,
    )
    merged = {}
    for name, array in columns.items():
        if name in values:
            new: np.ndarray = values[name][chosen][order]
        else:
            new = np.full(len(cells), fields.fill(name), array.dtype)
        merged[name] = np.insert(array, at, new)
    return structure, merged
