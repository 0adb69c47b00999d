"""The kernel's text of an EinSum: a nest of loops over its free labels.

The text is canonical: labels, arrays and constants are numbered in the order of their first
use. Extents, origins, strides and constants are arguments. Nodes that differ only in these
share one compiled kernel.
"""

from __future__ import annotations

import math
from itertools import count
from math import prod

import numpy as np

from einsql.core.schema import DType
from einsql.ir.einsum.graph import TRUE, EinSum, Output
from einsql.ir.einsum.intervals import interval
from einsql.ir.einsum.states import state_of
from einsql.ir.functions import REDUCTIONS, SCALARS
from einsql.kernels.loops.expressions import (
    ROUND,
    STORED,
    Program,
    Role,
    literal,
    memory,
    stored,
    typed,
)
from einsql.kernels.loops.loop_nest import Mode, Nest, expensive, plan_nest
from einsql.kernels.loops.states import States, is_state, state_cells
from einsql.kernels.loops.strips import (
    added,
    folded,
    folded_rows,
    jammed,
    scanned,
    streamed,
    terms_at_once,
)

COMBINE = {"sum": "plus", "product": "times", "min": "minimum", "max": "maximum"}
"""Functions that merge running values."""
BITS = {"and": "&", "or": "|", "bitand": "&", "bitor": "|", "xor": "^"}
"""Operators that merge running truth values and bits."""
_HEADER = """\
from einsql.kernels.runtime.vector_math import erf, exp, log, log2, sigmoid, tanh
from einsql.kernels.compiler.memory import operand, result
from einsql.kernels.runtime.compiled_functions import (
    add_overflows, at, bfloat, borrow, eq, floored_remainder, give_back, half, highest, idiv,
    idiv_32, less, lowest, maximum, minimum, mul_overflows, nan_mask, number, plus, prefetch,
    quotient, ratio, real,
    remainder, remainder_32, round_away, round_bfloat, round_half, rounded_off, scaled_round,
    sub_overflows, times, to_bfloat, to_half, truncate,
)
from einsql.kernels.runtime.float32_math import cos, log10, near_cos, near_sin, power, sin


"""


def source(node: EinSum) -> str:
    """Returns the kernel source of a node over contiguous operands; the text is deterministic."""
    return generate(node, plan_nest(node), frozenset()).source


def generate(
    node: EinSum, nest: Nest, strided: frozenset[tuple[int, str]], near: bool = True
) -> Program:
    """Writes the kernel of a node.

    Args:
        node: Any EinSum without empty axes.
        nest: The order of its loops.
        strided: Operand number and field of the arrays whose last label does not step by
            one element.
        near: Whether the kernel assumes small angles, and divisors that are neither large nor
            small. A value outside this range is reported with the reason `FAR`.
    """
    return Writer(node, nest, strided, near).write()


def accumulator(o: Output) -> DType:
    """The type of a running value; sums and products are rounded once, at the end."""
    if o.reduction in ("sum", "product"):
        return DType.DOUBLE if o.dtype.is_float else DType.BIGINT
    return o.dtype


def state(o: Output, nest: Nest | None = None) -> tuple[DType, ...]:
    """Types of an output's running values.

    A state has its fields. A pair has the argument, its value, and a flag that is set once a point
    was selected. A DOUBLE sum in memory has the sum and its rounding error. Where rows of running
    values are added to each other, the sum of the last terms precedes them.
    """
    if is_state(o):
        return tuple(f.dtype for f in state_of(o.reduction or "").fields)
    if o.reduction is not None and REDUCTIONS[o.reduction].better is not None:
        return (o.dtype, o.args[1].dtype, DType.BOOLEAN)
    if not is_compensated(o, nest):
        return (accumulator(o),)
    return (accumulator(o),) * (2 if nest is not None and nest.scatters else 3)


def is_compensated(o: Output, nest: Nest | None) -> bool:
    """True for sums of DOUBLE whose terms are added to memory one after another.

    FLOAT sums are accumulated in DOUBLE, which is accurate enough. Sums in registers are
    accumulated per strip, see `strips.folded`.
    """
    in_memory = nest is not None and nest.mode is not Mode.REGISTERS
    return o.reduction == "sum" and o.dtype is DType.DOUBLE and in_memory


def compensated(total: np.ndarray, lost: np.ndarray) -> np.ndarray:
    """Adds the rounding errors to compensated sums, except to infinite ones."""
    return np.where(np.isfinite(total), total + lost, total)


class Writer(States):
    """Writes the kernel: reductions, stores and the surrounding text."""

    def write(self) -> Program:
        """Writes the kernel."""
        self.conditions()
        self.at = self.depth
        self.scanned: tuple[int, str, str, str] | None = None
        self.start_reductions()
        for n, o in enumerate(self.node.outputs):
            if o.reduction is None:
                cell = f"o{n}[{self.result_index(self.depth)}]"
                self.emit(f"{cell} = {stored(o.dtype, self.converted(o.args[0], o.dtype))}")
            elif self.owner[n] == n:
                self.reduce(n, o, o.reduction)
        self.finish_reductions()
        self.prepare_merges()
        self.out.source = self.assemble()
        return self.out

    # Reductions --------------------------------------------------------------------

    def start_reductions(self) -> None:
        """Initializes the running values at the level that encloses the reduced loops."""
        reduced = self.running()
        if self.row_sums:
            with self.outside(self.reduced_from):
                self.emit("since = 0")
        if self.nest.mode is Mode.MEMORY or not reduced:
            return
        with self.outside(self.nest.kept):
            if self.nest.mode is Mode.ROW:
                self.emit("for x in range(width):")
            for n, o in reduced:
                for name, dtype, start in cells(n, o, self.nest):
                    if self.nest.mode is Mode.ROW:
                        self.emit(f"    {name}[x] = {start}")
                        continue
                    if self.nest.carry:
                        start = read(f"o_{name}[{self.result_index(self.at)}]", dtype)
                    if self.folds(o):
                        self.emit(f"h{n} = {start}")
                        self.emit(f"k{n} = np.float64(0)")
                        continue
                    if self.is_least_float(o):
                        self.emit(f"n{n} = nan_mask({start})")
                        start = f"number({start})"
                    self.emit(f"{name} = {start}")

    def reduce(self, n: int, o: Output, reduction: str) -> None:
        """Accumulates a point into the running values of output `n`."""
        at = self.cell()
        row = self.nest.mode is Mode.ROW
        if n in self.laws:
            self.merge_point(n, o, at, row)
            return
        test = None if o.where == TRUE else self.value(o.where)
        branch = any(map(self.fails if row else self.postponed, o.args))
        if test is not None and (branch or (len(o.args) == 2 and not row)):
            self.emit(f"if {test}:")
            with self.inside():
                self.combine(n, o, reduction, at, None)
        else:
            self.combine(n, o, reduction, at, test)

    def combine(self, n: int, o: Output, reduction: str, at: str, test: str | None) -> None:
        """Accumulates a point into the running values if it is selected or `test` holds."""
        entry = REDUCTIONS[reduction]
        new = self.converted(o.args[0], accumulator(o))
        run, old = f"s{n}{at}", self.held(f"s{n}{at}", accumulator(o))
        if entry.better is not None:
            self.pick(n, o, entry.better, at, test)
        elif entry.monoid in ("and", "or"):
            # Branch-free, so that loops vectorise.
            if test is not None:
                new = f"({test} & {new})" if entry.monoid == "or" else f"((not {test}) | {new})"
            self.emit(f"{run} = {old} {BITS[entry.monoid]} {new}")
        elif entry.monoid in BITS:
            if test is not None:
                new = f"({new} if {test} else {literal(o.dtype, entry.identity(o.dtype))})"
            self.emit(f"{run} = {old} {BITS[entry.monoid]} {new}")
        elif reduction in ("sum", "product"):
            if test is not None:
                new = f"({new} if {test} else {literal(accumulator(o), entry.identity(o.dtype))})"
            if is_compensated(o, self.nest) and self.nest.scatters:
                for line in added(run, f"k{n}{at}", self.temp(new)):
                    self.emit(line)
            else:
                self.accumulate(o, reduction, run, new)
        elif self.is_least_float(o):
            if test is not None:
                new = f"({new} if {test} else {literal(o.dtype, math.nan)})"
            new = self.temp(new)
            self.emit(f"n{n} = n{n} & nan_mask({new})")
            self.emit(f"{run} = lowest({run}, number({new}))")
        elif self.in_lanes(o):
            if test is not None:
                new = f"({new} if {test} else {literal(o.dtype, -math.inf)})"
            self.emit(f"{run} = highest({run}, {new})")
        else:
            update = f"{COMBINE[reduction]}({old}, {new})"
            self.emit(f"{run} = {update if test is None else f'{update} if {test} else {old}'}")

    def is_least_float(self, o: Output) -> bool:
        """True if a minimum ignores NaN and a separate flag records whether all values are NaN.

        Minima that ignore NaN vectorise. A chain of selects that tests for NaN is slow and cannot
        be reordered.
        """
        return self.in_lanes(o) and o.reduction == "min"

    def in_lanes(self, o: Output) -> bool:
        """True if a running extreme is computed in several vector lanes."""
        extreme = o.reduction in ("min", "max") and o.dtype.is_float
        return extreme and self.nest.mode is Mode.REGISTERS

    def folds(self, o: Output) -> bool:
        """True if a running sum adds unrounded partial sums of some terms each."""
        inside = self.nest.mode is Mode.REGISTERS and self.depth > self.nest.kept
        return inside and o.reduction == "sum" and o.dtype is DType.DOUBLE

    def accumulate(self, o: Output, reduction: str, run: str, new: str) -> None:
        """Accumulates a term into a running sum or product, with overflow checks for integers."""
        entry = SCALARS[REDUCTIONS[reduction].monoid or ""]
        if o.dtype.is_float or self.sum_fits(o, reduction):
            self.emit(f"{run} = {COMBINE[reduction]}({run}, {new})")
            return
        new, old = self.temp(new), self.temp(run)
        failed = entry.fails[DType.BIGINT].numba.format(old, new)
        self.emit(f"bad |= np.int64({failed}) * {self.bit(entry.fails[o.dtype].reason)}")
        self.emit(f"{run} = {COMBINE[reduction]}({old}, {new})")

    @property
    def row_sums(self) -> list[int]:
        """The numbers of the outputs that are DOUBLE sums of rows in memory."""
        if self.nest.scatters:
            return []
        return [n for n, o in enumerate(self.node.outputs) if is_compensated(o, self.nest)]

    @property
    def reduced_from(self) -> int:
        """The level that encloses the loops over labels that are reduced."""
        return next(n for n, x in enumerate(self.nest.loops) if x not in self.node.keys)

    def fold_rows(self) -> list[str]:
        """Adds the sums of the last terms to the totals, with compensation."""
        inner, at = self.depth - 1, self.cell()
        lines = [f"for l{inner} in range(b{inner}, e{inner}):"]
        for n in self.row_sums:
            folded_in = added(f"h{n}{at}", f"k{n}{at}", f"s{n}{at}")
            lines += [f"    {line}" for line in (*folded_in, f"s{n}{at} = np.float64(0)")]
        return lines

    def sum_fits(self, o: Output, reduction: str) -> bool:
        """True if a sum provably stays within BIGINT for any order of its terms."""
        within = interval(o.args[0], self.bounds)
        if reduction != "sum" or within is None:
            return False
        gone = [a for a in self.node.axes if a.define is None and a.label not in self.node.keys]
        largest = max(abs(within[0]), abs(within[1])) * prod(a.extent for a in gone)
        return largest <= DType.BIGINT.range[1]

    def pick(self, n: int, o: Output, better: str, at: str, test: str | None) -> None:
        """Accumulates a point into a running pair of a value and its argument."""
        arg, new = self.converted(o.args[0], o.dtype), self.value(o.args[1])
        run, best, seen = f"s{n}{at}", f"m{n}{at}", f"f{n}{at}"
        old_arg, old = self.held(run, o.dtype), self.held(best, o.args[1].dtype)
        wins, loses = better.format(new, old), better.format(old, new)
        if self.nest.mode is Mode.ROW:  # branch-free, so that rows vectorise
            take = f"(not {seen}) | {wins} | ((not {loses}) & ({arg} < {old_arg}))"
            take = self.temp(take if test is None else f"{test} & ({take})")
            self.emit(f"{run} = {arg} if {take} else {run}")
            self.emit(f"{best} = {new} if {take} else {best}")
            self.emit(f"{seen} = {seen} | {take}")
        else:  # predicted branches remove the dependency on the preceding point
            if self.scans(o, test):
                self.scanned = (len(self.before[self.depth]), new, best, seen)
            self.emit(f"if {wins} or not {seen} or (not {loses} and {arg} < {old_arg}):")
            for cell, value in ((run, arg), (best, new), (seen, "True")):
                self.emit(f"    {cell} = {value}")

    def scans(self, o: Output, test: str | None) -> bool:
        """True if a vectorised loop computes a strip's extreme before points are compared.

        A strip's extreme seldom beats the preceding one, so most strips need no comparison of
        single points. The innermost loop then has no other work.
        """
        lines = self.before[self.depth]
        return (
            self.nest.mode is Mode.REGISTERS
            and len(self.node.outputs) == 1
            and test is None
            and o.args[1].dtype in (DType.FLOAT, DType.DOUBLE, DType.INTEGER, DType.BIGINT)
            and not any("continue" in line or line.startswith(("if ", " ")) for line in lines)
            and not expensive(o.args[1])
            and self.depth > self.nest.kept
        )

    def held(self, cell: str, dtype: DType) -> str:
        """Source that reads a running value."""
        return read(cell, dtype) if self.nest.mode is Mode.MEMORY else cell

    def cell(self) -> str:
        """The index of the current point's running values."""
        if self.nest.mode is Mode.REGISTERS:
            return ""
        if self.nest.mode is Mode.ROW:
            inner = self.depth - 1
            return f"[np.uintp(l{inner} - b{inner})]"
        return f"[{self.result_index(self.depth)}]"

    def finish_reductions(self) -> None:
        """Stores the running values after the reduced loops."""
        if self.row_sums:
            self.after[self.reduced_from] += self.fold_rows()
        if self.nest.mode is Mode.MEMORY:
            return
        self.at = self.nest.kept
        after = self.after[self.at]
        row = self.nest.mode is Mode.ROW
        if row:
            inner = self.depth - 1
            after.append(f"for l{inner} in range(b{inner}, e{inner}):")
        pad, cell = ("    ", self.cell()) if row else ("", "")
        for n, o in enumerate(self.node.outputs):
            if o.reduction is None:
                continue
            if self.nest.carry and self.owner[n] != n:
                continue
            if self.nest.carry:
                at = self.result_index(self.at)
                after += [f"o_{c}[{at}] = {self.final(n, o, c)}" for c, _, _ in cells(n, o)]
                continue
            if accumulator(o) is DType.BIGINT and o.dtype is not DType.BIGINT:
                lo, hi = o.dtype.range
                after.append(f"{pad}if s{n}{cell} < {lo} or s{n}{cell} > {hi}:")
                reason = SCALARS[REDUCTIONS[o.reduction].monoid or ""].fails[o.dtype].reason
                after.append(f"{pad}    bad |= {self.bit(reason)}")
            done = self.final(n, o, f"{self.run_of(n, o)}{cell}")
            if accumulator(o) is DType.DOUBLE and o.dtype in ROUND:
                done = ROUND[o.dtype].format(done)
            at = self.result_index(self.depth if row else self.at)
            after.append(f"{pad}o{n}[{at}] = {stored(o.dtype, typed(o.dtype, done))}")

    def run_of(self, n: int, o: Output) -> str:
        """The running value that becomes output `n`."""
        if is_state(o):
            return f"s{self.owner[n]}_{REDUCTIONS[o.reduction or ''].place}"
        return f"s{n}"

    def final(self, n: int, o: Output, cell: str) -> str:
        """Source of the final value of a running value."""
        if self.is_least_float(o):
            return f"({literal(o.dtype, math.nan)} if n{n} != 0 else {cell})"
        if self.folds(o):
            return f"(h{n} + k{n} if math.isfinite(h{n}) else h{n})"
        if is_compensated(o, self.nest):
            total = f"h{cell[1:]}"
            return f"({total} + k{cell[1:]} if math.isfinite({total}) else {total})"
        return cell

    def result_index(self, level: int) -> str:
        """The index into the result arrays, from labels known at a level."""
        keys = self.node.keys
        assert all(self.level[k] <= level for k in keys)
        terms = [f"{self.index[k]} * {self.param(Role.KEY, k)}" for k in keys[:-1]]
        return f"np.uintp({' + '.join([*terms, *(self.index[k] for k in keys[-1:])]) or '0'})"

    # Text --------------------------------------------------------------------------

    def assemble(self) -> str:
        """The module's text: the layout of its only argument, and the loop nest."""
        body = [f"b{n}, e{n} = p[{2 * n}], p[{2 * n + 1}]" for n in range(self.depth)]
        places = count(2 * self.depth)
        body += [f"p{n} = p[{next(places)}]" for n in range(len(self.out.params))]
        for n, c in enumerate(self.out.constants):
            bits = f"p[{next(places)}]"
            body.append(f"c{n} = {typed(c.dtype, f'real({bits})' if c.dtype.is_float else bits)}")
        addresses: list[str] = []
        for n, (operand, name) in enumerate(self.out.arrays):
            dtype, place = self.node.operands[operand].source.schema.dtype(name), next(places)
            body.append(f"a{n} = operand(p[{place}], np.{STORED[dtype]})")
            addresses.append(f"p[{place}]")
        part = count(1)
        for n, o in enumerate(self.node.outputs):
            if o.reduction is None or not self.nest.keeps_state:
                body.append(f"o{n} = result(p[{next(places)}], np.{STORED[o.dtype]}, {next(part)})")
            elif self.owner[n] == n:
                prefix = "o_" if self.nest.carry else ""
                body += [
                    f"{prefix}{name} = result(p[{next(places)}], np.{memory(dtype)}, {next(part)})"
                    for name, dtype, _ in cells(n, o, self.nest)
                ]
        rows = [c for n, o in self.running() for c in cells(n, o, self.nest)]
        body += ["bad = np.int64(0)", *self.slice_merge]
        if self.nest.mode is Mode.ROW:
            body.append(f"width = e{self.depth - 1} - b{self.depth - 1}")
        rooms, borrowing = self.rooms(rows, part)
        body += borrowing
        lines = [f"    {line}" for line in body]
        inner = self.before[self.depth]
        outer = self.before[self.depth - 1] if self.depth > 1 else []
        terms = 1
        if not self.wraps:
            terms = terms_at_once(self.node, self.nest, [*outer, *inner], len(self.out.arrays))
        for n in range(self.depth + 1):
            pad = "    " * (n + 1)
            if n and n == self.depth - 1 and (terms > 1 or self.row_sums):
                lines += [pad[4:] + x for x in self.term_loop(terms)]
                break
            if n and n == self.depth:
                lines += [pad[4:] + x for x in self.in_pieces(self.innermost())]
                continue
            if n:
                lines.append(f"{pad[4:]}for l{n - 1} in range(b{n - 1}, e{n - 1}):")
            lines += [pad + line for line in self.before[n]]
        for n in range(max(self.depth - 1, 0), -1, -1):
            lines += ["    " * (n + 1) + line for line in self.after[n]]
        for n, address in enumerate(addresses):
            lines = [line.replace(f"prefetch(a{n} ", f"prefetch({address} ") for line in lines]
        lines += [f"    give_back({room})" for room in rooms]
        lines.append("    return bad")
        head = '@njit("int64(int64[::1])")\n'
        return f"{_HEADER}{head}def kernel(p):\n" + "\n".join(lines) + "\n"

    def term_loop(self, terms: int) -> list[str]:
        """The loop over terms around rows of running values; each iteration takes several terms."""
        n, outer, inner = self.depth - 2, self.before[self.depth - 1], self.before[self.depth]
        ends = ("v", "g") if self.row_sums else (f"b{n}", f"e{n}")
        if terms > 1:
            running = [
                f"{name}{self.cell()}" for m, o in self.running() for name, _, _ in cells(m, o)
            ]
            loop = jammed(n + 1, ends, outer, inner, running, terms)
        else:
            body = (*outer, *self.in_pieces(self.innermost()))
            loop = [f"for l{n} in range({', '.join(ends)}):", *(f"    {line}" for line in body)]
        return folded_rows((f"b{n}", f"e{n}"), loop, self.fold_rows()) if self.row_sums else loop

    def innermost(self) -> list[str]:
        """The innermost loop with its body."""
        n, ends, body = self.depth - 1, self.ends(), self.before[self.depth]
        if self.scanned is not None:
            return scanned(n, ends, self.node.outputs[0], body, *self.scanned)
        sums = [n for n, o in enumerate(self.node.outputs) if self.folds(o)]
        if sums:
            return folded(n, ends, body, sums, self.sizes)
        if self.lanes > 1:
            return self.in_lanes_of_states(ends, body)
        body = [*body, *self.after[self.depth]]
        return streamed(n, ends, body, self.sizes)

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes of an element of each array that is requested before it is read."""
        if self.wraps or not self.nest.reads_ahead:
            return {}
        dtypes = [self.node.operands[o].source.schema.dtype(f) for o, f in self.out.arrays]
        return {f"a{n}": np.dtype(STORED[t]).itemsize for n, t in enumerate(dtypes)}


def cells(n: int, o: Output, nest: Nest | None = None) -> list[tuple[str, DType, str]]:
    """The name, type and initial value of each running value of output `n`."""
    if is_state(o):
        return state_cells(n, o)
    entry = REDUCTIONS[o.reduction or ""]
    types = state(o, nest)
    first = literal(types[0], entry.identity(o.dtype))
    letters = "mf" if entry.better is not None else "hk"[3 - len(types) :]
    rest = [
        (f"{letter}{n}", t, literal(t, 0)) for letter, t in zip(letters, types[1:], strict=False)
    ]
    return [(f"s{n}", types[0], first), *rest]


def read(cell: str, dtype: DType) -> str:
    """Source that reads a running value from memory, where a BOOLEAN is a byte."""
    return f"({cell} != 0)" if dtype is DType.BOOLEAN else cell
