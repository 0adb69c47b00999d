"""Softmaxes in a graph: m = max x, e = exp(x - m), and sums of terms that are linear in e.

They are recognised by their algebra, not by a name. A sum may divide its terms by another one, as
Σ (e / z) · v for the total z = Σ e. If m' takes the place of m, the terms of every sum change by
the factor exp(m - m'). So sums over parts of the keys, each with its own maximum, can be merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
    conjuncts,
    operands_of,
    rewrite,
    subexpressions,
    walk,
)
from einsql.optimizer.rewrite.inline_producers import compose
from einsql.optimizer.rewrite.node_properties import direct_labels, readers

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
        rows: The labels of the keys of m.
        divisor: The operand by which the sum is divided, a sum of the same softmax; None if there
            is none.
    """

    origin: EinSum
    node: EinSum
    along: str
    rows: tuple[str, ...]
    divisor: tuple[EinSum, tuple[str, ...]] | None


@dataclass(frozen=True, slots=True)
class Softmax:
    """A softmax.

    Attributes:
        top: The node of m.
        weights: The node of e; None if the only sum computes e itself.
        sums: The sums, producers first.
        inner: The nodes that only m and e read and that are keyed by the keys: the scores.
        along: The label of the keys in each of these nodes, by the node's id.
        axis: The keys as m reduces them.
        hints: The parts into which hints cut the keys.
    """

    top: EinSum
    weights: EinSum | None
    sums: tuple[Sum, ...]
    inner: tuple[EinSum, ...]
    along: dict[int, str]
    axis: Axis
    hints: tuple[int, ...]

    @property
    def members(self) -> list[EinSum]:
        """The nodes of the graph that compute it."""
        weights = () if self.weights is None else (self.weights,)
        return [self.top, *weights, *self.inner, *(s.origin for s in self.sums)]


def softmaxes(roots: Roots) -> list[Softmax]:
    """The softmaxes of a graph, producers first."""
    nodes = walk(*roots)
    readers_of = readers(*roots)
    kept = {id(r) for r in roots}
    tops = (n for n in nodes if isinstance(n, EinSum) and id(n) in readers_of)
    candidates = (_softmax(top, nodes, readers_of, kept) for top in tops)
    return [s for s in candidates if s is not None]


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
    reading = readers_of[id(top)]
    powers = [p for r, n in reading if (p := _power(top, greatest, axis, r, n)) is not None]
    if len(powers) != 1:
        return None
    (power,) = powers
    weights = None if power.node.reduced else power.node
    own = {id(top): axis.label, id(power.node): power.along}
    sums = _own_sum(power) if weights is None else _sums(top, power, axis, readers_of, kept)
    if sums is None:
        return None
    own |= {id(s.origin): s.along for s in sums}
    inner = _inner((top, power.node), nodes, own, axis, readers_of)
    softmax = Softmax(top, weights, sums, inner, own, axis, ())
    wanted = [dict(n.hint).get(own[id(n)], 1) for n in softmax.members]
    return replace(softmax, hints=tuple(n for n in wanted if n > 1))


def reads_sparse(softmax: Softmax) -> bool:
    """True if an operand stores only some elements, which a view by parts would fill."""
    nodes = [*softmax.members, *(s.node for s in softmax.sums)]
    sources = (o.source for n in nodes for o in n.operands)
    return any(isinstance(s, Input) and s.sparse for s in sources)


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


@dataclass(frozen=True, slots=True)
class _Power:
    """A reader of m that computes exp(x - m).

    Attributes:
        node: The node.
        number: The number of the operand m.
        along: The label of the keys.
        rows: The labels of the keys of m.
    """

    node: EinSum
    number: int
    along: str
    rows: tuple[str, ...]


def _power(top: EinSum, greatest: Output, axis: Axis, node: EinSum, number: int) -> _Power | None:
    """A reader of m that reads it only for exp(x - m), as a map or in a sum; else None."""
    e = only_value(node, "sum" if node.reduced else None)
    m = Value(number, greatest.name, greatest.dtype)
    if e is None or sum(o.source is top for o in node.operands) != 1:
        return None
    powers = [x for x in subexpressions(e.args[0]) if exponent(x, m) is not None]
    if len(powers) != 1 or (not node.reduced and powers[0] != e.args[0]):
        return None
    labels = _same(greatest.args[0], top, exponent(powers[0], m) or m, node)
    read = [v for x in (node.guard, *defines(node)) for v in values_read(x, number)]
    if labels is None or axis.label not in labels or any(v.field != PRESENT for v in read):
        return None
    if sum(v == m for v in values_read(e.args[0], number)) != 1:
        return None
    along, rows = labels[axis.label], node.operands[number].labels
    if rows != tuple(labels.get(k) for k in top.keys) or not set(rows) <= set(node.keys):
        return None
    if not _covers(top, node, labels):
        return None
    fits = _is_along(node, along, axis) and (along in node.keys) is not bool(node.reduced)
    return _Power(node, number, along, rows) if fits else None


def _covers(top: EinSum, node: EinSum, labels: Mapping[str, str]) -> bool:
    """True if m and its reader have the same points along the keys.

    A part of the keys has a maximum of its own. If the reader had points without m, the factor
    exp(m' - m) of their part would be wrong, and if m had more points, it could be infinite.
    """
    gone = {a.label for a in top.axes} - set(top.keys)
    theirs = {labels[x] for x in gone if x in labels}
    own = [t for t in conjuncts(node.guard) if theirs & direct_labels(node, t)]
    flags = [t for t in own if isinstance(t, Value) and t.field == PRESENT]
    of_m = [t for t in conjuncts(top.guard) if gone & direct_labels(top, t)]

    def repeated(term: Expr, other: Expr) -> bool:
        alike = _same(term, top, other, node)
        return alike is not None and all(labels.get(x) == y for x, y in alike.items())

    unmatched = [t for t in own if t not in flags and not any(repeated(m, t) for m in of_m)]
    return not unmatched and all(any(repeated(m, t) for t in own) for m in of_m)


def exponent(e: Expr, m: Expr) -> Expr | None:
    """The x of exp(x - m); None for another expression."""
    match e:
        case Call("exp", (Call("sub", (x, shift)),)) if shift == m:
            return x
    return None


def _same(a: Expr, of: EinSum, b: Expr, node: EinSum) -> dict[str, str] | None:
    """The labels under which two nodes have equal expressions; None if these are not equal."""
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


def _own_sum(power: _Power) -> tuple[Sum, ...] | None:
    """The sum that computes its weights itself, as LOGSUMEXP; None if it is not linear in them."""
    node = power.node
    total = only_value(node, "sum")
    assert total is not None
    m = (power.number, node.operands[power.number].source.schema.values[0].name)
    if change_of(total.args[0], {m: Change(step=1.0)}) != _RESCALED:
        return None
    if any(a.define is not None for a in node.axes if a.label in node.keys):
        return None
    return (Sum(node, node, power.along, power.rows, None),)


def _sums(
    top: EinSum, power: _Power, axis: Axis, readers_of: _Readers, kept: set[int]
) -> tuple[Sum, ...] | None:
    """The sums over the weights; None if another node reads a weight."""
    weights = power.node
    if id(weights) in kept:
        return None
    sums: list[Sum] = []
    between = {id(top)} | {id(r) for r, _ in readers_of[id(weights)] if not r.reduced}
    for reader, node, number in _reading(weights, readers_of, kept):
        labels = dict(zip(weights.keys, node.operands[number].labels, strict=True))
        rows = tuple(labels[x] for x in power.rows)
        new = _sum(reader, node, number, labels[power.along], rows, sums)
        if new is None or not _is_along(node, new.along, axis) or not set(rows) <= set(node.keys):
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
    origin: EinSum,
    node: EinSum,
    number: int,
    along: str,
    rows: tuple[str, ...],
    before: Sequence[Sum],
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
    plain = Sum(origin, node, along, rows, None)
    return _undivided(plain, divisors[0]) if divisors else plain


def _undivided(of: Sum, divisor: int) -> Sum | None:
    """A sum of terms that are divided by another sum, without the division."""
    node = of.node
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
    return replace(of, node=replace(node, outputs=outputs), divisor=(o.source, o.labels))


# Scores


def _inner(
    powers: Sequence[EinSum],
    nodes: Sequence[EinSum | Input],
    own: dict[int, str],
    axis: Axis,
    readers_of: _Readers,
) -> tuple[EinSum, ...]:
    """The nodes keyed by the keys that only the softmax reads, up to the first contraction.

    Their labels of the keys are added to `own`. The nodes of m and of exp(x - m) read them.
    """
    inner: list[EinSum] = []
    reached = {id(o.source) for n in powers for o in n.operands} - {id(powers[0])}
    for node in reversed(nodes):
        if not isinstance(node, EinSum) or id(node) not in reached or id(node) in own:
            continue
        reading = readers_of[id(node)]
        if any(id(r) not in own for r, _ in reading):
            continue
        places = {tuple(x == own[id(r)] for x in r.operands[n].labels) for r, n in reading}
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
