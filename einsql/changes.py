"""Statements that change tensors: CREATE, INSERT, UPDATE, DELETE and COPY.

Each one computes the whole new tensor first and stores it last, so that an error at any
point leaves the database as it was.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlglot import exp

from einsql.algebra import cast_array, cast_failure
from einsql.einsum import TRUE, Const
from einsql.engine import files
from einsql.engine.relation import Relation
from einsql.engine.result import Result
from einsql.engine.store import Tensor, owned
from einsql.errors import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    suggest,
)
from einsql.schema import PRESENT, DType, Field, Key, Schema, valid
from einsql.sql.changes import (
    COUNT,
    LiteralRow,
    Touch,
    bind_delete,
    bind_insert,
    bind_update,
    literal_rows,
    target,
)
from einsql.sql.syntax import Copy, CreateTensor
from einsql.sql.typed import Typed, convert

if TYPE_CHECKING:
    from einsql.session import Connection

MAX_ELEMENTS = 2**40
"""A declared tensor larger than this is a typing mistake; no machine holds it."""


def create_tensor(con: Connection, statement: CreateTensor) -> int:
    """CREATE TENSOR, declared or AS SELECT; returns the number of rows stored.

    Raises:
        ProgrammingError: The name is taken, or columns are wrong.
    """
    taken = con.store.get(statement.name)
    if taken is not None and not statement.replace:
        if statement.if_not_exists:
            return 0
        kind = "tensor" if isinstance(taken, Tensor) else taken.kind
        raise ProgrammingError(
            f'There is a {kind} "{statement.name}" already',
            hint="CREATE OR REPLACE TENSOR replaces it.",
        )
    if statement.query is not None:
        result = con.select(statement.query)
        made = _stored(con, statement.name, result)
    else:
        made = _declared(con, statement)
    keys = {k.name.lower() for k in made.relation.schema.keys}
    for key, parts in statement.partition:
        if key.lower() not in keys or parts < 1:
            raise ProgrammingError(f"PARTITION BY {key} {parts}: {suggest(key, keys, 'keys')}")
    con.store.put(replace(made, partition=statement.partition))
    return made.relation.schema.size


def _declared(con: Connection, statement: CreateTensor) -> Tensor:
    names = [c.name.lower() for c in statement.columns]
    if len(set(names)) != len(names):
        raise ProgrammingError("Two columns have the same name")
    keys = tuple(Key(c.name, 0, c.extent) for c in statement.columns if c.extent is not None)
    values = [(c.name, c.dtype) for c in statement.columns if c.dtype is not None]
    if not values:
        raise ProgrammingError("A tensor needs a value column, such as val FLOAT")
    schema = Schema(keys, tuple(Field(n, t) for n, t in values))
    if schema.size > MAX_ELEMENTS:
        raise ProgrammingError(f"{schema.size:,} elements are more than a tensor may have")
    default: Any = None
    fields: dict[str, np.ndarray] = {}
    for name, dtype in values:
        value = np.zeros((), dtype.numpy)
        if statement.default is not None:
            cell = con.query_binder().scalar(statement.default)
            value = _constant(con, convert(cell, dtype), name)
            default = value.item()
        # A stride-0 view holds the default everywhere without storing it anywhere.
        fields[name] = np.broadcast_to(value, schema.shape)
    if statement.default is None:
        schema = Schema(keys, (*schema.fields, Field(PRESENT, DType.BOOLEAN)))
        fields[PRESENT] = np.broadcast_to(np.zeros((), np.bool_), schema.shape)
    columns = tuple(c.name for c in statement.columns)
    return Tensor(statement.name, Relation(schema, fields), columns, default=default)


def _stored(con: Connection, name: str, result: Result) -> Tensor:
    """A result as a tensor of its own: no NULLs, no hidden keys, memory nobody shares."""
    if result.hidden:
        raise ProgrammingError(
            f"The keys {', '.join(result.hidden)} are not selected, so rows are a bag",
            hint="A tensor needs every key: select them, or aggregate them away.",
        )
    names = [c.name for c in result.columns]
    if len({n.lower() for n in names}) != len(names):
        raise ProgrammingError("Two columns have the same name", hint="Rename one with AS.")
    values = [c for c in result.columns if c.field is not None]
    if not values:
        raise ProgrammingError("A tensor needs a value column", hint="Select one beside the keys.")
    by_key = {c.key: c.name for c in result.columns if c.key is not None}
    keys = []
    for k in result.schema.keys:
        if k.lo < 0:
            raise IntegrityError(
                f"The key {by_key[k.name]} starts at {k.lo}",
                hint="A stored tensor's keys start at 0 or above; shift them.",
            )
        keys.append(Key(by_key[k.name], k.lo, k.hi))
    present = result.fields.get(PRESENT)
    if present is not None and present.all():
        present = None
    fields: dict[str, np.ndarray] = {}
    for c in values:
        assert c.field is not None
        _refuse_null(result.fields.get(valid(c.field)), present, c.name)
        fields[c.name] = owned(result.fields[c.field], con.borrowed())
    schema_fields = [Field(c.name, c.dtype) for c in values]
    if present is not None:
        fields[PRESENT] = owned(present, con.borrowed())
        schema_fields.append(Field(PRESENT, DType.BOOLEAN))
    schema = Schema(tuple(keys), tuple(schema_fields))
    return Tensor(name, Relation(schema, fields), tuple(names))


def _refuse_null(known: np.ndarray | None, present: np.ndarray | None, column: str) -> None:
    if known is None:
        return
    null = ~known if present is None else ~known & present
    if null.any():
        raise DataError(
            f"{int(null.sum())} values of {column} are NULL, which a tensor cannot hold",
            hint="COALESCE(…, 0) gives them a value; WHERE … IS NOT NULL leaves them out.",
        )


def _constant(con: Connection, cell: Typed, column: str) -> np.ndarray:
    """The value of a constant expression as a rank-0 array."""
    if cell.valid != TRUE and not con.evaluate(cell.valid):
        raise DataError(f"NULL cannot be stored in {column}")
    value = cell.value.value if isinstance(cell.value, Const) else con.evaluate(cell.value)
    return np.asarray(value, dtype=cell.value.dtype.numpy)


# ---- INSERT


def insert(con: Connection, tree: exp.Insert) -> int:
    """INSERT [OR REPLACE] INTO … SELECT or VALUES; returns the number of rows.

    Raises:
        IntegrityError: A key exists already, occurs twice or is out of bounds.
        DataError: A value is NULL or does not fit its type.
    """
    alternative = str(tree.args.get("alternative") or "").upper()
    if alternative not in ("", "REPLACE"):
        raise NotSupportedError(f"INSERT OR {alternative} is outside the tensor fragment")
    binder = con.query_binder()
    name, _, _ = target(binder, tree)
    tensor = con.writable(name)
    relation, columns = bind_insert(binder, tree)
    order = _column_order(tensor, columns)
    if relation is None:
        table = _literal_table(con, tensor, order, literal_rows(binder, tree.expression))
    else:
        if len(relation.columns) != len(order):
            raise ProgrammingError(
                f"INSERT gives {len(relation.columns)} columns for {len(order)}",
                hint=f"{tensor.name} has {', '.join(order)}.",
            )
        table = _result_table(tensor, order, con.run_bound(relation, binder))
    count = len(next(iter(table.values()))) if table else 0
    con.store.put(_insert_rows(tensor, table, alternative == "REPLACE"))
    return count


def _column_order(tensor: Tensor, listed: list[str]) -> list[str]:
    if not listed:
        return list(tensor.columns)
    known = {c.lower(): c for c in tensor.columns}
    for c in listed:
        if c.lower() not in known:
            raise ProgrammingError(
                f'{tensor.name} has no column "{c}"', hint=suggest(c, tensor.columns, "columns")
            )
    missing = [c for c in tensor.columns if c.lower() not in {x.lower() for x in listed}]
    if missing:
        raise ProgrammingError(
            f"INSERT leaves out {', '.join(missing)}", hint="A tensor row needs every column."
        )
    return [known[c.lower()] for c in listed]


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
        for column, cell, position in zip(order, row.cells, row.positions, strict=True):
            try:
                value = _constant(con, convert(cell, types[column]), column)
                if column in bounds:
                    _check_bounds(tensor.name, bounds[column], value)
            except Error as error:
                error.position = position
                raise
            table[column].append(value)
    return {c: np.array(cells, dtype=types[c].numpy) for c, cells in table.items()}


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


def _result_table(tensor: Tensor, order: list[str], result: Result) -> dict[str, np.ndarray]:
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


def _insert_rows(tensor: Tensor, table: dict[str, np.ndarray], replaces: bool) -> Tensor:
    schema = tensor.relation.schema
    index = []
    for k in schema.keys:
        _check_bounds(tensor.name, k, table[k.name])
        index.append(table[k.name] - k.lo)
    where = tuple(index)
    flat = np.ravel_multi_index(where, schema.shape) if where else np.zeros(1, np.int64)
    unique, counts = np.unique(flat, return_counts=True)
    if (counts > 1).any() and not replaces:
        raise IntegrityError(
            f"The key ({_key_text(schema, int(unique[counts > 1][0]))}) is inserted twice"
        )
    present = tensor.relation.present
    old = np.ones(schema.shape, np.bool_) if present is None else present
    if tensor.default is None and not replaces and where:
        taken = old[where]
        if taken.any():
            raise IntegrityError(
                f"The key ({_key_text(schema, int(flat[taken][0]))}) exists in {tensor.name}",
                hint="INSERT OR REPLACE sets it; UPDATE changes values.",
            )
    elif tensor.default is None and not replaces and bool(old):
        raise IntegrityError(f"{tensor.name} has its value", hint="INSERT OR REPLACE sets it.")
    fields = {f.name: tensor.relation.fields[f.name].copy() for f in schema.values}
    for f in schema.values:
        fields[f.name][where if where else ()] = table[f.name] if where else table[f.name][-1]
    mask = old.copy()
    mask[where if where else ()] = True
    return _changed(tensor, fields, mask)


def _key_text(schema: Schema, flat: int) -> str:
    at = np.unravel_index(flat, schema.shape)
    return ", ".join(f"{k.name} = {int(n) + k.lo}" for k, n in zip(schema.keys, at, strict=True))


def _changed(tensor: Tensor, fields: dict[str, np.ndarray], mask: np.ndarray | None) -> Tensor:
    """The tensor with new fields; a full mask is dropped."""
    schema = tensor.relation.schema
    kept = [f for f in schema.fields if f.name != PRESENT]
    if mask is not None and not mask.all():
        kept.append(Field(PRESENT, DType.BOOLEAN))
        fields = {**fields, PRESENT: mask}
    for array in fields.values():
        array.flags.writeable = False
    changed = Schema(schema.keys, tuple(kept))
    if changed == schema:
        changed = schema
    return replace(tensor, relation=Relation(changed, fields))


# ---- UPDATE and DELETE


def update(con: Connection, tree: exp.Update) -> int:
    """UPDATE … SET … [FROM …] [WHERE …]; returns the number of changed rows.

    Raises:
        IntegrityError: Several rows of FROM meet one row of the tensor.
        DataError: A new value is NULL.
    """
    binder = con.query_binder()
    touch = bind_update(binder, tree)
    tensor = con.writable(touch.name)
    fields = con.run_node(touch.node, binder)
    mask = fields.get(PRESENT)
    matches = fields.get(COUNT)
    if matches is not None and (matches > 1).any():
        raise IntegrityError(
            f"{int((matches > 1).sum())} rows of {tensor.name} meet several rows of FROM",
            hint="Aggregate FROM to one row for each key.",
        )
    for column in touch.columns:
        _refuse_null(fields.get(valid(column)), mask, column)
    relation = tensor.relation
    new = {f.name: relation.fields[f.name] for f in relation.schema.values}
    for column in touch.columns:
        new[column] = _written(relation, touch, fields[column], mask, column, con.borrowed())
    con.store.put(_changed(tensor, new, relation.present))
    node_size = touch.node.schema.size
    return node_size if mask is None else int(np.count_nonzero(mask))


def _written(
    relation: Relation,
    touch: Touch,
    values: np.ndarray,
    mask: np.ndarray | None,
    column: str,
    foreign: set[int],
) -> np.ndarray:
    """The column with the touched rows' values written."""
    made = touch.node.schema
    order = [made.keys.index(next(k for k in made.keys if k.name == n)) for n in touch.labels]
    whole = made.shape == relation.schema.shape and order == list(range(len(order)))
    if whole and (mask is None or mask.all()):
        return owned(values, foreign)
    at = np.nonzero(np.ones(made.shape, np.bool_) if mask is None else mask)
    result = relation.fields[column].copy()
    where = tuple(
        at[n] + made.keys[n].lo - k.lo for n, k in zip(order, relation.schema.keys, strict=True)
    )
    result[where] = values[at] if made.keys else values
    return result


def delete(con: Connection, tree: exp.Delete) -> int:
    """DELETE FROM … [WHERE …]; returns the number of deleted rows.

    Raises:
        IntegrityError: The tensor has a DEFAULT, so every key exists always.
    """
    binder = con.query_binder()
    touch = bind_delete(binder, tree)
    tensor = con.writable(touch.name)
    if tensor.default is not None:
        raise IntegrityError(
            f"{tensor.name} has a DEFAULT, so no key can be deleted",
            hint=f"UPDATE {tensor.name} SET … = {tensor.default} sets values back.",
        )
    fields = con.run_node(touch.node, binder)
    mask = fields.get(PRESENT)
    relation = tensor.relation
    old = relation.present
    kept = np.ones(relation.schema.shape, np.bool_) if old is None else old.copy()
    before = int(np.count_nonzero(kept))
    gone = np.ones(touch.node.schema.shape, np.bool_) if mask is None else mask
    at = np.nonzero(gone)
    made = touch.node.schema
    order = [next(n for n, k in enumerate(made.keys) if k.name == x) for x in touch.labels]
    where = tuple(
        at[n] + made.keys[n].lo - k.lo for n, k in zip(order, relation.schema.keys, strict=True)
    )
    if made.keys or bool(gone):
        kept[where] = False
    new = {f.name: relation.fields[f.name] for f in relation.schema.values}
    con.store.put(_changed(tensor, new, kept))
    return before - int(np.count_nonzero(kept))


# ---- COPY


def copy(con: Connection, statement: Copy) -> int:
    """COPY … FROM or TO a file; returns the number of elements.

    Raises:
        OperationalError: The file is missing, damaged or of another format.
        DataError: Its shape or dtype is not the tensor's.
    """
    if not con.settings.enable_external_access:
        raise OperationalError("COPY is off: enable_external_access is false")
    options = dict(statement.options)
    for option in options:
        if option != "TENSOR":
            raise ProgrammingError(f"COPY has no option {option}", hint="TENSOR 'name' works.")
    if statement.reads:
        return _copy_in(con, statement, options.get("TENSOR"))
    if statement.query is not None:
        result = con.select(statement.query)
    else:
        table = exp.Table(this=exp.to_identifier(statement.name, quoted=True))
        tree = exp.select("*").from_(table)
        result = con.select(tree)
    try:
        array = result.numpy()
    except InterfaceError as error:
        raise DataError(error.reason, hint=error.hint) from error
    if isinstance(array, dict):
        if not statement.path.endswith(".npz"):
            raise DataError("Several value columns need an .npz file")
        raise NotSupportedError("COPY of several value columns is not there yet; copy each alone")
    name = options.get("TENSOR") or statement.name or "val"
    files.write(statement.path, np.asarray(array), name)
    return int(np.asarray(array).size)


def _copy_in(con: Connection, statement: Copy, member: str | None) -> int:
    tensor = con.writable(statement.name)
    schema = tensor.relation.schema
    values = schema.values
    if len(values) != 1:
        raise DataError(f"COPY FROM needs one value column; {tensor.name} has {len(values)}")
    array = files.read(statement.path, member)
    if array.shape != schema.shape:
        raise DataError(
            f"'{statement.path}' has the shape {array.shape}",
            hint=f"{tensor.name} has {schema.shape}.",
        )
    if DType.of(array.dtype) is not values[0].dtype:
        raise DataError(
            f"'{statement.path}' holds {array.dtype}, but {values[0].name} is "
            f"{values[0].dtype.value}",
            hint="INSERT INTO … SELECT …, CAST(val AS …) FROM the file converts.",
        )
    present = tensor.relation.present
    if tensor.default is None and (present is None or present.any()):
        raise IntegrityError(
            f"{tensor.name} has rows already", hint="DELETE them, or CREATE OR REPLACE TENSOR."
        )
    kept = np.array(array, dtype=values[0].dtype.numpy, order="C", copy=True)
    con.store.put(_changed(tensor, {values[0].name: kept}, None))
    return int(kept.size)
