"""SQL types and the casts between them, as expressions.

DECIMAL exists in the binder only. A DECIMAL of scale s is a BIGINT with the value · 10^s, which is
exact as in DuckDB. A value for which DuckDB uses 128 bits raises an error if it exceeds 64 bits.
"""

from __future__ import annotations

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import NotSupportedError
from einsql.ir.einsum.graph import Call, Const, Expr, bigint, call
from einsql.ir.functions.casts import cast_array, cast_failure


@dataclass(frozen=True, slots=True)
class Decimal:
    """The DECIMAL type of `width` digits, `scale` of them after the point."""

    width: int
    scale: int

    @property
    def value(self) -> str:
        """The type's name, like `DType.value`."""
        return "DECIMAL"


SqlType = DType | Decimal | None
"""A value's type; None is the type of a bare NULL."""

WIDEST = 38
"""Digits of DuckDB's widest DECIMAL."""

_EXACT = 2**53
"""DOUBLE represents every integer up to this number."""
_DIGITS = {DType.BOOLEAN: 1, DType.TINYINT: 3, DType.INTEGER: 10, DType.BIGINT: 19}


def decimal_of(t: DType | Decimal) -> Decimal:
    """The narrowest DECIMAL that represents every value of an integer type."""
    return t if isinstance(t, Decimal) else Decimal(_DIGITS[t], 0)


def held(t: DType | Decimal) -> DType:
    """The type in which values are computed."""
    return DType.BIGINT if isinstance(t, Decimal) else t


def common_decimal(a: DType | Decimal, b: DType | Decimal) -> Decimal:
    """The common DECIMAL of two exact types."""
    x, y = decimal_of(a), decimal_of(b)
    scale = max(x.scale, y.scale)
    return Decimal(min(WIDEST, max(x.width - x.scale, y.width - y.scale) + scale), scale)


def fits(n: int, dtype: DType) -> bool:
    """True if an integer is a value of an integer type."""
    return dtype.range[0] <= n <= dtype.range[1]


def _refuse_oversized(e: Expr, *types: DType | Decimal) -> None:
    """Refuses a literal, or the unit of a type's last digit, that exceeds 64 bits."""
    large = isinstance(e, Const) and e.dtype is DType.BIGINT and not fits(int(e.value), e.dtype)
    if large or any(isinstance(t, Decimal) and t.scale > 18 for t in types):
        raise NotSupportedError(
            "A DECIMAL of more than 18 digits is outside the tensor fragment",
            hint="An exponent makes it a DOUBLE, as in 12345678901234567890.5e0.",
        )


def cast(e: Expr, source: DType | Decimal, target: DType | Decimal) -> Expr:
    """Casts a value from one type to another.

    Raises:
        NotSupportedError: Tensor programs do not support the cast.
    """
    to_float = isinstance(source, Decimal) and isinstance(target, DType) and target.is_float
    if not (to_float and isinstance(e, Const)):
        _refuse_oversized(e, source, target)
    if isinstance(source, Decimal) and isinstance(target, DType) and target.is_float:
        return _as_float(e, source, target)
    if source == target:
        return e
    if isinstance(target, Decimal):
        return _as_decimal(e, source, target)
    if isinstance(source, DType):
        return cast_expr(e, target)
    if target is DType.BOOLEAN:
        return call("ne", DType.BOOLEAN, e, bigint(0))
    return cast_expr(_rounded_quotient(e, 10**source.scale), target)


def cast_expr(e: Expr, target: DType) -> Expr:
    """A cast between stored types; a constant is folded unless its conversion raises."""
    source = e.dtype
    if source is target:
        return e
    if isinstance(e, Const):
        failure = cast_failure(source, target)
        value = np.asarray(e.value, source.carrier)
        with np.errstate(all="ignore"):
            if failure is None or not np.any(failure.numpy(value)):
                return Const(cast_array(value, target).item(), target)
    return Call("cast", (e,), target)


def _as_decimal(e: Expr, source: DType | Decimal, target: Decimal) -> Expr:
    if isinstance(source, DType) and source.is_float:
        raise NotSupportedError(
            f"CAST of {source.value} to DECIMAL is outside the tensor fragment",
            hint="Use DOUBLE instead of DECIMAL.",
        )
    before = decimal_of(source)
    raw = cast_expr(e, DType.BIGINT)
    up = target.scale - before.scale
    if up < 0:
        raw = _rounded_quotient(raw, 10**-up)
    elif isinstance(raw, Const) and fits(int(raw.value) * 10**up, DType.BIGINT):
        raw = bigint(int(raw.value) * 10**up)
    elif up > 0:
        raw = call("mul", DType.BIGINT, raw, bigint(10**up))
    room = target.width - target.scale - (before.width - before.scale)
    return within(raw, target) if room < (up < 0) else raw


def within(raw: Expr, t: Decimal) -> Expr:
    """The scaled integer; its evaluation raises if it has more digits than its type."""
    limit = 10**t.width
    if not fits(limit, DType.BIGINT) or (isinstance(raw, Const) and abs(int(raw.value)) < limit):
        return raw
    return call("within", DType.BIGINT, raw, bigint(limit))


def _as_float(e: Expr, source: Decimal, target: DType) -> Expr:
    """`raw` / 10^scale, rounded to the nearest DOUBLE and then to the target type."""
    unit, real = 10**source.scale, DType.DOUBLE
    if isinstance(e, Const):
        return cast_expr(Const(int(e.value) / unit, real), target)
    divisor = Const(float(unit), real)
    quotient = call("div", real, cast_expr(e, real), divisor)
    if 10**source.width > _EXACT and source.scale:
        above = call("le", DType.BOOLEAN, bigint(-_EXACT), e)
        below = call("le", DType.BOOLEAN, e, bigint(_EXACT))
        exact = call("and", DType.BOOLEAN, above, below)
        quotient = call("if", real, exact, quotient, _in_parts(e, unit))
    return cast_expr(quotient, target)


def _in_parts(raw: Expr, unit: int) -> Expr:
    """`raw` / unit for a `raw` that DOUBLE cannot represent: in two parts that it can."""
    step = 1 << max(0, min(11, (_EXACT // unit).bit_length() - 1))
    many, rest = (
        cast_expr(call(fn, DType.BIGINT, raw, bigint(unit * step)), DType.DOUBLE)
        for fn in ("idiv", "mod")
    )
    first = call("mul", DType.DOUBLE, many, Const(float(step), DType.DOUBLE))
    second = call("div", DType.DOUBLE, rest, Const(float(unit), DType.DOUBLE))
    return call("add", DType.DOUBLE, first, second)


def _rounded_quotient(raw: Expr, unit: int) -> Expr:
    """`raw` / unit in BIGINT, rounded half away from zero."""
    if unit == 1:
        return raw
    if isinstance(raw, Const):
        n = int(raw.value)
        away = (2 * abs(n) + unit) // (2 * unit)
        return bigint(-away if n < 0 else away)
    rest = call("mod", DType.BIGINT, raw, bigint(unit))
    return call(
        "add",
        DType.BIGINT,
        call("idiv", DType.BIGINT, raw, bigint(unit)),
        call("idiv", DType.BIGINT, rest, bigint(unit // 2)),
    )
