"""Properties of nodes that rules test: existence, safety, shape of an expression, cost."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import replace

from einsql.core.mappings import grouped
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Node,
    Output,
    Value,
    conj,
    conjuncts,
    exprs,
    labels_of,
    operands_of,
    subexpressions,
    walk,
)
from einsql.ir.einsum.graph_rewriting import fresh, hint_over, map_exprs
from einsql.ir.einsum.intervals import bounds_of, can_raise
from einsql.ir.einsum.reasons import unproven
from einsql.ir.functions import REDUCTIONS, SCALARS


def is_pointwise(node: EinSum) -> bool:
    """True if no result key has more than one point: every free label is a key."""
    return all(a.define is not None or a.label in node.keys for a in node.axes)


def derived_are_total(node: EinSum) -> bool:
    """True if no derived label is a key and all provably stay within their bounds."""
    return next(unproven(node), None) is None


def is_total(node: EinSum) -> bool:
    """True if every point of the free domain provably exists."""
    return node.guard == TRUE and derived_are_total(node)


def unguarded(node: EinSum) -> EinSum:
    """The node without conditions on keys and scalars, if values of other points may be arbitrary.

    A condition on keys alone stays, because kernels skip the points that it excludes; a
    condition on scalars would be evaluated at every point. A condition also stays if the
    additional points might raise.
    """
    if node.guard == TRUE or not derived_are_total(node):
        return node

    def is_scalar(term: Expr) -> bool:
        read = operands_of(term)
        keyed = any(node.operands[n].labels for n in read)
        return bool(read) and not keyed and labels_of(term) <= set(node.keys)

    guard = conj(*(t for t in conjuncts(node.guard) if not is_scalar(t)))
    bounds = bounds_of(node)
    if guard == node.guard or any(
        (o.reduction is not None and not o.dtype.is_float)
        or any(can_raise(a, bounds) for a in (*o.args, o.where))
        for o in node.outputs
    ):
        return node
    return replace(node, guard=guard)


def in_order(node: EinSum) -> EinSum | None:
    """The node with each derived axis after its dependencies; None for a cycle."""
    order = [a for a in node.axes if a.define is None]
    waiting = [a for a in node.axes if a.define is not None]
    if not waiting:
        return node
    known = {a.label for a in order}
    while waiting:
        ready = [a for a in waiting if a.define and direct_labels(node, a.define) <= known]
        if not ready:
            return None
        order += ready
        known |= {a.label for a in ready}
        waiting = [a for a in waiting if a not in ready]
    return replace(node, axes=tuple(order))


def direct_labels(node: EinSum, expr: Expr) -> set[str]:
    """Labels that an expression reads directly or through its operands."""
    return labels_of(expr).union(*(node.operands[n].labels for n in operands_of(expr)))


def used_labels(node: EinSum) -> set[str]:
    """Labels that an operand or an expression of the node reads."""
    read = {x for o in node.operands for x in o.labels}
    return read.union(*map(labels_of, exprs(node)))


def without_unread(node: EinSum, labels: Container[str]) -> EinSum:
    """The node without those of some derived labels that nothing reads.

    Args:
        node: The node.
        labels: Derived labels, of which none excludes a point by its bounds.
    """
    for axis in [a for a in reversed(node.axes) if a.label in labels]:
        without = replace(node, axes=tuple(a for a in node.axes if a is not axis))
        if axis.label not in used_labels(without) | {*node.keys}:
            hint = hint_over(node.hint, {a.label for a in without.axes})
            node = replace(without, hint=hint)
    return node


def factors(expr: Expr, fn: str) -> Iterator[Expr]:
    """The operands of a chain of one associative function, left to right."""
    if isinstance(expr, Call) and expr.fn == fn:
        for a in expr.args:
            yield from factors(a, fn)
    else:
        yield expr


def distributed(output: Output) -> tuple[str, tuple[Expr, ...]] | None:
    """An output as ⊕ of a chain of an ⊗ that distributes over it, or None.

    Factors of such a chain can be reordered and regrouped.

    Returns:
        The name of ⊗ and at least two factors.
    """
    if output.reduction is None or len(output.args) != 1:
        return None
    (arg,) = output.args
    if not isinstance(arg, Call) or arg.fn not in REDUCTIONS[output.reduction].over:
        return None
    is_chain = SCALARS[arg.fn].associative and SCALARS[arg.fn].commutative
    return (arg.fn, tuple(factors(arg, arg.fn))) if is_chain else None


def is_contraction(node: EinSum) -> bool:
    """True for ⊕ of ⊗ over operands with different labels, as BLAS kernels compute it.

    Each element of such an operand contributes to many points. Computing it inside the
    node would multiply the work and prevent the use of BLAS.
    """
    if len(node.operands) < 2 or is_pointwise(node):
        return False
    for o in node.outputs:
        product = distributed(o)
        if product is not None:
            read = {n for f in product[1] for n in operands_of(f)}
            shapes = {frozenset(node.operands[n].labels) for n in read}
            if len(shapes - {frozenset()}) > 1:
                return True
    return False


def size(expr: Expr) -> int:
    """The number of subexpressions."""
    return sum(1 for _ in subexpressions(expr))


def is_cheap(expr: Expr) -> bool:
    """True if recomputing the expression costs no more than reading it."""
    calls = [e for e in subexpressions(expr) if isinstance(e, Call)]
    return len(calls) <= 8 and all(e.fn == "cast" or SCALARS[e.fn].cheap for e in calls)


def is_leaf(expr: Expr) -> bool:
    """True for a constant, a label or a value."""
    return isinstance(expr, Const | Label | Value)


def fresh_names(labels: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """Distinct unused names for labels."""
    names: dict[str, str] = {}
    for label in labels:
        names[label] = fresh(label, (*taken, *names.values()))
    return names


def change_exprs(node: EinSum, change: Callable[[Expr], Expr]) -> EinSum:
    """Applies a change to every expression; returns the same object if nothing changes."""
    new = {id(e): change(e) for e in exprs(node)}
    if all(new[id(e)] is e for e in exprs(node)):
        return node
    return map_exprs(node, lambda e: new[id(e)])


def with_axes(node: EinSum, changed: Mapping[str, Axis]) -> EinSum:
    """The node with axes replaced, by label."""
    return replace(node, axes=tuple(changed.get(a.label, a) for a in node.axes))


def readers(*roots: Node) -> dict[int, list[tuple[EinSum, int]]]:
    """For each node, by id, the nodes and operand numbers that read it."""
    return grouped(
        (id(o.source), (node, n))
        for node in walk(*roots)
        if isinstance(node, EinSum)
        for n, o in enumerate(node.operands)
    )
