"""Changes of tensors whose tiles lie at ranks, made there: nothing is brought to this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from einsql.core.schema import PRESENT, DType, Field, Schema
from einsql.engine.ranks.program import RankFields
from einsql.engine.ranks.storage import load, reads, write
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Expr,
    Input,
    Operand,
    Output,
    Value,
    call,
    conj,
    disj,
    negate,
)
from einsql.optimizer.placement.layouts import declared, spread
from einsql.planner.queries import catalog_of, query_binder, run_node
from einsql.session.statements.target import as_declared, refuse_null, rows, settled
from einsql.session.statements.write_set import Write
from einsql.storage import files
from einsql.storage.objects import Tensor
from einsql.storage.relation import PlacedFields, Relation, lies
from einsql.storage.results.result import Result

if TYPE_CHECKING:
    from einsql.planner.context import Context

Presence = Literal["as it was", "from now on", "no more"]
"""What becomes of the presence of the rows that a statement touches."""

_OLD, _NEW = "#old", "#new"


def loaded(ctx: Context, tensor: Tensor, file: files.FileTensor) -> Tensor:
    """A tensor whose values ranks read from a file, each its own tiles.

    They come to lie as the tensor's PARTITION BY says, else where the tensor lies already,
    else in equal parts of its longest key.

    Raises:
        OperationalError: The file has changed, or a rank cannot read it.
    """
    cluster, sites = ctx.cluster, ctx.settings.sites
    assert cluster is not None
    old = tensor.relation.schema
    (value,) = old.values
    bounds = [(k.lo, k.hi) for k in old.keys]
    tiles = lies(tensor.relation.fields, sites)
    if tensor.partition is not None:
        tiles = declared(bounds, tensor.partition, sites, tensor.order)
    elif tiles is None:
        tiles = spread(bounds, sites)
    schema = Schema(old.keys, (value,))
    lease = cluster.tiles()
    sources = reads(cluster, file.description, value.name, tiles, sites)
    load(cluster, lease.number, sources, ctx.tick)
    fields = RankFields(cluster, lease, schema, tiles, sites, title=tensor.name)
    return replace(tensor, relation=Relation(schema, fields))


def written(ctx: Context, result: Result, path: str, name: str) -> bool:
    """Lets ranks write the one value column of a result into a file, each its own tiles.

    Args:
        ctx: The session.
        result: What to write.
        path: The file; it is replaced when all of them have written.
        name: The array's name in formats that have names.

    Returns:
        Whether they did; a result that does not lie at ranks, or that no file can hold, is
        left to others.

    Raises:
        OperationalError: The file cannot be written; it is then what it was.
    """
    columns = [c for c in result.columns if c.field is not None]
    if not isinstance(result.fields, RankFields) or result.hidden or not columns:
        return False
    (column,) = columns
    if not result.dense(column) or column.field is None:
        return False
    fields, schema = result.fields, result.schema
    names = [k.name for k in schema.keys]
    axes = tuple(names.index(c.key) for c in result.columns if c.key is not None)
    if sorted(axes) != list(range(len(names))):
        return False  # a key that is selected twice
    shape = tuple(schema.shape[n] for n in axes)
    draft = files.create(path, schema.dtype(column.field), shape, name)
    try:
        origin = np.array([k.lo for k in schema.keys], np.int64)
        on_ranks = fields.holders()
        field = on_ranks.names[column.field]
        write(fields.cluster, on_ranks, field, draft, axes, origin, ctx.tick)
        files.commit(draft)
    except BaseException:
        files.abandon(draft)
        raise
    return True


def inserted(
    ctx: Context, tensor: Tensor, order: list[str], result: Result, replaces: bool
) -> Tensor | None:
    """The tensor with rows of a result that lies at ranks.

    Args:
        ctx: The session.
        tensor: What it was.
        order: The tensor's column for each of the result's.
        result: The new rows.
        replaces: Whether rows that are there may be overwritten.

    Returns:
        None if rows have to be looked at one by one: they are over other keys or of other
        types, or might be there already.

    Raises:
        DataError: A value is NULL.
    """
    schema = tensor.relation.schema
    assert isinstance(result.fields, PlacedFields)
    sources = dict(zip(order, result.columns, strict=True))
    keys = tuple(sources[k.name].key for k in schema.keys)
    alike = (
        not result.hidden
        and keys == tuple(k.name for k in result.schema.keys)
        and [(k.lo, k.hi) for k in result.schema.keys] == [(k.lo, k.hi) for k in schema.keys]
        and all(sources[f.name].dtype is f.dtype for f in schema.values)
    )
    fresh = replaces or tensor.default is not None or not rows(tensor.relation.fields, schema)
    columns = {f.name: field for f in schema.values if (field := sources[f.name].field) is not None}
    if not alike or not fresh or len(columns) < len(schema.values):
        return None
    for column, field in columns.items():
        refuse_null(result.fields, field, column)
    return overwritten(ctx, tensor, result.fields, len(result), columns, "from now on")


def pasted(ctx: Context, write: Write) -> Write | Tensor:
    """The tensor with new values in a box of its keys, which are sent to the ranks that have it.

    Args:
        ctx: The session.
        write: Of a tensor that lies at ranks.

    Returns:
        What was given where it is not a part of tiles that the ranks keep.
    """
    tensor, at = write.tensor, write.at
    fields, schema = tensor.relation.fields, tensor.relation.schema
    if not isinstance(fields, RankFields) or at is None or fields.cluster is not ctx.cluster:
        return write
    box = np.array([(s.start + k.lo, s.stop + k.lo) for s, k in zip(at, schema.keys, strict=True)])
    box = box.astype(np.int64).reshape(-1, 2)
    shape = tuple(s.stop - s.start for s in at)
    values = {k: np.broadcast_to(a, shape) for k, a in write.values.items()}
    if schema.has(PRESENT):
        values[PRESENT] = np.broadcast_to(np.True_, shape)
    pasted_fields = fields.pasted(box, values)
    return (
        write
        if pasted_fields is None
        else replace(tensor, relation=Relation(schema, pasted_fields))
    )


def overwritten(
    ctx: Context,
    tensor: Tensor,
    fields: PlacedFields,
    touched: int,
    columns: Mapping[str, str],
    presence: Presence,
) -> Tensor:
    """The tensor with the rows changed that a query has given.

    Args:
        ctx: The session.
        tensor: What it was.
        fields: What the query gave, over the tensor's keys; its presence tells the rows.
        touched: How many these are.
        columns: The query's fields by the tensor's that they change.
        presence: What becomes of the rows.
    """
    schema = tensor.relation.schema
    covers_all = touched == schema.size and len(columns) == len(schema.values)
    if covers_all and presence != "no more":
        bare = fields.renamed(Schema(schema.keys, schema.values), columns, tensor.name)
        return as_declared(ctx, settled(tensor, bare, {f.name: f.name for f in schema.values}))
    node = _merging(ctx, tensor, fields, columns, presence)
    binder = query_binder(ctx)
    catalog_of(binder).fields.update({_OLD: tensor.relation.fields, _NEW: fields})
    merged = run_node(ctx, node, binder)
    assert isinstance(merged, PlacedFields)
    return as_declared(ctx, settled(tensor, merged, {f.name: f.name for f in schema.values}))


def _merging(
    ctx: Context,
    tensor: Tensor,
    fields: PlacedFields,
    columns: Mapping[str, str],
    presence: Presence,
) -> EinSum:
    """The operation that makes the new state of the old one and of what a query gave."""
    schema, sites = tensor.relation.schema, ctx.settings.sites
    types = {field: schema.dtype(column) for column, field in columns.items()}
    new = [Field(field, dtype) for field, dtype in types.items()]
    touched: Expr = TRUE
    if PRESENT in fields:
        new.append(Field(PRESENT, DType.BOOLEAN))
        touched = Value(1, PRESENT, DType.BOOLEAN)
    there: Expr = Value(0, PRESENT, DType.BOOLEAN) if schema.has(PRESENT) else TRUE
    outputs = []
    for f in schema.values:
        value: Expr = Value(0, f.name, f.dtype)
        if f.name in columns:
            value = call("if", f.dtype, touched, Value(1, columns[f.name], f.dtype), value)
        outputs.append(Output(f.name, (value,), f.dtype))
    left = {
        "as it was": there,
        "from now on": disj(there, touched),
        "no more": conj(there, negate(touched)),
    }[presence]
    if left != TRUE:
        outputs.append(Output(PRESENT, (left,), DType.BOOLEAN))
    labels = tuple(k.name for k in schema.keys)
    old_lies = lies(tensor.relation.fields, sites)
    sources = (
        Input(_OLD, schema, tensor.partition, tensor.order, old_lies),
        Input(_NEW, Schema(schema.keys, tuple(new)), lies=lies(fields, sites)),
    )
    axes = tuple(Axis(k.name, k.lo, k.hi) for k in schema.keys)
    operands = tuple(Operand(s, labels) for s in sources)
    return EinSum(axes, operands, TRUE, labels, tuple(outputs))
