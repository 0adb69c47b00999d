"""Labels found in data: the labels that number rows, and the place of each row's key."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from math import prod

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Expr,
    Label,
    Output,
    bigint,
    call,
    operands_of,
)
from einsql.kernels.loops.loop_nest import free_labels
from einsql.kernels.scalars import labels_read


@dataclass(frozen=True, slots=True)
class Rows:
    """The free labels of a node in two groups.

    Attributes:
        labels: The labels that decide derived labels or are reduced; they number rows.
        features: The remaining labels, all keys, in the order of the result.
        derived: The derived axes.
    """

    labels: tuple[str, ...]
    features: tuple[str, ...]
    derived: tuple[Axis, ...]


def rows_of(node: EinSum) -> Rows | None:
    """The rows of a node with data-dependent labels; None for other nodes."""
    derived = tuple(a for a in node.axes if a.define is not None)
    if not derived or node.guard != TRUE or any(a.extent == 0 for a in node.axes):
        return None
    names = {a.label for a in derived}
    read = {x for a in derived if a.define is not None for x in labels_read(node, a.define)} - names
    labels = tuple(
        a.label
        for a in node.axes
        if a.define is None and (a.label in read or a.label not in node.keys)
    )
    if not labels or not any(operands_of(a.define) for a in derived if a.define is not None):
        return None
    features = tuple(k for k in node.keys if k not in names and k not in labels)
    return Rows(labels, features, derived)


def placed(node: EinSum, labels: Container[str]) -> list[Axis]:
    """The computed axes that depend only on some free labels."""
    decided = free_labels(node)
    derived = (a for a in node.axes if a.define is not None)
    return [a for a in derived if all(x in labels for x in decided[a.label])]


def places(node: EinSum, labels: tuple[str, ...], keys: Sequence[str]) -> EinSum:
    """Creates a node that computes the place of each point's key among all keys.

    Places start at 1; 0 is the result for points without a key.

    Args:
        node: The node.
        labels: The free labels of the points.
        keys: The keys, the slowest first.
    """
    needed = {*labels, *(a.label for a in placed(node, labels))}
    place: Expr = bigint(0)
    for axis in map(node.axis, keys):
        digit = number("sub", Label(axis.label), axis.lo)
        place = call("add", DType.BIGINT, number("mul", place, axis.extent), digit)
    output = Output("place", (number("add", place, 1),), DType.BIGINT)
    axes = tuple(a for a in node.axes if a.label in needed)
    return replace(node, axes=axes, guard=TRUE, keys=labels, outputs=(output,), hint=())


def number(fn: str, first: Expr, second: int) -> Expr:
    """An operation of a BIGINT and a constant."""
    return call(fn, DType.BIGINT, first, bigint(second))


def size(node: EinSum, labels: Sequence[str]) -> int:
    """The product of the extents of labels."""
    return prod(node.axis(x).extent for x in labels)
