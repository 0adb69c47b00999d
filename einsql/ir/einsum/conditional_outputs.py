"""Outputs that matter only where the sum of another term is not finite.

Their argument is a call of `beside(x, term)`; the node has SUM(term), too.
"""

from __future__ import annotations

from dataclasses import replace

from einsql.ir.einsum.graph import Call, EinSum, Output


def beside(o: Output) -> Call | None:
    """The mark of a conditional output; None for other outputs."""
    match o:
        case Output(args=(Call(fn="beside") as mark, *_)) if o.reduction is not None:
            return mark
    return None


def always(node: EinSum) -> EinSum:
    """The node whose conditional outputs are computed unconditionally."""
    marks = [beside(o) for o in node.outputs]
    if not any(marks):
        return node
    pairs = zip(node.outputs, marks, strict=True)
    outputs = (o if mark is None else replace(o, args=mark.args[:1]) for o, mark in pairs)
    return replace(node, outputs=tuple(outputs))
