"""Rows of files, which are written to tensors by their keys, in batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from einsql.core.schema import Schema
from einsql.core.units import plural
from einsql.errors import DataError, IntegrityError
from einsql.session.statements import sparse_rows
from einsql.session.statements.target import changed, key_text, types_of
from einsql.storage.files.rows import Batch, Rows
from einsql.storage.objects import Tensor
from einsql.storage.out_of_memory import require

if TYPE_CHECKING:
    from einsql.planner.context import Context


def inserted(
    ctx: Context, tensor: Tensor, source: Rows, path: str, member: str | None
) -> tuple[Tensor, int]:
    """Returns the tensor with the rows of files, and the number of rows.

    As in INSERT, a row whose key exists is an error, unless the tensor has a DEFAULT; then
    the row replaces the value. Memory use is the tensor, one batch of rows and one byte for
    each key, which marks the read keys.

    Args:
        ctx: The session.
        tensor: The tensor before the statement.
        source: The rows.
        path: The path in the statement.
        member: The file's name for the only value column; None for the column's own name.

    Raises:
        DataError: Columns do not fit, or a value is NULL or not of its column's type.
        IntegrityError: A key is out of bounds, exists already or occurs twice.
    """
    schema = tensor.relation.schema
    names = _names(tensor, source, path, member)
    types = types_of(schema)
    if tensor.relation.fields.is_sparse:
        return _stored_sparsely(ctx, tensor, source, names, path)
    width = sum(f.dtype.numpy.itemsize for f in schema.values) + 2
    require(schema.size * width)
    present = tensor.relation.present
    mask = np.ones(schema.shape, np.bool_) if present is None else np.array(present, order="C")
    if tensor.default is None:
        came, before = mask, mask if present is None else present
    else:
        came, before = np.zeros(schema.shape, np.bool_), None
    fields = {f.name: np.array(tensor.relation.fields[f.name], order="C") for f in schema.values}
    rows = 0
    for batch in source.batches({names[c]: types[c] for c in types}, ctx.tick):
        at = _cells(schema, batch, names, path)
        _refuse_twice(schema, at, came.reshape(-1), before, path, tensor.name)
        came.reshape(-1)[at] = True
        for f in schema.values:
            fields[f.name].reshape(-1)[at] = batch[names[f.name]]
        rows += len(at)
    return changed(tensor, fields, mask), rows


def _stored_sparsely(
    ctx: Context, tensor: Tensor, source: Rows, names: dict[str, str], path: str
) -> tuple[Tensor, int]:
    """Returns a sparsely stored tensor with the rows of files; see `inserted`."""
    schema, types = tensor.relation.schema, types_of(tensor.relation.schema)
    places = [np.zeros(0, np.int64)]
    columns = {f.name: [np.zeros(0, f.dtype.numpy)] for f in schema.values}
    for batch in source.batches({names[c]: types[c] for c in types}, ctx.tick):
        places.append(_cells(schema, batch, names, path))
        for f in schema.values:
            columns[f.name].append(batch[names[f.name]].astype(f.dtype.numpy, copy=False))
        require(sparse_rows.WIDTH * sum(map(len, places)))
    at = np.concatenate(places)
    if tensor.default is None:
        there = sparse_rows.stored_at(tensor, at)
        if there.any():
            raise _exists(f"The key ({key_text(schema, int(at[there][0]))})", path, tensor.name)
    unique, counts = np.unique(at, return_counts=True)
    if len(unique) < len(at):
        key = key_text(schema, int(unique[counts > 1][0]))
        raise IntegrityError(f"The key ({key}) is twice in '{path}'")
    values = {name: np.concatenate(pieces) for name, pieces in columns.items()}
    return sparse_rows.with_cells(tensor, at, values, presence=True), len(at)


def _exists(key: str, path: str, name: str) -> IntegrityError:
    return IntegrityError(
        f"{key} of '{path}' exists in {name}",
        hint="DELETE it, or read into a tensor with DEFAULT, whose values are replaced.",
    )


def _names(tensor: Tensor, source: Rows, path: str, member: str | None) -> dict[str, str]:
    file_columns = list(source.columns)
    if source.positional:
        if len(file_columns) != len(tensor.columns):
            raise DataError(
                f"'{path}' has {plural(len(file_columns), 'column')}, and {tensor.name} has "
                f"{len(tensor.columns)}",
                hint=f"Those of {tensor.name} are {', '.join(tensor.columns)}.",
            )
        return dict(zip(tensor.columns, file_columns, strict=True))
    known = {name.lower(): name for name in reversed(file_columns)}
    if len(known) < len(file_columns):
        raise DataError(f"'{path}' has two columns of the same name")
    wanted = {c: c for c in tensor.columns}
    if member is not None:
        values = tensor.relation.schema.values
        if len(values) != 1:
            raise DataError(f"TENSOR names one value column; {tensor.name} has {len(values)}")
        wanted[values[0].name] = member
    missing = [name for name in wanted.values() if name.lower() not in known]
    extra = [n for n in file_columns if n.lower() not in {name.lower() for name in wanted.values()}]
    if missing or extra:
        reason = f"no column {missing[0]}" if missing else f"a column {extra[0]} too many"
        raise DataError(
            f"'{path}' has {reason} for {tensor.name}",
            hint=f"Its columns are {', '.join(file_columns)}; {tensor.name} has "
            f"{', '.join(tensor.columns)}.",
        )
    return {column: known[name.lower()] for column, name in wanted.items()}


def _cells(schema: Schema, batch: Batch, names: dict[str, str], path: str) -> np.ndarray:
    """Returns the flat index of each row; a tensor without keys has only cell 0."""
    flat = np.zeros(len(next(iter(batch.values()))), np.int64)
    for key in schema.keys:
        at = batch[names[key.name]]
        outside = (at < key.lo) | (at >= key.hi)
        if outside.any():
            raise IntegrityError(
                f"'{path}' has {key.name} = {int(at[outside][0])}, which is out of bounds",
                hint=f"{key.name} is in [{key.lo}, {key.hi}).",
            )
        flat = flat * key.extent + (at - key.lo)
    return flat


def _refuse_twice(
    schema: Schema,
    at: np.ndarray,
    came: np.ndarray,
    before: np.ndarray | None,
    path: str,
    name: str,
) -> None:
    """Refuses a key that exists in the tensor or in an earlier row."""
    wrong = came[at]
    if not wrong.any():
        if np.all(at[1:] > at[:-1]):
            return
        ordered = np.argsort(at, kind="stable")
        wrong = np.zeros(len(at), np.bool_)
        wrong[ordered[1:]] = at[ordered[1:]] == at[ordered[:-1]]
        if not wrong.any():
            return
    cell = int(at[wrong][0])
    there = before is not None and bool(before.reshape(-1)[cell])
    key = "The row" if not schema.keys else f"The key ({key_text(schema, cell)})"
    if there:
        raise _exists(key, path, name)
    raise IntegrityError(f"{key} is twice in '{path}'")
