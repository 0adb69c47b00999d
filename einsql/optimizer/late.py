"""Maps of partial sums that stay partial: Σₛ xₛ + Σₛ yₛ = Σₛ (xₛ + yₛ), c · Σₛ xₛ = Σₛ c · xₛ.

A map that is linear in operands which all wait for the same merge runs on the partial
values, and one merge is left where there were several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from einsql.einsum import TRUE, Call, Const, EinSum, Expr, Operand, Value
from einsql.optimizer.completion import PartialResult
from einsql.optimizer.layouts import Cells
from einsql.placements import Shard
from einsql.supersteps import COPIES

JOINTLY = frozenset({"add", "sub", "neg"})
"""Functions that are linear in all of their arguments at once."""


def partial_cells(
    node: EinSum, waiting: Sequence[PartialResult | None], sites: int
) -> Cells | None:
    """The cells in which a map runs on partial values of its operands.

    Args:
        node: An operation.
        waiting: The partial result each operand reads, with no other reader.
        sites: How many sites there are.

    Returns:
        None unless at least two operands wait and the map is linear in all of them.
    """
    partials = [p for p in waiting if p is not None]
    if len(partials) < max(2, len(waiting)) or not is_linear(node):
        return None
    first, labels = partials[0], tuple(a.label for a in node.axes)
    layout = first.tiles.layout
    boxes = _boxes(node.operands[0], first, labels)
    if layout is None or boxes is None:
        return None
    for o, p in zip(node.operands[1:], partials[1:], strict=True):
        theirs = _boxes(o, p, labels)
        alike = theirs is not None and np.array_equal(theirs, boxes)
        alike &= np.array_equal(p.tiles.sites, first.tiles.sites)
        if not alike or not np.array_equal(p.members, first.members):
            return None
    read = node.operands[0].labels
    axes = zip(layout.placed, layout.mesh.axes, strict=True)
    grid = ((read[e.axis] if isinstance(e, Shard) else COPIES, n) for e, (x, n) in axes if x)
    coordinates = np.empty(boxes.shape[:2], np.int64)
    for n in range(len(labels)):
        coordinates[:, n] = np.unique(boxes[:, n, 0], return_inverse=True)[1]
    named = [bool(x) for x, _ in layout.mesh.axes]
    idle = named.index(False) if False in named else len(named)
    held = first.tiles
    return Cells(labels, tuple(grid), coordinates, boxes, held.sites, held.copies, sites, idle)


def _boxes(operand: Operand, partial: PartialResult, labels: tuple[str, ...]) -> np.ndarray | None:
    """The boxes of partial tiles in the order of a map's labels, if it reads each once."""
    if sorted(operand.labels) != sorted(labels):
        return None
    return partial.tiles.boxes[:, [operand.labels.index(x) for x in labels]]


def is_linear(node: EinSum) -> bool:
    """True if every output is a linear map of float sums and of nothing else.

    A map that it reads counts as a sum: it is one if it is partial.
    """
    if not node.is_elementwise or node.guard != TRUE or any(a.define for a in node.axes):
        return False
    return all(o.where == TRUE and all(_linear(a, node) for a in o.args) for o in node.outputs)


def _linear(expr: Expr, node: EinSum) -> bool:
    if isinstance(expr, Value):
        source = node.operands[expr.operand].source
        if not isinstance(source, EinSum) or not expr.dtype.is_float:
            return False
        (made,) = (o for o in source.outputs if o.name == expr.field)
        return made.reduction in ("sum", None)
    if not isinstance(expr, Call):
        return False
    if expr.fn in JOINTLY:
        return all(_linear(a, node) for a in expr.args)
    if expr.fn == "mul":
        a, b = expr.args
        return (_scales(a) and _linear(b, node)) or (_scales(b) and _linear(a, node))
    if expr.fn == "div":
        return _scales(expr.args[1]) and _linear(expr.args[0], node)
    return False


def _scales(expr: Expr) -> bool:
    """True for numbers that make no NaN of a partial value where the whole makes none."""
    return isinstance(expr, Const) and math.isfinite(expr.value) and expr.value != 0
