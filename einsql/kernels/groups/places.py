"""The addresses of a block's values: source of a group's kernel, and its integer arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.kernels.groups.limits import Limit
from einsql.kernels.groups.members import Member
from einsql.kernels.groups.plan import Buffer, Plan
from einsql.kernels.loops.expressions import Program
from einsql.kernels.runtime.machine_code import Kernel

Source = tuple[int, int, str]
"""The number of a node, the number of its operand, and a field."""
Result = tuple[int, str]
"""The number of a node and a field of its result."""


@dataclass
class GroupInputs:
    """The inputs of runs, which determine the integer arguments of the kernel but addresses.

    Attributes:
        steps: The stride of each label in elements, of the operands from outside the group and of
            the results of other nodes.
        results: The arrays of the group's results, in C order.
        panel: The columns of a tile of each product.
    """

    steps: dict[Source, dict[str, int]]
    results: dict[Result, np.ndarray]
    panel: dict[int, int]


Number = Callable[[GroupInputs], int]


@dataclass
class Driver:
    """A group's kernel.

    Attributes:
        numbers: Functions that compute the integer arguments, in order, from the inputs of a run.
        bases: The arguments that are addresses, which `numbers` leaves 0: each one's number, and
            the operand or the result.
        reasons: The reason of each failure bit, per node.
        scratch: Bytes of the scratch of a thread; its first word is the number of the batch
            whose packed right sides it contains.
        blocks: The number of blocks.
        batch: The number of consecutive blocks with the same right sides.
        kernel: The compiled source; None before the first call.
    """

    source: str = ""
    numbers: list[Number] = field(default_factory=list)
    bases: list[tuple[int, Source | Result]] = field(default_factory=list)
    reasons: list[list[str]] = field(default_factory=list)
    scratch: int = 64
    blocks: int = 0
    batch: int = 0
    kernel: Kernel | None = None


class Places:
    """Collects the lines of a kernel, and the functions that compute its integer arguments."""

    def __init__(self, plan: Plan, strided: frozenset[Source]) -> None:
        self.plan = plan
        self.strided = strided
        self.out = Driver()
        self.lines: list[str] = []
        self.packing: list[str] = []
        self.head: list[str] = []
        self.depth = 1
        self.parted = False  # whether the code runs over a part of the rows
        self.rows = plan.classes.rows
        self.number = {id(m.origin): at for at, m in enumerate(plan.members)}
        self.functions: dict[str, None] = {}
        self.bodies: list[str] = []
        self.programs: dict[int, Program] = {}
        self.at: dict[Result, int] = {}  # byte offset of a buffer in the scratch

    # ---- text

    def emit(self, text: str) -> None:
        """Adds a line."""
        self.lines.append("    " * self.depth + text)

    def param(self, number: Number | int) -> str:
        """Adds an integer argument of the kernel; returns its name."""
        self.out.numbers.append(number if callable(number) else lambda _: number)
        return f"g{len(self.out.numbers) - 1}"

    def base(self, array: Source | Result) -> str:
        """Adds the address of an operand or a result as an argument; returns its name."""
        self.out.bases.append((len(self.out.numbers), array))
        return self.param(0)

    def room(self, nbytes: int) -> int:
        """Reserves bytes of the scratch; returns their offset."""
        start = self.out.scratch
        self.out.scratch += -(-nbytes // 64) * 64
        return start

    # ---- extents

    @property
    def along(self) -> int:
        """The class along which rows are cut into parts; -1 for complete rows."""
        return self.plan.parts.weights.along if self.plan.parts is not None else -1

    def length(self, c: int) -> str:
        """The number of values of a class that are processed at a time."""
        if self.parted and c == self.along:
            return "width"
        return self.param(1 if c in self.rows else self.plan.extent(c))

    # ---- addresses

    def outside(
        self, steps: Callable[[GroupInputs, int], int], fixed: Sequence[int], size: int
    ) -> str:
        """The byte offset of the block's first element in an array, as an expression.

        Args:
            steps: The stride of a class in elements.
            fixed: The classes of the array.
            size: Bytes of an element.
        """
        places = [(f"x{n}", c) for n, c in enumerate(self.rows)]
        places += [("part", self.along)] if self.parted else []

        def step(c: int) -> str:
            return self.param(lambda g: steps(g, c) * size)

        terms = [f"{place} * {step(c)}" for place, c in places if c in fixed]
        return " + ".join(terms) or "0"

    def read(self, source: Source) -> tuple[str, str]:
        """The address of an operand at the block's first row, and the bytes between rows."""
        at, operand, name = source
        m = self.plan.members[at]
        o = m.node.operands[operand]
        producer = self.number.get(id(o.source))
        size = itemsize(o.source.schema.dtype(name))
        if producer is not None and (buffer := self.plan.buffers[producer]) is not None:
            return self.in_buffer((producer, name), buffer, size)
        own = {m.own[x] for x in o.labels}

        def steps(g: GroupInputs, c: int) -> int:
            return sum(g.steps[source][x] for x in set(o.labels) if m.own[x] == c)

        base = self.base(source)
        begin = f"{base} + {self.outside(steps, sorted(own), size)}"
        cut = self.plan.block
        return begin, self.param(lambda g: steps(g, cut) * size if cut in own else 0)

    def made(self, result: Result) -> tuple[str, str]:
        """The address of a node's result at the block's first row, and the bytes between rows."""
        at, name = result
        m = self.plan.members[at]
        size = itemsize(next(o.dtype for o in m.node.outputs if o.name == name))
        buffer = self.plan.buffers[at]
        return (
            self.leaving(result, size) if buffer is None else self.in_buffer(result, buffer, size)
        )

    def in_buffer(self, result: Result, buffer: Buffer, size: int) -> tuple[str, str]:
        """The same as `made`, for a result in a buffer."""
        base = f"scratch + {self.param(self.at[result])}"
        return base, self.param(buffer.row * size if buffer.whole else 0)

    def leaving(self, result: Result, size: int) -> tuple[str, str]:
        """The same as `made`, for a result of the group."""
        m = self.plan.members[result[0]]
        keys = {m.own[k]: n for n, k in enumerate(m.node.keys)}

        def steps(g: GroupInputs, c: int) -> int:
            return g.results[result].strides[keys[c]] // size

        base = self.base(result)
        begin = f"{base} + {self.outside(steps, sorted(keys), size)}"
        cut = self.plan.block
        return begin, self.param(lambda g: steps(g, cut) * size)

    # ---- limits

    def covers(self, inner: int, edges: Sequence[tuple[bool, str, str]]) -> str:
        """The condition that all values of a part are within the limits of every row."""
        terms = []
        for rises, start, slope in edges:
            ends = f"{start}, {start} + (rows - 1) * {slope}"
            terms.append(f"max({ends}) <= 0" if rises else f"min({ends}) >= {self.length(inner)}")
        return " and ".join(terms)

    def edges(self, m: Member) -> tuple[int, list[tuple[bool, str, str]]]:
        """The class that a node's limits bound, and each limit as a linear function of the row.

        Returns:
            The class, and for each limit whether it is a lower bound, its value at the block's
            first row, and its increment from one row to the next.
        """
        bounds = self.plan.classes.bounds
        (inner,) = {x.inner for x in m.limits}
        lines: list[tuple[bool, str, str]] = []
        for x in sorted(m.limits, key=_order):
            sign = -1 if x.rises else 1
            start = sign * (x.constant + sum(f * bounds[c][0] for c, f in x.factors))
            start += (not x.rises) - bounds[inner][0]
            terms = [self.param(start)]
            slope = "0"
            for c, f in x.factors:
                by = self.param(sign * f)
                terms.append(f"x{self.rows.index(c)} * {by}")
                slope = by if c == self.plan.block else slope
            name = f"y{len(self.out.numbers)}"
            before = " - part" if self.parted and inner == self.along else ""
            self.emit(f"{name} = {' + '.join(terms)}{before}")
            lines.append((x.rises, name, slope))
        return inner, lines

    def around(self, m: Member) -> tuple[str, str]:
        """The first and last value of the limited label over the rows of the block."""
        inner, lines = self.edges(m)
        extent = self.length(inner)
        least, most = ["0"], [extent]
        for rises, start, slope in lines:
            ends = f"{start}, {start} + (rows - 1) * {slope}"
            (least if rises else most).append(f"{'min' if rises else 'max'}({ends})")
        name = f"z{len(self.out.numbers)}"
        return self.range(name, least, most, extent)

    def range(
        self, name: str, least: Sequence[str], most: Sequence[str], extent: str
    ) -> tuple[str, str]:
        """Names the range from the greatest lower bound to the least upper bound."""
        self.emit(f"{name} = min({_extreme('max', least)}, {extent})")
        self.emit(f"{name}e = max({_extreme('min', most)}, {name})")
        return name, f"{name}e"

    def step(self, source: Source, label: str) -> str:
        """The stride of a label in an operand, in elements."""
        at, operand, _ = source
        o = self.plan.members[at].node.operands[operand]
        producer = self.number.get(id(o.source))
        if producer is not None and (buffer := self.plan.buffers[producer]) is not None:
            return self.param(buffer.steps[o.labels.index(label)])
        return self.param(lambda g: g.steps[source][label])


def itemsize(dtype: DType) -> int:
    """Bytes of an element."""
    return dtype.numpy.itemsize


def _extreme(function: str, terms: Sequence[str]) -> str:
    return terms[0] if len(terms) == 1 else f"{function}({', '.join(terms)})"


def _order(x: Limit) -> tuple[bool, tuple[tuple[int, int], ...], int]:
    return x.rises, x.factors, x.constant
