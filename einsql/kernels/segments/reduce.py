"""Segment reductions: rows are reduced by a computed key.

If there are few results, loops add rows directly to their results. Otherwise rows are sorted
first, and loops run over the rows of each segment. Threads own segments, so that they never wait
and every sum has a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil

import numpy as np

from einsql.core.records import cached_property
from einsql.core.schema import DType, Field, Key, Schema
from einsql.errors import DataError
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Const,
    EinSum,
    Expr,
    Input,
    Label,
    Operand,
    Output,
    Value,
    call,
    conj,
    operands_of,
)
from einsql.ir.einsum.graph_rewriting import fresh, with_operands
from einsql.ir.functions import REDUCTIONS
from einsql.kernels.kernel import Arrays, Runner, Tick
from einsql.kernels.loops.codegen import accumulator
from einsql.kernels.loops.flatten_labels import flattened
from einsql.kernels.loops.generated import Loops
from einsql.kernels.loops.loop_cuts import Box
from einsql.kernels.loops.loop_nest import Mode, Nest
from einsql.kernels.runtime import compile_cache
from einsql.kernels.scalars import derived_axes, labels_read
from einsql.kernels.segments.rows import Rows, number, places, rows_of, size
from einsql.kernels.vectorized.reductions import merge
from einsql.kernels.vectorized.vector import compile_vector
from einsql.kernels.vectorized.views import is_presence

PIECE = 2**22
"""Values of one piece, a few milliseconds."""
MOST = 2**28
"""Greatest number of segments for a counting sort with one counter per segment."""
NEAR = 2**16
"""Greatest number of running values of an output that fit a cache."""
FILLED = 4
"""Greatest ratio of running values to rows if they exceed the cache."""

ORDER = """\
from einsql.kernels.runtime.compiled_functions import at, borrow, give_back


@njit("boolean(Array(int64, 1, 'C', readonly=True), int64, int64[::1], int64[::1])")
def kernel(segments, count, starts, order):
    '''Counts the rows of each segment and sorts rows by segment, in their order.

    Segments are numbered from 1; rows of segment 0 are left out. Returns whether rows were in
    order, and all in a segment; `order` is not written then.
    '''
    least = np.int64(0)
    ordered = True
    for e in range(segments.shape[0]):
        s = segments[e] - 1
        ordered &= least <= s
        least = s
        if np.uint64(s) < np.uint64(count):
            starts[np.uintp(s + 1)] += 1
        else:
            ordered = False
    for s in range(count):
        starts[s + 1] += starts[s]
    if ordered:
        return True
    room = borrow(8 * count)
    free = at(room, np.int64)
    for s in range(count):
        free[s] = starts[s]
    for e in range(segments.shape[0]):
        s = segments[e] - 1
        if np.uint64(s) < np.uint64(count):
            order[np.uintp(free[np.uintp(s)])] = e
            free[np.uintp(s)] += 1
    give_back(room)
    return False
"""
"""A stable counting sort."""


def compile_segments(node: EinSum) -> Runner | None:
    """Matches reductions over rows with a data-dependent key."""
    rows = rows_of(node)
    if rows is None or not any(a.label in node.keys for a in rows.derived):
        return None
    segments = tuple(k for k in node.keys if k not in rows.features)
    if size(node, segments) > MOST or not all(map(_is_covered, node.outputs)):
        return None
    return flattened(node, _compile)


def _is_covered(o: Output) -> bool:
    """True if partial results of a segment can be merged."""
    if o.reduction is None or REDUCTIONS[o.reduction].arity > 1 or REDUCTIONS[o.reduction].fields:
        return False
    return o.dtype.is_float or accumulator(o) is o.dtype


def _compile(node: EinSum) -> Runner:
    rows = rows_of(node)
    assert rows is not None
    segments = tuple(k for k in node.keys if k not in rows.features)
    order = [*segments, *rows.features]
    shape = [node.axis(x).extent if x in segments else 1 for x in order]
    turn = [order.index(k) for k in node.keys]
    by_row = [o for o in node.outputs if not (_is_count(o) or is_presence(o))]
    # Only the first of them is reduced: a count tells the presence.
    by_segment = sorted((o for o in node.outputs if o not in by_row), key=is_presence)
    ways = _Scattered if _scatters(node, rows) else _Sorted
    part = replace(node, outputs=tuple(by_row))
    reduction = ways(part, rows, segments, tuple(by_segment[:1]))

    def spread(o: Output, counts: np.ndarray) -> np.ndarray:
        """A count or the presence of each segment, broadcast over the features."""
        values = counts if _is_count(o) else counts > 0
        if is_presence(o) and values.all():
            return np.broadcast_to(True, node.schema.shape)
        return np.broadcast_to(values.reshape(shape).transpose(turn), node.schema.shape)

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        try:
            fields, counts = reduction.run(operands, tick)
        except DataError:  # perhaps of a partial sum, not of the total
            return compile_vector(node)(operands, tick)
        return fields | {o.name: spread(o, counts) for o in by_segment}

    return run


def _is_count(o: Output) -> bool:
    one = isinstance(o.args[0], Const) and o.args[0].dtype.is_integer and o.args[0].value == 1
    return o.reduction == "sum" and o.where == TRUE and o.dtype is DType.BIGINT and one


def _scatters(node: EinSum, rows: Rows) -> bool:
    """True if adding rows to their results is faster than sorting them first."""
    results, width = node.schema.size, size(node, rows.features)
    return results <= NEAR or (width == 1 and results <= FILLED * size(node, rows.labels))


Reduced = tuple[dict[str, np.ndarray], np.ndarray]
"""The reduced outputs, and the number or the presence of each segment's rows."""


class _Scattered:
    """Adds rows to the results of their segments."""

    def __init__(
        self, node: EinSum, rows: Rows, segments: tuple[str, ...], counts: tuple[Output, ...]
    ) -> None:
        self.counts = [o.name for o in counts]
        self.used: list[int] = []
        outputs = node.outputs if rows.features else (*node.outputs, *counts)
        self.reduce = Loops(replace(node, outputs=outputs)).run if outputs else None
        self.count: Runner | None = None
        if rows.features and counts:
            axes = tuple(a for a in node.axes if a.label not in rows.features)
            used = {n for a in axes if a.define is not None for n in operands_of(a.define)}
            self.used = sorted(used)
            by_segment = replace(node, axes=axes, keys=segments, outputs=counts, hint=())
            self.count = Loops(with_operands(by_segment, self.used)).run

    def run(self, operands: Sequence[Arrays], tick: Tick) -> Reduced:
        """Reduces the rows."""
        fields = {} if self.reduce is None else self.reduce(operands, tick)
        if self.count is not None:
            fields |= self.count([operands[n] for n in self.used], tick)
        return fields, next((fields.pop(name) for name in self.counts), np.zeros(()))


class _Sorted:
    """Sorts rows by segment, and reduces segments in parallel."""

    def __init__(
        self, node: EinSum, rows: Rows, segments: tuple[str, ...], counts: tuple[Output, ...]
    ) -> None:
        self.node, self.rows = node, rows
        self.places = Loops(places(node, rows.labels, segments)).run
        self.width = size(node, rows.features)
        self.count = size(node, segments)
        self.total = size(node, rows.labels)
        order = [*segments, *rows.features]
        self.shape = tuple(node.axis(x).extent for x in order)
        self.turn = [order.index(k) for k in node.keys]
        self.most = 2 * (self.total * self.width // PIECE)

    def run(self, operands: Sequence[Arrays], tick: Tick) -> Reduced:
        """Reduces the rows."""
        at = self.places(operands, tick)["place"].reshape(-1)
        starts, order = np.zeros(self.count + 1, np.int64), np.empty(len(at), np.int64)
        if compile_cache.load(ORDER, tick)(at, self.count, starts, order):
            order = np.arange(len(at))
        counts = np.diff(starts)
        if not self.node.outputs:
            return {}, counts
        long = np.flatnonzero(counts * self.width > 2 * PIECE)
        rows = [*operands, {"row": order}]
        ends = starts[:-1], starts[1:]
        fields = self.reduce(self.whole, rows, ends, list(self.pieces(starts, long)), tick)
        by_segment = {name: a.reshape(self.count, self.width) for name, a in fields.items()}
        if long.size:
            self.divide(rows, starts, long.tolist(), by_segment, tick)
        fields = {
            name: a.reshape(self.shape).transpose(self.turn) for name, a in by_segment.items()
        }
        return fields, counts

    @cached_property
    def whole(self) -> Loops:
        """The loops over segments."""
        return _over_sorted(self.node, self.rows, self.count)

    @cached_property
    def parts(self) -> Loops:
        """The loops over parts of long segments, whose results are not rounded."""
        outputs = tuple(replace(o, dtype=accumulator(o)) for o in self.node.outputs)
        return _over_sorted(replace(self.node, outputs=outputs), self.rows, self.most)

    def reduce(
        self,
        loops: Loops,
        rows: Sequence[Arrays],
        ends: tuple[np.ndarray, np.ndarray],
        ranges: Sequence[tuple[int, int]],
        tick: Tick,
    ) -> dict[str, np.ndarray]:
        """Reduces ranges of segments, in parallel."""
        others = [(0, loops.node.axis(x).extent) for x in loops.nest.loops[1:]]
        first, last = ends
        boxes: list[tuple[int, list[Box]]] = [(0, [(part, *others)]) for part in ranges]
        return loops.run([*rows, {"first": first, "last": last}], tick, boxes)

    def divide(
        self,
        rows: Sequence[Arrays],
        starts: np.ndarray,
        long: Sequence[int],
        by_segment: Mapping[str, np.ndarray],
        tick: Tick,
    ) -> None:
        """Reduces long segments in parts, and merges the results."""
        ends = np.zeros((2, self.most), np.int64)
        numbers: list[slice] = []
        stop = 0
        for s in long:
            size = int(starts[s + 1] - starts[s])
            numbers.append(part := slice(stop, stop + ceil(size * self.width / PIECE)))
            stop = part.stop
            edges = starts[s] + size * np.arange(stop - part.start + 1) // (stop - part.start)
            ends[0, part], ends[1, part] = edges[:-1], edges[1:]
        pieces = [(n, n + 1) for n in range(stop)]
        fields = self.reduce(self.parts, rows, (ends[0], ends[1]), pieces, tick)
        for o in self.node.outputs:
            values = fields[o.name].reshape(self.most, self.width)
            for s, part in zip(long, numbers, strict=True):
                with np.errstate(over="ignore"):
                    by_segment[o.name][s] = merge(o, [values[part]])[0]

    def pieces(self, starts: np.ndarray, long: np.ndarray) -> Iterator[tuple[int, int]]:
        """Ranges of segments with similar work, without long segments."""
        work = (starts + np.arange(len(starts))) * max(1, self.width)
        wanted = max(1, int(work[-1]) // PIECE)
        cuts = np.searchsorted(work, np.arange(1, wanted) * (int(work[-1]) // wanted))
        ends = np.unique(np.concatenate([[0], cuts, long, long + 1, [self.count]])).tolist()
        alone = set(long.tolist())
        yield from (piece for piece in pairwise(ends) if piece[0] not in alone)


def _over_sorted(node: EinSum, rows: Rows, count: int) -> Loops:
    """Creates loops over segments, and over the sorted rows of each.

    Args:
        node: The node, with keys computed for each row.
        rows: The labels of its rows.
        count: The number of segments.

    Returns:
        The loops. Their last two operands are the sorted rows, and the ends of segments in them.
    """
    segment, place = (fresh(x, [a.label for a in node.axes]) for x in ("segment", "place"))
    total, numbers = size(node, rows.labels), len(node.operands)
    axes = [Axis(segment, 0, count), Axis(place, 0, total)]
    row, step = Value(numbers, "row", DType.BIGINT), total
    read = (labels_read(node, e) for o in node.outputs for e in (*o.args, o.where))
    needed = set(rows.features).union(*read)
    for axis, define in reversed(derived_axes(node)):
        needed |= labels_read(node, define) if axis.label in needed else set()
    for axis in node.axes:
        if axis.label in rows.labels:
            step //= axis.extent
            digit: Expr = number("idiv", row, step) if step > 1 else row
            if step * axis.extent < total:
                digit = number("mod", digit, axis.extent)
            axis = replace(axis, define=number("add", digit, axis.lo))
        if axis.label in needed:
            axes.append(axis)
    first, last = (Value(numbers + 1, x, DType.BIGINT) for x in ("first", "last"))
    within = conj(
        call("le", DType.BOOLEAN, first, Label(place)),
        call("lt", DType.BOOLEAN, Label(place), last),
    )
    operands = (
        *node.operands,
        _numbers(place, total, row),
        _numbers(segment, count, first, last),
    )
    keys = (segment, *rows.features)
    sorted_node = replace(
        node, axes=tuple(axes), operands=operands, guard=within, keys=keys, hint=()
    )
    *outer, inner = rows.features or (place,)
    if not rows.features:
        return Loops(sorted_node, Nest((segment, place), 1, Mode.REGISTERS, carry=False))
    nest = Nest((segment, *outer, place, inner), 1 + len(outer), Mode.ROW, carry=False)
    return Loops(sorted_node, nest)


def _numbers(label: str, extent: int, *fields: Value) -> Operand:
    """An operand of BIGINT fields with one key."""
    values = tuple(Field(v.field, v.dtype) for v in fields)
    return Operand(Input(label, Schema((Key(label, 0, extent),), values)), (label,))
