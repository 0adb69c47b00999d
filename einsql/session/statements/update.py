"""UPDATE and DELETE: what one bound node says about the tensor's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.schema import PRESENT
from einsql.errors import IntegrityError
from einsql.session.statements.target import refuse_null, rows
from einsql.session.statements.write_set import Index, Made, Write
from einsql.sql.binder.dml import COUNT, Touch
from einsql.storage.objects import Tensor
from einsql.storage.relation import Fields, PlacedFields, Term, count

if TYPE_CHECKING:
    from einsql.planner.context import Context


def updated(ctx: Context, tensor: Tensor, touch: Touch, fields: Fields) -> tuple[Made, int]:
    """What UPDATE stores, and the number of changed rows.

    Args:
        ctx: The session.
        tensor: As it is.
        touch: The statement, bound.
        fields: What its node gave.

    Raises:
        IntegrityError: Several rows of FROM meet one row of the tensor.
        DataError: A new value is NULL.
    """
    several = count(fields, Term(COUNT, above=1)) if COUNT in fields else 0
    if several:
        raise IntegrityError(
            f"{several} rows of {tensor.name} meet several rows of FROM",
            hint="Compare all keys in WHERE, or aggregate FROM to one row for each key.",
        )
    for column in touch.columns:
        refuse_null(fields, column, column)
    if isinstance(fields, PlacedFields) and in_place(touch, tensor):
        from einsql.session.statements.dml_on_ranks import overwritten  # for ranks only

        touched = rows(fields, touch.node.schema)
        columns = {c: c for c in touch.columns}
        return overwritten(ctx, tensor, fields, touched, columns, "as it was"), touched
    cells = _touched(touch, fields, tensor)
    values = {c: cells.take(fields[c]) for c in touch.columns}
    return Write(tensor, cells.at, values, cells.count), cells.count


def deleted(ctx: Context, tensor: Tensor, touch: Touch, fields: Fields) -> tuple[Made, int]:
    """What DELETE stores, and the number of deleted rows; as `updated`."""
    if isinstance(fields, PlacedFields) and in_place(touch, tensor):
        from einsql.session.statements.dml_on_ranks import overwritten  # as in `updated`

        touched = rows(fields, touch.node.schema)
        return overwritten(ctx, tensor, fields, touched, {}, "no more"), touched
    cells = _touched(touch, fields, tensor)
    return Write(tensor, cells.at, {}, cells.count, presence=False), cells.count


def refuse_default(tensor: Tensor) -> None:
    """Refuses to delete rows of a tensor that has them all.

    Raises:
        IntegrityError: The tensor has a DEFAULT, so every key exists always.
    """
    if tensor.default is not None:
        raise IntegrityError(
            f"{tensor.name} has a DEFAULT, so no key can be deleted",
            hint=f"UPDATE {tensor.name} SET … = {tensor.default} sets values back.",
        )


def over_all_keys(ctx: Context, touch: Touch, tensor: Tensor) -> Touch:
    """On ranks the touched rows told over all keys of the tensor, if that can be."""
    if ctx.cluster is None or in_place(touch, tensor):
        return touch
    from einsql.session.statements.dml_on_ranks import widened  # for ranks only

    return widened(touch, tensor)


def in_place(touch: Touch, tensor: Tensor) -> bool:
    """True if the touched rows are told by arrays over all keys of the tensor."""
    made = touch.node.schema
    named = touch.labels == tuple(k.name for k in made.keys)
    return named and made.shape == tensor.relation.schema.shape


@dataclass(frozen=True, slots=True)
class _Cells:
    """The touched rows, and how an array over the node's keys becomes their values."""

    at: Index
    take: Callable[[np.ndarray], np.ndarray]
    count: int


def _touched(touch: Touch, fields: Fields, tensor: Tensor) -> _Cells:
    made, schema = touch.node.schema, tensor.relation.schema
    labels = tuple(k.name for k in made.keys)
    number = rows(fields, made)
    if touch.labels == labels:  # else a diagonal
        if number == made.size:
            if made.shape == schema.shape:
                return _Cells(None, lambda a: a, number)
            pairs = zip(made.keys, schema.keys, strict=True)
            box = tuple(slice(m.lo - k.lo, m.hi - k.lo) for m, k in pairs)
            return _Cells(box, lambda a: a, number)
        if made.shape == schema.shape:
            mask = fields[PRESENT]
            return _Cells(mask, lambda a: a[mask], number)
    chosen = fields[PRESENT] if PRESENT in fields else np.ones(made.shape, np.bool_)
    here = np.nonzero(chosen)
    axes = {label: n for n, label in enumerate(labels)}
    there = tuple(
        here[axes[label]] + made.keys[axes[label]].lo - k.lo
        for label, k in zip(touch.labels, schema.keys, strict=True)
    )
    return _Cells(there, lambda a: a[here], number)
