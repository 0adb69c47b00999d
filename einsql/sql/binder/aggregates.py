"""Aggregates in terms of the base reductions of the algebra over a domain.

COUNT is a SUM of ones. AVG is a SUM divided by a COUNT; integers are summed as integers, FLOATs in
DOUBLE. VARIANCE is a second pass over the squared distances from the mean, COVAR one over the
products of two distances, and LOGSUMEXP one of EXP(x - max). Partial results therefore merge by the
base reductions. AVG, VARIANCE and STDDEV are rounded once, at the end. Presence and validity are
BOOL_OR outputs.
"""

from __future__ import annotations

from dataclasses import field, replace
from math import inf, prod

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    Const,
    EinSum,
    Expr,
    Output,
    Value,
    bigint,
    call,
    conj,
    disj,
    operands_of,
)
from einsql.ir.einsum.graph_rewriting import negate, renumber
from einsql.ir.einsum.intervals import fits
from einsql.sql.binder.domain import Domain
from einsql.sql.binder.grouping import MergeOrder
from einsql.sql.binder.whole_groups import NAMES as WHOLE_GROUPS
from einsql.sql.binder.whole_groups import bind_whole_groups
from einsql.sql.functions.aggregate_functions import OF_MOMENTS, OF_PAIRS
from einsql.sql.parameters.host_expr import parameters_of
from einsql.sql.typing.casts import WIDEST, Decimal, cast_expr, decimal_of
from einsql.sql.typing.typed_expr import NULL, Typed, choose, convert, protected


@dataclass
class Aggregation:
    """Aggregates over one domain, grouped by `keys`.

    Attributes:
        grouped: False for a SELECT without GROUP BY, whose only row always exists.
        later: The outputs of the second pass, which reads the results of the first pass.
        order: The keys in whose order aggregates merge rows.
    """

    domain: Domain
    keys: tuple[str, ...]
    grouped: bool
    float_stays: bool
    outputs: list[Output] = field(default_factory=list)
    later: list[Output] = field(default_factory=list)
    order: MergeOrder = field(default_factory=MergeOrder)

    def bind(self, name: str, args: list[Typed], where: Expr) -> Typed:
        """Binds an aggregate call.

        In the result, operand 0 is the first pass and operand 1 the second pass.

        Args:
            name: The canonical name, one of the values of AGGREGATES.
            args: The arguments over the domain.
            where: The FILTER condition.

        Raises:
            ProgrammingError: The aggregate does not accept the argument.
        """
        if name in WHOLE_GROUPS:
            return bind_whole_groups(self, name, args, where)
        selected = conj(where, *(a.valid for a in args))
        if any(a.type is None for a in args):
            return _of_null(name, args[0])
        if name == "count":
            return self._count(selected)
        args = [convert(a, a.type) for a in args]  # refuses literals of more than 64 bits
        if name == "count_if":
            holds = convert(args[0], DType.BOOLEAN).value
            return replace(self._count(conj(selected, holds)), valid=self.found(selected))
        if name == "avg" and _is_exact(args[0]):
            return self._exact_average(args[0], selected)
        if name in OF_PAIRS:
            return self._of_pairs(name, args[0], args[1], selected)
        if name in OF_MOMENTS:
            return self._of_moments(name, args[0], selected)
        if name in ("avg", "var_samp", "var_pop", "stddev_samp", "stddev_pop", "logsumexp"):
            return self._float_statistic(name, args[0], selected)
        return self._base(name, args, selected)

    def _base(self, name: str, args: list[Typed], selected: Expr) -> Typed:
        first = args[0]
        if name in ("sum", "product"):
            first, dtype = self.summable(name, first)
        elif name in ("bool_and", "bool_or"):
            if first.type is not DType.BOOLEAN:
                raise ProgrammingError(
                    f"{name.upper()}() needs a BOOLEAN", hint="Compare first, as in val > 0."
                )
            dtype = DType.BOOLEAN
        elif name in ("bit_and", "bit_or", "bit_xor"):
            dtype = _integer(name, first)
        else:
            dtype = first.value.dtype
        values = [first.value]
        if name in ("arg_min", "arg_max"):
            values.append(args[1].value)
        field_ = self.output(name, tuple(values), dtype, selected)
        shown = first.type if isinstance(first.type, Decimal) else dtype
        if isinstance(shown, Decimal) and name == "sum":
            shown = Decimal(WIDEST, shown.scale)  # a sum has more digits than its terms
        return Typed(Value(0, field_, dtype), shown, self.found(selected))

    def reduced(self, reduction: str, args: tuple[Expr, ...], dtype: DType, where: Expr) -> Typed:
        """Adds a reduction of the selected rows, which is NULL without any."""
        value = Value(0, self.output(reduction, args, dtype, where), dtype)
        return Typed(value, dtype, self.found(where))

    def summable(self, name: str, t: Typed) -> tuple[Typed, DType]:
        """An argument as SUM adds it, and the type of the sum."""
        if isinstance(t.type, Decimal):
            if name == "sum":
                return t, DType.BIGINT
            t = convert(t, DType.DOUBLE)
        assert isinstance(t.type, DType)
        if t.type.is_short:
            t = convert(t, DType.FLOAT)
        assert isinstance(t.type, DType)
        if t.type.is_float:
            dtype = t.type if self.float_stays else DType.DOUBLE
            return convert(t, dtype), dtype
        if name == "product":
            if t.type is DType.BOOLEAN:
                raise ProgrammingError(
                    "PRODUCT() does not accept BOOLEAN", hint="BOOL_AND() is its product."
                )
            return convert(t, DType.DOUBLE), DType.DOUBLE
        return convert(t, DType.BIGINT), DType.BIGINT

    def _count(self, selected: Expr) -> Typed:
        return Typed(self._whole_sum(Const(1, DType.BIGINT), selected), DType.BIGINT)

    def found(self, selected: Expr) -> Expr:
        """Whether a selected point exists; TRUE for groups without a filter."""
        if self.grouped and selected == TRUE:
            return TRUE
        flag = self.output("bool_or", (TRUE,), DType.BOOLEAN, selected)
        return Value(0, flag, DType.BOOLEAN)

    def _exact_average(self, t: Typed, selected: Expr) -> Typed:
        """AVG of integers or decimals: the exact sum divided by the count, rounded once."""
        assert t.type is not None
        exact = decimal_of(t.type)
        raw, unit = convert(t, exact).value, 10**exact.scale
        count, any_selected = self._count(selected), self.found(selected)
        fits_count = self._points * unit <= _EXACT
        divisor = _whole("mul", count.value, bigint(unit)) if fits_count else count.value
        if self._reach(t.value) <= _EXACT and fits_count:
            total = cast_expr(self._whole_sum(raw, selected), DType.DOUBLE)
            mean = call("div", DType.DOUBLE, total, cast_expr(divisor, DType.DOUBLE))
        else:
            mean = call("ratio", DType.DOUBLE, *self._parts_of_sum(raw, selected), divisor)
        if not fits_count:
            mean = call("div", DType.DOUBLE, mean, Const(float(unit), DType.DOUBLE))
        return Typed(protected(mean, any_selected), DType.DOUBLE, any_selected)

    def _parts_of_sum(self, value: Expr, selected: Expr) -> tuple[Expr, Expr]:
        """Sums h and l with h·2^32 + l = SUM(value), because SUM(value) may exceed BIGINT."""
        if fits(self.domain.interval(value), *DType.INTEGER.range):
            return bigint(0), self._whole_sum(value, selected)
        half = bigint(2**32)
        high = self._whole_sum(_whole("idiv", value, half), selected)
        return high, self._whole_sum(_whole("mod", value, half), selected)

    @property
    def _points(self) -> int:
        """The largest possible number of rows of a group."""
        return prod(hi - lo for lo, hi in map(self.domain.axes.__getitem__, self.domain.free))

    def _reach(self, value: Expr) -> float:
        """An upper bound of the magnitude of a sum of integers."""
        bounds = self.domain.interval(value)
        return inf if bounds is None else self._points * max(map(abs, bounds))

    def _whole_sum(self, value: Expr, selected: Expr) -> Expr:
        return Value(0, self.output("sum", (value,), DType.BIGINT, selected), DType.BIGINT)

    def _float_statistic(self, name: str, t: Typed, selected: Expr) -> Typed:
        _refuse_booleans(name, t)
        stays = self.float_stays and t.type in (DType.FLOAT, DType.HALF, DType.BFLOAT16)
        if name == "logsumexp":
            real = DType.FLOAT if stays else DType.DOUBLE
            return self._logsumexp(convert(t, real), real, selected)
        x = _doubled(convert(t, t.type).value) if stays else convert(t, DType.DOUBLE).value
        total, count = self._sum(x, selected), self._count(selected)
        mean, any_selected = _quotient(total, count.value), self.found(selected)
        if name == "avg":
            return _rounded(mean, any_selected, stays)
        spread = self._spread(x, first_pass(mean), selected, self._is_exact_sum(t))
        degrees, several = count.value, call("lt", DType.BOOLEAN, bigint(1), count.value)
        sample = name.endswith("samp")
        if sample:
            degrees = _whole("sub", degrees, bigint(1))
        variance = _quotient(spread, degrees)
        if name.startswith("stddev"):
            variance = call("sqrt", DType.DOUBLE, variance)
        # The spread of one row is the constant 0, even if its distance to itself is NaN.
        variance = call("if", DType.DOUBLE, several, variance, Const(0.0, DType.DOUBLE))
        return _rounded(variance, conj(any_selected, several) if sample else any_selected, stays)

    def _of_pairs(self, name: str, y: Typed, x: Typed, selected: Expr) -> Typed:
        """A statistic of pairs, DOUBLE; with SXX, SYY and SXY for the sums of products."""
        count, some = self._count(selected), self.found(selected)
        if name == "regr_count":
            return count
        _refuse_booleans(name, y, x)
        sides = {
            "y": (y, convert(y, DType.DOUBLE).value),
            "x": (x, convert(x, DType.DOUBLE).value),
        }
        mean = {n: _quotient(self._sum(e, selected), count.value) for n, (_, e) in sides.items()}
        if name.startswith("regr_avg"):
            return Typed(protected(mean[name[-1]], some), DType.DOUBLE, some)
        zero, one = Const(0.0, DType.DOUBLE), Const(1.0, DType.DOUBLE)
        level = {n: self._is_level(e, selected) for n, (_, e) in sides.items()}
        spread = {}
        for n, (t, e) in sides.items():
            sum_of_squares = self._spread(e, first_pass(mean[n]), selected, self._is_exact_sum(t))
            spread[n] = call("if", DType.DOUBLE, level[n], zero, sum_of_squares)
        far = (call("sub", DType.DOUBLE, e, first_pass(mean[n])) for n, (_, e) in sides.items())
        joint = self.second("sum", call("mul", DType.DOUBLE, *far), selected)
        # Distances from the mean of equal values are rounding errors; NaN and infinity remain.
        nothing = call("mul", DType.DOUBLE, zero, joint)
        joint = call("if", DType.DOUBLE, disj(*level.values()), nothing, joint)
        statistic, known = joint, some
        match name:
            case "covar_pop":
                statistic = _quotient(joint, count.value)
            case "covar_samp":
                several = call("lt", DType.BOOLEAN, bigint(1), count.value)
                statistic = _quotient(joint, _whole("sub", count.value, bigint(1)))
                known = conj(some, several)
            case "regr_sxx" | "regr_syy":
                statistic = spread[name[-1]]
            case "corr" | "regr_r2":
                roots = (call("sqrt", DType.DOUBLE, s) for s in spread.values())
                statistic = call("div", DType.DOUBLE, joint, call("mul", DType.DOUBLE, *roots))
            case "regr_slope" | "regr_intercept":
                statistic = call("div", DType.DOUBLE, joint, spread["x"])
        if name == "regr_r2":
            known = conj(some, negate(level["x"]))
            statistic = call("mul", DType.DOUBLE, statistic, statistic)
            statistic = call("if", DType.DOUBLE, level["y"], one, statistic)
        if name == "regr_intercept":
            known = conj(some, call("isfinite", DType.BOOLEAN, statistic))
            through = call("mul", DType.DOUBLE, statistic, mean["x"])
            statistic = call("sub", DType.DOUBLE, mean["y"], through)
        return Typed(protected(statistic, known), DType.DOUBLE, known)

    def _of_moments(self, name: str, t: Typed, selected: Expr) -> Typed:
        """A statistic of central moments or of logarithms, DOUBLE."""
        _refuse_booleans(name, t)
        x, count, some = (
            convert(t, DType.DOUBLE).value,
            self._count(selected),
            self.found(selected),
        )
        if name == "geomean":
            logs = self._sum(call("ln", DType.DOUBLE, x), selected)
            mean = call("exp", DType.DOUBLE, _quotient(logs, count.value))
            return Typed(protected(mean, some), DType.DOUBLE, some)
        mean = first_pass(_quotient(self._sum(x, selected), count.value))
        n, level = cast_expr(count.value, DType.DOUBLE), self._is_level(x, selected)
        spread = self._spread(x, mean, selected, self._is_exact_sum(t))
        if name == "sem":
            spread = call("if", DType.DOUBLE, level, Const(0.0, DType.DOUBLE), spread)
            error = _real("div", call("sqrt", DType.DOUBLE, spread), n)
            return Typed(protected(error, some), DType.DOUBLE, some)
        second, far = _real("div", spread, n), _real("sub", x, mean)
        square = _real("mul", far, far)
        least = {"skewness": 2, "kurtosis": 3, "kurtosis_pop": 1}[name]
        known = conj(some, call("lt", DType.BOOLEAN, bigint(least), count.value), negate(level))
        if name == "skewness":
            third = _real("div", self.second("sum", _real("mul", square, far), selected), n)
            pairs = call("sqrt", DType.DOUBLE, _real("mul", n, _minus(n, 1)))
            scale = _real("div", pairs, _minus(n, 2))
            deviation = _real("mul", second, call("sqrt", DType.DOUBLE, second))
            statistic = _real("mul", scale, _real("div", third, deviation))
        else:
            fourth = _real("div", self.second("sum", _real("mul", square, square), selected), n)
            statistic = _real("div", fourth, _real("mul", second, second))
            if name == "kurtosis":
                upper = _real("mul", _minus(n, -1), statistic)
                upper = _real("sub", upper, _real("mul", _minus(n, 1), Const(3.0, DType.DOUBLE)))
                lower = _real("mul", _minus(n, 2), _minus(n, 3))
                statistic = _real("div", _real("mul", _minus(n, 1), upper), lower)
            else:
                statistic = _minus(statistic, 3)
        return Typed(protected(statistic, known), DType.DOUBLE, known)

    def _is_level(self, value: Expr, selected: Expr) -> Expr:
        """Whether all values are equal and finite; rounding makes their mean another number."""
        low, high = (
            Value(0, self.output(fn, (value,), DType.DOUBLE, selected), DType.DOUBLE)
            for fn in ("min", "max")
        )
        same = call("eq", DType.BOOLEAN, low, high)
        return conj(same, call("isfinite", DType.BOOLEAN, low))

    def _sum(self, value: Expr, selected: Expr) -> Expr:
        return Value(0, self.output("sum", (value,), value.dtype, selected), value.dtype)

    def _is_exact_sum(self, t: Typed) -> bool:
        """True if the sum of equal values is exact, and therefore their mean."""
        if isinstance(t.type, DType) and t.type.is_float:
            # A sum of equal FLOATs is exact if their digits and those of the count fit into DOUBLE.
            plain = t.type is not DType.DOUBLE and not _is_product(t.value)
            return plain and self._points <= 2**29
        return self._reach(t.value) <= _EXACT

    def _spread(self, x: Expr, centre: Expr, selected: Expr, exact: bool) -> Expr:
        """The sum of squared distances from the mean, read from the second pass.

        Args:
            x: The values, DOUBLE.
            centre: The mean within the second pass.
            selected: The condition that selects the rows.
            exact: Whether the mean of equal values is exact.
        """
        distance = call("sub", DType.DOUBLE, x, centre)
        square = call("mul", DType.DOUBLE, distance, distance)
        spread = self.second("sum", square, selected)
        if exact:
            return spread
        # The mean of equal values may have a rounding error, whose square may be infinite. The mean
        # is infinite if their sum overflows. If a sum of unequal values overflows, so does the
        # spread.
        seen = call("beside", DType.DOUBLE, x, square)
        low, high = (self.second(fn, seen, selected) for fn in ("min", "max"))
        return call("settled", DType.DOUBLE, spread, low, high)

    def _logsumexp(self, x: Typed, real: DType, selected: Expr) -> Typed:
        # The shift does not change the sum, so gradients treat it as a constant.
        highest = Value(0, self.output("max", (x.value,), real, selected), real)
        top = call("stop_gradient", real, highest)
        shifted = call("exp", real, call("sub", real, x.value, first_pass(top)))
        total = self.second("sum", shifted, selected)
        log = call("add", real, top, call("ln", real, total))
        finite = call("isfinite", DType.BOOLEAN, top)
        logsumexp = choose(finite, Typed(log, real), Typed(top, real), real).value
        return Typed(logsumexp, real, self.found(selected))

    def output(self, reduction: str, args: tuple[Expr, ...], dtype: DType, where: Expr) -> str:
        """The name of an output of the first pass, which is added unless there is an equal one."""
        for o in self.outputs:
            if (o.reduction, o.args, o.dtype, o.where) == (reduction, args, dtype, where):
                return o.name
        name = f"{reduction}_{len(self.outputs)}"
        self.outputs.append(Output(name, args, dtype, reduction, where))
        return name

    def second(self, reduction: str, arg: Expr, where: Expr) -> Expr:
        """The value of an output of the second pass."""
        for o in self.later:
            if (o.reduction, o.args, o.where) == (reduction, (arg,), where):
                return Value(1, o.name, arg.dtype)
        name = f"{reduction}_{len(self.outputs)}_{len(self.later)}"
        self.later.append(Output(name, (arg,), arg.dtype, reduction, where))
        return Value(1, name, arg.dtype)

    def finish(self) -> list[EinSum]:
        """The first pass and, if an aggregate needs one, the second."""
        outputs = list(self.outputs)
        if self.grouped:
            outputs.append(Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or"))
        first = self.domain.node(self.keys, outputs, self.order.labels(self.keys))
        if not self.later:
            return [first]
        again = self.domain.copy()
        number = again.lookup(first, self.keys)
        outputs = [
            replace(o, args=tuple(renumber(a, {_FIRST_PASS: number}) for a in o.args))
            for o in self.later
        ]
        return [first, again.node(self.keys, outputs)]


def _refuse_booleans(name: str, *args: Typed) -> None:
    if any(t.type is DType.BOOLEAN for t in args):
        raise ProgrammingError(
            f"{name.upper()}() does not accept BOOLEAN", hint="CAST it to INTEGER first."
        )


def _integer(name: str, t: Typed) -> DType:
    """The type of an integer argument.

    Raises:
        ProgrammingError: The argument has another type.
    """
    if isinstance(t.type, DType) and t.type.is_integer:
        return t.type
    kind = t.type.value if isinstance(t.type, DType) else "DECIMAL"
    raise ProgrammingError(
        f"{name.upper()}() does not accept {kind}", hint="CAST it to INTEGER first."
    )


def _of_null(name: str, first: Typed) -> Typed:
    """An aggregate of the literal NULL: 0 for COUNT, else NULL."""
    match name:
        case "count" | "regr_count":
            return Typed(bigint(0), DType.BIGINT)
        case "min" | "max" | "arg_min" | "arg_max":
            return convert(NULL, first.type)
        case "bit_and" | "bit_or" | "bit_xor":
            return convert(NULL, DType.INTEGER)
        case "bool_and" | "bool_or":
            return convert(NULL, DType.BOOLEAN)
        case "sum" | "count_if":
            return convert(NULL, DType.BIGINT)
    return convert(NULL, DType.DOUBLE)


def _is_exact(t: Typed) -> bool:
    return isinstance(t.type, Decimal) or (t.type is not None and t.type.is_integer)


def _whole(fn: str, a: Expr, b: Expr) -> Expr:
    return call(fn, DType.BIGINT, a, b)


def _real(fn: str, a: Expr, b: Expr) -> Expr:
    return call(fn, DType.DOUBLE, a, b)


def _minus(a: Expr, number: float) -> Expr:
    return _real("sub", a, Const(float(number), DType.DOUBLE))


def _quotient(total: Expr, count: Expr) -> Expr:
    return call("div", DType.DOUBLE, total, cast_expr(count, DType.DOUBLE))


def _rounded(value: Expr, valid: Expr, to_float: bool) -> Typed:
    """A DOUBLE, or the nearest FLOAT."""
    if not to_float:
        return Typed(value, DType.DOUBLE, valid)
    return Typed(call("nearest", DType.FLOAT, value), DType.FLOAT, valid)


def _doubled(e: Expr) -> Expr:
    """Converts FLOAT, HALF or BFLOAT16 to DOUBLE, inside of products of columns and parameters.

    The optimizer recognizes products as contractions, and such a product is exact in DOUBLE.
    """
    if _is_product(e):
        assert isinstance(e, Call)
        return call("mul", DType.DOUBLE, *map(_doubled, e.args))
    return cast_expr(e, DType.DOUBLE)


def _is_product(e: Expr) -> bool:
    return isinstance(e, Call) and e.fn == "mul" and len(operands_of(e)) + len(parameters_of(e)) > 1


_EXACT = 2**53
"""DOUBLE represents every integer up to this number."""

_FIRST_PASS = -1
"""A placeholder in the second pass for the first pass's operand number, which `finish` sets."""


def first_pass(expr: Expr) -> Expr:
    """The first pass's results, read from within the second pass."""
    return renumber(expr, {0: _FIRST_PASS})
