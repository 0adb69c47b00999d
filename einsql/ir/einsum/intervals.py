"""Integer intervals of expressions, which prove bounds and the absence of overflow."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from einsql.core.schema import DType
from einsql.ir.einsum.graph import Axis, Call, Const, Expr, Label, Value, subexpressions
from einsql.ir.functions import SCALARS, Interval
from einsql.ir.functions.casts import cast_interval, failure_of

DEPTH = 40
"""The depth of calls below which the interval is the type's range.

Rules compute the interval at every level of an expression, so without a limit a long chain
of operations would take quadratic time.
"""


Bounds = Mapping[str, tuple[int, int]]
"""The bounds `[lo, hi)` of labels."""


class HasAxes(Protocol):
    """A node or another object over a domain."""

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The labels with their bounds."""


def bounds_of(node: HasAxes) -> dict[str, tuple[int, int]]:
    """The bounds `[lo, hi)` of every label of a node."""
    return {a.label: (a.lo, a.hi) for a in node.axes}


def raw_interval(expr: Expr, bounds: Bounds, depth: int = DEPTH) -> Interval:
    """Inclusive bounds of an integer expression before the overflow check of its type.

    Args:
        expr: An expression; the result is None unless it is an integer or BOOLEAN.
        bounds: The bounds `[lo, hi)` of each label that the expression may read.
        depth: The depth of calls to analyse.
    """
    if isinstance(expr, Const):
        return (expr.integer, expr.integer) if expr.dtype.is_integer else None
    if isinstance(expr, Label):
        lo, hi = bounds[expr.name]
        return (lo, max(lo, hi - 1))
    if not expr.dtype.is_integer:
        return None
    if not isinstance(expr, Call):
        known = expr.within if isinstance(expr, Value) else None
        return known or expr.dtype.range
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
    """Inclusive bounds of an integer expression's value, assuming that it does not raise."""
    if not expr.dtype.is_integer:
        return (0, 1) if expr.dtype is DType.BOOLEAN else None
    raw = raw_interval(expr, bounds, depth)
    lo, hi = expr.dtype.range
    return (lo, hi) if raw is None else (max(lo, raw[0]), min(hi, raw[1]))


def never_overflows(expr: Call, bounds: Bounds) -> bool:
    """True if an integer operation provably stays within its type."""
    if expr.fn in SCALARS and SCALARS[expr.fn].opaque:  # it may raise for any argument
        return False
    raw = raw_interval(expr, bounds)
    if raw is None or not expr.dtype.is_integer:
        return False
    lo, hi = expr.dtype.range
    return lo <= raw[0] and raw[1] <= hi


def fits(found: Interval, lo: int, hi: int) -> bool:
    """True if an interval is known and within inclusive bounds."""
    return found is not None and lo <= found[0] and found[1] <= hi


def can_raise(expr: Expr, bounds: Bounds) -> bool:
    """True unless the expression provably raises at no point."""
    return any(isinstance(e, Call) and _call_can_raise(e, bounds) for e in subexpressions(expr))


def _call_can_raise(e: Call, bounds: Bounds) -> bool:
    source = e.args[0].dtype
    if failure_of(e.fn, source, e.dtype) is None:
        return False
    if e.fn != "cast":
        return not never_overflows(e, bounds)
    inner = interval(e.args[0], bounds) if source.is_integer else None
    return not (e.dtype.is_integer and fits(inner, *e.dtype.range))
