"""How much arithmetic a node is: operations per point of its domain."""

from __future__ import annotations

from einsql.einsum import Call, EinSum, Expr, exprs, subexpressions


def flops(node: EinSum) -> int:
    """Scalar operations of a node: those at one point, at every point of its domain."""
    return node.points * flops_at_point(node)


def flops_at_point(node: EinSum) -> int:
    """Scalar operations at one point: every call, and one for each reduction.

    Equal subexpressions count once, as kernels evaluate them once; a sum of products over
    n·m·k points is 2·n·m·k.
    """
    calls: set[Expr] = set()
    for e in exprs(node):
        calls |= {x for x in subexpressions(e) if isinstance(x, Call) and x.fn != "cast"}
    reductions = sum(o.reduction is not None for o in node.outputs)
    return len(calls) + reductions
