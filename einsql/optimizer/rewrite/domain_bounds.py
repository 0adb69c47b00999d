"""Domains: comparisons become axis bounds, equal labels are merged, bounds are pushed down."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from einsql.core.schema import DType
from einsql.ir.einsum.affine import Shift, shift_of
from einsql.ir.einsum.graph import (
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Operand,
    Roots,
    conj,
    conjuncts,
    walk,
)
from einsql.ir.einsum.graph_rewriting import hint_over, map_exprs, relabel
from einsql.ir.einsum.intervals import bounds_of, can_raise, fits
from einsql.ir.einsum.states import has_order
from einsql.optimizer.rewrite.node_properties import in_order, is_pointwise, with_axes
from einsql.optimizer.rewrite.rules import Rule, rebuild

_EXACT = {DType.DOUBLE: 2**53, DType.FLOAT: 2**24}
"""For each float type the number up to which it represents every integer."""


def narrow_axes(node: EinSum) -> EinSum:
    """Moves `label < constant` and similar conditions from the guard into a label's bounds.

    Bounds of result keys are part of the schema, so only other labels are narrowed. A derived
    label exists only within its bounds, so a guard that repeats these is dropped.
    """
    bounds = bounds_of(node)
    defined: dict[Expr, str] = {a.define: a.label for a in node.axes if isinstance(a.define, Call)}
    changed: dict[str, Axis] = {}
    kept: list[Expr] = []
    for term in conjuncts(node.guard):
        limit = _solve(term, bounds, defined)
        if limit is None:
            kept.append(term)
            continue
        label, lo, hi = limit
        axis = changed.get(label) or node.axis(label)
        if label not in node.keys:
            changed[label] = _clip(axis, lo, hi)
        elif axis.define is None or axis.lo < lo or hi < axis.hi:
            kept.append(term)
    if not changed and len(kept) == len(list(conjuncts(node.guard))):
        return node
    return replace(with_axes(node, changed), guard=conj(*kept))


def _clip(axis: Axis, lo: float, hi: float) -> Axis:
    """The axis within other bounds; an empty axis stays inside its old bounds."""
    low, high = max(axis.lo, lo), min(axis.hi, hi)
    if low >= high:
        return axis if axis.extent == 0 else replace(axis, hi=axis.lo)
    return replace(axis, lo=_whole(low), hi=_whole(high))


def _whole(bound: float) -> int:
    """A bound without a fraction as an integer; an integer stays the same object."""
    return bound if isinstance(bound, int) else int(bound)


def _solve(
    term: Expr, bounds: dict[str, tuple[int, int]], defined: Mapping[Expr, str]
) -> tuple[str, float, float] | None:
    """A comparison of one label with a constant, as the label and its bounds `[lo, hi)`.

    Args:
        term: A condition.
        bounds: The bounds of every label.
        defined: The derived label of an expression, by the expression.
    """
    if not isinstance(term, Call) or term.fn not in ("eq", "lt", "le"):
        return None
    left, right = term.args
    if isinstance(right, Const):
        shift, number, swapped = _shift(left, bounds, defined), right.value, False
    elif isinstance(left, Const):
        shift, number, swapped = _shift(right, bounds, defined), left.value, True
    else:
        return None
    if shift is None or not math.isfinite(number):
        return None
    least, most = -math.inf, math.inf  # inclusive bounds of sign · label + offset
    if term.fn == "eq":
        if number != math.floor(number):
            return shift.label, 0, 0
        least = most = math.floor(number)
    elif swapped:
        least = math.floor(number) + 1 if term.fn == "lt" else math.ceil(number)
    else:
        most = math.ceil(number) - 1 if term.fn == "lt" else math.floor(number)
    least, most = least - shift.offset, most - shift.offset
    if shift.sign < 0:
        least, most = -most, -least
    return shift.label, least, most + 1


def _shift(
    expr: Expr, bounds: dict[str, tuple[int, int]], defined: Mapping[Expr, str]
) -> Shift | None:
    """An expression as ± label + offset, if no cast changes a value; arguments as in `_solve`."""

    def leaf(e: Expr) -> Shift | None:
        label = e.name if isinstance(e, Label) else defined.get(e)
        if label is not None:
            return Shift(label, 1, 0)
        if not isinstance(e, Call) or e.fn != "cast":
            return None
        inner = shift_of(e.args[0], leaf)
        if inner is None or e.dtype.is_integer:
            return inner
        limit = _EXACT.get(e.dtype, 0)
        lo, hi = bounds[inner.label]
        exact = fits((lo + inner.offset, hi + inner.offset), -limit, limit)
        return inner if exact and inner.sign > 0 else None

    return shift_of(expr, leaf)


def unify_labels(node: EinSum) -> EinSum:
    """Merges two labels that are equal wherever the point exists, unless labels order states."""
    if has_order(node):
        return node
    for axis in node.axes:
        if isinstance(axis.define, Label):
            merged = _merge(node, axis.label, axis.define.name)
            if merged is not None:
                return merged
    for term in conjuncts(node.guard):
        if not (isinstance(term, Call) and term.fn == "eq") or term.args[0] == term.args[1]:
            continue
        rest = replace(node, guard=conj(*(t for t in conjuncts(node.guard) if t != term)))
        for this, other in (term.args, term.args[::-1]):
            if not isinstance(this, Label):
                continue
            merged = _merge(rest, this.name, other.name) if isinstance(other, Label) else None
            merged = merged or _define(rest, this.name, other)
            if merged is not None:
                return merged
    return node


def _merge(node: EinSum, a: str, b: str) -> EinSum | None:
    """The node with equal labels a and b merged, or None if keys forbid it."""
    x, y = node.axis(a), node.axis(b)
    lo, hi = max(x.lo, y.lo), min(x.hi, y.hi)
    own = [
        z.define
        for z, other in ((x, y), (y, x))
        if z.define is not None and z.define != Label(other.label)
    ]
    for gone, kept in ((x, y), (y, x)):
        is_key = kept.label in node.keys
        moves = (lo > kept.lo or hi < kept.hi) and is_key
        turns = bool(own) and kept.define is None and is_key
        if gone.label in node.keys or moves or turns or len(own) > 1:
            continue
        names = {gone.label: kept.label}
        axis = _clip(replace(kept, define=own[0] if own else None), lo, hi)
        hint = ((names.get(x, x), parts) for x, parts in node.hint)
        merged = replace(
            node,
            axes=tuple(axis if z is kept else z for z in node.axes if z is not gone),
            operands=tuple(
                Operand(o.source, tuple(names.get(n, n) for n in o.labels)) for o in node.operands
            ),
            hint=hint_over(hint, {a.label for a in node.axes}),
        )
        ordered = in_order(map_exprs(merged, partial(relabel, names=names)))
        if ordered is not None:
            return ordered
    return None


def _define(node: EinSum, label: str, value: Expr) -> EinSum | None:
    """Derives a free label from the single value that the guard allows: a gather or a scatter."""
    axis = node.axis(label)
    if axis.define is not None or can_raise(value, bounds_of(node)):
        return None
    if label in node.keys and is_pointwise(node):
        return None
    return in_order(with_axes(node, {label: replace(axis, define=value)}))


def push_bounds(roots: Roots) -> tuple[Roots, int]:
    """Narrows the keys of each producer to the values that its readers' axes can take."""
    needs: dict[int, list[tuple[int, int] | None]] = {}
    narrowed: dict[int, EinSum] = {}
    for node in reversed(walk(*roots)):
        if not isinstance(node, EinSum):
            continue
        new = _to_needs(node, needs[id(node)]) if id(node) in needs else node  # roots have no needs
        if new is not node:
            narrowed[id(node)] = new
        axes = {a.label: a for a in new.axes}
        for o in new.operands:
            seen = needs.setdefault(id(o.source), [None] * len(o.labels))
            for n, label in enumerate(o.labels):
                a, old = axes[label], seen[n]
                seen[n] = (min(a.lo, old[0]), max(a.hi, old[1])) if old else (a.lo, a.hi)
    if not narrowed:
        return roots, 0

    def visit(old: EinSum, over: EinSum) -> EinSum:
        new = narrowed.get(id(old))
        return over if new is None else replace(new, operands=over.operands)

    return rebuild(roots, visit)[0], len(narrowed)


def _to_needs(node: EinSum, needs: list[tuple[int, int] | None]) -> EinSum:
    pairs = zip(map(node.axis, node.keys), needs, strict=True)
    clipped = {axis.label: _clip(axis, *need) for axis, need in pairs if need is not None}
    narrowed = with_axes(node, clipped)
    return node if narrowed.axes == node.axes else narrowed


NARROW_AXES = Rule(
    "narrow-axes",
    "⊕_{i<n} [i < c] f(i) = ⊕_{i<min(n,c)} f(i)",
    node=narrow_axes,
)
UNIFY_LABELS = Rule(
    "unify-labels",
    "⊕_{i,j} [i = j] f(i,j) = ⊕_i f(i,i);  ⊕_j [j = e] f(j) = f(let j = e)",
    node=unify_labels,
)
PUSH_BOUNDS = Rule(
    "push-bounds",
    "(X over i < n)[i < m] = (X over i < m) for m ≤ n, keys i",
    graph=push_bounds,
)
