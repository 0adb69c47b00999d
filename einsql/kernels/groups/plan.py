"""How nodes run together: their stages, their buffers, and the size of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from einsql.ir.einsum.graph import EinSum, exprs
from einsql.kernels.groups.classes import Classes, classify
from einsql.kernels.groups.members import Member, members
from einsql.kernels.groups.weights import Weights, deferred, masks_fit, taken_in_parts
from einsql.kernels.loops.loop_nest import Nest, plan_nest, weight
from einsql.kernels.runtime import thread_pool
from einsql.kernels.scalars import values_of

IN_CACHE = 2**19
"""Bytes that a block's values may take, so that they stay in the second cache."""
IN_FIRST_CACHE = 2**14
"""Bytes of the rows that consecutive loops take at a time."""
LARGEST = 2**24
"""Bytes that a block and the right sides of its products may take on each thread."""
ROWS = (24, 192)
"""Least and most rows of a block of a product."""
PART = 2**10
"""Bytes of a row that are taken at a time."""
PARTS, LONGEST = 768, 768 * 2**9
"""Parts of a row at most, and its values: up to 512 in a part are added one after another, then
their sum is, and may be rescaled. More than 2,048 roundings would be too many."""
LEAST_ROWS = 48
"""Rows below which a block of whole rows reads the right sides too often."""
PAD = 16
"""Elements behind each row, so that rows do not meet in the same lines of a cache."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Where a block keeps the values of a node.

    Attributes:
        steps: Elements from one value of each key to the next.
        row: The same of the label that is cut in blocks.
        whole: True if it holds all rows of a block, False for those of a strip.
        size: Elements.
    """

    steps: tuple[int, ...]
    row: int
    whole: bool
    size: int


@dataclass(frozen=True, slots=True)
class Parts:
    """How rows are taken part by part.

    Attributes:
        weights: The weights carried from part to part, with the class that is cut.
        size: Values of that class in a part.
        folds: Numbers of the nodes that run over that class.
        whole: Whether the right sides of whole rows are kept, not those of a part.
    """

    weights: Weights
    size: int
    folds: frozenset[int]
    whole: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Nodes that run together.

    Attributes:
        nodes: As they are in the graph, producers first.
        members: As they run, the result of each node in the same place.
        classes: Their labels; the last of its rows is the one that is cut in blocks.
        stages: Numbers of the nodes that run one after another: a product, or loops that
            take the block strip by strip.
        inner: How many of them take a part of the rows; all where rows are taken whole.
        rows: Rows of a block.
        strips: Rows of a strip in each stage.
        nests: The loops of each node; None for a product.
        buffers: For each node the buffer of its block; None if it writes to its result.
        parts: How rows are taken part by part; None where they are taken whole.
    """

    nodes: tuple[EinSum, ...]
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
        """The class that is cut in blocks."""
        return self.classes.rows[-1]

    def extent(self, c: int) -> int:
        """How many values a class has."""
        lo, hi = self.classes.bounds[c]
        return hi - lo

    def held(self, c: int) -> int:
        """How many of them a right side has at a time, at most."""
        parts = self.parts
        if parts is None or parts.whole or c != parts.weights.along:
            return self.extent(c)
        return min(self.extent(c), parts.size)


def make_plan(nodes: Sequence[EinSum], visible: Sequence[bool]) -> Plan | None:
    """How nodes run together, or None if they do not, or had better not.

    Args:
        nodes: At least two, producers first; no other node is between them.
        visible: For each whether something else reads it.
    """
    if any(a.extent == 0 for n in nodes for a in n.axes):
        return None
    classes = classify(nodes)
    if classes is None:
        return None
    extent = {c: hi - lo for c, (lo, hi) in classes.bounds.items()}
    for block in sorted(classes.cut, key=lambda c: (-extent[c], -classes.cut.index(c))):
        for ordered in _rows(classes, block):
            group = members(nodes, ordered, visible, block)
            if group is not None and _limits_fit(group):
                group = deferred(group, ordered.rows, block)
                fits, _ = masks_fit(group)
                return _sized(nodes, group, ordered) if fits else None
    return None


def _rows(classes: Classes, block: int) -> Iterator[Classes]:
    """The classes with one that is cut in blocks, the last of the rows.

    First with all other classes of rows, then with one of these inside the rows: a product whose
    result is read element by element shares both of its keys with its reader.
    """
    others = [c for c in classes.rows if c != block]
    for left_out in (None, *(c for c in reversed(classes.cut) if c != block)):
        yield replace(classes, rows=(*(c for c in others if c != left_out), block))


def _limits_fit(group: Iterable[Member]) -> bool:
    """True if nodes within limits use a contiguous part of each row."""
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
    """True if a loop's result has no label inside the row but the one with limits."""
    inner = {x.inner for x in m.limits}
    return m.own[m.last] in inner or all(m.own[k] not in inner for k in m.node.keys)


def _sized(nodes: Sequence[EinSum], group: list[Member], classes: Classes) -> Plan | None:
    """The plan with whole rows, or part by part where they are too long to stay in a cache."""
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
    rows = min(rows, extent)
    right = group if parts is None or parts.whole else in_parts
    if rows * row + sum(map(_right_bytes, right)) > LARGEST:
        return None
    blocks = prod(classes.bounds[c][1] - classes.bounds[c][0] for c in classes.rows) // rows
    if (
        row > IN_CACHE and blocks < thread_pool.threads()
    ):  # long rows are better cut, by single nodes
        return None
    strips = tuple(
        1
        if parts is None and any(group[at].limits for at in stage)
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


def _part(m: Member, parts: Parts | None) -> Member:
    """A member with the part of a row that it has at a time."""
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
    """For each member whether all rows of its block are kept, not those of a strip alone."""
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
    """The stages, those that take a part of the rows first, and how many these are."""

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
    """Bytes of a row of the results of consecutive loops, and of their operands from outside."""
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
    """Bytes that a row of a node's result takes, all fields together."""
    inner = prod(m.node.axis(k).extent for k in m.node.keys if m.own[k] not in rows)
    return (inner + PAD) * sum(o.dtype.numpy.itemsize for o in m.node.outputs)


def _right_bytes(m: Member) -> int:
    if m.product is None:
        return 0
    extents = (m.node.axis(x).extent for x in (m.product.summed, m.product.wide))
    return prod(extents) * m.node.outputs[0].dtype.numpy.itemsize


def _narrowed(m: Member, rows: Sequence[int], strip: int) -> EinSum:
    """The node at one strip, for the order of its loops."""

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
                # Rows of whole tiles, and such that they do not meet in a cache.
                size = -(-size // (2 * PAD)) * 2 * PAD + PAD
            steps[k] = size
            size *= blocks
        else:
            steps[k] = size
            size *= m.node.axis(k).extent
    row = next(steps[k] for k in m.node.keys if m.own[k] == rows[-1])
    return Buffer(tuple(steps[k] for k in m.node.keys), row, all_rows, size + 2 * PAD)


def work(plan: Plan) -> int:
    """Rough work of a group, in cheap operations."""
    return sum(
        m.node.points // 8 if m.product is not None else m.node.points * weight(m.node)
        for m in plan.members
    )
