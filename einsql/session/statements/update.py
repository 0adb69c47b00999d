"""UPDATE and DELETE: the changed cells, from the result of one bound node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType
from einsql.errors import IntegrityError
from einsql.ir.einsum.graph import Axis, Const, EinSum, Label, call, conj
from einsql.ir.einsum.graph_rewriting import negate
from einsql.session.statements import sparse_rows
from einsql.session.statements.target import refuse_null, rows
from einsql.session.statements.write_set import Write, WriteSet
from einsql.sql.binder.dml import COUNT, Touch
from einsql.storage.fields import Fields, Term
from einsql.storage.objects import Tensor
from einsql.storage.results.stored_elements import has_stored_rows
from einsql.storage.sparse_fields import sparse_fields_of
from einsql.storage.undo_log import Index

if TYPE_CHECKING:
    from einsql.planner.context import Context


def updated(ctx: Context, tensor: Tensor, touch: Touch, fields: Fields) -> tuple[WriteSet, int]:
    """Returns the cells that UPDATE stores, and the number of changed rows.

    Args:
        ctx: The session.
        tensor: The tensor before the statement.
        touch: The bound statement.
        fields: The result of its node.

    Raises:
        IntegrityError: Several rows of FROM match one row of the tensor.
        DataError: A new value is NULL.
    """
    several = fields.count(Term(COUNT, above=1)) if COUNT in fields else 0
    if several:
        raise IntegrityError(
            f"{several} rows of {tensor.name} meet several rows of FROM",
            hint="Compare all keys in WHERE, or aggregate FROM to one row for each key.",
        )
    for column in touch.columns:
        refuse_null(fields, column, column)
    if fields.sites is not None and in_place(touch, tensor):
        columns = {c: c for c in touch.columns}
        return _overwritten(ctx, tensor, touch, fields, columns, presence=None)
    few = sparse_fields_of(fields)
    if few is not None and tensor.relation.fields.is_sparse and in_place(touch, tensor):
        new = sparse_rows.overwritten(tensor, few, touch.columns)
        if new is not None:
            return new, rows(fields, touch.node.schema)
    cells = _touched(touch, fields, tensor)
    values = {c: cells.take(c) for c in touch.columns}
    return Write(tensor, cells.at, values, cells.count), cells.count


def deleted(ctx: Context, tensor: Tensor, touch: Touch, fields: Fields) -> tuple[WriteSet, int]:
    """Returns the cells that DELETE clears, and their number; arguments as for `updated`."""
    if fields.sites is not None and in_place(touch, tensor):
        return _overwritten(ctx, tensor, touch, fields, {}, presence=False)
    cells = _touched(touch, fields, tensor)
    return Write(tensor, cells.at, {}, cells.count, presence=False), cells.count


def _overwritten(
    ctx: Context,
    tensor: Tensor,
    touch: Touch,
    fields: Fields,
    columns: Mapping[str, str],
    presence: bool | None,
) -> tuple[Tensor, int]:
    """Returns the tensor with the touched rows changed on the ranks, and their number."""
    # The module imports the transport to the ranks.
    from einsql.session.statements.dml_on_ranks import overwritten

    touched = rows(fields, touch.node.schema)
    return overwritten(ctx, tensor, fields, touched, columns, presence), touched


def refuse_default(tensor: Tensor) -> None:
    """Refuses DELETE from a tensor with a DEFAULT.

    Raises:
        IntegrityError: The tensor has a DEFAULT, so every key always exists.
    """
    if tensor.default is not None:
        raise IntegrityError(
            f"{tensor.name} has a DEFAULT, so no key can be deleted",
            hint=f"UPDATE {tensor.name} SET … = {tensor.default} sets values back.",
        )


def over_all_keys(ctx: Context, touch: Touch, tensor: Tensor) -> Touch:
    """On ranks, extends the touched rows to all keys of the tensor, if all operands cover them.

    Conditions on keys have narrowed the domain; they become part of the guard.
    """
    node = touch.node
    if ctx.cluster is None or in_place(touch, tensor) or not isinstance(node, EinSum):
        return touch
    if len(set(touch.labels)) < len(touch.labels):
        return touch
    axes, guard = {a.label: a for a in node.axes}, [node.guard]
    for label, key in zip(touch.labels, tensor.relation.schema.keys, strict=True):
        axis = axes[label]
        if (axis.lo, axis.hi) == (key.lo, key.hi):
            continue
        read = [
            k
            for o in node.operands
            for x, k in zip(o.labels, o.source.schema.keys, strict=True)
            if x == label
        ]
        if axis.define is not None or any(k.lo > key.lo or k.hi < key.hi for k in read):
            return touch
        axes[label] = Axis(label, key.lo, key.hi)
        at = Label(label)
        lo, hi = (Const(bound, DType.BIGINT) for bound in (axis.lo, axis.hi))
        guard += [negate(call("lt", DType.BOOLEAN, at, lo)), call("lt", DType.BOOLEAN, at, hi)]
    return replace(touch, node=replace(node, axes=tuple(axes.values()), guard=conj(*guard)))


def in_place(touch: Touch, tensor: Tensor) -> bool:
    """Returns True if the touched rows are arrays over all keys of the tensor."""
    touch_schema = touch.node.schema
    named = touch.labels == tuple(k.name for k in touch_schema.keys)
    return named and touch_schema.shape == tensor.relation.schema.shape


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of the touched rows, and a function from a field's name to their values."""

    at: Index
    take: Callable[[str], np.ndarray]
    count: int


def _touched(touch: Touch, fields: Fields, tensor: Tensor) -> _Cells:
    touch_schema, schema = touch.node.schema, tensor.relation.schema
    labels = tuple(k.name for k in touch_schema.keys)
    number = rows(fields, touch_schema)
    if has_stored_rows(fields):
        return _stored(touch, fields, tensor)
    if touch.labels == labels:  # other labels are a diagonal
        if number == touch_schema.size:
            if touch_schema.shape == schema.shape:
                return _Cells(None, lambda name: fields[name], number)
            pairs = zip(touch_schema.keys, schema.keys, strict=True)
            box = tuple(slice(m.lo - k.lo, m.hi - k.lo) for m, k in pairs)
            return _Cells(box, lambda name: fields[name], number)
        if touch_schema.shape == schema.shape:
            mask = fields[PRESENT]
            return _Cells(mask, lambda name: fields[name][mask], number)
    chosen = fields[PRESENT] if PRESENT in fields else np.ones(touch_schema.shape, np.bool_)
    here = np.nonzero(chosen)
    there = _positions(touch, here, tensor)
    return _Cells(there, lambda name: fields[name][here], number)


def _stored(touch: Touch, fields: Fields, tensor: Tensor) -> _Cells:
    """The touched rows of a sparse result."""
    few = sparse_fields_of(fields)
    assert few is not None
    ordered = few.in_key_order()
    matrix = ordered.taken()
    there = _positions(touch, matrix.positions, tensor)
    return _Cells(there, lambda name: ordered.taken(name).values, matrix.stored)


def _positions(
    touch: Touch, here: tuple[np.ndarray, ...], tensor: Tensor
) -> tuple[np.ndarray, ...]:
    """The positions of rows in the tensor, given their positions in the touched schema."""
    touch_schema, schema = touch.node.schema, tensor.relation.schema
    labels = tuple(k.name for k in touch_schema.keys)
    axes = {label: n for n, label in enumerate(labels)}
    return tuple(
        here[axes[label]].astype(np.int64) + (touch_schema.keys[axes[label]].lo - k.lo)
        for label, k in zip(touch.labels, schema.keys, strict=True)
    )
