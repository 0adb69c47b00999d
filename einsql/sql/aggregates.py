"""Aggregates, spelled with the algebra's base reductions over a domain.

COUNT is a SUM of ones, AVG a SUM over a COUNT (integers are summed as integers), VARIANCE
a second pass over the squared distances from the mean and LOGSUMEXP a second pass of
EXP(x - max), so partial results merge exactly as the base reductions do. Presence and
validity are BOOL_OR outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlglot import exp

from einsql.einsum import (
    TRUE,
    Const,
    EinSum,
    Expr,
    Output,
    Value,
    call,
    conj,
    renumber,
)
from einsql.errors import ProgrammingError
from einsql.intervals import fits
from einsql.schema import PRESENT, DType
from einsql.sql.casts import WIDEST, cast_expr, decimal_of
from einsql.sql.domain import Domain
from einsql.sql.typed import (
    NULL,
    Decimal,
    Typed,
    apply,
    choose,
    convert,
    protected,
)

AGGREGATES: dict[type[exp.Expr] | str, str] = {
    exp.Sum: "sum", exp.Min: "min", exp.Max: "max", exp.Avg: "avg", exp.Count: "count",
    exp.CountIf: "count_if", exp.Variance: "var_samp", exp.VariancePop: "var_pop",
    exp.Stddev: "stddev_samp", exp.StddevSamp: "stddev_samp", exp.StddevPop: "stddev_pop",
    exp.LogicalAnd: "bool_and", exp.LogicalOr: "bool_or", exp.ArgMin: "arg_min",
    exp.ArgMax: "arg_max", "product": "product", "mean": "avg", "logsumexp": "logsumexp",
    "var_samp": "var_samp", "countif": "count_if",
}  # fmt: skip
"""Syntax nodes and function names of the aggregates."""

AGGREGATE_NAMES = sorted({*AGGREGATES.values(), "variance", "stddev", "mean"})
"""What a user can call, for hints and completion."""


@dataclass
class Aggregation:
    """Aggregates over one domain, grouped by `keys`.

    Attributes:
        grouped: False for a SELECT without GROUP BY: its one row always exists.
        later: Outputs of a second pass, which reads the first pass's results.
    """

    domain: Domain
    keys: tuple[str, ...]
    grouped: bool
    float_stays: bool
    outputs: list[Output] = field(default_factory=list)
    later: list[Output] = field(default_factory=list)

    def bind(self, name: str, args: list[Typed], where: Expr) -> Typed:
        """Binds an aggregate call; the result's Values number the first pass as operand
        0 and the second pass as operand 1.

        Args:
            name: One of AGGREGATES' values.
            args: Arguments over the domain.
            where: The FILTER condition.

        Raises:
            ProgrammingError: The argument does not fit the aggregate.
        """
        selected = conj(where, *(a.valid for a in args))
        if any(a.type is None for a in args):
            return _of_null(name, args[0])
        if name == "count":
            return self._count(selected)
        args = [convert(a, a.type) for a in args]  # refuses literals of more than 64 bits
        if name == "count_if":
            return self._count(conj(selected, convert(args[0], DType.BOOLEAN).value))
        if name == "avg" and _is_exact(args[0]):
            return self._exact_average(args[0], selected)
        if name in ("avg", "var_samp", "var_pop", "stddev_samp", "stddev_pop", "logsumexp"):
            return self._float_statistic(name, args[0], selected)
        return self._base(name, args, selected)

    def _base(self, name: str, args: list[Typed], selected: Expr) -> Typed:
        first = args[0]
        if name in ("sum", "product"):
            first, result = self._summable(name, first)
        elif name in ("bool_and", "bool_or"):
            if first.type is not DType.BOOLEAN:
                raise ProgrammingError(
                    f"{name.upper()}() needs a BOOLEAN", hint="Compare first, as in val > 0."
                )
            result = DType.BOOLEAN
        else:
            result = first.value.dtype
        values = [first.value]
        if name in ("arg_min", "arg_max"):
            values.append(args[1].value)
        field_ = self._output(name, tuple(values), result, selected)
        shown = first.type if isinstance(first.type, Decimal) else result
        if isinstance(shown, Decimal) and name == "sum":
            shown = Decimal(WIDEST, shown.scale)  # a sum outgrows what it sums
        return Typed(Value(0, field_, result), shown, self._found(selected))

    def _summable(self, name: str, t: Typed) -> tuple[Typed, DType]:
        if isinstance(t.type, Decimal):
            if name == "sum":
                return t, DType.BIGINT
            t = convert(t, DType.DOUBLE)
        assert isinstance(t.type, DType)
        if t.type.is_short:
            t = convert(t, DType.FLOAT)
        assert isinstance(t.type, DType)
        if t.type.is_float:
            result = t.type if self.float_stays else DType.DOUBLE
            return convert(t, result), result
        if name == "product":
            if t.type is DType.BOOLEAN:
                raise ProgrammingError(
                    "PRODUCT() does not accept BOOLEAN", hint="BOOL_AND() is its product."
                )
            return convert(t, DType.DOUBLE), DType.DOUBLE
        return convert(t, DType.BIGINT), DType.BIGINT

    def _count(self, selected: Expr) -> Typed:
        return Typed(self._whole_sum(Const(1, DType.BIGINT), selected), DType.BIGINT)

    def _found(self, selected: Expr) -> Expr:
        """Whether any selected point exists; TRUE for groups with nothing filtered."""
        if self.grouped and selected == TRUE:
            return TRUE
        flag = self._output("bool_or", (TRUE,), DType.BOOLEAN, selected)
        return Value(0, flag, DType.BOOLEAN)

    def _exact_average(self, t: Typed, selected: Expr) -> Typed:
        """AVG of integers or decimals: the exact sum over the count, rounded at the end."""
        assert t.type is not None
        exact = decimal_of(t.type)
        raw = convert(t, exact).value
        count, found = self._count(selected), self._found(selected)
        divisor = cast_expr(count.value, DType.DOUBLE)
        if fits(self.domain.interval(t.value), *DType.INTEGER.range):
            total = cast_expr(self._whole_sum(raw, selected), DType.DOUBLE)
            mean = call("div", DType.DOUBLE, total, divisor)
        else:
            mean = self._wide_average(raw, count.value, selected)
        unit = Const(float(10**exact.scale), DType.DOUBLE)
        if unit.value != 1:
            mean = call("div", DType.DOUBLE, mean, unit)
        return Typed(protected(mean, found), DType.DOUBLE, found)

    def _wide_average(self, value: Expr, count: Expr, selected: Expr) -> Expr:
        """The mean as an integer and a fraction, from sums of high and low halves.

        A SUM of BIGINTs may exceed BIGINT; the sums of value // 2^32 and value % 2^32 do
        not, and (h·2^32 + l) / n = (h // n)·2^32 + ((h % n)·2^32 + l) / n.
        """
        half = Const(2**32, DType.BIGINT)
        high = self._whole_sum(_whole("idiv", value, half), selected)
        low = self._whole_sum(_whole("mod", value, half), selected)
        rest = _whole("add", _whole("mul", _whole("mod", high, count), half), low)
        quotient = _whole("mul", _whole("idiv", high, count), half)
        whole = _whole("add", quotient, _whole("idiv", rest, count))
        part = [cast_expr(e, DType.DOUBLE) for e in (_whole("mod", rest, count), count)]
        fraction = call("div", DType.DOUBLE, *part)
        return call("add", DType.DOUBLE, cast_expr(whole, DType.DOUBLE), fraction)

    def _whole_sum(self, value: Expr, selected: Expr) -> Expr:
        return Value(0, self._output("sum", (value,), DType.BIGINT, selected), DType.BIGINT)

    def _float_statistic(self, name: str, t: Typed, selected: Expr) -> Typed:
        if t.type is DType.BOOLEAN:
            raise ProgrammingError(
                f"{name.upper()}() does not accept BOOLEAN", hint="CAST it to INTEGER first."
            )
        stays = self.float_stays and t.type in (DType.FLOAT, DType.HALF, DType.BFLOAT16)
        real = DType.FLOAT if stays else DType.DOUBLE
        x = convert(t, real)
        if name == "logsumexp":
            return self._logsumexp(x, real, selected)
        total = Value(0, self._output("sum", (x.value,), real, selected), real)
        count = self._count(selected)
        mean = apply("div", [Typed(total, real), convert(count, real)], stays)
        found = self._found(selected)
        if name == "avg":
            return Typed(mean.value, real, found)
        centre = call("sub", real, x.value, _first_pass(mean.value))
        square = call("mul", real, centre, centre)
        spread = Value(1, self._second("sum", square, real, selected), real)
        sample = name.endswith("samp")
        degrees = count
        if sample:
            one = Typed(Const(1, DType.BIGINT), DType.BIGINT)
            degrees = apply("sub", [count, one], stays)
        result = apply("div", [Typed(spread, real), convert(degrees, real)], stays)
        if name.startswith("stddev"):
            result = apply("sqrt", [result], stays)
        several = call("lt", DType.BOOLEAN, Const(1, DType.BIGINT), count.value)
        # One row has no spread, even where its distance to itself is NaN; nor has it a slope.
        alone = Typed(Const(0.0, real), real)
        value = choose(several, result, alone, real).value
        return Typed(value, real, conj(found, several) if sample else found)

    def _logsumexp(self, x: Typed, real: DType, selected: Expr) -> Typed:
        # The sum is the same whatever it is shifted by, so gradients take that for a constant.
        highest = Value(0, self._output("max", (x.value,), real, selected), real)
        top = call("stop_gradient", real, highest)
        shifted = call("exp", real, call("sub", real, x.value, _first_pass(top)))
        total = Value(1, self._second("sum", shifted, real, selected), real)
        log = call("add", real, top, call("ln", real, total))
        finite = call("isfinite", DType.BOOLEAN, top)
        value = choose(finite, Typed(log, real), Typed(top, real), real).value
        return Typed(value, real, self._found(selected))

    def _output(self, reduction: str, args: tuple[Expr, ...], dtype: DType, where: Expr) -> str:
        for o in self.outputs:
            if (o.reduction, o.args, o.dtype, o.where) == (reduction, args, dtype, where):
                return o.name
        name = f"{reduction}_{len(self.outputs)}"
        self.outputs.append(Output(name, args, dtype, reduction, where))
        return name

    def _second(self, reduction: str, arg: Expr, dtype: DType, where: Expr) -> str:
        name = f"{reduction}_{len(self.outputs)}_{len(self.later)}"
        self.later.append(Output(name, (arg,), dtype, reduction, where))
        return name

    def finish(self) -> list[EinSum]:
        """The first pass and, if an aggregate needs one, the second."""
        outputs = list(self.outputs)
        if self.grouped:
            outputs.append(Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or"))
        first = self.domain.node(self.keys, outputs)
        if not self.later:
            return [first]
        again = self.domain.copy()
        number = again.lookup(first, self.keys)
        outputs = [
            replace(o, args=tuple(renumber(a, {_FIRST_PASS: number}) for a in o.args))
            for o in self.later
        ]
        return [first, again.node(self.keys, outputs)]


def _of_null(name: str, first: Typed) -> Typed:
    """An aggregate of a bare NULL; COUNT alone is not NULL."""
    if name == "count":
        return Typed(Const(0, DType.BIGINT), DType.BIGINT)
    if name in ("min", "max", "arg_min", "arg_max"):
        return convert(NULL, first.type)
    if name in ("bool_and", "bool_or"):
        return convert(NULL, DType.BOOLEAN)
    return convert(NULL, DType.BIGINT if name in ("sum", "count_if") else DType.DOUBLE)


def _is_exact(t: Typed) -> bool:
    return isinstance(t.type, Decimal) or (t.type is not None and t.type.is_integer)


def _whole(fn: str, a: Expr, b: Expr) -> Expr:
    return call(fn, DType.BIGINT, a, b)


_FIRST_PASS = -1
"""Operand number of the first pass inside the second, until `finish` knows it."""


def _first_pass(expr: Expr) -> Expr:
    """The first pass's results, read from within the second pass."""
    return renumber(expr, {0: _FIRST_PASS})
