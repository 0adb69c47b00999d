"""SQL functions that consist of several functions of the algebra, over bound values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from einsql.core.schema import DType
from einsql.errors import NotSupportedError, ProgrammingError
from einsql.ir.einsum.graph import Call, Const, Expr, call, conj, disj
from einsql.ir.einsum.graph_rewriting import map_values, negate
from einsql.ir.functions import REDUCTIONS
from einsql.ir.functions.python_functions import FunctionName
from einsql.sql.typing.casts import held
from einsql.sql.typing.typed_expr import (
    NULL,
    Typed,
    apply,
    choose,
    convert,
    logical_and,
    logical_or,
    meet,
    protected,
    truth,
)


def case(tests: Sequence[Typed], values: Sequence[Typed], otherwise: Typed) -> Typed:
    """CASE: the value of the first true test. As in DuckDB, ELSE determines the type first."""
    met = meet([otherwise, *values], "CASE", truths=True)
    chosen = convert(otherwise, met)
    for test, value in reversed(list(zip(tests, values, strict=True))):
        chosen = choose(truth(test), value, chosen, met)
    return replace(chosen, literal=False)


def coalesce(items: Sequence[Typed]) -> Typed:
    """COALESCE: the first argument that is not NULL."""
    met = meet(list(items), "COALESCE", truths=True)
    chosen = convert(items[-1], met)
    for item in reversed(items[:-1]):
        chosen = choose(item.valid, item, chosen, met)
    return chosen


def nullif(a: Typed, b: Typed) -> Typed:
    """NULLIF: the first argument, or NULL if the arguments are equal."""
    same = truth(apply("eq", [a, b], True))
    return replace(a, valid=conj(a.valid, negate(same)), literal=False)


def extreme(fn: str, items: Sequence[Typed]) -> Typed:
    """GREATEST or LEAST; NULL is replaced by a value that is never selected."""
    met = meet(list(items), fn.upper(), truths=True)
    if met is None:
        return NULL
    dtype = held(met)
    loser = REDUCTIONS["max" if fn == "greatest" else "min"].identity(dtype)
    nothing = Typed(Const(loser, dtype), met)
    values = [choose(t.valid, t, nothing, met).value for t in items]
    extremum = values[0]
    for value in values[1:]:
        extremum = call(fn, dtype, extremum, value)
    return Typed(extremum, met, disj(*(t.valid for t in items)))


def between(x: Typed, low: Typed, high: Typed) -> Typed:
    """`x BETWEEN low AND high`, in the common type of all three."""
    met = meet([x, low, high], "BETWEEN", truths=True)
    if isinstance(met, DType):
        x, low, high = (convert(t, met) for t in (x, low, high))
    return logical_and([apply("le", [low, x], True), apply("le", [x, high], True)])


def member(x: Typed, items: Sequence[Typed]) -> Typed:
    """`x IN (a, b, …)`."""
    met = meet([x, *items], "IN", truths=True)
    if isinstance(met, DType):
        x, items = convert(x, met), [convert(t, met) for t in items]
    same = [convert(apply("eq", [x, t], True), DType.BOOLEAN) for t in items]
    return logical_or([Typed(Const(False, DType.BOOLEAN), DType.BOOLEAN), *same])


def not_distinct(a: Typed, b: Typed) -> Typed:
    """IS NOT DISTINCT FROM: true for equal values and for two NULLs."""
    both = conj(a.valid, b.valid)
    neither = conj(negate(a.valid), negate(b.valid))
    equal = convert(apply("eq", [a, b], True), DType.BOOLEAN)
    return Typed(disj(conj(both, equal.value), neither), DType.BOOLEAN)


def logarithm(base: Typed, x: Typed, float_stays: bool) -> Typed:
    """LOG(base, x)."""
    top, bottom = (apply("log10", [t], float_stays) for t in (x, base))
    return apply("div", [top, bottom], float_stays)


def sigmoid(x: Typed, float_stays: bool) -> Typed:
    """SIGMOID(x); x may be a BOOLEAN."""
    if not (isinstance(x.type, DType) and x.type.is_float):
        x = convert(x, DType.DOUBLE)
    return apply("sigmoid", [x], float_stays)


def stopped(x: Typed) -> Typed:
    """STOP_GRADIENT(x): x, which gradients treat as a constant."""
    if isinstance(x.value, Const):
        return x
    value = call("stop_gradient", x.value.dtype, x.value)
    return replace(x, value=value, literal=False)


MOST_OPERATIONS = 50_000
"""Most operations of a value that calls Python functions; nested calls can grow exponentially."""


def of_python(name: FunctionName, items: Sequence[Typed]) -> Typed:
    """A call of a Python function; NULL for NULL arguments, without a call.

    Raises:
        NotSupportedError: Only DuckDB can run the function.
        ProgrammingError: The number of arguments is wrong, or the value has too many operations.
    """
    function = name.function
    if function.refusal:
        raise NotSupportedError(f"{function.refusal}")
    if len(items) != len(function.arguments):
        raise ProgrammingError(f"{function.shown}() takes {len(function.arguments)} arguments")
    valid = conj(*(t.valid for t in items))
    pairs = zip(items, function.arguments, strict=True)
    args = tuple(convert(t, want).value for t, want in pairs)
    if function.expr is None:
        called: Expr = Call(name, args, function.result)
    else:
        called = map_values(function.expr, lambda v: args[v.operand])
        if _operations(called, {}) > MOST_OPERATIONS:
            raise ProgrammingError(
                f"Calls of {function.shown}() make this value more than {MOST_OPERATIONS:,} "
                "operations long",
                hint="Name repeated parts in WITH.",
            )
    return Typed(protected(called, valid), function.result, valid)


def _operations(e: Expr, known: dict[int, int]) -> int:
    """The number of operations of an expression, each occurrence of a shared one counted."""
    if not isinstance(e, Call):
        return 1
    if id(e) not in known:
        known[id(e)] = 1 + sum(_operations(a, known) for a in e.args)
    return known[id(e)]


def rounded(x: Typed, digits: Typed | None, float_stays: bool) -> Typed:
    """ROUND(x) or ROUND(x, digits), half away from zero.

    Raises:
        NotSupportedError: The digits are not a literal, or are negative for an integer.
    """
    if digits is None:
        return apply("round", [x], float_stays)
    n = digits.value.value if isinstance(digits.value, Const) and digits.literal else None
    if not isinstance(n, int) or digits.type is not DType.INTEGER:
        raise NotSupportedError(
            "ROUND to digits that are not an integer literal is outside the tensor fragment",
            hint="ROUND(x * 100) / 100 rounds to two digits.",
        )
    to_integer = apply("round", [x], float_stays)
    if n == 0 or (n > 0 and isinstance(to_integer.type, DType) and to_integer.type.is_integer):
        return to_integer
    if not (isinstance(to_integer.type, DType) and to_integer.type.is_float):
        raise NotSupportedError(
            "ROUND of an integer to digits left of the point is outside the tensor fragment",
            hint="CAST it to DOUBLE first.",
        )
    return _rounded_float(convert(x, DType.DOUBLE), n, to_integer.type)


_EXACT_POWER = 22
"""Number of digits: 10^22 is the greatest power of ten that is a DOUBLE."""


def _rounded_float(x: Typed, n: int, dtype: DType) -> Typed:
    """DuckDB's rounding of a float: scaled, rounded and scaled back, if the result is finite."""
    power = math.pow(10, abs(n)) if abs(n) < 309 else math.inf
    unit = Typed(Const(power, DType.DOUBLE), DType.DOUBLE)
    if 0 < n <= _EXACT_POWER:
        rounded = apply("scaled_round", [x, unit], True)
    else:
        rounded = apply("round", [apply("mul" if n > 0 else "div", [x, unit], True)], True)
    rescaled = apply("div" if n > 0 else "mul", [rounded, unit], True)
    nothing = Typed(Const(0.0, DType.DOUBLE), DType.DOUBLE)
    is_x = n > 0 or math.isfinite(power)
    far = x if is_x else choose(apply("isfinite", [x], True).value, nothing, x, x.type)
    finite = apply("isfinite", [rescaled], True).value
    return convert(choose(finite, rescaled, far, x.type), dtype)
