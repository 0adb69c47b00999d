"""Analysis of the scalar expressions of a node, shared by kernels."""

from __future__ import annotations

from collections.abc import Mapping

from einsql.errors import InternalError
from einsql.ir.einsum.graph import (
    Axis,
    Call,
    EinSum,
    Expr,
    Value,
    exprs,
    labels_of,
    operands_of,
    subexpressions,
)
from einsql.ir.einsum.intervals import never_overflows
from einsql.ir.functions import SCALARS, Failure
from einsql.ir.functions.casts import cast_failure

Bounds = Mapping[str, tuple[int, int]]
"""The bounds `[lo, hi)` of every label."""


def bounds_of(node: EinSum) -> dict[str, tuple[int, int]]:
    """The bounds of a node's labels."""
    return {a.label: (a.lo, a.hi) for a in node.axes}


def calls_of(*roots: Expr) -> set[Call]:
    """The distinct calls in expressions."""
    return {e for root in roots for e in subexpressions(root) if isinstance(e, Call)}


def values_of(*roots: Expr) -> list[Value]:
    """The distinct operand fields that expressions read, in order."""
    values = (e for root in roots for e in subexpressions(root) if isinstance(e, Value))
    return list(dict.fromkeys(values))


def labels_read(node: EinSum, expr: Expr) -> set[str]:
    """The labels on which an expression depends, directly or through an operand's index."""
    return labels_of(expr).union(*(node.operands[n].labels for n in operands_of(expr)))


def derived_axes(node: EinSum) -> list[tuple[Axis, Expr]]:
    """The derived axes with their definitions, in the order of their dependencies.

    Raises:
        InternalError: Axes define each other.
    """
    known = {a.label for a in node.axes if a.define is None}
    waiting = [(a, a.define) for a in node.axes if a.define is not None]
    ordered: list[tuple[Axis, Expr]] = []
    while waiting:
        ready = next((x for x in waiting if labels_read(node, x[1]) <= known), None)
        if ready is None:
            labels = sorted(a.label for a, _ in waiting)
            raise InternalError(f"Derived labels {labels} define each other.")
        waiting.remove(ready)
        ordered.append(ready)
        known.add(ready[0].label)
    return ordered


def opaque_functions(*nodes: EinSum) -> list[str]:
    """The unique names of the Python functions that nodes call, which run in NumPy only."""
    roots = (root for node in nodes for root in exprs(node))
    calls = (e.fn for root in roots for e in subexpressions(root) if isinstance(e, Call))
    opaque = (fn for fn in calls if fn in SCALARS and SCALARS[fn].opaque)
    return list(dict.fromkeys(opaque))


def failure_of(e: Call) -> Failure | None:
    """The failure that a function may raise for some arguments, or None."""
    source = e.args[0].dtype
    return cast_failure(source, e.dtype) if e.fn == "cast" else SCALARS[e.fn].fails.get(source)


def failure_within(e: Call, bounds: Bounds) -> Failure | None:
    """The failure that a function may raise within its arguments' intervals, or None."""
    failure = failure_of(e)
    return None if failure is None or never_overflows(e, bounds) else failure


def fails(expr: Expr, bounds: Bounds) -> bool:
    """True if evaluating an expression may raise."""
    return any(
        isinstance(e, Call) and failure_within(e, bounds) is not None for e in subexpressions(expr)
    )
