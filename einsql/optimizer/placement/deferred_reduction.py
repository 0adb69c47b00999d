"""Maps of partial sums that stay partial: Σₛ xₛ + Σₛ yₛ = Σₛ (xₛ + yₛ), c · Σₛ xₛ = Σₛ c · xₛ.

A map that is linear in operands with the same pending reduction runs on the partial values. One
merge of its result then replaces several.

The module also has the maps that run at the sites of a completion, each cell on one tile of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from einsql.core.boxes import enclosing
from einsql.ir.einsum.graph import TRUE, Call, Const, EinSum, Expr, Operand, Value
from einsql.ir.layout import Shard, Single, Tiles
from einsql.ir.spmd.program import COPIES
from einsql.optimizer.placement.completion import PartialResult
from einsql.optimizer.placement.layouts import Cells

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
    if first.tiles.layout is None:
        return None
    cells = _cells(node.operands[0], first.tiles, labels, sites)
    if cells is None:
        return None
    for o, p in zip(node.operands[1:], partials[1:], strict=True):
        theirs = _boxes(o, p.tiles, labels)
        alike = theirs is not None and np.array_equal(theirs, cells.boxes)
        alike &= np.array_equal(p.tiles.sites, first.tiles.sites)
        if not alike or not np.array_equal(p.members, first.members):
            return None
    return cells


def completed_cells(node: EinSum, operand: int, tiles: Tiles, sites: int) -> Cells | None:
    """The cells of a map of which each reads one tile of an operand.

    Args:
        node: The map.
        operand: The number of the operand.
        tiles: Its tiles once it is completed.
        sites: How many sites there are.

    Returns:
        None if these are no cells of the map.
    """
    if not node.is_elementwise or any(a.define for a in node.axes):
        return None
    cells = _cells(node.operands[operand], tiles, tuple(a.label for a in node.axes), sites)
    if cells is None:
        return None
    domain = [(a.lo, a.hi) for a in node.axes]
    return cells if np.array_equal(enclosing(cells.boxes), domain) else None


def _cells(operand: Operand, tiles: Tiles, labels: tuple[str, ...], sites: int) -> Cells | None:
    """Cells of which each reads one tile, if a map reads each key of the operand once."""
    boxes = _boxes(operand, tiles, labels)
    if boxes is None:
        return None
    coordinates = np.empty(boxes.shape[:2], np.int64)
    for n in range(len(labels)):
        coordinates[:, n] = np.unique(boxes[:, n, 0], return_inverse=True)[1]
    parts = coordinates.max(axis=0, initial=0) + 1
    grid = tuple((x, n) for x, n in zip(labels, parts.tolist(), strict=True) if n > 1)
    depths, idle = (0,) * len(grid), len(grid)
    if tiles.layout is not None:
        entries, shape = tiles.layout.placed, tiles.layout.mesh.shape
        single = [isinstance(e, Single) for e in entries]
        busy = [(e, n) for e, n in zip(entries, shape, strict=True) if not isinstance(e, Single)]
        grid = tuple(
            (operand.labels[e.axis] if isinstance(e, Shard) else COPIES, n) for e, n in busy
        )
        depths = tuple(e.depth if isinstance(e, Shard) else 0 for e, _ in busy)
        idle = single.index(True) if True in single else len(grid)
    return Cells(labels, grid, coordinates, boxes, tiles.sites, tiles.copies, sites, idle, depths)


def _boxes(operand: Operand, tiles: Tiles, labels: tuple[str, ...]) -> np.ndarray | None:
    """The boxes of tiles in the order of a map's labels, if it reads each once."""
    if sorted(operand.labels) != sorted(labels):
        return None
    return tiles.boxes[:, [operand.labels.index(x) for x in labels]]


def is_linear(node: EinSum) -> bool:
    """True if every output is a linear map of float sums only.

    A map that it reads counts as a sum, because it is one if it is partial.
    """
    if not node.is_elementwise or node.guard != TRUE or any(a.define for a in node.axes):
        return False
    return all(o.where == TRUE and all(_linear(a, node) for a in o.args) for o in node.outputs)


def _linear(expr: Expr, node: EinSum) -> bool:
    if isinstance(expr, Value):
        source = node.operands[expr.operand].source
        if not isinstance(source, EinSum) or not expr.dtype.is_float:
            return False
        (output,) = (o for o in source.outputs if o.name == expr.field)
        return output.reduction in ("sum", None)
    match expr:
        case Call(fn, args) if fn in JOINTLY:
            return all(_linear(a, node) for a in args)
        case Call("mul", (a, b)):
            return (_scales(a) and _linear(b, node)) or (_scales(b) and _linear(a, node))
        case Call("div", (a, b)):
            return _scales(b) and _linear(a, node)
    return False


def _scales(expr: Expr) -> bool:
    """True for factors that give NaN for a partial value only if they do for the sum."""
    return isinstance(expr, Const) and math.isfinite(expr.value) and expr.value != 0
