"""The points that a kernel visits, and the statements at them.

Every statement is placed at the outermost level of the loops where all of its inputs are known. A
comparison of a label with an outer value becomes an end of the label's loop.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Value,
    conjuncts,
    operands_of,
)
from einsql.ir.einsum.intervals import fits, interval
from einsql.ir.functions import Failure
from einsql.kernels.loops.expressions import (
    CARRIERS,
    FAR,
    MIDDLE,
    NEAR,
    Argument,
    Builder,
    Program,
    Role,
    typed,
)
from einsql.kernels.loops.loop_nest import Mode, Nest, expensive, product
from einsql.kernels.scalars import bounds_of, derived_axes, fails, failure_within, labels_read

_READ = {DType.BOOLEAN: "{0} != 0", DType.HALF: "half({0})", DType.BFLOAT16: "bfloat({0})"}
_OF_ANGLES = frozenset({"sin", "cos"})
_IN_FLOATS = {"idiv": "idiv_32({0}, {1})", "mod": "remainder_32({0}, {1})"}


class Points(Builder):
    """Collects the statements of each loop level; level 0 is before all loops.

    Attributes:
        level: The outermost loop level at which each label is known.
        index: The name of each label's zero-based value.
        before: The statements of each level that precede its inner loops.
        names: The names of the values known at each level.
        at: The level to which statements are added.
        limited: The levels of the loops with a limit, and whether it is their start.
    """

    has_ends = True
    """True if each loop runs between two variables, `b` and `e`."""

    def __init__(
        self,
        node: EinSum,
        nest: Nest,
        strided: frozenset[tuple[int, str]],
        near: bool = False,
    ) -> None:
        super().__init__()
        self.node, self.nest, self.strided, self.near = node, nest, strided, near
        self.out = Program()
        self.bounds = bounds_of(node)
        self.level = {label: n + 1 for n, label in enumerate(nest.loops)}
        self.index = {label: f"l{n}" for n, label in enumerate(nest.loops)}
        self.depth = len(nest.loops)
        self.before: list[list[str]] = [[] for _ in range(self.depth + 1)]
        self.after: list[list[str]] = [[] for _ in range(self.depth + 1)]
        self.names: list[dict[Expr, str]] = [{} for _ in range(self.depth + 1)]
        self.lazy: list[dict[Expr, str]] = []
        self.at = 0
        self.limited: set[tuple[int, bool]] = set()

    # Which points exist ------------------------------------------------------------

    def conditions(self) -> None:
        """Writes derived axes and the guard, each at the outermost loop that decides it.

        A condition that may raise is nested in all conditions before it and encloses all
        conditions after it, so it is evaluated exactly where the earlier conditions hold.
        """
        deepest = floor = 0
        for axis, define in derived_axes(self.node):
            floor, deepest = self.place(define, floor, deepest)
            self.derive(axis, define)
        for term in conjuncts(self.node.guard):
            loop = self.limit(term, floor)
            if loop:
                deepest = max(deepest, loop)
                continue
            floor, deepest = self.place(term, floor, deepest)
            test = self.value(term)
            self.skip_unless(test)

    def limit(self, term: Expr, floor: int) -> int:
        """Makes a comparison with the label of a loop an end of that loop.

        Returns:
            The level of the loop; 0 if the comparison has to be tested at each point.
        """
        if not self.has_ends or not isinstance(term, Call) or term.fn not in ("le", "lt"):
            return 0
        for rises in (False, True):
            label, edge = term.args[::-1] if rises else term.args
            if not isinstance(label, Label) or label.name not in self.nest.loops:
                continue
            loop, outer = self.level[label.name], self.level_of(edge)
            in_place = self.nest.mode is Mode.REGISTERS or self.nest.scatters
            in_rows = loop == self.depth and not in_place
            if in_rows or max(outer, floor) >= loop or (loop, rises) in self.limited:
                continue
            if not edge.dtype.is_integer or self.fails(edge):
                continue
            self.limited.add((loop, rises))
            self.leave_gaps(loop)
            lo, hi = (self.param(role, label.name) for role in (Role.LO, Role.HI))
            more = " + 1" if (term.fn == "lt") is rises else ""
            axis = self.node.axis(label.name)
            is_within = fits(interval(edge, self.bounds), axis.lo, axis.hi)
            with self.outside(outer):
                end = f"np.int64({self.value(edge)})"
                if not is_within:
                    end = f"min(max({end}, {lo} - 1), {hi})"
                elif self.may_change(label.name, edge):
                    end = self.kept_within(self.temp(end), lo, hi)
                end = f"{end} - {lo}{more}"
                n = loop - 1
                self.emit(
                    f"b{n} = max(p[{2 * n}], {end})"
                    if rises
                    else f"e{n} = min(p[{2 * n + 1}], {end})"
                )
            return loop
        return 0

    def leave_gaps(self, level: int) -> None:
        """Records that points are skipped at a level, and with them perhaps keys of the result."""
        stores_points = any(o.reduction is None for o in self.node.outputs)
        self.out.has_gaps |= level <= self.nest.kept or stores_points

    def place(self, e: Expr, floor: int, deepest: int) -> tuple[int, int]:
        """Moves to a condition's level; returns the least and greatest level for later ones."""
        self.at = max(self.level_of(e), floor)
        if self.fails(e):
            self.at = floor = max(self.at, deepest)
        return floor, max(deepest, self.at)

    def derive(self, axis: Axis, define: Expr) -> None:
        """Computes a derived label and skips the point if the value is out of bounds."""
        value = self.temp(f"np.int64({self.value(define)})")
        lo = self.param(Role.LO, axis.label)
        within = interval(define, self.bounds)
        if within is None or within[0] < axis.lo or within[1] >= axis.hi:
            hi = self.param(Role.HI, axis.label)
            self.skip_unless(f"({value} >= {lo} and {value} < {hi})")
        elif self.may_change(axis.label, define):
            hi = self.param(Role.HI, axis.label)
            value = self.temp(self.kept_within(value, lo, f"{hi} - 1"))
        self.index[axis.label] = self.temp(f"{value} - {lo}")
        self.level[axis.label] = self.at
        self.names[self.at][Label(axis.label)] = value

    def kept_within(self, value: str, least: str, most: str) -> str:
        """Source of a value that is within bounds unless the owner of an array changes it."""
        return f"min(max({value}, {least}), {most})"

    def may_change(self, label: str, define: Expr) -> bool:
        """True if the owner of an array may change a label's value or end while the kernel runs."""
        return bool(operands_of(define))

    def skip_unless(self, test: str) -> None:
        """Skips the current point, or the kernel if before all loops, unless `test` holds."""
        self.leave_gaps(self.at)
        self.emit(f"if not {test}:")
        if self.at:
            self.emit("    continue")
        else:
            self.emit("    return bad")

    # Expressions -------------------------------------------------------------------

    def value(self, e: Expr) -> str:
        """The name of an expression's value, computed at most once per point.

        Expressions that cannot raise are computed eagerly in the outermost loop that decides
        them. Expressions that may raise are computed only where they are selected.
        """
        if isinstance(e, Const):
            return self.constant(e)
        for scope in (*self.lazy, *self.names[: self.at + 1]):
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
        return value if same else typed(dtype, value)

    def build(self, e: Expr) -> str:
        """Computes an expression at the current level and registers its name."""
        name = super().build(e)
        (self.lazy[-1] if self.lazy else self.names[self.at])[e] = name
        return name

    def label(self, e: Label) -> str:
        """Source of a label's value."""
        return f"{self.index[e.name]} + {self.param(Role.LO, e.name)}"

    def load(self, e: Value) -> str:
        """Source that reads an operand."""
        key = (e.operand, e.field)
        if key not in self.out.arrays:
            self.out.arrays.append(key)
        n = self.out.arrays.index(key)
        labels = self.node.operands[e.operand].labels
        terms = []
        for label in dict.fromkeys(labels):
            unit = label == labels[-1] and labels.count(label) == 1 and key not in self.strided
            stride = "" if unit else f" * {self.param(Role.STRIDE, label, n)}"
            terms.append(f"{self.index[label]}{stride}")
        text = f"a{n}[{' + '.join(terms) or '0'}]"
        return _READ.get(e.dtype, "{0}").format(text)

    def call(self, e: Call) -> str:
        """Computes a function, with a branch only where an argument must not be evaluated."""
        if e.fn == "if" and any(map(self.postponed, e.args[1:])):
            name = self.temp_name()
            self.choose(self.value(e.args[0]), name, e.args[1], e.args[2], e.dtype)
            return name
        if e.fn in ("and", "or") and self.postponed(e.args[1]):
            name = self.temp(self.value(e.args[0]))
            test = name if e.fn == "and" else f"not {name}"
            self.choose(test, name, e.args[1], None, e.dtype)
            return name
        power = product(e)
        if power is not None:
            return self.temp(power.format(self.value(e.args[0])))
        args = [self.value(a) for a in e.args]
        if self.near and e.fn in _OF_ANGLES and e.dtype is DType.FLOAT:
            size = self.temp(f"abs({args[0]})")
            far = f"({size} >= np.float32({NEAR})) & ({size} < np.float32(np.inf))"
            self.emit(f"bad |= np.int64({far}) * {self.bit(FAR)}")
            return self.temp(f"near_{e.fn}({args[0]})")
        if self.near and self.divides_many(e):
            return self.temp(f"quotient({args[0]}, {args[1]}, {self.inverse(e.args[1])})")
        failure = failure_within(e, self.bounds)
        failed = self.check(failure, args) if failure is not None else None
        text = self.applied(e, args)
        if failed is not None and e.dtype.is_integer:
            text = f"{typed(e.dtype, '0')} if {failed} else {text}"
        return self.temp(text)

    def divides_many(self, e: Call) -> bool:
        """True for a DOUBLE quotient of FLOAT or BIGINT values by a common divisor."""
        if (
            e.fn != "div"
            or e.dtype is not DType.DOUBLE
            or failure_within(e, self.bounds) is not None
        ):
            return False
        number, by = e.args
        if not isinstance(number, Call) or number.fn != "cast":
            return False
        small = number.args[0].dtype is not DType.DOUBLE
        return small and self.level_of(by) < self.at == self.depth and not self.fails(by)

    def inverse(self, by: Expr) -> str:
        """The inverse of a common divisor; reports `FAR` for divisors without an exact quotient."""
        one = Call("div", (Const(1.0, by.dtype), by), by.dtype)
        level = self.level_of(by)
        if one not in self.names[level]:
            with self.outside(level):
                size, (low, high) = self.temp(f"abs({self.value(by)})"), MIDDLE
                tiny = f"({size} > 0) & ({size} < np.float64({low!r}))"
                huge = f"({size} > np.float64({high!r})) & ({size} < np.inf)"
                # Branch-free, so that enclosing loops vectorise.
                self.emit(f"bad |= np.int64(({tiny}) | ({huge})) * {self.bit(FAR)}")
        return self.value(one)

    def spelled(self, e: Call) -> str:
        """The template of a function."""
        if e.fn in _IN_FLOATS and e.dtype.is_integer and all(map(self.is_narrow, e.args)):
            return _IN_FLOATS[e.fn]
        return super().spelled(e)

    def is_narrow(self, e: Expr) -> bool:
        """True if an integer fits 32 bits and its negation fits or raises."""
        lo, hi = DType.INTEGER.range
        return e.dtype is not DType.BIGINT or fits(interval(e, self.bounds), lo + 1, hi)

    def choose(self, test: str, name: str, then: Expr, other: Expr | None, dtype: DType) -> None:
        """Writes an `if` statement that evaluates only the selected branch."""
        self.emit(f"if {test}:")
        with self.inside():
            self.emit(f"{name} = {typed(dtype, self.value(then))}")
        if other is not None:
            self.emit("else:")
            with self.inside():
                self.emit(f"{name} = {typed(dtype, self.value(other))}")

    def postponed(self, e: Expr) -> bool:
        """True if an expression is expensive enough for a branch around it."""
        return self.fails(e) or expensive(e)

    def fails(self, e: Expr) -> bool:
        """True if evaluating an expression may raise."""
        return fails(e, self.bounds)

    def check(self, failure: Failure, args: list[str]) -> str:
        """Writes the test for a failure; returns the name of its flag."""
        failed = self.temp(failure.numba.format(*args))
        self.emit(f"bad |= np.int64({failed}) * {self.bit(failure.reason)}")
        return failed

    def bit(self, reason: str) -> int:
        """The bit of `bad` for a reason."""
        if reason not in self.out.reasons:
            self.out.reasons.append(reason)
        return 1 << self.out.reasons.index(reason)

    def constant(self, e: Const) -> str:
        """Source of a literal: an argument, or the text of a BOOLEAN, which eliminates branches."""
        if e.dtype is DType.BOOLEAN:
            return str(bool(e.value))
        if e not in self.out.constants:
            self.out.constants.append(e)
        return f"c{self.out.constants.index(e)}"

    def level_of(self, e: Expr) -> int:
        """The outermost level at which all inputs of an expression are known."""
        return max((self.level[x] for x in labels_read(self.node, e)), default=0)

    # Statements --------------------------------------------------------------------

    def emit(self, text: str) -> None:
        """Adds a statement at the current level."""
        self.before[self.at].append("    " * len(self.lazy) + text)

    def param(self, role: Role, label: str, array: int = -1) -> str:
        """The name of an integer argument."""
        p = Argument(role, label, array)
        if p not in self.out.params:
            self.out.params.append(p)
        return f"p{self.out.params.index(p)}"

    @contextmanager
    def outside(self, level: int) -> Iterator[None]:
        """Adds statements to an outer loop, where they are computed for every point."""
        saved = self.at, self.lazy
        self.at, self.lazy = level, []
        yield
        self.at, self.lazy = saved

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Adds statements under the last `if`; their values are unknown after it."""
        self.lazy = [*self.lazy, {}]
        yield
        self.lazy = self.lazy[:-1]
