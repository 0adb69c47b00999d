"""INSERT: writes rows of VALUES or of a SELECT into a tensor by their keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlglot import exp

from einsql.core import buffer_pool
from einsql.core.bfloat16 import loaded, stored
from einsql.core.schema import PRESENT, DType, Key, Schema, is_flag, valid
from einsql.core.units import plural
from einsql.errors import DataError, Error, IntegrityError, ProgrammingError, suggest
from einsql.ir.einsum.graph import Call, Const, EinSum, ParameterInput, Value
from einsql.ir.functions.casts import cast_array, cast_failure
from einsql.session.statements import sparse_rows
from einsql.session.statements.target import changed, constant, key_text, types_of
from einsql.session.statements.value_checks import first_violation, violation
from einsql.session.statements.write_set import Write, WriteSet
from einsql.sql.binder.dml import Insertion, LiteralRow
from einsql.sql.parser.positions import position
from einsql.sql.scope.relation import Relation
from einsql.sql.typing.typed_expr import convert
from einsql.storage.array_ownership import distinct
from einsql.storage.objects import Tensor
from einsql.storage.results.result import Result, ResultColumn
from einsql.storage.sparse_choice import MAX_KEYS

if TYPE_CHECKING:
    from einsql.planner.context import Context


MAX_ELEMENTS = 2**40
"""The most elements of a dense tensor. A larger one fits no machine, so it is a mistake."""


def refuse_size(schema: Schema, storage: str | None = None) -> None:
    """Refuses a tensor with too many elements.

    Raises:
        ProgrammingError: It has more than a tensor of its storage may have.
    """
    if schema.size > (MAX_KEYS if storage == "sparse" else MAX_ELEMENTS):
        raise ProgrammingError(
            f"{schema.size:,} elements are more than a tensor may have",
            hint="STORAGE SPARSE stores the rows of a tensor only, if it has at most "
            f"{MAX_KEYS:,} keys.",
        )


def refuse_names(names: Sequence[str]) -> None:
    """Refuses names of columns that a tensor cannot have.

    Raises:
        ProgrammingError: Two are the same, or one is reserved for a flag.
    """
    if len({n.lower() for n in names}) != len(names):
        raise ProgrammingError("Two columns have the same name", hint="Rename one with AS.")
    for name in names:
        if is_flag(name):
            raise ProgrammingError(
                f'The column "{name}" starts with a dot', hint="Give it another name, as with AS."
            )


def inserted(
    ctx: Context,
    tensor: Tensor,
    order: list[str],
    result: Result,
    replaces: bool,
    constants: Mapping[str, int],
) -> tuple[WriteSet, int]:
    """Returns the cells that INSERT … SELECT stores, and the number of rows.

    Args:
        ctx: The session.
        tensor: The tensor before the statement.
        order: The tensor's column for each column of the result.
        result: The result of the SELECT.
        replaces: Whether existing rows are overwritten.
        constants: The number of each field with the same number in every row, as far as the
            binder has determined it.

    Raises:
        IntegrityError: A key exists already, occurs twice or is out of bounds.
        DataError: A value is NULL or does not fit its type.
    """
    if result.fields.sites is not None:
        from einsql.session.statements import dml_on_ranks  # imports the transport to the ranks

        overwritten = dml_on_ranks.inserted(ctx, tensor, order, result, replaces)
        if overwritten is not None:
            return overwritten, len(result)
    columns = dict(zip(order, result.columns, strict=True))
    box = _box(tensor, columns, result, replaces, constants)
    if box is not None:
        return box, box.count
    return row_write(tensor, result_table(tensor, order, result), replaces)


def row_write(tensor: Tensor, table: dict[str, np.ndarray], replaces: bool) -> tuple[WriteSet, int]:
    """Returns the cells that INSERT of rows stores, and the number of rows.

    The columns are arrays in the carriers of their types.

    Raises:
        IntegrityError: A key exists already, occurs twice or is out of bounds.
    """
    at, schema = _new_cells(tensor, table, replaces), tensor.relation.schema
    values = {f.name: stored(table[f.name], f.dtype) for f in schema.values}
    return Write(tensor, at, values, len(at), presence=True, flat=True), len(at)


def _box(
    tensor: Tensor,
    source: dict[str, ResultColumn],
    result: Result,
    replaces: bool,
    constants: Mapping[str, int],
) -> Write | None:
    """Returns a dense result as a box of free cells; None if each row has to be checked.

    A key of the tensor is a key of the result, or one number for all rows.

    Args:
        tensor: The tensor before the statement.
        source: The result's column for each column of the tensor.
        result: The result of the SELECT.
        replaces: Whether existing rows are overwritten.
        constants: The constants of fields; see `inserted`.
    """
    schema, source_schema = tensor.relation.schema, result.schema
    if result.hidden or not source_schema.size or len(result) < source_schema.size:
        return None
    if tensor.relation.fields.is_sparse:
        return None
    axes = {k.name: n for n, k in enumerate(source_schema.keys)}
    box: list[slice] = []
    moved: list[int] = []
    spread: list[slice | None] = []
    for key in schema.keys:
        column = source[key.name]
        if column.key is not None:
            moved.append(axes[column.key])
            spread.append(slice(None))
            lo, hi = source_schema.keys[moved[-1]].lo, source_schema.keys[moved[-1]].hi
        else:
            assert column.field is not None
            number = constants.get(column.field)
            number = _only(result, column) if number is None else number
            if number is None:
                return None
            spread.append(None)
            lo, hi = number, number + 1
        if lo < key.lo or hi > key.hi:
            return None
        box.append(slice(lo - key.lo, hi - key.lo))
    if sorted(moved) != list(range(len(source_schema.keys))):
        return None
    at = tuple(box)
    if tensor.default is None and not replaces:
        bounds = np.array([(s.start, s.stop) for s in at], np.int64).reshape(-1, 2)
        if not schema.has(PRESENT) or tensor.relation.fields.part([PRESENT], bounds)[PRESENT].any():
            return None
    values: dict[str, np.ndarray] = {}
    for f in schema.values:
        array = _values(result, source[f.name], f.dtype)
        if array is None:
            return None
        values[f.name] = array.transpose(moved)[tuple(spread) or ...]
    covers_all = source_schema.size == schema.size
    return Write(tensor, None if covers_all else at, values, source_schema.size, presence=True)


def constant_fields(relation: Relation) -> dict[str, int | str]:
    """Returns the fields of a SELECT that have the same number in every row.

    The value is the number, or the name of the `ParameterInput` that has it. Absent rows may have
    other numbers.
    """
    node, constants = relation.node, dict[str, int | str]()
    if not isinstance(node, EinSum):
        return constants
    for o in node.outputs:
        if o.reduction is not None or node.schema.has(valid(o.name)) or not o.dtype.is_integer:
            continue
        e = o.args[0]
        while isinstance(e, Call) and e.fn == "cast" and e.args[0].dtype.is_integer:
            (e,) = e.args  # the cast has refused numbers that do not fit
        if isinstance(e, Const) and e.dtype.is_integer:
            constants[o.name] = int(e.value)
        elif isinstance(e, Value) and e.dtype.is_integer:
            source = node.operands[e.operand].source
            if isinstance(source, ParameterInput):
                constants[o.name] = source.name
    return constants


def _only(result: Result, column: ResultColumn) -> int | None:
    """Returns the number of an integer column that has one number in every row, else None."""
    assert column.field is not None
    if not column.dtype.is_integer or not result.dense(column):
        return None
    values = distinct(result.fields[column.field])
    first = values.flat[0]
    return int(first) if values.size == 1 or (values == first).all() else None


def _values(result: Result, column: ResultColumn, dtype: DType) -> np.ndarray | None:
    """Returns a column in the tensor's type, or None if it does not fit or has NULLs."""
    if column.field is None or not result.dense(column):
        return None
    values = result.fields[column.field]
    if column.dtype is dtype:
        return values
    values, failure = loaded(values, column.dtype), cast_failure(column.dtype, dtype)
    if failure is not None and failure.numpy(values).any():
        return None
    converted: Any = stored(cast_array(values, dtype), dtype)
    return np.asarray(converted)


def result_order(tensor: Tensor, statement: Insertion, relation: Relation) -> list[str]:
    """Returns the tensor's column for each column of the SELECT."""
    columns = relation.columns
    if statement.by_name:
        return column_order(tensor, [(c.name, statement.source) for c in columns])
    order = column_order(tensor, statement.columns)
    if len(columns) != len(order):
        raise ProgrammingError(
            f"INSERT gives {plural(len(columns), 'column')} for {len(order)}",
            hint=f"{tensor.name} has {', '.join(order)}.",
        )
    return order


def column_order(tensor: Tensor, listed: list[tuple[str, exp.Expr]]) -> list[str]:
    """Resolves listed column names, each with the node for error positions."""
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


def literal_table(
    ctx: Context, tensor: Tensor, listed: list[tuple[str, exp.Expr]], rows: list[LiteralRow]
) -> dict[str, np.ndarray]:
    """Returns the columns of VALUES, by the tensor's names.

    Raises:
        Error: Columns are missing, a value is NULL, does not fit or is out of bounds.
    """
    order = column_order(tensor, listed)
    types = types_of(tensor.relation.schema)
    bounds = {k.name: k for k in tensor.relation.schema.keys}
    table: dict[str, list[np.ndarray]] = {column: [] for column in order}
    for row in rows:
        if len(row.cells) != len(order):
            raise ProgrammingError(
                f"VALUES gives {plural(len(row.cells), 'column')} for {len(order)}",
                hint=f"{tensor.name} has {', '.join(order)}.",
                position=row.positions[0] if row.positions else None,
            )
        for column, cell, at in zip(order, row.cells, row.positions, strict=True):
            try:
                value = constant(ctx, convert(cell, types[column]), column)
                if column in bounds:
                    _check_bounds(tensor.name, bounds[column], value)
            except Error as error:
                error.position = at
                raise
            table[column].append(value)
    columns = {c: np.array(a, dtype=types[c].carrier) for c, a in table.items()}
    for check in tensor.checks:
        first = first_violation(tensor, check, columns[check.column])
        if first is not None:
            number = int(columns[check.column][first])
            flat = int(cells(tensor, columns, len(rows))[first])
            refusal = violation(tensor, check, number, flat)
            refusal.position = rows[first].positions[order.index(check.column)]
            raise refusal
    return columns


def _check_bounds(tensor: str, key: Key, at: np.ndarray) -> None:
    outside = (at < key.lo) | (at >= key.hi)
    if outside.any():
        raise IntegrityError(
            f"{key.name} = {int(at[outside].flat[0])} is out of bounds",
            hint=f"{key.name} of {tensor} is in [{key.lo}, {key.hi}).",
        )


def result_table(tensor: Tensor, order: list[str], result: Result) -> dict[str, np.ndarray]:
    """Returns a result's columns in the types of a tensor's, by the tensor's names.

    Raises:
        Error: A value is NULL or does not fit.
    """
    table: dict[str, np.ndarray] = {}
    for column, (source, values, known) in zip(order, result.table(), strict=True):
        if known is not None and not known.all():
            raise DataError(
                f"{int((~known).sum())} values for {column} are NULL",
                hint="COALESCE(…, 0) gives them a value.",
            )
        table[column] = cast_column(tensor, column, source, values)
    return table


def cast_column(tensor: Tensor, column: str, source: DType, values: np.ndarray) -> np.ndarray:
    """Casts values to the type of a tensor's column.

    Raises:
        ProgrammingError: The column is a key, and the values are no integers.
        DataError: A value does not fit.
    """
    schema = tensor.relation.schema
    is_key = column in {k.name for k in schema.keys}
    if is_key and not source.is_integer:
        raise ProgrammingError(
            f"The key {column} cannot be a {source.value}",
            hint=f"CAST({column} AS BIGINT) converts it.",
        )
    dtype = DType.BIGINT if is_key else schema.dtype(column)
    failure = cast_failure(source, dtype)
    if failure is not None and failure.numpy(values).any():
        raise DataError(failure.reason)
    return np.asarray(cast_array(values, dtype))


def filled(tensor: Tensor, table: dict[str, np.ndarray], storage: str | None) -> Tensor:
    """Returns an empty tensor with rows. The columns are in the carriers of their types.

    Args:
        tensor: The tensor, without rows.
        table: The columns of the rows.
        storage: "sparse" or "dense" of STORAGE; None leaves the choice to the number of rows.

    Raises:
        IntegrityError: A key occurs twice or is out of bounds.
        NotSupportedError: STORAGE SPARSE of a tensor without exactly two keys.
    """
    schema, count = tensor.relation.schema, len(next(iter(table.values())))
    if sparse_rows.is_chosen(schema, count, storage):
        values = {f.name: stored(table[f.name], f.dtype) for f in schema.values}
        return sparse_rows.filled_rows(tensor, cells(tensor, table, count), values)
    refuse_size(schema)
    at = _new_cells(tensor, table, replaces=False)
    present = tensor.relation.present
    mask = _own(np.True_ if present is None else present, schema.shape)
    mask.reshape(-1)[at] = True
    fields = {f.name: _own(tensor.relation.fields[f.name], schema.shape) for f in schema.values}
    for name, array in fields.items():
        array.reshape(-1)[at] = stored(table[name], schema.dtype(name))
    return changed(tensor, fields, mask)


def _new_cells(tensor: Tensor, table: dict[str, np.ndarray], replaces: bool) -> np.ndarray:
    schema = tensor.relation.schema
    at = cells(tensor, table, len(next(iter(table.values()))))
    unique, counts = np.unique(at, return_counts=True)
    if (counts > 1).any():
        raise IntegrityError(
            f"The key ({key_text(schema, int(unique[counts > 1][0]))}) is inserted twice"
            if schema.keys
            else f"{tensor.name} takes one row"
        )
    if tensor.default is not None or replaces:
        return at
    taken = _taken(tensor, at)
    if taken.any():
        raise IntegrityError(
            f"The key ({key_text(schema, int(at[taken][0]))}) exists in {tensor.name}"
            if schema.keys
            else f"{tensor.name} has its value",
            hint="INSERT OR REPLACE sets it; UPDATE changes values.",
        )
    return at


def _taken(tensor: Tensor, at: np.ndarray) -> np.ndarray:
    """Returns whether the keys at flat indices exist; only the box around them is read."""
    if tensor.relation.fields.is_sparse:
        return sparse_rows.stored_at(tensor, at)
    schema = tensor.relation.schema
    if not schema.has(PRESENT):
        return np.ones(len(at), np.bool_)
    cells = np.unravel_index(at, schema.shape) if schema.shape else ()
    box = np.array([(c.min(), c.max() + 1) if len(c) else (0, 0) for c in cells], np.int64)
    mask = tensor.relation.fields.part([PRESENT], box.reshape(-1, 2))[PRESENT]
    inside = tuple(c - lo for c, (lo, _) in zip(cells, box.tolist(), strict=True))
    return np.broadcast_to(mask[inside], at.shape)


def _own(array: np.ndarray | np.bool_, shape: tuple[int, ...]) -> np.ndarray:
    """Returns a copy, in a temporary file if memory is short."""
    copied = buffer_pool.empty(shape, array.dtype)
    copied[...] = array
    return copied


def cells(tensor: Tensor, table: dict[str, np.ndarray], count: int) -> np.ndarray:
    """Returns the flat index of each row; a tensor without keys has only cell 0.

    Raises:
        IntegrityError: A key is out of bounds.
    """
    flat = np.zeros(count, np.int64)
    for key in tensor.relation.schema.keys:
        _check_bounds(tensor.name, key, table[key.name])
        flat = flat * key.extent + (table[key.name] - key.lo)
    return flat
