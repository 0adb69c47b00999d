"""Scalar functions over vector registers: one entry per function.

The names are those of `ir.functions.SCALARS`. An entry builds a function's vector code through
`registers.Registers` and gives the range of its results, which may prove that NaN or overflow
cannot occur. Functions without an entry keep an expression out of registers, but may still be
computed while operands are packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from einsql.core.records import dataclass

SIZES = {"i8": 1, "i32": 4, "f32": 4, "i64": 8, "f64": 8}
"""Bytes of an element of each kind."""
FOREVER = 2**62
"""Terms of a block without a limit: more than any sum has, so that a sum is one block."""


@dataclass(frozen=True, slots=True)
class Tile:
    """The computation of a register tile; generated source spells it out.

    Expressions are `("a", n)`, `("b", n)` and `("c", n)` for columns, `("old", n)` for running
    values, `("number", kind)` for the number of the term, `("const", n)` for arguments,
    `("literal", kind, value)`, and `(function, kind, argument, …)` where the kind is that of the
    result.

    Attributes:
        rows, lanes: How many rows and columns of the result.
        a, b, c: Kinds of the packed values of each side, and of those packed tile by tile.
        consts: Kinds of the literals that are arguments.
        term: The term of the reduction; for a state the first of its `merge`.
        where: The condition that selects points, or None.
        tame: Whether no NaN can occur.
        fma: Whether the processor multiplies and adds in one instruction.
        reduction: Of `ir.functions.REDUCTIONS`, or "state" for one of several fields.
        run: Kind of the running values in registers.
        state: Kind of the running values in memory.
        ordered: Whether running floats are integers of the same order.
        start: The initial running value, as an element of kind `run`.
        block: How many terms are combined in registers before they meet those in memory.
        merge: The fields of a state with one more term.
        fields: The kind and the initial value of each field of a state.
        number: The kind of the term's number in `merge`; empty if it is not read.
    """

    rows: int
    lanes: int
    a: tuple[str, ...]
    b: tuple[str, ...]
    c: tuple[str, ...]
    consts: tuple[str, ...]
    term: tuple[Any, ...]
    where: tuple[Any, ...] | None
    tame: bool
    fma: bool
    reduction: str
    run: str
    state: str
    ordered: bool = False
    start: float = 0
    block: int = FOREVER
    merge: tuple[tuple[Any, ...], ...] = ()
    fields: tuple[tuple[str, float], ...] = ()
    number: str = ""

    @property
    def is_pair(self) -> bool:
        """Whether the number of the term runs along with a value."""
        return self.reduction.startswith("arg_")

    @property
    def runs(self) -> tuple[str, ...]:
        """Kinds of all running values in registers."""
        if self.fields:
            return tuple(kind for kind, _ in self.fields)
        number = ("i64" if SIZES[self.run] == 8 else "i32",)
        return (self.run, *number) if self.is_pair else (self.run,)

    @property
    def states(self) -> tuple[str, ...]:
        """Kinds of all running values in memory."""
        return self.state, *self.runs[1:]

    @property
    def starts(self) -> tuple[float, ...]:
        """The initial running values."""
        if self.fields:
            return tuple(start for _, start in self.fields)
        return (self.start, *[0] * (len(self.runs) - 1))

    @property
    def packed(self) -> dict[str, tuple[str, ...]]:
        """Kinds of the packed values by side."""
        return {"a": self.a, "b": self.b, "c": self.c}


@dataclass(frozen=True, slots=True)
class Range:
    """The range of the values of an expression.

    Attributes:
        lo, hi: Inclusive bounds of all values but NaN; integers are exact.
        nan: Whether NaN may be among them.
    """

    lo: float
    hi: float
    nan: bool = False


ANYTHING = Range(-math.inf, math.inf, True)
BIT = Range(0, 1)

Emit = Callable[..., Any]
Through = Callable[..., Range]


@dataclass(frozen=True, slots=True)
class Lane:
    """A scalar function over vectors.

    Attributes:
        emit: Takes the registers and a vector per argument; returns a vector.
        through: Range of float results from those of float arguments; integers have theirs
            in `algebra.SCALARS`.
        orders: Whether it compares, so that its code depends on whether NaN can occur.
        slow: Whether it needs many registers of its own.
    """

    emit: Emit
    through: Through = lambda *_: ANYTHING
    orders: bool = False
    slow: bool = False


def _add(a: Range, b: Range) -> Range:
    clash = (a.hi == math.inf and b.lo == -math.inf) or (a.lo == -math.inf and b.hi == math.inf)
    lo, hi = a.lo + b.lo, a.hi + b.hi
    if math.isnan(lo) or math.isnan(hi):
        return ANYTHING
    return Range(lo, hi, a.nan or b.nan or clash)


def _neg(a: Range) -> Range:
    return Range(-a.hi, -a.lo, a.nan)


def _mul(a: Range, b: Range) -> Range:
    ends = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
    clash = _zero_times_infinity(a, b) or _zero_times_infinity(b, a)
    if clash or any(map(math.isnan, ends)):
        return ANYTHING
    return Range(min(ends), max(ends), a.nan or b.nan)


def _zero_times_infinity(a: Range, b: Range) -> bool:
    return a.lo <= 0 <= a.hi and math.inf in (b.hi, -b.lo)


def _div(a: Range, b: Range) -> Range:
    if b.lo <= 0 <= b.hi or math.inf in (b.hi, -b.lo):
        return ANYTHING
    return _mul(a, Range(1 / b.hi, 1 / b.lo, b.nan))


def _abs(a: Range) -> Range:
    low = 0.0 if a.lo <= 0 <= a.hi else min(abs(a.lo), abs(a.hi))
    return Range(low, max(abs(a.lo), abs(a.hi)), a.nan)


def _greatest(a: Range, b: Range) -> Range:
    return Range(max(a.lo, b.lo), max(a.hi, b.hi), a.nan or b.nan)


def _least(a: Range, b: Range) -> Range:
    """The range of LEAST, which is the other value where one is NaN."""
    hi = min(a.hi, b.hi)
    hi = max(hi, a.hi) if b.nan else hi
    hi = max(hi, b.hi) if a.nan else hi
    return Range(min(a.lo, b.lo), hi, a.nan or b.nan)


def _either(_: Range, a: Range, b: Range) -> Range:
    return Range(min(a.lo, b.lo), max(a.hi, b.hi), a.nan or b.nan)


def _whole(a: Range) -> Range:
    return Range(a.lo - 1, a.hi + 1, a.nan)


def _sqrt(a: Range) -> Range:
    return Range(0.0, math.sqrt(max(a.hi, 0.0)), a.nan or a.lo < 0)


def _exp(a: Range) -> Range:
    return Range(0.0, math.exp(a.hi) if a.hi < 700 else math.inf, a.nan)


def _log(base: float) -> Through:
    def through(a: Range) -> Range:
        if a.lo <= 0 or a.hi == math.inf:
            return ANYTHING
        return Range(math.log(a.lo, base) - 1, math.log(a.hi, base) + 1, a.nan)

    return through


def _within_one(a: Range) -> Range:
    return Range(-1.0, 1.0, a.nan)


def _within_zero_and_one(a: Range) -> Range:
    return Range(0.0, 1.0, a.nan)


def _test(*_: Range) -> Range:
    return BIT


LANES: dict[str, Lane] = {
    "add": Lane(lambda r, a, b: r.add(a, b), _add),
    "sub": Lane(lambda r, a, b: r.sub(a, b), lambda a, b: _add(a, _neg(b))),
    "mul": Lane(lambda r, a, b: r.mul(a, b), _mul),
    "div": Lane(lambda r, a, b: r.div(a, b), _div),
    "neg": Lane(lambda r, a: r.neg(a), _neg),
    "abs": Lane(lambda r, a: r.abs(a), _abs),
    "sqrt": Lane(lambda r, a: r.rounded("sqrt", a), _sqrt),
    "floor": Lane(lambda r, a: r.rounded("floor", a), _whole),
    "ceil": Lane(lambda r, a: r.rounded("ceil", a), _whole),
    "trunc": Lane(lambda r, a: r.rounded("trunc", a), _whole),
    "exp": Lane(lambda r, a: r.library("exp", a), _exp, slow=True),
    "ln": Lane(lambda r, a: r.library("ln", a), _log(math.e), slow=True),
    "log2": Lane(lambda r, a: r.library("log2", a), _log(2.0), slow=True),
    "tanh": Lane(lambda r, a: r.library("tanh", a), _within_one, slow=True),
    "erf": Lane(lambda r, a: r.library("erf", a), _within_one, slow=True),
    "sigmoid": Lane(lambda r, a: r.library("sigmoid", a), _within_zero_and_one, slow=True),
    "greatest": Lane(lambda r, a, b: r.choose(r.less(a, b), b, a), _greatest, orders=True),
    "least": Lane(lambda r, a, b: r.choose(r.less(b, a), b, a), _least, orders=True),
    "if": Lane(lambda r, c, a, b: r.choose(c, a, b), _either),
    "eq": Lane(lambda r, a, b: r.same(a, b), _test, orders=True),
    "ne": Lane(lambda r, a, b: r.inverse(r.same(a, b)), _test, orders=True),
    "lt": Lane(lambda r, a, b: r.less(a, b), _test, orders=True),
    "le": Lane(lambda r, a, b: r.inverse(r.less(b, a)), _test, orders=True),
    "and": Lane(lambda r, a, b: r.both(a, b), _test),
    "or": Lane(lambda r, a, b: r.either(a, b), _test),
    "not": Lane(lambda r, a: r.inverse(a), _test),
    "bitand": Lane(lambda r, a, b: r.both(a, b)),
    "bitor": Lane(lambda r, a, b: r.either(a, b)),
    "xor": Lane(lambda r, a, b: r.differing(a, b)),
    "isnan": Lane(lambda r, a: r.is_nan(a), _test),
}
"""Functions with a vector form."""
