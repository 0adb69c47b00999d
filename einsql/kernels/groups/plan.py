"""The plan of a group: its stages, its buffers, and the size of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from math import prod

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import EinSum, exprs
from einsql.ir.einsum.partial_states import merges
from einsql.ir.functions.python_functions import shown_name
from einsql.kernels.groups.classes import Classes, classify
from einsql.kernels.groups.copies import with_copies
from einsql.kernels.groups.members import Member, is_product, members
from einsql.kernels.groups.orders import nearest, orders
from einsql.kernels.groups.weights import (
    Weights,
    deferred,
    empty_rows_fit,
    masks_fit,
    taken_in_parts,
)
from einsql.kernels.loops.loop_nest import Nest, plan_nest, weight
from einsql.kernels.runtime import thread_pool
from einsql.kernels.scalars import opaque_functions, values_of

IN_CACHE = 2**19
"""Greatest bytes of a block's values, so that they stay in the L2 cache."""
IN_FIRST_CACHE = 2**14
"""Bytes of a strip of rows in consecutive loops, so that it stays in the L1 cache."""
LARGEST = 2**24
"""Greatest bytes of a block and the right sides of its products per thread."""
ROWS = (24, 192)
"""Least and greatest number of rows of a block of a product."""
PART = 2**10
"""Bytes of a part of a row."""
PARTS, LONGEST = 768, 768 * 2**9
"""Greatest number of parts of a row, and of its values. Up to 512 values of a part are added one
after another; then their sum is added and may be rescaled. This bounds the roundings by 2,048."""
BLOCKS, FEW_ROWS = 32, 64
"""Least number of blocks of a group without products, so that all threads have work, and the
number of rows below which a block is not cut for it.

LogSumExp of 2500 rows of 2000 was one block, which ran on one thread (`benchmarks.spellings`).
"""
LEAST_ROWS = 48
"""Rows below which a block of complete rows reads the right sides too often."""
ADJACENT = 256
"""Least number of rows of a block across which neighbours in memory lie.

Softmax by column of 8,000,000 numbers took, against node by node, 0.9 of the time with 896
columns, 1.0 with 352, 1.4 with 112 and 2.7 with 13.
"""
PAD = 16
"""Padding elements after each row, so that rows do not map to the same cache lines."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """The buffer of a node's values in a block.

    Attributes:
        steps: The stride of each key in elements.
        row: The stride of the label that is cut into blocks.
        whole: True if it contains all rows of a block, False for the rows of a strip.
        size: The number of elements.
    """

    steps: tuple[int, ...]
    row: int
    whole: bool
    size: int


@dataclass(frozen=True, slots=True)
class Parts:
    """The partition of rows into parts.

    Attributes:
        weights: The weights carried from part to part, with the class that is cut.
        size: The number of values of that class in a part.
        folds: The numbers of the nodes that reduce over that class.
        whole: Whether the right sides of complete rows stay packed, instead of those of a part.
    """

    weights: Weights
    size: int
    folds: frozenset[int]
    whole: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Nodes that run together.

    Attributes:
        nodes: The nodes that the group computes, producers first.
        origins: For each of them the node of the graph that has its values; None for a copy.
        members: The member of each node, at the same index.
        classes: The classes of the labels; the last class of the rows is cut into blocks.
        stages: The numbers of the nodes of each stage: a product, or loops that run strip by
            strip.
        inner: The number of stages that process a part of the rows; all for complete rows.
        rows: The number of rows of a block.
        strips: The number of rows of a strip in each stage.
        nests: The loops of each node; None for a product.
        buffers: The buffer of each node; None if the node writes to a result of the group.
        parts: The partition of rows into parts; None for complete rows.
    """

    nodes: tuple[EinSum, ...]
    origins: tuple[EinSum | None, ...]
    members: tuple[Member, ...]
    classes: Classes
    stages: tuple[tuple[int, ...], ...]
    inner: int
    rows: int
    strips: tuple[int, ...]
    nests: tuple[Nest | None, ...]
    buffers: tuple[Buffer | None, ...]
    parts: Parts | None

    @property
    def block(self) -> int:
        """The class that is cut into blocks."""
        return self.classes.rows[-1]

    def extent(self, c: int) -> int:
        """The number of values of a class."""
        lo, hi = self.classes.bounds[c]
        return hi - lo

    def held(self, c: int) -> int:
        """The greatest number of values of a class in a packed right side."""
        parts = self.parts
        if parts is None or parts.whole or c != parts.weights.along:
            return self.extent(c)
        return min(self.extent(c), parts.size)


NARROW = "a block reads too few adjacent values"
"""The reason why rows that are far apart in memory do not run together."""


def make_plan(nodes: Sequence[EinSum], visible: Sequence[bool]) -> Plan | str:
    """Plans a group of nodes.

    Args:
        nodes: At least two, producers first; no other node is between them.
        visible: For each node, whether it is read outside the group.

    Returns:
        A reason if they cannot run together or fusing does not pay.
    """
    if any(a.extent == 0 for n in nodes for a in n.axes):
        return "there are no points"
    if not all(map(merges, nodes)):
        return "a reduction needs all values of a group"
    functions = opaque_functions(*nodes)
    if functions:
        return f"{shown_name(functions[0])} is a Python function"
    origins: Sequence[EinSum | None] = nodes
    classes = classify(nodes)
    if classes is None:
        computed = with_copies(nodes)
        shown = {id(n) for n, seen in zip(nodes, visible, strict=True) if seen}
        nodes, origins = [n for n, _ in computed], [origin for _, origin in computed]
        visible = [id(origin) in shown for origin in origins]
        classes = classify(nodes)
    if classes is None:
        return "a result is read by other keys than it is written"
    extent = {c: hi - lo for c, (lo, hi) in classes.bounds.items()}
    memory = () if any(map(is_product, nodes)) else nearest(nodes, classes)
    near = memory[0] if memory else None
    blocks = sorted(classes.cut, key=lambda c: (-extent[c], -classes.cut.index(c)))
    blocks.sort(key=lambda c: c != near)
    for block in blocks:
        for ordered in _rows(classes, block):
            for order in orders(ordered, near):
                group = members(nodes, ordered, visible, order)
                if group is not None and _limits_fit(group):
                    group = deferred(group, ordered.rows, block)
                    fits, _ = masks_fit(group)
                    if not fits:
                        return "their masks differ"
                    if not empty_rows_fit(nodes, group, ordered.bounds):
                        continue
                    plan = _sized(nodes, group, ordered)
                    if plan is None:
                        return "a block of rows exceeds the cache"
                    if _is_narrow(plan, memory):
                        return NARROW
                    return replace(plan, origins=tuple(origins))
    return "no order of keys suits all of them" if blocks else "no key is common to all of them"


def _is_narrow(plan: Plan, memory: Sequence[int]) -> bool:
    """True if the operands are read across rows in pieces that are not worth it.

    A block then reads short pieces of memory far apart. Single nodes read along the memory, and
    read the same operand again, which costs less unless large values are passed in between.

    Args:
        plan: A plan.
        memory: The classes of the largest operand; see `nearest`.
    """
    rows = plan.classes.rows
    if not memory or memory[0] != plan.block or all(c in rows for c in memory):
        return False
    passes = any(not m.visible and not set(m.wide(m.node.keys)) <= set(rows) for m in plan.members)
    if not passes or plan.rows < plan.extent(plan.block):
        return not passes or plan.rows < ADJACENT
    inner = takewhile(lambda c: c not in rows, memory[1:])  # adjacent to complete rows
    return plan.rows * prod(map(plan.extent, inner)) < ADJACENT


def _rows(classes: Classes, block: int) -> Iterator[Classes]:
    """The candidate classes of rows, with the class that is cut into blocks last.

    The first candidate has all other classes of rows. The next ones move one of these inside the
    rows, because a product shares both of its keys with an element-wise reader.
    """
    others = [c for c in classes.rows if c != block]
    for left_out in (None, *(c for c in reversed(classes.cut) if c != block)):
        yield replace(classes, rows=(*(c for c in others if c != left_out), block))


def _limits_fit(group: Iterable[Member]) -> bool:
    """True if the limits of every node select a contiguous part of each row."""
    for m in group:
        inner = {x.inner for x in m.limits}
        kept = [k for k in m.node.keys if m.own[k] in inner]
        if len(inner) > 1 or (kept and kept != [m.last]):
            return False
        loops = [a for a in m.node.axes if a.define is not None]
        if inner and (loops or (m.product is None and len(m.node.keys) > 1 and not _flat(m))):
            return False
    return True


def _flat(m: Member) -> bool:
    """True if the limited label is the only inner label of a loop's result."""
    inner = {x.inner for x in m.limits}
    return m.own[m.last] in inner or all(m.own[k] not in inner for k in m.node.keys)


def _sized(nodes: Sequence[EinSum], group: list[Member], classes: Classes) -> Plan | None:
    """The plan with complete rows, or with parts of rows that exceed the cache."""
    by_rows = _laid_out(nodes, group, classes, None)
    lo, hi = classes.bounds[classes.rows[-1]]
    enough = min(LEAST_ROWS, hi - lo)
    products = any(m.product is not None for m in group)
    if not products or hi - lo < ROWS[0] or (by_rows is not None and by_rows.rows >= enough):
        return by_rows
    taken = taken_in_parts(group, classes.rows)
    if taken is None:
        return by_rows
    weights, folds = taken
    first, last = classes.bounds[weights.along]
    if last - first > LONGEST:
        return by_rows
    size = PART // group[weights.made].node.outputs[0].dtype.numpy.itemsize
    size = max(1, size // (2 * PAD), -(-(last - first) // (PARTS * 2 * PAD))) * 2 * PAD  # panels
    for kept in (True, False):
        cut = _laid_out(nodes, group, classes, Parts(weights, size, folds, kept))
        if cut is not None:
            return cut
    return by_rows


def _laid_out(
    nodes: Sequence[EinSum], group: list[Member], classes: Classes, parts: Parts | None
) -> Plan | None:
    in_parts = [_part(m, parts) for m in group]
    stages, inner = _stages(group, parts)
    stage_of = {at: s for s, stage in enumerate(stages) for at in stage}
    crossing = _crossing(group, stage_of, parts)
    widths = [_row_bytes(m, classes.rows) for m in in_parts]
    products = any(m.product is not None for m in group)
    extent = classes.bounds[classes.rows[-1]][1] - classes.bounds[classes.rows[-1]][0]
    row = sum(w for w, c in zip(widths, crossing, strict=True) if c) if products else sum(widths)
    rows = max(1, IN_CACHE // max(1, row))
    if products:
        least, most = ROWS
        rows = max(least, min(most, rows // 12 * 12))
    adjacent = not products and any(_is_across(m, classes.rows) for m in in_parts)
    if adjacent and rows > PAD:  # complete cache lines
        rows = rows // PAD * PAD
    if not products and not adjacent:
        rows = min(rows, max(FEW_ROWS, _rows_of(classes) // BLOCKS))
    rows = min(rows, extent)
    right = group if parts is None or parts.whole else in_parts
    if rows * row + sum(map(_right_bytes, right)) > LARGEST:
        return None
    blocks = _rows_of(classes) // rows
    if row > IN_CACHE and blocks < thread_pool.threads():  # single nodes cut long rows better
        return None
    strips = tuple(
        1
        if parts is None and any(group[at].limits for at in stage)
        else rows  # loops along neighbours of different rows
        if adjacent
        else max(1, min(rows, IN_FIRST_CACHE // _stage_bytes(group, stage, classes.rows)))
        for stage in stages
    )
    nests: list[Nest | None] = []
    buffers: list[Buffer | None] = []
    for at, m in enumerate(in_parts):
        strip = strips[stage_of[at]]
        nest = None if m.product is not None else plan_nest(_narrowed(m, classes.rows, strip))
        if nest is not None and nest.keeps_state:
            return None
        nests.append(nest)
        held_rows = rows if crossing[at] else strip
        own = m.product is None and m.visible
        buffers.append(None if own else _buffer(m, classes.rows, held_rows, crossing[at]))
    return Plan(
        nodes=tuple(nodes),
        origins=tuple(nodes),
        members=tuple(group),
        classes=classes,
        stages=stages,
        inner=inner,
        rows=rows,
        strips=strips,
        nests=tuple(nests),
        buffers=tuple(buffers),
        parts=parts,
    )


def _rows_of(classes: Classes) -> int:
    """The number of rows of all blocks."""
    return prod(hi - lo for lo, hi in (classes.bounds[c] for c in classes.rows))


def _is_across(m: Member, rows: Sequence[int]) -> bool:
    """True if the values of neighbouring rows are adjacent in a result with inner keys."""
    return m.own[m.last] == rows[-1] and not set(m.wide(m.node.keys)) <= set(rows)


def _part(m: Member, parts: Parts | None) -> Member:
    """A member restricted to one part of a row."""
    if parts is None:
        return m
    axes = tuple(
        replace(a, hi=min(a.hi, a.lo + parts.size)) if m.own[a.label] == parts.weights.along else a
        for a in m.node.axes
    )
    return replace(m, node=replace(m.node, axes=axes))


def _crossing(
    group: Sequence[Member], stage_of: Mapping[int, int], parts: Parts | None
) -> list[bool]:
    """For each member, whether all rows of its block are buffered, instead of one strip."""
    number = {id(m.origin): at for at, m in enumerate(group)}
    crossing = [m.product is not None for m in group]
    for at, m in enumerate(group):
        for o in m.node.operands:
            source = number.get(id(o.source))
            if source is not None and stage_of[source] != stage_of[at]:
                crossing[source] = True
    for at in parts.folds if parts is not None else ():
        crossing[at] = True
    _, looked_at = masks_fit(group)
    if looked_at is not None:
        crossing[looked_at] = True
    return crossing


def _stages(
    group: Sequence[Member], parts: Parts | None
) -> tuple[tuple[tuple[int, ...], ...], int]:
    """The stages, with those over parts of the rows first, and the number of these."""

    def is_part(at: int) -> bool:
        return parts is None or parts.weights.along in group[at].own.values()

    stages: list[list[int]] = []
    for wanted in (True, False):
        for at, m in enumerate(group):
            if is_part(at) is not wanted:
                continue
            before = stages[-1][0] if stages else at
            joins = m.product is None and group[before].product is None
            if stages and joins and is_part(before) is wanted:
                stages[-1].append(at)
            else:
                stages.append([at])
    return tuple(map(tuple, stages)), sum(is_part(stage[0]) for stage in stages)


def _stage_bytes(group: Sequence[Member], stage: Sequence[int], rows: Sequence[int]) -> int:
    """Bytes per row of the results and the outside operands of consecutive loops."""
    inside = {id(m.origin) for m in group}
    read: dict[tuple[object, ...], int] = {}
    for m in (group[at] for at in stage):
        for value in values_of(*exprs(m.node)):
            o = m.node.operands[value.operand]
            if id(o.source) not in inside and rows[-1] in (classes := [m.own[x] for x in o.labels]):
                inner = (m.node.axis(x).extent for x in o.labels if m.own[x] not in rows)
                read[id(o.source), value.field, *classes] = prod(inner) * value.dtype.numpy.itemsize
    return sum(_row_bytes(group[at], rows) for at in stage) + sum(read.values())


def _row_bytes(m: Member, rows: Sequence[int]) -> int:
    """Bytes per row of a node's result, over all fields."""
    inner = prod(m.node.axis(k).extent for k in m.node.keys if m.own[k] not in rows)
    return (inner + PAD) * sum(o.dtype.numpy.itemsize for o in m.node.outputs)


def _right_bytes(m: Member) -> int:
    if m.product is None:
        return 0
    extents = (m.node.axis(x).extent for x in (m.product.summed, m.product.wide))
    return prod(extents) * m.node.outputs[0].dtype.numpy.itemsize


def _narrowed(m: Member, rows: Sequence[int], strip: int) -> EinSum:
    """The node restricted to one strip, to choose the order of its loops."""

    def extent(label: str) -> int:
        c = m.own[label]
        all_of = m.node.axis(label).extent
        return all_of if c not in rows else min(strip, all_of) if c == rows[-1] else 1

    axes = (
        a if a.define is not None else replace(a, hi=a.lo + extent(a.label)) for a in m.node.axes
    )
    return replace(m.node, axes=tuple(axes))


def _buffer(m: Member, rows: Sequence[int], blocks: int, all_rows: bool) -> Buffer:
    inner = [k for k in m.node.keys if m.own[k] not in rows[:-1]]
    steps = dict.fromkeys(m.node.keys, 0)
    size = 1
    for k in reversed(inner):
        if m.own[k] == rows[-1]:
            if k == inner[0] and size > 1:
                # Complete tiles, and strides that do not map rows to the same cache lines.
                size = -(-size // (2 * PAD)) * 2 * PAD + PAD
            steps[k] = size
            size *= blocks
        else:
            steps[k] = size
            size *= m.node.axis(k).extent
    row = next(steps[k] for k in m.node.keys if m.own[k] == rows[-1])
    return Buffer(tuple(steps[k] for k in m.node.keys), row, all_rows, size + 2 * PAD)


def work(plan: Plan) -> int:
    """Approximate work of a group, in cheap operations."""
    return sum(
        m.node.points // 8 if m.product is not None else m.node.points * weight(m.node)
        for m in plan.members
    )
