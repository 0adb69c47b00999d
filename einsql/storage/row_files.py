"""Files of element rows as relations, with inferred key columns and bounds."""

from __future__ import annotations

from math import prod

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.core.sparse.compressed import at_cells
from einsql.core.sparse.numbering import matrix_shape
from einsql.core.units import plural
from einsql.errors import DataError, NotSupportedError
from einsql.storage.fields import LocalFields
from einsql.storage.files.mapped import refusing
from einsql.storage.files.matrix_market import Matrix
from einsql.storage.files.rows import Batch, Rows
from einsql.storage.files.tensor import Tick
from einsql.storage.out_of_memory import require
from einsql.storage.relation import MAX_AXES
from einsql.storage.relation import Relation as Stored
from einsql.storage.sparse_choice import MAX_KEYS, SPARSE
from einsql.storage.sparse_fields import stored_fields

MOST_KEYS, MOST_A_ROW = 2**24, 1000
"""Greatest extent of inferred bounds: a number of keys, or a number of keys per row."""
MOST_BIGINT = 2**63 - 1
"""The greatest value of a BIGINT; keys are below it, because their upper bounds are exclusive."""


def rows_relation(source: Rows, path: str, member: str | None, tick: Tick) -> Stored:
    """A relation over the rows of files.

    The leading columns of integers are keys, and at least the last column is a value; a Matrix
    Market file has two keys and a value. Bounds are from 0, or from the least key if it is
    negative, to the greatest key; a Matrix Market file declares them. The file is read twice, so
    only one batch of rows is in memory in addition to the relation.

    Args:
        source: The rows.
        path: The path as written by the user.
        member: The name of a single value column, or None for all.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.

    Raises:
        NotSupportedError: A column contains text.
        DataError: There are no values, a column contains NULL, or a key is duplicate.
        OperationalError: The file is damaged, or does not fit into memory.
    """
    keys, values = _kinds(source, path, member)
    types = dict.fromkeys(keys, DType.BIGINT) | values
    lo, hi, count = np.zeros(len(keys), np.int64), np.zeros(len(keys), np.int64), 0
    for batch in source.batches(types, lambda f: tick(f / 2)):
        columns = [batch[name] for name in keys]
        some = len(next(iter(batch.values())))
        if some:
            lo = np.minimum(lo, [c.min() for c in columns])
            # The greatest BIGINT has no successor; such bounds are refused below.
            hi = np.maximum(hi, [min(int(c.max()), MOST_BIGINT - 1) + 1 for c in columns])
        count += some
        if count > prod((hi - lo).tolist()):  # more rows than keys within the bounds
            raise _duplicate(path)
    if source.extents is not None:
        hi = np.array(source.extents, np.int64)
    bounds = tuple(
        Key(n, int(a), int(b)) for n, a, b in zip(keys, lo.tolist(), hi.tolist(), strict=True)
    )
    fields = tuple(Field(n, t) for n, t in values.items())
    schema = Schema(bounds, fields)
    is_thin = bool(keys) and not lo.any() and count * SPARSE < schema.size <= MAX_KEYS

    def later(fraction: float) -> None:
        tick((1 + fraction) / 2)

    sparse = is_thin or (isinstance(source, Matrix) and source.sparse)
    # A sparse tensor takes memory for each value of a key, a dense tensor for each key.
    spanned = max(schema.shape) if sparse else schema.size
    if spanned > max(MOST_KEYS, MOST_A_ROW * count):
        raise DataError(
            f"'{path}' has {plural(count, 'row')}, and their keys span "
            f"{spanned if spanned < MOST_BIGINT else 'over 2^63'} values",
            hint="COPY into a tensor with declared bounds, or number the keys densely.",
        )
    with refusing(path):
        return (_sparse if sparse else _dense)(source, types, schema, count, path, later)


def _kinds(source: Rows, path: str, member: str | None) -> tuple[list[str], dict[str, DType]]:
    """The names of the keys, and the values with their types."""
    names = list(source.columns)
    texts = [name for name, kind in source.columns.items() if kind is None]
    if texts:
        raise NotSupportedError(  # DuckDB reads the file as a table
            f"'{path}' has values in {texts[0]} that are no numbers",
            hint="A tensor's values are numbers and BOOLEANs.",
        )
    kinds = {name: kind for name, kind in source.columns.items() if kind is not None}
    if len({name.lower() for name in names}) < len(names) or not all(names):
        raise DataError(f"'{path}' has a column without a name, or two of the same name")
    first = next((n for n, kind in enumerate(kinds.values()) if not kind.is_integer), len(names))
    keys = names[: min(first, len(names) - 1)]
    if len(keys) > MAX_AXES:
        raise DataError(
            f"'{path}' has {len(keys)} columns of keys, more than {MAX_AXES}",
            hint=f"FROM '{path}' reads it as a table, if it is a Parquet or CSV file.",
        )
    values = {name: kinds[name] for name in names[len(keys) :]}
    if member is not None:
        if member not in values:
            raise DataError(
                f"'{path}' has no value column '{member}'", hint=f"It has {', '.join(values)}."
            )
        values = {member: values[member]}
    if not values:
        raise DataError(f"'{path}' has no columns")
    return keys, values


def _duplicate(path: str) -> DataError:
    return DataError(
        f"'{path}' has a duplicate key, and a tensor has each key once",
        hint="The leading columns of integers are keys; COPY into a tensor names the duplicate.",
    )


def _dense(
    source: Rows, types: dict[str, DType], schema: Schema, count: int, path: str, tick: Tick
) -> Stored:
    if count > schema.size:
        raise _duplicate(path)
    nbytes = schema.size * (1 + sum(f.dtype.numpy.itemsize for f in schema.fields))
    require(nbytes)
    with source.file.lending(nbytes):
        fields = {f.name: _zeros(schema.shape, f.dtype.numpy) for f in schema.fields}
        present = _zeros(schema.shape, np.dtype(np.bool_))
    for batch in source.batches(types, tick):
        at = _cells(source, schema, batch)
        present.reshape(-1)[at] = True
        for f in schema.fields:
            fields[f.name].reshape(-1)[at] = batch[f.name]
    if int(np.count_nonzero(present)) != count:
        raise _duplicate(path)
    if count < schema.size:
        fields[PRESENT] = present
        schema = Schema(schema.keys, (*schema.fields, Field(PRESENT, DType.BOOLEAN)))
    return Stored(schema, LocalFields(fields))


def _cells(source: Rows, schema: Schema, batch: Batch) -> np.ndarray:
    """The position of each row in key order."""
    at = np.zeros(len(next(iter(batch.values()))), np.int64)
    for key in schema.keys:
        inside = (batch[key.name] >= key.lo) & (batch[key.name] < key.hi)
        if not inside.all():
            raise source.file.refusal("has changed while it was read", "Run it again.")
        at = at * key.extent + (batch[key.name] - key.lo)
    return at


def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    zeros = empty(shape, dtype)
    zeros.fill(0)
    return zeros


def _sparse(
    source: Rows, types: dict[str, DType], schema: Schema, count: int, path: str, tick: Tick
) -> Stored:
    width = 16 + sum(f.dtype.numpy.itemsize for f in schema.fields)
    require(count * width + 8 * matrix_shape(schema.shape)[0])
    cells, done = np.empty(count, np.int64), 0
    values = {f.name: np.empty(count, f.dtype.numpy) for f in schema.fields}
    for batch in source.batches(types, tick):
        some = slice(done, done + len(batch[schema.fields[0].name]))
        done = some.stop
        if done > count:
            break
        cells[some] = _cells(source, schema, batch)
        for name, array in values.items():
            array[some] = batch[name]
    if done != count:
        raise source.file.refusal("has changed while it was read", "Run the statement again.")
    structure, twice = at_cells(schema.shape, cells)
    if twice is not None:
        raise _duplicate(path)
    masked = Schema(schema.keys, (*schema.fields, Field(PRESENT, DType.BOOLEAN)))
    ordered = {name: array[structure.values] for name, array in values.items()}
    return Stored(masked, stored_fields(structure, ordered, None))
