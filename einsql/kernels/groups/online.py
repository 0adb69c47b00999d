"""Source for the values that a group's kernel carries from one part of a row to the next.

For each row these are the running maximum of x and the factor that rescales the running sums
when it grows. A part without a greater x costs one comparison.
"""

from __future__ import annotations

from einsql.kernels.groups.places import Places, Source, itemsize
from einsql.kernels.groups.plan import Parts, Plan
from einsql.kernels.loops.expressions import STORED


class Online(Places):
    """Writes the code that encloses the stages of a part."""

    def __init__(self, plan: Plan, strided: frozenset[Source]) -> None:
        super().__init__(plan, strided)
        parts = plan.parts
        self.sums: list[int] = []
        if parts is None:
            return
        w = parts.weights
        self.carries = {w.extreme: "carry", w.total: "fold"}
        self.sums = sorted(parts.folds - set(self.carries))
        dtype = plan.members[w.made].node.outputs[0].dtype
        self.size, self.element = itemsize(dtype), f"np.{STORED[dtype]}"
        self.extremes, self.factors, self.totals = (
            self.param(self.room(plan.rows * width)) for width in (self.size, self.size, 8)
        )

    def begin(self, parts: Parts) -> None:
        """Writes the initial values of all rows and the head of the loop over parts."""
        plan = self.plan
        self.emit(f"begin({self.carried('0')}, rows)")
        for at in self.sums:
            self.emit(f"clear_rows({self.summed(at)})")
        extent, step = self.param(plan.extent(parts.weights.along)), self.param(parts.size)
        m = plan.members[parts.weights.total]
        first, stop = self.around(m) if m.limits else ("0", extent)
        self.emit(f"for part in range({first} // {step} * {step}, {stop}, {step}):")
        self.depth += 1
        self.emit(f"width = min({step}, {extent} - part)")
        self.parted = True

    def carry(self, at: int) -> None:
        """Merges a strip of a node's rows into the carried values."""
        if at in self.carries:
            self.emit(f"{self.carries[at]}({self.carried('r')}, {self.row(at, 'r')}, strip)")

    def rescale(self, at: int) -> None:
        """Multiplies the running sums by the factors of the weights."""
        self.emit(f"rescale({self.summed(at)}, {self.lying(self.factors, '0', self.size)})")

    def finish(self) -> None:
        """Writes the extremes and sums of complete rows to their buffers."""
        self.depth -= 1
        self.parted = False
        maximum, total = (self.row(at, "0") for at in self.carries)
        parts = self.plan.parts
        empty = self.param(int(parts is not None and parts.weights.safe))
        self.emit(f"finish({self.carried('0')}, {maximum}, {total}, rows, {empty})")

    def carried(self, row: str) -> str:
        """The extremes, factors and sums, starting at a row."""
        double = self.lying(self.totals, row, 8).replace(self.element, "np.float64")
        rest = (self.lying(start, row, self.size) for start in (self.extremes, self.factors))
        return ", ".join([*rest, double])

    def lying(self, start: str, row: str, size: int) -> str:
        """The scratch memory, starting at a row."""
        return f"at(scratch + {start} + {row} * {size}, {self.element})"

    def row(self, at: int, row: str) -> str:
        """A node's result starting at a row, and the elements between rows."""
        (o,) = self.plan.members[at].node.outputs
        begin, between = self.made((at, o.name))
        array = f"at({begin} + {row} * {between}, np.{STORED[o.dtype]})"
        return f"{array}, {between} // {itemsize(o.dtype)}"

    def summed(self, at: int) -> str:
        """The sums of a product: values, elements between rows, and numbers of rows and columns."""
        m, buffer = self.plan.members[at], self.plan.buffers[at]
        assert m.product is not None
        assert buffer is not None
        begin = f"scratch + {self.param(self.at[at, m.node.outputs[0].name])}"
        wide = self.param(m.node.axis(m.product.wide).extent)
        return f"at({begin}, {self.element}), {self.param(buffer.row)}, rows, {wide}"
