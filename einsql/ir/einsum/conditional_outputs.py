"""Conditional outputs, which are needed only where the sum of another term is not finite.

Their argument is a call of `beside(x, term)`. The node also has the output SUM(term).
"""

from __future__ import annotations

from dataclasses import replace

from einsql.ir.einsum.graph import Call, EinSum, Output


def beside(o: Output) -> Call | None:
    """The call of `beside` that marks a conditional output; None for other outputs."""
    match o:
        case Output(args=(Call(fn="beside") as mark, *_)) if o.reduction is not None:
            return mark
    return None


def always(node: EinSum) -> EinSum:
    """The node with unconditional outputs in place of its conditional outputs."""
    marks = [beside(o) for o in node.outputs]
    if not any(marks):
        return node
    pairs = zip(node.outputs, marks, strict=True)
    outputs = (o if mark is None else replace(o, args=mark.args[:1]) for o, mark in pairs)
    return replace(node, outputs=tuple(outputs))
