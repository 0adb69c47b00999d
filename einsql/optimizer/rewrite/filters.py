"""Moves filters to the node that evaluates them at the least cost.

`push_filter` moves a filter down into the producer of its data, `pull_filter` moves a condition
on the keys of a contraction up into the readers of its result.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from einsql.core.schema import PRESENT, DType
from einsql.ir.einsum.graph import (
    TRUE,
    EinSum,
    Expr,
    Operand,
    Output,
    Roots,
    Value,
    conj,
    conjuncts,
    labels_of,
    operands_of,
    subexpressions,
)
from einsql.ir.einsum.graph_rewriting import map_values, relabel
from einsql.ir.einsum.intervals import bounds_of, can_raise, fits, interval
from einsql.ir.functions import REDUCTIONS
from einsql.optimizer.rewrite.node_properties import is_contraction, is_pointwise, is_total, readers
from einsql.optimizer.rewrite.rules import Rule, rebuild

_Pushed = tuple[EinSum, EinSum]
"""The reader and its producer after a condition has moved."""


def push_filter(roots: Roots) -> tuple[Roots, int]:
    """Moves conditions on one operand into its producer, if that saves work.

    A condition on keys moves below an aggregation, so that fewer points are aggregated. A
    contraction keeps its domain, because BLAS multiplies full blocks. A condition on computed
    values moves from a contraction into the map that computes them: it is then evaluated once
    per element and not at every point of the contraction.
    """
    only_reader = {source for source, uses in readers(*roots).items() if len(uses) == 1}

    def visit(old: EinSum, node: EinSum) -> EinSum:
        for n, before in enumerate(old.operands):
            producer = node.operands[n].source
            if id(before.source) in only_reader and isinstance(producer, EinSum):
                for term in tuple(conjuncts(node.guard)):
                    pushed = _push(node, n, producer, term)
                    if pushed is not None:
                        node, producer = _attach(*pushed, n), pushed[1]
        return node

    return rebuild(roots, visit)


def _attach(node: EinSum, producer: EinSum, n: int) -> EinSum:
    operands = list(node.operands)
    operands[n] = Operand(producer, operands[n].labels)
    return replace(node, operands=tuple(operands))


def _push(node: EinSum, n: int, producer: EinSum, term: Expr) -> _Pushed | None:
    labels = node.operands[n].labels
    asked = Value(n, PRESENT, DType.BOOLEAN)
    if term == asked or not labels_of(term) <= set(labels):
        return None
    names = dict(zip(reversed(labels), reversed(producer.keys), strict=True))
    if not operands_of(term) and not is_pointwise(producer) and not is_contraction(producer):
        return _below_aggregation(node, n, producer, term, relabel(term, names))
    if operands_of(term) == {n} and is_pointwise(producer) and is_contraction(node):
        return _into_map(node, n, producer, term, names)
    return None


def _below_aggregation(
    node: EinSum, n: int, producer: EinSum, term: Expr, moved: Expr
) -> _Pushed | None:
    if moved in conjuncts(producer.guard) or can_raise(moved, bounds_of(producer)):
        return None
    # New empty groups have the reduction's identity, which must not raise in the guard.
    bounds = bounds_of(node)
    early = [*conjuncts(node.guard), *(a.define for a in node.axes if a.define is not None)]
    if any(n in operands_of(e) and can_raise(e, bounds) for e in early):
        return None
    if _asks_presence(node, n, producer):
        rest = (t for t in conjuncts(node.guard) if t != term)
        node = replace(node, guard=conj(*rest))
    return node, replace(producer, guard=conj(moved, producer.guard))


def _asks_presence(node: EinSum, n: int, producer: EinSum) -> bool:
    if Value(n, PRESENT, DType.BOOLEAN) not in conjuncts(node.guard):
        return False
    return any(
        o.name == PRESENT and o.reduction is not None and REDUCTIONS[o.reduction].monoid == "or"
        for o in producer.outputs
    )


def _into_map(
    node: EinSum, n: int, producer: EinSum, term: Expr, names: dict[str, str]
) -> _Pushed | None:
    asked = Value(n, PRESENT, DType.BOOLEAN)
    outputs = {o.name: o for o in producer.outputs}
    knows = PRESENT not in outputs and is_total(producer)
    if node.points <= producer.points or not (knows or _asks_presence(node, n, producer)):
        return None
    if any(
        isinstance(e, Value) and outputs[e.field].reduction is not None
        for e in subexpressions(term)
    ):
        return None

    moved = map_values(relabel(term, names), lambda v: outputs[v.field].args[0])
    if can_raise(moved, bounds_of(producer)):
        return None
    guard = conj(*(asked if t == term else t for t in conjuncts(node.guard)))
    kept = producer.outputs
    if knows:
        kept = (*kept, Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or"))
    new = replace(producer, guard=conj(producer.guard, moved), outputs=kept)
    return replace(node, guard=guard), new


_LEAST_TERMS = 8
"""Least terms of each sum for which a pass over the result is cheaper than a masked contraction.

Set by dense products of 1024 × 1024 DOUBLE sums on two threads: with 8 to 64 terms both take as
long, with 256 terms the contraction that tests a condition takes twice as long.
"""


def pull_filter(roots: Roots) -> tuple[Roots, int]:
    """Moves conditions on keys of both sides of a contraction into the readers of its result.

    No operand of the contraction can evaluate such a condition, and a contraction that tests it
    at every point is neither a BLAS product nor a product of sparse operands. The result has more
    groups afterwards, so its readers must test its presence or the condition, and the additional
    sums must not raise.
    """
    readers_of = readers(*roots)
    at_root = set(map(id, roots))
    pulled: dict[int, Expr] = {}

    def visit(old: EinSum, node: EinSum) -> EinSum:
        for n, before in enumerate(old.operands):
            condition = pulled.get(id(before.source), TRUE)
            if condition != TRUE:
                assert isinstance(before.source, EinSum)
                names = dict(zip(before.source.keys, node.operands[n].labels, strict=True))
                node = replace(node, guard=conj(node.guard, relabel(condition, names)))
        terms = () if id(old) in at_root or not _pays_unmasked(node) else _on_both_sides(node)
        if not terms:
            return node
        unmasked = replace(node, guard=conj(*(t for t in conjuncts(node.guard) if t not in terms)))
        reading = readers_of[id(old)]
        if not _never_raises(unmasked) or not all(
            _selects(r, n, unmasked, terms) for r, n in reading
        ):
            return node
        pulled[id(old)] = conj(*terms)
        return unmasked

    return rebuild(roots, visit)


def _pays_unmasked(node: EinSum) -> bool:
    """True for contractions of which a pass over the result is a small part."""
    if node.guard == TRUE or node.grid or any(a.define is not None for a in node.axes):
        return False
    terms = prod(node.axis(x).extent for x in node.reduced)
    return terms >= _LEAST_TERMS and is_contraction(node)


def _on_both_sides(node: EinSum) -> tuple[Expr, ...]:
    """The conditions on keys alone that no operand has all labels of and that never raise."""
    bounds = bounds_of(node)
    return tuple(
        t
        for t in conjuncts(node.guard)
        if not operands_of(t)
        and labels_of(t) <= set(node.keys)
        and not any(labels_of(t) <= set(o.labels) for o in node.operands)
        and not can_raise(t, bounds)
    )


def _never_raises(node: EinSum) -> bool:
    """True if no expression and no sum of the node can raise at any point of its domain."""
    bounds = bounds_of(node)
    read = (node.guard, *(e for o in node.outputs for e in (*o.args, o.where)))
    return not any(can_raise(e, bounds) for e in read) and all(
        o.reduction is not None and (o.dtype.is_float or _fits_type(node, o)) for o in node.outputs
    )


def _fits_type(node: EinSum, output: Output) -> bool:
    """True if a reduction to integers or truth values stays within its type."""
    reduction = REDUCTIONS[output.reduction or ""]
    if reduction.idempotent:
        return True
    if reduction.monoid != "add":
        return False
    least_and_most = interval(output.args[0], bounds_of(node))
    terms = prod(node.axis(x).extent for x in node.reduced)
    return least_and_most is not None and fits(
        (min(0, terms * least_and_most[0]), max(0, terms * least_and_most[1])),
        *output.dtype.range,
    )


def _selects(reader: EinSum, n: int, node: EinSum, terms: tuple[Expr, ...]) -> bool:
    """True if a reader may test conditions on operand `n` in place of the contraction.

    It reads only the groups that satisfy them. A reader that reduces a dense product runs in one
    group of kernels with it, which skips the points that the conditions exclude.
    """
    if not (is_pointwise(reader) or operands_of(node.guard)):
        return False
    own = tuple(conjuncts(reader.guard))
    names = dict(zip(node.keys, reader.operands[n].labels, strict=True))
    repeats = all(relabel(t, names) in own for t in terms)
    if not repeats and (Value(n, PRESENT, DType.BOOLEAN) not in own or not _is_joined(node)):
        return False
    bounds = bounds_of(reader)
    early = [*own, *(a.define for a in reader.axes if a.define is not None)]
    return not any(n in operands_of(e) and can_raise(e, bounds) for e in early)


def _is_joined(node: EinSum) -> bool:
    """True if the presence of a node's result says that some point of the group is selected."""
    return Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or") in node.outputs


PUSH_FILTER = Rule(
    "push-filter",
    "[p(i)] (⊕_j X(i,j)) = ⊕_j [p(i)] X(i,j);  ⊕ [p(x)] x ⊗ y = ⊕ (σ_p x) ⊗ y",
    graph=push_filter,
)
PULL_FILTER = Rule(
    "pull-filter",
    "⊕_k [p(i,j)] x(i,k) ⊗ y(k,j) = [p(i,j)] (⊕_k x(i,k) ⊗ y(k,j))",
    graph=pull_filter,
)
