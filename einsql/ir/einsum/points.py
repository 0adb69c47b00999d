"""The number of points of a node that meet the limits of its guard, as of a causal mask.

Cells of a masked node differ in it, so it balances the work of sites.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from einsql.core.boxes import extents
from einsql.core.mappings import memoized
from einsql.ir.einsum.affine import Affine, affine, affine_labels, free_labels_as_affine
from einsql.ir.einsum.cells import folded
from einsql.ir.einsum.flops import flops_at_point
from einsql.ir.einsum.graph import FALSE, Axis, Call, EinSum, Expr, conjuncts, labels_of
from einsql.ir.einsum.intervals import bounds_of
from einsql.ir.einsum.simplification import simplify

MOST_ROWS = 2**20
"""The maximum of combinations of labels for which the range of another label is computed."""
MOST_NUMBER = 2**62
"""The greatest number in limits that are counted: arrays of BIGINT have room for it."""


def cell_work(
    node: EinSum, labels: Sequence[str], cells: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The points and the flops of each cell of a node.

    Args:
        node: The operation over the whole domain.
        labels: The free labels.
        cells: int64 (cells, labels, 2).

    Returns:
        int64 (cells,) each.
    """
    if not any(labels_of(t) and _is_limit(t) for t in conjuncts(node.guard)):
        points = np.asarray(extents(cells).prod(axis=1, dtype=np.int64))
        return points, points * flops_at_point(node)
    known: dict[bytes, tuple[int, int]] = {}
    work = [memoized(known, c.tobytes(), partial(_cell_work, node, labels, c)) for c in cells]
    points, flops = np.array(work, np.int64).reshape(-1, 2).T
    return points, flops


def in_cell(node: EinSum, labels: Sequence[str], cell: np.ndarray) -> EinSum:
    """The node over a cell, with numbers in the place of labels of one value.

    Args:
        node: The operation over the whole domain.
        labels: The free labels.
        cell: int64 (labels, 2).
    """
    bounds = dict(zip(labels, cell.tolist(), strict=True))
    axes = []
    for a in node.axes:
        lo, hi = bounds.get(a.label, (a.lo, a.hi))
        axes.append(replace(a, lo=lo, hi=hi))
    within = replace(node, axes=tuple(axes))
    return folded(within, bounds_of(within))


def _cell_work(node: EinSum, labels: Sequence[str], cell: np.ndarray) -> tuple[int, int]:
    node = in_cell(node, labels, cell)
    points = points_within(node)
    return points, points * flops_at_point(node)


def points_within(node: EinSum) -> int:
    """The points of the free domain that meet the limits in the guard.

    A limit is a comparison of two affine expressions of labels. Other conditions are ignored, so
    the number is exact for masks by keys, and an upper bound otherwise.
    """
    axes = {a.label: a for a in node.axes if a.define is None}
    total = prod(a.extent for a in axes.values())
    guard = simplify(node.guard, bounds_of(node)) if total else FALSE
    if guard == FALSE:
        return 0
    limits = _limits(guard, node)
    labels = sorted({x for f in limits for x in f.steps}, key=lambda x: axes[x].extent)
    if not labels or prod(axes[x].extent for x in labels[:-1]) > MOST_ROWS:
        return total
    reach = max(max(abs(axes[x].lo), abs(axes[x].hi)) for x in labels)
    sizes = (abs(f.offset) + reach * sum(map(abs, f.steps.values())) for f in limits)
    if reach + max(sizes) > MOST_NUMBER:
        return total
    rest = prod(a.extent for x, a in axes.items() if x not in labels)
    return rest * _within(limits, labels, axes)


def _limits(guard: Expr, node: EinSum) -> list[Affine]:
    """The affine expressions that are at least 0 where a point exists."""
    known = free_labels_as_affine(node) | affine_labels(node)
    limits: list[Affine] = []
    for term in conjuncts(guard):
        if not isinstance(term, Call) or not _is_limit(term):
            continue
        first, second = (affine(a, known) for a in term.args)
        if first is None or second is None:
            continue
        rest = second.plus(first.scaled(-1))
        limits.append(rest.plus(Affine({}, -(term.fn == "lt"))))
        if term.fn == "eq":
            limits.append(rest.scaled(-1))
    return limits


def _is_limit(term: Expr) -> bool:
    return isinstance(term, Call) and term.fn in ("le", "lt", "eq")


def _within(limits: Sequence[Affine], labels: Sequence[str], axes: Mapping[str, Axis]) -> int:
    """The points over some labels that meet all limits: the ranges of the last label, summed."""
    *outer, inner = labels
    grids = np.ix_(*(np.arange(axes[x].lo, axes[x].hi) for x in outer))
    lo = np.full(tuple(axes[x].extent for x in outer), axes[inner].lo, np.int64)
    hi = np.full_like(lo, axes[inner].hi)
    for limit in limits:
        rest = np.full_like(lo, limit.offset)
        for x, grid in zip(outer, grids, strict=True):
            rest += limit.steps.get(x, 0) * grid
        step = limit.steps.get(inner, 0)
        if step > 0:  # step · inner ≥ -rest
            np.maximum(lo, -(rest // step), out=lo)
        elif step < 0:
            np.minimum(hi, rest // -step + 1, out=hi)
        else:
            np.copyto(hi, lo, where=rest < 0)
    return int(np.maximum(hi - lo, 0).sum())
