"""Reductions to states of several fields: statements that merge points, and lanes of states.

A state's running values are cells, one for each field. A point is merged by the expressions of
MERGE, over the cells and over the point's own expressions. All fields are computed before a cell
changes. A chain of merges waits for each of them, so a long innermost loop has several lanes of
running values, which are merged after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from einsql.core.records import dataclass
from einsql.core.schema import DType, Field, Key, Schema
from einsql.ir.einsum.graph import TRUE, EinSum, Expr, Input, Operand, Output, Value
from einsql.ir.einsum.states import State, has_order, merge_expressions, owners, state_of
from einsql.ir.functions import REDUCTIONS
from einsql.kernels.loops.expressions import CARRIERS, literal, typed
from einsql.kernels.loops.loop_nest import Mode, Nest
from einsql.kernels.loops.quotients import Wraps

Cell = tuple[str, DType, str]
"""The name, the type and the initial value of a running value."""


@dataclass(frozen=True, slots=True)
class _Law:
    """A state that a kernel reduces to.

    Attributes:
        earlier: The number of the operand that stands for the running values.
        later: The number of the operand that stands for other running values.
    """

    state: State
    earlier: int
    later: int

    def side(self, operand: int) -> list[Value]:
        """The fields of one of the two operands."""
        return [Value(operand, f.name, f.dtype) for f in self.state.fields]


class States(Wraps):
    """Writes the merges of states.

    Attributes:
        owner: For each output the number of the output whose running values it reads.
        laws: The states, by the number of the output that has their running values.
        spelled_cells: How the fields of the operands that stand for running values are read.
        slice_merge: The statements that merge the running values of slices.
        lane_merge: The statements that merge the running values of lanes.
    """

    def __init__(
        self, node: EinSum, nest: Nest, strided: frozenset[tuple[int, str]], near: bool = False
    ) -> None:
        self.owner = owners(node.outputs)
        self.laws: dict[int, _Law] = {}
        self.spelled_cells: dict[int, str] = {}
        self.read_operands = len(node.operands)
        operands = list(node.operands)
        keys = tuple(Key(a.label, a.lo, a.hi) for a in node.axes)
        labels = tuple(a.label for a in node.axes)
        for n, o in enumerate(node.outputs):
            if is_state(o) and self.owner[n] == n:
                state, place = state_of(o.reduction or ""), len(operands)
                schema = Schema(keys, tuple(Field(f.name, f.dtype) for f in state.fields))
                operands += [Operand(Input("state", schema), labels)] * 2
                self.laws[n] = _Law(state, place, place + 1)
        self.slice_merge: list[str] = []
        self.lane_merge: list[str] = []
        super().__init__(replace(node, operands=tuple(operands)), nest, strided, near)

    @property
    def lanes(self) -> int:
        """The number of states that the innermost loop merges side by side; 1 for no lanes."""
        return 1 if self.wraps or len(self.laws) != len(set(self.owner)) else self.nest.lanes

    def running(self) -> list[tuple[int, Output]]:
        """The numbered outputs that have running values of their own."""
        outputs = enumerate(self.node.outputs)
        return [(n, o) for n, o in outputs if o.reduction is not None and self.owner[n] == n]

    def load(self, e: Value) -> str:
        """Source that reads an operand, or a running value."""
        if e.operand < self.read_operands:
            return super().load(e)
        cell = self.spelled_cells[e.operand].format(field=self.field_number(e))
        return f"({cell} != 0)" if e.dtype is DType.BOOLEAN else cell

    def field_number(self, e: Value) -> int:
        """The position of a field of a state."""
        fields = self.node.operands[e.operand].source.schema.fields
        return next(k for k, f in enumerate(fields) if f.name == e.field)

    # Points ------------------------------------------------------------------------

    def merge_point(self, n: int, o: Output, at: str, in_row: bool) -> None:
        """Merges a point into the running state of output `n`.

        Args:
            n: The number of the output that has the running values.
            o: The output.
            at: The index of the running values.
            in_row: Whether the running values are a row, whose loop has to be free of branches.
        """
        law = self.laws[n]
        self.spelled_cells[law.earlier] = f"s{n}_{{field}}{at}"
        merges = merge_expressions(law.state, law.side(law.earlier), o.args, self.bounds)
        test = None if o.where == TRUE else self.value(o.where)
        if test is not None and any(
            map(self.fails if in_row else self.postponed, [*o.args, *merges])
        ):
            self.emit(f"if {test}:")
            with self.inside():
                self.set_cells(n, o, at, merges, None)
        else:
            self.set_cells(n, o, at, merges, test)

    def set_cells(
        self, n: int, o: Output, at: str, merges: Sequence[Expr], test: str | None
    ) -> None:
        """Computes all fields of a merged state, and then sets those that change."""
        law = self.laws[n]
        for a in o.args:
            if self.fails(a):  # at every selected point, not only where MERGE uses it
                self.value(a)
        changed = [
            (k, f.dtype, self.value(e))
            for k, (f, e) in enumerate(zip(law.state.fields, merges, strict=True))
            if e != Value(law.earlier, f.name, f.dtype)
        ]
        for k, dtype, new in changed:
            cell = f"s{n}_{k}{at}"
            old = f"({cell} != 0)" if dtype is DType.BOOLEAN else cell
            self.emit(
                f"{cell} = {typed(dtype, new if test is None else f'{new} if {test} else {old}')}"
            )

    # Lanes -------------------------------------------------------------------------

    def in_lanes_of_states(self, ends: tuple[str, str], body: Sequence[str]) -> list[str]:
        """Writes the innermost loop with several lanes of running values.

        The lanes are neighbours, or parts of the loop if the states are merged in order.
        """
        n, lanes, start, end = self.depth - 1, self.lanes, *ends
        cells = [c for m in self.laws for c in self.state_cells(m)]
        in_order = has_order(self.node)
        rounds = f"max({end} - {start}, 0) // {lanes}"  # a guard may leave no point of a row
        at = "[np.uintp(x)]" if in_order else f"[np.uintp(l{n} - v)]"
        laned = [_in_lane(line, at) for line in body]
        text = [
            f"for x in range({lanes}):",
            *(f"    {_lane(name)}[np.uintp(x)] = {first}" for name, _, first in cells),
        ]
        if in_order:
            text += [
                f"w = {rounds}",
                "for v in range(w):",
                f"    for x in range({lanes}):",
                f"        l{n} = {start} + x * w + v",
                *(f"        {line}" for line in laned),
            ]
        else:
            text += [
                f"for v in range({start}, {end}, {lanes}):",
                f"    for l{n} in range(v, min(v + {lanes}, {end})):",
                *(f"        {line}" for line in laned),
            ]
        text += self.lane_merge
        if in_order:
            text += [
                f"for l{n} in range({start} + {rounds} * {lanes}, {end}):",
                *(f"    {line}" for line in body),
            ]
        return text

    def prepare_merges(self) -> None:
        """Writes the merges of slices and lanes, before the kernel's arguments are counted."""
        if self.laws and self.nest.keeps_state:
            self.slice_merge = self.merging_slices()
        if self.lanes > 1:
            self.lane_merge = self.merging_lanes()

    def merging_lanes(self) -> list[str]:
        """Writes the merge of the lanes, in pairs, and then with the running state."""
        first, second = ("2 * x", "2 * x + 1") if has_order(self.node) else ("x", "x + w")
        cell, later = (f"r{{n}}_{{{{field}}}}[np.uintp({at})]" for at in (first, second))
        goal = "r{n}_{{field}}[np.uintp(x)]"
        return [
            f"for u in range(1, {self.lanes.bit_length()}):",
            f"    w = {self.lanes} >> u",
            "    for x in range(w):",
            *(f"        {line}" for line in self.merging(goal, cell, later)),
            *self.merging("s{n}_{{field}}", "s{n}_{{field}}", "r{n}_{{field}}[0]"),
        ]

    def merging_slices(self) -> list[str]:
        """Writes the merge of the slices' running values, which a call without a box is for.

        Such a call has the negative number of slices and their number of elements as its first
        two arguments. The first slice becomes the merged one.
        """
        prefix = "o_" if self.nest.carry else ""
        earlier, later = (f"{prefix}s{{n}}_{{{{field}}}}[np.uintp({at})]" for at in ("x", "x + w"))
        return [
            "if p[0] < 0:",
            "    for u in range(1, -p[0]):",
            "        w = u * p[1]",
            "        for x in range(p[1]):",
            *(f"            {line}" for line in self.merging(earlier, earlier, later)),
            "    return bad",
        ]

    def merging(self, goal: str, earlier: str, later: str) -> list[str]:
        """Writes the merge of the running values of every state.

        Args:
            goal: The cells of the merged state, over the number `n` of the output.
            earlier: The cells of the earlier state.
            later: The cells of the later state.
        """
        with self.apart() as lines:
            for n, law in self.laws.items():
                self.spelled_cells[law.earlier] = earlier.format(n=n)
                self.spelled_cells[law.later] = later.format(n=n)
                sides = law.side(law.earlier), law.side(law.later)
                values = [self.value(e) for e in merge_expressions(law.state, *sides, self.bounds)]
                for k, (f, new) in enumerate(zip(law.state.fields, values, strict=True)):
                    cell = goal.format(n=n).format(field=k)
                    self.emit(f"{cell} = {typed(f.dtype, new)}")
        return lines

    @contextmanager
    def apart(self) -> Iterator[list[str]]:
        """Collects statements that belong to no level."""
        lines: list[str] = []
        saved = self.at, self.lazy, self.before[self.depth], self.names[self.depth]
        self.at, self.lazy = self.depth, []
        self.before[self.depth], self.names[self.depth] = lines, {}
        yield lines
        self.at, self.lazy, self.before[self.depth], self.names[self.depth] = saved

    def rooms(self, rows: Sequence[Cell], part: Iterator[int]) -> tuple[list[str], list[str]]:
        """Working memory for rows of running values or for lanes.

        Args:
            rows: The running values of all outputs.
            part: Numbers for parts of memory.

        Returns:
            The names of the memory, and the statements that borrow it.
        """
        row = self.nest.mode is Mode.ROW
        if not row and self.lanes == 1:
            return [], []
        rooms, lines = [f"room{n}" for n in range(len(rows))], []
        for room, (name, dtype, _) in zip(rooms, rows, strict=True):
            kind = "np.bool_" if dtype is DType.BOOLEAN else f"np.{CARRIERS[dtype]}"
            place = f"result({room}, {kind}, {next(part)})" if self.laws else f"at({room}, {kind})"
            lines.append(f"{room} = borrow(8 * {'width' if row else self.lanes})")
            lines.append(f"{name if row else _lane(name)} = {place}")
        return rooms, lines

    def state_cells(self, n: int) -> list[Cell]:
        """The running values of the state of output `n`."""
        return state_cells(n, self.node.outputs[n])


def is_state(o: Output) -> bool:
    """True if an output is a field of a state."""
    return o.reduction is not None and bool(REDUCTIONS[o.reduction].fields)


def state_cells(n: int, o: Output) -> list[Cell]:
    """The name, type and initial value of each running value of the state of output `n`."""
    fields = state_of(o.reduction or "").fields
    return [(f"s{n}_{k}", f.dtype, literal(f.dtype, f.start)) for k, f in enumerate(fields)]


def _lane(cell: str) -> str:
    """The array of the lanes of a running value."""
    return f"r{cell[1:]}"


def _in_lane(line: str, at: str) -> str:
    """A statement over the running values of a lane."""
    return re.sub(r"\bs(\d+_\d+)\b", rf"r\1{at}", line)
