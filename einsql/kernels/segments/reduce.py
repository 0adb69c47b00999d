"""Segment reductions: rows are reduced in parallel by a computed key.

If there are few results, rows are added directly to their results. Otherwise rows are sorted
first. Each thread owns segments, so that threads never wait and every sum has a fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil

import numpy as np

from einsql.core.buffer_pool import contiguous, empty
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.ir.einsum.graph import TRUE, Const, EinSum, Output, Value
from einsql.kernels.kernel import Arrays, Runner, Tick
from einsql.kernels.runtime import compile_cache, thread_pool
from einsql.kernels.runtime.machine_code import Kernel
from einsql.kernels.scalars import values_of
from einsql.kernels.segments.rows import (
    Numbers,
    Rows,
    inside,
    numbering,
    row_parts,
    rows_of,
    size,
)
from einsql.kernels.segments.scatter import pays, scattered
from einsql.kernels.segments.source import (
    ORDER,
    Leaf,
    can_spell,
    running,
    scattering_source,
    sorting_source,
)
from einsql.kernels.vectorized.reductions import merge
from einsql.kernels.vectorized.vector import compile_vector
from einsql.kernels.vectorized.views import is_presence

PIECE = 2**22
"""Values of one piece, a few milliseconds."""
MOST = 2**28
"""Greatest number of segments for a counting sort with one counter per segment."""


def compile_segments(node: EinSum) -> Runner | None:
    """Matches reductions over rows with a data-dependent key."""
    rows = rows_of(node)
    if rows is None or all(o.reduction is None for o in node.outputs):
        return None
    if not any(a.label in node.keys for a in rows.derived):
        return None
    segments = tuple(k for k in node.keys if k not in rows.features)
    if size(node, segments) > MOST or not all(map(_is_covered, node.outputs)):
        return None
    reduced = tuple(o for o in node.outputs if not _is_count(o) and not is_presence(o))
    leaves: list[Leaf] = []
    for value in values_of(*(o.args[0] for o in reduced)):
        leaf = _leaf(node, rows, value)
        if leaf is None:
            return None
        leaves.append(leaf)
    return _Segments(node, rows, segments, reduced, tuple(leaves)).run


def _is_covered(o: Output) -> bool:
    if is_presence(o) or _is_count(o):
        return True
    if o.where != TRUE or o.args[0].dtype is not o.dtype or not can_spell(o.args[0]):
        return False
    if o.dtype.is_float:
        return o.reduction in ("sum", "product", "min", "max")
    return o.reduction in ("min", "max") or (o.reduction == "sum" and o.dtype is DType.BIGINT)


def _is_count(o: Output) -> bool:
    one = isinstance(o.args[0], Const) and o.args[0].dtype.is_integer and o.args[0].value == 1
    return o.reduction == "sum" and o.where == TRUE and o.dtype is DType.BIGINT and one


def _leaf(node: EinSum, rows: Rows, value: Value) -> Leaf | None:
    operand = node.operands[value.operand]
    parts = row_parts(operand, rows)
    if parts is None or (parts[1] and len(parts[1]) < len(rows.features)):
        return None
    names = [operand.labels[n] for n in parts[0]]
    if not names:
        return None
    return Leaf(value, tuple(names) != rows.labels, bool(parts[1]))


_Job = tuple[Kernel, int, int, np.ndarray, Sequence[np.ndarray]]
"""A kernel, the first segment, the exclusive end, the starts of segments, and the results."""

Found = tuple[np.ndarray, list[np.ndarray]]
"""The row count of each segment, and the flat reduced outputs: one row of features per segment."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A leaf's arguments: row numbers, elements between rows, and flat values."""

    numbers: np.ndarray
    step: int
    flat: np.ndarray


class _Segments:
    def __init__(
        self,
        node: EinSum,
        rows: Rows,
        segments: tuple[str, ...],
        reduced: tuple[Output, ...],
        leaves: tuple[Leaf, ...],
    ) -> None:
        self.node, self.rows, self.segments = node, rows, segments
        self.reduced, self.leaves = reduced, leaves
        self.numbers_of = numbering(node, rows)
        self.width = size(node, rows.features)
        self.count = size(node, segments)
        order = [*segments, *rows.features]
        self.shape = tuple(node.axis(x).extent for x in order)
        self.turn = [order.index(k) for k in node.keys]
        self.text: str | None = None

    def run(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        numbers = self.numbers_of(operands, tick)
        at = self.places(numbers)
        sources = [self.source(x, operands, numbers) for x in self.leaves]
        arguments = [y for x in sources for y in (x.numbers, x.step, x.flat)]
        scatter = pays(len(at), self.count, self.width if self.reduced else 1)
        reduced = (self.scattered if scatter else self.sorted)(at, arguments, tick)
        if reduced is None:  # integers beyond 64 bits
            return compile_vector(self.node)(operands, tick)
        counts, results = reduced
        fields: dict[str, np.ndarray] = {}
        for o in self.node.outputs:
            if _is_count(o):
                fields[o.name] = self.spread(counts)
            elif is_presence(o):
                all_there = bool(counts.all())
                fields[o.name] = self.spread(
                    np.broadcast_to(True, counts.shape) if all_there else counts > 0
                )
        for o, values in zip(self.reduced, results, strict=True):
            fields[o.name] = values.reshape(self.shape).transpose(self.turn)
        return fields

    def spread(self, each: np.ndarray) -> np.ndarray:
        """One value per segment, broadcast over the features."""
        lifted = each.reshape(self.shape[: len(self.segments)] + (1,) * len(self.rows.features))
        return np.broadcast_to(lifted, self.shape).transpose(self.turn)

    def places(self, numbers: Numbers) -> np.ndarray:
        """The segment of each row; rows outside [0, count) are ignored."""
        at = self.positions(self.segments, numbers)
        missing: np.ndarray | None = None
        for a in self.rows.derived:
            if len(self.segments) > 1 or a.label not in self.segments:
                here = inside(a, numbers[a.label])
                if here is not None:
                    missing = ~here if missing is None else missing | ~here
        if missing is not None:
            at = np.where(missing, -1, at)
        return np.ascontiguousarray(np.broadcast_to(at, (size(self.node, self.rows.labels),)))

    def positions(self, labels: Sequence[str], numbers: Numbers) -> np.ndarray:
        """The flat position of each row along labels; the last label varies fastest."""
        extents = [self.node.axis(x).extent for x in self.rows.labels]
        at = np.zeros(1, np.int64)
        for x in labels:
            a = self.node.axis(x)
            if x in numbers:
                values = numbers[x] - a.lo if a.lo else numbers[x]
            else:
                place = self.rows.labels.index(x)
                lifted = np.arange(a.extent).reshape(-1, *[1] * (len(extents) - place - 1))
                values = np.broadcast_to(lifted, extents).reshape(-1)
            at = values if len(labels) == 1 else at * a.extent + values
        return at

    def scattered(self, at: np.ndarray, arguments: Sequence[object], tick: Tick) -> Found | None:
        sizes = self.count, self.width if self.reduced else 1

        if self.text is None:
            self.text = scattering_source(self.reduced, self.leaves, sizes)
        return scattered(self.text, self.reduced, at, sizes, arguments, tick)

    def sorted(self, at: np.ndarray, arguments: Sequence[object], tick: Tick) -> Found | None:
        """Sorts rows by segment, and reduces segments in parallel."""
        starts, order = np.zeros(self.count + 1, np.int64), np.empty(len(at), np.int64)
        if compile_cache.load(ORDER, tick)(at, self.count, starts, order):
            order = np.arange(len(at))
        results = [empty((self.count * self.width,), o.dtype.numpy) for o in self.reduced]
        if self.reduced and not self.reduce(starts, order, arguments, results, tick):
            return None
        return np.diff(starts), results

    def reduce(
        self,
        starts: np.ndarray,
        order: np.ndarray,
        arguments: Sequence[object],
        results: Sequence[np.ndarray],
        tick: Tick,
    ) -> bool:
        """Reduces sorted rows to flat results; long segments in parts.

        Returns:
            False if a partial sum of integers exceeded BIGINT.
        """
        width = self.width
        long = np.flatnonzero(np.diff(starts) * width > 2 * PIECE)
        kernel = compile_cache.load(sorting_source(self.reduced, self.leaves), tick)
        jobs: list[_Job] = [
            (kernel, lo, hi, starts, results) for lo, hi in self.pieces(starts, long)
        ]
        divided: list[tuple[int, list[np.ndarray]]] = []
        if long.size:  # partial sums of long segments are not rounded
            running_ = [replace(o, dtype=running(o)) for o in self.reduced]
            kernel = compile_cache.load(sorting_source(running_, self.leaves), tick)
            for s in long.tolist():
                rows = int(starts[s + 1] - starts[s])
                count = ceil(rows * width / PIECE)
                edges = starts[s] + rows * np.arange(count + 1) // count
                parts = [empty((count * width,), o.dtype.numpy) for o in running_]
                divided.append((s, parts))
                jobs += [(kernel, n, n + 1, edges, parts) for n in range(count)]
        failed: list[int] = []

        def work(job: _Job) -> None:
            kernel, lo, hi, edges, into = job
            if kernel(lo, hi, edges, order, width, *arguments, *into):
                failed.append(lo)

        thread_pool.run(work, jobs, len(jobs), tick)
        try:
            for s, parts in divided:
                for o, part, result in zip(self.reduced, parts, results, strict=True):
                    with np.errstate(over="ignore"):
                        result[s * width : (s + 1) * width] = merge(o, [part.reshape(-1, width)])[0]
        except DataError:  # partial sums, not the total
            return False
        return not failed

    def pieces(self, starts: np.ndarray, long: np.ndarray) -> Iterator[tuple[int, int]]:
        """Ranges of segments with similar work, without long segments."""
        work = (starts + np.arange(len(starts))) * max(1, self.width)
        wanted = max(1, int(work[-1]) // PIECE)
        cuts = np.searchsorted(work, np.arange(1, wanted) * (int(work[-1]) // wanted))
        ends = np.unique(np.concatenate([[0], cuts, long, long + 1, [self.count]])).tolist()
        alone = set(long.tolist())
        yield from (piece for piece in pairwise(ends) if piece[0] not in alone)

    def source(self, leaf: Leaf, operands: Sequence[Arrays], numbers: Numbers) -> _Source:
        """A leaf's values in C order, with the row's labels before the features."""
        operand = self.node.operands[leaf.value.operand]
        parts = row_parts(operand, self.rows)
        assert parts is not None
        axes = {n: self.node.axis(operand.labels[n]) for n in range(len(operand.labels))}
        keys = operand.source.schema.keys
        cut = tuple(slice(axes[n].lo - k.lo, axes[n].hi - k.lo) for n, k in enumerate(keys))
        by_name = {operand.labels[n]: n for n in parts[1]}
        turn = [*parts[0], *(by_name[x] for x in self.rows.features if x in by_name)]
        field = operands[leaf.value.operand][leaf.value.field]
        table = contiguous(field[cut].transpose(turn))
        width = self.width if leaf.wide else 1
        flat = table.reshape(-1)
        flat = flat.view()
        flat.flags.writeable = False
        if not leaf.found:
            return _Source(np.zeros(0, np.int64), width, flat)
        at = self.positions([operand.labels[n] for n in parts[0]], numbers)
        return _Source(np.ascontiguousarray(at), width, flat)
