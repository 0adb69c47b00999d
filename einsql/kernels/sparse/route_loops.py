"""The loops of a route over sparse operands, as a node of their own labels.

The free labels of the node are a row, the places of elements, and labels of dense operands. Labels
of columns, and slots of elements that are looked up, are computed from data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.core.sparse.compressed import Compressed
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
    rewrite,
)
from einsql.ir.einsum.graph_rewriting import fresh, map_exprs
from einsql.kernels.kernel import Arrays, Tick
from einsql.kernels.loops.generated import Groups, Table
from einsql.kernels.loops.loop_cuts import Cut
from einsql.kernels.loops.loop_nest import STRIP, Mode, Nest
from einsql.kernels.runtime import thread_pool
from einsql.kernels.sparse.row_loops import Marks, RowLoops
from einsql.kernels.sparse.visits import Route, Visit

COLUMN = ".column"
"""The field with the column of an element."""
SLOT = ".slot"
"""The field with the number of the current row's element in a column."""
FIRST, LAST = ".first", ".last"
"""The fields with the start and end of a row's elements."""
PIECES = 4
"""Boxes for each thread, because some take longer than their points say."""
STATES = 4
"""Least elements for each running value that a slice adds."""


@dataclass(frozen=True, slots=True)
class Size:
    """The properties of a matrix on which the node depends.

    Attributes:
        stored: The number of elements.
        starts, columns: The types of its arrays.
        is_constant: Whether its arrays never change.
    """

    stored: int
    starts: np.dtype
    columns: np.dtype
    is_constant: bool


def size_of(matrix: Compressed, is_constant: bool) -> Size:
    """The size of a matrix."""
    return Size(matrix.stored, matrix.starts.dtype, matrix.columns.dtype, is_constant)


def ends_of_rows(matrix: Compressed) -> dict[str, np.ndarray]:
    """The operand with the ends of a matrix's rows."""
    return {FIRST: matrix.starts[:-1], LAST: matrix.starts[1:]}


def _index(kind: np.dtype) -> DType:
    return DType.INTEGER if kind.itemsize == 4 else DType.BIGINT


class RouteLoops:
    """The loops of a route, for matrices of some sizes.

    Attributes:
        marks: The marks that the loops read.
        is_independent: Whether rows have different keys of the result, or different elements.
        slices: The number of running values of each key, for rows that share keys.
        inner: The points for each combination of elements.
        verifies: Whether the loops report each column outside of an operand that may change.
    """

    def __init__(
        self,
        node: EinSum,
        read: Mapping[int, Mapping[str, Field]],
        route: Route,
        sizes: tuple[Size, ...],
    ) -> None:
        """Creates the loops.

        Args:
            node: The node.
            read: The fields that are read of each sparse operand.
            route: The route.
            sizes: The sizes of the operands in the order of their visits, and of the product.
        """
        self.node, self.read, self.route, self.sizes = node, read, route, sizes
        self.taken = {a.label for a in node.axes}
        self.operands = list(node.operands)
        self.guards: list[Expr] = []
        self.axes: list[Axis] = [node.axis(route.row)]
        self.derived: list[Axis] = []
        self.marks: list[Marks] = []
        self.places: list[str] = []
        self.constant: list[str] = []
        self.element: str | None = None
        self.verifies = True
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

    def visit(self, v: Visit, size: Size) -> None:
        """Adds the loop over the elements of a row, or the look-up of one."""
        node = self.node
        operand = node.operands[v.number]
        keys = operand.source.schema.keys
        inner = [keys[operand.labels.index(x)] for x in v.columns]
        most = prod(k.extent for k in inner) - 1
        column = Value(v.number, COLUMN, _index(size.columns), (0, max(0, most)))
        at = len(node.operands) + len(self.ends)
        first, last = self.ends_of(at, v.rows, size)
        if v.looks_up:
            place = self.add_slot(first, last, v, size, inner[0].lo)
        else:
            place = self.named("place")
            self.places.append(place)
            self.axes.append(Axis(place, 0, size.stored))
            self.guards += _between(first, Label(place), last)
            if size.is_constant:
                self.constant.append(place)
            for label, define in zip(v.columns, _keys_at(column, inner), strict=True):
                if size.is_constant:
                    self.constant.append(label)
                self.derived.append(replace(node.axis(label), define=define))
        if not size.is_constant:
            self.verifies &= bool(v.columns) and not v.looks_up
            axes = map(node.axis, v.columns)
            self.verifies &= all(
                a.lo <= k.lo and k.hi <= a.hi for a, k in zip(axes, inner, strict=True)
            )
        if v.number == self.route.target:
            self.element = place
        fields = (*self.read[v.number].values(), Field(COLUMN, column.dtype))
        schema = Schema((Key("place", 0, size.stored),), fields)
        self.operands[v.number] = Operand(Input(f"elements {v.number}", schema), (place,))

    def add_slot(self, first: Value, last: Value, v: Visit, size: Size, lo: int) -> str:
        """Adds the look-up of an element in the current row; returns its label.

        Args:
            first: The start of the row's elements.
            last: Their end.
            v: The visit.
            size: The size of its operand.
            lo: The value of the columns' label at column 0.
        """
        slot = self.named("slot")
        shift = self.node.axis(v.columns[0]).lo - lo
        kind = np.dtype(np.int32 if size.stored < 2**31 else np.int64)
        number = self.first_mark + len(self.marks)
        self.marks.append(
            Marks(number, slot, v.columns[0], first, last, (v.number, COLUMN), shift, kind)
        )
        define = cast(Value(number, SLOT, _index(kind)), DType.BIGINT)
        self.axes.append(Axis(slot, 0, size.stored, define))
        self.guards.append(call("lt", DType.BOOLEAN, _wide(first), _wide(last)))
        self.guards += _between(first, Label(slot), last)
        return slot

    def marks_operand(self, mark: Marks) -> Operand:
        """The operand for marks; no array is passed for it."""
        axis = self.node.axis(mark.label)
        fields = (Field(SLOT, _index(mark.kind)),)
        schema = Schema((Key("column", axis.lo, axis.hi),), fields)
        return Operand(Input("marks", schema), (mark.label,))

    def ends_of(self, number: int, label: str, size: Size) -> tuple[Value, Value]:
        """Adds the operand with the ends of rows."""
        axis, kind = self.node.axis(label), _index(size.starts)
        within = 0, size.stored
        fields = Field(FIRST, kind), Field(LAST, kind)
        schema = Schema((Key("row", axis.lo, axis.hi),), fields)
        self.ends.append(Operand(Input(f"rows {number}", schema), (label,)))
        return Value(number, FIRST, kind, within), Value(number, LAST, kind, within)

    def add_product(self, size: Size) -> None:
        """Adds the elements of the product, whose number becomes the result's key."""
        number = len(self.operands)
        schema = Schema((Key("place", 0, size.stored),), (Field(COLUMN, _index(size.columns)),))
        self.ends.clear()
        first, last = self.ends_of(number + 1, self.route.row, size)
        (columns,) = self.route.visits[1].columns
        visit = Visit(number, self.route.row, (columns,), True)
        lo = self.node.axis(columns).lo
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
        node = self.node
        known = {a.label for a in (*self.axes, *self.derived)}
        rest = [a for a in node.axes if a.label not in known]
        self.free = [a.label for a in rest if a.define is None]
        driving = set(self.read)

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
        self.verifies &= nest.mode is Mode.REGISTERS
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
        return self.kernel.run(arrays, tick, boxes)


def _keys_at(column: Value, keys: Sequence[Key]) -> Iterator[Expr]:
    """The values of the keys that a column numbers."""
    below = prod(k.extent for k in keys)
    for n, key in enumerate(keys):
        below //= max(1, key.extent)
        number = cast(column, DType.BIGINT)
        if below > 1:
            number = call("idiv", DType.BIGINT, number, bigint(below))
        if n:
            number = call("mod", DType.BIGINT, number, bigint(max(1, key.extent)))
        yield call("add", DType.BIGINT, number, bigint(key.lo)) if key.lo else number


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
