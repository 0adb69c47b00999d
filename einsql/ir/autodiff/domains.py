"""Sums of the contributions of a node's points to the elements that an operand reads.

The keys of such a sum are the operand's labels. A label that is repeated, computed, or
shorter than its key yields a derived key. Elements that no point reads get 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod

from einsql.core.records import dataclass
from einsql.ir.autodiff.terms import Term
from einsql.ir.einsum.affine import affine_labels
from einsql.ir.einsum.graph import (
    FALSE,
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Operand,
    Output,
    Value,
    conj,
    exprs,
    labels_of,
    operands_of,
)
from einsql.ir.einsum.graph_rewriting import fresh, with_operands
from einsql.ir.einsum.intervals import bounds_of, fits, interval

VALUE = "val"
"""The name of the single field of the nodes of this module."""


@dataclass(frozen=True, slots=True)
class Points:
    """The contribution of every point of a domain, and the points that contribute.

    Attributes:
        value: A float expression over the operands.
        where: A condition on points in addition to the guard.
    """

    axes: tuple[Axis, ...]
    operands: tuple[Operand, ...]
    guard: Expr
    value: Term
    where: Expr = TRUE

    @property
    def read(self) -> set[str]:
        """Labels that the contribution and the conditions read directly or through operands."""
        expressions = (self.value.expr, self.guard, self.where)
        return set().union(*(_direct(self, e) for e in expressions))


def summed(points: Points, read: Operand) -> Const | EinSum | None:
    """Sums the contributions of points to each element that one of the operands reads.

    Returns:
        A node with the keys of the operand's source and the field VALUE, a constant if
        the sum is the same for every element, or None if no point contributes.
    """
    if FALSE in (points.guard, points.where):
        return None
    axes, keys = _keyed(points.axes, read)
    points = replace(points, axes=axes)
    first = _reduced_first(points, keys)
    if first is None:
        return _sum(points, keys)
    reduced = _sum(*first)
    if reduced is None:
        return None
    value: Expr
    operands = points.operands
    if isinstance(reduced, Const):
        value = reduced
    else:
        value = Value(len(operands), VALUE, reduced.outputs[0].dtype)
        operands = (*operands, Operand(reduced, first[1]))
    around = reached(points, [a for a in axes if a.label in keys])
    spread = tuple(a for a in axes if a.label in around)
    return _sum(Points(spread, operands, TRUE, Term(value)), keys)


def _keyed(axes: tuple[Axis, ...], read: Operand) -> tuple[tuple[Axis, ...], tuple[str, ...]]:
    """Axes and keys with one axis for each key of an operand's source, over the key's values."""
    labels = {a.label: a for a in axes}
    keys: list[str] = []
    for label, key in zip(read.labels, read.source.schema.keys, strict=True):
        axis = labels[label]
        if label in keys or (axis.lo, axis.hi) != (key.lo, key.hi):
            label = fresh(label, labels)
            labels[label] = Axis(label, key.lo, key.hi, Label(axis.label))
        keys.append(label)
    return tuple(labels.values()), tuple(keys)


def _sum(points: Points, keys: tuple[str, ...]) -> Const | EinSum | None:
    """The sum by keys that are labels, free or derived."""
    points, repeats = _trimmed(points, keys)
    if repeats == 0:
        return None
    value = points.value * repeats if repeats != 1 else points.value
    one_each = all(
        _is_total(points, a) and a.label not in keys if a.define is not None else a.label in keys
        for a in points.axes
    )
    if one_each:
        value = Term(conj(points.guard, points.where)).choose(value, 0)
        if isinstance(value.expr, Const):
            return value.expr
        output = Output(VALUE, (value.expr,), value.dtype)
        return node(points.axes, points.operands, TRUE, keys, (output,))
    output = Output(VALUE, (_as_product(value.expr),), value.dtype, "sum", points.where)
    return node(points.axes, points.operands, points.guard, keys, (output,))


def node(
    axes: tuple[Axis, ...],
    operands: Sequence[Operand],
    guard: Expr,
    keys: tuple[str, ...],
    outputs: Sequence[Output],
) -> EinSum:
    """An EinSum without its unread operands."""
    over_all = EinSum(axes, tuple(operands), guard, keys, tuple(outputs))
    return with_operands(over_all, sorted(set().union(*map(operands_of, exprs(over_all)))))


def _trimmed(points: Points, keys: Sequence[str]) -> tuple[Points, int]:
    """The points without unread axes, and the number of repetitions of each point.

    Unread derived axes are dropped if they are always within their bounds.
    """
    used = points.read | set(keys)
    for a in reversed(points.axes):  # axes follow the axes that define them
        if a.define is not None and (a.label in used or not _is_total(points, a)):
            used |= {a.label, *_direct(points, a.define)}
    unread = (a for a in points.axes if a.label not in used and a.define is None)
    repeats = prod(a.extent for a in unread)
    return replace(points, axes=tuple(a for a in points.axes if a.label in used)), repeats


def _is_total(points: Points, axis: Axis) -> bool:
    """True if a derived axis is always within its bounds."""
    assert axis.define is not None
    return fits(interval(axis.define, bounds_of(points)), axis.lo, axis.hi - 1)


def _direct(points: Points, expr: Expr) -> set[str]:
    """Labels that an expression reads directly or through its operands."""
    return labels_of(expr).union(*(points.operands[n].labels for n in operands_of(expr)))


def reached(points: Points, axes: Iterable[Axis]) -> set[str]:
    """Labels of axes and of the axes that define them."""
    known = {a.label: a for a in points.axes}
    waiting = list(axes)
    labels = {a.label for a in waiting}
    while waiting:
        define = waiting.pop().define
        for label in set() if define is None else _direct(points, define) - labels:
            labels.add(label)
            waiting.append(known[label])
    return labels


def _reduced_first(points: Points, keys: tuple[str, ...]) -> tuple[Points, tuple[str, ...]] | None:
    """A sum by the labels that define computed keys, if it yields fewer points.

    A product of matrices then stays a product. If the intermediate sum would be larger than the
    result, as for a convolution, the sum is done in one step.
    """
    computed = [a for a in points.axes if a.define is not None and a.label in keys]
    if not computed:
        return None
    around = reached(points, [a for a in points.axes if a.label in keys])
    free = [a for a in points.axes if a.define is None]
    inner = tuple(a.label for a in free if a.label in around)
    read = points.read
    if not any(a.label in read and a.label not in around for a in free):
        return None
    by_data = any(operands_of(a.define) for a in computed if a.define is not None)
    if not by_data and not _is_injective(points, computed):
        return None
    gone = {a.label for a in computed} - read
    axes = tuple(a for a in points.axes if a.label not in gone)
    return replace(points, axes=axes), inner


def _is_injective(points: Points, computed: Sequence[Axis]) -> bool:
    """True if the computed keys are injective functions of their labels."""
    values = affine_labels(points)
    axes = {a.label: a for a in points.axes}
    return all(a.label in values and values[a.label].is_injective(axes) for a in computed)


def _as_product(expr: Expr) -> Expr:
    """A negation as a product with -1, which sums of products support as a factor."""
    if isinstance(expr, Call) and expr.fn == "neg":
        return Call("mul", (expr.args[0], Const(-1.0, expr.dtype)), expr.dtype)
    return expr
