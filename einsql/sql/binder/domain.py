"""The domain of a SELECT: labels with bounds, operands, and conditions.

An equality of keys merges labels. A comparison of a key with a constant narrows its bounds. An
equality of a key with an expression makes the label derived (a gather or an index computation).
Any other condition becomes part of the guard. A definition that may raise is evaluated only for
points that satisfy the preceding conditions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import field, replace

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType
from einsql.ir.einsum.affine import Shift, shift_of
from einsql.ir.einsum.graph import (
    FALSE,
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Node,
    Operand,
    Output,
    Value,
    call,
    conj,
    conjuncts,
    labels_of,
    operands_of,
)
from einsql.ir.einsum.graph_rewriting import relabel
from einsql.ir.einsum.intervals import can_raise, interval
from einsql.ir.functions import Interval
from einsql.sql.parameters.bound_parameters import BoundParameters
from einsql.sql.parameters.host_expr import NeedsValuesError, folded, parameters_of
from einsql.sql.parameters.windows import Edge, Window, Windows, edges_of
from einsql.sql.typing.value_ranges import Ranges, proven_within


@dataclass
class Domain:
    """A domain under construction; `axes` maps each raw label to `[lo, hi)`."""

    axes: dict[str, tuple[int, int]] = field(default_factory=dict)
    operands: list[Operand] = field(default_factory=list)
    defines: dict[str, Expr] = field(default_factory=dict)
    guards: list[Expr] = field(default_factory=list)
    merged: dict[str, str] = field(default_factory=dict)
    outer: frozenset[str] = frozenset()
    """The labels of an enclosing SELECT, which must stay free."""
    hint: dict[str, int] = field(default_factory=dict)
    """The number of parts into which labels are cut over several sites."""
    windows: Windows = field(default_factory=Windows)
    """The windows of the statement, with the parameters that expressions may read."""
    edges: dict[str, tuple[Edge | Window, ...]] = field(default_factory=dict)
    """The bounds of raw labels from parameters, in addition to `axes`."""
    settled: set[Expr] = field(default_factory=set)
    """The conditions of these bounds that remain in the guard."""
    ranges: Ranges | None = None
    """The ranges of the inputs' values; None if definitions are proven without them."""
    origins: tuple[str, ...] = ()
    """The part of the statement, as in `EinSum.origins`."""

    @property
    def parameters(self) -> BoundParameters:
        """The statement's parameters."""
        return self.windows.parameters

    def fresh(self, hint: str, lo: int, hi: int) -> str:
        """Adds a label named after `hint` with bounds `[lo, hi)` and returns its name."""
        name, n = hint, 1
        while name in self.axes or name in self.merged:
            name, n = f"{hint}_{n}", n + 1
        self.axes[name] = (lo, max(lo, hi))
        return name

    def scan(self, node: Node) -> tuple[int, dict[str, str]]:
        """Adds an operand with fresh labels; returns its number and key → label."""
        windows = self.windows.of(node)
        labels: dict[str, str] = {}
        for n, k in enumerate(node.schema.keys):
            w = windows.get(n)
            lo, hi = (k.lo, k.hi) if w is None else (w.lo, w.hi)
            labels[k.name] = self.fresh(k.name, lo, hi)
            if w is not None:
                self.edges[labels[k.name]] = (w,)
        return self.attach(node, tuple(labels.values())), labels

    def attach(self, node: Node, labels: tuple[str, ...]) -> int:
        """Adds an operand over existing labels and requires its tuples to be present."""
        number = self.lookup(node, labels)
        if node.schema.has(PRESENT):
            self.guards.append(Value(number, PRESENT, DType.BOOLEAN))
        return number

    def lookup(self, node: Node, labels: tuple[str, ...]) -> int:
        """Adds an operand whose absent tuples read as NULL instead of dropping points."""
        self.operands.append(Operand(node, labels))
        return len(self.operands) - 1

    def find(self, label: str) -> str:
        """The label into which a raw label was merged."""
        while label in self.merged:
            label = self.merged[label]
        return label

    def canonical(self, expr: Expr) -> Expr:
        """An expression over merged labels."""
        return relabel(expr, {raw: self.find(raw) for raw in self.merged}) if self.merged else expr

    def bounds(self) -> dict[str, tuple[int, int]]:
        """The bounds of every raw label, in the form of `intervals.interval`."""
        merged = {raw: self.axes[self.find(raw)] for raw in self.merged}
        return {**self.axes, **merged}

    def interval(self, expr: Expr) -> Interval:
        """The inclusive interval of an integer expression over this domain."""
        return interval(expr, self.bounds())

    def limits(self, value: Expr) -> tuple[float, float]:
        """`[lo, hi)` of an integer expression by the conditions on it; infinite without any."""
        lo, hi = -math.inf, math.inf
        for term in conjuncts(self.guard):
            if not isinstance(term, Call) or term.fn not in ("eq", "lt", "le"):
                continue
            a, b = self._about(term, value).args
            if a == value and isinstance(b, Const) and b.dtype.is_integer:
                hi = min(hi, b.integer + (term.fn != "lt"))
                lo = max(lo, b.integer) if term.fn == "eq" else lo
            elif b == value and isinstance(a, Const) and a.dtype.is_integer:
                lo = max(lo, a.integer + (term.fn == "lt"))
                hi = min(hi, a.integer + 1) if term.fn == "eq" else hi
        return lo, hi

    def _about(self, term: Call, value: Expr) -> Call:
        """A comparison with the values of parameters, if a side is then the expression."""
        if not parameters_of(term):
            return term
        known = replace(self.parameters, fixed=set()).constants(term)
        if isinstance(known, Call) and value in known.args:
            self.parameters.constants(term)
            return known
        return term

    def require(self, condition: Expr) -> None:
        """Restricts the domain to the points for which a BOOLEAN expression is true."""
        for term in conjuncts(condition):
            if not self._solve(self.canonical(term)):
                self.guards.append(term)

    def _solve(self, term: Expr) -> bool:
        if not isinstance(term, Call) or term.fn not in ("eq", "lt", "le"):
            return False
        if self.parameters.values:
            term = self._known(term)
        a, b = term.args
        if term.fn == "eq":
            return self._equate(a, b) or self._equate(b, a)
        if isinstance(a, Label) and isinstance(b, Const) and b.dtype.is_integer:
            return self._narrow(a.name, None, b.integer + (term.fn == "le"))
        if isinstance(b, Label) and isinstance(a, Const) and a.dtype.is_integer:
            return self._narrow(b.name, a.integer + (term.fn == "lt"), None)
        return False

    def _known(self, term: Call) -> Call:
        """A comparison of a key, whose other side is folded to a constant if possible."""
        if not any(isinstance(a, Label) for a in term.args):
            return term
        return Call(term.fn, tuple(map(folded, term.args)), term.dtype)

    def edges_of(self, label: str) -> tuple[Edge | Window, ...]:
        """The bounds of a label from parameters, without duplicates of merged labels."""
        if not self.edges:
            return ()
        edges = (e for raw, es in self.edges.items() if self.find(raw) == label for e in es)
        return tuple(dict.fromkeys(edges))

    def window_of(self, label: str) -> Window | None:
        """The window of a label; in a node the label counts from the window's start.

        Raises:
            NeedsValuesError: The label has several windows.
        """
        windows = {e for e in self.edges_of(label) if isinstance(e, Window)}
        if len(windows) > 1:
            raise NeedsValuesError(set().union(*(w.numbers for w in windows)))
        return windows.pop() if windows else None

    def refuse_edges(self, expr: Expr) -> None:
        """Requires that the bounds of an expression's labels do not depend on parameters.

        Raises:
            NeedsValuesError: A bound depends on a parameter.
        """
        edges = [e for label in labels_of(expr) for e in self.edges_of(self.find(label))]
        if edges:
            raise NeedsValuesError(set().union(*(e.numbers for e in edges)))

    def _narrow(self, label: str, lo: int | None, hi: int | None) -> bool:
        if label in self.outer:
            return False
        low, high = self.axes[label]
        low = low if lo is None else max(low, min(lo, high))
        high = high if hi is None else min(high, max(hi, low))
        self.axes[label] = (low, max(low, high))
        return True

    def _equate(self, a: Expr, b: Expr) -> bool:
        if not isinstance(a, Label):
            return False
        if isinstance(b, Const) and b.dtype.is_integer:
            return self._narrow(a.name, b.integer, b.integer + 1)
        if isinstance(b, Label):
            return a.name == b.name or self._merge(a.name, b.name) or self._merge(b.name, a.name)
        if self.parameters.read and edges_of(Call("eq", (a, b), DType.BOOLEAN)):
            return False  # `settle` makes a window when all conditions are known
        may_define = b.dtype.is_integer and a.name not in self.outer
        if not may_define or a.name in self.defines or a.name in self.reach(b):
            return False
        if self.ranges is not None:
            lo, hi = self.axes[a.name]
            b = proven_within(b, lo, hi, self.bounds(), self.operands, self.ranges)
        self.defines[a.name] = b
        return True

    def _merge(self, keep: str, drop: str) -> bool:
        if drop in self.outer or (keep in self.defines and drop in self.defines):
            return False
        if keep in self.outer and not self._covers(drop, keep):
            if drop in self.defines:
                return False
            self.defines[drop] = Label(keep)
            return True
        if keep in self.defines and drop in self.reach(self.defines[keep]):
            return False
        if drop in self.defines:
            if keep in self.reach(self.defines[drop]) or keep in self.outer:
                return False
            self.defines[keep] = self.defines.pop(drop)
        lo, hi = self.axes.pop(drop)
        low, high = self.axes[keep]
        lo, hi = max(lo, low), min(hi, high)
        self.axes[keep] = (lo, max(lo, hi))
        self.merged[drop] = keep
        return True

    def _covers(self, label: str, outer: str) -> bool:
        """True if merging preserves all values of an enclosing SELECT's label."""
        lo, hi = self.axes[outer]
        return self.axes[label][0] <= lo and hi <= self.axes[label][1]

    def reach(self, expr: Expr) -> set[str]:
        """The labels on which an expression depends, directly or by definitions."""
        labels: set[str] = set()
        todo = self._direct(expr)
        while todo:
            label = todo.pop()
            labels.add(label)
            define = self.defines.get(label)
            if define is not None:
                todo |= self._direct(define) - labels
        return labels

    def _indexes(self, expr: Expr) -> set[str]:
        """The labels that index the operands of an expression."""
        read = (self.operands[n] for n in operands_of(expr))
        return {self.find(label) for o in read for label in o.labels}

    def derive(self, hint: str, define: Expr, lo: int, hi: int) -> str:
        """Adds a derived label with the value of an expression."""
        label = self.fresh(hint, lo, hi)
        self.defines[label] = define
        return label

    def shift(self, expr: Expr) -> tuple[str, int, int] | None:
        """The result of `affine`; it fixes the values of the parameters in the expression."""
        if not parameters_of(expr):
            return affine(expr)
        probe = replace(self.parameters, fixed=set())
        form = affine(probe.constants(expr))
        if form is not None:
            self.parameters.constants(expr)
        return form

    def shift_of_free(self, expr: Expr) -> tuple[str, int, int] | None:
        """The shift of a free label that an expression of derived labels is; see `affine`.

        None if it is no shift, if a parameter is part of it, or if the free label has one value.
        """
        form = affine(expr)
        while form is not None and form[0] in self.defines:
            inner = affine(self.canonical(self.defines[form[0]]))
            form = inner and (inner[0], form[1] * inner[1], form[1] * inner[2] + form[2])
        if form is None:
            return None
        (lo, hi), window = self.axes[form[0]], self.window_of(form[0])
        return form if (hi - lo if window is None else window.extent) > 1 else None

    def ascending(self, value: Expr) -> str | None:
        """The free label that orders points as a key does; None if there is none."""
        form = self.shift(self.canonical(value))
        while form is not None and form[1] > 0 and form[0] in self.defines:
            form = self.shift(self.canonical(self.defines[form[0]]))
        return None if form is None or form[1] < 0 else form[0]

    def rekey(self, label: str, sign: int, offset: int, hint: str) -> str:
        """Replaces a free label l by a free label o = sign · l + offset; l is derived from o."""
        self.refuse_edges(Label(label))
        lo, hi = self.axes[label]
        ends = (sign * lo + offset, sign * (hi - 1) + offset)
        new = self.fresh(hint, min(ends), max(min(ends), max(ends) + 1) if hi > lo else min(ends))
        shifted: Expr = Label(new)
        if offset:
            shifted = Call("sub", (shifted, Const(offset, DType.BIGINT)), DType.BIGINT)
        if sign < 0:
            shifted = Call("neg", (shifted,), DType.BIGINT)
        self.defines[label] = shifted
        if label in self.hint:
            self.hint[new] = self.hint.pop(label)
        return new

    @property
    def free(self) -> list[str]:
        """The merged labels that are not derived, in the order of their creation."""
        return [label for label in self.axes if label not in self.defines]

    @property
    def guard(self) -> Expr:
        """The conjunction of the unsolved conditions; conditions that may raise come last."""
        terms = [t for g in self.guards for t in conjuncts(self.canonical(g))]
        bounds = self.bounds()
        return conj(*sorted(terms, key=lambda t: can_raise(t, bounds)))

    @property
    def total(self) -> bool:
        """True if every point of the free domain provably exists."""
        return self.guard == TRUE and all(self._proven(label) for label in self.defines)

    def _proven(self, label: str) -> bool:
        bounds = self.interval(self.canonical(self.defines[label]))
        lo, hi = self.axes[label]
        return bounds is not None and lo <= bounds[0] and bounds[1] < hi

    def copy(self) -> Domain:
        """An independent copy of the domain over the same nodes."""
        return Domain(
            axes=dict(self.axes),
            operands=list(self.operands),
            defines=dict(self.defines),
            guards=list(self.guards),
            merged=dict(self.merged),
            outer=self.outer,
            hint=dict(self.hint),
            windows=self.windows,
            edges=dict(self.edges),
            settled=set(self.settled),
            ranges=self.ranges,
            origins=self.origins,
        )

    def node(
        self, keys: Iterable[str], outputs: Iterable[Output], first: Sequence[str] = ()
    ) -> EinSum:
        """Builds the EinSum over this domain; outputs may use raw labels.

        Args:
            keys: The labels of the result.
            outputs: The outputs.
            first: The free labels that come first, in the order in which states are merged.
        """
        for o in self.operands:
            for n, window in self.windows.of(o.source).items():
                if self.window_of(self.find(o.labels[n])) != window:
                    raise NeedsValuesError(window.numbers)  # the key counts from the window's start
        guard = FALSE if any(lo >= hi for lo, hi in self.axes.values()) else self.guard
        order = self._ordered(first)
        defines = self._protected(order, guard)
        axes = tuple(Axis(n, *self.axes[n], defines.get(n)) for n in order)
        operands = tuple(
            Operand(o.source, tuple(self.find(n) for n in o.labels)) for o in self.operands
        )
        changed = tuple(
            Output(
                o.name,
                tuple(self.canonical(a) for a in o.args),
                o.dtype,
                o.reduction,
                self.canonical(o.where),
            )
            for o in outputs
        )
        hint = tuple((n, parts) for n, parts in self.hint.items() if n in self.axes)
        node = EinSum(axes, operands, guard, tuple(keys), changed, hint, origins=self.origins)
        if not self.edges:
            return self.parameters.lowered(node)
        windows = {n: w for n in order if (w := self.window_of(n)) is not None}
        return self.windows.within(node, windows)

    def _ordered(self, first: Sequence[str]) -> list[str]:
        """The free labels, some of them first, and each derived label after those that it reads.

        Definitions that may raise come as late as possible, so that more conditions precede them.
        """
        free = self.free
        order = list(dict.fromkeys([*(n for n in map(self.find, first) if n in free), *free]))
        waiting = [n for n in self.axes if n in self.defines]
        while waiting:
            ready = [n for n in waiting if self._direct(self.defines[n]) <= set(order)]
            order += [n for n in ready if not self._may_raise(n)] or ready
            waiting = [n for n in waiting if n not in order]
        return order

    def _may_raise(self, label: str) -> bool:
        return can_raise(self.canonical(self.defines[label]), self.bounds())

    def _direct(self, expr: Expr) -> set[str]:
        """The labels of an expression and of its operands."""
        return {self.find(n) for n in labels_of(expr)} | self._indexes(expr)

    def _protected(self, order: list[str], guard: Expr) -> dict[str, Expr]:
        """The definitions; one that may raise is evaluated only if earlier guard terms are true."""
        terms = list(conjuncts(guard))
        protected: dict[str, Expr] = {}
        for n, label in enumerate(order):
            if label not in self.defines:
                continue
            define = self.canonical(self.defines[label])
            if self._may_raise(label):
                known = conj(*(t for t in terms if self._direct(t) <= set(order[:n])))
                if known != TRUE:  # no point exists elsewhere, so 0 is not used
                    nothing = Const(0, define.dtype)
                    define = call("if", define.dtype, known, define, nothing)
            protected[label] = define
        return protected


FAR = 2**40
"""The largest offset of an affine key; larger ones stay arithmetic with an overflow check."""


def affine(expr: Expr) -> tuple[str, int, int] | None:
    """(label, ±1, offset) of an expression ±label + offset with a modest offset, or None."""
    shift = shift_of(expr, lambda e: Shift(e.name, 1, 0) if isinstance(e, Label) else None)
    if shift is None or abs(shift.offset) >= FAR:
        return None
    return shift.label, shift.sign, shift.offset
