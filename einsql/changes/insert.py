"""INSERT: rows of VALUES or of a SELECT, written into a tensor by their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from sqlglot import exp

from einsql import buffers
from einsql.bfloat16 import stored
from einsql.casting import cast_array, cast_failure
from einsql.changes.target import changed, constant, writable
from einsql.engine.relation import PlacedFields
from einsql.engine.result import Result
from einsql.engine.store import Tensor
from einsql.errors import DataError, Error, IntegrityError, ProgrammingError, suggest
from einsql.schema import DType, Key, Schema
from einsql.sql.changes import Insertion, LiteralRow, bind_insert, insertion, literal_rows
from einsql.sql.scalar import position
from einsql.sql.scope import Relation
from einsql.sql.typed import convert

if TYPE_CHECKING:
    from einsql.session import Connection


def insert(con: Connection, tree: exp.Insert, text: str = "") -> int:
    """INSERT [OR REPLACE] INTO … SELECT or VALUES; returns the number of rows.

    Raises:
        IntegrityError: A key exists already, occurs twice or is out of bounds.
        DataError: A value is NULL or does not fit its type.
    """
    statement = insertion(tree)
    tensor = writable(con, statement.target)
    binder = con.query_binder()
    if isinstance(statement.source, exp.Values):
        order = _column_order(tensor, statement.columns)
        table = _literal_table(con, tensor, order, literal_rows(binder, statement.source))
    else:
        try:
            relation = bind_insert(binder, statement)
        except Error as error:
            return _from_duckdb(con, tensor, statement, text, error)
        order = _result_order(tensor, statement, relation)
        result = con.run_bound(relation, binder)
        if isinstance(result.fields, PlacedFields):
            from einsql.changes.distant import inserted  # for ranks only

            made = inserted(con, tensor, order, result, statement.replaces)
            if made is not None:
                con.store.put(made)
                return len(result)
        table = result_table(tensor, order, result)
    with con.memory.lending():
        made = insert_rows(tensor, table, statement.replaces)
    con.store.put(made)
    return len(next(iter(table.values())))


def _from_duckdb(
    con: Connection, tensor: Tensor, statement: Insertion, text: str, error: Error
) -> int:
    """INSERT of a SELECT that is no tensor work as a whole."""
    from einsql import hybrid  # few statements need DuckDB
    from einsql.changes import tables

    if con.settings.fallback == "off" or not text or not hybrid.is_outside(error):
        raise error
    found = hybrid.run(con, hybrid.split_insert(con, text))
    if statement.by_name:
        order = _column_order(tensor, [(n, statement.source) for n in found.names])
    else:
        order = _column_order(tensor, statement.columns)
    table = tables.fitted(tensor, order, tables.read(found))
    with con.memory.lending():
        made = insert_rows(tensor, table, statement.replaces)
    con.store.put(made)
    return len(found)


def _result_order(tensor: Tensor, statement: Insertion, relation: Relation) -> list[str]:
    """The tensor's column that each column of the SELECT goes to."""
    given = relation.columns
    if statement.by_name:
        return _column_order(tensor, [(c.name, statement.source) for c in given])
    order = _column_order(tensor, statement.columns)
    if len(given) != len(order):
        raise ProgrammingError(
            f"INSERT gives {len(given)} columns for {len(order)}",
            hint=f"{tensor.name} has {', '.join(order)}.",
        )
    return order


def _column_order(tensor: Tensor, listed: list[tuple[str, exp.Expr]]) -> list[str]:
    """The tensor's columns as listed, by names and the nodes that give them."""
    if not listed:
        return list(tensor.columns)
    known = {c.lower(): c for c in tensor.columns}
    order: list[str] = []
    for name, node in listed:
        column = known.get(name.lower())
        if column is None or column in order:
            reason = f'{tensor.name} has no column "{name}"'
            raise ProgrammingError(
                reason if column is None else f'INSERT names "{name}" twice',
                hint=suggest(name, tensor.columns, "columns"),
                position=position(node),
            )
        order.append(column)
    missing = [c for c in tensor.columns if c not in order]
    if missing:
        raise ProgrammingError(
            f"INSERT leaves out {', '.join(missing)}", hint="A tensor row needs every column."
        )
    return order


def _literal_table(
    con: Connection, tensor: Tensor, order: list[str], rows: list[LiteralRow]
) -> dict[str, np.ndarray]:
    types = _types(tensor)
    bounds = {k.name: k for k in tensor.relation.schema.keys}
    table: dict[str, list[np.ndarray]] = {column: [] for column in order}
    for row in rows:
        if len(row.cells) != len(order):
            raise ProgrammingError(
                f"VALUES gives {len(row.cells)} columns for {len(order)}",
                hint=f"{tensor.name} has {', '.join(order)}.",
                position=row.positions[0] if row.positions else None,
            )
        for column, cell, at in zip(order, row.cells, row.positions, strict=True):
            try:
                value = constant(con, convert(cell, types[column]), column)
                if column in bounds:
                    _check_bounds(tensor.name, bounds[column], value)
            except Error as error:
                error.position = at
                raise
            table[column].append(value)
    return {c: np.array(cells, dtype=types[c].carrier) for c, cells in table.items()}


def _check_bounds(tensor: str, key: Key, at: np.ndarray) -> None:
    outside = (at < key.lo) | (at >= key.hi)
    if outside.any():
        raise IntegrityError(
            f"{key.name} = {int(at[outside].flat[0])} is out of bounds",
            hint=f"{key.name} of {tensor} lies in [{key.lo}, {key.hi}).",
        )


def _types(tensor: Tensor) -> dict[str, DType]:
    schema = tensor.relation.schema
    return {
        **{k.name: DType.BIGINT for k in schema.keys},
        **{f.name: f.dtype for f in schema.values},
    }


def result_table(tensor: Tensor, order: list[str], result: Result) -> dict[str, np.ndarray]:
    """A result's columns in the types of a tensor's, by their names.

    Raises:
        Error: A value is NULL or does not fit.
    """
    types = _types(tensor)
    table: dict[str, np.ndarray] = {}
    for column, (source, values, known) in zip(order, result.table(), strict=True):
        if known is not None and not known.all():
            raise DataError(
                f"{int((~known).sum())} values for {column} are NULL",
                hint="COALESCE(…, 0) gives them a value.",
            )
        failure = cast_failure(source, types[column])
        is_key = column in {k.name for k in tensor.relation.schema.keys}
        if is_key and not source.is_integer:
            raise ProgrammingError(f"The key {column} cannot be a {source.value}")
        if failure is not None and failure.numpy(values).any():
            raise DataError(failure.reason)
        table[column] = cast_array(values, types[column])
    return table


def insert_rows(tensor: Tensor, table: dict[str, np.ndarray], replaces: bool) -> Tensor:
    """The tensor with rows of columns, each in the carrier of its type.

    Raises:
        IntegrityError: A key exists already, occurs twice or is out of bounds.
    """
    schema = tensor.relation.schema
    at = cells(tensor, table, len(next(iter(table.values()))))
    unique, counts = np.unique(at, return_counts=True)
    if (counts > 1).any():
        raise IntegrityError(
            f"The key ({_key_text(schema, int(unique[counts > 1][0]))}) is inserted twice"
            if schema.keys
            else f"{tensor.name} takes one row"
        )
    present = tensor.relation.present
    mask = _own(np.True_ if present is None else present, schema.shape)
    taken = mask.reshape(-1)[at]
    if tensor.default is None and not replaces and taken.any():
        raise IntegrityError(
            f"The key ({_key_text(schema, int(at[taken][0]))}) exists in {tensor.name}"
            if schema.keys
            else f"{tensor.name} has its value",
            hint="INSERT OR REPLACE sets it; UPDATE changes values.",
        )
    mask.reshape(-1)[at] = True
    fields = {f.name: _own(tensor.relation.fields[f.name], schema.shape) for f in schema.values}
    for name, array in fields.items():
        array.reshape(-1)[at] = stored(table[name], schema.dtype(name))
    return changed(tensor, fields, mask)


def _own(array: np.ndarray | np.bool_, shape: tuple[int, ...]) -> np.ndarray:
    """A copy, in a file where the session lends one."""
    made = buffers.empty(shape, array.dtype)
    made[...] = array
    return made


def cells(tensor: Tensor, table: dict[str, np.ndarray], count: int) -> np.ndarray:
    """The flat index of each of some rows; a tensor without keys has the one cell 0.

    Raises:
        IntegrityError: A key is out of bounds.
    """
    flat = np.zeros(count, np.int64)
    for key in tensor.relation.schema.keys:
        _check_bounds(tensor.name, key, table[key.name])
        flat = flat * key.extent + (table[key.name] - key.lo)
    return flat


def _key_text(schema: Schema, flat: int) -> str:
    at = np.unravel_index(flat, schema.shape)
    return ", ".join(f"{k.name} = {int(n) + k.lo}" for k, n in zip(schema.keys, at, strict=True))
