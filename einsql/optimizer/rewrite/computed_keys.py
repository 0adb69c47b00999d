"""Solves keys computed from labels: the key becomes free and one of its labels derived."""

from __future__ import annotations

from dataclasses import replace

from einsql.ir.einsum.affine import Affine, affine, free_labels_as_affine
from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.intervals import bounds_of, can_raise
from einsql.ir.einsum.states import has_order
from einsql.optimizer.rewrite.node_properties import in_order, with_axes
from einsql.optimizer.rewrite.rules import Rule

DENSE = 2
"""The maximum ratio of points after and before solving: points that do not exist cost time."""


def solve_keys(node: EinSum) -> EinSum:
    """Solves the first key of the form ± reduced label + other labels for that label.

    Loops then run over the result's keys without scattered writes, and operands
    are read through windows.
    """
    if has_order(node):
        return node
    known = free_labels_as_affine(node)
    for axis in node.axes:
        if axis.define is None or axis.label not in node.keys:
            continue
        form = affine(axis.define, known)
        if form is None or can_raise(axis.define, bounds_of(node)):
            continue
        units = [x for x, s in form.steps.items() if abs(s) == 1 and x not in node.keys]
        for label in sorted(units, key=lambda x: -node.axis(x).extent):
            solved = _solved(node, axis.label, label, form)
            if solved is not None:
                return solved
    return node


def _solved(node: EinSum, key: str, label: str, value: Affine) -> EinSum | None:
    """The node with the key free and a label of its value derived; None if that adds work."""
    step = value.steps[label]
    rest = Affine({x: s for x, s in value.steps.items() if x != label}, value.offset)
    define = Affine({key: step}, 0).plus(rest.scaled(-step)).expr()
    free, follows = node.axis(key), node.axis(label)
    changed = {key: replace(free, define=None), label: replace(follows, define=define)}
    new = with_axes(node, changed)
    if can_raise(define, bounds_of(new)) or free.extent > DENSE * max(1, follows.extent):
        return None
    if label in dict(node.hint) and key not in dict(node.hint):
        return None  # the hint cuts the label, which must stay free
    return in_order(new)


SOLVE_KEYS = Rule(
    "solve-keys",
    "⊕_{i,j} [let k = i + j] f(i, j) = ⊕_j [let i = k - j] f(i, j), a key k",
    node=solve_keys,
)
