"""PARTITION hints: the numbers of parts into which keys of a SELECT are cut."""

from __future__ import annotations

from math import prod

from sqlglot import exp

from einsql.core.schema import DType
from einsql.core.units import plural
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import TRUE, Label, labels_of, operands_of
from einsql.ir.hints import Ring
from einsql.sql.binder.context import Joining
from einsql.sql.binder.scalar import ScalarBinder
from einsql.sql.parser.partition_hints import KIND, RING
from einsql.sql.parser.positions import position


def bind_hint(block: Joining, select: exp.Select, sites: int) -> dict[str, int]:
    """The numbers of parts by the labels of a SELECT's domain, in the order of the hint.

    Args:
        block: The SELECT's binder, whose FROM and WHERE are bound.
        select: The SELECT.
        sites: The number of sites.

    Raises:
        ProgrammingError: A column is unknown, computed, not a key, too short or named twice, or
            the product of the parts exceeds the number of sites.
    """
    hint = select.args.get("hint")
    if hint is None:
        return {}
    parts: dict[str, int] = {}
    for equality in hint.expressions:
        column, number = equality.this, int(equality.expression.name)
        label = _label(block, column)
        lo, hi = block.domain.axes[label]
        if label in parts:
            raise _wrong(column, "is named twice", "Name each key once.")
        if number > max(1, hi - lo):
            raise _wrong(
                column,
                f"has too few values for {plural(number, 'part')}: {hi - lo}",
                f"At most {plural(max(1, hi - lo), 'part')}.",
            )
        is_ring = column.meta[KIND] == RING
        parts[label] = Ring(number) if is_ring else number
    calls = prod(parts.values())
    if 1 < sites < calls:
        raise ProgrammingError(
            f"The hint asks for {calls} kernel calls, and there are {plural(sites, 'site')}",
            hint=f"Name parts whose product is at most {sites}, or SET sites = {calls}.",
            position=position(hint.expressions[0]),
        )
    return parts


def _label(block: Joining, column: exp.Column) -> str:
    bound = ScalarBinder(block).bind(column)
    value = block.domain.canonical(bound.value)
    if not isinstance(value, Label) or bound.type is not DType.BIGINT or bound.valid != TRUE:
        raise _wrong(column, "is no key", "Only keys, as FROM gives them, can be cut.")
    define = block.domain.defines.get(value.name)
    if define is not None and (labels_of(define) or not operands_of(define)):
        raise _wrong(
            column,
            "follows from other keys, which leaves it whole",
            "Name the keys it is computed from.",
        )
    return value.name


def _wrong(column: exp.Column, reason: str, hint: str) -> ProgrammingError:
    name = f"{column.table}.{column.name}" if column.table else column.name
    return ProgrammingError(f'"{name}" {reason}', hint=hint, position=position(column))
