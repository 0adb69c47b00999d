"""The layout of strided operands as stacks of matrices, `[batch, M, K]` and `[batch, K, N]`.

There are four groups of labels: batch (in both operands and the result), M and N (in one operand
and the result) and K (in both operands, summed). Labels of a group that are adjacent in memory
are merged. M has the left operand's order and N the right operand's. The result adopts both,
because its strides are free. An operand is copied only if it has no order in which M and K are
each a single run, one of them with stride 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from einsql.core.records import dataclass

Strides = Mapping[str, int]
"""The stride of each label of an array, in elements."""

BLOCK = 64
"""Rows from which a separate product of a matrix is faster than a copy that merges more."""


@dataclass(frozen=True, slots=True)
class Labels:
    """The labels of a product.

    Attributes:
        left, right: The labels of each operand, one per axis.
        keys: The labels of the result, in order.
        extent: The extent of each label.
    """

    left: tuple[str, ...]
    right: tuple[str, ...]
    keys: tuple[str, ...]
    extent: Mapping[str, int]

    def size(self, labels: Iterable[str]) -> int:
        """The product of the extents of labels."""
        return prod(self.extent[x] for x in labels)


@dataclass(frozen=True, slots=True)
class Side:
    """The layout of an operand.

    Attributes:
        batch, rows, columns: The labels that are merged into each axis of a stack of matrices.
        copied: Whether the operand has to be copied.
        flipped: Whether `columns` are the rows of the matrix in the product.
    """

    batch: tuple[str, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    copied: bool
    flipped: bool

    @property
    def labels(self) -> tuple[str, ...]:
        """The order of the operand's labels in the stack."""
        return (*self.batch, *self.rows, *self.columns)


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a product.

    Attributes:
        batch: The labels of matrices that are multiplied one by one. For a label of only one
            operand, the other operand's matrix is shared by all values.
        m, n, k: The labels of the rows, the columns and the sum, in merging order.
        left, right: The layouts of the operands.
        result: The order of the labels in the result's memory.
    """

    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    left: Side
    right: Side
    result: tuple[str, ...]

    def converting(self, left: bool, right: bool) -> Layout:
        """The layout for operands that must be converted: they are copied, of any strides.

        Args:
            left: Whether the left operand has the type of the product, and is aligned.
            right: The same of the right operand.
        """
        first = self.left if left else replace(self.left, copied=True)
        second = self.right if right else replace(self.right, copied=True)
        return replace(self, left=first, right=second)


def lay_out(labels: Labels, left: Strides, right: Strides) -> Layout:
    """Chooses the layout that copies the fewest elements.

    Args:
        labels: The product's labels; a summed label is in both operands.
        left: The strides of the left operand, in elements.
        right: The strides of the right operand. 0 replaces a stride that is no multiple of an
            element, and always causes a copy.
    """
    layouts = [_laid_out(labels, left, right, k) for k in _orders_of_sum(labels, left, right)]
    return min(layouts, key=lambda x: _copied(labels, x))


def _copied(labels: Labels, layout: Layout) -> int:
    sides = (labels.left, layout.left), (labels.right, layout.right)
    return sum(labels.size(labels_of) for labels_of, side in sides if side.copied)


def _laid_out(labels: Labels, left: Strides, right: Strides, k: tuple[str, ...]) -> Layout:
    """The layout for an order of the summed labels."""
    extent = labels.extent
    in_left, in_right, keys = set(labels.left), set(labels.right), labels.keys
    batch = tuple(x for x in keys if x in in_left and x in in_right)
    m = _sorted((x for x in keys if x in in_left and x not in in_right), left, extent)
    n = _sorted((x for x in keys if x in in_right and x not in in_left), right, extent)
    over: tuple[str, ...] = ()
    over_m, m = _split(m, k, left, extent)
    over_n, n = _split(n, k, right, extent)
    over = (*over_m, *over_n)
    m = _in_order_of(keys, m) if not _is_run(m, left, extent) else m
    n = _in_order_of(keys, n) if not _is_run(n, right, extent) else n
    stack_left = tuple(x for x in (*batch, *over) if x in in_left)
    stack_right = tuple(x for x in (*batch, *over) if x in in_right)
    natural = (*batch, *over, *m, *n)
    steps = _contiguous(keys, extent)
    fits = _is_run(m, steps, extent) and _is_run(n, steps, extent)
    fits = fits and _is_matrix(m, n, steps, extent)
    return Layout(
        batch=(*batch, *over),
        m=m,
        n=n,
        k=k,
        left=_side(stack_left, m, k, left, extent),
        right=_side(stack_right, k, n, right, extent),
        result=keys if fits else natural,
    )


def _orders_of_sum(labels: Labels, left: Strides, right: Strides) -> list[tuple[str, ...]]:
    """The orders of K in the operands, the larger operand's first."""
    in_right, keys = set(labels.right), set(labels.keys)
    shared = [x for x in labels.left if x in in_right and x not in keys]
    orders = [_sorted(shared, left, labels.extent), _sorted(shared, right, labels.extent)]
    if labels.size(labels.right) > labels.size(labels.left):
        orders.reverse()
    return list(dict.fromkeys(orders))


def _split(
    group: tuple[str, ...], k: tuple[str, ...], strides: Strides, extent: Mapping[str, int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The labels of M or N that are multiplied one by one, and the labels that are merged.

    If they are not a single run, the outer labels are not merged as long as the inner labels
    form a matrix of at least `BLOCK` rows by `BLOCK` columns.
    """
    if _is_run(group, strides, extent) or not _is_run(k, strides, extent):
        return (), group
    size_k = prod(extent[x] for x in k)
    for cut in range(1, len(group)):
        rest = group[cut:]
        if _is_run(rest, strides, extent) and _is_matrix(rest, k, strides, extent):
            big = min(prod(extent[x] for x in rest), size_k) >= BLOCK
            return (group[:cut], rest) if big else ((), group)
    return (), group


def _side(
    batch: tuple[str, ...],
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    strides: Strides,
    extent: Mapping[str, int],
) -> Side:
    runs = _is_run(rows, strides, extent) and _is_run(columns, strides, extent)
    inner = min((strides[x] for x in (*rows, *columns) if extent[x] > 1), default=0)
    if any(0 < strides[x] < inner for x in batch if extent[x] > 1):
        runs = False  # interleaved vectors: each single one reads all cache lines
    if runs and _is_matrix(rows, columns, strides, extent):
        return Side(batch=batch, rows=rows, columns=columns, copied=False, flipped=False)
    # A copy that keeps the innermost label of memory reads complete cache lines.
    if rows and columns and min(strides[x] for x in rows) < min(strides[x] for x in columns):
        return Side(batch=batch, rows=columns, columns=rows, copied=True, flipped=True)
    return Side(batch=batch, rows=rows, columns=columns, copied=True, flipped=False)


def _sorted(group: Iterable[str], strides: Strides, extent: Mapping[str, int]) -> tuple[str, ...]:
    """Labels from the slowest to the fastest in memory."""
    return tuple(sorted(group, key=lambda x: (extent[x] > 1, -strides[x])))


def _in_order_of(keys: Sequence[str], group: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(group, key=keys.index))


def _is_run(group: Sequence[str], strides: Strides, extent: Mapping[str, int]) -> bool:
    """True if the labels merge into one label with a constant stride."""
    long = [x for x in group if extent[x] > 1]
    return all(strides[x] == strides[y] * extent[y] for x, y in pairwise(long))


def _is_matrix(
    rows: Sequence[str], columns: Sequence[str], strides: Strides, extent: Mapping[str, int]
) -> bool:
    """True if BLAS can read it in place: one run is contiguous, the other has a larger stride."""
    down, height = _step(rows, strides, extent)
    across, width = _step(columns, strides, extent)
    if height == 1 or width == 1:
        return max(down if width == 1 else 0, across if height == 1 else 0) > 0
    return (across == 1 and down >= width) or (down == 1 and across >= height)


def _step(group: Sequence[str], strides: Strides, extent: Mapping[str, int]) -> tuple[int, int]:
    """The stride and extent of a run; the stride of a single element is 1."""
    long = [x for x in group if extent[x] > 1]
    return (strides[long[-1]] if long else 1), prod(extent[x] for x in long)


def _contiguous(keys: Sequence[str], extent: Mapping[str, int]) -> dict[str, int]:
    """The strides of an array in C order, in elements."""
    strides: dict[str, int] = {}
    step = 1
    for x in reversed(keys):
        strides[x] = step
        step *= extent[x]
    return strides
