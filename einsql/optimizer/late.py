"""Maps of partial sums that stay partial: Σₛ xₛ + Σₛ yₛ = Σₛ (xₛ + yₛ), c · Σₛ xₛ = Σₛ c · xₛ.

A map that is linear in operands which all wait for the same merge runs on the partial
values, and one merge is left where there were several.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einsql.einsum import TRUE, Call, Const, EinSum, Expr, Value
from einsql.optimizer.completion import Partial
from einsql.optimizer.layouts import Cells
from einsql.placements import Shard
from einsql.supersteps import COPIES

JOINTLY = frozenset({"add", "sub", "neg"})
"""Functions that are linear in all of their arguments at once."""


def partial_cells(node: EinSum, waiting: Sequence[Partial | None], sites: int) -> Cells | None:
    """The cells in which a map runs on partial values of its operands.

    Args:
        node: An operation.
        waiting: The partial result each operand reads, with no other reader.
        sites: How many sites there are.

    Returns:
        None unless at least two operands wait and the map is linear in all of them.
    """
    first, *others = waiting
    if first is None or not others or any(p is None for p in others) or not is_linear(node):
        return None
    layout = first.tiles.layout
    if layout is None:
        return None
    labels = tuple(a.label for a in node.axes)
    boxes = []
    for o, p in zip(node.operands, waiting, strict=True):
        if sorted(o.labels) != sorted(labels) or p is None:
            return None
        if p.members.shape != first.members.shape or (p.members != first.members).any():
            return None
        if (p.tiles.sites != first.tiles.sites).any():
            return None
        boxes.append(p.tiles.boxes[:, [o.labels.index(x) for x in labels]])
    if any((b != boxes[0]).any() for b in boxes):
        return None
    read = node.operands[0].labels
    entries = zip(layout.placed, layout.mesh.axes, strict=True)
    grid = [
        (read[e.axis] if isinstance(e, Shard) else COPIES, n)
        for e, (name, n) in entries if name
    ]  # fmt: skip
    coordinates = np.zeros(boxes[0].shape[:2], np.int64)
    for n in range(len(labels)):
        coordinates[:, n] = np.unique(boxes[0][:, n, 0], return_inverse=True)[1]
    return Cells(
        labels, tuple(grid), coordinates, boxes[0], first.tiles.sites, first.tiles.copies, sites
    )


def is_linear(node: EinSum) -> bool:
    """True if every output is a linear map of float sums and of nothing else."""
    if not node.is_elementwise or node.guard != TRUE or any(a.define for a in node.axes):
        return False
    return all(o.where == TRUE and all(_linear(a, node) for a in o.args) for o in node.outputs)


def _linear(expr: Expr, node: EinSum) -> bool:
    if isinstance(expr, Value):
        source = node.operands[expr.operand].source
        if not isinstance(source, EinSum) or not expr.dtype.is_float:
            return False
        (made,) = (o for o in source.outputs if o.name == expr.field)
        return made.reduction == "sum" or (made.reduction is None and is_linear(source))
    if not isinstance(expr, Call):
        return False
    if expr.fn in JOINTLY:
        return all(_linear(a, node) for a in expr.args)
    if expr.fn == "mul":
        a, b = expr.args
        return (isinstance(a, Const) and _linear(b, node)) or (
            isinstance(b, Const) and _linear(a, node)
        )
    if expr.fn == "div":
        return isinstance(expr.args[1], Const) and _linear(expr.args[0], node)
    return False
