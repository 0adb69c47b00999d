"""Ranges of an input's values, which prove that a gather reads an existing row at every point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, valid
from einsql.ir.einsum.affine import Shift, shift_of
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    EinSum,
    Expr,
    Input,
    Node,
    Operand,
    TableInput,
    Value,
    subexpressions,
)
from einsql.ir.einsum.graph_rewriting import map_values
from einsql.ir.einsum.intervals import Bounds, fits, interval


@dataclass(frozen=True, slots=True)
class Ranges:
    """The ranges of the fields of a statement's inputs.

    Attributes:
        known: Functions that return the least and the greatest value of an integer field, or
            None: those that are declared, then those of the present values, which are narrower.
        rely_on: Makes the plan depend on a field that stays within inclusive bounds.
    """

    known: tuple[Callable[[Input, str], tuple[int, int] | None], ...]
    rely_on: Callable[[Input, str, int, int], None]


def proven_within(
    define: Expr,
    lo: int,
    hi: int,
    bounds: Bounds,
    operands: Sequence[Operand],
    ranges: Ranges,
) -> Expr:
    """The definition of a label with the ranges of values that prove its bounds.

    Args:
        define: The definition, an integer expression.
        lo: The least value of the label.
        hi: One more than its greatest value.
        bounds: The bounds of the labels that the definition reads.
        operands: The operands that it reads.
        ranges: The ranges of the inputs; the plan depends on those that the proof needs.

    Returns:
        The same definition if it needs no proof, or if there is none.
    """
    if fits(interval(define, bounds), lo, hi - 1):
        return define
    values = {e for e in subexpressions(define) if isinstance(e, Value) and e.dtype.is_integer}
    origins: dict[Value, tuple[Input, str]] = {}
    for index in values:
        origin = _origin(operands[index.operand].source, index.field)
        if origin is None:
            return define
        origins[index] = origin
    for range_of in ranges.known:
        listed = {index: range_of(*origin) for index, origin in origins.items()}
        known = {index: known for index, known in listed.items() if known is not None}
        is_complete = len(known) == len(values)
        if is_complete and fits(interval(_annotated(define, known), bounds), lo, hi - 1):
            break
    else:
        return define
    if len(values) == 1:
        # The greatest range that suffices, so that other values within it need no other plan.
        (index,) = values
        known = {index: _sufficient(define, index, lo, hi) or known[index]}
    for index, (least, most) in known.items():
        ranges.rely_on(*origins[index], least, most)
    return _annotated(define, known)


def _origin(node: Node, field: str) -> tuple[Input, str] | None:
    """The input and its field that views show under another name; None for computed values.

    The points at which the value is absent or NULL do not exist, and need no proof.
    """
    while not (node.schema.has(PRESENT) or node.schema.has(valid(field))):
        if not isinstance(node, EinSum):
            return (node, field) if type(node) in (Input, TableInput) else None
        output = next(o for o in node.outputs if o.name == field)
        shown = output.args[0]
        if output.reduction is not None or output.where != TRUE or not isinstance(shown, Value):
            return None
        node, field = node.operands[shown.operand].source, shown.field
    return None


def _annotated(define: Expr, known: Mapping[Value, tuple[int, int]]) -> Expr:
    """The expression with the ranges of its values."""

    def ranged(v: Value) -> Value:
        return Value(v.operand, v.field, v.dtype, known[v]) if v in known else v

    return map_values(define, ranged)


def _sufficient(define: Expr, index: Value, lo: int, hi: int) -> tuple[int, int] | None:
    """The range of a value in which ±value + offset is within `[lo, hi)`; None for other forms."""

    def leaf(e: Expr) -> Shift | None:
        if e == index:
            return Shift(index.field, 1, 0)
        if isinstance(e, Call) and e.fn == "cast" and e.dtype.is_integer:
            return shift_of(e.args[0], leaf) if e.args[0].dtype.is_integer else None
        return None

    shift = shift_of(define, leaf)
    if shift is None:
        return None
    ends = (shift.sign * (lo - shift.offset), shift.sign * (hi - 1 - shift.offset))
    least, most = index.dtype.range
    return max(least, min(ends)), min(most, max(ends))
