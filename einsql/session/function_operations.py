"""The operations, the laws and the derivatives of Python functions of the user."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.schema import DType
from einsql.errors import Error, ProgrammingError
from einsql.ir.einsum.graph import TRUE, Call, Expr, Value, subexpressions
from einsql.ir.einsum.graph_rewriting import map_values
from einsql.ir.functions.derivatives import Derivative, still
from einsql.ir.functions.law_tests import LawTest, rows
from einsql.ir.functions.numba_loops import NumbaLoop
from einsql.ir.functions.python_functions import (
    Calling,
    Laws,
    PythonFunction,
    add_opaque,
    unique_name,
)
from einsql.ir.tra.lambda_tracing import Traced, recorded, trace
from einsql.ir.tra.math_names import recording
from einsql.kernels.vectorized.scalar import over_arrays
from einsql.planner.queries import query_binder
from einsql.sql.binder.einsum_algebra import bind_over
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import CreateMacro
from einsql.sql.typing.casts import cast_expr
from einsql.sql.typing.typed_expr import Typed, convert

if TYPE_CHECKING:
    from einsql.planner.context import Context


def prepared(function: PythonFunction, is_traced: bool, laws: Laws) -> PythonFunction:
    """The function with its recorded operations or its compiled loop, and with its tested laws.

    Args:
        function: The function.
        is_traced: Whether its operations may be recorded.
        laws: Its declared laws.

    Raises:
        ProgrammingError: A law has a counterexample.
    """
    native = function.calling is Calling.NATIVE
    if native and is_traced:
        function = replace(function, expr=_recorded(function))
    if native and function.expr is None:
        function = replace(function, faster=NumbaLoop(function.fn, function.arguments))
    run = function.at_points if function.expr is None else over_arrays(function.expr)
    test = LawTest(function.shown, function.arguments, function.result, run)
    return replace(function, laws=test.check(laws))


def _placeholders(types: Sequence[DType]) -> list[Expr]:
    """The arguments of a recorded function."""
    return [Value(n, "", t) for n, t in enumerate(types)]


def _recorded(function: PythonFunction) -> Expr | None:
    """The function's operations as an expression.

    Returns:
        None if they cannot be recorded, or if the expression has another value on samples: the
        function may have decided by something else than its arguments' values.
    """
    arguments = _placeholders(function.arguments)
    try:
        traced = trace(recording(function.fn), arguments, {}, function.shown)
        expr = cast_expr(recorded(traced, function.shown), function.result)
    except Exception:  # the function may do anything with a value that is no number
        return None
    if any(map(_is_integer_power, subexpressions(expr))):
        return None
    return expr if _agrees(function, expr) else None


def _is_integer_power(expr: Expr) -> bool:
    """True for a power of an integer, which is exact in Python and rounded to DOUBLE in SQL."""
    if not isinstance(expr, Call) or expr.fn != "pow":
        return False
    base = expr.args[0]
    if isinstance(base, Call) and base.fn == "cast":
        base = base.args[0]
    return base.dtype.is_integer


def type_of_recorded(
    fn: Callable[..., Any], arguments: Sequence[DType], shown: str
) -> DType | None:
    """The type of the expression that a function records; None if it cannot be recorded."""
    try:
        traced = trace(recording(fn), _placeholders(arguments), {}, shown)
        return recorded(traced, shown).dtype
    except Exception:  # the function may do anything with a value that is no number
        return None


_SAMPLES = 64  # samples on which a recorded function is compared, a millisecond


def _agrees(function: PythonFunction, expr: Expr) -> bool:
    """Whether an expression has the function's values on finite samples on which it has any."""
    checked, run = 0, over_arrays(expr)
    close = 1e-5 if function.result is not DType.DOUBLE else 1e-9
    for row in rows(function.arguments, 20 * _SAMPLES):
        if checked == _SAMPLES:
            break
        if any(abs(x) > 1000 or x != x for x in row):
            continue
        try:
            wanted = function.at_points(*_columns(function, row))[0].item()
        except Error:
            continue
        if abs(wanted) == np.inf or wanted != wanted:
            continue
        checked += 1
        try:
            recorded_value = run(*_columns(function, row))[0].item()
        except Error:
            return False
        exact = not function.result.is_float
        size = 0.0 if exact else close * max(1.0, abs(wanted))
        if not abs(recorded_value - wanted) <= size:
            return False
    return checked > 0


def _columns(function: PythonFunction, row: Sequence[Any]) -> list[np.ndarray]:
    return [np.array([x], t.carrier) for x, t in zip(row, function.arguments, strict=True)]


def derivative_of(
    ctx: Context, function: PythonFunction, parameters: Sequence[str], given: Any
) -> Derivative | None:
    """The derivative of an opaque function from its partial derivatives.

    Args:
        ctx: The session, whose functions an expression may call.
        function: The function.
        parameters: The names of its parameters.
        given: A Python function that returns the partial derivatives, or expressions of SQL.

    Returns:
        None if the function has no derivative.

    Raises:
        ProgrammingError: An expression is wrong, or their number is.
    """
    if not function.result.is_float:
        return still
    if given is None:
        return None
    if callable(given):
        partials = _partials(function, given)
    else:
        texts = [given] if isinstance(given, str) else list(given)
        partials = [_bound(ctx, function, parameters, str(t)) for t in texts]
    if len(partials) != len(function.arguments):
        raise ProgrammingError(
            f"{function.shown} has {len(function.arguments)} parameters and "
            f"{len(partials)} partial derivatives"
        )
    types = function.arguments

    def derivative(g: Any, _: Any, *args: Any) -> Any:
        values = [a.cast(t).expr for a, t in zip(args, types, strict=True)]
        return tuple(
            g * type(g)(map_values(p, lambda v: values[v.operand])).cast(g.dtype)
            if t.is_float
            else None
            for p, t in zip(partials, types, strict=True)
        )

    return derivative


def _partials(function: PythonFunction, given: Callable[..., Any]) -> list[Expr]:
    """The partial derivatives that a Python function returns, opaque if they are not recorded."""
    count = len(function.arguments)
    one = replace(function, shown=f"the derivative of {function.shown}", faster=None)
    if function.calling is Calling.NATIVE:
        parts = [replace(one, fn=_part(given, n, count)) for n in range(count)]
        exprs = [_recorded(part) for part in parts]
    else:
        parts = [replace(one, fn=_part(given, n, count)) for n in range(count)]
        exprs = [None] * count
    return [e if e is not None else _call(p) for e, p in zip(exprs, parts, strict=True)]


def _part(given: Callable[..., Any], n: int, count: int) -> Callable[..., Any]:
    """One of the partial derivatives that a function returns together."""
    recordable = recording(given)

    def part(*args: Any) -> Any:
        traced = any(isinstance(a, Traced) for a in args)
        partials = (recordable if traced else given)(*args)
        return partials[n] if count > 1 or isinstance(partials, tuple | list) else partials

    return part


def _call(function: PythonFunction) -> Expr:
    name = unique_name(function)
    add_opaque(name, Laws())
    return Call(name, tuple(_placeholders(function.arguments)), function.result)


def _bound(ctx: Context, function: PythonFunction, parameters: Sequence[str], text: str) -> Expr:
    """A partial derivative that is an expression of SQL over the parameters."""
    what = f"The derivative {text} of {function.shown}"
    try:
        statement, _ = parse(
            f"CREATE FUNCTION einsql_derivative({', '.join(parameters)}) AS {text}"
        )
        assert isinstance(statement, CreateMacro)
        arguments = zip(_placeholders(function.arguments), function.arguments, strict=True)
        values = dict(zip(parameters, (Typed(e, t) for e, t in arguments), strict=True))
        bound = bind_over(query_binder(ctx).macros, statement.body, values)
        partial = convert(bound, function.result)
    except Error as error:
        raise ProgrammingError(f"{what}: {error.reason}", hint=error.hint) from None
    if partial.valid != TRUE:
        raise ProgrammingError(f"{what} may be NULL")
    return partial.value
