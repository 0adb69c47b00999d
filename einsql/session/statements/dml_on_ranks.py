"""Changes of tensors on ranks, computed by the ranks that have the tiles."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.schema import PRESENT, DType, Field, Schema
from einsql.engine.ranks.messages import Change
from einsql.engine.ranks.program import RankFields
from einsql.engine.ranks.storage import change, load, reads, write
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
)
from einsql.ir.einsum.graph_rewriting import negate
from einsql.optimizer.placement.layouts import spread
from einsql.planner.plan import Plan
from einsql.planner.queries import catalog_of, plan_relation, query_binder
from einsql.planner.stored_inputs import declared_tiles, stored_input
from einsql.session.statements.target import as_declared, refuse_null, rows, settled
from einsql.session.statements.write_set import Write, WriteSet
from einsql.sql.scope.relation import Relation as Bound
from einsql.storage import files
from einsql.storage.fields import Fields, as_fields
from einsql.storage.objects import Tensor
from einsql.storage.relation import Relation
from einsql.storage.results.result import Result

if TYPE_CHECKING:
    from einsql.engine.ranks.driver import Cluster
    from einsql.planner.context import Context

_OLD, _NEW = "#old", "#new"


def loaded(ctx: Context, tensor: Tensor, file: files.FileTensor) -> Tensor:
    """Returns a tensor whose tiles the ranks have read from a file.

    The placement is that of the tensor's PARTITION BY, else the tensor's present placement,
    else equal parts of its longest key.

    Raises:
        OperationalError: The file has changed, or a rank cannot read it.
    """
    cluster, sites = ctx.cluster, ctx.settings.sites
    assert cluster is not None
    old = tensor.relation.schema
    (value,) = old.values
    bounds = [(k.lo, k.hi) for k in old.keys]
    tiles = declared_tiles(tensor, ctx.settings, sites)
    if tiles is None:
        tiles = tensor.relation.fields.tiles_over(sites) or spread(bounds, sites)
    schema = Schema(old.keys, (value,))
    lease = cluster.tiles()
    sources = reads(cluster, file.description, value.name, tiles, sites)
    load(cluster, lease.number, sources, ctx.tick)
    fields = RankFields(cluster, lease, schema, tiles, sites, title=tensor.name)
    return replace(tensor, relation=Relation(schema, fields))


def written(ctx: Context, result: Result, path: str, name: str) -> bool:
    """Writes the only value column of a result to a file; each rank writes its own tiles.

    Args:
        ctx: The session.
        result: The result to write.
        path: The file's path; the file is replaced after all ranks have written.
        name: The array's name in formats that have names.

    Returns:
        True if the ranks have written the file. False for a result that is not on ranks or
        that the format does not support.

    Raises:
        OperationalError: The file cannot be written; it is unchanged then.
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
    """Returns the tensor with the rows of a result that is on ranks.

    Args:
        ctx: The session.
        tensor: The tensor before the statement.
        order: The tensor's column for each column of the result.
        result: The new rows.
        replaces: Whether existing rows may be overwritten.

    Returns:
        None if rows have to be checked individually: they have other keys or types, or may exist
        already.

    Raises:
        DataError: A value is NULL.
    """
    schema = tensor.relation.schema
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
    return overwritten(ctx, tensor, result.fields, len(result), columns, presence=True)


def pasted(ctx: Context, changes: Sequence[WriteSet]) -> list[WriteSet]:
    """Sends the new values of boxes to the ranks that have their tiles, in one message to each.

    Args:
        ctx: The session, whose plans run on ranks.
        changes: The changes of a statement.

    Returns:
        The changes, with a new tensor in place of each box of a tensor on these ranks.
    """
    cluster = ctx.cluster
    assert cluster is not None
    stored, pastes = list(changes), dict[int, list[Change]]()
    for n, new_rows in enumerate(changes):
        new = _versioned(new_rows, cluster) if isinstance(new_rows, Write) else None
        if new is not None:
            assert isinstance(new_rows, Write)
            relation = Relation(new_rows.tensor.relation.schema, new[0])
            stored[n] = replace(new_rows.tensor, relation=relation, changed=True)
            for rank, change_there in new[1].items():
                pastes.setdefault(rank, []).append(change_there)
    if pastes:
        change(cluster, dict(sorted(pastes.items())))
    return stored


def _versioned(write: Write, cluster: Cluster) -> tuple[RankFields, Mapping[int, Change]] | None:
    """Returns the new version of a tensor on ranks; None if the changes are no such box."""
    fields, schema, at = write.tensor.relation.fields, write.tensor.relation.schema, write.at
    if not isinstance(fields, RankFields) or fields.cluster is not cluster or write.flat:
        return None
    if not write.presence or not isinstance(at, tuple):
        return None
    if not all(isinstance(s, slice) for s in at):
        return None
    box = np.array([(s.start + k.lo, s.stop + k.lo) for s, k in zip(at, schema.keys, strict=True)])
    box = box.astype(np.int64).reshape(-1, 2)
    shape = tuple(s.stop - s.start for s in at)
    values = {k: np.broadcast_to(a, shape) for k, a in write.values.items()}
    if schema.has(PRESENT):
        values[PRESENT] = np.broadcast_to(np.True_, shape)
    return fields.changed(box, values)


def overwritten(
    ctx: Context,
    tensor: Tensor,
    fields: Fields,
    touched: int,
    columns: Mapping[str, str],
    presence: bool | None,
) -> Tensor:
    """Returns the tensor with the rows of a query overwritten.

    Args:
        ctx: The session.
        tensor: The tensor before the statement.
        fields: The query's result over the tensor's keys; rows without presence are unchanged.
        touched: The number of rows.
        columns: The query's field for each changed field of the tensor.
        presence: The new presence of the rows; None leaves it unchanged.
    """
    schema = tensor.relation.schema
    covers_all = touched == schema.size and len(columns) == len(schema.values)
    if covers_all and presence is not False:
        new = fields.renamed(Schema(schema.keys, schema.values), columns, tensor.name)
    else:
        plan = _merging_plan(ctx, tensor, fields, columns, presence)
        new = as_fields(plan.program.run({_OLD: tensor.relation.fields, _NEW: fields}, ctx.tick)[0])
    written = settled(tensor, new, {f.name: f.name for f in schema.values})
    return replace(as_declared(ctx, written), changed=True)


def _merging_plan(
    ctx: Context,
    tensor: Tensor,
    fields: Fields,
    columns: Mapping[str, str],
    presence: bool | None,
) -> Plan:
    """Returns the plan that merges a query's result into the old state, from the plan cache."""
    old, sites = tensor.relation.fields, ctx.settings.sites
    declared = tensor.relation.schema, tensor.partition, tensor.is_constant
    change = tuple(columns.items()), presence, PRESENT in fields
    key = "merge", declared, change, _places(old, sites), _places(fields, sites)
    known = None if old.is_sparse else ctx.plans.get(key)
    if isinstance(known, Plan):
        return known
    binder = query_binder(ctx)
    catalog_of(binder).fields.update({_OLD: old, _NEW: fields})
    node = _merging(ctx, tensor, fields, columns, presence)
    plan = plan_relation(ctx, Bound(node, ()), binder)
    if not old.is_sparse:  # the cuts depend on the stored elements
        ctx.plans.put(key, plan)
    return plan


def _places(fields: Fields, sites: int) -> Hashable:
    """A key of the placement of fields over some sites."""
    tiles = fields.tiles_over(sites)
    return tiles and (tiles.sites.tobytes(), tiles.boxes.tobytes(), tiles.copies)


def _merging(
    ctx: Context,
    tensor: Tensor,
    fields: Fields,
    columns: Mapping[str, str],
    presence: bool | None,
) -> EinSum:
    """Returns the node that merges a query's result into the old state."""
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
        None: there,
        True: disj(there, touched),
        False: conj(there, negate(touched)),
    }[presence]
    if left != TRUE:
        outputs.append(Output(PRESENT, (left,), DType.BOOLEAN))
    labels = tuple(k.name for k in schema.keys)
    sources = (
        stored_input(_OLD, tensor, ctx.settings, sites),
        Input(_NEW, Schema(schema.keys, tuple(new)), lies=fields.tiles_over(sites)),
    )
    axes = tuple(Axis(k.name, k.lo, k.hi) for k in schema.keys)
    operands = tuple(Operand(s, labels) for s in sources)
    return EinSum(axes, operands, TRUE, labels, tuple(outputs))
