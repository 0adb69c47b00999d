"""Typing rules: the parameter types and the result type of a function, by its argument types."""

from __future__ import annotations

from collections.abc import Callable

from einsql.core.records import dataclass
from einsql.core.schema import DType

B, I32, I64 = DType.BOOLEAN, DType.INTEGER, DType.BIGINT
H, F, D = DType.HALF, DType.FLOAT, DType.DOUBLE
BF = DType.BFLOAT16
_RANK = {DType.TINYINT: 1, I32: 2, I64: 3, H: 4, BF: 4, F: 5, D: 6}


def common(a: DType, b: DType) -> DType | None:
    """The common type of two values in arithmetic and comparison, or None if there is none."""
    if a is b:
        return a
    if a in _RANK and b in _RANK:
        wider = max(a, b, key=_RANK.__getitem__)
        return F if wider.is_short else wider  # a short float does not have all integers
    return None


@dataclass(frozen=True, slots=True)
class Typing:
    """The types to which arguments are cast, and the result type."""

    args: tuple[DType, ...]
    result: DType


TypeRule = Callable[[tuple[DType, ...], bool], Typing | None]
"""A function of argument types and of whether FLOAT stays FLOAT; None for unsupported types."""


def meet(types: tuple[DType, ...]) -> DType | None:
    """The common type of all arguments; HALF and BFLOAT16 compute as FLOAT."""
    met: DType | None = types[0]
    for t in types[1:]:
        met = common(met, t) if met is not None else None
    return F if met is not None and met.is_short else met


def arithmetic(types: tuple[DType, ...], _: bool) -> Typing | None:
    """The common type of numbers; BOOLEAN is refused."""
    met = meet(types)
    return None if met is None or met is B else Typing((met,) * len(types), met)


def compare(types: tuple[DType, ...], _: bool) -> Typing | None:
    """The common type of both sides; the result is BOOLEAN."""
    met = I32 if B in types and set(types) - {B} <= {DType.TINYINT, I32} else meet(types)
    return None if met is None else Typing((met,) * len(types), B)


def choose(types: tuple[DType, ...], _: bool) -> Typing | None:
    """The common type of the values; BOOLEAN has one with BOOLEAN only."""
    met = meet(types)
    return None if met is None else Typing((met,) * len(types), met)


def real(types: tuple[DType, ...], float_stays: bool) -> Typing | None:
    """A real function: FLOAT if FLOAT stays FLOAT, else DOUBLE."""
    if B in types:
        return None
    met = meet(types)
    real = F if met is F and float_stays else D
    return Typing((real,) * len(types), real)


def division(types: tuple[DType, ...], _: bool) -> Typing | None:
    """The result of `/` is FLOAT for FLOAT, and DOUBLE for every other type."""
    met = meet(types)
    if met is None or met is B:
        return None
    real = F if met is F else D
    return Typing((real,) * len(types), real)


def rounding(types: tuple[DType, ...], _: bool) -> Typing | None:
    """Floats keep their type, integers become DOUBLE."""
    met = meet(types)
    if met is None or met is B:
        return None
    return Typing((met,), met) if met.is_float else Typing((D,), D)


def rounding_keeps_integers(types: tuple[DType, ...], stays: bool) -> Typing | None:
    """Floats and integers keep their type."""
    return Typing(types, types[0]) if types[0].is_integer else rounding(types, stays)


def sign(types: tuple[DType, ...], _: bool) -> Typing | None:
    """-1, 0 or 1 as TINYINT."""
    met = meet(types)
    return None if met is None or met is B else Typing((met,), DType.TINYINT)


def logic(types: tuple[DType, ...], _: bool) -> Typing | None:
    """BOOLEAN arguments and a BOOLEAN result."""
    return Typing(types, B) if set(types) == {B} else None


def float_test(types: tuple[DType, ...], _: bool) -> Typing | None:
    """A float argument and a BOOLEAN result."""
    met = meet(types)
    if met is None or met is B:
        return None
    return Typing((met if met.is_float else D,), B)


def bits(types: tuple[DType, ...], _: bool) -> Typing | None:
    """The common type of integers; other types are refused."""
    met = meet(types)
    return Typing((met,) * len(types), met) if met is not None and met.is_integer else None


def unchanged(types: tuple[DType, ...], _: bool) -> Typing | None:
    """Any type; the result has the argument's type."""
    return Typing(types, types[0])


def narrowing(types: tuple[DType, ...], _: bool) -> Typing | None:
    """From DOUBLE to the nearest FLOAT; a value out of range becomes infinite, unlike in CAST."""
    return Typing(types, F) if types == (D,) else None


def whole_division(types: tuple[DType, ...], _: bool) -> Typing | None:
    """BIGINT arguments and a DOUBLE result."""
    return Typing(types, D) if set(types) == {I64} else None


def conditional(types: tuple[DType, ...], stays: bool) -> Typing | None:
    """The arguments of IF: a BOOLEAN and two values with a common type."""
    chosen = choose(types[1:], stays)
    return None if chosen is None or types[0] is not B else Typing((B, *chosen.args), chosen.result)
