"""Affine integer expressions: sums of labels times constants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from einsql.core.schema import DType
from einsql.ir.einsum.graph import Axis, Call, Const, EinSum, Expr, Label


@dataclass(frozen=True, slots=True)
class Affine:
    """Σ steps[l] · l + offset; no step is 0."""

    steps: Mapping[str, int]
    offset: int

    def least(self, axes: Mapping[str, Axis]) -> int:
        """The least value over axes that are not empty."""
        ends = ((s, axes[x]) for x, s in self.steps.items())
        return self.offset + sum(s * (a.lo if s > 0 else a.hi - 1) for s, a in ends)

    def most(self, axes: Mapping[str, Axis]) -> int:
        """The greatest value over axes that are not empty."""
        ends = ((s, axes[x]) for x, s in self.steps.items())
        return self.offset + sum(s * (a.hi - 1 if s > 0 else a.lo) for s, a in ends)

    def stays_within(self, axis: Axis, axes: Mapping[str, Axis]) -> bool:
        """True if no value over axes that are not empty leaves the bounds of an axis."""
        return axis.lo <= self.least(axes) and self.most(axes) < axis.hi

    def is_injective(self, axes: Mapping[str, Axis]) -> bool:
        """True if each step exceeds the reach of all smaller ones, as in a mixed radix."""
        reach = 0
        for label, step in sorted(self.steps.items(), key=lambda term: term[1]):
            if step <= reach:
                return False
            reach += step * max(0, axes[label].extent - 1)
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
        """The expression spelled out, as a BIGINT."""
        total: Expr | None = None
        for x, s in self.steps.items():
            total = _with_term(total, Label(x), s)
        if total is None:
            return Const(self.offset, DType.BIGINT)
        return _with_term(total, None, self.offset) if self.offset else total


def _with_term(before: Expr | None, label: Label | None, by: int) -> Expr:
    """A sum with one more term: a label times a number, or the number."""
    size = Const(abs(by), DType.BIGINT)
    term: Expr = size if label is None else label
    if label is not None and abs(by) != 1:
        term = Call("mul", (label, size), DType.BIGINT)
    if before is None:
        return Call("neg", (term,), DType.BIGINT) if by < 0 else term
    return Call("sub" if by < 0 else "add", (before, term), DType.BIGINT)


def affine(expr: Expr, known: Mapping[str, Affine]) -> Affine | None:
    """The affine form of an integer expression that does not raise, or None if it has none.

    Args:
        expr: The expression.
        known: The affine form of each label that it may read.
    """
    if isinstance(expr, Label):
        return known.get(expr.name)
    if isinstance(expr, Const):
        return Affine({}, int(expr.value)) if expr.dtype.is_integer else None
    if not isinstance(expr, Call) or not expr.dtype.is_integer:
        return None
    if expr.fn not in ("cast", "neg", "add", "sub", "mul"):
        return None
    parts: list[Affine] = []
    for a in expr.args:
        part = affine(a, known)
        if part is None:
            return None
        parts.append(part)
    if expr.fn == "cast":
        return parts[0]
    if expr.fn == "neg":
        return parts[0].scaled(-1)
    first, second = parts
    if expr.fn == "mul":
        if not first.steps:
            return second.scaled(first.offset)
        return None if second.steps else first.scaled(second.offset)
    return first.plus(second if expr.fn == "add" else second.scaled(-1))


def free_labels_as_affine(node: EinSum) -> dict[str, Affine]:
    """Each free label of a node as itself."""
    return {a.label: Affine({a.label: 1}, 0) for a in node.axes if a.define is None}


def affine_labels(node: EinSum) -> dict[str, Affine]:
    """Those derived labels of a node that are affine in its free labels."""
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
        The labels if every value in `[least, most]` has exactly one point over them, which
        counts up in that order, else None.
    """
    order = sorted(a.steps, key=lambda x: a.steps[x])
    weight = 1
    for x in order:
        if a.steps[x] != weight:
            return None
        weight *= axes[x].extent
    return tuple(reversed(order))
