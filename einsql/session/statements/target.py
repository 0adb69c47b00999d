"""The tensor that a statement changes, and its new state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from sqlglot import exp

from einsql.core.schema import PRESENT, DType, Field, Schema, valid
from einsql.errors import DataError, Error, ProgrammingError
from einsql.ir.einsum.graph import TRUE, Const
from einsql.planner.queries import evaluate
from einsql.planner.stored_inputs import declared_tiles
from einsql.sql.binder.dml import Target
from einsql.sql.parser.positions import locate
from einsql.sql.parser.sqlglot_trees import changing
from einsql.sql.typing.typed_expr import Typed
from einsql.storage.array_ownership import distinct
from einsql.storage.fields import Fields, LocalFields, PlacedFields, Term
from einsql.storage.objects import Object, Tensor, is_local
from einsql.storage.relation import Relation

if TYPE_CHECKING:
    from einsql.planner.context import Context


def writable(ctx: Context, target: Target) -> Tensor:
    """Returns the tensor of a statement's target.

    Raises:
        ProgrammingError: The tensor does not exist, or is the caller's array or table.
    """
    try:
        if ctx.store.get(target.name) is None and ctx.in_scope(target.name) is not None:
            raise ProgrammingError(
                f'"{target.name}" is an array of the caller and cannot be changed',
                hint="CREATE TENSOR … AS SELECT copies it.",
            )
        if ctx.show_table(target.name):
            raise ProgrammingError(
                f'"{target.name}" is a table among the variables of Python and cannot be changed',
                hint="CREATE TABLE … AS FROM copies it.",
            )
        return ctx.store.writable(target.name)
    except Error as error:
        raise locate(error, target.node) from None


def taken_by(ctx: Context, name: str, temporary: bool) -> Object | None:
    """Returns the object that has a name, unless a temporary object may hide it.

    For a permanent object this is the one that a temporary object hides, if there is one.
    """
    taken = ctx.store.get(name)
    if taken is None or is_local(taken) == temporary:
        return taken
    if temporary:
        return None
    beneath = ctx.store.beneath(name.lower())
    return taken if beneath is None else beneath


def changed(tensor: Tensor, fields: dict[str, np.ndarray], mask: np.ndarray | None) -> Tensor:
    """Returns the tensor with new fields. A mask that is True everywhere is dropped."""
    schema = tensor.relation.schema
    if mask is None and not schema.has(PRESENT):
        for array in fields.values():
            array.flags.writeable = False
        return tensor.with_relation(Relation(schema, LocalFields(fields)))
    kept = [f for f in schema.fields if f.name != PRESENT]
    if mask is not None and not distinct(mask).all():
        kept.append(Field(PRESENT, DType.BOOLEAN))
        fields = {**fields, PRESENT: mask}
    for array in fields.values():
        array.flags.writeable = False
    if tuple(kept) != schema.fields:
        schema = Schema(schema.keys, tuple(kept))
    return tensor.with_relation(Relation(schema, LocalFields(fields)))


def rows(fields: Fields, schema: Schema) -> int:
    """Returns the number of present keys."""
    return fields.count(Term(PRESENT)) if PRESENT in fields else schema.size


def settled(tensor: Tensor, fields: Fields, columns: Mapping[str, str]) -> Tensor:
    """Returns the tensor with new placed fields. A presence flag True everywhere is dropped.

    Args:
        tensor: The tensor before the change.
        fields: Fields over the same keys, with a presence flag if keys may be absent.
        columns: The new field for each value field of the tensor.
    """
    schema = tensor.relation.schema
    kept, names = list(schema.values), dict(columns)
    if rows(fields, schema) < schema.size:
        kept.append(Field(PRESENT, DType.BOOLEAN))
        names[PRESENT] = PRESENT
    same = tuple(kept) == schema.fields  # an equal schema stays the same object
    new = schema if same else Schema(schema.keys, tuple(kept))
    return replace(tensor, relation=Relation(new, fields.renamed(new, names, tensor.name)))


def as_declared(ctx: Context, tensor: Tensor) -> Tensor:
    """Moves a placed tensor's tiles to its declared partition."""
    relation = tensor.relation
    if not isinstance(relation.fields, PlacedFields):
        return tensor
    tiles = declared_tiles(tensor, ctx.settings, relation.fields.sites)
    if tiles is None:
        return tensor
    fields = relation.fields.moved(tiles, ctx.tick)
    return replace(tensor, relation=Relation(relation.schema, fields))


def types_of(schema: Schema) -> dict[str, DType]:
    """Returns the type of each key and value column."""
    keys = {k.name: DType.BIGINT for k in schema.keys}
    return keys | {f.name: f.dtype for f in schema.values}


def key_text(schema: Schema, flat: int) -> str:
    """Formats the key at a flat index as `i = 1, j = 2`."""
    at = np.unravel_index(flat, schema.shape)
    return ", ".join(f"{k.name} = {int(n) + k.lo}" for k, n in zip(schema.keys, at, strict=True))


def refuse_null(fields: Fields, field: str, column: str) -> None:
    """Refuses values that are NULL where their row exists.

    Args:
        fields: The fields of a query, with flags.
        field: The field of the values.
        column: The column's name, for the message.

    Raises:
        DataError: A present row has a NULL.
    """
    if valid(field) not in fields:
        return
    there = [Term(PRESENT)] if PRESENT in fields else []
    null = fields.count(Term(valid(field), holds=False), *there)
    if null:
        raise DataError(
            f"{null} values of {column} are NULL, which a tensor cannot hold",
            hint="COALESCE(…, 0) gives them a value; WHERE … IS NOT NULL leaves them out.",
        )


def constant(ctx: Context, cell: Typed, column: str) -> np.ndarray:
    """Returns the value of a constant expression as a rank-0 array of its type's carrier.

    Raises:
        DataError: The value is NULL.
    """
    if cell.valid != TRUE and not evaluate(ctx, cell.valid):
        raise DataError(f"NULL cannot be stored in {column}")
    value = cell.value.value if isinstance(cell.value, Const) else evaluate(ctx, cell.value)
    return np.asarray(value, dtype=cell.value.dtype.carrier)


def changes_tables(ctx: Context, tree: exp.Expr) -> bool:
    """True if a statement changes nothing but DuckDB's tables."""
    parts = [cte.this for cte in changing(tree)]
    if not isinstance(tree, exp.Query):
        parts.append(tree)
    return all(_is_table(ctx, part) for part in parts)


def _is_table(ctx: Context, tree: exp.Expr) -> bool:
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    if not isinstance(target, exp.Table):
        return False
    if target.args.get("db") is not None:
        return True
    return ctx.store.get(target.name) is None and ctx.duck.has(target.name)
