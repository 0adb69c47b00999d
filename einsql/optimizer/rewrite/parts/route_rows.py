"""Results for each row, where rows are sent to the sites of the blocks that they choose.

A site of blocks has some of the rows, so it completes no reduction over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Operand, Output, Roots, Value
from einsql.ir.einsum.graph_rewriting import hint_over
from einsql.ir.einsum.partial_states import merges, state_fields
from einsql.ir.einsum.routing import routings
from einsql.optimizer.rewrite.rules import Rule, rebuild


def route_rows(node: EinSum) -> EinSum:
    """Computes a result for each row of a node that is to be routed, and reduces the results."""
    wanted = dict(node.hint)
    for routing in routings(node) if wanted else ():
        if wanted.get(routing.label, 1) > 1:
            return _with_row_keys(node, routing.rows) or node
    return node


def hinted(roots: Roots, hints: Mapping[int, tuple[str, int]]) -> Roots:
    """The graph with hints for routed nodes.

    Args:
        roots: The roots of the graph.
        hints: By the id of a node the label that its rows choose, and the number of blocks.
    """

    def visit(old: EinSum, node: EinSum) -> EinSum:
        if id(old) not in hints:
            return node
        label, parts = hints[id(old)]
        others = (h for h in node.hint if h[0] != label)
        return replace(node, hint=((label, parts), *others))

    return rebuild(roots, visit)[0]


def _with_row_keys(node: EinSum, rows: Sequence[str]) -> EinSum | None:
    """The node as a reduction over results for each row; None if the results do not merge.

    Args:
        node: A node that reduces over some of the labels of its rows.
        rows: The labels of its rows.
    """
    more = tuple(x for x in rows if x not in node.keys)
    if not more:
        return node
    reductions = [(o.name, o.reduction) for o in node.outputs]
    if not merges(node) or any(r is None or len(state_fields(n, r)) > 1 for n, r in reductions):
        return None
    inner = replace(node, keys=(*node.keys, *more))
    axes = tuple(Axis(k.name, k.lo, k.hi) for k in inner.schema.keys)
    outputs = tuple(
        Output(o.name, (Value(0, o.name, o.dtype),), o.dtype, o.reduction) for o in node.outputs
    )
    operands = (Operand(inner, inner.keys),)
    hint = hint_over(node.hint, {a.label for a in axes})
    return EinSum(axes, operands, TRUE, node.keys, outputs, hint)


ROUTE_ROWS = Rule(
    "route-rows",
    "⊕ over (i, s) of x[i, s, r[i, s]] = ⊕ over s of y[i, s], if a hint cuts the values of r",
    node=route_rows,
)
