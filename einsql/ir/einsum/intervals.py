"""Integer intervals of expressions, which prove bounds and the absence of overflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from einsql.core.schema import DType
from einsql.ir.einsum.graph import Axis, Call, Const, Expr, Label, subexpressions
from einsql.ir.functions import SCALARS, Interval
from einsql.ir.functions.casts import cast_interval, failure_of

DEPTH = 40
"""Depth of calls below which the interval is that of the type.

Rules compute the interval at every level of an expression, so without a limit a long chain
of operations would take quadratic time.
"""


Bounds = Mapping[str, tuple[int, int]]
"""`[lo, hi)` of labels."""


class HasAxes(Protocol):
    """A node, or anything else over a domain."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The labels with their bounds."""


def bounds_of(node: HasAxes) -> dict[str, tuple[int, int]]:
    """`[lo, hi)` of every label of a node."""
    return {a.label: (a.lo, a.hi) for a in node.axes}


def raw_interval(expr: Expr, bounds: Bounds, depth: int = DEPTH) -> Interval:
    """Inclusive bounds of an integer expression before it is checked against its type.

    Args:
        expr: An expression; anything but an integer or BOOLEAN gives None.
        bounds: `[lo, hi)` of each label the expression may read.
        depth: How many calls below the expression are looked at.
    """
    if isinstance(expr, Const):
        return (int(expr.value), int(expr.value)) if expr.dtype.is_integer else None
    if isinstance(expr, Label):
        lo, hi = bounds[expr.name]
        return (lo, max(lo, hi - 1))
    if not expr.dtype.is_integer:
        return None
    if not isinstance(expr, Call):
        return expr.dtype.range
    if depth == 0:
        return None
    if expr.fn == "cast":
        source = expr.args[0].dtype
        return cast_interval(interval(expr.args[0], bounds, depth - 1), source, expr.dtype)
    through = SCALARS[expr.fn].interval
    if through is None:
        return None
    return through(*(interval(a, bounds, depth - 1) for a in expr.args))


def interval(expr: Expr, bounds: Bounds, depth: int = DEPTH) -> Interval:
    """Inclusive bounds of an integer expression's value, given that it did not raise."""
    if not expr.dtype.is_integer:
        return (0, 1) if expr.dtype is DType.BOOLEAN else None
    raw = raw_interval(expr, bounds, depth)
    lo, hi = expr.dtype.range
    return (lo, hi) if raw is None else (max(lo, raw[0]), min(hi, raw[1]))


def never_overflows(expr: Call, bounds: Bounds) -> bool:
    """True if an integer operation provably stays within its type."""
    raw = raw_interval(expr, bounds)
    if raw is None or not expr.dtype.is_integer:
        return False
    lo, hi = expr.dtype.range
    return lo <= raw[0] and raw[1] <= hi


def fits(found: Interval, lo: int, hi: int) -> bool:
    """True if an interval is known and within inclusive bounds."""
    return found is not None and lo <= found[0] and found[1] <= hi


def can_raise(expr: Expr, bounds: Bounds) -> bool:
    """False only if evaluating the expression at any point provably raises nothing."""
    return any(isinstance(e, Call) and _call_can_raise(e, bounds) for e in subexpressions(expr))


def _call_can_raise(e: Call, bounds: Bounds) -> bool:
    source = e.args[0].dtype
    if failure_of(e.fn, source, e.dtype) is None:
        return False
    if e.fn != "cast":
        return not never_overflows(e, bounds)
    inner = interval(e.args[0], bounds) if source.is_integer else None
    return not (e.dtype.is_integer and fits(inner, *e.dtype.range))
