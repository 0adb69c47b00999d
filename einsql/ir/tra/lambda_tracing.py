"""Traces Python functions: a call with recording objects returns an expression.

Literal numbers in the function take the type of the values they are combined with, as in
NumPy. Integers divide as in Python: `//` and `%` round towards minus infinity.
"""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from einsql.core.schema import DType
from einsql.core.typing_rules import meet
from einsql.errors import DataError, ProgrammingError, suggest
from einsql.ir.einsum.graph import Call, Const, Expr, cast
from einsql.ir.einsum.graph_rewriting import negate
from einsql.ir.einsum.intervals import Bounds, interval
from einsql.ir.functions import SCALARS

_Operator = Callable[["Traced", object], "Traced"]


def _operators(fn: str) -> tuple[_Operator, _Operator]:
    """The operator of a scalar function of two arguments, and the one with its operands swapped."""
    return (lambda a, b: call(fn, a, b)), (lambda a, b: call(fn, b, a))


class Traced:
    """An expression under construction; operators and NumPy's functions extend it.

    Attributes:
        expr: The expression recorded so far.
        bounds: `[lo, hi)` of the expression's labels.
    """

    __slots__ = ("bounds", "expr")
    __hash__ = None  # type: ignore[assignment]  # equality is recorded, not decided

    def __init__(self, expr: Expr, bounds: Bounds) -> None:
        self.expr = expr
        self.bounds = bounds

    __add__, __radd__ = _operators("add")
    __sub__, __rsub__ = _operators("sub")
    __mul__, __rmul__ = _operators("mul")
    __truediv__, __rtruediv__ = _operators("div")
    __pow__, __rpow__ = _operators("pow")
    __lt__, __gt__ = _operators("lt")
    __le__, __ge__ = _operators("le")
    # Equality is recorded, not decided, so both have another type than object's.
    __eq__ = _operators("eq")[0]  # type: ignore[assignment]
    __ne__ = _operators("ne")[0]  # type: ignore[assignment]

    def __floordiv__(self, other: object) -> Traced:
        return _floor_divide(self, other)

    def __rfloordiv__(self, other: object) -> Traced:
        return _floor_divide(other, self)

    def __mod__(self, other: object) -> Traced:
        return _floor_modulo(self, other)

    def __rmod__(self, other: object) -> Traced:
        return _floor_modulo(other, self)

    def __neg__(self) -> Traced:
        return call("neg", self)

    def __abs__(self) -> Traced:
        return call("abs", self)

    def __and__(self, other: object) -> Traced:
        return call(self._logical("and", "bitand"), self, other)

    def __rand__(self, other: object) -> Traced:
        return call(self._logical("and", "bitand"), other, self)

    def __or__(self, other: object) -> Traced:
        return call(self._logical("or", "bitor"), self, other)

    def __ror__(self, other: object) -> Traced:
        return call(self._logical("or", "bitor"), other, self)

    def __invert__(self) -> Traced:
        if self.expr.dtype is DType.BOOLEAN:
            return Traced(negate(self.expr), self.bounds)
        return call("sub", -1, self)

    def _logical(self, fn: str, bits: str) -> str:
        return fn if self.expr.dtype is DType.BOOLEAN else bits

    def __bool__(self) -> NoReturn:
        raise ProgrammingError(
            "A traced function cannot decide by the value of its arguments",
            hint="Combine conditions with &, | and ~, and choose with tra.call('if', c, a, b).",
        )

    def __array_ufunc__(self, ufunc: object, method: str, *inputs: object, **options: Any) -> Any:
        if method != "__call__" or options or any(isinstance(i, np.ndarray) for i in inputs):
            return NotImplemented
        if ufunc in _OPERATORS:
            return _OPERATORS[ufunc](*(_plain(i) for i in inputs))
        return call(_UFUNCS[ufunc], *inputs) if ufunc in _UFUNCS else NotImplemented

    def __array_function__(self, function: object, _: object, args: Any, options: Any) -> Any:
        if function is np.where and len(args) == 3 and not options:
            return call("if", *args)
        return NotImplemented


_OPERATORS: dict[object, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.floor_divide: operator.floordiv,
    np.remainder: operator.mod,
    np.power: operator.pow,
    np.negative: operator.neg,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
}
_UFUNCS: dict[object, str] = {
    **{f.numpy: f.name for f in SCALARS.values() if isinstance(f.numpy, np.ufunc)},
    np.maximum: "greatest",
    np.minimum: "least",
    np.sign: "sign",
}


def call(fn: str, *args: object) -> Traced:
    """Records a call of a scalar function.

    Args:
        fn: A name in `einsql.ir.functions.SCALARS`, such as "erf", "greatest" or "if".
        args: Traced values and numbers, at least one traced value.

    Raises:
        ProgrammingError: There is no such function, or the arguments do not fit.
    """
    if fn not in SCALARS:
        raise ProgrammingError(
            f"There is no scalar function {fn}", hint=suggest(fn, SCALARS, "functions")
        )
    traced = [a for a in args if isinstance(a, Traced)]
    if not traced:
        raise ProgrammingError(f"{fn} is called without a traced value")
    types = tuple(t.expr.dtype for t in traced if t.expr.dtype is not DType.BOOLEAN)
    partner = meet(types) if types else None
    exprs = [a.expr if isinstance(a, Traced) else _number(_plain(a), partner) for a in args]
    return Traced(apply(fn, exprs), traced[0].bounds)


def apply(fn: str, args: Sequence[Expr]) -> Expr:
    """Builds a function call with arguments cast to a common type; FLOAT stays FLOAT.

    Raises:
        ProgrammingError: The arguments do not fit the function.
    """
    types = tuple(a.dtype for a in args)
    fits = len(args) == SCALARS[fn].arity
    typing = SCALARS[fn].types(types, True) if fits else None
    if typing is None:
        raise ProgrammingError(f"{fn} does not accept ({', '.join(t.value for t in types)})")
    cast_args = tuple(cast(a, t) for a, t in zip(args, typing.args, strict=True))
    return Call(fn, cast_args, typing.result)


def trace(fn: Callable[..., object], args: Sequence[Expr], bounds: Bounds, what: str) -> Any:
    """Calls a function with traced arguments.

    Args:
        fn: A function of as many positional arguments as `args` has.
        args: The function's arguments.
        bounds: `[lo, hi)` of every label in `args`.
        what: The caller's name in errors.

    Returns:
        The function's return value, which contains Traced values.

    Raises:
        ProgrammingError: The function has other parameters, or an operation cannot be recorded.
    """
    values = [Traced(a, bounds) for a in args]
    try:
        inspect.signature(fn).bind(*values)
    except TypeError as error:
        raise ProgrammingError(
            f"{what} calls its function with {len(values)} arguments: {error}"
        ) from error
    try:
        return fn(*values)
    except TypeError as error:
        raise ProgrammingError(f"{what} cannot trace its function: {error}") from error


def recorded(value: object, what: str) -> Expr:
    """The expression that a traced function returned; a number becomes a constant.

    Raises:
        ProgrammingError: The value is neither traced nor a number.
    """
    if isinstance(value, Traced):
        return value.expr
    try:
        return _number(_plain(value), None)
    except TypeError as error:
        raise ProgrammingError(f"{what}: {error}") from error


def _plain(value: object) -> object:
    """Converts a NumPy scalar to a Python number."""
    return value.item() if isinstance(value, np.generic) else value


def _number(value: object, partner: DType | None) -> Const:
    """A number in its partner's type if that represents it, else in the number's type."""
    if isinstance(value, bool):
        return Const(value, DType.BOOLEAN)
    if not isinstance(value, int | float):
        raise TypeError(f"a {type(value).__name__} is not a number")
    if isinstance(value, float) or (partner is not None and partner.is_float):
        return _float(value, partner)
    own = (DType.INTEGER, DType.BIGINT)
    for dtype in (partner, *own) if partner is not None and partner.is_integer else own:
        if dtype.range[0] <= value <= dtype.range[1]:
            return Const(value, dtype)
    raise DataError(f"The integer {value} does not fit BIGINT")


def _float(value: float, partner: DType | None) -> Const:
    if partner is DType.FLOAT and (not math.isfinite(value) or abs(value) <= _GREATEST_FLOAT):
        return Const(float(np.float32(value)), partner)
    try:
        return Const(float(value), DType.DOUBLE)
    except OverflowError as error:
        raise DataError(f"The integer {value} does not fit DOUBLE") from error


_GREATEST_FLOAT = float(np.finfo(np.float32).max)


def _integers(a: object, b: object, sign: str) -> tuple[Traced, Traced, bool]:
    """Both operands in one integer type; True if a >= 0 and b > 0 always."""
    met = call("add", a, b)
    assert isinstance(met.expr, Call)
    left, right = met.expr.args
    if not left.dtype.is_integer:
        raise ProgrammingError(
            f"{sign} takes integers, not {left.dtype.value}",
            hint="Use np.floor(x / y) for floats.",
        )
    low, divisor = interval(left, met.bounds), interval(right, met.bounds)
    plain = low is not None and low[0] >= 0 and divisor is not None and divisor[0] > 0
    return Traced(left, met.bounds), Traced(right, met.bounds), plain


def _floor_divide(a: object, b: object) -> Traced:
    x, y, plain = _integers(a, b, "//")
    return call("idiv", x if plain else x - _floor_modulo(x, y), y)


def _floor_modulo(a: object, b: object) -> Traced:
    x, y, plain = _integers(a, b, "%")
    rest = call("mod", x, y)
    return rest if plain else call("mod", rest + y, y)
