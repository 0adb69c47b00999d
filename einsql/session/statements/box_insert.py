"""INSERT of a SELECT whose result is a box of the tensor in every run, as decided when binding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from einsql.core.records import dataclass
from einsql.core.schema import Schema, is_flag
from einsql.ir.einsum.graph import SCALAR
from einsql.session.statements.write_set import Write
from einsql.sql.parameters.runtime_inputs import Shift
from einsql.storage.fields import Fields
from einsql.storage.objects import Tensor

if TYPE_CHECKING:
    from einsql.storage.results.result import Result


@dataclass(frozen=True, slots=True)
class _Span:
    """The interval of the box along a key of the tensor.

    Attributes:
        first: The lower bound, before the scalars are added.
        extent: The length of the interval.
        scalars: Inputs whose values are added to `first`.
        lo: The lower bound of the tensor's key.
        hi: The exclusive upper bound of the tensor's key.
    """

    first: int
    extent: int
    scalars: tuple[str, ...]
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class Boxed:
    """Rows that are dense over a box of keys, without NULLs and in the tensor's types.

    Attributes:
        schema: The tensor's schema.
        spans: The box.
        values: Pairs of the tensor's field and the result's field.
        moved: The permutation from the result's axes to the tensor's; None for the identity.
        spread: An index that adds axes for keys of one value; None if there are none.
        count: The number of rows.
        flags: The result's flags of absent rows and NULLs.
    """

    schema: Schema
    spans: tuple[_Span, ...]
    values: tuple[tuple[str, str], ...]
    moved: tuple[int, ...] | None
    spread: tuple[slice | None, ...] | None
    count: int
    flags: tuple[str, ...]

    def write(self, tensor: Tensor, fields: Fields, inputs: Mapping[str, Fields]) -> Write | None:
        """Returns the cells to store, or None if rows have to be checked individually.

        Args:
            tensor: The tensor before the statement; it has this schema and a default.
            fields: The result of the SELECT.
            inputs: The inputs of the SELECT.
        """
        if not fields.is_local:
            return None
        for flag in self.flags:  # flags that are True everywhere are usually omitted
            if flag in fields:
                return None
        at: list[slice] = []
        for span in self.spans:
            lo = span.first
            for name in span.scalars:
                lo += int(inputs[name][SCALAR])
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
    """Returns the conversion of a SELECT's results to boxes, or None if each run has to check.

    Args:
        schema: The tensor's schema.
        order: The tensor's column for each column of the result.
        empty: The result without fields.
        ends: Bounds of the result's keys that depend on parameters.
        constants: Fields with one number in every row: the number, or the input that has it.
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
        schema=schema,
        spans=tuple(spans),
        values=tuple(values),
        moved=None if moved == sorted(moved) else tuple(moved),
        spread=tuple(spread) if None in spread else None,
        count=source.size,
        flags=tuple(f.name for f in source.fields if is_flag(f.name)),
    )
