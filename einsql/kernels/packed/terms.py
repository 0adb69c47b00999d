"""The split of an output's expression into packed parts and a part in registers.

The largest subexpressions over one side are columns: packing computes them once per element of
that side. Expressions over both sides are computed for every pair.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import Call, Const, EinSum, Expr, Label, Output, Value, subexpressions
from einsql.ir.functions import SCALARS
from einsql.kernels.packed.functions import ANYTHING, BIT, LANES, Range
from einsql.kernels.packed.layout import BOTH, COLUMNS, OLD, ROWS, Layout
from einsql.kernels.scalars import bounds_of, failure_of

Leaf = Value | Label

_FLOAT_ALONE = frozenset(
    {"floor", "ceil", "trunc", "sqrt", "div", "exp", "ln", "log2", "tanh", "erf", "sigmoid"}
)
_FEW = (0, 1, -1)
"""Literals that are written into generated source, because LLVM simplifies them."""


@dataclass
class Columns:
    """The columns of both sides of an expression.

    Attributes:
        node: The node.
        layout: Its labels in groups.
        sides: The packed expressions of each side, in order.
        consts: The literals that are arguments.
        inside: The calls that are computed in registers.
        fields: The names of a state's running values, which are fields of operand -1.
        number: The only reduced label of a state, whose value is known in registers.
    """

    node: EinSum
    layout: Layout
    sides: dict[str, list[Expr]] = field(default_factory=lambda: {ROWS: [], COLUMNS: [], BOTH: []})
    consts: list[Const] = field(default_factory=list)
    inside: set[Expr] = field(default_factory=set)
    fields: tuple[str, ...] = ()
    number: Label | None = None

    def take(self, e: Expr) -> bool:
        """Adds the columns of an expression; False if registers cannot compute the other calls."""
        if isinstance(e, Const):
            if not (e.dtype is DType.BOOLEAN or e.value in _FEW) and e not in self.consts:
                self.consts.append(e)
            return True
        if e == self.number:
            return True
        side = self.side(e)
        if side == OLD and isinstance(e, Value):
            return True
        if side is not None and side != OLD:
            if e not in self.sides[side]:
                self.sides[side].append(e)
            return True
        if not isinstance(e, Call):
            return False
        self.inside.add(e)
        return in_registers(e) and all(self.take(a) for a in read_by(e))

    def side(self, e: Expr) -> str | None:
        """The only side that an expression reads; None if it reads both."""
        sides_read = (self.own(x) for x in subexpressions(e) if isinstance(x, Value | Label))
        sides = {side for side in sides_read if side is not None}
        if len(sides) > 1:
            return None
        return sides.pop() if sides else ROWS

    def own(self, e: Leaf) -> str | None:
        """The side of an operand's field or a key; None for values of every side."""
        if isinstance(e, Value):
            return OLD if e.operand < 0 else self.layout.side[e.operand]
        if e.name in self.layout.rows:
            return ROWS
        return COLUMNS if e.name in self.layout.columns else None


def in_registers(e: Call) -> bool:
    """True if a function has a vector form for its arguments."""
    if e.fn == "cast":
        source, target = e.args[0].dtype, e.dtype
        if target.is_short or target is DType.BOOLEAN:
            return source is target
        return not (source.is_float and target.is_integer)
    if e.fn == "pow":
        return e.args[1] in (Const(2.0, e.dtype), Const(2, e.dtype))
    if e.fn in _FLOAT_ALONE:
        return e.dtype.is_float and e.args[0].dtype.is_float
    return e.fn in LANES


def read_by(e: Call) -> tuple[Expr, ...]:
    """The arguments that are computed in registers."""
    return e.args[:1] if e.fn == "pow" else e.args


def kind_of(dtype: DType, narrow: bool) -> str:
    """The element kind of a type.

    Args:
        dtype: The type of an expression.
        narrow: Whether every integer is known to fit 32 bits.
    """
    if dtype is DType.BOOLEAN:
        return "i8"
    if dtype.is_integer:
        return "i64" if dtype is DType.BIGINT and not narrow else "i32"
    return "f64" if dtype is DType.DOUBLE else "f32"


def spell(columns: Columns, e: Expr, narrow: bool) -> tuple[Any, ...]:
    """An expression in the form of `tile.Tile`."""
    kind = kind_of(e.dtype, narrow)
    if isinstance(e, Const):
        if e in columns.consts:
            return ("const", columns.consts.index(e))
        return ("literal", kind, int(e.value) if kind[0] == "i" else float(e.value))
    if e == columns.number:
        return ("number", kind)
    if isinstance(e, Value) and e.operand < 0:
        return (OLD, columns.fields.index(e.field))
    for letter, packed in columns.sides.items():
        if e in packed:
            return (letter, packed.index(e))
    assert isinstance(e, Call)
    args = tuple(spell(columns, a, narrow) for a in read_by(e))
    if e.fn == "pow":
        return ("mul", kind, *args, *args)
    return (e.fn, kind, *args)


# Ranges ------------------------------------------------------------------------------


class Ranges:
    """The ranges of expressions over data with known extremes."""

    def __init__(self, node: EinSum, leaves: Mapping[Expr, Range]) -> None:
        self.bounds = bounds_of(node)
        self.known: dict[Expr, Range] = {**leaves}
        self.raises = False
        self.narrow = True

    def of(self, e: Expr) -> Range:
        """An expression's range; records possible failures and integers beyond 32 bits."""
        bounds = self.known.get(e)
        if bounds is None:
            bounds = self.known[e] = self._of(e)
            if e.dtype.is_integer and not (bounds.lo > -(2**31) and bounds.hi < 2**31):
                self.narrow = False
        return bounds

    def _of(self, e: Expr) -> Range:
        if isinstance(e, Const):
            value = e.value if e.dtype.is_integer else float(e.value)
            return Range(value, value, value != value) if value == value else ANYTHING
        if isinstance(e, Label):
            lo, hi = self.bounds[e.name]
            return Range(lo, hi - 1)
        if not isinstance(e, Call):
            return _whole_type(e.dtype)
        args = [self.of(a) for a in e.args]
        if e.fn == "cast":
            return self._cast(e, args[0])
        if e.dtype is DType.BOOLEAN:
            self.raises |= failure_of(e) is not None
            return BIT
        if e.dtype.is_integer:
            return self._integer(e, args)
        self.raises |= failure_of(e) is not None
        if e.fn == "pow" and in_registers(e):
            return of_type(e.dtype, LANES["mul"].through(args[0], args[0]))
        lane = LANES.get(e.fn)
        floats = all(a.dtype.is_float or a.dtype is DType.BOOLEAN for a in e.args)
        return of_type(e.dtype, lane.through(*args)) if lane and floats else ANYTHING

    def _integer(self, e: Call, args: list[Range]) -> Range:
        entry = SCALARS[e.fn]
        ends = None
        if entry.interval is not None and all(
            a.dtype.is_integer or a.dtype is DType.BOOLEAN for a in e.args
        ):
            ends = entry.interval(*((int(r.lo), int(r.hi)) for r in args))
        lo, hi = e.dtype.range
        safe = ends is not None and lo <= ends[0] and ends[1] <= hi
        self.raises |= not safe and failure_of(e) is not None
        return Range(*ends) if safe and ends is not None else Range(lo, hi)

    def _cast(self, e: Call, a: Range) -> Range:
        source, target = e.args[0].dtype, e.dtype
        if target is DType.BOOLEAN:
            return BIT
        failure = failure_of(e)
        if target.is_integer:
            lo, hi = target.range
            fits = not source.is_float and lo <= a.lo and a.hi <= hi
            self.raises |= failure is not None and not fits
            return a if fits else Range(lo, hi)
        if failure is not None:
            most = 65519.0 if target is DType.HALF else 3.4e38
            self.raises |= not (-most < a.lo and a.hi < most)
        return of_type(target, Range(float(a.lo), float(a.hi), a.nan))


def of_type(dtype: DType, r: Range) -> Range:
    """A range after rounding to a float type: bounds that may overflow are infinite."""
    most = float(np.finfo(np.float64 if dtype is DType.DOUBLE else np.float32).max) * (1 - 1e-6)
    lo = r.lo if r.lo > -most else -math.inf
    return Range(lo, r.hi if r.hi < most else math.inf, r.nan)


def _whole_type(dtype: DType) -> Range:
    if dtype is DType.BOOLEAN:
        return BIT
    return Range(*dtype.range) if dtype.is_integer else ANYTHING


def is_slow(columns: Columns) -> bool:
    """True if functions in registers need many registers."""
    calls = (e.fn for e in columns.inside if isinstance(e, Call))
    return any(fn in LANES and LANES[fn].slow for fn in calls)


def compares(columns: Columns, output: Output) -> bool:
    """True if an output's code depends on whether NaN can occur."""
    return output.reduction not in ("sum", "product") or any(
        isinstance(e, Call) and e.fn in LANES and LANES[e.fn].orders for e in columns.inside
    )
