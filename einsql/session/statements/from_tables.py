"""Tensors made from DuckDB rows, and changes of tensors by DuckDB queries."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.bfloat16 import stored
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.errors import (
    DataError,
    Error,
    IntegrityError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from einsql.hybrid import hybrid_plan
from einsql.hybrid.split.rows import touching
from einsql.session.statements.insert import (
    cast_column,
    cells,
    column_order,
    filled,
    refuse_names,
    refuse_size,
    row_write,
)
from einsql.session.statements.sparse_rows import is_chosen
from einsql.session.statements.value_checks import refuse_violations
from einsql.session.statements.write_set import Write, WriteSet, store
from einsql.sql.binder.dml import Insertion
from einsql.storage.arrow_arrays import numpy_array
from einsql.storage.duckdb.table_result import TableResult
from einsql.storage.fields import LocalFields
from einsql.storage.objects import Tensor
from einsql.storage.relation import Relation

if TYPE_CHECKING:
    import pyarrow as pa

    from einsql.planner.context import Context

SPARSE = 16
"""Elements per row: a table with more elements for each row is sparse."""

Columns = list[tuple[str, DType, np.ndarray]]


def tensor_of(
    ctx: Context,
    name: str,
    table: TableResult,
    empty: Tensor | None,
    storage: str | None,
    keys: Collection[str] | None,
) -> Tensor:
    """Returns a tensor with a table's rows.

    Args:
        ctx: The session.
        name: The tensor's name.
        table: The rows. Leading integer columns are keys, except the last column and `val`;
            the other columns are values.
        keys: The columns that are keys of the tensors the rows are selected from, in lower case;
            None if tables have other columns.
        empty: The declared tensor, whose columns match the table's by position; None infers it.
        storage: "sparse" or "dense" of STORAGE; None leaves the choice to the rows.

    Raises:
        ProgrammingError: Columns do not fit a tensor.
        DataError: A key or a value is NULL.
        IntegrityError: A key occurs twice, is negative or out of bounds.
        OperationalError: Few rows span more elements than fit the memory limit.
    """
    columns = read(table)
    if empty is not None:
        new_rows = fitted(empty, list(empty.columns), columns)
        with ctx.memory.lending():
            return filled(empty, new_rows, storage)
    names = [c[0] for c in columns]
    refuse_names(names)
    count = 0
    while count < len(columns) - 1 and columns[count][1].is_integer:
        column = columns[count][0].lower()
        if column == "val" or (keys is not None and column not in keys):  # `val` is a value
            break
        count += 1
    ranges = tuple(Key(n, 0, _bound(n, values)) for n, _, values in columns[:count])
    fields = tuple(Field(n, t) for n, t, _ in columns[count:])
    schema = Schema(ranges, (*fields, Field(PRESENT, DType.BOOLEAN)))
    if is_chosen(schema, len(columns[0][2]), storage):
        refuse_size(schema, "sparse")
    else:
        refuse_size(schema)
        _check_size(ctx, schema, len(columns[0][2]))
    zeros = LocalFields(
        {f.name: np.broadcast_to(np.zeros((), f.dtype.numpy), schema.shape) for f in schema.fields}
    )
    tensor = Tensor(name, Relation(schema, zeros), tuple(names))
    with ctx.memory.lending():
        return filled(tensor, {n: values for n, _, values in columns}, storage)


def _check_size(ctx: Context, schema: Schema, count: int) -> None:
    """Refuses sparse rows with large keys, which would spill mostly absent elements.

    Raises:
        OperationalError: The dense tensor does not fit the memory limit.
    """
    nbytes = sum(schema.size * f.dtype.numpy.itemsize for f in schema.fields)
    if count * SPARSE >= schema.size or ctx.memory.allows(nbytes):
        return
    shape = " * ".join(f"{k.extent:,}" for k in schema.keys)
    raise OperationalError(
        f"{count:,} rows would make a tensor of {shape} elements, {nbytes:,} bytes, and "
        f"{ctx.memory.room:,} may be taken",
        hint="Bounds come from the largest keys: leave such rows out with WHERE, declare the "
        "columns with DIM, or SET memory_limit. STORAGE SPARSE stores the rows only.",
    )


def _bound(name: str, values: np.ndarray) -> int:
    if len(values) and values.min() < 0:
        raise IntegrityError(
            f"The key {name} has the value {values.min()}",
            hint="A stored tensor's keys start at 0 or above; shift them.",
        )
    return int(values.max()) + 1 if len(values) else 0


def fitted(tensor: Tensor, order: list[str], columns: Columns) -> dict[str, np.ndarray]:
    """Casts columns to the types of a tensor's columns. Returns them by name.

    Raises:
        ProgrammingError: The number of columns is wrong, or a key is no integer.
        DataError: A value does not fit.
    """
    if len(order) != len(columns):
        raise ProgrammingError(
            f"The SELECT gives {len(columns)} columns for {len(order)}",
            hint=f"{tensor.name} has {', '.join(order)}.",
        )
    pairs = zip(order, columns, strict=True)
    return {c: cast_column(tensor, c, dtype, values) for c, (_, dtype, values) in pairs}


def read(table: TableResult) -> Columns:
    """Returns names, types and values of a table's columns.

    Raises:
        NotSupportedError: A column has a type that tensors do not have.
        DataError: A column has NULLs.
    """
    arrow_table = table.arrow()
    columns: Columns = []
    for name, type_name, column in zip(table.names, table.types, arrow_table.columns, strict=True):
        if column.null_count:
            raise DataError(
                f"{column.null_count} values of {name} are NULL, which a tensor cannot hold",
                hint="COALESCE(…, 0) gives them a value; WHERE … IS NOT NULL leaves them out.",
            )
        columns.append((name, *_typed(name, type_name, column)))
    return columns


_WIDER = {"uint8": "int16", "uint16": "int32", "uint32": "int64"}


def _typed(name: str, type_name: str, column: pa.ChunkedArray) -> tuple[DType, np.ndarray]:
    import pyarrow as pa  # only DuckDB's rows need it

    kind: Any = column.type
    if type_name in ("HUGEINT", "UHUGEINT", "UBIGINT"):
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid:
            raise DataError(f"A value of {name} does not fit BIGINT") from None
    elif str(kind) in _WIDER:
        column = column.cast(_WIDER[str(kind)])
    if column.type == pa.int16():
        column = column.cast(pa.int32())
    dtype = None
    plain = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    if any(is_type(column.type) for is_type in plain):
        dtype = DType.of(np.dtype(column.type.to_pandas_dtype()))
    if dtype is None:
        raise NotSupportedError(
            f"Tensors have no type {type_name}, which {name} has",
            hint=f"Cast it: {name}::DOUBLE. Types are {', '.join(t.value for t in DType)}.",
        )
    return dtype, numpy_array(column.combine_chunks())


# ---- INSERT, UPDATE and DELETE


def inserted_rows(
    ctx: Context, tensor: Tensor, statement: Insertion, text: str, refusal: Error
) -> tuple[WriteSet, int]:
    """Returns the cells that INSERT stores for a SELECT that DuckDB runs.

    Raises:
        Error: The refusal, if DuckDB may not run the SELECT; a row does not fit the tensor.
    """
    if ctx.settings.fallback == "off" or not text or not hybrid_plan.is_outside(refusal):
        raise refusal
    table = hybrid_plan.run(ctx, hybrid_plan.split_insert(ctx, text))
    by_name = [(n, statement.source) for n in table.names]
    order = column_order(tensor, by_name if statement.by_name else statement.columns)
    return row_write(tensor, fitted(tensor, order, read(table)), statement.replaces)


def changed_rows(ctx: Context, tensor: Tensor, text: str, alias: str, refusal: Error) -> int:
    """Runs UPDATE or DELETE of a tensor by a DuckDB query. Returns the number of rows.

    Args:
        ctx: The session.
        tensor: The tensor to change.
        text: The statement.
        alias: The tensor's name in the statement.
        refusal: The binder's error, because einsql alone cannot run the statement.

    Raises:
        Error: The refusal, if DuckDB may not or cannot run the statement.
        IntegrityError: Several rows of FROM match one row of the tensor.
        DataError: A new value is NULL, or does not fit.
    """
    schema = tensor.relation.schema
    asked = touching(text, alias, [k.name for k in schema.keys]) if text else None
    if ctx.settings.fallback == "off" or asked is None or not hybrid_plan.is_outside(refusal):
        raise refusal
    query, listed = asked
    known = {f.name.lower(): f.name for f in schema.values}
    if any(c.lower() not in known for c in listed):
        raise refusal
    names = [known[c.lower()] for c in listed]
    twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
    if twice is not None:
        raise ProgrammingError(f"{twice} is SET twice")
    try:
        touched = hybrid_plan.run(ctx, hybrid_plan.split(ctx, query))
    except Error as error:
        error.position = None  # it refers to the query's text
        raise
    order = [*(k.name for k in schema.keys), *names]
    wide = max(1, len(order))  # without keys or values a row has a dummy column
    columns = (*order, *touched.names[len(order) : wide])
    shown = TableResult(touched.relation, columns, touched.types, touched.lock)
    table = fitted(tensor, order, read(shown)[: len(order)])
    at = cells(tensor, table, len(touched))
    _, counts = np.unique(at, return_counts=True)
    if (counts > 1).any():
        raise IntegrityError(
            f"{int((counts > 1).sum())} rows of {tensor.name} meet several rows of FROM",
            hint="Compare all keys in WHERE, or aggregate FROM to one row for each key.",
        )
    values = {name: stored(table[name], schema.dtype(name)) for name in names}
    change = Write(tensor, at, values, len(at), presence=None if names else False, flat=True)
    refuse_violations(change)
    store(ctx, [change] if len(at) else [], set)
    return len(at)
