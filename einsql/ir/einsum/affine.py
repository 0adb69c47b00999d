"""Affine integer expressions: sums of labels times constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import Axis, Call, Const, Expr, Label, bigint, rewrite
from einsql.ir.einsum.intervals import Bounds, HasAxes, can_raise


@dataclass(frozen=True, slots=True)
class Affine:
    """Σ steps[l] · l + offset; no step is 0."""

    steps: Mapping[str, int]
    offset: int

    def least(self, axes: Mapping[str, Axis]) -> int:
        """The least value over non-empty axes."""
        ends = ((s, axes[x]) for x, s in self.steps.items())
        return self.offset + sum(s * (a.lo if s > 0 else a.hi - 1) for s, a in ends)

    def most(self, axes: Mapping[str, Axis]) -> int:
        """The greatest value over non-empty axes."""
        return -self.scaled(-1).least(axes)

    def stays_within(self, axis: Axis, axes: Mapping[str, Axis]) -> bool:
        """True if all values over non-empty axes are within the bounds of an axis."""
        return axis.lo <= self.least(axes) and self.most(axes) < axis.hi

    def is_injective(self, axes: Mapping[str, Axis]) -> bool:
        """True if each step exceeds the range of all smaller steps, as for digits."""
        reach = 0
        for size, label in sorted((abs(step), label) for label, step in self.steps.items()):
            if size <= reach:
                return False
            reach += size * max(0, axes[label].extent - 1)
        return True

    def scaled(self, by: int) -> Affine:
        """The expression times a number."""
        return Affine({x: s * by for x, s in self.steps.items() if by}, self.offset * by)

    def plus(self, other: Affine) -> Affine:
        """The sum of two expressions."""
        steps = dict(self.steps)
        for x, s in other.steps.items():
            steps[x] = steps.get(x, 0) + s
        return Affine({x: s for x, s in steps.items() if s}, self.offset + other.offset)

    def expr(self) -> Expr:
        """The affine form as a BIGINT expression."""
        total: Expr | None = None
        for x, s in self.steps.items():
            total = _with_term(total, Label(x), s)
        if total is None:
            return bigint(self.offset)
        return _with_term(total, None, self.offset) if self.offset else total


def _with_term(before: Expr | None, label: Label | None, by: int) -> Expr:
    """A sum with an additional term: a label times a number, or the number."""
    term: Expr = bigint(abs(by)) if label is None else label
    if label is not None and abs(by) != 1:
        term = Call("mul", (label, bigint(abs(by))), DType.BIGINT)
    if before is None:
        return Call("neg", (term,), DType.BIGINT) if by < 0 else term
    return Call("sub" if by < 0 else "add", (before, term), DType.BIGINT)


def affine(expr: Expr, known: Mapping[str, Affine]) -> Affine | None:
    """The affine form of an integer expression that does not raise, or None if it has none.

    Args:
        expr: The expression.
        known: The affine form of each label that the expression may read.
    """
    if isinstance(expr, Label):
        return known.get(expr.name)
    if isinstance(expr, Const):
        return Affine({}, expr.integer) if expr.dtype.is_integer else None
    if not isinstance(expr, Call) or not expr.dtype.is_integer:
        return None
    parts = [form for a in expr.args if (form := affine(a, known)) is not None]
    match expr.fn, parts:
        case "cast", [form]:
            return form
        case "neg", [form]:
            return form.scaled(-1)
        case "add", [a, b]:
            return a.plus(b)
        case "sub", [a, b]:
            return a.plus(b.scaled(-1))
        case "mul", [a, b] if not a.steps:
            return b.scaled(a.offset)
        case "mul", [a, b] if not b.steps:
            return a.scaled(b.offset)
    return None


def ordered(expr: Expr, known: Mapping[str, Affine], bounds: Bounds) -> Expr:
    """An expression with its comparisons of affine expressions in one form.

    A comparison is then a ≤ b with positive steps and at most one positive offset, so equal
    conditions have equal expressions.

    Args:
        expr: The expression.
        known: The affine form of each label that the expression may read.
        bounds: The bounds of these labels.
    """

    def visit(e: Expr) -> Expr:
        if not isinstance(e, Call) or e.fn not in ("le", "lt") or can_raise(e, bounds):
            return e
        first, second = (affine(a, known) for a in e.args)
        if first is None or second is None:
            return e
        rest = second.plus(first.scaled(-1)).plus(Affine({}, -(e.fn == "lt")))
        steps = sorted(rest.steps.items())
        least = Affine({x: -s for x, s in steps if s < 0}, max(0, -rest.offset))
        most = Affine({x: s for x, s in steps if s > 0}, max(0, rest.offset))
        return Call("le", (least.expr(), most.expr()), e.dtype)

    return rewrite(expr, visit)


@dataclass(frozen=True, slots=True)
class Shift:
    """sign · label + offset, for a sign of 1 or -1."""

    label: str
    sign: int
    offset: int

    def negated(self) -> Shift:
        """The negated shift."""
        return Shift(self.label, -self.sign, -self.offset)

    def plus(self, number: int) -> Shift:
        """The shift plus a number."""
        return Shift(self.label, self.sign, self.offset + number)


def shift_of(expr: Expr, leaf: Callable[[Expr], Shift | None]) -> Shift | None:
    """The shift of an expression that adds constants to one label or subtracts them, or None.

    Args:
        expr: The expression.
        leaf: Returns the shift of a known subexpression such as a label; None for others.
    """
    known = leaf(expr)
    if known is not None:
        return known
    match expr:
        case Call("neg", (a,)):
            inner = shift_of(a, leaf)
            return inner and inner.negated()
        case Call("add" | "sub", (a, Const() as b)) if expr.dtype.is_integer:
            inner = shift_of(a, leaf)
            return inner and inner.plus(b.integer if expr.fn == "add" else -b.integer)
        case Call("add" | "sub", (Const() as a, b)) if expr.dtype.is_integer:
            inner = shift_of(b, leaf)
            return inner and (inner if expr.fn == "add" else inner.negated()).plus(a.integer)
    return None


def free_labels_as_affine(node: HasAxes) -> dict[str, Affine]:
    """The affine form of each free label of a node."""
    return {a.label: Affine({a.label: 1}, 0) for a in node.axes if a.define is None}


def affine_labels(node: HasAxes) -> dict[str, Affine]:
    """The affine forms of derived labels that are affine in the node's free labels."""
    known = free_labels_as_affine(node)
    derived: dict[str, Affine] = {}
    for a in node.axes:
        form = affine(a.define, known) if a.define is not None else None
        if form is not None:
            known[a.label] = derived[a.label] = form
    return derived


def digits(a: Affine, axes: Mapping[str, Axis]) -> tuple[str, ...] | None:
    """The labels of an expression in mixed radix, the most significant first.

    Returns:
        The labels if every value in `[least, most]` has exactly one point over them, and the points
        are in the order of the values; else None.
    """
    order = sorted(a.steps, key=lambda x: a.steps[x])
    weight = 1
    for x in order:
        if a.steps[x] != weight:
            return None
        weight *= axes[x].extent
    return tuple(reversed(order))
