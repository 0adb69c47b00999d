"""Filters move towards the data they read."""

from __future__ import annotations

from dataclasses import replace

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
    map_values,
    operands_of,
    relabel,
    subexpressions,
)
from einsql.ir.einsum.intervals import bounds_of, can_raise
from einsql.ir.functions import REDUCTIONS
from einsql.optimizer.rewrite.node_properties import is_contraction, is_pointwise, is_total, readers
from einsql.optimizer.rewrite.rules import Rule, rebuild

_Pushed = tuple[EinSum, EinSum]
"""The reader and its producer, after a condition moved."""


def push_filter(roots: Roots) -> tuple[Roots, int]:
    """Moves conditions on one operand into its producer, where that saves work.

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
    # Groups that now hold the reduction's identity must not raise before the guard ends.
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


PUSH_FILTER = Rule(
    "push-filter",
    "[p(i)] (⊕_j X(i,j)) = ⊕_j [p(i)] X(i,j);  ⊕ [p(x)] x ⊗ y = ⊕ (σ_p x) ⊗ y",
    graph=push_filter,
)
