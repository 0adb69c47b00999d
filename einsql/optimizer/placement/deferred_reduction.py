"""Deferred reduction: Σₛ xₛ + Σₛ yₛ = Σₛ (xₛ + yₛ) and c · Σₛ xₛ = Σₛ c · xₛ.

A map that is linear in operands with the same pending reduction runs on the partial values. One
merge of its result then replaces several.

The module also places maps at the sites of a completion, one cell for each of its tiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from einsql.core.boxes import enclosing
from einsql.ir.einsum.graph import EinSum, Operand, Value
from einsql.ir.ia.kernel_laws import is_linear
from einsql.ir.layout import Layout, Shard, Single, Tiles
from einsql.ir.spmd.program import COPIES
from einsql.optimizer.placement.completion import PartialResult
from einsql.optimizer.placement.layouts import Cells, coordinates_of


def partial_cells(
    node: EinSum, waiting: Sequence[PartialResult | None], sites: int
) -> Cells | None:
    """The cells in which a map runs on partial values of its operands.

    Args:
        node: An operation.
        waiting: For each operand its partial result, if the operand is the only reader.
        sites: The number of sites.

    Returns:
        The cells; None unless at least two operands are partial and the map is linear in all.
    """
    partials = [p for p in waiting if p is not None]
    if len(partials) < max(2, len(waiting)) or not is_linear_in_sums(node):
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
    """The cells of a map such that each cell reads one tile of an operand.

    Args:
        node: The map.
        operand: The number of the operand.
        tiles: The operand's tiles after its completion.
        sites: The number of sites.

    Returns:
        The cells; None if the tiles cannot be the map's cells.
    """
    if not node.is_elementwise or any(a.define for a in node.axes):
        return None
    cells = _cells(node.operands[operand], tiles, tuple(a.label for a in node.axes), sites)
    if cells is None:
        return None
    domain = [(a.lo, a.hi) for a in node.axes]
    return cells if np.array_equal(enclosing(cells.boxes), domain) else None


def _cells(operand: Operand, tiles: Tiles, labels: tuple[str, ...], sites: int) -> Cells | None:
    """Cells that each read one tile; None unless a map reads each of the operand's keys once."""
    boxes = _boxes(operand, tiles, labels)
    if boxes is None:
        return None
    layout = tiles.layout
    if layout is not None:
        keys = [labels.index(x) for x in operand.labels]
        placed = [
            replace(e, axis=keys[e.axis]) if isinstance(e, Shard) else e for e in layout.placed
        ]
        grid = tuple(
            (labels[e.axis] if isinstance(e, Shard) else COPIES, n)
            for e, n in zip(placed, layout.mesh.shape, strict=True)
            if not isinstance(e, Single)
        )
        depths = tuple(
            e.depth if isinstance(e, Shard) else 0 for e in placed if not isinstance(e, Single)
        )
        single = [isinstance(e, Single) for e in placed]
        idle = single.index(True) if True in single else len(grid)
        coordinates = coordinates_of(tiles.sites, Layout(layout.mesh, tuple(placed)), len(labels))
        sized = (coordinates, boxes, tiles.sites, tiles.copies, sites, idle, depths)
        return Cells(labels, grid, *sized)
    if (boxes[:, :, 0] >= boxes[:, :, 1]).any():  # an empty tile has no place in a grid
        return None
    coordinates = np.empty(boxes.shape[:2], np.int64)
    for n in range(len(labels)):
        coordinates[:, n] = np.unique(boxes[:, n, 0], return_inverse=True)[1]
    parts = coordinates.max(axis=0, initial=0) + 1
    grid = tuple((x, n) for x, n in zip(labels, parts.tolist(), strict=True) if n > 1)
    if tiles.copies > 1:
        grid = (*grid, (COPIES, tiles.copies))
    if prod(n for _, n in grid) != len(boxes):
        return None
    depths = (0,) * len(grid)
    return Cells(
        labels, grid, coordinates, boxes, tiles.sites, tiles.copies, sites, len(grid), depths
    )


def _boxes(operand: Operand, tiles: Tiles, labels: tuple[str, ...]) -> np.ndarray | None:
    """The boxes of tiles in the order of a map's labels; None unless it reads each key once."""
    if sorted(operand.labels) != sorted(labels):
        return None
    return tiles.boxes[:, [operand.labels.index(x) for x in labels]]


def is_linear_in_sums(node: EinSum) -> bool:
    """True if every output is a linear map of float sums.

    An operand that is a map counts as a sum, because a partial map is a sum.
    """

    def is_sum(value: Value) -> bool:
        source = node.operands[value.operand].source
        if not isinstance(source, EinSum):
            return False
        (output,) = (o for o in source.outputs if o.name == value.field)
        return output.reduction in ("sum", None)

    return is_linear(node, is_sum)
