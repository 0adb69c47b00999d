"""INSERT of a SELECT that is a box of the tensor at every run: what that needs is decided once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from einsql.core.schema import Schema, is_flag
from einsql.session.statements.write_set import Write
from einsql.sql.parameters.host_expr import FIELD
from einsql.sql.parameters.runtime_windows import Shift
from einsql.storage.objects import Tensor
from einsql.storage.relation import Fields

if TYPE_CHECKING:
    from einsql.storage.results.result import Result


@dataclass(frozen=True, slots=True)
class _Span:
    """Where the box lies along a key of the tensor.

    Attributes:
        first: Its least value, but for the scalars.
        extent: How many values it has.
        scalars: Inputs whose values are added to `first`.
        lo: The least value of the tensor's key.
        hi: The value behind its last one.
    """

    first: int
    extent: int
    scalars: tuple[str, ...]
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Boxed:
    """Rows that are dense over a box of keys, and have neither NULLs nor other types.

    Attributes:
        schema: That of the tensor.
        spans: The box.
        values: The result's field for each of the tensor's.
        moved: The result's axes in the order of the tensor's; None if they have it.
        spread: Where the tensor has keys of one value, for an index; None for nowhere.
        count: How many rows there are.
        flags: What would tell of rows that are missing, or NULL.
    """

    schema: Schema
    spans: tuple[_Span, ...]
    values: tuple[tuple[str, str], ...]
    moved: tuple[int, ...] | None
    spread: tuple[slice | None, ...] | None
    count: int
    flags: tuple[str, ...]

    def write(self, tensor: Tensor, fields: Fields, inputs: Mapping[str, Fields]) -> Write | None:
        """What is to be stored, or None if rows have to be looked at.

        Args:
            tensor: As it is, with this schema and a default.
            fields: What the SELECT gave.
            inputs: What it was computed from.
        """
        if type(fields) is not dict:
            return None
        for flag in self.flags:  # one that is true everywhere is mostly left out
            if flag in fields:
                return None
        at: list[slice] = []
        for span in self.spans:
            lo = span.first
            for name in span.scalars:
                lo += int(inputs[name][FIELD])
            if lo < span.lo or lo + span.extent > span.hi:
                return None
            at.append(slice(lo - span.lo, lo - span.lo + span.extent))
        values = {}
        for name, source in self.values:
            array = fields[source]
            array = array if self.moved is None else array.transpose(self.moved)
            values[name] = array if self.spread is None else array[self.spread]
        return Write(
            tensor,
            None if self.count == self.schema.size else tuple(at),
            values,
            self.count,
            presence=True,
        )


def boxed(
    schema: Schema,
    order: Sequence[str],
    empty: Result,
    ends: Sequence[object],
    constants: Mapping[str, int | str],
) -> Boxed | None:
    """How a SELECT's results become boxes of a tensor, or None if that has to be found out.

    Args:
        schema: The tensor's.
        order: The tensor's column for each of the result's.
        empty: The result, without what it will hold.
        ends: Where parameters begin and end its keys.
        constants: Fields of it that are one number in every row, or the scalar that has it.
    """
    source = empty.schema
    if empty.hidden or not source.size:
        return None
    shifts = [e for e in ends if isinstance(e, Shift)]
    if len(shifts) < len(ends):
        return None
    columns = dict(zip(order, empty.columns, strict=True))
    axes = {k.name: n for n, k in enumerate(source.keys)}
    spans: list[_Span] = []
    moved: list[int] = []
    spread: list[slice | None] = []
    for key in schema.keys:
        column = columns[key.name]
        if column.key is not None:
            n = axes[column.key]
            moved.append(n)
            spread.append(slice(None))
            source_key = source.keys[n]
            scalars = tuple(e.name for e in shifts if e.axis == n)
            spans.append(_Span(source_key.lo, source_key.extent, scalars, key.lo, key.hi))
            continue
        number = constants.get(column.field or "")
        if number is None:
            return None
        spread.append(None)
        first, scalars = (number, ()) if isinstance(number, int) else (0, (number,))
        spans.append(_Span(first, 1, scalars, key.lo, key.hi))
    if sorted(moved) != list(range(len(source.keys))):
        return None
    values = []
    for f in schema.values:
        column = columns[f.name]
        if column.field is None or column.dtype is not f.dtype:
            return None
        values.append((f.name, column.field))
    return Boxed(
        schema,
        tuple(spans),
        tuple(values),
        None if moved == sorted(moved) else tuple(moved),
        tuple(spread) if None in spread else None,
        source.size,
        tuple(f.name for f in source.fields if is_flag(f.name)),
    )
