"""The roles of labels in a node over two sides: rows, columns, terms and batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import EinSum, operands_of
from einsql.ir.einsum.graph import exprs as expressions_of
from einsql.kernels.vectorized.views import reading

LEAST = 8
"""Rows and columns of a result from which packing pays."""
AREA = 1024
"""Elements of a result from which packing pays."""
TERMS = 2
"""Terms of an element from which packing pays."""
ROWS, COLUMNS, BOTH = "a", "b", "c"
OLD = "old"
"""The side of running values, which are in registers."""

Cube = np.ndarray
"""An operand's field as `[batch, row or column, term]`, with extent 1 for missing groups.

For side BOTH it is `[batch, row, column]`.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The labels of a node in four groups, and each operand's side.

    Attributes:
        batch: The keys of both sides.
        rows: The keys of the side with elements that are broadcast to a register.
        columns: The keys of the side with neighbours that share a register.
        terms: The reduced labels.
        side: The side by operand number: ROWS, COLUMNS, or BOTH for an operand without terms
            that has keys of both sides.
        extent: The extent of every label.
    """

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    terms: tuple[str, ...]
    side: dict[int, str]
    extent: dict[str, int]

    def size(self, group: Sequence[str]) -> int:
        """The product of the extents of a group's labels."""
        return prod(self.extent[x] for x in group)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """The numbers of batches, rows, columns and terms."""
        b, m, n, k = map(self.size, (self.batch, self.rows, self.columns, self.terms))
        return b, m, n, k

    def groups(self, side: str) -> tuple[tuple[str, ...], ...]:
        """The groups of one side, in the order of a cube's axes."""
        if side == BOTH:
            return self.batch, self.rows, self.columns
        return self.batch, self.rows if side == ROWS else self.columns, self.terms


def find_layout(node: EinSum, slowest: str | None) -> Layout | None:
    """The layout of a node; None if it does not join two sides.

    Args:
        node: A node with a reduction.
        slowest: The reduced label that has to vary slowest, or None.
    """
    used = sorted({n for e in expressions_of(node) for n in operands_of(e)})
    if not used or any(a.define is not None or a.extent == 0 for a in node.axes):
        return None
    keys = set(node.keys)
    reads = {n: keys.intersection(node.operands[n].labels) for n in used}
    constant = {n: keys.issuperset(node.operands[n].labels) for n in used}
    used.sort(key=lambda n: (constant[n], -len(reads[n]), n))
    left, right = reads[used[0]], None
    side: dict[int, str] = {}
    for n in used:
        if reads[n] <= left:
            side[n] = ROWS
        elif right is None or reads[n] <= right:
            right = reads[n] if right is None else right
            side[n] = COLUMNS
        elif constant[n]:
            side[n] = BOTH
        else:
            return None
    if right is None or left | right != keys:
        return None
    extent = {a.label: a.extent for a in node.axes}
    rows = tuple(k for k in node.keys if k not in right)
    columns = tuple(k for k in node.keys if k not in left)
    batch = tuple(k for k in node.keys if k in left and k in right)
    terms = tuple(a.label for a in node.axes if a.label not in keys)
    if slowest is not None:
        terms = (slowest, *(x for x in terms if x != slowest))
    else:  # in the memory order of the operand with most of these labels
        most = max((node.operands[n].labels for n in used), key=lambda x: len(set(x) & set(terms)))
        lying = [x for x in dict.fromkeys(most) if x in terms]
        terms = (*(x for x in terms if x not in lying), *lying)
    layout = Layout(batch=batch, rows=rows, columns=columns, terms=terms, side=side, extent=extent)
    _, m, n, k = layout.sizes
    if min(m, n) < LEAST or m * n < AREA or k < TERMS:
        return None
    # The last key varies along registers, so that result rows are contiguous, unless short.
    if (node.keys[-1] in rows and (m >= 64 or m > n)) or (m >= 4 * n and n < 64):
        other = {ROWS: COLUMNS, COLUMNS: ROWS, BOTH: BOTH}
        turned = {o: other[s] for o, s in side.items()}
        layout = Layout(
            batch=batch, rows=columns, columns=rows, terms=terms, side=turned, extent=extent
        )
    return layout


def cube_of(node: EinSum, layout: Layout, operand: int) -> Callable[[np.ndarray], Cube]:
    """Creates a function from an operand's field to a cube; it copies only irregular strides."""
    read = node.operands[operand]
    groups = layout.groups(layout.side[operand])
    own = [[x for x in g if x in read.labels] for g in groups]
    view = reading(node, read, [x for h in own for x in h])
    # A group is broadcast over the labels that the operand lacks.
    index = tuple(
        slice(None) if x in h else None
        for g, h in zip(groups, own, strict=True)
        for x in (g if h else ())
    )
    shape = tuple(
        layout.extent[x] for g, h in zip(groups, own, strict=True) for x in (g if h else ())
    )
    sizes = tuple(layout.size(h and g) for g, h in zip(groups, own, strict=True))

    def cube(values: np.ndarray) -> Cube:
        values = values if view is None else view(values)
        return np.broadcast_to(values[index], shape).reshape(sizes)

    return cube


def label_cube(node: EinSum, layout: Layout, label: str, side: str) -> Cube:
    """The values of a label as a cube of one side."""
    groups = layout.groups(side)
    axis = node.axis(label)
    parts = []
    for g in groups:
        if label not in g:
            parts.append(np.zeros(1, np.int64))
            continue
        after = layout.size(g[g.index(label) + 1 :])
        before = layout.size(g[: g.index(label)])
        parts.append(np.tile(np.repeat(np.arange(axis.lo, axis.hi), after), before))
    return np.asarray(parts[0][:, None, None] + parts[1][:, None] + parts[2])
