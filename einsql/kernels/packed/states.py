"""States of several fields in register tiles: their ranges, and what is known without NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from einsql.ir.einsum.graph import Const, EinSum, Expr, Value
from einsql.ir.einsum.states import State
from einsql.kernels.packed.functions import ANYTHING, Range
from einsql.kernels.packed.terms import Ranges

_LEAVES = ("a", "b", "c", "old", "number", "const", "literal")
"""The heads of expressions of a tile that are no calls."""
_ROUNDS = 3
"""Merges after which the end of a range that still moves becomes the end of the type."""


def ranges_of_state(
    node: EinSum, state: State, merges: Sequence[Expr], leaves: dict[Expr, Range]
) -> dict[Expr, Range]:
    """The ranges of the running values of a state.

    Args:
        node: The node.
        state: The state.
        merges: The fields of the state with one more point; the running values are fields of
            operand -1.
        leaves: The ranges of the operands.
    """
    fields = [Value(-1, f.name, f.dtype) for f in state.fields]
    known = [Range(f.start, f.start, math.isnan(f.start)) for f in state.fields]
    known = [ANYTHING if r.nan else r for r in known]
    for turn in range(2 * _ROUNDS):
        ranges = Ranges(node, {**leaves, **dict(zip(fields, known, strict=True))})
        after = [_either(old, ranges.of(e)) for old, e in zip(known, merges, strict=True)]
        if turn >= _ROUNDS:
            both = zip(fields, known, after, strict=True)
            after = [_widened(f, old, new) for f, old, new in both]
        if after == known:
            break
        known = after
    else:
        known = [_widened(f, Range(0, 0), ANYTHING) for f in fields]
    return dict(zip(fields, known, strict=True))


def _either(a: Range, b: Range) -> Range:
    return Range(min(a.lo, b.lo), max(a.hi, b.hi), a.nan or b.nan)


def _widened(field: Value, old: Range, new: Range) -> Range:
    """A range that no later merge leaves at an end that has moved."""
    lo, hi = field.dtype.range if field.dtype.is_integer else (-math.inf, math.inf)
    return Range(old.lo if new.lo >= old.lo else lo, old.hi if new.hi <= old.hi else hi, new.nan)


def without_nan(e: tuple[Any, ...], consts: Sequence[Const]) -> tuple[Any, ...]:
    """An expression of a tile that is equal where no value is NaN.

    Infinite arguments decide extremes and comparisons, such as those of the empty places of a list
    of least values.

    Args:
        e: The expression.
        consts: The literals that are arguments.
    """
    if e[0] in _LEAVES:
        return e
    args = tuple(without_nan(a, consts) for a in e[2:])
    first, last = (_literal(a, consts) for a in (args[0], args[-1]))
    if e[0] in ("least", "greatest"):
        wins = -math.inf if e[0] == "least" else math.inf
        if wins in (first, last):
            return args[0] if first == wins else args[1]
        if -wins in (first, last):
            return args[1] if first == -wins else args[0]
        if args[0] == args[1]:
            return args[0]
    return (*e[:2], *args)


def _literal(e: tuple[Any, ...], consts: Sequence[Const]) -> float | None:
    """The value of a literal."""
    if e[0] == "const":
        return float(consts[e[1]].value)
    return float(e[2]) if e[0] == "literal" else None


def calls_in(roots: Sequence[tuple[Any, ...]]) -> int:
    """The number of distinct calls of expressions of a tile."""
    return sum(e[0] not in _LEAVES for e in _parts(roots))


def number_in(roots: Sequence[tuple[Any, ...]]) -> str:
    """The kind of the term's number that expressions of a tile read; empty without."""
    return next((e[1] for e in _parts(roots) if e[0] == "number"), "")


def _parts(roots: Sequence[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """The expressions with all their parts."""
    seen: set[tuple[Any, ...]] = set()
    stack = list(roots)
    while stack:
        e = stack.pop()
        if e not in seen:
            seen.add(e)
            stack += () if e[0] in _LEAVES else e[2:]
    return seen
