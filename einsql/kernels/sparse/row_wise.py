"""Any node over sparse operands, by compiled loops over their rows.

The outermost loop runs over the rows of an operand, the next ones over the elements of a row
(`visits.py`). The labels of columns are computed from data. So the node becomes a node of the
loops' own labels, whose ends are guards (`route_loops.py`). No combination of elements is stored.

A result whose keys are labels of sparse operands has the elements of one of them, or of the
product of two (`structures.py`). Its elements are found by marks (`row_loops.py`).
"""

from __future__ import annotations

import weakref
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np

from einsql.core.free_memory import require
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, Field
from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.compressed import Compressed, sorted_matrix
from einsql.core.sparse.matrix import Sparse, sparse_of
from einsql.core.sparse.numbering import numbers_of, places_of
from einsql.core.sparse.selection import selected
from einsql.ir.einsum.conditional_outputs import beside
from einsql.ir.einsum.graph import (
    EinSum,
    Value,
    exprs,
    subexpressions,
)
from einsql.ir.einsum.partial_states import merges
from einsql.kernels.kernel import Arrays, Tick, no_progress
from einsql.kernels.loops.generated import Groups, Table
from einsql.kernels.runtime import thread_pool, thread_team
from einsql.kernels.sparse.route_loops import (
    COLUMN,
    PIECES,
    RouteLoops,
    ends_of_rows,
    size_of,
)
from einsql.kernels.sparse.stored import spans_of
from einsql.kernels.sparse.structures import product_structure
from einsql.kernels.sparse.visits import Route, Visit, key_of, points_of, routes_of, work_until

SIZES = 8
"""Greatest number of sizes for which compiled nodes and routes are cached."""
LEAST = 2**14
"""Points from which rows are divided into boxes, about 30 µs."""
POINT = 2e-9
"""Approximate seconds of a point, one element's term of a sum."""
PIECE = 2**22
"""Points of a box, about 10 ms, after which progress is reported."""
COPIES = 3
"""Values for each element of a result: it, and two running values of a DOUBLE sum."""
TURN = 10.0
"""Time to transpose an element, relative to a point."""


def row_wise(node: EinSum, driving: Sequence[int]) -> RowWise | None:
    """Matches nodes that loops over rows of sparse operands compute.

    Args:
        node: The node.
        driving: The operands whose absent elements make no point exist.
    """
    others = (o for n, o in enumerate(node.operands) if n not in driving)
    if any(o.source.sparse for o in others) or not merges(node) or any(map(beside, node.outputs)):
        return None
    routes = routes_of(node, driving)
    return RowWise(node, driving, routes) if routes else None


@dataclass(slots=True, eq=False)
class _Prepared:
    """Operands arranged for loops.

    Attributes:
        fields: The operands, if they are constant.
        loops: The loops.
        elements: The columns and values of the elements of each operand.
        more: The arrays of the loops' further operands.
        boxes: The partition of the loops.
        structure: The elements of the result; None for an array.
        is_ordered: Whether the columns of each row of the result increase.
    """

    fields: tuple[Any, ...]
    loops: RouteLoops
    elements: Mapping[int, Arrays]
    more: Sequence[Arrays]
    boxes: Groups | Table
    structure: Compressed | None
    is_ordered: bool

    def is_of(self, fields: Mapping[int, Sparse]) -> bool:
        """Whether these operands are arranged."""
        known = zip(self.fields, fields.values(), strict=True)
        return bool(self.fields) and all(ref() is few for ref, few in known)


class RowWise:
    """A node over rows of sparse operands.

    Attributes:
        node: The node.
        driving: The sparse operands.
        routes: The possible orders of loops.
    """

    def __init__(self, node: EinSum, driving: Sequence[int], routes: Sequence[Route]) -> None:
        self.node = node
        self.driving = driving
        self.routes = routes
        read: dict[int, dict[str, Field]] = {n: {} for n in driving}
        for e in (e for root in exprs(node) for e in subexpressions(root)):
            if isinstance(e, Value) and e.operand in read and e.field != PRESENT:
                read[e.operand][e.field] = Field(e.field, e.dtype)
        self.read = read
        self.width = COPIES * sum(f.dtype.numpy.itemsize for f in node.schema.fields)
        self.loops = lru_cache(SIZES)(lambda route, sizes: RouteLoops(node, read, route, sizes))
        self.chosen: dict[tuple[int, ...], Route] = {}
        self.prepared: _Prepared | None = None

    def run(self, operands: Sequence[Arrays], tick: Tick) -> Arrays | None:
        """The node's result; None if rows of an operand would take much memory."""
        fields: dict[int, Sparse] = {}
        for n in self.driving:
            few = sparse_of(operands[n])
            assert few is not None
            fields[n] = few
        prepared = self.prepared
        if prepared is None or not prepared.is_of(fields):
            route = self.route(fields)
            if route is None:
                return None
            prepared = self.prepare(route, fields, tick)
        arrays = [*operands, *prepared.more]
        for n, elements in prepared.elements.items():
            arrays[n] = elements
        structure = prepared.structure
        if structure is not None:
            require(structure.stored * self.width)
        computed = prepared.loops.run(arrays, prepared.boxes, tick)
        return computed if structure is None else _sparse(structure, computed, prepared.is_ordered)

    def prepare(self, route: Route, fields: Mapping[int, Sparse], tick: Tick) -> _Prepared:
        """Arranges the operands by rows; the arrangement of constant operands is kept."""
        by_loops = route.target is None and not route.computes_keys
        part = self.part_to_verify if by_loops else self.part
        parts = {v.number: part(fields[v.number], v) for v in route.visits}
        sizes = [size_of(parts[v.number], fields[v.number].is_constant) for v in route.visits]
        more = [ends_of_rows(parts[v.number]) for v in route.visits]
        structure = None
        if route.computes_keys:
            structure = self.product(route, parts, tick)
            sizes.append(size_of(structure, True))
            more += [{COLUMN: structure.columns}, ends_of_rows(structure)]
        elif route.target is not None:
            structure = self.structure(route, parts[route.target], fields[route.target])
        loops = self.loops(route, tuple(sizes))
        if by_loops and not loops.verifies:
            for number, own in parts.items():
                if not fields[number].is_constant:
                    own.checked()
        more += [{}] * len(loops.marks)
        elements = {
            v.number: self.elements(fields[v.number], v, parts[v.number]) for v in route.visits
        }
        boxes = self.boxes(loops, route, parts)
        constant = all(few.is_constant for few in fields.values())
        is_ordered = constant or structure is None or structure.increases
        prepared = _Prepared((), loops, elements, more, boxes, structure, is_ordered)
        if constant and not route.computes_keys:
            prepared.fields = tuple(weakref.ref(few, self.forget) for few in fields.values())
            self.prepared = prepared
        return prepared

    def forget(self, _: object) -> None:
        """Drops the arrangement of operands that no longer exist."""
        self.prepared = None

    # ---- the operands

    def route(self, fields: Mapping[int, Sparse]) -> Route | None:
        """The route with the fewest points; None if each one takes too many rows."""
        routes = [
            route
            for route in self.routes
            if all(fields[v.number].can_have_rows_of(key_of(self.node, v)) for v in route.visits)
        ]
        if len(routes) < 2:
            return routes[0] if routes else None
        stored = {n: few.matrix.stored for n, few in fields.items()}
        sizes = tuple(stored.values())
        if sizes not in self.chosen or self.chosen[sizes] not in routes:
            if len(self.chosen) == SIZES:
                self.chosen.clear()

            def counts(number: int, label: str) -> np.ndarray:
                labels = self.node.operands[number].labels
                spans = spans_of(self.node, self.node.operands[number])
                few, key = fields[number], labels.index(label)
                axis = 1 - key if few.turned else key
                return few.taken().counts_along(axis)[spans[key]]

            def cost(route: Route) -> float:
                turned = sum(
                    stored[v.number]
                    for v in route.visits
                    if not fields[v.number].has_rows_of(key_of(self.node, v))
                )
                return points_of(route, stored, counts) + TURN * turned

            self.chosen[sizes] = min(routes, key=cost)
        return self.chosen[sizes]

    def part(self, few: Sparse, visit: Visit, name: str | None = None) -> Compressed:
        """The rows of an operand within the domain, with all columns."""
        key = key_of(self.node, visit)
        matrix = few.rows_of(key, name)
        rows = spans_of(self.node, self.node.operands[visit.number])[key]
        return matrix.part_of_rows(rows)

    def part_to_verify(self, few: Sparse, visit: Visit) -> Compressed:
        """See `part`; the columns are verified later if the elements are by these rows."""
        key = key_of(self.node, visit)
        if few.is_constant or not few.has_rows_of(key):
            return self.part(few, visit)
        rows = spans_of(self.node, self.node.operands[visit.number])[key]
        return few.with_checked_rows().part_of_rows(rows)

    def elements(self, few: Sparse, visit: Visit, part: Compressed) -> dict[str, np.ndarray]:
        """The columns and values of the elements of an operand."""
        names, first = self.read[visit.number], next(iter(few.names), None)
        values = {
            name: (part if name == first else self.part(few, visit, name)).values for name in names
        }
        return {**values, COLUMN: part.columns}

    def narrowed(self, visit: Visit, part: Compressed) -> Compressed:
        """The rows of an operand, with the columns within the domain."""
        key, spans = (
            key_of(self.node, visit),
            spans_of(self.node, self.node.operands[visit.number]),
        )
        others = [span for n, span in enumerate(spans) if n != key]
        return part.part(slice(0, part.shape[0]), *(others or [slice(0, 1)]))

    def product(self, route: Route, parts: Mapping[int, Compressed], tick: Tick) -> Compressed:
        """The elements of the product of two operands."""
        first, second = (self.narrowed(v, parts[v.number]) for v in route.visits)
        return product_structure(first, second, self.width, tick)

    def structure(self, route: Route, part: Compressed, few: Sparse) -> Compressed:
        """The elements of the operand that has the result's keys, by rows of the first one."""
        if not few.is_constant:
            part = part.copied()
        visit = next(v for v in route.visits if v.number == route.target)
        axes = [self.node.axis(k) for k in self.node.keys]
        operand = self.node.operands[visit.number]
        keys = [operand.source.schema.keys[operand.labels.index(x)] for x in visit.columns]
        extents = tuple(a.extent for a in axes)
        pairs = list(zip(axes[1:], keys, strict=True))
        if all((a.lo, a.hi) == (k.lo, k.hi) for a, k in pairs):
            return Compressed(extents, part.starts, part.columns, part.values)
        # Elements outside of the domain get any column, as they do not exist in the result.
        places = places_of(part.columns, part.extents[1:])
        lows = [a.lo - k.lo for a, k in pairs]
        shifted = [at.astype(np.int64) - lo for at, lo in zip(places, lows, strict=True)]
        columns = numbers_of(shifted, extents[1:]).astype(part.columns.dtype)
        return Compressed(extents, part.starts, columns, part.values)

    # ---- the partition

    def boxes(
        self, loops: RouteLoops, route: Route, parts: Mapping[int, Compressed]
    ) -> Groups | Table:
        """Boxes of rows with similar numbers of points."""
        expanded = [v for v in route.visits if not v.looks_up]
        aligned = parts
        if len(expanded) > 1:
            aligned = {v.number: self.narrowed(v, parts[v.number]) for v in expanded}
        rows = aligned[expanded[0].number].shape[0]
        before = work_until(expanded, aligned)
        work = before(rows - 1) if rows else 0
        points = work * loops.inner
        wanted = max(ceil(points / PIECE), PIECES * thread_pool.threads()) if points > LEAST else 1
        marks = (work * n // wanted for n in range(1, wanted))
        cuts = (bisect_left(range(rows - 1), mark, key=before) + 1 for mark in marks)
        ends = sorted({0, *cuts, rows})
        inner = loops.inner_boxes()
        boxes = [((lo, hi), *rest) for lo, hi in pairwise(ends) for rest in inner]
        slices = min(loops.slices, len(boxes))
        seconds = points * POINT
        alone = loops.is_independent or len(boxes) == slices
        if seconds < thread_team.LONG and alone:
            return Table([(n % loops.slices, box) for n, box in enumerate(boxes)], seconds)
        if loops.is_independent:
            return [(0, [box]) for box in boxes]
        return [(n, boxes[n::slices]) for n in range(slices)]


def _sparse(structure: Compressed, computed: dict[str, np.ndarray], is_ordered: bool) -> Elements:
    """The computed elements that exist, with increasing columns in each row."""
    there = computed.pop(PRESENT)
    values = computed
    if not there.all():
        starts, (columns, *arrays) = selected(
            there, structure.starts, structure.columns, *computed.values(), run=_on_threads
        )
        structure = Compressed(structure.extents, starts, columns, columns)
        values = dict(zip(computed, arrays, strict=True))
    if is_ordered:
        return Elements(structure, values)
    ordered, _ = sorted_matrix(structure.extents, structure.rows, structure.columns)
    return Elements(ordered, {name: a[ordered.values] for name, a in values.items()})


def _on_threads(work: Callable[[int], None], numbers: Sequence[int]) -> None:
    thread_pool.run(work, numbers, len(numbers), no_progress)
