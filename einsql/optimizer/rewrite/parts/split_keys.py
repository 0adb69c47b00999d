"""Split keys: a softmax whose keys have a hint is computed in parts, which are merged.

Each part has a maximum m', and sums over its own exponentials exp(x - m'). The maximum of all keys
is that of the parts, and a sum is Σ exp(m' - m) · its part. A part reads its share of the keys and
values, and stays one group of operations. So the label of the parts is cut over sites like any
other label, and a site needs the keys and values of its parts only.

A part may have no key, or only scores of -infinity. Its exponentials are taken with 0 in the place
of m', which makes them 0, and exp(m' - m) is 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Node,
    Operand,
    Output,
    Roots,
    Value,
    bigint,
    conj,
    conjuncts,
    rewrite,
    walk,
)
from einsql.ir.einsum.graph_rewriting import (
    fresh,
    hint_over,
    map_exprs,
    substitute,
    view,
    with_operands,
    with_sources,
)
from einsql.optimizer.rewrite.inline_producers import compose
from einsql.optimizer.rewrite.node_properties import readers
from einsql.optimizer.rewrite.parts.softmax import (
    Softmax,
    Sum,
    exponent,
    only_value,
    reads_sparse,
    softmaxes,
)
from einsql.optimizer.rewrite.rules import Rule

PART = "part"
"""The wanted name of the label of the parts."""


def split_keys(roots: Roots) -> tuple[Roots, int]:
    """Splits each softmax whose keys a hint cuts."""
    wanted = [s for s in softmaxes(roots) if s.hints and not reads_sparse(s)]
    members: dict[int, _Splitting] = {}
    splits = 0
    for softmax in wanted:
        inside = [id(n) for n in softmax.members]
        if members.keys().isdisjoint(inside):
            members |= dict.fromkeys(inside, _Splitting(softmax))
            splits += 1
    if not members:
        return roots, 0
    readers_of = readers(*roots)
    done: dict[int, Node] = {}
    for node in walk(*roots):
        splitting = members.get(id(node))
        if not isinstance(node, EinSum):
            done[id(node)] = node
        elif splitting is None:
            over = with_sources(node, [done[id(o.source)] for o in node.operands])
            divided = (
                n
                for n, o in enumerate(node.operands)
                if id(o.source) in members and len(readers_of[id(o.source)]) == 1
            )
            done[id(node)] = _dividing(over, next(divided, None))
        else:
            done[id(node)] = splitting.visit(node, done)
    return tuple(done[id(r)] for r in roots), splits


def _dividing(node: EinSum, number: int | None) -> EinSum:
    """A map over a quotient that divides itself, so that it reads sums where they are completed."""
    if number is None or not node.is_elementwise:
        return node
    source = node.operands[number].source
    is_quotient = isinstance(source, EinSum) and source.is_elementwise
    return (compose(node, number) if is_quotient else None) or node


def hinted(roots: Roots, parts: Mapping[int, int]) -> Roots:
    """The graph with hints for the keys of softmaxes.

    Args:
        roots: The roots of the graph.
        parts: The numbers of parts, by the ids of the nodes that compute the maxima.
    """
    labels = {id(s.top): s.along[id(s.top)] for s in softmaxes(roots)}
    done: dict[int, Node] = {}
    for node in walk(*roots):
        done[id(node)] = node
        if isinstance(node, EinSum):
            over = with_sources(node, [done[id(o.source)] for o in node.operands])
            if id(node) in parts:
                over = replace(over, hint=((labels[id(node)], parts[id(node)]), *over.hint))
            done[id(node)] = over
    return tuple(done[id(r)] for r in roots)


class _Splitting:
    """The parts of one softmax, and their merging."""

    def __init__(self, softmax: Softmax) -> None:
        self._softmax = softmax
        self._lo, extent = softmax.axis.lo, softmax.axis.extent
        self._length = -(-extent // min(softmax.hints[0], max(1, extent)))
        self._number = -(-extent // self._length)
        self._is_ragged = self._number * self._length > extent
        self._sums = {id(s.origin): s for s in softmax.sums}
        self._parts: dict[int, _Part] = {}
        self._views: dict[object, EinSum] = {}
        self._factors: EinSum | None = None

    def visit(self, node: EinSum, done: Mapping[int, Node]) -> Node:
        """Computes the parts of a node of the softmax; returns its replacement for other nodes."""
        of = self._sums.get(id(node))
        label = self._softmax.along[id(node)]
        if of is not None:
            node = of.node if of.divisor is None else undivided(of.node, of.divisor[0])
        part = self._part(node, label, done)
        self._parts[id(node if of is None else of.origin)] = part
        if of is not None:
            return self._merged(of, part, done)
        if node is self._softmax.top:
            return self._greatest(part)
        return part.node  # other nodes do not read it

    # Parts

    def _part(self, node: EinSum, label: str, done: Mapping[int, Node]) -> _Part:
        """A node over the keys of each part."""
        part = fresh(PART, (a.label for a in node.axes))
        position = self._position(part, label)
        operands = []
        for o in node.operands:
            inside = self._parts.get(id(o.source))
            if inside is None:
                source = done[id(o.source)]
                operands.append(self._by_parts(node, Operand(source, o.labels), label, part))
            elif label in o.labels:
                operands.append(Operand(inside.node, _spelled(o.labels, label, part)))
            else:
                operands.append(Operand(inside.node, (part, *o.labels)))
        axes: list[Axis] = []
        for a in node.axes:
            split = Axis(part, 0, self._number), Axis(label, 0, self._length)
            axes += split if a.label == label else (a,)
        is_key = label in node.keys
        keys = _spelled(node.keys, label, part) if is_key else (part, *node.keys)
        top = self._parts.get(id(self._softmax.top))
        greatest = None if top is None else top.node
        new = map_exprs(
            node, lambda e: shifted(substitute(e, {label: position}), operands, greatest)
        )
        within: Expr = TRUE
        if self._is_ragged:
            last = bigint(self._lo + self._softmax.axis.extent - 1)
            within = Call("le", (position, last), DType.BOOLEAN)
        hint = ((part, self._number), *(h for h in node.hint if h[0] != label))
        return _Part(
            replace(
                new,
                axes=tuple(defined_as(axes, new.axes)),
                operands=tuple(operands),
                guard=conj(new.guard, within),
                keys=keys,
                hint=hint,
            ),
            part,
        )

    def _position(self, part: str, label: str) -> Expr:
        """The key at a place of a part."""
        first = Call("mul", (Label(part), bigint(self._length)), DType.BIGINT)
        position = Call("add", (first, Label(label)), DType.BIGINT)
        return Call("add", (position, bigint(self._lo)), DType.BIGINT) if self._lo else position

    def _by_parts(self, node: EinSum, operand: Operand, label: str, part: str) -> Operand:
        """An operand from outside of the softmax, keyed by parts if it has the keys."""
        if label not in operand.labels:
            return operand
        free = [replace(node.axis(x), define=None) for x in dict.fromkeys(operand.labels)]
        known = id(operand.source), tuple((a.lo, a.hi) for a in free), pattern(operand, label)
        keys = _spelled(tuple(a.label for a in free), label, part)
        if known not in self._views:
            derived = fresh(label, [a.label for a in free] + [part])
            position = self._position(part, label)
            axes = [a for a in free if a.label != label]
            axes += [Axis(part, 0, self._number), Axis(label, 0, self._length)]
            axes.append(replace(node.axis(label), label=derived, define=position))
            labels = tuple(derived if x == label else x for x in operand.labels)
            shown = view(Operand(operand.source, labels), axes, keys)
            self._views[known] = replace(shown, hint=((part, self._number),))
        return Operand(self._views[known], keys)

    # Merging

    def _greatest(self, part: _Part) -> EinSum:
        """The maximum of the parts' maxima; also computes the factors exp(m' - m)."""
        of, keys = part.node, part.node.keys[1:]
        axes = tuple(of.axis(k) for k in of.keys)
        extreme = only_value(of, "max")
        assert extreme is not None
        read = Value(0, extreme.name, extreme.dtype)
        greatest = EinSum(
            axes, (Operand(of, of.keys),), exists(of, 0), keys, outputs_like(of, read, "max")
        )
        power = Call("sub", (read, replace(read, operand=1)), read.dtype)
        self._factors = EinSum(
            axes,
            (Operand(of, of.keys), Operand(greatest, keys)),
            exists(of, 0),
            of.keys,
            outputs_like(of, Call("exp", (power,), read.dtype), None),
        )
        return greatest

    def _merged(self, of: Sum, part: _Part, done: Mapping[int, Node]) -> EinSum:
        """The sum of the parts' sums times their factors, divided if the original sum is."""
        node, factors = part.node, self._factors
        assert factors is not None
        total, factor = only_value(node, "sum"), only_value(factors, None)
        assert total is not None
        assert factor is not None
        sum_of = Value(0, total.name, total.dtype)
        term = Call("mul", (sum_of, Value(1, factor.name, factor.dtype)), total.dtype)
        keys = node.keys[1:]
        merged = EinSum(
            tuple(node.axis(k) for k in node.keys),
            (Operand(node, node.keys), Operand(factors, (part.label, *of.rows))),
            conj(exists(node, 0), exists(factors, 1)),
            keys,
            outputs_like(node, term, "sum"),
            hint_over(node.hint, keys),
        )
        if of.divisor is None:
            return merged
        source, labels = of.divisor
        divisor = done[id(source)]
        (z,) = divisor.schema.values
        quotient = Call("div", (sum_of, Value(1, z.name, z.dtype)), total.dtype)
        return EinSum(
            tuple(node.axis(k) for k in keys),
            (Operand(merged, keys), Operand(divisor, labels)),
            conj(exists(merged, 0), exists(divisor, 1)),
            keys,
            outputs_like(node, quotient, None),
            hint_over(node.hint, keys),
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """A node over the keys of each part.

    Attributes:
        node: The node.
        label: Its label of the parts.
    """

    node: EinSum
    label: str


def _spelled(labels: tuple[str, ...], label: str, part: str) -> tuple[str, ...]:
    """The labels with the part before the label of the keys."""
    at = labels.index(label)
    return (*labels[:at], part, *labels[at:])


def unless_empty(m: Expr) -> Expr:
    """A maximum, or 0 in the place of -infinity, which has no difference from itself."""
    least, nothing = Const(-math.inf, m.dtype), Const(0.0, m.dtype)
    return Call("if", (Call("eq", (m, least), DType.BOOLEAN), nothing, m), m.dtype)


def shifted(e: Expr, operands: Sequence[Operand], top: EinSum | None) -> Expr:
    """An expression with 0 in the place of a maximum of -infinity that exp(x - m) subtracts.

    Args:
        e: The expression.
        operands: The operands of its node.
        top: The node of the maximum; None before it is known.
    """
    numbers = [n for n, o in enumerate(operands) if top is not None and o.source is top]
    if top is None or len(numbers) != 1:
        return e
    greatest = only_value(top, "max")
    assert greatest is not None
    m = Value(numbers[0], greatest.name, greatest.dtype)
    shift = unless_empty(m)

    def visit(e: Expr) -> Expr:
        x = exponent(e, m)
        return e if x is None else Call("exp", (Call("sub", (x, shift), m.dtype),), m.dtype)

    return rewrite(e, visit)


def outputs_like(of: EinSum, value: Expr, reduction: str | None) -> tuple[Output, ...]:
    """The outputs of a node with another value."""
    return tuple(
        o if o.name == PRESENT else Output(o.name, (value,), o.dtype, reduction) for o in of.outputs
    )


def exists(source: Node, number: int) -> Expr:
    """The condition that the point of an operand exists."""
    if not source.schema.has(PRESENT):
        return TRUE
    return Value(number, PRESENT, DType.BOOLEAN)


def undivided(node: EinSum, divisor: EinSum) -> EinSum:
    """A sum that does not read its divisor; the quotient tests whether that exists."""
    (number,) = (n for n, o in enumerate(node.operands) if o.source is divisor)
    terms = (t for t in conjuncts(node.guard) if t != Value(number, PRESENT, DType.BOOLEAN))
    node = replace(node, guard=conj(*terms))
    return with_operands(node, [n for n in range(len(node.operands)) if n != number])


def pattern(operand: Operand, label: str) -> tuple[int, ...]:
    """The positions of an operand's labels, with -1 for the label of the keys."""
    return tuple(-1 if x == label else operand.labels.index(x) for x in operand.labels)


def defined_as(axes: Sequence[Axis], changed: tuple[Axis, ...]) -> Iterator[Axis]:
    """The axes with the definitions that the changed axes of the same labels have."""
    known = {a.label: a for a in changed if a.define is not None}
    return (known.get(a.label, a) for a in axes)


SPLIT_KEYS = Rule(
    "split-keys",
    "⊕ exp(x - m) · v = ⊕_p exp(m_p - m) · ⊕_{keys of p} exp(x - m_p) · v with m = max_p m_p",
    graph=split_keys,
)
