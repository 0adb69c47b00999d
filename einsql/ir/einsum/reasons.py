"""Reasons why a node is not computed in the fastest way, recorded where this is decided."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Expr,
    Input,
    Node,
    Value,
    conjuncts,
    operands_of,
    subexpressions,
)
from einsql.ir.einsum.intervals import bounds_of, fits, interval


@dataclass(frozen=True, slots=True, eq=False)
class Reason:
    """One reason of a node.

    Attributes:
        effect: The consequence: "masked", "not fused", or the kernel that runs.
        parts: The text, in which nodes stand for their names.
    """

    effect: str
    parts: tuple[str | Node, ...]

    def text(self, names: Mapping[int, str]) -> str:
        """The reason as a line.

        Args:
            names: The name of each node of the graph by its identity.
        """
        shown = (p if isinstance(p, str) else names.get(id(p), "a result") for p in self.parts)
        return f"{self.effect}: {''.join(shown)}"


def unproven(node: EinSum) -> Iterator[Axis]:
    """The derived labels that are keys, or that may exceed their bounds."""
    bounds = bounds_of(node)
    for axis in node.axes:
        if axis.define is None:
            continue
        if axis.label in node.keys or not fits(interval(axis.define, bounds), axis.lo, axis.hi - 1):
            yield axis


def why_masked(node: EinSum) -> Reason | None:
    """The first reason why a node has a mask that depends on data; None if it has none.

    Conditions on keys alone are no such mask: kernels skip the points that they exclude.
    """
    for axis in unproven(node):
        values = [e for e in subexpressions(axis.define or TRUE) if isinstance(e, Value)]
        if values and axis.label not in node.keys:
            return Reason("masked", _exceeding(node, axis, values[0]))
    for term in conjuncts(node.guard):
        if operands_of(term):
            return Reason("masked", _condition(node, term))
    return None


def _exceeding(node: EinSum, axis: Axis, value: Value) -> tuple[str | Node, ...]:
    """The text for a label with the value of an operand that may exceed its bounds."""
    index = (node.operands[value.operand].source, f".{value.field}")
    for operand in node.operands:
        if axis.label in operand.labels:
            key = operand.source.schema.keys[operand.labels.index(axis.label)].name
            bounded: tuple[str | Node, ...] = (operand.source, f".{key}")
            break
    else:
        bounded = (axis.label,)
    hint = " (declare CHECK)" if _is_placed(node, value) else ""
    return (*index, " may exceed the bounds of ", *bounded, hint)


def _is_placed(node: EinSum, value: Value) -> bool:
    """Whether a value is of a placed tensor, whose range is not computed."""
    source = node.operands[value.operand].source
    return isinstance(source, Input) and source.lies is not None


def _condition(node: EinSum, term: Expr) -> tuple[str | Node, ...]:
    """The text for a term of a guard."""
    source = node.operands[min(operands_of(term))].source
    if isinstance(term, Value) and term.field == PRESENT:
        return (source, " lacks keys")
    return ("WHERE reads values of ", source)
