"""The arithmetic of a node: operations per point of its domain."""

from __future__ import annotations

from einsql.core.machine import Effort
from einsql.ir.einsum.graph import Call, EinSum, exprs, subexpressions
from einsql.ir.functions import SCALARS


def flops(node: EinSum) -> int:
    """Scalar operations of a node: operations at one point times the points of its domain."""
    return node.points * flops_at_point(node)


def flops_at_point(node: EinSum) -> int:
    """Scalar operations at one point: every call, and one for each reduction.

    Equal subexpressions count once, because kernels evaluate them once. A sum of products over
    n·m·k points takes 2·n·m·k operations.
    """
    return len(_calls(node)) + _reductions(node)


def effort_at_point(node: EinSum) -> Effort:
    """The operations of `flops_at_point` by kind."""
    cheap = [SCALARS[x.fn].cheap for x in _calls(node)]
    return Effort(sum(cheap) + _reductions(node), len(cheap) - sum(cheap))


def _calls(node: EinSum) -> set[Call]:
    subexprs = (x for e in exprs(node) for x in subexpressions(e))
    return {x for x in subexprs if isinstance(x, Call) and x.fn != "cast"}


def _reductions(node: EinSum) -> int:
    return sum(o.reduction is not None for o in node.outputs)
