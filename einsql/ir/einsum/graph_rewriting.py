"""Graphs rebuilt over other nodes, and expressions with other labels, values and operands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, count

from einsql.core.dag import bottom_up
from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    FALSE,
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
    children,
    rewrite,
    walk,
)


def with_sources(node: EinSum, sources: Iterable[Node]) -> EinSum:
    """The node over other sources; the same node if the sources are the same objects."""
    new = tuple(sources)
    if all(o.source is s for o, s in zip(node.operands, new, strict=True)):
        return node
    return replace(
        node,
        operands=tuple(Operand(s, o.labels) for o, s in zip(node.operands, new, strict=True)),
    )


def apart(roots: Iterable[Node]) -> Roots:
    """The roots of one graph, none of which is an operand of another node.

    A root that another root reads, or that occurs twice, is replaced by a copying node over it.
    Rules can then rely on the properties of a single root: no node reads its flags, and it
    keeps all its fields.
    """
    originals = tuple(roots)
    taken = {id(c) for node in walk(*originals) for c in children(node)}
    separate: list[Node] = []
    for root in originals:
        if isinstance(root, EinSum) and id(root) in taken:
            root = passed_on(root)
        taken.add(id(root))
        separate.append(root)
    return tuple(separate)


def passed_on(node: EinSum) -> EinSum:
    """A node that reads every field over the same keys without further computation."""
    keys = node.schema.keys
    return view(Operand(node, node.keys), [Axis(k.name, k.lo, k.hi) for k in keys], node.keys)


def view(operand: Operand, axes: Iterable[Axis], keys: tuple[str, ...]) -> EinSum:
    """A node that reads every field of one operand under other keys."""
    fields = operand.source.schema.fields
    outputs = tuple(Output(f.name, (Value(0, f.name, f.dtype),), f.dtype) for f in fields)
    return EinSum(tuple(axes), (operand,), TRUE, keys, outputs)


def transform(root: Node, visit: Callable[[EinSum], Node]) -> Node:
    """Rebuilds a graph bottom-up; `visit` takes each EinSum over its new sources."""

    def over(node: Node, sources: list[Node]) -> Node:
        return visit(with_sources(node, sources)) if isinstance(node, EinSum) else node

    return bottom_up(root, children, over)


def consumers(*roots: Node) -> dict[int, int]:
    """The number of operands that read each node, by id; a root counts one additional reader."""
    read = (id(c) for node in walk(*roots) for c in children(node))
    return Counter([*map(id, roots), *read])


def map_exprs(node: EinSum, change: Callable[[Expr], Expr]) -> EinSum:
    """Applies a change to every expression of a node."""
    return replace(
        node,
        axes=tuple(
            a if a.define is None else replace(a, define=change(a.define)) for a in node.axes
        ),
        guard=change(node.guard),
        outputs=tuple(
            replace(o, args=tuple(change(a) for a in o.args), where=change(o.where))
            for o in node.outputs
        ),
    )


def with_operands(node: EinSum, kept: Sequence[int]) -> EinSum:
    """The node over some of its operands; its expressions must read no others."""
    numbers = {old: new for new, old in enumerate(kept)}
    node = replace(node, operands=tuple(node.operands[n] for n in kept))
    return map_exprs(node, lambda e: renumber(e, numbers))


def hint_over(
    hint: Iterable[tuple[str, int]], labels: Container[str]
) -> tuple[tuple[str, int], ...]:
    """The entries of a hint for some labels; of two entries for a label, the first."""
    parts_of_label: dict[str, int] = {}
    for label, parts in hint:
        if label in labels:
            parts_of_label.setdefault(label, parts)
    return tuple(parts_of_label.items())


def negate(a: Expr) -> Expr:
    """NOT of a condition, with constants folded."""
    if isinstance(a, Const):
        return FALSE if a.value else TRUE
    return Call("not", (a,), DType.BOOLEAN)


def substitute(expr: Expr, labels: Mapping[str, Expr]) -> Expr:
    """Replaces labels by expressions."""
    return rewrite(expr, lambda e: labels.get(e.name, e) if isinstance(e, Label) else e)


def relabel(expr: Expr, names: Mapping[str, str]) -> Expr:
    """Renames labels inside an expression."""
    return substitute(expr, {old: Label(new) for old, new in names.items()})


def map_values(expr: Expr, change: Callable[[Value], Expr]) -> Expr:
    """Replaces the values of operands inside an expression."""
    return rewrite(expr, lambda e: change(e) if isinstance(e, Value) else e)


def renumber(expr: Expr, numbers: Mapping[int, int]) -> Expr:
    """Renumbers the operands an expression reads."""
    return map_values(expr, lambda v: replace(v, operand=numbers.get(v.operand, v.operand)))


def fresh(wanted: str, taken: Iterable[str]) -> str:
    """An unused name derived from a wanted name."""
    names = set(taken)
    candidates = (f"{wanted}_{n}" for n in count(1))
    return next(name for name in chain([wanted], candidates) if name not in names)
