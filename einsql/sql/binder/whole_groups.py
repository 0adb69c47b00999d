"""Aggregates of all rows of a group: quantiles, MODE, DISTINCT, and the first and the last row.

Quantiles, MODE and aggregates of distinct values are holistic reductions. The first and the last
row are those with the least and the greatest keys, so FIRST and LAST are ARG_MIN and ARG_MAX.
"""

from __future__ import annotations

from math import prod
from typing import Protocol

from einsql.core.schema import DType
from einsql.errors import NotSupportedError, ProgrammingError
from einsql.ir.einsum.graph import (
    TRUE,
    Const,
    Expr,
    Label,
    bigint,
    call,
    conj,
)
from einsql.ir.einsum.intervals import fits
from einsql.sql.binder.domain import Domain
from einsql.sql.parameters.host_expr import parameters_of
from einsql.sql.typing.casts import WIDEST, Decimal, cast_expr, decimal_of, held
from einsql.sql.typing.typed_expr import NULL, Typed, convert, protected

NAMES = frozenset(
    {
        "median", "quantile_cont", "quantile_disc", "mode", "count_distinct", "sum_distinct",
        "avg_distinct", "first", "last", "any_value", "approx_quantile",
    }
)  # fmt: skip
"""The aggregates of this module."""


_INTERPOLATED = 18
"""Digits of a DECIMAL up to which DuckDB interpolates in DOUBLE; it rounds others differently."""


class Reducing(Protocol):
    """The aggregates of a SELECT, to which this module adds reductions."""

    domain: Domain
    keys: tuple[str, ...]
    float_stays: bool

    def reduced(self, reduction: str, args: tuple[Expr, ...], dtype: DType, where: Expr) -> Typed:
        """Adds a reduction of the selected rows, which is NULL without any."""

    def summable(self, name: str, t: Typed) -> tuple[Typed, DType]:
        """An argument as SUM adds it, and the type of the sum."""


def bind_whole_groups(group: Reducing, name: str, args: list[Typed], where: Expr) -> Typed:
    """Binds an aggregate call.

    Args:
        group: The aggregates of the SELECT.
        name: The canonical name, one of `NAMES`.
        args: The arguments over the domain.
        where: The FILTER condition.

    Raises:
        ProgrammingError: The aggregate does not accept the argument.
        NotSupportedError: DuckDB accepts it, and tensor programs do not.
    """
    first = args[0]
    fraction = _fraction(name, args[1]) if len(args) > 1 else 0.5
    if first.type is None:
        return _of_null(name)
    first = convert(first, first.type)
    selected = conj(where, first.valid)
    match name:
        case "first" | "last":
            return _at_end(group, name == "last", first, where)
        case "any_value":
            return _at_end(group, False, Typed(first.value, first.type), selected)
        case "count_distinct":
            return Typed(
                group.reduced(name, (first.value,), DType.BIGINT, selected).value, DType.BIGINT
            )
        case "sum_distinct":
            term, dtype = group.summable("sum", first)
            total = group.reduced(name, (term.value,), dtype, selected)
            if isinstance(first.type, Decimal):
                return Typed(total.value, Decimal(WIDEST, first.type.scale), total.valid)
            return total
        case "avg_distinct":
            return _mean(group, first, selected)
        case "approx_quantile":
            return _of_finite(group, first, fraction, selected)
        case "quantile_disc" | "mode":
            return _chosen(group, name, first, fraction, selected)
    if first.type is DType.BOOLEAN:
        if name == "median":
            return _chosen(group, "quantile_disc", first, fraction, selected)
        _refuse_boolean(name)
    return _interpolated(group, first, fraction, selected)


def _chosen(group: Reducing, name: str, t: Typed, fraction: float, selected: Expr) -> Typed:
    """One of the values, in its own type."""
    assert t.type is not None
    args = (t.value, Const(fraction, DType.DOUBLE)) if name == "quantile_disc" else (t.value,)
    chosen = group.reduced(name, args, held(t.type), selected)
    return Typed(chosen.value, t.type, chosen.valid)


def _of_finite(group: Reducing, t: Typed, fraction: float, selected: Expr) -> Typed:
    """The quantile between finite values: an integer of integers, else DOUBLE."""
    kind = t.type
    if kind is DType.BOOLEAN:
        _refuse_boolean("approx_quantile")
    if not isinstance(kind, DType):
        raise NotSupportedError(
            "APPROX_QUANTILE() of a DECIMAL is outside the tensor fragment",
            hint="CAST the value to DOUBLE.",
        )
    real = convert(t, DType.DOUBLE).value
    if kind.is_float:
        selected = conj(selected, call("isfinite", DType.BOOLEAN, real))
    args = (real, Const(fraction, DType.DOUBLE))
    quantile = group.reduced("quantile_cont", args, DType.DOUBLE, selected)
    return quantile if kind.is_float else convert(quantile, kind)


def _interpolated(group: Reducing, t: Typed, fraction: float, selected: Expr) -> Typed:
    """A value between two: FLOAT of FLOAT, DECIMAL of DECIMAL, else DOUBLE."""
    kind = t.type
    if isinstance(kind, Decimal) and kind.width > _INTERPOLATED:
        raise NotSupportedError(
            "A quantile between DECIMALs of more than 18 digits is outside the tensor fragment",
            hint="CAST the value to DOUBLE.",
        )
    if isinstance(kind, DType):
        single = kind is DType.FLOAT or kind.is_short
        kind = DType.FLOAT if single else DType.DOUBLE
        t = convert(t, kind)
    assert kind is not None
    args = (t.value, Const(fraction, DType.DOUBLE))
    quantile = group.reduced("quantile_cont", args, held(kind), selected)
    return Typed(quantile.value, kind, quantile.valid)


def _mean(group: Reducing, t: Typed, selected: Expr) -> Typed:
    """The mean of the distinct values, DOUBLE or the nearest FLOAT."""
    if t.type is DType.BOOLEAN:
        _refuse_boolean("avg")
    assert t.type is not None
    if isinstance(t.type, Decimal) or t.type.is_integer:
        exact = decimal_of(t.type)
        terms, kind = convert(t, exact).value, DType.BIGINT
    else:
        exact = None
        terms, kind = cast_expr(convert(t, t.type).value, DType.DOUBLE), DType.DOUBLE
    is_wide = exact is not None and not fits(group.domain.interval(terms), *DType.INTEGER.range)
    total = group.reduced(
        "low_sum_distinct" if is_wide else "sum_distinct", (terms,), kind, selected
    )
    count = group.reduced("count_distinct", (terms,), DType.BIGINT, selected).value
    if exact is not None:
        unit = bigint(10**exact.scale)
        divisor = call("mul", DType.BIGINT, count, unit) if exact.scale else count
        high: Expr = bigint(0)
        if is_wide:  # the sum of all values may exceed BIGINT
            high = group.reduced("high_sum_distinct", (terms,), kind, selected).value
        mean = call("ratio", DType.DOUBLE, high, total.value, divisor)
        return Typed(protected(mean, total.valid), DType.DOUBLE, total.valid)
    mean = call("div", DType.DOUBLE, total.value, cast_expr(count, DType.DOUBLE))
    if group.float_stays and t.type is not DType.DOUBLE:
        return Typed(call("nearest", DType.FLOAT, mean), DType.FLOAT, total.valid)
    return Typed(mean, DType.DOUBLE, total.valid)


def _at_end(group: Reducing, last: bool, t: Typed, selected: Expr) -> Typed:
    """The value of the row with the least or the greatest keys, NULL if it is NULL there."""
    assert t.type is not None
    name, place = "arg_max" if last else "arg_min", _row(group)
    value = protected(t.value, t.valid)
    end = group.reduced(name, (value, place), held(t.type), selected)
    valid = end.valid
    if t.valid != TRUE:
        flag = group.reduced(name, (t.valid, place), DType.BOOLEAN, selected)
        valid = conj(valid, flag.value)
    return Typed(end.value, t.type, valid)


def _row(group: Reducing) -> Expr:
    """The number of a row within its group, in the order of keys."""
    domain, row, size = group.domain, None, 1
    labels = [x for x in domain.free if x not in group.keys]
    sizes = [hi - lo for lo, hi in map(domain.axes.__getitem__, labels)]
    if prod(sizes) > 2**62:
        raise NotSupportedError(
            "FIRST() and LAST() of so many rows are outside the tensor fragment"
        )
    for label, extent in zip(reversed(labels), reversed(sizes), strict=True):
        step: Expr = Label(label)
        if row is not None:
            lo = domain.axes[label][0]
            step = call("sub", DType.BIGINT, step, bigint(lo)) if lo else step
            step = call("add", DType.BIGINT, call("mul", DType.BIGINT, step, bigint(size)), row)
        elif domain.axes[label][0]:
            step = call("sub", DType.BIGINT, step, bigint(domain.axes[label][0]))
        row, size = step, size * extent
    return bigint(0) if row is None else row


def _fraction(name: str, t: Typed) -> float:
    """The fraction of a quantile, a literal from 0 to 1."""
    number = t.value
    if not isinstance(number, Const) or t.type is None or parameters_of(number):
        raise NotSupportedError(
            f"{name.upper()}() with a fraction that is no literal is outside the tensor fragment"
        )
    fraction = float(number.value)
    if isinstance(t.type, Decimal):
        fraction = number.integer / 10**t.type.scale
    if not -1 <= fraction <= 1:
        raise ProgrammingError(
            f"{name.upper()}() needs a fraction from 0 to 1", hint="0.5 is the median."
        )
    if fraction < 0 or (name == "quantile_disc" and isinstance(t.type, DType) and t.type.is_float):
        raise NotSupportedError(
            f"{name.upper()}() with this fraction is outside the tensor fragment",
            hint="Write it as a decimal number from 0 to 1.",
        )
    return fraction


def _of_null(name: str) -> Typed:
    match name:
        case "count_distinct":
            return Typed(bigint(0), DType.BIGINT)
        case "sum_distinct" | "approx_quantile":
            return convert(NULL, DType.BIGINT)
        case "median" | "quantile_cont" | "avg_distinct":
            return convert(NULL, DType.DOUBLE)
    return NULL


def _refuse_boolean(name: str) -> None:
    raise ProgrammingError(
        f"{name.upper()}() does not accept BOOLEAN", hint="CAST it to INTEGER first."
    )
