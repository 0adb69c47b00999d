"""Quotient splits: a label that is only divided becomes a quotient and a remainder.

A group of `i // 4` is then a separate label, which can be cut over sites, and a key in
mixed radix shows its digits one division at a time.
"""

from __future__ import annotations

from dataclasses import replace

from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    bigint,
    call,
    exprs,
    rewrite,
    stored_operands,
    subexpressions,
)
from einsql.ir.einsum.graph_rewriting import fresh, map_exprs, substitute
from einsql.optimizer.rewrite.rules import Rule


def split_quotients(node: EinSum) -> EinSum:
    """Splits the first label that is used only as quotient and remainder by one number."""
    for axis in node.axes:
        divisor = _divisor(node, axis)
        if divisor is not None:
            return _divided(node, axis, divisor)
    return node


def _divisor(node: EinSum, axis: Axis) -> int | None:
    """The number by which a free label is divided; its other uses only index operands."""
    if axis.define is not None or axis.label in node.keys or axis.extent == 0:
        return None
    if node.grid or axis.label in dict(node.hint):  # the complete label is cut
        return None
    if any(axis.label in node.operands[n].labels for n in stored_operands(node)):
        return None  # loops run over stored elements, whose keys are no digits
    divisors: set[int] = set()
    finding = {a.define for a in node.axes if a.define is not None and a.label not in node.keys}
    for e in exprs(node):
        divided = [d for d in map(_division, subexpressions(e)) if d and d[0] == axis.label]
        reads = sum(x == Label(axis.label) for x in subexpressions(e))
        if reads != len(divided) and e not in finding:
            return None
        divisors |= {number for _, number in divided}
    number = min(divisors, default=1)
    if number < 2 or any(d % number for d in divisors) or axis.lo < 0:
        return None
    if axis.lo % number or axis.hi % number or axis.extent == number:
        return None
    return number


def _division(expr: Expr) -> tuple[str, int] | None:
    """The label and the divisor of `label // number` or `label % number`."""
    if isinstance(expr, Call) and expr.fn in ("idiv", "mod") and expr.dtype is DType.BIGINT:
        label, number = expr.args
        if isinstance(label, Label) and isinstance(number, Const) and number.value > 0:
            return label.name, number.integer
    return None


def _divided(node: EinSum, axis: Axis, number: int) -> EinSum:
    """The node with a quotient and a remainder in place of a label."""
    taken = {a.label for a in node.axes}
    high = fresh(axis.label, taken)
    low = fresh(axis.label, taken | {high})
    quotient, remainder = Label(high), Label(low)

    def digits(top: Expr) -> Expr:
        return call("add", DType.BIGINT, call("mul", DType.BIGINT, top, bigint(number)), remainder)

    def divided(e: Expr) -> Expr:
        division = _division(e)
        if division is None or division[0] != axis.label or not isinstance(e, Call):
            return e
        if division[1] == number:
            return quotient if e.fn == "idiv" else remainder
        top = call(e.fn, DType.BIGINT, quotient, bigint(division[1] // number))
        return top if e.fn == "idiv" else digits(top)

    from_parts = {axis.label: digits(quotient)}
    new = map_exprs(node, lambda e: substitute(rewrite(e, divided), from_parts))
    # At the label's place, because values read by it may define later labels.
    split: tuple[Axis, ...]
    split = Axis(high, axis.lo // number, axis.hi // number), Axis(low, 0, number)
    if any(axis.label in o.labels for o in node.operands):
        split = (*split, replace(axis, define=digits(quotient)))
    at = node.axes.index(axis)
    return replace(new, axes=(*new.axes[:at], *split, *new.axes[at + 1 :]))


SPLIT_QUOTIENTS = Rule(
    "split-quotients",
    "⊕_i f(i // n, i % n) = ⊕_{q, r} f(q, r) with i = q · n + r, where n divides the bounds of i",
    node=split_quotients,
)
