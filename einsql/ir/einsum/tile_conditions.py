"""Conditions over tiles: whether a condition may hold at a point, given the ranges of the values.

Every function computes all tiles at once, over arrays. An expression is evaluated by its NumPy
functions at the ends of the ranges; the results are ranges that contain every value. So a tile in
which a condition cannot hold need not be read, if evaluating the condition cannot raise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from itertools import product
from operator import and_, or_

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Label,
    Value,
    conj,
    conjuncts,
    disj,
    exprs,
    operands_of,
    subexpressions,
)
from einsql.ir.einsum.intervals import bounds_of, can_raise
from einsql.ir.einsum.partial_states import merges
from einsql.ir.functions import SCALARS
from einsql.ir.functions.casts import cast_array, evaluated

Flags = np.ndarray
"""For each tile whether a condition may be true, or may be false."""


@dataclass(frozen=True, slots=True, eq=False)
class TileRanges:
    """The values of an expression in each tile.

    Attributes:
        least: The least value that is no NaN, in the carrier of the expression's type.
        most: The greatest; less than `least` in a tile without such values.
        has_nan: Whether a tile may have a NaN.
    """

    least: np.ndarray
    most: np.ndarray
    has_nan: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> TileRanges:
        """The ranges of an expression with one value in each tile."""
        has_nan = np.asarray(values != values)
        if not has_nan.any():
            return cls(values, values, has_nan)
        return cls(np.where(has_nan, np.inf, values), np.where(has_nan, -np.inf, values), has_nan)


Leaf = Callable[[Value | Label], TileRanges | None]
"""Returns the ranges of a value of an operand or of a label; None if they are unknown."""


# ---- which operands a condition may exclude


def condition_of(node: EinSum) -> Expr:
    """The condition without which a point changes no output."""
    wheres = [o.where for o in node.outputs]
    needed = disj(*wheres) if all(o.reduction is not None for o in node.outputs) else TRUE
    return conj(node.guard, needed)


def excluding_operands(node: EinSum) -> tuple[int, ...]:
    """The operands of which some tiles may change no output, because a condition is false there.

    Each is an input with different free labels. Nothing that is evaluated there can raise.
    """
    condition = condition_of(node)
    if condition == TRUE or node.sparse or not (node.is_elementwise or merges(node)):
        return ()
    free = {a.label for a in node.axes if a.define is None}
    numbers = tuple(
        n
        for n, o in enumerate(node.operands)
        if type(o.source) is Input
        and o.labels
        and free.issuperset(o.labels)
        and len(set(o.labels)) == len(o.labels)
        and any(n in operands_of(term) for term in conjuncts(condition))
    )
    if not numbers or any(o.source.sparse for o in node.operands):
        return ()
    bounds = bounds_of(node)
    early = [node.guard, *(o.where for o in node.outputs)]
    early += [a.define for a in node.axes if a.define is not None]
    return () if any(can_raise(e, bounds) or _is_opaque(e) for e in early) else numbers


def _is_opaque(expr: Expr) -> bool:
    """Whether an expression calls a Python function of the user."""
    calls = (e.fn for e in subexpressions(expr) if isinstance(e, Call))
    return any(fn in SCALARS and SCALARS[fn].opaque for fn in calls)


def reads_presence(node: EinSum, operand: int) -> bool:
    """Whether points exist only where an operand's keys do, or all of its keys exist."""
    if not node.operands[operand].source.schema.has(PRESENT):
        return True
    flag = Value(operand, PRESENT, DType.BOOLEAN)
    return flag in conjuncts(node.guard)


def labels_read(node: EinSum) -> set[str]:
    """The labels whose values expressions of a node read."""
    return {e.name for root in exprs(node) for e in subexpressions(root) if isinstance(e, Label)}


# ---- evaluation


def may_hold(condition: Expr, leaf: Leaf) -> Flags:
    """For each tile whether a condition that cannot raise may be true at one of its points."""
    return _outcomes(condition, leaf)[0]


_YES = np.array(True)


def _outcomes(expr: Expr, leaf: Leaf) -> tuple[Flags, Flags]:
    """For each tile whether a BOOLEAN expression may be true, and whether it may be false."""
    match expr:
        case Const():
            return np.array(expr.value), np.array(not expr.value)
        case Value():
            known = leaf(expr)
            return (_YES, _YES) if known is None else (known.most >= 1, known.least <= 0)
        case Call("not", (arg,)):
            return _outcomes(arg, leaf)[::-1]
        case Call("and" | "or", args):
            true, false = zip(*(_outcomes(a, leaf) for a in args), strict=True)
            both, either = (and_, or_) if expr.fn == "and" else (or_, and_)
            return reduce(both, true), reduce(either, false)
        case Call("lt" | "le" | "eq" | "ne" as fn, (a, b)):
            x, y = _ranges(a, leaf), _ranges(b, leaf)
            return (_YES, _YES) if x is None or y is None else _compared(fn, x, y)
        case Call("isnan", (arg,)):
            known = _ranges(arg, leaf)
            return (_YES, _YES) if known is None else (known.has_nan, known.least <= known.most)
    return _YES, _YES


def _compared(fn: str, x: TileRanges, y: TileRanges) -> tuple[Flags, Flags]:
    """The outcomes of a comparison; NaN equals NaN and is greater than all numbers."""
    if fn == "le":
        return _compared("lt", y, x)[::-1]
    if fn == "lt":
        below = (x.least < y.most) | (y.has_nan & (x.least <= x.most))
        return below, (x.most >= y.least) | x.has_nan
    meet = ((x.least <= y.most) & (y.least <= x.most)) | (x.has_nan & y.has_nan)
    single = (x.least == x.most) & (y.least == y.most) & (x.least == y.least)
    apart = ~(single & ~x.has_nan & ~y.has_nan)
    return (meet, apart) if fn == "eq" else (apart, meet)


def _ranges(expr: Expr, leaf: Leaf) -> TileRanges | None:
    """The ranges of a numeric expression; None if they are unknown."""
    match expr:
        case Const():
            return TileRanges.of(np.asarray(cast_array(np.asarray(expr.value), expr.dtype)))
        case Value() | Label():
            return leaf(expr)
        case Call("cast", (arg,)) if expr.dtype is not DType.BOOLEAN:
            known = _ranges(arg, leaf)
            return None if known is None else _mapped(expr, (known,))
        case Call("abs", (arg,)):
            known = _ranges(arg, leaf)
            return None if known is None else _magnitude(known)
        case Call(fn, args) if fn in SCALARS and SCALARS[fn].monotone and not expr.dtype.is_short:
            listed = [_ranges(a, leaf) for a in args]
            every = [known for known in listed if known is not None]
            return _mapped(expr, every) if len(every) == len(listed) else None
    return None


def _magnitude(x: TileRanges) -> TileRanges:
    least, most = np.abs(x.least), np.abs(x.most)
    crosses = (x.least <= 0) & (x.most >= 0)
    ends = np.where(crosses, 0, np.minimum(least, most)), np.maximum(least, most)
    return TileRanges(*ends, x.has_nan)


def _mapped(expr: Call, args: Iterable[TileRanges]) -> TileRanges:
    """The ranges of a function that increases or decreases in each argument.

    Those of floats are wider by one unit in the last place, because kernels may round the results
    of two operations at once.
    """
    every = list(args)
    with np.errstate(all="ignore"):
        corners = [
            evaluated(expr.fn, ends, expr.dtype)
            for ends in product(*((x.least, x.most) for x in every))
        ]
        least, most = reduce(np.minimum, corners), reduce(np.maximum, corners)
        has_nan = reduce(or_, (x.has_nan for x in every))
        if expr.fn == "cast" or expr.dtype.is_integer:
            return TileRanges(least, most, has_nan)
        finite = reduce(and_, (np.isfinite(x.least) & np.isfinite(x.most) for x in every))
        known = finite & ~np.isnan(least)  # infinities of both signs make NaN
        carrier = least.dtype.type
        least = np.where(known, np.nextafter(least, carrier(-np.inf)), carrier(-np.inf))
        most = np.where(known, np.nextafter(most, carrier(np.inf)), carrier(np.inf))
    return TileRanges(least, most, has_nan | ~known)
