"""Softmaxes in a graph: m = max x, e = exp(x - m), and sums of terms that are linear in e.

They are recognised by their algebra, not by a name. A sum may divide its terms by another one, as
Σ (e / z) · v for the total z = Σ e. The terms of every sum change by the factor exp(m - m') if m' takes
the place of m, so sums over parts of the keys, each with its own maximum, can be merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType
from einsql.ir.autodiff.shifts import Change, change_of
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Label,
    Output,
    Roots,
    Value,
    operands_of,
    rewrite,
    subexpressions,
    walk,
)
from einsql.optimizer.rewrite.inline_producers import compose
from einsql.optimizer.rewrite.node_properties import readers

_FLOATS = (DType.FLOAT, DType.DOUBLE)
_RESCALED = Change(power=-1.0)
"""The change of e, and of terms linear in e, by a shift of m."""


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum over the keys of a softmax.

    Attributes:
        origin: The node of the graph.
        node: The node, which reads e itself and is not divided.
        along: The label of the keys.
        weights: The number of the operand e.
        divisor: The operand by which the sum is divided, a sum of the same softmax; None if there
            is none.
    """

    origin: EinSum
    node: EinSum
    along: str
    weights: int
    divisor: tuple[EinSum, tuple[str, ...]] | None


@dataclass(frozen=True, slots=True)
class Softmax:
    """A softmax.

    Attributes:
        top: The node of m.
        weights: The node of e.
        sums: The sums, producers first.
        inner: The nodes that only m and e read and that are keyed by the keys: the scores.
        along: The label of the keys in each of these nodes, by the node's id.
        axis: The keys as m reduces them.
        hints: The parts into which hints cut the keys.
    """

    top: EinSum
    weights: EinSum
    sums: tuple[Sum, ...]
    inner: tuple[EinSum, ...]
    along: dict[int, str]
    axis: Axis
    hints: tuple[int, ...]


def softmaxes(roots: Roots) -> list[Softmax]:
    """The softmaxes of a graph, producers first."""
    nodes = walk(*roots)
    readers_of = readers(*roots)
    kept = {id(r) for r in roots}
    tops = (n for n in nodes if isinstance(n, EinSum) and id(n) in readers_of)
    found = (_softmax(top, nodes, readers_of, kept) for top in tops)
    return [s for s in found if s is not None]


_Readers = dict[int, list[tuple[EinSum, int]]]


def _softmax(
    top: EinSum, nodes: Sequence[EinSum | Input], readers_of: _Readers, kept: set[int]
) -> Softmax | None:
    """The softmax of a maximum; None if it is none, or if a value of a key has another reader."""
    greatest = only_value(top, "max")
    gone = [a for a in top.axes if a.label not in top.keys]
    if greatest is None or len(gone) != 1 or any(a.define is not None for a in top.axes):
        return None
    (axis,) = gone
    powers = [w for r, n in readers_of[id(top)] if (w := _weights(top, greatest, axis, r, n))]
    if len(powers) != 1 or id(powers[0][0]) in kept:
        return None
    ((weights, along),) = powers
    sums = _sums(top, weights, along, axis, readers_of, kept)
    if sums is None:
        return None
    own = {id(top): axis.label, id(weights): along} | {id(s.origin): s.along for s in sums}
    inner = _inner(top, weights, nodes, own, axis, readers_of)
    hinted = [top, weights, *(s.origin for s in sums), *inner]
    wanted = [dict(n.hint).get(own[id(n)], 1) for n in hinted]
    return Softmax(top, weights, sums, inner, own, axis, tuple(n for n in wanted if n > 1))


def only_value(node: EinSum, reduction: str | None) -> Output | None:
    """The only output of a node besides its flag of presence, if it has this reduction."""
    values = [o for o in node.outputs if o.name != PRESENT]
    flags = [o for o in node.outputs if o.name == PRESENT]
    if len(values) != 1 or node.grid or any((o.args, o.where) != ((TRUE,), TRUE) for o in flags):
        return None
    (o,) = values
    if o.reduction != reduction or o.where != TRUE or o.dtype not in _FLOATS:
        return None
    return o if o.args[0].dtype is o.dtype else None


def _weights(
    top: EinSum, greatest: Output, axis: Axis, node: EinSum, number: int
) -> tuple[EinSum, str] | None:
    """A reader of m that computes exp(x - m), with its label of the keys; else None."""
    e = only_value(node, None)
    if e is None or any(a.label not in node.keys for a in node.axes if a.define is None):
        return None
    m = Value(number, greatest.name, greatest.dtype)
    match e.args[0]:
        case Call("exp", (Call("sub", (x, Value() as read)),)) if read == m:
            labels = _same(greatest.args[0], top, x, node)
        case _:
            return None
    if labels is None or axis.label not in labels:
        return None
    rows = tuple(labels.get(k) for k in top.keys)
    along = labels[axis.label]
    others = [x for e in (node.guard, *defines(node)) for x in values_read(e, number)]
    if rows != node.operands[number].labels or any(v.field != PRESENT for v in others):
        return None
    return (node, along) if _is_along(node, along, axis) and along in node.keys else None


def _same(a: Expr, of: EinSum, b: Expr, node: EinSum) -> dict[str, str] | None:
    """The labels under which an expression of one node is that of another one; None if it is not."""
    names: dict[str, str] = {}

    def named(x: str, y: str) -> bool:
        return names.setdefault(x, y) == y

    def same(a: Expr, b: Expr) -> bool:
        if isinstance(a, Label) and isinstance(b, Label):
            return named(a.name, b.name)
        if isinstance(a, Value) and isinstance(b, Value):
            left, right = of.operands[a.operand], node.operands[b.operand]
            return (
                left.source is right.source
                and (a.field, a.dtype) == (b.field, b.dtype)
                and all(map(named, left.labels, right.labels))
            )
        if isinstance(a, Call) and isinstance(b, Call):
            alike = (a.fn, a.dtype, len(a.args)) == (b.fn, b.dtype, len(b.args))
            return alike and all(map(same, a.args, b.args))
        return isinstance(a, Const) and a == b

    return names if same(a, b) and len(set(names.values())) == len(names) else None


def _is_along(node: EinSum, label: str, axis: Axis) -> bool:
    """True if a free label of a node has the values of an axis."""
    own = node.axis(label)
    return own.define is None and (own.lo, own.hi) == (axis.lo, axis.hi)


def defines(node: EinSum) -> Iterator[Expr]:
    """The definitions of a node's derived labels."""
    return (a.define for a in node.axes if a.define is not None)


def values_read(e: Expr, number: int) -> Iterator[Value]:
    """The reads of an operand in an expression."""
    return (v for v in subexpressions(e) if isinstance(v, Value) and v.operand == number)


# Sums


def _sums(
    top: EinSum,
    weights: EinSum,
    along: str,
    axis: Axis,
    readers_of: _Readers,
    kept: set[int],
) -> tuple[Sum, ...] | None:
    """The sums over the weights; None if another node reads a weight."""
    sums: list[Sum] = []
    rows = next(o.labels for o in weights.operands if o.source is top)
    between = {id(top)} | {id(r) for r, _ in readers_of[id(weights)] if not r.reduced}
    for reader, node, number in _reading(weights, readers_of, kept):
        labels = dict(zip(weights.keys, node.operands[number].labels, strict=True))
        new = _sum(reader, node, number, labels[along], sums)
        if new is None or not _is_along(node, new.along, axis):
            return None
        if not {labels[x] for x in rows} <= set(node.keys):
            return None
        if any(id(o.source) in between for o in node.operands):
            return None
        sums.append(new)
    return tuple(sums) if sums else None


def _reading(
    weights: EinSum, readers_of: _Readers, kept: set[int]
) -> Iterator[tuple[EinSum, EinSum, int]]:
    """The readers of the weights, each as a node that reads them itself.

    A map over the weights, as e / z, is composed with its readers.

    Returns:
        For each reader the node of the graph, the composed node, and the number of its operand.
    """
    for reader, number in readers_of[id(weights)]:
        if reader.reduced or id(reader) in kept:
            yield reader, reader, number
            continue
        for outer, n in readers_of[id(reader)]:
            new = compose(outer, n)
            node = outer if new is None else new
            places = [k for k, o in enumerate(node.operands) if o.source is weights]
            yield outer, node, places[0] if len(places) == 1 else n


def _sum(
    origin: EinSum, node: EinSum, number: int, along: str, before: Sequence[Sum]
) -> Sum | None:
    """A sum of terms that are linear in the weights, without its division; None for other nodes."""
    weights = node.operands[number].source
    total = only_value(node, "sum")
    if total is None or along in node.keys or total.dtype is not weights.schema.values[0].dtype:
        return None
    if any(a.define is not None for a in node.axes if a.label in node.keys):
        return None
    if sum(o.source is weights for o in node.operands) != 1:
        return None
    others = [node.guard, *defines(node)]
    divided = {id(s.origin): s for s in before}
    divisors = [n for n, o in enumerate(node.operands) if id(o.source) in divided]
    tests = [v for e in others for n in (number, *divisors) for v in values_read(e, n)]
    if len(divisors) > 1 or any(v.field != PRESENT for v in tests):
        return None
    (term,) = total.args
    value = Value(number, weights.schema.values[0].name, total.dtype)
    if change_of(term, {(number, value.field): _RESCALED}) != _RESCALED:
        return None
    if not divisors:
        return Sum(origin, node, along, number, None)
    return _undivided(origin, node, number, along, divisors[0])


def _undivided(
    origin: EinSum, node: EinSum, number: int, along: str, divisor: int
) -> Sum | None:
    """A sum of terms that are divided by another sum, without the division."""
    o = node.operands[divisor]
    total = only_value(node, "sum")
    assert total is not None
    z = Value(divisor, o.source.schema.values[0].name, o.source.schema.values[0].dtype)
    if z.dtype is not total.dtype or not set(o.labels) <= set(node.keys):
        return None
    (term,) = total.args
    if change_of(term, {(divisor, z.field): _RESCALED}) != Change(power=1.0):
        return None

    def whole(e: Expr) -> Expr:
        by_z = isinstance(e, Call) and e.fn == "div" and e.args[1] == z and e.dtype is z.dtype
        return e.args[0] if by_z and isinstance(e, Call) else e

    term = rewrite(term, whole)
    if divisor in operands_of(term) or term.dtype is not total.dtype:
        return None
    outputs = tuple(replace(x, args=(term,)) if x is total else x for x in node.outputs)
    assert isinstance(o.source, EinSum)
    return Sum(origin, replace(node, outputs=outputs), along, number, (o.source, o.labels))


# Scores


def _inner(
    top: EinSum,
    weights: EinSum,
    nodes: Sequence[EinSum | Input],
    own: dict[int, str],
    axis: Axis,
    readers_of: _Readers,
) -> tuple[EinSum, ...]:
    """The nodes keyed by the keys that only the softmax reads, up to the first contraction.

    Their labels of the keys are added to `own`.
    """
    inner: list[EinSum] = []
    reached = {id(o.source) for n in (top, weights) for o in n.operands} - {id(top)}
    for node in reversed(nodes):
        if not isinstance(node, EinSum) or id(node) not in reached or id(node) in own:
            continue
        reading = readers_of[id(node)]
        if any(id(r) not in own for r, _ in reading):
            continue
        places = {
            tuple(x == own[id(r)] for x in r.operands[n].labels) for r, n in reading
        }
        place = next(iter(places))
        if len(places) != 1 or sum(place) != 1 or node.grid:
            continue
        label = node.keys[place.index(True)]
        if _is_along(node, label, axis):
            own[id(node)] = label
            inner.append(node)
            if not node.reduced:
                reached |= {id(o.source) for o in node.operands}
    return tuple(reversed(inner))
