"""Splits long derivatives: repeated subexpressions become separate nodes.

Reverse mode shares subexpressions, but expressions are processed as trees, in which every
occurrence costs time. Second derivatives would double in size at every level.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from einsql.ir.autodiff.domains import Points, node, reached
from einsql.ir.autodiff.terms import Term
from einsql.ir.einsum.graph import TRUE, Call, Expr, Operand, Output, Value, labels_of, operands_of
from einsql.ir.einsum.intervals import bounds_of, can_raise

LONG = 200
"""The maximum of subexpressions of an expression that is not split."""
PART = 12
"""The minimum of subexpressions of a repeated expression that becomes a separate node."""


def in_parts(points: Points) -> Points:
    """Equal contributions, with the repeated subexpressions of long values as map nodes."""
    known: dict[tuple[object, ...], Expr] = {}
    root = _interned(points.value.expr, known, {})
    order = once_each(root)
    if _sizes(order)[id(root)] <= LONG:
        return points
    uses = Counter(id(a) for e in order for a in (e.args if isinstance(e, Call) else ()))
    operands = list(points.operands)
    bounds = bounds_of(points)
    rebuilt: dict[int, Expr] = {}
    size: dict[int, int] = {}
    for e in order:
        new = e
        if isinstance(e, Call):
            new = Call(e.fn, tuple(rebuilt[id(a)] for a in e.args), e.dtype)
        size[id(e)] = 1 + sum(size[id(a)] for a in (e.args if isinstance(e, Call) else ()))
        often = uses[id(e)] > 1 and size[id(e)] >= PART and e.dtype.is_float
        if often and not can_raise(new, bounds):  # expressions that may raise stay conditional
            new = as_node(replace(points, operands=tuple(operands)), new, operands)
            size[id(e)] = 1
        rebuilt[id(e)] = new
    return replace(points, value=Term(rebuilt[id(root)]), operands=tuple(operands))


def as_node(points: Points, value: Expr, operands: list[Operand]) -> Expr:
    """A value of a new operand: a map over the labels that an expression reads."""
    labels = labels_of(value).union(*(points.operands[n].labels for n in operands_of(value)))
    within = reached(points, [a for a in points.axes if a.label in labels])
    axes = tuple(a for a in points.axes if a.label in within)
    keys = tuple(a.label for a in axes if a.define is None)
    part = node(axes, points.operands, TRUE, keys, [Output("part", (value,), value.dtype)])
    operands.append(Operand(part, keys))
    return Value(len(operands) - 1, "part", value.dtype)


def _interned(e: Expr, known: dict[tuple[object, ...], Expr], seen: dict[int, Expr]) -> Expr:
    """The expression with one object for all equal subexpressions."""
    if id(e) not in seen:
        key: tuple[object, ...] = (e,)
        new = e
        if isinstance(e, Call):
            args = tuple(_interned(a, known, seen) for a in e.args)
            key = (e.fn, e.dtype, *map(id, args))
            new = known.get(key) or Call(e.fn, args, e.dtype)
        seen[id(e)] = known.setdefault(key, new)
    return seen[id(e)]


def once_each(root: Expr) -> list[Expr]:
    """Every object in an expression once, arguments first."""
    order: list[Expr] = []
    done: set[int] = set()
    stack = [(root, False)]
    while stack:
        e, opened = stack.pop()
        if id(e) in done:
            continue
        if isinstance(e, Call) and not opened:
            stack.append((e, True))
            stack += [(a, False) for a in e.args]
            continue
        done.add(id(e))
        order.append(e)
    return order


def replaced(root: Expr, old: Expr, new: Expr) -> Expr:
    """The expression with one object in it replaced."""
    rebuilt: dict[int, Expr] = {}
    for e in once_each(root):
        rebuilt[id(e)] = new if e is old else e
        if e is not old and isinstance(e, Call) and any(rebuilt[id(a)] is not a for a in e.args):
            rebuilt[id(e)] = Call(e.fn, tuple(rebuilt[id(a)] for a in e.args), e.dtype)
    return rebuilt[id(root)]


def _sizes(order: list[Expr]) -> dict[int, int]:
    """The number of subexpressions of each expression as a tree."""
    sizes: dict[int, int] = {}
    for e in order:
        sizes[id(e)] = 1 + sum(sizes[id(a)] for a in (e.args if isinstance(e, Call) else ()))
    return sizes
