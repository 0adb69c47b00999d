"""CUDA source text of an EinSum, derived from the loops for CPUs.

A grid runs over the keys of the result. A single thread computes all points of its key. In a
team, the threads of a block share the points, and several blocks may share a key: their running
values are merged in shared memory, stored, and merged again by a second kernel. Data-dependent
keys (segments) use a list of points sorted by key, without atomics.

Source written for the processor names functions of `math` and of NumPy. Each of them is replaced by
a function of `runtime.py`, which runs on the simulator as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import Call, Const, EinSum, Output, Value
from einsql.ir.functions import REDUCTIONS, SCALARS
from einsql.kernels.loops.codegen import BITS, COMBINE, Writer, cells, read
from einsql.kernels.loops.expressions import Program, Role, memory
from einsql.kernels.loops.loop_nest import Mode, Nest, free_labels, product

HEADER = """\
import numpy as np
from numba import cuda
from einsql.kernels.cuda.runtime import (
    add_overflows, arccos, arccosh, arcsin, arctanh, asinh, atan, atan2, cbrt, ceil, cos, cosh,
    degrees, eq, erf, exp, floor, floored_remainder, fmod, half, idiv, isfinite, isinf, less,
    lgamma, log, log10, log2, maximum, minimum, mul_double, mul_float, mul_overflows, plus, power,
    radians, ratio, remainder, rint, round_away, round_half, scaled_round, sigmoid, sign_of, sin,
    sinh, sqrt, sub_overflows, tan, tanh, times, to_half, truncate,
)


"""
FUNCTIONS = (
    "arccos", "arccosh", "arcsin", "arctanh", "asinh", "atan", "atan2", "cbrt", "ceil", "cos",
    "cosh", "degrees", "floor", "isfinite", "isinf", "lgamma", "log10", "radians", "rint", "sin",
    "sinh", "sqrt", "tan",
)  # fmt: skip
"""Functions of `math` and of NumPy that generated source names."""
_INTEGERS = {"trunc": "{0}", "round": "{0}"}
_FLOATS = {"idiv": "{0} / {1}", "mod": "fmod({0}, {1})"}
_ALWAYS = {
    "sign": "sign_of({0})",
    "pow": "power({0}, {1})",
    "and": "{0} & {1}",  # both are known, and a branch would cost more
    "or": "{0} | {1}",
}
_DOUBLE = {
    "mul": "mul_double({0}, {1})",
    "sigmoid": "sigmoid({0}, 1.0)",
}
_FLOAT = {
    "mul": "mul_float({0}, {1})",
    "sigmoid": "sigmoid({0}, np.float32(1))",
}
_LIBRARY = re.compile(rf"\b(?:math|np)\.({'|'.join(FUNCTIONS)})\(")
_POWERS = {
    2.0: "{1}({0}, {0})",
    3.0: "{1}({1}({0}, {0}), {0})",
    4.0: "{1}({1}({0}, {0}), {1}({0}, {0}))",
}
"""Products in place of powers; `{1}` multiplies."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The mapping of a kernel's threads to a node.

    Attributes:
        nest: The free labels, keys first.
        sorted: The free labels that decide data-dependent keys; empty without such keys.
        indexed: Whether keys are computed and every point has a different key.
    """

    nest: Nest
    sorted: tuple[str, ...]
    indexed: bool


def plan_grid(node: EinSum) -> Grid | None:
    """Creates the grid of a node; None if a grid cannot represent a computed key."""
    decided = free_labels(node)
    free = [a.label for a in node.axes if a.define is None]
    kept = [k for k in node.keys if k in free]
    derived = [k for k in node.keys if k not in free]
    gone = [x for x in free if x not in kept]
    deciding = {x for k in derived for x in decided[k]}
    if not deciding & set(gone):
        nest = Nest((*kept, *gone), len(kept), Mode.REGISTERS, False)
        return Grid(nest, (), bool(derived))
    order = tuple(x for x in free if x in deciding)
    gone.sort(key=lambda x: x not in deciding)
    return Grid(Nest((*kept, *gone), len(kept), Mode.REGISTERS, False), order, False)


def generate_cuda(node: EinSum, grid: Grid, team: int) -> Program | None:
    """Writes the kernel of a node; None if a key is known only inside its reduction.

    Args:
        node: Any EinSum without empty axes.
        grid: The mapping of threads.
        team: The number of threads that share a key; 1 for single threads.
    """
    if grid.indexed:
        probe = CudaWriter(node, grid, team)
        probe.conditions()
        if any(probe.level[k] > grid.nest.kept for k in node.keys):
            return None
    return CudaWriter(node, grid, team).write()


class CudaWriter(Writer):
    """Writes the statements of a kernel for a grid."""

    has_ends = False

    def __init__(self, node: EinSum, grid: Grid, team: int) -> None:
        super().__init__(node, grid.nest, frozenset(), near=False)
        self.grid, self.team = grid, team

    # Expressions -------------------------------------------------------------------

    def load(self, e: Value) -> str:
        """Reads an operand, an array with an axis per label."""
        key = (e.operand, e.field)
        if key not in self.out.arrays:
            self.out.arrays.append(key)
        labels = self.node.operands[e.operand].labels
        index = ", ".join(self.index[x] for x in labels) or "()"
        text = f"a{self.out.arrays.index(key)}[{index}]"
        if e.dtype is DType.BOOLEAN:
            return f"{text} != 0"
        return f"half({text})" if e.dtype is DType.HALF else text

    def call(self, e: Call) -> str:
        """Computes a function; powers are products of rounded factors."""
        if product(e) is None:
            return super().call(e)
        text = power(e, self.value(e.args[0]))
        assert text is not None
        return self.temp(text)

    def spelled(self, e: Call) -> str:
        """The source of a function over its arguments."""
        return template(e)

    def skip_unless(self, test: str) -> None:
        """Skips the current point, or the current key, unless `test` holds."""
        self.emit(f"if not {test}:")
        self.emit("    continue")

    def in_lanes(self, o: Output) -> bool:
        """False, as a thread processes one value at a time."""
        return False

    def folds(self, o: Output) -> bool:
        """False, as teams add the sums of their threads."""
        return False

    def scans(self, o: Output, test: str | None) -> bool:
        """False, as threads wait for each other, not for comparisons."""
        return False

    def result_index(self, level: int) -> str:
        """The index into the result arrays."""
        return super().result_index(level) if self.grid.indexed else "x"

    # Reductions --------------------------------------------------------------------

    def finish_reductions(self) -> None:
        """Stores results, or the running values of a team."""
        if self.team == 1:
            super().finish_reductions()
            return
        self.at = self.nest.kept
        after = self.after[self.at]
        running = [c for n, o in enumerate(self.node.outputs) for c in cells(n, o)]
        after += [f"h_{name}[t] = {name}" for name, _, _ in running]
        after += ["cuda.syncthreads()", f"step = {self.team // 2}", "while step > 0:"]
        after.append("    if t < step:")
        for n, o in enumerate(self.node.outputs):
            other = [read(f"h_{c}[t + step]", d) for c, d, _ in cells(n, o)]
            after += ["        " + line for line in self.merged(n, o, other)]
            after += [f"        h_{c}[t] = {c}" for c, _, _ in cells(n, o)]
        after += ["    cuda.syncthreads()", "    step = step // 2", "if t == 0:"]
        after += [f"    o_{name}[w] = {name}" for name, _, _ in running]
        after.append("cuda.syncthreads()")

    def merged(self, n: int, o: Output, other: Sequence[str]) -> list[str]:
        """Statements that merge other running values into those of output `n`."""
        entry = REDUCTIONS[o.reduction or ""]
        new = other[0]
        if entry.better is not None:
            wins = entry.better.format(other[1], f"m{n}")
            loses = entry.better.format(f"m{n}", other[1])
            tied = f"(not {loses} and {new} < s{n})"
            return [
                f"if {other[2]} and (not f{n} or {wins} or {tied}):",
                f"    s{n} = {new}",
                f"    m{n} = {other[1]}",
                f"    f{n} = True",
            ]
        if entry.monoid in BITS:
            return [f"s{n} = s{n} {BITS[entry.monoid]} {new}"]
        lines = []
        if o.reduction in ("sum", "product") and o.dtype.is_integer:
            fails = SCALARS[entry.monoid or ""].fails
            lines += [
                f"if {fails[DType.BIGINT].numba.format(f's{n}', new)}:",
                f"    bad |= {self.bit(fails[o.dtype].reason)}",
            ]
        return [*lines, f"s{n} = {COMBINE[o.reduction or '']}(s{n}, {new})"]

    # Text --------------------------------------------------------------------------

    def assemble(self) -> str:
        """The module's text."""
        kept, depth = self.nest.kept, self.depth
        lines = ["bad = np.int64(0)"]
        if self.team > 1:
            lines.append("t = cuda.threadIdx.x")
            for n, o in enumerate(self.node.outputs):  # one per line, the simulator's identity
                lines += [
                    f"h_{c} = cuda.shared.array({self.team}, np.{memory(d)})"
                    for c, d, _ in cells(n, o)
                ]
            lines.append("for w in range(cuda.blockIdx.x, size * splits, cuda.gridDim.x):")
            lines += ["    x = w // splits", "    part = w % splits"]
        else:
            lines.append("for x in range(cuda.grid(1), size, cuda.gridsize(1)):")
        pad = "    "
        lines += [pad + line for line in self.key_digits()]
        for n in range(kept + 1):
            lines += [pad + line for line in self.before[n]]
        done = kept
        for head, digits, last in self.heads():
            lines += [pad + head]
            pad += "    "
            lines += [pad + line for line in digits]
            for n in range(done + 1, last + 1):
                lines += [pad + line for line in self.before[n]]
            done = last
        assert done == depth
        lines += ["    " + line for line in self.after[kept]]
        lines += ["if bad != 0:", "    cuda.atomic.or_(failed, 0, bad)"]
        body = "\n".join(f"    {for_cuda(line)}" for line in lines)
        return f"{HEADER}@cuda.jit\ndef kernel({', '.join(self.arguments())}):\n{body}\n"

    def key_digits(self) -> list[str]:
        """Statements that compute the labels of the result's key number `x`."""
        if not self.grid.sorted:
            digits = [(f"l{n}", f"e{n}") for n in range(self.nest.kept)]
            return _digits("x", digits)
        digits, number = [], []
        for n, k in enumerate(self.node.keys):
            if k in self.nest.loops:
                at = self.nest.loops.index(k)
                digits.append((f"l{at}", f"e{at}"))
            else:
                digits.append((f"g{n}", f"({self.param(Role.HI, k)} - {self.param(Role.LO, k)})"))
            if k not in self.nest.loops or k in self.grid.sorted:
                number.append(digits[-1])
        text = "0"
        for digit, extent in number:
            text = digit if text == "0" else f"({text}) * {extent} + {digit}"
        return [*_digits("x", digits), f"segment = {text}"]

    def heads(self) -> list[tuple[str, list[str], int]]:
        """The loops over points: their heads, initial values, and innermost level."""
        kept, depth = self.nest.kept, self.depth
        first = f"part * {self.team} + t"
        if self.grid.sorted:
            last = kept + sum(x in self.grid.sorted for x in self.nest.loops[kept:])
            places = [self.nest.loops.index(x) for x in self.grid.sorted]
            digits = _digits("order[q]", [(f"l{n}" if n >= kept else "", f"e{n}") for n in places])
            ends = "bounds[segment]", "bounds[segment + 1]"
            if self.team > 1:
                start = f"{ends[0]} + {first}"
                heads = [
                    (f"for q in range({start}, {ends[1]}, splits * {self.team}):", digits, last)
                ]
            else:
                heads = [(f"for q in range({ends[0]}, {ends[1]}):", digits, last)]
        elif self.team > 1:
            total = " * ".join(f"e{n}" for n in range(kept, depth))
            digits = _digits("v", [(f"l{n}", f"e{n}") for n in range(kept, depth)])
            return [(f"for v in range({first}, {total}, splits * {self.team}):", digits, depth)]
        else:
            heads, last = [], kept
        nested = [(f"for l{n} in range(e{n}):", list[str](), n + 1) for n in range(last, depth)]
        return heads + nested

    def arguments(self) -> list[str]:
        """The names of the kernel's arguments."""
        names = ["size", *(["splits"] if self.team > 1 else [])]
        names += [f"e{n}" for n in range(self.depth)]
        names += [f"p{n}" for n in range(len(self.out.params))]
        names += [f"c{n}" for n in range(len(self.out.constants))]
        names += [f"a{n}" for n in range(len(self.out.arrays))]
        names += ["order", "bounds"] if self.grid.sorted else []
        if self.team > 1:
            names += [f"o_{c}" for n, o in enumerate(self.node.outputs) for c, _, _ in cells(n, o)]
        else:
            names += [f"o{n}" for n in range(len(self.node.outputs))]
        return [*names, "failed"]


def finishing(node: EinSum, grid: Grid) -> Program:
    """The kernel that merges the running values of a team's blocks, and stores results."""
    writer = CudaWriter(node, grid, 1)
    writer.finish_reductions()
    lines = ["bad = np.int64(0)", "for x in range(cuda.grid(1), size, cuda.gridsize(1)):"]
    for n, o in enumerate(node.outputs):
        lines += [f"    {c} = {read(f'o_{c}[x * splits]', d)}" for c, d, _ in cells(n, o)]
    lines.append("    for part in range(1, splits):")
    for n, o in enumerate(node.outputs):
        other = [read(f"o_{c}[x * splits + part]", d) for c, d, _ in cells(n, o)]
        lines += ["        " + line for line in writer.merged(n, o, other)]
    lines += ["    " + line for line in writer.after[grid.nest.kept]]
    lines += ["if bad != 0:", "    cuda.atomic.or_(failed, 0, bad)"]
    states = [f"o_{c}" for n, o in enumerate(node.outputs) for c, _, _ in cells(n, o)]
    names = ["size", "splits", *states, *(f"o{n}" for n in range(len(node.outputs))), "failed"]
    body = "\n".join(f"    {for_cuda(line)}" for line in lines)
    writer.out.source = f"{HEADER}@cuda.jit\ndef kernel({', '.join(names)}):\n{body}\n"
    return writer.out


def _digits(number: str, digits: Sequence[tuple[str, str]]) -> list[str]:
    """Statements that split a number into digits; digits without a name are skipped."""
    if not digits:
        return []
    lines = [f"y = {number}"]
    for digit, extent in reversed(digits[1:]):
        lines += [f"{digit} = y % {extent}"] if digit else []
        lines.append(f"y = y // {extent}")
    return [*lines, f"{digits[0][0]} = y"] if digits[0][0] else lines


def template(e: Call) -> str:
    """The source of a function over its arguments."""
    dtype = e.args[0].dtype
    own = (_DOUBLE if dtype is DType.DOUBLE else _FLOAT) | _FLOATS if dtype.is_float else _INTEGERS
    return _ALWAYS.get(e.fn) or own.get(e.fn) or SCALARS[e.fn].numba


def power(e: Call, base: str) -> str | None:
    """The source of a power with a small integer exponent over its base; None for other calls."""
    if product(e) is None:
        return None
    assert isinstance(e.args[1], Const)
    multiply = "mul_double" if e.dtype is DType.DOUBLE else "mul_float"
    return _POWERS[float(e.args[1].value)].format(base, multiply)


def for_cuda(text: str) -> str:
    """Source text with the functions of libraries replaced."""
    return _LIBRARY.sub(r"\1(", text)
