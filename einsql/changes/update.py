"""UPDATE and DELETE: what one bound node says about the tensor's rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sqlglot import exp

from einsql.changes.target import changed, refuse_null, rows, writable
from einsql.engine.relation import PlacedFields, Term, count
from einsql.engine.store import Tensor, owned
from einsql.errors import Error, IntegrityError
from einsql.schema import PRESENT, Schema
from einsql.sql.changes import COUNT, Touch, bind_delete, bind_update, target_of

if TYPE_CHECKING:
    from einsql.session import Connection

Cells = Any
"""An index into an array: one array of positions for each key, a mask without keys."""


def update(con: Connection, tree: exp.Update, text: str = "") -> int:
    """UPDATE … SET … [FROM …] [WHERE …]; returns the number of changed rows.

    Raises:
        IntegrityError: Several rows of FROM meet one row of the tensor.
        DataError: A new value is NULL.
    """
    target = target_of(tree)
    tensor = writable(con, target)
    binder = con.query_binder()
    try:
        bound = bind_update(binder, target, tree)
    except Error as error:
        return _by_duckdb(con, tensor, text, target.alias, error)
    touch = over_all_keys(con, bound, tensor)
    fields = con.run_node(touch.node, binder)
    several = count(fields, Term(COUNT, above=1)) if COUNT in fields else 0
    if several:
        raise IntegrityError(
            f"{several} rows of {tensor.name} meet several rows of FROM",
            hint="Aggregate FROM to one row for each key.",
        )
    for column in touch.columns:
        refuse_null(fields, column, column)
    touched = rows(fields, touch.node.schema)
    if isinstance(fields, PlacedFields) and in_place(touch, tensor):
        from einsql.changes.distant import overwritten  # for ranks only

        columns = {c: c for c in touch.columns}
        con.store.put(overwritten(con, tensor, fields, touched, columns, "as it was"))
        return touched
    relation, mask = tensor.relation, fields.get(PRESENT)
    new = {f.name: relation.fields[f.name] for f in relation.schema.values}
    for column in touch.columns:
        new[column] = _written(tensor, touch, fields[column], mask, column, con.borrowed())
    con.store.put(changed(tensor, new, relation.present))
    return touched


def _by_duckdb(con: Connection, tensor: Tensor, text: str, alias: str, error: Error) -> int:
    from einsql.changes.tables import changed_rows  # few statements need DuckDB

    return changed_rows(con, tensor, text, alias, error)


def over_all_keys(con: Connection, touch: Touch, tensor: Tensor) -> Touch:
    """On ranks the touched rows told over all keys of the tensor, if that can be."""
    if con.cluster is None or in_place(touch, tensor):
        return touch
    from einsql.changes.distant import widened  # for ranks only

    return widened(touch, tensor)


def in_place(touch: Touch, tensor: Tensor) -> bool:
    """True if the touched rows are told by arrays over all keys of the tensor."""
    made = touch.node.schema
    named = touch.labels == tuple(k.name for k in made.keys)
    return named and made.shape == tensor.relation.schema.shape


def _written(
    tensor: Tensor,
    touch: Touch,
    values: np.ndarray,
    mask: np.ndarray | None,
    column: str,
    foreign: set[int],
) -> np.ndarray:
    """The column with the touched rows' values written."""
    if in_place(touch, tensor) and (mask is None or mask.all()):
        return owned(values, foreign)
    relation = tensor.relation
    here, there = _touched(touch, mask, relation.schema)
    result = relation.fields[column].copy()
    result[there] = values[here]
    return result


def _touched(touch: Touch, mask: np.ndarray | None, schema: Schema) -> tuple[Cells, Cells]:
    """The touched rows as an index into the node's arrays and one into the tensor's."""
    made = touch.node.schema
    chosen = np.ones(made.shape, np.bool_) if mask is None else mask
    if not made.keys:
        return chosen, chosen
    here = np.nonzero(chosen)
    axes = {k.name: n for n, k in enumerate(made.keys)}
    there = tuple(
        here[axes[label]] + made.keys[axes[label]].lo - k.lo
        for label, k in zip(touch.labels, schema.keys, strict=True)
    )
    return here, there


def delete(con: Connection, tree: exp.Delete, text: str = "") -> int:
    """DELETE FROM … [WHERE …]; returns the number of deleted rows.

    Raises:
        IntegrityError: The tensor has a DEFAULT, so every key exists always.
    """
    target = target_of(tree)
    tensor = writable(con, target)
    binder = con.query_binder()
    if tensor.default is not None:
        raise IntegrityError(
            f"{tensor.name} has a DEFAULT, so no key can be deleted",
            hint=f"UPDATE {tensor.name} SET … = {tensor.default} sets values back.",
        )
    try:
        bound = bind_delete(binder, target, tree)
    except Error as error:
        return _by_duckdb(con, tensor, text, target.alias, error)
    touch = over_all_keys(con, bound, tensor)
    fields = con.run_node(touch.node, binder)
    relation = tensor.relation
    if isinstance(fields, PlacedFields) and in_place(touch, tensor):
        from einsql.changes.distant import overwritten  # as in `update`

        touched = rows(fields, touch.node.schema)
        con.store.put(overwritten(con, tensor, fields, touched, {}, "no more"))
        return touched
    old = relation.present
    kept = np.ones(relation.schema.shape, np.bool_) if old is None else old.copy()
    before = int(np.count_nonzero(kept))
    kept[_touched(touch, fields.get(PRESENT), relation.schema)[1]] = False
    new = {f.name: relation.fields[f.name] for f in relation.schema.values}
    con.store.put(changed(tensor, new, kept))
    return before - int(np.count_nonzero(kept))
