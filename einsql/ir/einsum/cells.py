"""Cells of a node: the same operation over parts of the domain, on tiles.

A cell has an interval of each free label. It reads an interval of every axis of an operand: the
label's interval, or the values that a derived label has in the cell (a window with its halo).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from einsql.core.mappings import memoized
from einsql.core.schema import DType, Key, Schema
from einsql.ir.einsum.affine import Affine, ordered
from einsql.ir.einsum.graph import (
    Axis,
    EinSum,
    Expr,
    Input,
    Operand,
    bigint,
    call,
    exprs,
    labels_of,
)
from einsql.ir.einsum.graph_rewriting import map_exprs, substitute
from einsql.ir.einsum.intervals import bounds_of, interval
from einsql.ir.einsum.simplification import simplify


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
    if not shifted:
        bounds = {a.label: bounds.get(a.label, (a.lo, a.hi)) for a in node.axes}
        node = folded(node, bounds)
    shift = {x: lo for x, (lo, hi) in bounds.items() if shifted or hi == lo + 1}
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
        schema = Schema(keys, o.source.schema.fields)
        operands.append(Operand(Input(f"#{n}", schema, sparse=o.source.sparse), o.labels))
    return replace(node, axes=axes, operands=tuple(operands))


def folded(node: EinSum, bounds: Mapping[str, tuple[int, int]]) -> EinSum:
    """The node with numbers in the place of labels of one value, which are counted from 0.

    Cells that differ only in their position then have equal expressions: a part of the keys that a
    mask does not cut has no condition, and one that it excludes has the condition FALSE.

    Args:
        node: The operation.
        bounds: The bounds of the labels in the cell.
    """
    single = {x: bigint(lo) for x, (lo, hi) in bounds.items() if hi == lo + 1}
    derived = {a.label for a in node.axes if a.define is not None}
    if not any(single.keys() & labels for labels in (derived, *map(labels_of, exprs(node)))):
        return node
    known = {x: Affine({x: 1}, 0) for x in bounds}

    def number(e: Expr) -> Expr:
        return ordered(simplify(substitute(e, single), bounds), known, bounds)

    axes = tuple(
        a
        if a.define is None or a.label not in single
        else replace(a, define=call("sub", DType.BIGINT, a.define, single[a.label]))
        for a in node.axes
    )
    return map_exprs(replace(node, axes=axes), number)


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


def values_read(node: EinSum, label: str, labels: tuple[str, ...], cells: np.ndarray) -> np.ndarray:
    """The values of a label that each cell reads.

    Args:
        node: The operation over the whole domain.
        label: A label of the domain, free or derived.
        labels: Free labels; cells have all values of the others.
        cells: int64 (cells, labels, 2).

    Returns:
        int64 (cells, 2).
    """
    if label in labels:
        return cells[:, labels.index(label)]
    axis = node.axis(label)
    if axis.define is not None:
        return reach(node, axis, labels, cells)
    return np.tile(np.array([axis.lo, max(axis.lo, axis.hi)], np.int64), (len(cells), 1))


def reach(node: EinSum, axis: Axis, labels: tuple[str, ...], cells: np.ndarray) -> np.ndarray:
    """The bounds of a derived axis in each cell, (cells, 2); full range or a window with halo."""
    assert axis.define is not None
    full = np.array([axis.lo, axis.hi], np.int64)
    if axis.label in node.keys:  # the result has all values of the axis
        return np.tile(full, (len(cells), 1))
    known, define = bounds_of(node), axis.define
    if not len(cells):
        return np.zeros((0, 2), np.int64)

    def reached(cell: np.ndarray) -> np.ndarray:
        bounds = known | {x: (lo, hi) for x, (lo, hi) in zip(labels, cell.tolist(), strict=True)}
        inside = interval(define, bounds)
        if inside is None:
            return full
        # The expression may overflow 64 bits where the axis has no values.
        lo = min(max(axis.lo, inside[0]), axis.hi)
        return np.array([lo, max(lo, min(axis.hi, inside[1] + 1))], np.int64)

    seen: dict[bytes, np.ndarray] = {}
    return np.stack([memoized(seen, cell.tobytes(), partial(reached, cell)) for cell in cells])
