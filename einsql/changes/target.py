"""The tensor a statement changes: finding it, and its new state."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from einsql.einsum import TRUE, Const
from einsql.engine.relation import Relation
from einsql.engine.store import Tensor
from einsql.errors import DataError, Error, ProgrammingError
from einsql.schema import PRESENT, DType, Field, Schema
from einsql.sql.changes import Target
from einsql.sql.scalar import locate
from einsql.sql.typed import Typed

if TYPE_CHECKING:
    from einsql.session import Connection


def writable(con: Connection, target: Target) -> Tensor:
    """The tensor of a statement's target.

    Raises:
        ProgrammingError: There is none of that name, or it is not einsql's to change.
    """
    try:
        if con.store.get(target.name) is None and con.in_scope(target.name) is not None:
            raise ProgrammingError(
                f'"{target.name}" is an array of the caller and cannot be changed',
                hint="CREATE TENSOR … AS SELECT copies it.",
            )
        return con.writable(target.name)
    except Error as error:
        raise locate(error, target.node) from None


def changed(tensor: Tensor, fields: dict[str, np.ndarray], mask: np.ndarray | None) -> Tensor:
    """The tensor with new fields; a full mask is dropped."""
    schema = tensor.relation.schema
    kept = [f for f in schema.fields if f.name != PRESENT]
    if mask is not None and not mask.all():
        kept.append(Field(PRESENT, DType.BOOLEAN))
        fields = {**fields, PRESENT: mask}
    for array in fields.values():
        array.flags.writeable = False
    new = Schema(schema.keys, tuple(kept))
    return replace(tensor, relation=Relation(schema if new == schema else new, fields))


def refuse_null(known: np.ndarray | None, present: np.ndarray | None, column: str) -> None:
    """Refuses values that are NULL where their row exists.

    Raises:
        DataError: There are some.
    """
    if known is None:
        return
    null = ~known if present is None else ~known & present
    if null.any():
        raise DataError(
            f"{int(null.sum())} values of {column} are NULL, which a tensor cannot hold",
            hint="COALESCE(…, 0) gives them a value; WHERE … IS NOT NULL leaves them out.",
        )


def constant(con: Connection, cell: Typed, column: str) -> np.ndarray:
    """The value of a constant expression as a rank-0 array.

    Raises:
        DataError: It is NULL.
    """
    if cell.valid != TRUE and not con.evaluate(cell.valid):
        raise DataError(f"NULL cannot be stored in {column}")
    value = cell.value.value if isinstance(cell.value, Const) else con.evaluate(cell.value)
    return np.asarray(value, dtype=cell.value.dtype.numpy)
