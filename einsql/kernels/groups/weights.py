"""Weights e = exp(x - m) of rows, where m is the maximum of x in a row, and their sums.

They are recognised by their algebra: 0 ≤ e ≤ 1, and their sum z is at least 1. So
Σ (e / z) · v = (Σ e · v) / z costs at most one rounding, and divides one row of results instead
of one row of terms. Because exp(x - m') = exp(x - m) · exp(m - m'), all sums of weights can be
computed over one part of the row at a time, with the running maximum of x.

A row without points has the maximum -infinity, and so has a row of which every x is -infinity.
Weights that take 0 in the place of such a maximum are 0, and so are their sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Node,
    Operand,
    Output,
    Value,
    rewrite,
)
from einsql.kernels.groups.limits import Masks, never_empty, over, unmasked
from einsql.kernels.groups.members import Limits, Member, match_product


@dataclass(frozen=True, slots=True)
class Weights:
    """The numbers of the members of a group that compute weights.

    Attributes:
        extreme: m, the maximum of x in each row.
        made: e.
        total: z, the sum of e over the same points.
        along: The class that m and z reduce over.
        safe: Whether the weights take 0 in the place of a maximum of -infinity.
    """

    extreme: int
    made: int
    total: int
    along: int
    safe: bool


def find_weights(group: Sequence[Member]) -> list[Weights]:
    """The weights among the members of a group."""
    number = {id(m.origin): at for at, m in enumerate(group)}
    powers = {at: e for at, m in enumerate(group) if (e := _power(m)) is not None}
    pairs = ((at, other) for at in powers for other in range(len(group)))
    every = (_weights(group, number, powers[at], at, other) for at, other in pairs)
    return [w for w in every if w is not None]


def _power(m: Member) -> Call | None:
    """The exponential that a member computes at each point, or None."""
    e = _only(m, None)
    return e if isinstance(e, Call) and e.fn == "exp" else None


def _weights(
    group: Sequence[Member], number: Mapping[int, int], read: Call, weights: int, total: int
) -> Weights | None:
    summed = _only(group[total], "sum")
    if not isinstance(summed, Value) or summed.dtype is not read.dtype:
        return None
    if number.get(id(_source(group[total], summed))) != weights:
        return None
    (inside,) = read.args
    if not isinstance(inside, Call) or inside.fn != "sub" or inside.dtype is not read.dtype:
        return None
    x, shift = inside.args
    m = _guarded(shift)
    extreme = number.get(id(_source(group[weights], m))) if isinstance(m, Value) else None
    if extreme is None or not isinstance(m, Value):
        return None
    greatest = _only(group[extreme], "max")
    if greatest is None or greatest.dtype is not read.dtype:
        return None
    if _at_classes(greatest, group[extreme]) != _at_classes(x, group[weights]):
        return None
    three = [group[at] for at in (weights, extreme, total)]
    if len({frozenset(m.wide(m.own)) for m in three}) > 1 or len(set(map(_points_of, three))) > 1:
        return None
    rows = [set(_keys(group[at])) for at in (extreme, total)]
    gone = set(group[weights].wide(group[weights].own)) - rows[0]
    if rows[0] != rows[1] or len(gone) != 1 or set(_points(group[weights], m)) != rows[0]:
        return None
    return Weights(extreme, weights, total, gone.pop(), m is not shift)


def _guarded(shift: Expr) -> Expr:
    """The maximum m of a shift that is 0 where m is -infinity; other shifts as they are."""
    if isinstance(shift, Call) and shift.fn == "if":
        least = Const(-math.inf, shift.dtype)
        test, nothing, m = shift.args
        if nothing == Const(0.0, shift.dtype) and test == Call("eq", (m, least), DType.BOOLEAN):
            return m
    return shift


def _at_classes(e: Expr, m: Member) -> object:
    """An expression over classes and nodes; equal keys imply equal values at a point."""
    if isinstance(e, Label):
        return m.own[e.name]
    if isinstance(e, Value):
        axes = map(m.node.axis, m.node.operands[e.operand].labels)
        at = tuple(m.own[a.label] if a.extent > 1 else (a.lo,) for a in axes)
        return id(_source(m, e)), e.field, at
    if isinstance(e, Call):
        return e.fn, e.dtype, tuple(_at_classes(a, m) for a in e.args)
    return e


def _keys(m: Member) -> list[int]:
    """The classes of a member's keys with more than one value, in order."""
    return m.wide(m.node.keys)


def deferred(group: Sequence[Member], rows: Sequence[int], block: int) -> list[Member]:
    """Moves the division of weights after their sums.

    Args:
        group: The members in order.
        rows: The classes of the rows.
        block: The class that is cut into blocks.
    """
    rewritten = list(group)
    for w in find_weights(group):
        for at in range(len(rewritten)):
            _defer(rewritten, w, at, rows, block)
    return rewritten


def _defer(rewritten: list[Member], w: Weights, at: int, rows: Sequence[int], block: int) -> None:
    """Moves a division of weights into its only consumer, a sum, if there is one."""
    share = rewritten[at]
    quotient = _only(share, None)
    if share.visible or not isinstance(quotient, Call) or quotient.fn != "div":
        return
    e, z = quotient.args
    weights, total = rewritten[w.made], rewritten[w.total]
    if not isinstance(e, Value) or not isinstance(z, Value):
        return
    if _source(share, e) is not weights.origin or _source(share, z) is not total.origin:
        return
    if not e.dtype is z.dtype is quotient.dtype:
        return
    if _points(share, e) != _keys(weights):
        return
    readers = [
        n for n, m in enumerate(rewritten) if any(o.source is share.origin for o in m.node.operands)
    ]
    if len(readers) != 1:
        return
    reader = rewritten[readers[0]]
    product = reader.product
    if (
        product is None
        or reader.own[product.summed] != w.along
        or _points_of(reader) != _points_of(share)
    ):
        return
    operand, _ = product.left
    if reader.node.operands[operand].source is not share.origin:
        return
    if reader.node.outputs[0].dtype is not e.dtype:
        return
    label = {c: x for x, c in reader.own.items()}
    of_terms = Operand(weights.origin, tuple(label[weights.own[k]] for k in weights.node.keys))
    node = _reading(reader.node, operand, of_terms, e.field)
    (field,) = node.outputs
    summing = replace(
        reader,
        origin=node,
        node=node,
        visible=False,
        product=match_product(node, reader.own, rows, block),
        divisor=total.origin,
    )
    keys = [a for a in node.axes if a.label in node.keys]
    of_total = Operand(total.origin, tuple(label[total.own[k]] for k in total.node.keys))
    divided = Call(
        "div", (Value(0, field.name, field.dtype), Value(1, z.field, z.dtype)), field.dtype
    )
    dividing = replace(
        reader,
        node=EinSum(
            tuple(keys),
            (Operand(node, node.keys), of_total),
            TRUE,
            node.keys,
            (Output(field.name, (divided,), field.dtype),),
        ),
        own={k: reader.own[k] for k in node.keys},
        limits=frozenset(),
        masks=frozenset(),
        product=None,
    )
    if summing.product is None or not set(of_total.labels) <= set(node.keys):
        return  # a sum may remove a key of one value
    rewritten[at], rewritten[readers[0]] = summing, dividing


def _reading(node: EinSum, operand: int, terms: Operand, name: str) -> EinSum:
    """A sum that reads field `name` of other terms instead."""

    def visit(e: Expr) -> Expr:
        return replace(e, field=name) if isinstance(e, Value) and e.operand == operand else e

    operands = tuple(terms if n == operand else o for n, o in enumerate(node.operands))
    outputs = tuple(replace(o, args=tuple(rewrite(a, visit) for a in o.args)) for o in node.outputs)
    return replace(node, operands=operands, outputs=outputs)


def taken_in_parts(
    group: Sequence[Member], rows: Sequence[int]
) -> tuple[Weights, frozenset[int]] | None:
    """The weights whose rows can be cut into parts, and all nodes that reduce over them.

    Every node must satisfy one of three conditions: it lacks the class of the terms; it has the
    class as a key and is read at the same point; or it reduces over the class and is m, z or a
    product Σ e · v.
    """
    weights = find_weights(group)
    if len(weights) != 1 or weights[0].along in rows:
        return None
    (w,) = weights
    number = {id(m.origin): at for at, m in enumerate(group)}
    folds: set[int] = set()
    terms: set[int] = set()
    for at, m in enumerate(group):
        reads = {number[id(o.source)] for o in m.node.operands if id(o.source) in number}
        if w.along not in m.own.values():
            continue
        if w.along in _keys(m):
            terms.add(at)
            allowed = terms | ({w.extreme} if at == w.made else set())
            if m.visible or not reads <= allowed or (w.made in reads):
                return None
        elif at in (w.extreme, w.total) or _sums_weights(m, group[w.made], w):
            folds.add(at)
        else:
            return None
    row_classes = {c for m in group for c in m.wide(m.own)} & set(rows)
    if any(set(_keys(group[at])) != row_classes for at in (w.extreme, w.total)):
        return None
    return w, frozenset(folds)


def _sums_weights(m: Member, weights: Member, w: Weights) -> bool:
    """True for Σ e · v over all points of the weights."""
    if (
        m.product is None
        or m.own[m.product.summed] != w.along
        or _points_of(m) != _points_of(weights)
    ):
        return False
    operand, _ = m.product.left
    return m.node.operands[operand].source is weights.origin


def masks_fit(group: Sequence[Member]) -> tuple[bool, int | None]:
    """Whether only weights, their sums and their extreme run over masked points.

    The extreme of a row without points is -infinity, so a group with masks has to test for it,
    unless its weights are safe.
    """
    running = [at for at, m in enumerate(group) if over(m.masks, set(_keys(m)))]
    if not running:
        return True, None
    weights = find_weights(group)
    if len(weights) != 1:
        return False, None
    (w,) = weights
    known = {w.extreme, w.total}
    known |= {at for at in running if _sums_weights(group[at], group[w.made], w)}
    return set(running) <= known, None if w.safe else w.extreme


def empty_rows_fit(
    nodes: Sequence[EinSum], group: Sequence[Member], bounds: Mapping[int, tuple[int, int]]
) -> bool:
    """Whether rows without points have the results that single nodes have: -infinity and 0.

    A flag that tells which rows have points does not fit, nor do the sums of weights that are not
    safe, which are NaN for a maximum of -infinity.

    Args:
        nodes: The nodes of the graph.
        group: Their members.
        bounds: The bounds of each class.
    """
    running = [
        at
        for at, m in enumerate(group)
        if not never_empty(frozenset(x for x in m.limits if x.inner not in _inner_keys(m)), bounds)
    ]
    flags = any(o.name == PRESENT for at in running for o in nodes[at].outputs)
    return not running or (not flags and all(w.safe for w in find_weights(group)))


def _inner_keys(m: Member) -> set[int]:
    return {m.own[k] for k in m.node.keys}


def _points_of(m: Member) -> tuple[Limits, Masks]:
    """The limits and masks that determine a member's points."""
    return m.limits, m.masks


def _only(m: Member, reduction: str | None) -> Expr | None:
    """The argument of a FLOAT or DOUBLE member's only output with this reduction, else None."""
    if len(m.node.outputs) != 1 or any(a.define is not None for a in m.node.axes):
        return None
    (o,) = m.node.outputs
    if o.reduction != reduction or (o.where != TRUE and not m.masks) or len(o.args) != 1:
        return None
    if o.dtype not in (DType.FLOAT, DType.DOUBLE) or o.args[0].dtype is not o.dtype:
        return None
    return unmasked(o.args[0]) if m.masks and reduction is None else o.args[0]


def _source(m: Member, value: Value) -> Node:
    return m.node.operands[value.operand].source


def _points(m: Member, value: Value) -> list[int]:
    """The classes with more than one value at which a value is read."""
    return m.wide(m.node.operands[value.operand].labels)
