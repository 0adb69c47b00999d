"""Typed scalar values during binding: SQL types, NULL and decimals, lowered to Exprs.

A bound scalar is a pair of expressions, its value and whether it is not NULL. DECIMAL
exists only here: a DECIMAL of scale s is a BIGINT holding value · 10^s, exact as in
DuckDB, with overflow checked by BIGINT arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from einsql.algebra import SCALARS, cast_failure
from einsql.einsum import FALSE, TRUE, Call, Const, Expr, call, conj, disj, negate
from einsql.errors import DataError, NotSupportedError, ProgrammingError
from einsql.schema import DType
from einsql.typing_rules import common


@dataclass(frozen=True, slots=True)
class Decimal:
    """DECIMAL with `scale` digits after the point."""

    scale: int

    @property
    def value(self) -> str:
        """The type's name, as DType.value is."""
        return "DECIMAL"


SqlType = DType | Decimal | None
"""A value's type; None is the type of a bare NULL."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A bound scalar.

    Attributes:
        value: Of the type's NumPy dtype; BIGINT for decimals; anything where NULL.
        valid: BOOLEAN, false where the scalar is NULL.
        literal: True for a number written in the statement; it adapts to its partner.
    """

    value: Expr
    type: SqlType
    valid: Expr = TRUE
    literal: bool = False


NULL = Typed(FALSE, None, FALSE)


def number(text: str) -> Typed:
    """Binds a numeric literal as DuckDB types it: INTEGER, BIGINT, DECIMAL or DOUBLE.

    Raises:
        DataError: An integer literal exceeds BIGINT.
    """
    text = text.replace("_", "")
    if "e" in text.lower():
        return Typed(Const(float(text), DType.DOUBLE), DType.DOUBLE)
    if "." in text:
        whole, _, part = text.partition(".")
        digits = int((whole or "0") + part)
        if digits.bit_length() > 62:
            return Typed(Const(float(text), DType.DOUBLE), DType.DOUBLE)
        return Typed(Const(digits, DType.BIGINT), Decimal(len(part)), literal=True)
    return integer(int(text), literal=True)


def integer(n: int, *, literal: bool = False) -> Typed:
    """Binds an integer as the narrowest of INTEGER and BIGINT.

    Raises:
        DataError: It exceeds BIGINT.
    """
    for dtype in (DType.INTEGER, DType.BIGINT):
        if dtype.range[0] <= n <= dtype.range[1]:
            return Typed(Const(n, dtype), dtype, literal=literal)
    raise DataError(f"The integer {n} does not fit BIGINT")


def cast_expr(e: Expr, target: DType) -> Expr:
    """A cast, with constants converted at once where that is exact or a plain rounding."""
    if e.dtype is target:
        return e
    if isinstance(e, Const):
        if target.is_float and (e.dtype.is_integer or e.dtype.is_float):
            narrowed = target.numpy.type(e.value).item()
            if abs(narrowed) != float("inf") or abs(e.value) == float("inf"):
                return Const(narrowed, target)
        if target.is_integer and e.dtype.is_integer and _within(int(e.value), target):
            return Const(int(e.value), target)
    return Call("cast", (e,), target)


def _within(n: int, dtype: DType) -> bool:
    return dtype.range[0] <= n <= dtype.range[1]


def meet(items: list[Typed], what: str) -> SqlType:
    """The type several values meet at in arithmetic, comparison or choice.

    Raises:
        ProgrammingError: They have no common type.
    """
    types = [t for t in items if t.type is not None]
    if not types:
        return None
    result: SqlType = types[0].type
    adapts = types[0].literal
    for t in types[1:]:
        result, adapts = _meet2(result, adapts, t, what), adapts and t.literal
    return result


def _meet2(a: SqlType, a_literal: bool, t: Typed, what: str) -> SqlType:
    b = t.type
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        if isinstance(a, Decimal) and isinstance(b, Decimal):
            return Decimal(max(a.scale, b.scale))
        dec, other = (a, b) if isinstance(a, Decimal) else (b, a)
        assert isinstance(dec, Decimal)
        assert isinstance(other, DType)
        if other.is_integer:
            return dec
        if other.is_float:
            return DType.FLOAT if other is DType.HALF else other
    elif a is not None and b is not None:
        if a is DType.TINYINT and t.literal and _fits_tiny(t):
            return a
        if b is DType.TINYINT and a_literal and a is DType.INTEGER:
            return b
        met = common(a, b)
        if met is not None:
            return met
    names = " and ".join(x.value if x is not None else "NULL" for x in (a, b))
    raise ProgrammingError(f"{what} does not accept {names}", hint="Add an explicit CAST.")


def _fits_tiny(t: Typed) -> bool:
    return isinstance(t.value, Const) and _within(int(t.value.value), DType.TINYINT)


def scale_of(t: SqlType) -> int:
    """Digits after the point of a decimal or integer type."""
    return t.scale if isinstance(t, Decimal) else 0


def convert(t: Typed, target: SqlType) -> Typed:
    """Casts to a type, as an explicit or implicit CAST does.

    Raises:
        NotSupportedError: The cast is no tensor work.
    """
    if target is None or t.type == target:
        return t
    if t.type is None:
        dtype = DType.BIGINT if isinstance(target, Decimal) else target
        return Typed(Const(False if dtype is DType.BOOLEAN else 0, dtype), target, FALSE)
    if isinstance(target, Decimal):
        value = _to_decimal(t, target.scale)
    elif isinstance(t.type, Decimal):
        value = _from_decimal(t, t.type.scale, target)
    else:
        value = cast_expr(t.value, target)
    return replace(t, value=protected(value, t.valid), type=target)


def protected(e: Expr, valid: Expr) -> Expr:
    """The expression, evaluated only where it is not NULL if it could raise.

    What stands in a NULL's place is arbitrary, so an operation on it must not fail.
    """
    if valid == TRUE or not _may_raise(e):
        return e
    nothing = Const(False if e.dtype is DType.BOOLEAN else 0, e.dtype)
    return call("if", e.dtype, valid, e, nothing)


def _may_raise(e: Expr) -> bool:
    """Whether a call outside any IF can fail for some argument."""
    if not isinstance(e, Call) or e.fn == "if":
        return False
    source = e.args[0].dtype
    if e.fn == "cast":
        fails = cast_failure(source, e.dtype) is not None
    else:
        fails = source in SCALARS[e.fn].fails
    return fails or any(_may_raise(a) for a in e.args)


def _to_decimal(t: Typed, scale: int) -> Expr:
    if isinstance(t.type, DType) and not t.type.is_integer:
        raise NotSupportedError(
            f"CAST of {t.type.value} to DECIMAL is outside the tensor fragment",
            hint="Use DOUBLE instead of DECIMAL.",
        )
    raw = cast_expr(t.value, DType.BIGINT)
    up = scale - scale_of(t.type)
    if up < 0:
        return _rounded_quotient(raw, 10**-up)
    if up == 0:
        return raw
    if isinstance(raw, Const) and _within(int(raw.value) * 10**up, DType.BIGINT):
        return Const(int(raw.value) * 10**up, DType.BIGINT)
    return call("mul", DType.BIGINT, raw, Const(10**up, DType.BIGINT))


def _from_decimal(t: Typed, scale: int, target: DType) -> Expr:
    if target.is_integer:
        return cast_expr(_rounded_quotient(t.value, 10**scale), target)
    if target is DType.BOOLEAN:
        return call("ne", DType.BOOLEAN, t.value, Const(0, DType.BIGINT))
    if isinstance(t.value, Const):
        return cast_expr(Const(int(t.value.value) / 10**scale, DType.DOUBLE), target)
    wide = cast_expr(t.value, DType.DOUBLE)
    return cast_expr(call("div", DType.DOUBLE, wide, Const(float(10**scale), DType.DOUBLE)), target)


def _rounded_quotient(raw: Expr, unit: int) -> Expr:
    """Raw / unit rounded half away from zero, in BIGINT."""
    if unit == 1:
        return raw
    half = Const(unit // 2, DType.BIGINT)
    below = call("lt", DType.BOOLEAN, raw, Const(0, DType.BIGINT))
    nudged = call(
        "if",
        DType.BIGINT,
        below,
        call("sub", DType.BIGINT, raw, half),
        call("add", DType.BIGINT, raw, half),
    )
    return call("idiv", DType.BIGINT, nudged, Const(unit, DType.BIGINT))


def apply(fn: str, items: list[Typed], float_stays: bool) -> Typed:
    """Applies a scalar function of `algebra.SCALARS`; NULL arguments give NULL.

    Raises:
        ProgrammingError: The argument types do not fit.
        NotSupportedError: A DECIMAL argument the function is not exact on.
    """
    valid = conj(*(t.valid for t in items))
    if all(t.type is None for t in items):
        return NULL
    if any(isinstance(t.type, Decimal) for t in items):
        exact = _decimal_call(fn, items, valid)
        if exact is not None:
            return exact
    met = meet(items, f"{fn.upper()}()") if len(items) > 1 else items[0].type
    if isinstance(met, Decimal):
        met = DType.DOUBLE
    assert met is not None
    if len(items) > 1 and DType.BOOLEAN not in {t.type for t in items}:
        items = [convert(t, met) for t in items]
    items = [convert(t, met) if not isinstance(t.type, DType) else t for t in items]
    types = tuple(t.type for t in items if isinstance(t.type, DType))
    typing = SCALARS[fn].types(types, float_stays)
    if typing is None:
        shown = ", ".join(t.value for t in types)
        raise ProgrammingError(
            f"{fn.upper()}() does not accept ({shown})", hint="Add an explicit CAST."
        )
    args = tuple(convert(t, want).value for t, want in zip(items, typing.args, strict=True))
    return Typed(protected(Call(fn, args, typing.result), valid), typing.result, valid)


_RESCALED = frozenset({"add", "sub", "mod", "eq", "ne", "lt", "le", "greatest", "least"})


def _decimal_call(fn: str, items: list[Typed], valid: Expr) -> Typed | None:
    """Exact decimal arithmetic on scaled integers, or None where DOUBLE or FLOAT rules."""
    if fn in ("neg", "abs", "sign"):
        result = DType.TINYINT if fn == "sign" else DType.BIGINT
        kept = result if fn == "sign" else items[0].type
        return Typed(protected(Call(fn, (items[0].value,), result), valid), kept, valid)
    if any(t.type is not None and isinstance(t.type, DType) and t.type.is_float for t in items):
        return None
    if fn == "mul":
        a, b = (convert(t, Decimal(scale_of(t.type))) for t in items)
        scale = scale_of(a.type) + scale_of(b.type)
        product = protected(call("mul", DType.BIGINT, a.value, b.value), valid)
        return Typed(product, Decimal(scale), valid)
    if fn in _RESCALED:
        met = meet(items, f"{fn.upper()}()")
        args = tuple(convert(t, met).value for t in items)
        compares = fn in ("eq", "ne", "lt", "le")
        dtype = DType.BOOLEAN if compares else DType.BIGINT
        value = protected(Call(fn, args, dtype), valid)
        return Typed(value, dtype if compares else met, valid)
    if fn in ("round", "floor", "ceil", "trunc"):
        raise NotSupportedError(
            f"{fn.upper()} of a DECIMAL is outside the tensor fragment",
            hint="CAST the argument to DOUBLE first.",
        )
    return None


def logical_and(a: Typed, b: Typed) -> Typed:
    """Three-valued AND: a valid FALSE decides."""
    a, b = convert(a, DType.BOOLEAN), convert(b, DType.BOOLEAN)
    # Where a side is NULL its value is arbitrary, so it must not decide: TRUE stands in.
    valid = disj(
        conj(a.valid, b.valid),
        disj(conj(a.valid, negate(a.value)), conj(b.valid, negate(b.value))),
    )
    if (a.valid, b.valid) == (TRUE, TRUE):
        valid = TRUE
    return Typed(conj(a.value, b.value), DType.BOOLEAN, valid)


def logical_or(a: Typed, b: Typed) -> Typed:
    """Three-valued OR: a valid TRUE decides."""
    a, b = convert(a, DType.BOOLEAN), convert(b, DType.BOOLEAN)
    valid = disj(conj(a.valid, b.valid), disj(conj(a.valid, a.value), conj(b.valid, b.value)))
    if (a.valid, b.valid) == (TRUE, TRUE):
        valid = TRUE
    return Typed(disj(a.value, b.value), DType.BOOLEAN, valid)


def logical_not(a: Typed) -> Typed:
    """NOT; NULL stays NULL."""
    a = convert(a, DType.BOOLEAN)
    return replace(a, value=negate(a.value), literal=False)


def truth(t: Typed) -> Expr:
    """The condition under which a predicate selects a row: TRUE and not NULL."""
    t = convert(t, DType.BOOLEAN)
    return conj(t.valid, t.value)


def choose(condition: Expr, then: Typed, otherwise: Typed, met: SqlType) -> Typed:
    """CASE WHEN condition THEN … ELSE … END over values of the met type."""
    if met is None:
        return NULL
    a, b = convert(then, met), convert(otherwise, met)
    if isinstance(condition, Const):
        return replace(a if condition.value else b, literal=False)
    dtype = DType.BIGINT if isinstance(met, Decimal) else met
    value = call("if", dtype, condition, a.value, b.value)
    valid = (
        a.valid if a.valid == b.valid else call("if", DType.BOOLEAN, condition, a.valid, b.valid)
    )
    return Typed(value, met, valid)
