"""One order of operands, arguments, axes and fields, whatever order a statement names them in.

Kernels and later rules decide ties by order: which operand a loop follows, or with which pair a
tree of joins begins. Spellings of one query differ in the order of joins, factors and fields; in
canonical order they become one plan. The order depends on the names of tensors and fields and on
the structure of expressions. It depends neither on the names of labels nor on extents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

from einsql.core.records import dataclass
from einsql.core.unknowns import symbol
from einsql.ir.einsum.graph import (
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Node,
    Operand,
    Output,
    Param,
    Roots,
    Value,
    conj,
    conjuncts,
    exprs,
    labels_of,
    subexpressions,
)
from einsql.ir.einsum.graph_rewriting import map_exprs, renumber
from einsql.ir.einsum.intervals import bounds_of, can_raise
from einsql.ir.einsum.states import has_order
from einsql.ir.functions import SCALARS
from einsql.optimizer.rewrite.node_properties import change_exprs, in_order
from einsql.optimizer.rewrite.rules import Rule, rebuild

_READABLE = 48
"""Characters of a text that are kept; a digest replaces a longer text."""


@dataclass(frozen=True, slots=True)
class _Identity:
    """A node's canonical form for its readers.

    Attributes:
        node: The node; the reference keeps its id valid.
        text: A text that is equal for nodes that differ only in names of labels.
        order: The positions of the node's keys in canonical order.
    """

    node: Node
    text: str
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Read:
    """An operand in canonical form: its source's text, and the labels in canonical order."""

    text: str
    computed: bool
    labels: tuple[str, ...]


def canonical_order(roots: Roots) -> tuple[Roots, int]:
    """Orders the operands, arguments, axes and fields of every node; roots keep their fields."""
    identities: dict[int, _Identity] = {}
    root_ids = {id(root) for root in roots}

    def visit(old: EinSum, node: EinSum) -> EinSum:
        is_root = id(old) in root_ids
        ordered, text = _ordered(node, [_read(o, identities) for o in node.operands], is_root)
        places = {a.label: place for place, a in enumerate(ordered.axes)}
        order = sorted(range(len(node.keys)), key=lambda k: places[node.keys[k]])
        identities[id(ordered)] = _Identity(ordered, text, tuple(order))
        return ordered

    return rebuild(roots, visit)


def _read(operand: Operand, identities: Mapping[int, _Identity]) -> _Read:
    source, labels = operand.source, operand.labels
    if not isinstance(source, EinSum):
        return _Read(source.name, False, labels)
    identity = identities[id(source)]
    return _Read(identity.text, True, tuple(labels[k] for k in identity.order))


def _ordered(node: EinSum, reads: Sequence[_Read], is_root: bool) -> tuple[EinSum, str]:
    """A node in canonical order, and the text of its identity."""
    keys = _operand_keys(node, reads)
    places = sorted(range(len(reads)), key=keys.__getitem__)
    reads = [reads[n] for n in places]
    if places != sorted(places):
        moved = {old: new for new, old in enumerate(places)}
        node = replace(node, operands=tuple(node.operands[n] for n in places))
        node = map_exprs(node, lambda e: renumber(e, moved))
    axes = _axes(node, reads)
    if axes != node.axes:
        node = replace(node, axes=axes)
    arrangement = _Arrangement(node)
    node = change_exprs(node, arrangement.expr)
    outputs = tuple(sorted(node.outputs, key=arrangement.output_text))
    if not is_root and outputs != node.outputs:
        node = replace(node, outputs=outputs)
    return node, _short("\n".join(_identity_lines(node, reads, arrangement)))


def _operand_keys(node: EinSum, reads: Sequence[_Read]) -> list[tuple[object, ...]]:
    """Sort keys of operands: most labels first, tensors before computed ones, then by text.

    The same tensor read twice is told apart by where its labels occur, then by the order of the
    keys, then by which operand the expressions name first.
    """
    uses: dict[str, list[str]] = {}
    for read in reads:
        for place, label in enumerate(read.labels):
            uses.setdefault(label, []).append(f"{read.text}.{place}")
    keys = {k: place for place, k in enumerate(node.keys)}
    colours = {x: (x not in keys, *sorted(of)) for x, of in uses.items()}
    named = dict.fromkeys(
        e.operand for x in exprs(node) for e in subexpressions(x) if isinstance(e, Value)
    )
    first = {operand: place for place, operand in enumerate(named)}
    return [
        (
            -len(read.labels),
            read.computed,
            read.text,
            tuple(colours[x] for x in read.labels),
            tuple(keys.get(x, len(keys)) for x in read.labels),
            first.get(n, len(first)),
        )
        for n, read in enumerate(reads)
    ]


def _axes(node: EinSum, reads: Sequence[_Read]) -> tuple[Axis, ...]:
    """The axes as operands read them; a derived one follows those that its value reads.

    The axes of a node whose states are merged in order stay.
    """
    if has_order(node):
        return node.axes
    axes = {a.label: a for a in node.axes}
    mentions: dict[str, None] = {}
    for label in (x for read in reads for x in read.labels):
        define = axes[label].define
        if define is not None:
            read = [a.label for a in node.axes if a.label in labels_of(define)]
            mentions |= dict.fromkeys(sorted(read, key=lambda x: x not in node.keys))
        mentions[label] = None
    mentions |= dict.fromkeys(axes)
    ordered = replace(node, axes=tuple(axes[x] for x in mentions))
    sound = in_order(ordered)
    return node.axes if sound is None else sound.axes


class _Arrangement:
    """Orders the arguments of commutative functions of a node, by texts of the arguments."""

    def __init__(self, node: EinSum) -> None:
        self._numbers = {a.label: n for n, a in enumerate(node.axes)}
        self._bounds = bounds_of(node)

    def expr(self, expr: Expr) -> Expr:
        """The expression with its arguments in order; the same object if they are."""
        return self._arranged(expr)[0]

    def text(self, expr: Expr) -> str:
        """A text by which expressions are ordered: calls, values, labels, constants."""
        return self._arranged(expr)[1]

    def output_text(self, output: Output) -> str:
        """A text by which the outputs of a node are ordered."""
        args = ", ".join(map(self.text, output.args))
        return f"{output.reduction}({args}) {self.text(output.where)} {output.dtype.value}"

    def _arranged(self, expr: Expr) -> tuple[Expr, str]:
        match expr:
            case Value():
                return expr, f"1 {expr.operand:03}.{expr.field}"
            case Label():
                return expr, f"2 {self._numbers[expr.name]:03}"
            case Param():
                return expr, f"2 ?{expr.number:03}"
            case Const():
                return expr, f"3 {symbol(expr.spelling)} {expr.dtype.value}"
        if expr.fn == "and":
            return self._conjunction(expr)
        parts = [self._arranged(a) for a in expr.args]
        if self._commutes(expr):
            parts.sort(key=lambda part: part[1])
        args = tuple(a for a, _ in parts)
        if any(a is not b for a, b in zip(args, expr.args, strict=True)):
            expr = Call(expr.fn, args, expr.dtype)
        texts = ", ".join(text for _, text in parts)
        return expr, _short(f"0 {expr.fn}({texts}) {expr.dtype.value}")

    def _conjunction(self, expr: Call) -> tuple[Expr, str]:
        """The terms of AND in order, unless one may raise where an earlier one is false."""
        terms = [self._arranged(term) for term in conjuncts(expr)]
        if not self._may_raise(expr):
            terms.sort(key=lambda term: term[1])
        ordered = conj(*(term for term, _ in terms))
        text = _short(" AND ".join(text for _, text in terms))
        return (expr if ordered == expr else ordered), f"0 {text}"

    def _commutes(self, expr: Call) -> bool:
        """True if arguments may change places; OR skips those after one that is TRUE."""
        if expr.fn not in SCALARS or not SCALARS[expr.fn].commutative:
            return False
        return expr.fn != "or" or not self._may_raise(expr)

    def _may_raise(self, expr: Expr) -> bool:
        return can_raise(expr, self._bounds)


def _identity_lines(
    node: EinSum, reads: Sequence[_Read], arrangement: _Arrangement
) -> Iterator[str]:
    """The identity of a node, except for names of labels and extents."""
    numbers = {a.label: n for n, a in enumerate(node.axes)}
    for read in reads:
        yield f"{read.text} {[numbers[x] for x in read.labels]}"
    for axis in node.axes:
        if axis.define is not None:
            yield f"{numbers[axis.label]} = {arrangement.text(axis.define)}"
    yield f"{sorted(numbers[k] for k in node.keys)} {arrangement.text(node.guard)}"
    for output in node.outputs:
        yield f"{output.name} = {arrangement.output_text(output)}"


def _short(text: str) -> str:
    if len(text) <= _READABLE:
        return text
    return f"{text[:_READABLE]} {blake2b(text.encode(), digest_size=8).hexdigest()}"


CANONICAL_ORDER = Rule(
    "canonical-order",
    "f(X, Y) = f(Y, X); x ⊗ y = y ⊗ x for commutative ⊗: one order for all spellings",
    graph=canonical_order,
)
