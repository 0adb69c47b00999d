"""Loops over rows of sparse operands, with marks of the elements of the current row.

A label whose value is the number of an element in the current row of an operand is looked up in
marks: an array with the number of the row's element for each column. A loop nest writes the marks
of a row when it enters the row. Marks of earlier rows remain, and have numbers outside of the row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from einsql.core.records import dataclass
from einsql.core.sparse.compressed import OUTSIDE, changed
from einsql.errors import Error
from einsql.ir.einsum.graph import EinSum, Expr, Value, exprs
from einsql.ir.functions import REDUCTIONS
from einsql.kernels.loops.codegen import Writer
from einsql.kernels.loops.expressions import Program, Role
from einsql.kernels.loops.generated import Loops
from einsql.kernels.loops.loop_cuts import Cut
from einsql.kernels.loops.loop_nest import Mode, Nest
from einsql.kernels.loops.states import Cell
from einsql.kernels.loops.strips import FOLDED


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of the elements of an operand's current row.

    Attributes:
        operand: The number of the operand that stands for the marks, with one key.
        slot: The label of the elements that are found.
        label: The label of the columns.
        first, last: The start and end of the row's elements, BIGINT.
        columns: The number of an operand and the name of its field with the column of each element.
        shift: The column of the label's least value.
        kind: The type of marks, which holds the number of an element.
    """

    operand: int
    slot: str
    label: str
    first: Value
    last: Value
    columns: tuple[int, str]
    shift: int
    kind: np.dtype


class RowLoops(Loops):
    """Runs the kernel of a node with marks.

    Args:
        node: The node.
        nest: The order of its loops, first that over rows.
        boxes: The partition of the loops.
        marks: The marks.
        unchanging: The labels that are computed from arrays that never change.
        near: Whether the kernel assumes small angles.
    """

    def __init__(
        self,
        node: EinSum,
        nest: Nest,
        boxes: Cut,
        marks: Sequence[Marks],
        unchanging: Collection[str],
        near: bool = True,
    ) -> None:
        self.marks, self.unchanging = marks, unchanging
        super().__init__(node, nest, near, boxes)

    def written(self, strided: frozenset[tuple[int, str]]) -> Program:
        """See `Loops.written`."""
        writer = _RowWriter(self.node, self.nest, strided, self.near)
        writer.marks = {m.operand: m for m in self.marks}
        writer.unchanging = self.unchanging
        return writer.write()

    def error(self, reasons: Sequence[str], bits: int) -> Error:
        """See `Loops.error`; a changed structure precedes the failures that it causes."""
        if OUTSIDE in reasons and bits & 1 << reasons.index(OUTSIDE):
            return changed(OUTSIDE)
        return super().error(reasons, bits)

    def with_far(self) -> RowLoops:
        """See `Loops.with_far`."""
        return RowLoops(self.node, self.nest, self.boxes, self.marks, self.unchanging, near=False)


class _RowWriter(Writer):
    """Writes marks when the kernel enters a row, and reads them.

    Attributes:
        marks: The marks, by the number of the operand that stands for them.
        unchanging: The labels that are computed from arrays that never change.
    """

    marks: Mapping[int, Marks] = {}
    unchanging: Collection[str] = ()

    def may_change(self, label: str, define: Expr) -> bool:
        """See `Points.may_change`."""
        return label not in self.unchanging and super().may_change(label, define)

    def kept_within(self, value: str, least: str, most: str) -> str:
        """See `Points.kept_within`; sums in registers report a value outside of the bounds.

        A branch that is never taken costs less than two selections. It would stop other loops from
        being vectorised, so they take the nearest value within the bounds, as all kernels do.
        """
        if self.nest.mode is not Mode.REGISTERS:
            return super().kept_within(value, least, most)
        above, room = (f"np.uint64({x}) - np.uint64({least})" for x in (value, most))
        self.emit(f"if {above} > {room}:")
        self.emit(f"    bad |= {self.bit(OUTSIDE)}")
        self.emit("    continue")
        return value

    def innermost(self) -> list[str]:
        """The innermost loop; most rows are short, so that their sums need no strips."""
        settled = self.settled()
        if settled:
            self.after[self.depth].append(f"if {settled}: break")
        lines, sums = super().innermost(), [n for n, o in self.running() if self.folds(o)]
        if not sums or self.nest.carry or self.wraps or self.depth > self.nest.kept + 1:
            return lines
        n = self.depth - 1
        return [
            f"if e{n} - b{n} <= {FOLDED}:",
            *(f"    s{m} = np.float64(0)" for m in sums),
            f"    for l{n} in range(b{n}, e{n}):",
            *(f"        {line}" for line in self.before[self.depth]),
            *(f"    h{m} = s{m}" for m in sums),
            "else:",
            *(f"    {line}" for line in lines),
        ]

    def settled(self) -> str:
        """Source that is true once no further element changes the truths of a row.

        A search of a graph from few vertices so reads few edges of the others. Loops over elements
        gather what they read, so that no vectorised loop is lost.
        """
        monoids = {n: REDUCTIONS[o.reduction or ""].monoid for n, o in self.running()}
        is_truth = bool(monoids) and set(monoids.values()) <= {"and", "or"}
        inside = self.nest.mode is Mode.REGISTERS and self.depth > self.nest.kept
        if not is_truth or not inside or self.nest.carry or self.wraps:
            return ""
        if any(map(self.fails, exprs(self.node))):
            return ""  # an element that is not reached could raise
        return " and ".join(f"s{n}" if m == "or" else f"not s{n}" for n, m in monoids.items())

    def conditions(self) -> None:
        """Writes the marks after the conditions on the row."""
        super().conditions()
        self.at = 1
        for m in self.marks.values():
            columns = f"a{self.array_number(m.columns)}"
            extent = self.extent(m)
            shift = f" - {m.shift}" if m.shift else ""
            name = self.name_of(m)
            first, last = self.value(m.first), self.value(m.last)
            if m.label not in self.unchanging:  # the owner of an array may change its ends
                first = f"max(np.int64({first}), 0)"
                last = f"min(np.int64({last}), {self.param(Role.HI, m.slot)})"
            self.emit(f"for x in range({first}, {last}):")
            self.emit(f"    y{m.operand} = np.int64({columns}[x]){shift}")
            self.emit(f"    if y{m.operand} >= 0 and y{m.operand} < {extent}:")
            self.emit(f"        {name}[y{m.operand}] = np.{m.kind}(x)")

    def load(self, e: Value) -> str:
        """Source that reads an operand, or a mark."""
        m = self.marks.get(e.operand)
        return super().load(e) if m is None else f"{self.name_of(m)}[{self.index[m.label]}]"

    def rooms(self, rows: Sequence[Cell], part: Iterator[int]) -> tuple[list[str], list[str]]:
        """Working memory for running values and for marks; no element has the first marks."""
        rooms, lines = super().rooms(rows, part)
        for m in self.marks.values():
            room = f"room_of_{self.name_of(m)}"
            rooms.append(room)
            lines += [
                f"{room} = borrow({m.kind.itemsize} * {self.extent(m)})",
                f"{self.name_of(m)} = result({room}, np.{m.kind}, {next(part)})",
                f"for x in range({self.extent(m)}):",
                f"    {self.name_of(m)}[x] = np.{m.kind}(-1)",
            ]
        return rooms, lines

    def name_of(self, m: Marks) -> str:
        """The name of an array of marks."""
        return f"marks{m.operand}"

    def extent(self, m: Marks) -> str:
        """Source of the number of marks."""
        return f"({self.param(Role.HI, m.label)} - {self.param(Role.LO, m.label)})"

    def array_number(self, key: tuple[int, str]) -> int:
        """The number of an operand's field among the arrays that the kernel reads."""
        if key not in self.out.arrays:
            self.out.arrays.append(key)
        return self.out.arrays.index(key)
