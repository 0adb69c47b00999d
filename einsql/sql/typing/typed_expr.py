"""Typed scalars during binding: pairs of a value expression and a validity expression."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, floor
from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.core.typing_rules import common
from einsql.errors import NotSupportedError, ProgrammingError
from einsql.ir.einsum.graph import FALSE, TRUE, Call, Const, Expr, call, conj, disj
from einsql.ir.einsum.graph_rewriting import negate
from einsql.ir.functions import SCALARS
from einsql.ir.functions.casts import failure_of
from einsql.sql.typing.casts import (
    WIDEST,
    SqlType,
    cast,
    cast_expr,
    common_decimal,
    decimal_of,
    fits,
    held,
    within,
)
from einsql.sql.typing.casts import Decimal as Decimal

if TYPE_CHECKING:
    import fractions
else:  # loaded for decimal literals
    fractions = LazyModule("fractions")


@dataclass(frozen=True, slots=True)
class Typed:
    """A bound scalar.

    Attributes:
        value: The value, in BIGINT for decimals; arbitrary where the scalar is NULL.
        valid: The validity, a BOOLEAN that is false where the scalar is NULL.
        literal: True for a numeric literal, which takes the type of the other operand.
    """

    value: Expr
    type: SqlType
    valid: Expr = TRUE
    literal: bool = False


NULL = Typed(FALSE, None, FALSE)


def integer(n: int, *, literal: bool = False) -> Typed:
    """Binds an integer as INTEGER if it fits, else as BIGINT.

    Raises:
        NotSupportedError: The integer exceeds BIGINT; DuckDB has wider types.
    """
    for dtype in (DType.INTEGER, DType.BIGINT):
        if fits(n, dtype):
            return Typed(Const(n, dtype), dtype, literal=literal)
    raise NotSupportedError(
        f"The integer {n} does not fit BIGINT", hint="With an exponent, as 1e19, it is a DOUBLE."
    )


# Common types


def meet(items: list[Typed], what: str, *, truths: bool = False) -> SqlType:
    """The common type of values in arithmetic, comparisons and choices.

    As in DuckDB, the common type of the first two values is combined with the third, and so on. A
    literal takes the type of the first value with which it is combined.

    Args:
        items: The values.
        what: The operation, for the error message.
        truths: Whether BOOLEAN and integers have a common type, as in comparisons and choices.

    Raises:
        ProgrammingError: The values have no common type.
    """
    if not items:
        raise ProgrammingError(f"{what} needs an argument")
    met = items[0]
    for t in items[1:]:
        met = Typed(met.value, _meet2(met, t, what, truths))
    return met.type


def _meet2(a: Typed, b: Typed, what: str, truths: bool) -> SqlType:
    x, y = a.type, b.type
    if x is None or y is None:
        return y if x is None else x
    for here, there in ((a, b), (b, a)):
        if there.literal and here.type is DType.TINYINT and _is_tiny(there):
            return here.type
    if DType.BOOLEAN in (x, y) and x is not y:
        other = y if x is DType.BOOLEAN else x
        if truths and isinstance(other, DType) and other.is_integer:
            return other
        if truths:  # DuckDB compares them
            raise NotSupportedError(
                f"{what} of {x.value} and {y.value} is outside the tensor fragment"
            )
    elif isinstance(x, Decimal) or isinstance(y, Decimal):
        return _meet_decimal(x, y)
    else:
        met = common(x, y)
        if met is not None:
            return met
    raise ProgrammingError(
        f"{what} does not accept {x.value} and {y.value}", hint="Add an explicit CAST."
    )


def _meet_decimal(x: DType | Decimal, y: DType | Decimal) -> SqlType:
    for t in (x, y):
        if isinstance(t, DType) and t.is_float:
            return DType.FLOAT if t.is_short else t
    return common_decimal(x, y)


def _is_tiny(t: Typed) -> bool:
    is_integer = isinstance(t.type, DType) and t.type.is_integer
    return is_integer and isinstance(t.value, Const) and fits(int(t.value.value), DType.TINYINT)


# Casts, which are not evaluated for NULL


def convert(t: Typed, target: SqlType) -> Typed:
    """Casts a scalar to a type, explicitly or implicitly.

    Raises:
        NotSupportedError: Tensor programs do not support the cast.
    """
    if target is None:
        return t
    if t.type is None:
        dtype = held(target)
        return Typed(Const(False if dtype is DType.BOOLEAN else 0, dtype), target, FALSE)
    value = cast(t.value, t.type, target)
    if t.type == target:
        return t
    return replace(t, value=protected(value, t.valid), type=target)


def passed(t: Typed, target: SqlType, signature: str) -> Typed:
    """Casts an argument to the type of its parameter, where DuckDB casts implicitly.

    Integers become wider integers, and all numbers except wider floats become floats.

    Args:
        t: The argument.
        target: The type of the parameter.
        signature: The function's name and parameters, for the error message.

    Raises:
        ProgrammingError: The cast could lose information.
    """
    source = t.type
    match source, target:
        case None, _:
            fits_target = True
        case Decimal(), DType():
            fits_target = target.is_float
        case DType(), DType():
            fits_target = source is target or (
                source is not DType.BOOLEAN and common(source, target) is target
            )
        case _:
            fits_target = isinstance(source, Decimal) or source.is_integer
    if not fits_target:
        assert source is not None
        raise ProgrammingError(
            f"{signature} does not accept {source.value}",
            hint=f"Add an explicit CAST to {target.value}." if target is not None else "",
        )
    return replace(convert(t, target), literal=False)


def protected(e: Expr, valid: Expr) -> Expr:
    """An expression that is evaluated for valid values only, if it may raise.

    The value of a NULL is arbitrary, so an operation on it must not fail.
    """
    if valid == TRUE or not _may_raise(e):
        return e
    nothing = Const(False if e.dtype is DType.BOOLEAN else 0, e.dtype)
    return call("if", e.dtype, valid, e, nothing)


def _may_raise(e: Expr) -> bool:
    """Whether a call outside of IF may raise for some argument."""
    if not isinstance(e, Call) or e.fn == "if":
        return False
    fails = failure_of(e.fn, e.args[0].dtype, e.dtype) is not None
    return fails or any(map(_may_raise, e.args))


# Functions

COMPARISONS = frozenset({"eq", "ne", "lt", "le"})
_RESCALED = frozenset({"add", "sub", "mod"}) | COMPARISONS
_ROUNDED = frozenset({"round", "floor", "ceil", "trunc"})


def apply(fn: str, items: list[Typed], float_stays: bool) -> Typed:
    """Applies a scalar function of `algebra.SCALARS`; NULL arguments give NULL.

    Raises:
        ProgrammingError: The argument types do not fit.
        NotSupportedError: The function is not exact for a DECIMAL argument.
    """
    valid = conj(*(t.valid for t in items))
    if all(t.type is None for t in items):
        items = [convert(t, DType.BIGINT) for t in items]
    if any(isinstance(t.type, Decimal) for t in items):
        exact = _decimal_call(fn, items, valid)
        if exact is not None:
            return exact
    met = meet(items, f"{fn.upper()}()", truths=fn in COMPARISONS)
    if isinstance(met, Decimal):
        met = DType.DOUBLE
    assert met is not None
    typing = SCALARS[fn].types((met,) * len(items), float_stays)
    if typing is None:
        shown = ", ".join(met.value for _ in items)
        raise ProgrammingError(
            f"{fn.upper()}() does not accept ({shown})", hint="Add an explicit CAST."
        )
    args = tuple(convert(t, want).value for t, want in zip(items, typing.args, strict=True))
    return Typed(protected(Call(fn, args, typing.result), valid), typing.result, valid)


def _decimal_call(fn: str, items: list[Typed], valid: Expr) -> Typed | None:
    """Exact decimal arithmetic on scaled integers, or None if the result is DOUBLE or FLOAT."""
    types = [t.type for t in items if t.type is not None]
    if any(isinstance(t, DType) and (t.is_float or t is DType.BOOLEAN) for t in types):
        return None
    if fn in COMPARISONS and len(types) == 2:
        bounded = _compare_with_literal(fn, items, valid)
        if bounded is not None:
            return bounded
    if fn in ("neg", "abs", "sign"):
        (t,) = (convert(t, t.type) for t in items)
        dtype = DType.TINYINT if fn == "sign" else DType.BIGINT
        kept = dtype if fn == "sign" else t.type
        return Typed(protected(Call(fn, (t.value,), dtype), valid), kept, valid)
    if fn == "mul":
        return _decimal_product(items, valid)
    if fn in _RESCALED:
        met = meet(items, f"{fn.upper()}()")
        assert isinstance(met, Decimal)
        args = tuple(convert(t, met).value for t in items)
        if fn in COMPARISONS:
            return Typed(protected(Call(fn, args, DType.BOOLEAN), valid), DType.BOOLEAN, valid)
        width = min(WIDEST, met.width + (fn != "mod"))
        value = protected(Call(fn, args, DType.BIGINT), valid)
        return Typed(value, Decimal(width, met.scale), valid)
    if fn in _ROUNDED:
        raise NotSupportedError(
            f"{fn.upper()} of a DECIMAL is outside the tensor fragment",
            hint="CAST the argument to DOUBLE first.",
        )
    return None


def _decimal_product(items: list[Typed], valid: Expr) -> Typed:
    a, b = (convert(t, Decimal(1, 0) if t.type is None else decimal_of(t.type)) for t in items)
    assert isinstance(a.type, Decimal)
    assert isinstance(b.type, Decimal)
    width, scale = a.type.width + b.type.width, a.type.scale + b.type.scale
    if width > 18 and max(a.type.width, b.type.width) <= 18 and scale < 18:
        width = 18  # DuckDB stores such a product in 64 bits
    if scale > WIDEST:
        raise NotSupportedError(
            f"A DECIMAL product of scale {scale} is outside the tensor fragment",
            hint="CAST an argument to DOUBLE first.",
        )
    product_type = Decimal(min(WIDEST, width), scale)
    product = within(call("mul", DType.BIGINT, a.value, b.value), product_type)
    return Typed(protected(product, valid), product_type, valid)


def _compare_with_literal(fn: str, items: list[Typed], valid: Expr) -> Typed | None:
    """Compares an integer with a DECIMAL literal by the nearest integers, without scaling."""
    a, b = items
    flipped = isinstance(a.type, Decimal)
    x, literal = (b, a) if flipped else (a, b)
    if not isinstance(x.type, DType) or not isinstance(literal.type, Decimal):
        return None
    if not isinstance(literal.value, Const) or literal.valid != TRUE:
        return None
    exact = fractions.Fraction(int(literal.value.value), 10**literal.type.scale)
    if fn in ("eq", "ne") and exact.denominator != 1:
        return Typed(FALSE if fn == "eq" else TRUE, DType.BOOLEAN, valid)
    # An integer above the literal is at least its ceiling; one below is at most its floor.
    if exact.denominator != 1:
        fn = "le"
    bound = ceil(exact) if flipped else floor(exact)
    dtype = x.type if fits(bound, x.type) else DType.BIGINT
    if not fits(bound, dtype):
        holds = fn == "ne" or (fn in ("lt", "le") and (bound < 0) == flipped)
        return Typed(TRUE if holds else FALSE, DType.BOOLEAN, valid)
    args: tuple[Expr, ...] = (cast_expr(x.value, dtype), Const(bound, dtype))
    return Typed(call(fn, DType.BOOLEAN, *(args[::-1] if flipped else args)), DType.BOOLEAN, valid)


# Three-valued logic


def logical_and(items: list[Typed]) -> Typed:
    """Three-valued AND: FALSE if an argument is FALSE, also beside NULL."""
    items = [convert(t, DType.BOOLEAN) for t in items]
    if all(t.valid == TRUE for t in items):
        return Typed(conj(*(t.value for t in items)), DType.BOOLEAN)
    truths, lies = zip(*map(_kleene, items), strict=True)
    return _three_valued(conj(*truths), disj(*lies))


def logical_or(items: list[Typed]) -> Typed:
    """Three-valued OR: TRUE if an argument is TRUE, also beside NULL."""
    items = [convert(t, DType.BOOLEAN) for t in items]
    if all(t.valid == TRUE for t in items):
        return Typed(disj(*(t.value for t in items)), DType.BOOLEAN)
    truths, lies = zip(*map(_kleene, items), strict=True)
    return _three_valued(disj(*truths), conj(*lies))


def logical_not(a: Typed) -> Typed:
    """Three-valued NOT: NULL for NULL."""
    a = convert(a, DType.BOOLEAN)
    if a.valid == TRUE:
        return Typed(negate(a.value), DType.BOOLEAN)
    true, false = _kleene(a)
    return _three_valued(false, true)


def truth(t: Typed) -> Expr:
    """The condition that a predicate selects a row: it is TRUE and not NULL."""
    return _kleene(convert(t, DType.BOOLEAN))[0]


def _kleene(t: Typed) -> tuple[Expr, Expr]:
    """The conditions that a BOOLEAN is TRUE and that it is FALSE; otherwise it is NULL.

    Each condition of AND, OR and NOT follows from the same conditions of the arguments, so their
    size is linear. With values and validities it would double at every level.
    """
    if t.valid == TRUE:
        return t.value, negate(t.value)
    if t.valid is t.value:
        return t.value, FALSE
    if isinstance(t.valid, Call) and t.valid.fn == "or" and t.valid.args[0] is t.value:
        return t.value, t.valid.args[1]
    return conj(t.valid, t.value), conj(t.valid, negate(t.value))


def _three_valued(true: Expr, false: Expr) -> Typed:
    """The BOOLEAN with these conditions, in a form that `_kleene` recognizes."""
    return Typed(true, DType.BOOLEAN, disj(true, false))


def choose(condition: Expr, then: Typed, otherwise: Typed, met: SqlType) -> Typed:
    """CASE WHEN condition THEN … ELSE … END, in the common type `met`."""
    if met is None:
        return NULL
    a, b = convert(then, met), convert(otherwise, met)
    if isinstance(condition, Const):
        return replace(a if condition.value else b, literal=False)
    value = call("if", held(met), condition, a.value, b.value)
    valid = (
        a.valid if a.valid == b.valid else call("if", DType.BOOLEAN, condition, a.valid, b.valid)
    )
    return Typed(value, met, valid)
