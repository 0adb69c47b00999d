"""Which labels are rows, columns, terms and batches of a node over two sides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from einsql.ir.einsum.graph import EinSum, operands_of
from einsql.ir.einsum.graph import exprs as expressions_of
from einsql.kernels.vectorized.views import reading

LEAST = 8
"""Rows and columns of a result from which packing pays."""
AREA = 1024
"""Elements of a result from which it does."""
TERMS = 2
"""Terms of an element from which it does."""
ROWS, COLUMNS, BOTH = "a", "b", "c"

Cube = np.ndarray
"""An operand's field as `[batch, row or column, term]`, with extent 1 where it has none.

On BOTH sides it is `[batch, row, column]`.
"""


@dataclass(frozen=True, slots=True)
class Layout:
    """The labels of a node in four groups, and the side of each operand.

    Attributes:
        batch: Keys that both sides have.
        rows: Keys of the side whose elements are spread over a register.
        columns: Keys of the side whose neighbours share a register.
        terms: Labels that are reduced.
        side: ROWS or COLUMNS by operand number, or BOTH for one without terms that has
            keys of either.
        extent: Of every label.
    """

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    terms: tuple[str, ...]
    side: dict[int, str]
    extent: dict[str, int]

    def size(self, group: Sequence[str]) -> int:
        """How many values the labels of a group take together."""
        return prod(self.extent[x] for x in group)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Batches, rows, columns and terms."""
        b, m, n, k = map(self.size, (self.batch, self.rows, self.columns, self.terms))
        return b, m, n, k

    def groups(self, side: str) -> tuple[tuple[str, ...], ...]:
        """The groups that one side has, in the order in which it is read."""
        if side == BOTH:
            return self.batch, self.rows, self.columns
        return self.batch, self.rows if side == ROWS else self.columns, self.terms


def find_layout(node: EinSum, slowest: str | None) -> Layout | None:
    """The layout of a node, or None where it is not two sides joined.

    Args:
        node: A node that reduces.
        slowest: The reduced label that is to vary slowest among them, if it matters.
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
    else:  # in the memory order of the operand with most of them
        most = max((node.operands[n].labels for n in used), key=lambda x: len(set(x) & set(terms)))
        lying = [x for x in dict.fromkeys(most) if x in terms]
        terms = (*(x for x in terms if x not in lying), *lying)
    layout = Layout(batch=batch, rows=rows, columns=columns, terms=terms, side=side, extent=extent)
    _, m, n, k = layout.sizes
    if min(m, n) < LEAST or m * n < AREA or k < TERMS:
        return None
    # The last key runs along registers, so that rows of the result are written, unless few.
    if (node.keys[-1] in rows and (m >= 64 or m > n)) or (m >= 4 * n and n < 64):
        other = {ROWS: COLUMNS, COLUMNS: ROWS, BOTH: BOTH}
        turned = {o: other[s] for o, s in side.items()}
        layout = Layout(
            batch=batch, rows=columns, columns=rows, terms=terms, side=turned, extent=extent
        )
    return layout


def cube_of(node: EinSum, layout: Layout, operand: int) -> Callable[[np.ndarray], Cube]:
    """How an operand's field becomes a cube; a copy only where strides force one."""
    read = node.operands[operand]
    groups = layout.groups(layout.side[operand])
    own = [[x for x in g if x in read.labels] for g in groups]
    view = reading(node, read, [x for h in own for x in h])
    # A group of which an operand has some labels is repeated over the others.
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
