"""Loop-invariant code: what an inner loop would compute again for each value of an outer label.

A kernel's innermost loop follows the last label of its greatest operand. It computes an expression
without that label once before the loop. An expression with that label and without others, such as
the deviation of each column where rows are adjacent, would be computed once for every row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    EinSum,
    Expr,
    Input,
    Operand,
    Output,
    Value,
    conj,
    conjuncts,
    exprs,
    labels_of,
    operands_of,
    rewrite,
)
from einsql.ir.einsum.graph_rewriting import renumber, with_operands
from einsql.ir.einsum.intervals import bounds_of, can_raise
from einsql.ir.functions import SCALARS
from einsql.optimizer.rewrite.node_properties import direct_labels, distributed, is_contraction
from einsql.optimizer.rewrite.rules import Rule

_REPEATS = 16
"""Least repetitions of an expression for which a step of its own pays."""
_FIELD = "val"


def hoist_invariants(node: EinSum) -> EinSum:
    """Computes costly expressions of the innermost label in nodes of their own."""
    inner = _innermost(node)
    if inner is None or _is_product(node):
        return node
    search = _Search(node, inner)
    outputs = tuple(replace(o, args=tuple(map(search.hoisted, o.args))) for o in node.outputs)
    if not search.operands:
        return node
    before = _read(node)
    node = replace(node, operands=(*node.operands, *search.operands.values()), outputs=outputs)
    idle = before - _read(node)
    return with_operands(node, [n for n in range(len(node.operands)) if n not in idle])


def _read(node: EinSum) -> set[int]:
    return {n for e in exprs(node) for n in operands_of(e)}


def _is_product(node: EinSum) -> bool:
    """True for products of single operands, whose kernels read each factor from memory."""
    chains = map(distributed, node.outputs)
    factors = (f for chain in chains if chain is not None for f in chain[1])
    return is_contraction(node) and all(len(operands_of(f)) <= 1 for f in factors)


def _innermost(node: EinSum) -> str | None:
    """The last label of the operand with most labels; None if it is computed."""
    if any(isinstance(o.source, Input) and o.source.sparse for o in node.operands):
        return None
    largest = max((o.labels for o in node.operands), key=len, default=())
    return largest[-1] if largest and node.axis(largest[-1]).define is None else None


def hoist_factors(node: EinSum) -> EinSum:
    """Computes costly factors of products in nodes of their own, which other outputs share.

    A kernel of products then reads each factor from memory, as it does those that a query computes
    in a subquery.
    """
    chains = [c[1] for c in map(distributed, node.outputs) if c is not None and len(c[1]) > 1]
    if not chains:
        return node
    search = _Search(node, None)
    for factor in dict.fromkeys(f for chain in chains for f in chain):
        if isinstance(factor, Call) and search.pays(factor):
            search.hoist(factor)
    if not search.operands:
        return node
    before = _read(node)

    def shared(e: Expr) -> Expr:
        return search.hoist(e) if isinstance(e, Call) and e in search.operands else e

    outputs = tuple(
        replace(o, args=tuple(rewrite(a, shared) for a in o.args)) for o in node.outputs
    )
    node = replace(node, operands=(*node.operands, *search.operands.values()), outputs=outputs)
    idle = before - _read(node)
    return with_operands(node, [n for n in range(len(node.operands)) if n not in idle])


class _Search:
    """The expressions of a node that are hoisted, with the operands that replace them.

    Args:
        node: The node.
        inner: The label that a hoisted expression reads; None for any.
    """

    def __init__(self, node: EinSum, inner: str | None) -> None:
        self.operands: dict[Expr, Operand] = {}
        self._node = node
        self._inner = inner
        self._axes = {a.label: a for a in node.axes}
        self._bounds = bounds_of(node)

    def hoisted(self, expr: Expr) -> Expr:
        """The expression over the results of hoisted parts."""
        if not isinstance(expr, Call):
            return expr
        if self.pays(expr):
            return self.hoist(expr)
        args = tuple(map(self.hoisted, expr.args))
        same = all(a is b for a, b in zip(args, expr.args, strict=True))
        return expr if same else Call(expr.fn, args, expr.dtype)

    def hoist(self, expr: Call) -> Value:
        """The value of an expression, read from its own node."""
        operand = self.operands.setdefault(expr, self._computed(expr))
        place = len(self._node.operands) + list(self.operands).index(expr)
        return Value(place, operand.source.schema.fields[0].name, expr.dtype)

    def pays(self, expr: Call) -> bool:
        """True for a costly expression that is the same for many values of other labels."""
        labels = direct_labels(self._node, expr)
        if (self._inner is not None and self._inner not in labels) or not operands_of(expr):
            return False
        points = 1
        for axis in map(self._axes.__getitem__, labels):
            if axis.define is not None:
                return False
            points *= axis.extent
        if points * _REPEATS > self._node.points or not any(map(_is_costly, _calls(expr))):
            return False
        return not can_raise(expr, self._bounds)

    def _computed(self, expr: Call) -> Operand:
        read = sorted(operands_of(expr))
        labels = direct_labels(self._node, expr)
        axes = tuple(a for a in self._node.axes if a.label in labels)
        keys = tuple(a.label for a in axes)
        value = renumber(expr, {old: new for new, old in enumerate(read)})
        operands = tuple(self._node.operands[n] for n in read)
        guard: Expr = TRUE
        if self._inner is None and not operands_of(self._node.guard):
            # Readers ignore the points that the condition excludes; a kernel skips them.
            guard = conj(*(t for t in conjuncts(self._node.guard) if labels_of(t) <= labels))
        node = EinSum(axes, operands, guard, keys, (Output(_FIELD, (value,), expr.dtype),))
        return Operand(node, keys)


def _calls(expr: Expr) -> Iterator[Call]:
    if isinstance(expr, Call):
        yield expr
        for a in expr.args:
            yield from _calls(a)


def _is_costly(call: Call) -> bool:
    """True if a function takes longer than reading its result from the cache."""
    function = SCALARS.get(call.fn)
    return function is not None and (function.divides or not function.cheap)


HOIST_FACTORS = Rule(
    "hoist-factors",
    "⊕ₖ g(x_ik) ⊗ y_kj = let h_ik = g(x_ik) in ⊕ₖ h_ik ⊗ y_kj  for a costly g",
    node=hoist_factors,
)
HOIST_INVARIANTS = Rule(
    "hoist-invariants",
    "f(x_ij, g(y_j)) = let h_j = g(y_j) in f(x_ij, h_j) for an inner label j",
    node=hoist_invariants,
)
