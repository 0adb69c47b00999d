"""Numba source text of an EinSum: a nest of loops over its free labels.

The text is canonical: labels, arrays and constants are numbered in the order they are
met, while extents, origins, strides and constants are arguments. Nodes that differ in
nothing else share one compiled kernel.

A failure sets a bit in `bad` instead of leaving the loop, so loops stay vectorisable;
what would trap the processor after a failure is computed from harmless values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

from einsql.algebra import REDUCTIONS, SCALARS, Failure, cast_failure
from einsql.einsum import TRUE, Axis, Call, Const, EinSum, Expr, Label, Output, Value, conjuncts
from einsql.intervals import interval, never_overflows
from einsql.kernels.nest import Mode, Nest, expensive, labels_read, may_raise, plan_nest
from einsql.schema import DType

CARRIERS: dict[DType, str] = {
    DType.BOOLEAN: "boolean",
    DType.TINYINT: "int8",
    DType.INTEGER: "int32",
    DType.BIGINT: "int64",
    DType.HALF: "float32",  # processors have no HALF arithmetic; values are rounded to it
    DType.FLOAT: "float32",
    DType.DOUBLE: "float64",
}
"""The compiled type that holds a value of each type."""

_COMBINE = {"sum": "plus", "product": "times", "min": "minimum", "max": "maximum"}
_HEADER = """\
import math

import numpy as np
from numba import njit, types
from einsql.kernels.runtime import (
    eq, idiv, less, maximum, minimum, order, order_back, plus, remainder, round_away, round_half,
    times, truncate,
)


"""


@dataclass(frozen=True, slots=True)
class Param:
    """An integer argument: `lo` or `hi` of a label, its `stride` in an array, or in the result.

    `array` numbers the array for strides of operands and is -1 otherwise.
    """

    kind: str
    label: str
    array: int = -1


@dataclass(slots=True)
class Program:
    """Generated source and what its arguments mean, in order.

    Attributes:
        arrays: Operand number and field of each array argument.
        params: Integer arguments.
        constants: Literals, each an argument of its own type.
        reasons: What each bit of the error cell says.
    """

    source: str = ""
    params: list[Param] = field(default_factory=list)
    constants: list[Const] = field(default_factory=list)
    arrays: list[tuple[int, str]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


def source(node: EinSum) -> str:
    """The kernel of a node over contiguous operands, as deterministic text."""
    return generate(node, plan_nest(node), frozenset()).source


def generate(node: EinSum, nest: Nest, strided: frozenset[tuple[int, str]]) -> Program:
    """Writes the kernel of a node.

    Args:
        node: Any EinSum without empty axes.
        nest: The order of its loops.
        strided: Operand number and field of the arrays whose last label does not step by
            one element.
    """
    return _Writer(node, nest, strided).write()


def accumulator(o: Output) -> DType:
    """The type a running value is held in: sums and products are rounded once, at the end."""
    if o.reduction in ("sum", "product"):
        return DType.DOUBLE if o.dtype.is_float else DType.BIGINT
    return o.dtype


def state(o: Output) -> tuple[DType, ...]:
    """Types of an output's running values: for pairs the argument, its value, and `found`."""
    if o.reduction is not None and REDUCTIONS[o.reduction].better is not None:
        return (o.dtype, o.args[1].dtype, DType.BOOLEAN)
    return (accumulator(o),)


class _Writer:
    """Collects the statements of each loop level; level 0 stands before all loops."""

    def __init__(self, node: EinSum, nest: Nest, strided: frozenset[tuple[int, str]]) -> None:
        self.node, self.nest, self.strided = node, nest, strided
        self.out = Program()
        self.bounds = {a.label: (a.lo, a.hi) for a in node.axes}
        self.level = {label: n + 1 for n, label in enumerate(nest.loops)}
        self.index = {label: f"l{n}" for n, label in enumerate(nest.loops)}
        self.depth = len(nest.loops)
        self.before: list[list[str]] = [[] for _ in range(self.depth + 1)]
        self.after: list[list[str]] = [[] for _ in range(self.depth + 1)]
        self.known: list[dict[Expr, str]] = [{} for _ in range(self.depth + 1)]
        self.lazy: list[dict[Expr, str]] = []
        self.at = 0
        self.temps = 0

    def write(self) -> Program:
        self.conditions()
        self.at = self.depth
        self.start_reductions()
        for n, o in enumerate(self.node.outputs):
            if o.reduction is None:
                cell = f"o{n}[{self.result_index(self.depth)}]"
                self.emit(f"{cell} = {self.converted(o.args[0], o.dtype)}")
            else:
                self.reduce(n, o, o.reduction)
        self.finish_reductions()
        self.out.source = self.assemble()
        return self.out

    # Which points exist ------------------------------------------------------------

    def conditions(self) -> None:
        """Derived axes and the guard, each at the outermost loop that decides it.

        A condition that may raise stays inside all that come before it, and those after
        it stay inside it: it is evaluated exactly where the earlier ones hold.
        """
        deepest = floor = 0
        waiting = [a for a in self.node.axes if a.define is not None]
        while waiting:
            axis = next(a for a in waiting if self.decided(a))
            waiting.remove(axis)
            assert axis.define is not None
            floor, deepest = self.place(axis.define, floor, deepest)
            self.derive(axis, axis.define)
        for term in conjuncts(self.node.guard):
            floor, deepest = self.place(term, floor, deepest)
            test = self.value(term)
            self.skip_unless(test)

    def decided(self, axis: Axis) -> bool:
        assert axis.define is not None
        return labels_read(self.node, axis.define) <= set(self.level)

    def place(self, e: Expr, floor: int, deepest: int) -> tuple[int, int]:
        self.at = max(self.level_of(e), floor)
        if self.fails(e):
            self.at = floor = max(self.at, deepest)
        return floor, max(deepest, self.at)

    def derive(self, axis: Axis, define: Expr) -> None:
        value = self.temp(f"np.int64({self.value(define)})")
        lo = self.param("lo", axis.label)
        within = interval(define, self.bounds)
        if within is None or within[0] < axis.lo or within[1] >= axis.hi:
            hi = self.param("hi", axis.label)
            self.skip_unless(f"({value} >= {lo} and {value} < {hi})")
        self.index[axis.label] = self.temp(f"{value} - {lo}")
        self.level[axis.label] = self.at
        self.known[self.at][Label(axis.label)] = value

    def skip_unless(self, test: str) -> None:
        self.emit(f"if not {test}:")
        if self.at:
            self.emit("    continue")
        else:
            self.emit("    err[0] = bad")
            self.emit("    return")

    # Expressions -------------------------------------------------------------------

    def value(self, e: Expr) -> str:
        """The name of an expression's value, computed at most once per point.

        What cannot raise is computed in the outermost loop that decides it, and eagerly;
        what may raise, only where it is selected.
        """
        if isinstance(e, Const):
            return self.constant(e)
        for scope in (*self.lazy, *self.known[: self.at + 1]):
            if e in scope:
                return scope[e]
        own = self.level_of(e)
        if own < self.at and not self.fails(e):
            with self.outside(own):
                return self.build(e)
        return self.build(e)

    def converted(self, e: Expr, dtype: DType) -> str:
        """An expression's value in the compiled type of another."""
        value = self.value(e)
        same = CARRIERS[e.dtype] == CARRIERS[dtype]
        return value if same else _typed(dtype, value)

    def build(self, e: Expr) -> str:
        if isinstance(e, Label):
            name = self.temp(f"{self.index[e.name]} + {self.param('lo', e.name)}")
        elif isinstance(e, Value):
            name = self.temp(self.load(e))
        else:
            assert isinstance(e, Call)
            name = self.call(e)
        (self.lazy[-1] if self.lazy else self.known[self.at])[e] = name
        return name

    def load(self, e: Value) -> str:
        key = (e.operand, e.field)
        if key not in self.out.arrays:
            self.out.arrays.append(key)
        n = self.out.arrays.index(key)
        labels = self.node.operands[e.operand].labels
        terms = []
        for label in dict.fromkeys(labels):
            unit = label == labels[-1] and labels.count(label) == 1 and key not in self.strided
            stride = "" if unit else f" * {self.param('stride', label, n)}"
            terms.append(f"{self.index[label]}{stride}")
        return f"a{n}[np.uintp({' + '.join(terms) or '0'})]"

    def call(self, e: Call) -> str:
        if e.fn == "if" and any(map(self.postponed, e.args[1:])):
            name = self.temp_name()
            self.choose(self.value(e.args[0]), name, e.args[1], e.args[2], e.dtype)
            return name
        if e.fn in ("and", "or") and self.postponed(e.args[1]):
            name = self.temp(self.value(e.args[0]))
            test = name if e.fn == "and" else f"not {name}"
            self.choose(test, name, e.args[1], None, e.dtype)
            return name
        args = [self.value(a) for a in e.args]
        failure = self.failure(e)
        failed = self.check(failure, args) if failure is not None else None
        if e.fn == "cast":
            return self.temp(_cast(e.args[0].dtype, e.dtype, args[0], failed))
        return self.temp(_typed(e.dtype, SCALARS[e.fn].numba.format(*args)))

    def choose(self, test: str, name: str, then: Expr, other: Expr | None, dtype: DType) -> None:
        """An `if` statement that evaluates one branch alone."""
        self.emit(f"if {test}:")
        with self.inside():
            self.emit(f"{name} = {_typed(dtype, self.value(then))}")
        if other is not None:
            self.emit("else:")
            with self.inside():
                self.emit(f"{name} = {_typed(dtype, self.value(other))}")

    def postponed(self, e: Expr) -> bool:
        """True if an expression is worth a branch around it."""
        return self.fails(e) or expensive(e)

    def fails(self, e: Expr) -> bool:
        if not isinstance(e, Call):
            return False
        return self.failure(e) is not None or any(map(self.fails, e.args))

    def failure(self, e: Call) -> Failure | None:
        if not may_raise(e) or never_overflows(e, self.bounds):
            return None
        if e.fn == "cast":
            return cast_failure(e.args[0].dtype, e.dtype)
        return SCALARS[e.fn].fails[e.args[0].dtype]

    def check(self, failure: Failure, args: list[str]) -> str:
        failed = self.temp(failure.numba.format(*args))
        self.emit(f"if {failed}:")
        self.emit(f"    bad |= {self.bit(failure.reason)}")
        return failed

    def bit(self, reason: str) -> int:
        if reason not in self.out.reasons:
            self.out.reasons.append(reason)
        return 1 << self.out.reasons.index(reason)

    def constant(self, e: Const) -> str:
        if e.dtype is DType.BOOLEAN:
            return str(bool(e.value))
        if e not in self.out.constants:
            self.out.constants.append(e)
        return f"c{self.out.constants.index(e)}"

    def level_of(self, e: Expr) -> int:
        return max((self.level[x] for x in labels_read(self.node, e)), default=0)

    # Reductions --------------------------------------------------------------------

    def start_reductions(self) -> None:
        """Sets the running values up at the level that encloses the reduced loops."""
        reduced = [(n, o) for n, o in enumerate(self.node.outputs) if o.reduction is not None]
        if self.nest.mode is Mode.MEMORY or not reduced:
            return
        with self.outside(self.nest.kept):
            if self.nest.mode is Mode.ROW:
                self.emit("for x in range(width):")
            for n, o in reduced:
                for name, dtype, start in _cells(n, o):
                    if self.nest.mode is Mode.ROW:
                        self.emit(f"    {name}[x] = {start}")
                        continue
                    if self.nest.carry:
                        start = f"o_{name}[{self.result_index(self.at)}]"
                    self.emit(f"{name} = {f'order({start})' if self.ordered(o) else start}")

    def reduce(self, n: int, o: Output, reduction: str) -> None:
        """Takes a point into the running values of output `n`."""
        at = self.cell()
        test = None if o.where == TRUE else self.value(o.where)
        if test is not None and (any(map(self.postponed, o.args)) or len(o.args) == 2):
            if self.nest.mode is not Mode.ROW or any(map(self.fails, o.args)):
                self.emit(f"if {test}:")
                with self.inside():
                    self.combine(n, o, reduction, at, None)
                return
        self.combine(n, o, reduction, at, test)

    def combine(self, n: int, o: Output, reduction: str, at: str, test: str | None) -> None:
        entry = REDUCTIONS[reduction]
        new = self.converted(o.args[0], accumulator(o))
        run = f"s{n}{at}"
        if entry.better is not None:
            self.pick(n, o, entry.better, at, test)
        elif entry.monoid in ("and", "or"):
            if test is not None:
                new = f"({test} and {new})" if entry.monoid == "or" else f"(not {test} or {new})"
            self.emit(f"{run} = {run} {entry.monoid} {new}")
        elif reduction in ("sum", "product"):
            if test is not None:
                new = f"({new} if {test} else {_literal(accumulator(o), entry.identity(o.dtype))})"
            self.accumulate(o, reduction, run, new)
        else:
            if self.ordered(o):
                new = f"order({new})"
            update = f"{_COMBINE[reduction]}({run}, {new})"
            self.emit(f"{run} = {update if test is None else f'{update} if {test} else {run}'}")

    def ordered(self, o: Output) -> bool:
        """True if a running extreme is held as an integer of the same order.

        An integer minimum vectorises and is exact about NaN; a chain of float selects
        is neither fast nor free to be reordered.
        """
        registers = self.nest.mode is Mode.REGISTERS
        return registers and o.dtype.is_float and o.reduction in ("min", "max")

    def accumulate(self, o: Output, reduction: str, run: str, new: str) -> None:
        entry = SCALARS[REDUCTIONS[reduction].monoid or ""]
        if o.dtype.is_float or self.sum_fits(o, reduction):
            self.emit(f"{run} = {_COMBINE[reduction]}({run}, {new})")
            return
        new, old = self.temp(new), self.temp(run)
        self.emit(f"if {entry.fails[DType.BIGINT].numba.format(old, new)}:")
        self.emit(f"    bad |= {self.bit(entry.fails[o.dtype].reason)}")
        self.emit(f"{run} = {_COMBINE[reduction]}({old}, {new})")

    def sum_fits(self, o: Output, reduction: str) -> bool:
        """True if a sum provably stays within BIGINT, whatever the order of its terms."""
        within = interval(o.args[0], self.bounds)
        if reduction != "sum" or within is None:
            return False
        gone = [a for a in self.node.axes if a.define is None and a.label not in self.node.keys]
        largest = max(abs(within[0]), abs(within[1])) * prod(a.extent for a in gone)
        return largest <= DType.BIGINT.range[1]

    def pick(self, n: int, o: Output, better: str, at: str, test: str | None) -> None:
        arg, new = self.converted(o.args[0], o.dtype), self.value(o.args[1])
        run, best, found = f"s{n}{at}", f"m{n}{at}", f"f{n}{at}"
        wins, loses = better.format(new, best), better.format(best, new)
        if self.nest.mode is Mode.ROW:  # without branches, so that rows vectorise
            take = f"(not {found}) | {wins} | ((not {loses}) & ({arg} < {run}))"
            take = self.temp(take if test is None else f"{test} & ({take})")
            self.emit(f"{run} = {arg} if {take} else {run}")
            self.emit(f"{best} = {new} if {take} else {best}")
            self.emit(f"{found} = {found} | {take}")
        else:  # with branches, which are foreseen, so that no point waits for the one before
            self.emit(f"if {wins} or not {found} or (not {loses} and {arg} < {run}):")
            for cell, value in ((run, arg), (best, new), (found, "True")):
                self.emit(f"    {cell} = {value}")

    def cell(self) -> str:
        """How the running values of the current point are indexed."""
        if self.nest.mode is Mode.REGISTERS:
            return ""
        if self.nest.mode is Mode.ROW:
            inner = self.depth - 1
            return f"[np.uintp(l{inner} - b{inner})]"
        return f"[{self.result_index(self.depth)}]"

    def finish_reductions(self) -> None:
        """Stores the running values after the reduced loops."""
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
            if self.nest.carry:
                at = self.result_index(self.at)
                stored = "order_back({})" if self.ordered(o) else "{}"
                after += [f"o_{c}[{at}] = {stored.format(c)}" for c, _, _ in _cells(n, o)]
                continue
            if accumulator(o) is DType.BIGINT and o.dtype is not DType.BIGINT:
                lo, hi = o.dtype.range
                after.append(f"{pad}if s{n}{cell} < {lo} or s{n}{cell} > {hi}:")
                reason = SCALARS[REDUCTIONS[o.reduction].monoid or ""].fails[o.dtype].reason
                after.append(f"{pad}    bad |= {self.bit(reason)}")
            done = f"order_back(s{n})" if self.ordered(o) else f"s{n}{cell}"
            if accumulator(o) is DType.DOUBLE and o.dtype is DType.HALF:
                done = f"round_half({done})"
            at = self.result_index(self.depth if row else self.at)
            after.append(f"{pad}o{n}[{at}] = {_typed(o.dtype, done)}")

    def result_index(self, level: int) -> str:
        """Position in the result arrays, from labels known at a level."""
        keys = self.node.keys
        assert all(self.level[k] <= level for k in keys)
        terms = [f"{self.index[k]} * {self.param('key', k)}" for k in keys[:-1]]
        return f"np.uintp({' + '.join([*terms, *(self.index[k] for k in keys[-1:])]) or '0'})"

    # Text --------------------------------------------------------------------------

    def assemble(self) -> str:
        """The module's text: a signature, the arguments' names and the nest."""
        names = ["box", "p", "err"]
        types = ["int64[::1]"] * 3
        for n, c in enumerate(self.out.constants):
            names.append(f"c{n}")
            types.append(CARRIERS[c.dtype])
        for n, (operand, name) in enumerate(self.out.arrays):
            dtype = self.node.operands[operand].source.schema.dtype(name)
            names.append(f"a{n}")
            types.append(f"Array({CARRIERS[dtype]}, 1, 'C', readonly=True)")
        buffers = []
        for n, o in enumerate(self.node.outputs):
            if o.reduction is None or not self.nest.keeps_state:
                names.append(f"o{n}")
                types.append(f"{CARRIERS[o.dtype]}[::1]")
            else:
                prefix = "o_" if self.nest.carry else ""
                names += [f"{prefix}{name}" for name, _, _ in _cells(n, o)]
                types += [f"{CARRIERS[dtype]}[::1]" for _, dtype, _ in _cells(n, o)]
            if self.nest.mode is Mode.ROW and o.reduction is not None:
                buffers += [
                    f"{name} = np.empty(width, np.{_numpy(dtype)})" for name, dtype, _ in _cells(n, o)
                ]
        body = [f"b{n}, e{n} = box[{2 * n}], box[{2 * n + 1}]" for n in range(self.depth)]
        body += [f"p{n} = p[{n}]" for n in range(len(self.out.params))]
        body.append("bad = np.int64(0)")
        if self.nest.mode is Mode.ROW:
            body += [f"width = e{self.depth - 1} - b{self.depth - 1}", *buffers]
        lines = [f"    {line}" for line in body]
        for n in range(self.depth + 1):
            pad = "    " * (n + 1)
            if n:
                lines.append(f"{pad[4:]}for l{n - 1} in range(b{n - 1}, e{n - 1}):")
            lines += [pad + line for line in self.before[n]]
        for n in range(self.depth, -1, -1):
            lines += ["    " * (n + 1) + line for line in self.after[n]]
        lines.append("    err[0] = bad")
        signature = f'"void({", ".join(types)})"'
        head = f'@njit({signature}, cache=True, nogil=True, error_model="numpy")\n'
        return f"{_HEADER}{head}def kernel({', '.join(names)}):\n" + "\n".join(lines) + "\n"

    def emit(self, text: str) -> None:
        self.before[self.at].append("    " * len(self.lazy) + text)

    def temp(self, text: str) -> str:
        name = self.temp_name()
        self.emit(f"{name} = {text}")
        return name

    def temp_name(self) -> str:
        self.temps += 1
        return f"t{self.temps - 1}"

    def param(self, kind: str, label: str, array: int = -1) -> str:
        p = Param(kind, label, array)
        if p not in self.out.params:
            self.out.params.append(p)
        return f"p{self.out.params.index(p)}"

    @contextmanager
    def outside(self, level: int) -> Iterator[None]:
        """Statements go to an outer loop, where they are computed for every point."""
        saved = self.at, self.lazy
        self.at, self.lazy = level, []
        yield
        self.at, self.lazy = saved

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Statements go under the `if` just written; their values are forgotten after it."""
        self.lazy = [*self.lazy, {}]
        yield
        self.lazy = self.lazy[:-1]


def _cells(n: int, o: Output) -> list[tuple[str, DType, str]]:
    """Name, type and start of each running value of output `n`."""
    entry = REDUCTIONS[o.reduction or ""]
    types = state(o)
    first = _literal(types[0], entry.identity(o.dtype))
    rest = [(f"{letter}{n}", t, _literal(t, 0)) for letter, t in zip("mf", types[1:], strict=False)]
    return [(f"s{n}", types[0], first), *rest]


def _literal(dtype: DType, value: float) -> str:
    if dtype is DType.BOOLEAN:
        return str(bool(value))
    if value == DType.BIGINT.range[0]:
        return "(-9223372036854775807 - 1)"  # the parser knows no negative literals
    text = str(value) if abs(value) < float("inf") else f"np.{value}".replace("np.-", "-np.")
    return _typed(dtype, text)


def _typed(dtype: DType, text: str) -> str:
    return text if dtype is DType.BOOLEAN else f"np.{CARRIERS[dtype]}({text})"


def _numpy(dtype: DType) -> str:
    return "bool_" if dtype is DType.BOOLEAN else CARRIERS[dtype]


def _cast(source: DType, target: DType, value: str, failed: str | None) -> str:
    """CAST of one value; what failed becomes 0, for its conversion is undefined."""
    if target is DType.BOOLEAN:
        return value if source is target else f"{value} != 0"
    if target is DType.HALF and source is not target:
        return f"round_half(np.float64({value}))"
    if source.is_float and target.is_integer:
        zero = _typed(target, "0")
        return f"{zero} if {failed} else {_typed(target, f'np.rint({value})')}"
    return _typed(target, value)
