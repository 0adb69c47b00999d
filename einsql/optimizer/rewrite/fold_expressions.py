"""Folding of the expressions of nodes: constants, identities, comparisons that bounds decide."""

from __future__ import annotations

from einsql.ir.einsum.graph import FALSE, EinSum, conj, conjuncts
from einsql.ir.einsum.intervals import bounds_of
from einsql.ir.einsum.simplification import simplify
from einsql.optimizer.rewrite.node_properties import change_exprs
from einsql.optimizer.rewrite.rules import Rule


def fold_constants(node: EinSum) -> EinSum:
    """Simplifies every expression of a node."""
    bounds = bounds_of(node)
    node = change_exprs(node, lambda e: simplify(e, bounds))
    terms = list(conjuncts(node.guard))
    if len(terms) != len(set(terms)) or (FALSE in terms and len(terms) > 1):
        guard = conj(*terms)
        return change_exprs(node, lambda e: guard if e is node.guard else e)
    return node


FOLD_CONSTANTS = Rule(
    "fold-constants",
    "f(c) = ⟦f⟧(c);  id(x) = x;  x ⊗ e = x;  x AND FALSE = FALSE;  i < n = TRUE where hi(i) ≤ n",
    node=fold_constants,
)
