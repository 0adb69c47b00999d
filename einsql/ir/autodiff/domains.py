"""Sums of the contributions of a node's points to the elements that an operand reads.

The keys of such a sum are the operand's labels. A label that is repeated, computed, or
shorter than its key gives a derived key: elements that no point reads get 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from einsql.ir.autodiff.terms import Term
from einsql.ir.einsum.affine import Affine, affine_labels
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
    labels_of,
    operands_of,
    renumber,
)
from einsql.ir.einsum.intervals import fits, interval

VALUE = "val"
"""The one field of nodes made here."""


@dataclass(frozen=True, slots=True)
class Points:
    """The contribution of every point of a domain, and the points that contribute.

    Attributes:
        value: A float expression over the operands.
        where: A further condition on points, besides the guard.
    """

    axes: tuple[Axis, ...]
    operands: tuple[Operand, ...]
    guard: Expr
    value: Term
    where: Expr = TRUE


def summed(points: Points, read: Operand) -> Const | EinSum | None:
    """Sums the contributions of points to each element that one of their operands reads.

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
    """Axes with one for each key of an operand's source, over all of its values."""
    labels = {a.label: a for a in axes}
    keys: list[str] = []
    for label, key in zip(read.labels, read.source.schema.keys, strict=True):
        axis = labels[label]
        if label in keys or (axis.lo, axis.hi) != (key.lo, key.hi):
            label = _fresh(label, labels)
            labels[label] = Axis(label, key.lo, key.hi, Label(axis.label))
        keys.append(label)
    return tuple(labels.values()), tuple(keys)


def _fresh(wanted: str, taken: Iterable[str]) -> str:
    names = set(taken)
    n = 1
    while f"{wanted}_{n}" in names:
        n += 1
    return f"{wanted}_{n}"


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
    """An EinSum without the operands that nothing reads."""
    read = set(operands_of(guard))
    for e in (*(a.define for a in axes if a.define is not None), *_exprs(outputs)):
        read |= operands_of(e)
    numbers = {old: new for new, old in enumerate(sorted(read))}

    def moved(e: Expr) -> Expr:
        return renumber(e, numbers)

    return EinSum(
        tuple(a if a.define is None else replace(a, define=moved(a.define)) for a in axes),
        tuple(operands[n] for n in sorted(read)),
        moved(guard),
        keys,
        tuple(
            replace(o, args=tuple(moved(a) for a in o.args), where=moved(o.where)) for o in outputs
        ),
    )


def _exprs(outputs: Iterable[Output]) -> Iterator[Expr]:
    for o in outputs:
        yield from o.args
        yield o.where


def _trimmed(points: Points, keys: Sequence[str]) -> tuple[Points, int]:
    """The points without axes that nothing reads, and how often each of them is there.

    Derived axes go if they are always within their bounds, so that they decide nothing.
    """
    used = set(keys)
    for e in (points.value.expr, points.guard, points.where):
        used |= _direct(points, e)
    kept: list[Axis] = []
    for a in reversed(points.axes):  # axes come after those that define them
        if a.define is None:
            continue
        if a.label in used or not _is_total(points, a):
            used |= _direct(points, a.define)
            kept.append(a)
    free = [a for a in points.axes if a.define is None]
    repeats = prod(a.extent for a in free if a.label not in used)
    derived = {a.label for a in kept}
    axes = tuple(
        a for a in points.axes if a.label in derived or (a.define is None and a.label in used)
    )
    return replace(points, axes=axes), repeats


def _is_total(points: Points, axis: Axis) -> bool:
    """True if a derived axis is always within its bounds."""
    assert axis.define is not None
    bounds = {a.label: (a.lo, a.hi) for a in points.axes}
    return fits(interval(axis.define, bounds), axis.lo, axis.hi - 1)


def _direct(points: Points, expr: Expr) -> set[str]:
    """Labels an expression reads itself or through the operands it reads."""
    labels = labels_of(expr)
    for n in operands_of(expr):
        labels.update(points.operands[n].labels)
    return labels


def reached(points: Points, axes: Iterable[Axis]) -> set[str]:
    """Labels of axes and of all that they are computed from."""
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
    """A sum by the labels that computed keys depend on, if that leaves fewer points.

    A product of matrices then stays one. If the intermediate sum would be larger than the
    result, as for a convolution, the sum is done in one step.
    """
    computed = [a for a in points.axes if a.define is not None and a.label in keys]
    if not computed:
        return None
    around = reached(points, [a for a in points.axes if a.label in keys])
    free = [a for a in points.axes if a.define is None]
    inner = tuple(a.label for a in free if a.label in around)
    read = set[str]()
    for e in (points.value.expr, points.guard, points.where):
        read |= _direct(points, e)
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
    domain = EinSum(points.axes, points.operands, TRUE, (), ())
    values = affine_labels(domain)
    axes = {a.label: a for a in points.axes}
    return all(a.label in values and _counts(values[a.label], axes) for a in computed)


def _counts(value: Affine, axes: dict[str, Axis]) -> bool:
    """True if every step exceeds the combined range of all shorter steps."""
    reach = 0
    for label, step in sorted(value.steps.items(), key=lambda x: abs(x[1])):
        if abs(step) <= reach:
            return False
        reach += abs(step) * max(0, axes[label].extent - 1)
    return True


def _as_product(expr: Expr) -> Expr:
    """A negative as a product with -1, which sums of products take as a factor."""
    if isinstance(expr, Call) and expr.fn == "neg":
        return Call("mul", (expr.args[0], Const(-1.0, expr.dtype)), expr.dtype)
    return expr
