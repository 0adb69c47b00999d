"""The operators of kernels, conversions, and functions of `math` and NumPy, as LLVM code.

Results have the types that NumPy gives scalars, but integers become int64. Signed integers do not
overflow; `//` and `%` round down, and are 0 by 0.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llvmlite import ir

from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler.kernel_types import Type
from einsql.kernels.compiler.language import Intrinsic, Unsupported
from einsql.kernels.compiler.llvm_code import alloca_once, external

Emit = Callable[..., Any]
"""Writes code, from LLVM's builder, the type of all arguments and their values."""


# Conversions -------------------------------------------------------------------------


def cast(builder: Any, value: Any, source: Type, target: Type) -> Any:
    """The code of a value as another type.

    Raises:
        Unsupported: There is no conversion.
    """
    source, target = types.plain(source), types.plain(target)
    if source == target:
        return value
    if isinstance(target, types.Boolean):
        return truth(builder, value, source)
    to = target.code
    match source, target:
        case types.Boolean(), types.Integer():
            return builder.zext(value, to)
        case types.Boolean(), types.Float():
            return builder.uitofp(value, to)
        case types.Integer(), types.Float():
            return (builder.sitofp if source.signed else builder.uitofp)(value, to)
        case types.Float(), types.Integer():
            return (builder.fptosi if target.signed else builder.fptoui)(value, to)
        case types.Float(), types.Float():
            wider = target.bitwidth > source.bitwidth
            return (builder.fpext if wider else builder.fptrunc)(value, to)
        case types.Integer(), types.Integer():
            if target.bitwidth < source.bitwidth:
                return builder.trunc(value, to)
            if target.bitwidth > source.bitwidth:
                return (builder.sext if source.signed else builder.zext)(value, to)
            return value
        case types.Tuple(), types.Tuple() if len(source.items) == len(target.items):
            parts = [
                cast(builder, builder.extract_value(value, n), a, b)
                for n, (a, b) in enumerate(zip(source.items, target.items, strict=True))
            ]
            return struct(builder, target, parts)
    raise Unsupported(f"{source} as {target}")


def struct(builder: Any, kind: Type, parts: list[Any]) -> Any:
    """A structure of values."""
    value = ir.Constant(kind.code, ir.Undefined)
    for n, part in enumerate(parts):
        value = builder.insert_value(value, part, n)
    return value


def truth(builder: Any, value: Any, kind: Type) -> Any:
    """The code of a condition, one bit."""
    if isinstance(kind, types.Boolean):
        return value
    if isinstance(kind, types.Float):
        return builder.fcmp_unordered("!=", value, value.type(0.0))
    if isinstance(kind, types.Integer):
        return builder.icmp_unsigned("!=", value, value.type(0))
    raise Unsupported(f"{kind} as a condition")


def constant(kind: Type, value: float) -> Any:
    """The code of a known number."""
    return ir.Constant(kind.code, value)


def _conversion(target: Type) -> Intrinsic:
    def typed(_: Any, kind: Type) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return cast(builder, args[0], kind, target)

        return target(kind), generate

    return Intrinsic(typed)


# Operators ---------------------------------------------------------------------------


def _whole(*kinds: Type) -> Type:
    """The type of an operation on integers and conditions.

    Raises:
        Unsupported: Some are floats, or signed and unsigned ones meet.
    """
    integers = [k for k in map(types.plain, kinds) if isinstance(k, types.Integer)]
    if len(integers) + sum(isinstance(k, types.Boolean) for k in kinds) != len(kinds):
        raise Unsupported("an operation on integers")
    if not any(not k.signed for k in integers):
        return types.int64
    if all(not k.signed for k in integers):
        return types.uint64
    if any(not k.signed and k.bitwidth == 64 for k in integers):
        raise Unsupported("an operation on signed and unsigned integers")
    return types.int64


def _common(*kinds: Type) -> Type:
    """The type of an arithmetic operation on numbers."""
    if not any(isinstance(k, types.Float) for k in kinds):
        return _whole(*kinds)
    kind = types.plain(kinds[0])
    for other in kinds[1:]:
        both = types.united(kind, other)
        if both is None:
            raise Unsupported("an operation on numbers")
        kind = both
    return kind


def _operation(kind_of: Callable[..., Type], emit: Emit, result: Type | None = None) -> Intrinsic:
    """An operation whose arguments get one type."""

    def typed(_: Any, *kinds: Type) -> Any:
        kind = kind_of(*kinds)

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return emit(builder, kind, *args)

        return (result or kind)(*[kind] * len(kinds)), generate

    return Intrinsic(typed)


def _arithmetic(integer: str, floating: str) -> Intrinsic:
    def emit(builder: Any, kind: Any, a: Any, b: Any) -> Any:
        if isinstance(kind, types.Float):
            return getattr(builder, floating)(a, b)
        # Without overflow LLVM sees how indices grow.
        return getattr(builder, integer)(a, b, flags=("nsw",) if kind.signed else ())

    return _operation(_common, emit)


def _quotient(*kinds: Type) -> Type:
    kind = _common(*kinds)
    return kind if isinstance(kind, types.Float) else types.float64


def _floored(wants_rest: bool) -> Intrinsic:
    """Quotient or remainder of a division that rounds down; 0 by 0, and of the least by -1."""

    def emit(builder: Any, kind: Any, a: Any, b: Any) -> Any:
        if not kind.signed:
            raise Unsupported("a division of unsigned integers")
        zero, one = a.type(0), a.type(1)
        least = builder.icmp_signed("==", a, a.type(-(2 ** (kind.bitwidth - 1))))
        overflows = builder.and_(least, builder.icmp_signed("==", b, a.type(-1)))
        wrong = builder.or_(builder.icmp_signed("==", b, zero), overflows)
        place = alloca_once(builder, a.type)
        builder.store(zero, place)
        with builder.if_then(builder.not_(wrong), likely=True):
            rest = builder.srem(a, b)
            differ = builder.icmp_signed("<", builder.xor(b, rest), zero)
            below = builder.and_(builder.icmp_signed("!=", rest, zero), differ)
            if wants_rest:
                result = builder.select(below, builder.add(rest, b), rest)
            else:
                quotient = builder.sdiv(a, b)
                result = builder.select(below, builder.sub(quotient, one), quotient)
            builder.store(result, place)
        return builder.load(place)

    return _operation(_whole, emit)


def _shift(to_left: bool) -> Intrinsic:
    def emit(builder: Any, kind: Any, a: Any, b: Any) -> Any:
        if to_left:
            return builder.shl(a, b)
        return (builder.ashr if kind.signed else builder.lshr)(a, b)

    return _operation(_whole, emit)


def _bitwise(name: str) -> Intrinsic:
    def kind_of(*kinds: Type) -> Type:
        conditions = all(isinstance(k, types.Boolean) for k in kinds)
        return types.boolean if conditions else _whole(*kinds)

    return _operation(kind_of, lambda builder, _, a, b: getattr(builder, name)(a, b))


def compared(builder: Any, kind: Type, sign: str, a: Any, b: Any) -> Any:
    """The code of a comparison of values of one type."""
    if isinstance(kind, types.Float):
        return (builder.fcmp_unordered if sign == "!=" else builder.fcmp_ordered)(sign, a, b)
    signed = isinstance(kind, types.Integer) and kind.signed
    return (builder.icmp_signed if signed else builder.icmp_unsigned)(sign, a, b)


def _comparison(sign: str) -> Intrinsic:
    def kind_of(*kinds: Type) -> Type:
        conditions = all(isinstance(k, types.Boolean) for k in kinds)
        return types.boolean if conditions else _common(*kinds)

    def emit(builder: Any, kind: Type, a: Any, b: Any) -> Any:
        return compared(builder, kind, sign, a, b)

    return _operation(kind_of, emit, types.boolean)


def _negative(builder: Any, kind: Type, a: Any) -> Any:
    return builder.fneg(a) if isinstance(kind, types.Float) else builder.neg(a)


def _magnitude(builder: Any, kind: Type, a: Any) -> Any:
    if isinstance(kind, types.Float):
        return _called("llvm.fabs", builder, kind, a)
    return builder.select(builder.icmp_signed("<", a, a.type(0)), builder.neg(a), a)


def _extreme(sign: str) -> Intrinsic:
    """The first of some numbers that no other one is beyond."""

    def kind_of(*kinds: Type) -> Type:
        kind = types.plain(kinds[0])
        for other in kinds[1:]:
            both = types.united(kind, other)
            if both is None:
                raise Unsupported("the least or the greatest of such numbers")
            kind = both
        return kind

    def emit(builder: Any, kind: Type, *values: Any) -> Any:
        best = values[0]
        for value in values[1:]:
            best = builder.select(compared(builder, kind, sign, value, best), value, best)
        return best

    return _operation(kind_of, emit)


# Functions ---------------------------------------------------------------------------


def _real(*kinds: Type) -> Type:
    kind = _common(*kinds)
    return kind if isinstance(kind, types.Float) else types.float64


def _called(name: str, builder: Any, kind: Type, *args: Any) -> Any:
    suffix = f"f{kind.bitwidth}" if isinstance(kind, types.Float) else ""
    callee = external(builder, f"{name}.{suffix}", kind.code, [kind.code] * len(args), pure=False)
    return builder.call(callee, args)


def _llvm(name: str) -> Intrinsic:
    """A function of LLVM itself."""
    return _operation(_real, lambda builder, kind, *args: _called(name, builder, kind, *args))


def _library(name: str) -> Intrinsic:
    """A function of the C library, for float32 and float64."""

    def emit(builder: Any, kind: Any, *args: Any) -> Any:
        full = name + "f" * (kind.bitwidth == 32)
        callee = external(builder, full, kind.code, [kind.code] * len(args), pure=True)
        return builder.call(callee, args)

    return _operation(_real, emit)


def _factor(by: float) -> Intrinsic:
    return _operation(_real, lambda builder, kind, a: builder.fmul(a, constant(kind, by)))


def _is_finite(builder: Any, kind: Type, a: Any) -> Any:
    rest = builder.fsub(a, a)
    return builder.fcmp_ordered("ord", rest, rest)


def _is_infinite(builder: Any, kind: Type, a: Any) -> Any:
    return builder.fcmp_ordered("==", _magnitude(builder, kind, a), constant(kind, math.inf))


def _is_nan(builder: Any, kind: Type, a: Any) -> Any:
    return builder.fcmp_unordered("uno", a, a)


is_finite = _operation(_real, _is_finite, types.boolean)
_KINDS: dict[str, Type] = {
    **{str(k): k for k in (types.int8, types.int16, types.int32, types.int64)},
    **{str(k): k for k in (types.uint8, types.uint16, types.uint32, types.uint64)},
    "float32": types.float32,
    "float64": types.float64,
    "bool_": types.boolean,
    "intp": types.int64,
    "uintp": types.uint64,
}
"""NumPy's names of types."""
numbers = SimpleNamespace(
    **{name: _conversion(kind) for name, kind in _KINDS.items()},
    inf=math.inf,
    nan=math.nan,
    floor=_llvm("llvm.floor"),
    ceil=_llvm("llvm.ceil"),
    trunc=_llvm("llvm.trunc"),
    rint=_llvm("llvm.rint"),
    sqrt=_llvm("llvm.sqrt"),
    fmod=_operation(_real, lambda builder, _, a, b: builder.frem(a, b)),
    isfinite=is_finite,
    isnan=_operation(_real, _is_nan, types.boolean),
    cbrt=_library("cbrt"),
    arcsin=_library("asin"),
    arccos=_library("acos"),
    arccosh=_library("acosh"),
    arctanh=_library("atanh"),
)
"""The part of NumPy that kernels use, as `np`."""
KINDS: dict[Intrinsic, Type] = {getattr(numbers, name): kind for name, kind in _KINDS.items()}
"""The types of conversions, as arguments of functions that take a type."""

FUNCTIONS: dict[Any, Intrinsic] = {
    operator.add: _arithmetic("add", "fadd"),
    operator.sub: _arithmetic("sub", "fsub"),
    operator.mul: _arithmetic("mul", "fmul"),
    operator.truediv: _operation(_quotient, lambda builder, _, a, b: builder.fdiv(a, b)),
    operator.floordiv: _floored(wants_rest=False),
    operator.mod: _floored(wants_rest=True),
    operator.lshift: _shift(to_left=True),
    operator.rshift: _shift(to_left=False),
    operator.and_: _bitwise("and_"),
    operator.or_: _bitwise("or_"),
    operator.xor: _bitwise("xor"),
    operator.eq: _comparison("=="),
    operator.ne: _comparison("!="),
    operator.lt: _comparison("<"),
    operator.le: _comparison("<="),
    operator.gt: _comparison(">"),
    operator.ge: _comparison(">="),
    operator.neg: _operation(_common, _negative),
    operator.pos: _operation(_common, lambda builder, _, a: a),
    operator.invert: _operation(
        lambda kind: types.boolean if isinstance(kind, types.Boolean) else _whole(kind),
        lambda builder, _, a: builder.not_(a),
    ),
    builtins.abs: _operation(types.plain, _magnitude),
    builtins.min: _extreme("<"),
    builtins.max: _extreme(">"),
    builtins.int: numbers.int64,
    builtins.float: numbers.float64,
    builtins.bool: numbers.bool_,
    math.sqrt: numbers.sqrt,
    math.isfinite: is_finite,
    math.isinf: _operation(_real, _is_infinite, types.boolean),
    math.isnan: numbers.isnan,
    math.copysign: _llvm("llvm.copysign"),
    math.degrees: _factor(180 / math.pi),
    math.radians: _factor(math.pi / 180),
    **{
        getattr(math, name): _library(name)
        for name in ("tan", "atan", "atan2", "sinh", "cosh", "asinh", "lgamma")
    },
}
"""Operators, and functions of Python and `math`."""
