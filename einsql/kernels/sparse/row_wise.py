"""Any node over sparse operands, by compiled loops over their rows.

The outermost loop runs over the rows of an operand, the next ones over the elements of a row
(`visits.py`). The labels of columns are computed from data. So the node becomes a node of the
loops' own labels, whose ends are guards (`Points.limit`). No combination of elements is stored.

A result whose two keys are labels of sparse operands has the elements of one of them, or of the
product of two (`structures.py`). Its elements are found by marks (`row_loops.py`).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np

from einsql.core.free_memory import require
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.matrix import Compressed, Sparse, sorted_matrix, sparse_of
from einsql.ir.einsum.conditional_outputs import beside
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Expr,
    Input,
    Label,
    Operand,
    Value,
    bigint,
    call,
    cast,
    conj,
    conjuncts,
    exprs,
    fresh,
    rewrite,
    subexpressions,
)
from einsql.ir.einsum.graph_rewriting import map_exprs
from einsql.ir.einsum.partial_states import merges
from einsql.kernels.kernel import Arrays, Tick
from einsql.kernels.loops.generated import Groups, Table, ends_of
from einsql.kernels.loops.loop_cuts import Cut
from einsql.kernels.loops.loop_nest import STRIP, Mode, Nest
from einsql.kernels.runtime import thread_pool, thread_team
from einsql.kernels.sparse.row_loops import Marks, RowLoops
from einsql.kernels.sparse.stored import spans_of
from einsql.kernels.sparse.structures import product_structure
from einsql.kernels.sparse.visits import Route, Visit, points_of, routes_of, work_by_row

COLUMN = ".column"
"""The field with the column of an element."""
SLOT = ".slot"
"""The field with the number of the current row's element in a column."""
FIRST, LAST = ".first", ".last"
"""The fields with the start and end of a row's elements."""
SIZES = 8
"""Greatest number of sizes for which compiled nodes and routes are cached."""
LEAST = 2**14
"""Points from which rows are divided into boxes, about 30 µs."""
POINT = 2e-9
"""Approximate seconds of a point, one element's term of a sum."""
PIECE = 2**22
"""Points of a box, about 10 ms, after which progress is reported."""
PIECES = 4
"""Boxes for each thread, because some take longer than their points say."""
STATES = 4
"""Least elements for each running value that a slice adds."""
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


@dataclass(frozen=True, slots=True)
class _Size:
    """What the kernel's node depends on, of a matrix.

    Attributes:
        stored: The number of elements.
        starts, columns: The types of its arrays.
        is_constant: Whether nobody changes its arrays.
    """

    stored: int
    starts: np.dtype
    columns: np.dtype
    is_constant: bool


def _size(matrix: Compressed, is_constant: bool) -> _Size:
    return _Size(matrix.stored, matrix.starts.dtype, matrix.columns.dtype, is_constant)


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
    loops: _Loops
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
        self.loops = lru_cache(SIZES)(lambda route, sizes: _Loops(self, route, sizes))
        self.chosen: dict[tuple[int, ...], Route] = {}
        self.prepared: _Prepared | None = None

    def run(self, operands: Sequence[Arrays], tick: Tick) -> Arrays:
        """The node's result."""
        fields: dict[int, Sparse] = {}
        for n in self.driving:
            few = sparse_of(operands[n])
            assert few is not None
            fields[n] = few
        prepared = self.prepared
        if prepared is None or not prepared.is_of(fields):
            prepared = self.prepare(fields, tick)
        arrays = [*operands, *prepared.more]
        for n, elements in prepared.elements.items():
            arrays[n] = elements
        computed = prepared.loops.run(arrays, prepared.boxes, tick)
        if prepared.structure is None:
            return computed
        return _sparse(prepared.structure, computed, prepared.is_ordered)

    def prepare(self, fields: Mapping[int, Sparse], tick: Tick) -> _Prepared:
        """Arranges the operands by rows; the arrangement of constant operands is kept."""
        route = self.route(fields)
        parts = {v.number: self.part(fields[v.number], v) for v in route.visits}
        sizes = [_size(parts[v.number], fields[v.number].is_constant) for v in route.visits]
        more = [_ends(parts[v.number]) for v in route.visits]
        structure = None
        if route.computes_keys:
            structure = self.product(route, parts, tick)
            sizes.append(_size(structure, True))
            more += [{COLUMN: structure.columns}, _ends(structure)]
        elif route.target is not None:
            structure = self.structure(route, parts[route.target], fields[route.target])
        loops = self.loops(route, tuple(sizes))
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

    def route(self, fields: Mapping[int, Sparse]) -> Route:
        """The route with the fewest points."""
        if len(self.routes) == 1:
            return self.routes[0]
        stored = {n: few.matrix.stored for n, few in fields.items()}
        sizes = tuple(stored.values())
        if sizes not in self.chosen:
            if len(self.chosen) == SIZES:
                self.chosen.clear()

            def counts(number: int, label: str) -> np.ndarray:
                labels = self.node.operands[number].labels
                spans = spans_of(self.node, self.node.operands[number])
                few, key = fields[number], labels.index(label)
                matrix = few.taken()
                if key == int(few.turned):
                    return matrix.counts[spans[key]]
                return np.bincount(matrix.columns, minlength=matrix.shape[1])[spans[key]]

            def cost(route: Route) -> float:
                turned = sum(
                    stored[v.number]
                    for v in route.visits
                    if not fields[v.number].has_rows_of(self.key(v))
                )
                return points_of(route, stored, counts) + TURN * turned

            self.chosen[sizes] = min(self.routes, key=cost)
        return self.chosen[sizes]

    def key(self, visit: Visit) -> int:
        """The position of the key of a visit's rows."""
        return self.node.operands[visit.number].labels.index(visit.rows)

    def part(self, few: Sparse, visit: Visit, name: str | None = None) -> Compressed:
        """The rows of an operand within the domain, with all columns."""
        key = self.key(visit)
        matrix = few.rows_of(key, name)
        rows = spans_of(self.node, self.node.operands[visit.number])[key]
        return matrix.part(rows, slice(0, matrix.shape[1]))

    def elements(self, few: Sparse, visit: Visit, part: Compressed) -> dict[str, np.ndarray]:
        """The columns and values of the elements of an operand."""
        names = self.read[visit.number]
        values = {name: self.part(few, visit, name).values for name in names}
        return {**values, COLUMN: part.columns}

    def narrowed(self, visit: Visit, part: Compressed) -> Compressed:
        """The rows of an operand, with the columns within the domain."""
        columns = spans_of(self.node, self.node.operands[visit.number])[1 - self.key(visit)]
        return part.part(slice(0, part.shape[0]), columns)

    def product(self, route: Route, parts: Mapping[int, Compressed], tick: Tick) -> Compressed:
        """The elements of the product of two operands."""
        first, second = (self.narrowed(v, parts[v.number]) for v in route.visits)
        width = sum(f.dtype.numpy.itemsize for f in self.node.schema.fields)
        return product_structure(first, second, 3 * width, tick)

    def structure(self, route: Route, part: Compressed, few: Sparse) -> Compressed:
        """The elements of the operand that has the result's keys, by rows of the first one."""
        if not few.is_constant:
            part = part.copied()
        visit = next(v for v in route.visits if v.number == route.target)
        first, second = (self.node.axis(k) for k in self.node.keys)
        source = self.node.operands[visit.number].source
        shift = second.lo - source.schema.keys[1 - self.key(visit)].lo
        columns = part.columns - part.columns.dtype.type(shift) if shift else part.columns
        return Compressed((first.extent, second.extent), part.starts, columns, part.values)

    # ---- the partition

    def boxes(self, loops: _Loops, route: Route, parts: Mapping[int, Compressed]) -> Groups | Table:
        """Boxes of rows with similar numbers of points."""
        expanded = [v for v in route.visits if not v.looks_up]
        aligned = parts
        if len(expanded) > 1:
            aligned = {v.number: self.narrowed(v, parts[v.number]) for v in expanded}
        before = np.cumsum(work_by_row(expanded, aligned))
        points = int(before[-1]) * loops.inner if len(before) else 0
        wanted = max(ceil(points / PIECE), PIECES * thread_pool.threads()) if points > LEAST else 1
        marks = points // loops.inner * np.arange(1, wanted) // wanted
        cuts = np.searchsorted(before, marks) + 1
        ends = np.unique(np.concatenate(([0], cuts, [len(before)]))).tolist()
        boxes = [((lo, hi), *rest) for lo, hi in pairwise(ends) for rest in loops.inner_boxes()]
        slices = min(loops.slices, len(boxes))
        seconds = points * POINT
        alone = loops.is_independent or len(boxes) == slices
        if seconds < thread_team.LONG and alone:
            return Table([(n % loops.slices, ends_of(box)) for n, box in enumerate(boxes)], seconds)
        if loops.is_independent:
            return [(0, [box]) for box in boxes]
        return [(n, boxes[n::slices]) for n in range(slices)]


def _ends(matrix: Compressed) -> dict[str, np.ndarray]:
    return {FIRST: matrix.starts[:-1], LAST: matrix.starts[1:]}


def _sparse(structure: Compressed, computed: dict[str, np.ndarray], is_ordered: bool) -> Elements:
    """The computed elements that exist, with increasing columns in each row."""
    there = computed.pop(PRESENT)
    values = computed
    if not there.all():
        numbers = np.flatnonzero(there)
        structure = structure.at(numbers)
        values = {name: a[numbers] for name, a in computed.items()}
    if is_ordered:
        return Elements(structure, values)
    ordered, _ = sorted_matrix(structure.shape, structure.rows, structure.columns)
    return Elements(ordered, {name: a[ordered.values] for name, a in values.items()})


def _index(kind: np.dtype) -> DType:
    return DType.INTEGER if kind.itemsize == 4 else DType.BIGINT


class _Loops:
    """The loops of a route, for matrices of some sizes.

    Attributes:
        marks: The marks that the loops read.
        is_independent: Whether rows have different keys of the result, or different elements.
        slices: The number of running values of each key, for rows that share keys.
        inner: The points for each combination of elements.
    """

    def __init__(self, plan: RowWise, route: Route, sizes: tuple[_Size, ...]) -> None:
        self.plan, self.route, self.sizes = plan, route, sizes
        node = plan.node
        self.taken = {a.label for a in node.axes}
        self.operands = list(node.operands)
        self.guards: list[Expr] = []
        self.axes: list[Axis] = [node.axis(route.row)]
        self.derived: list[Axis] = []
        self.marks: list[Marks] = []
        self.places: list[str] = []
        self.constant: list[str] = []
        self.element: str | None = None
        self.ends: list[Operand] = []
        self.first_mark = len(node.operands) + len(route.visits) + 2 * route.computes_keys
        for v, size in zip(route.visits, sizes, strict=False):
            self.visit(v, size)
        self.operands += self.ends
        if route.computes_keys:
            self.add_product(sizes[-1])
        self.operands += map(self.marks_operand, self.marks)
        self.kernel = self.compiled()

    # ---- the visits

    def visit(self, v: Visit, size: _Size) -> None:
        """Adds the loop over the elements of a row, or the look-up of one."""
        node = self.plan.node
        operand = node.operands[v.number]
        keys = operand.source.schema.keys
        width = keys[1 - self.plan.key(v)]
        column = Value(v.number, COLUMN, _index(size.columns), (0, max(0, width.hi - width.lo - 1)))
        at = len(node.operands) + len(self.ends)
        first, last = self.ends_of(at, v.rows, size)
        if v.looks_up:
            place = self.add_slot(first, last, v, size, width.lo)
        else:
            place = self.named("place")
            self.places.append(place)
            self.axes.append(Axis(place, 0, size.stored))
            self.guards += _between(first, Label(place), last)
            define = cast(column, DType.BIGINT)
            if width.lo:
                define = call("add", DType.BIGINT, define, bigint(width.lo))
            if size.is_constant:
                self.constant.append(v.columns)
            self.derived.append(replace(node.axis(v.columns), define=define))
        if v.number == self.route.target:
            self.element = place
        fields = (*self.plan.read[v.number].values(), Field(COLUMN, column.dtype))
        schema = Schema((Key("place", 0, size.stored),), fields)
        self.operands[v.number] = Operand(Input(f"elements {v.number}", schema), (place,))

    def add_slot(self, first: Value, last: Value, v: Visit, size: _Size, lo: int) -> str:
        """Adds the look-up of an element in the current row; returns its label.

        Args:
            first: The start of the row's elements.
            last: Their end.
            v: The visit.
            size: The size of its operand.
            lo: The value of the columns' label at column 0.
        """
        slot = self.named("slot")
        shift = self.plan.node.axis(v.columns).lo - lo
        kind = np.dtype(np.int32 if size.stored < 2**31 else np.int64)
        number = self.first_mark + len(self.marks)
        self.marks.append(Marks(number, v.columns, first, last, (v.number, COLUMN), shift, kind))
        define = cast(Value(number, SLOT, _index(kind)), DType.BIGINT)
        self.axes.append(Axis(slot, 0, size.stored, define))
        self.guards.append(call("lt", DType.BOOLEAN, _wide(first), _wide(last)))
        self.guards += _between(first, Label(slot), last)
        return slot

    def marks_operand(self, mark: Marks) -> Operand:
        """The operand that stands for marks; no array is passed for it."""
        axis = self.plan.node.axis(mark.label)
        fields = (Field(SLOT, _index(mark.kind)),)
        schema = Schema((Key("column", axis.lo, axis.hi),), fields)
        return Operand(Input("marks", schema), (mark.label,))

    def ends_of(self, number: int, label: str, size: _Size) -> tuple[Value, Value]:
        """Adds the operand with the ends of rows."""
        axis, kind = self.plan.node.axis(label), _index(size.starts)
        fields = Field(FIRST, kind), Field(LAST, kind)
        schema = Schema((Key("row", axis.lo, axis.hi),), fields)
        self.ends.append(Operand(Input(f"rows {number}", schema), (label,)))
        return Value(number, FIRST, kind), Value(number, LAST, kind)

    def add_product(self, size: _Size) -> None:
        """Adds the elements of the product, whose number becomes the result's key."""
        number = len(self.operands)
        schema = Schema((Key("place", 0, size.stored),), (Field(COLUMN, _index(size.columns)),))
        self.ends.clear()
        first, last = self.ends_of(number + 1, self.route.row, size)
        columns = self.route.visits[1].columns
        visit = Visit(number, self.route.row, columns, True)
        lo = self.plan.node.axis(columns).lo
        self.element = self.add_slot(first, last, visit, size, lo)
        source = Input("product", schema)
        self.operands += [Operand(source, (self.element,)), *self.ends]

    def named(self, name: str) -> str:
        """A new label."""
        label = fresh(name, self.taken)
        self.taken.add(label)
        return label

    # ---- the node

    def compiled(self) -> RowLoops:
        """Creates the loops."""
        plan, node = self.plan, self.plan.node
        known = {a.label for a in (*self.axes, *self.derived)}
        rest = [a for a in node.axes if a.label not in known]
        self.free = [a.label for a in rest if a.define is None]
        driving = set(plan.driving)

        def changed(e: Expr) -> Expr:
            stored = isinstance(e, Value) and e.operand in driving and e.field == PRESENT
            return TRUE if stored else e

        over = map_exprs(node, lambda e: _simplified(rewrite(e, changed)))
        kept = {a.label: a for a in over.axes}
        axes = (*self.axes, *self.derived, *(kept[a.label] for a in rest))
        keys = node.keys if self.element is None else (self.element,)
        inner = replace(
            over,
            axes=axes,
            operands=tuple(self.operands),
            guard=conj(*self.guards, over.guard),
            keys=keys,
            hint=(),
            grid=(),
        )
        nest = self.nest(inner)
        extents = tuple(inner.axis(x).extent for x in nest.loops)
        self.is_independent = self.element is not None or self.route.row in keys
        self.slices = 1 if self.is_independent else self.slices_of(inner)
        parts = (self.slices, *[1] * (len(extents) - 1))
        boxes = Cut(extents, parts, tuple(x in keys for x in nest.loops), 0, self.slices)
        self.extents = extents
        self.strips = nest.mode is Mode.ROW
        self.inner = 1
        for x in self.free:
            self.inner *= node.axis(x).extent
        return RowLoops(inner, nest, boxes, self.marks, self.constant)

    def slices_of(self, inner: EinSum) -> int:
        """The number of running values of each key that take little memory and time."""
        each = STATES * max(1, inner.schema.size)
        return max(1, min(PIECES * thread_pool.threads(), self.sizes[0].stored // each))

    def nest(self, inner: EinSum) -> Nest:
        """The order of the loops, and where running values are."""
        row, places = self.route.row, self.places
        if self.route.scatters:
            return Nest((row, *places, *self.free), 0, Mode.MEMORY, carry=False, scatters=True)
        if self.element is not None:
            loops = (row, *places, *self.free)
            if self.element in places:
                return Nest(loops, 2, Mode.REGISTERS, carry=False)
            return Nest(loops, 0, Mode.MEMORY, carry=False, scatters=True)
        outer = [x for x in self.free if x in inner.keys]
        gone = [x for x in self.free if x not in inner.keys]
        if not outer:
            carry = not inner.keys
            return Nest((row, *places, *gone), 0 if carry else 1, Mode.REGISTERS, carry)
        last = outer.pop()
        return Nest((row, *outer, *places, *gone, last), 1 + len(outer), Mode.ROW, carry=False)

    def inner_boxes(self) -> list[tuple[tuple[int, int], ...]]:
        """The ranges of the loops inside of the outermost one."""
        *middle, last = self.extents[1:] or (None,)
        if last is None:
            return [()]
        step = STRIP if self.strips else max(1, last)
        before = tuple((0, n) for n in middle)
        ends = [(n, min(n + step, last)) for n in range(0, max(1, last), step)]
        return [(*before, part) for part in ends]

    def run(
        self, arrays: Sequence[Arrays], boxes: Groups | Table, tick: Tick
    ) -> dict[str, np.ndarray]:
        """Computes the outputs by row, or by element."""
        if self.element is not None:
            width = sum(f.dtype.numpy.itemsize for f in self.plan.node.schema.fields)
            require(3 * width * self.sizes[-1].stored)
        return self.kernel.run(arrays, tick, boxes)


def _wide(e: Expr) -> Expr:
    return cast(e, DType.BIGINT)


def _between(first: Expr, label: Label, last: Expr) -> list[Expr]:
    return [
        call("le", DType.BOOLEAN, _wide(first), label),
        call("lt", DType.BOOLEAN, label, _wide(last)),
    ]


def _simplified(expr: Expr) -> Expr:
    """A conjunction without constant terms."""
    return conj(*conjuncts(expr)) if expr.dtype is DType.BOOLEAN else expr
