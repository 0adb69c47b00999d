"""One cell of a node: the same operation over a part of the domain, on tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from einsql.core.schema import Key, Schema
from einsql.ir.einsum.graph import Axis, EinSum, Input, Operand, exprs, labels_of


def cell_node(
    node: EinSum,
    labels: Sequence[str],
    cell: np.ndarray,
    boxes: Sequence[np.ndarray],
    shifted: bool | None = None,
) -> EinSum:
    """Returns the node over one cell, on tiles instead of complete relations.

    Args:
        node: The operation over the whole domain.
        labels: The free labels.
        cell: int64 (labels, 2).
        boxes: For each operand the keys of its tile.
        shifted: Whether keys are counted from the first ones of the cell. The default is True if no
            expression reads a key.
    """
    bounds = {x: (int(lo), int(hi)) for x, (lo, hi) in zip(labels, cell, strict=True)}
    for o, box in zip(node.operands, boxes, strict=True):
        for label, (lo, hi) in zip(o.labels, box, strict=True):
            if label not in bounds:
                bounds[label] = (int(lo), int(hi))
    shifted = is_relative(node) if shifted is None else shifted
    shift = {x: lo for x, (lo, _) in bounds.items()} if shifted else {}
    axes = tuple(
        Axis(a.label, lo - shift.get(a.label, 0), hi - shift.get(a.label, 0), a.define)
        for a, (lo, hi) in ((a, bounds.get(a.label, (a.lo, a.hi))) for a in node.axes)
    )
    operands = []
    for n, (o, box) in enumerate(zip(node.operands, boxes, strict=True)):
        keys = tuple(
            Key(k.name, int(lo) - shift.get(x, 0), int(hi) - shift.get(x, 0))
            for k, x, (lo, hi) in zip(o.source.schema.keys, o.labels, box, strict=True)
        )
        operands.append(Operand(Input(f"#{n}", Schema(keys, o.source.schema.fields)), o.labels))
    return replace(node, axes=axes, operands=tuple(operands))


@lru_cache(maxsize=4096)
def sized(template: EinSum, shapes: tuple[tuple[int, ...], ...]) -> EinSum:
    """Returns a template over tiles of given shapes, the same object for equal arguments.

    Labels without an operand keep their bounds. Positions are counted from the start of a tile.

    Args:
        template: The operation.
        shapes: The shape of each operand's tile.
    """
    boxes = [np.array([(0, n) for n in shape], np.int64).reshape(-1, 2) for shape in shapes]
    return cell_node(template, (), np.zeros((0, 2), np.int64), boxes)


def is_relative(node: EinSum) -> bool:
    """Whether the position of a cell is irrelevant: no expression reads a key."""
    return not any(labels_of(e) for e in exprs(node)) and all(a.define is None for a in node.axes)
