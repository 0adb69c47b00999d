"""States that are merged in the order of keys, in parts: a key with a hint is cut in parts.

Parts of a reduction are completed over sites in any order. So a reduced key that orders states is
not cut itself: each part of it becomes a key of a result, which is cut, and a second reduction
merges the states of the parts in order. Rows are ordered by the first reduced key before others,
so only parts of the first one are contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Node, Operand, Output, Roots, Value, walk
from einsql.ir.einsum.graph_rewriting import hint_over, with_sources
from einsql.ir.einsum.partial_states import state_fields, with_state
from einsql.ir.einsum.states import has_order, state_name
from einsql.ir.functions import REDUCTIONS
from einsql.optimizer.rewrite.rules import Rule

if TYPE_CHECKING:
    from einsql.ir.einsum import kept_sums
else:  # loaded for parts
    kept_sums = LazyModule("einsql.ir.einsum.kept_sums")


def ordered_parts(node: EinSum) -> EinSum:
    """Reduces a node with ordered states in parts if a hint cuts the first reduced key."""
    label = _first_reduced(node)
    number = 1 if label is None else dict(node.hint).get(label, 1)
    if label is None or number < 2:
        return node
    parts = kept_sums.divided(with_state(node), label, number)
    part = parts.keys[0]
    rest = hint_over(node.hint, {*node.keys})
    parts = replace(parts, hint=((part, number), *rest))
    axes = [Axis(part, parts.axis(part).lo, parts.axis(part).hi)]
    axes += [replace(node.axis(k), define=None) for k in node.keys]
    return EinSum(
        tuple(axes),
        (Operand(parts, (part, *node.keys)),),
        TRUE,
        node.keys,
        tuple(map(_merged, node.outputs)),
        rest,
    )


def _merged(o: Output) -> Output:
    """The output that merges the partial results of an output."""
    assert o.reduction is not None
    names = state_fields(o.name, o.reduction)
    if state_name(o) is None:
        return Output(o.name, (Value(0, o.name, o.dtype),), o.dtype, o.reduction)
    dtypes = (a.dtype for a in o.args)
    fields = tuple(Value(0, name, dtype) for name, dtype in zip(names, dtypes, strict=True))
    return Output(o.name, fields, o.dtype, o.reduction)


def _first_reduced(node: EinSum) -> str | None:
    """The first reduced key of a node with ordered states; None if its parts cannot be merged."""
    if not has_order(node):
        return None
    for o in node.outputs:
        reduction = REDUCTIONS.get(o.reduction or "")
        if reduction is None or not (reduction.fields or reduction.monoid):
            return None
    free = (a for a in node.axes if a.define is None and a.label not in node.keys)
    return next((a.label for a in free if a.extent > 1), None)


def hinted_orders(roots: Roots, sites: int) -> Roots:
    """The graph with hints for ordered states of fewer groups than there are sites."""
    done: dict[int, Node] = {}
    for node in walk(*roots):
        done[id(node)] = node
        if isinstance(node, EinSum):
            over = with_sources(node, [done[id(o.source)] for o in node.operands])
            label = _first_reduced(over)
            if label is not None and _groups(over) < sites and not _cut(over):
                number = min(sites, over.axis(label).extent)
                over = replace(over, hint=((label, number), *over.hint))
            done[id(node)] = over
    return tuple(done[id(r)] for r in roots)


def _groups(node: EinSum) -> int:
    return prod(node.axis(k).extent for k in node.keys)


def _cut(node: EinSum) -> Mapping[str, int]:
    """The hints of a node that cut a label."""
    return {label: parts for label, parts in node.hint if parts > 1}


ORDERED_PARTS = Rule(
    "ordered-parts",
    "⊕ₙ xₙ = ⊕ₚ ⊕_{n in part p} xₙ for parts p in the order of n",
    node=ordered_parts,
)
