"""Functions that generated kernels call; they are compiled into the kernels.

The reducing operations alone carry LLVM's `reassoc` flag: a sum may be split over vector lanes
while the element-wise arithmetic around it stays bit-exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from llvmlite import ir

from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler.cpu_features import machine
from einsql.kernels.compiler.language import Elsewhere, Later, by_kind, intrinsic
from einsql.kernels.compiler.llvm_code import external
from einsql.kernels.compiler.memory import at as at
from einsql.kernels.compiler.operations import numbers as np
from einsql.kernels.runtime.vector_values import Num, prefetch_line

Build = Callable[[Any, Any, Any, Any], Any]
"""Emits LLVM code from a builder, the type of both arguments and the arguments."""


def _integer_of(kind: Any) -> Any:
    return types.int32 if kind == types.float32 else types.int64


def _folded(builder: Any, bits: Any) -> Any:
    """Turns the order of negative floats around; its own inverse."""
    width = bits.type.width
    sign = builder.ashr(bits, ir.Constant(bits.type, width - 1))
    return builder.xor(bits, builder.and_(sign, ir.Constant(bits.type, 2 ** (width - 1) - 1)))


@intrinsic
def order_back(_: Any, a: Any) -> Any:
    """The float of an integer that compares as it does, NaN above everything."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(
            _folded(builder, args[0]), context.get_value_type(signature.return_type)
        )

    return (types.float32 if a == types.int32 else types.float64)(a), generate


def _binary(build: Build, result: Any = None) -> Any:
    """A function of two arguments of one type, from its LLVM code."""

    def typed(_: Any, a: Any, b: Any) -> Any:
        if a != b:
            return None

        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return build(builder, a, *args)

        return (result or a)(a, b), generate

    return intrinsic(typed)


def _below(builder: Any, kind: Any, a: Any, b: Any) -> Any:
    if isinstance(kind, types.Float):
        number = builder.fcmp_ordered("ord", a, a)
        nan = builder.fcmp_unordered("uno", b, b)
        return builder.or_(builder.fcmp_ordered("<", a, b), builder.and_(number, nan))
    if isinstance(kind, types.Boolean):
        return builder.icmp_unsigned("<", a, b)
    return builder.icmp_signed("<", a, b)


def _same(builder: Any, kind: Any, a: Any, b: Any) -> Any:
    if isinstance(kind, types.Float):
        nans = builder.and_(
            builder.fcmp_unordered("uno", a, a), builder.fcmp_unordered("uno", b, b)
        )
        return builder.or_(builder.fcmp_ordered("==", a, b), nans)
    return builder.icmp_signed("==", a, b)


def _plus(builder: Any, kind: Any, a: Any, b: Any) -> Any:
    if isinstance(kind, types.Float):
        return builder.fadd(a, b, flags=("reassoc",))
    return builder.add(a, b)


def _times(builder: Any, kind: Any, a: Any, b: Any) -> Any:
    if isinstance(kind, types.Float):
        return builder.fmul(a, b, flags=("reassoc",))
    return builder.mul(a, b)


def _smaller(builder: Any, kind: Any, a: Any, b: Any) -> Any:
    # A running NaN gives way to anything; that is `less(b, a)` with one comparison fewer.
    if isinstance(kind, types.Float):
        nan = builder.fcmp_unordered("uno", a, a)
        return builder.select(builder.or_(builder.fcmp_ordered("<", b, a), nan), b, a)
    return builder.select(_below(builder, kind, b, a), b, a)


def _larger(builder: Any, kind: Any, a: Any, b: Any) -> Any:
    if isinstance(kind, types.Float):
        nan = builder.fcmp_unordered("uno", b, b)
        return builder.select(builder.or_(builder.fcmp_ordered("<", a, b), nan), b, a)
    return builder.select(_below(builder, kind, a, b), b, a)


def _of_floats(name: str, builder: Any, a: Any, b: Any, flags: tuple[str, ...]) -> Any:
    function = ir.FunctionType(a.type, [a.type] * 2)
    declared = builder.module.declare_intrinsic(name, [a.type], function)
    return builder.call(declared, [a, b], fastmath=flags)


less = _binary(_below, types.boolean)
"""a < b with NaN above everything, without a branch."""
eq = _binary(_same, types.boolean)
"""a = b with NaN equal to NaN."""
plus = _binary(_plus)
"""A running sum and a new term; integers wrap."""
times = _binary(_times)
"""A running product and a new factor; integers wrap."""
minimum = _binary(_smaller)
"""A running minimum and a new value."""
maximum = _binary(_larger)
"""A running maximum and a new value."""


@intrinsic
def rounded_off(_: Any, old: Any, term: Any, total: Any) -> Any:
    """The rounding error of a sum of two numbers, of which neither need be the larger one."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, b, y = args
        added = builder.fsub(y, a)
        return builder.fadd(builder.fsub(a, builder.fsub(y, added)), builder.fsub(b, added))

    return types.float64(types.float64, types.float64, types.float64), generate


highest = _binary(lambda builder, _, a, b: _of_floats("llvm.maximum", builder, a, b, ("nsz",)))
"""As `maximum` of floats, in an order that may change: loops vectorise, and zeros are equal."""
lowest = _binary(lambda builder, _, a, b: _of_floats("llvm.minnum", builder, a, b, ("nnan", "nsz")))
"""As `minimum` of floats, so too; none of them may be NaN."""


@intrinsic
def number(_: Any, a: Any) -> Any:
    """A float, infinity in the place of NaN."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        infinity = ir.Constant(args[0].type, math.inf)
        return _of_floats("llvm.minnum", builder, args[0], infinity, ())

    return a(a), generate


@intrinsic
def nan_mask(_: Any, a: Any) -> Any:
    """An integer as wide as a float: -1 for NaN, else 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        nan = builder.fcmp_unordered("uno", args[0], args[0])
        return builder.sext(nan, context.get_value_type(signature.return_type))

    return _integer_of(a)(a), generate


def _overflows(operation: str) -> Any:
    def build(builder: Any, kind: Any, a: Any, b: Any) -> Any:
        return builder.extract_value(getattr(builder, operation)(a, b), 1)

    return _binary(build, types.boolean)


# Compiled code takes integer arithmetic not to overflow, so a test that looks at the
# wrapped result may be folded away; these look at the processor's own flag.
add_overflows = _overflows("sadd_with_overflow")
sub_overflows = _overflows("ssub_with_overflow")
mul_overflows = _overflows("smul_with_overflow")


def _idiv_int(a: Any, b: Any) -> Any:
    q = a // b
    return q + 1 if q < 0 and q * b != a else q


def _idiv_float(a: Any, b: Any) -> Any:
    return a / b


def _remainder_int(a: Any, b: Any) -> Any:
    if b == -1:  # the processor traps on the least integer here
        return 0 * a
    r = a % b
    return r - b if r != 0 and (a < 0) != (b < 0) else r


def _remainder_float(a: Any, b: Any) -> Any:
    if b == 1:  # fmod keeps a loop from using vectors; LLVM takes this test out of the loop
        return math.copysign(a - np.trunc(a), a)
    return np.fmod(a, b)


def _floored_remainder(a: Any, b: Any) -> Any:
    rest = np.fmod(a, b)
    if rest != 0 and (rest < 0) != (b < 0):
        rest += b
    return abs(rest) if rest == 0 else rest


def _itself(a: Any) -> Any:
    return a


def _truncate_float(a: Any) -> Any:
    return np.trunc(a)


def _round_away_float(a: Any) -> Any:
    truncated = np.trunc(a)
    if abs(a - truncated) >= 0.5:
        truncated += math.copysign(1.0, a)
    return math.copysign(truncated, a)


idiv = by_kind(_idiv_int, _idiv_float)
"""Division truncated towards zero; of floats, plain division."""
remainder = by_kind(_remainder_int, _remainder_float)
"""The remainder of `idiv`, with the dividend's sign."""


floored_remainder = Later(_floored_remainder)
"""The exact remainder of floats with the divisor's sign; a zero is +0.0."""


def _in_floats(build: Callable[[Num, Num], Num]) -> Any:
    """A function of two integers that 32 bits hold, from its code over them as doubles.

    Processors divide several floats at a time, but integers one by one. A quotient of such
    integers that is none itself is further from the next than it is rounded. By 0 anything may
    come out.
    """

    def generate(builder: Any, kind: Any, *args: Any) -> Any:
        word = ir.IntType(32)
        narrow = builder.trunc if kind.bitwidth > 32 else builder.sext
        a, b = (x if x.type == word else narrow(x, word) for x in args)
        doubles = (Num(builder, builder.sitofp(x, ir.DoubleType())) for x in (a, b))
        integer = builder.fptosi(build(*doubles).value, word)
        back = builder.sext if kind.bitwidth > 32 else builder.trunc
        return integer if args[0].type == word else back(integer, args[0].type)

    return _binary(generate)


def _rest(a: Num, b: Num) -> Num:
    return a - (a / b).called("llvm.trunc") * b


idiv_32 = _in_floats(lambda a, b: a / b)
"""`idiv` of integers that 32 bits hold; not of the least by -1."""
remainder_32 = _in_floats(_rest)
"""`remainder` of integers that 32 bits hold."""
truncate = by_kind(_itself, _truncate_float)
"""Rounding towards zero."""
round_away = by_kind(_itself, _round_away_float)
"""Rounding to the nearest whole number, halves away from zero."""
ratio = Elsewhere("einsql.ir.functions.numeric", "ratio")
"""A quotient of integers of which the first has two parts, rounded once."""
_beyond: Any = Elsewhere("einsql.ir.functions.numeric", "beyond")


def _scaled_round(a: Any, scale: Any) -> Any:
    product = a * scale
    truncated = np.trunc(product)
    rest = abs(product - truncated)
    away = rest >= 0.5
    if rest == 0.5:
        below = _beyond(a, scale, product)
        away = not (below < 0 if product > 0 else below > 0)
    if away:
        truncated += math.copysign(1.0, product)
    return math.copysign(truncated, product)


scaled_round = Later(_scaled_round)
"""The integer nearest to an exact product, halves away from zero."""


@intrinsic
def lowest_bit(_: Any, word: Any) -> Any:
    """The number of the lowest bit that is set in a word, which is not 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), generate


@intrinsic
def borrow(_: Any, count: Any) -> Any:
    """The address of uninitialised bytes, which the kernel returns by `give_back`.

    Kernels do not allocate arrays.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(64)
        allocate = external(builder, "malloc", byte, [word], pure=False)
        return builder.ptrtoint(builder.call(allocate, args), word)

    return types.int64(types.int64), generate


@intrinsic
def give_back(_: Any, address: Any) -> Any:
    """Frees bytes of `borrow`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        byte = ir.IntType(8).as_pointer()
        free = external(builder, "free", ir.VoidType(), [byte], pure=False)
        builder.call(free, [builder.inttoptr(args[0], byte)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def prefetch(_: Any, address: Any) -> Any:
    """Brings a line of memory that is soon read nearer; the address may be any."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        prefetch_line(builder, args[0], 3)
        return context.get_dummy_value()

    return types.void(address), generate


@intrinsic
def real(_: Any, bits: Any) -> Any:
    """The DOUBLE of these bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(bits), generate


@intrinsic
def quotient(_: Any, a: Any, by: Any, inverse: Any) -> Any:
    """The DOUBLE a / by, rounded as the division is; `inverse` is 1 / by.

    A number whose magnitude is 0, infinite or from 2^-149 to 2^128, by one that is 0, infinite
    or from 2^-800 to 2^800. Several multiplications are faster than a division.

    The first correction leaves the quotient next to the exact one, and from there the second
    rounds correctly (Markstein 1990), for `inverse` is rounded correctly itself and nothing
    overflows or loses digits.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        a, by, inverse = (Num(builder, x) for x in args)
        if not machine().fma:
            return (a / by).value
        first = near = a * inverse
        for _ in range(2):
            rest = (-near).called("llvm.fma", by, a)
            near = rest.called("llvm.fma", inverse, near)
        # A rest of 0 or infinity is NaN, or has lost the sign.
        return near.choose("==", near, near, first).with_sign_of(first).value

    return types.float64(types.float64, types.float64, types.float64), generate


@intrinsic
def round_half(_: Any, a: Any) -> Any:
    """A DOUBLE rounded to HALF's precision, carried as FLOAT."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x = Num(builder, args[0])
        # HALF keeps 11 significant bits down to 2^-14, and a step of 2^-24 below.
        bits = x.bits()
        kept = ((bits + (2**41 - 1) + ((bits >> 42) & 1)) & -(2**42)).from_bits()
        kept = abs(x).choose("<", 2.0**-14, x + 1.5 * 2.0**28 - 1.5 * 2.0**28, kept)
        kept = abs(x).choose(">=", 65520.0, math.inf, kept).with_sign_of(x)
        return builder.fptrunc(abs(x).choose("<", math.inf, kept, x).value, ir.FloatType())

    return types.float32(types.float64), generate


@intrinsic
def to_half(_: Any, a: Any) -> Any:
    """The bits of the HALF nearest to a FLOAT."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x = Num(builder, args[0])
        a, bits = abs(x), abs(x).bits()
        normal = (bits + (2**12 - 1 - (112 << 23)) + ((bits >> 13) & 1)) >> 13
        tiny = (a + 0.5).bits() - a.literal(0.5).bits()  # floats from 0.5 on are 2^-24 apart
        half = a.choose("<", 2.0**-14, tiny, normal)
        half = a.choose(">=", 65520.0, 0x7C00, half)
        half = a.choose("<=", math.inf, half, half.literal(0x7E00))
        sign = (x.bits() >> 16) & 0x8000
        return builder.trunc((half + sign).value, ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def half(_: Any, a: Any) -> Any:
    """The FLOAT of a HALF's bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = Num(builder, builder.zext(args[0], ir.IntType(32)))
        small = ((bits & 0x7FFF) << 13).from_bits()  # 2^112 times too small
        number = small * 2.0**112
        special = (small.bits() + (224 << 23)).from_bits()  # infinity or NaN
        number = small.choose("<", 2.0**-96, number, special)
        return number.with_sign_of((bits << 16).from_bits()).value

    return types.float32(types.uint16), generate


@intrinsic
def round_bfloat(_: Any, a: Any) -> Any:
    """A DOUBLE rounded to BFLOAT16's precision, carried as FLOAT."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x = Num(builder, args[0])
        # BFLOAT16 keeps 8 significant bits down to 2^-126, and a step of 2^-133 below.
        bits = x.bits()
        kept = ((bits + (2**44 - 1) + ((bits >> 45) & 1)) & -(2**45)).from_bits()
        step = 1.5 * 2.0**-81
        kept = abs(x).choose("<", 2.0**-126, x + step - step, kept)
        kept = abs(x).choose(">=", 2.0**128 - 2.0**119, math.inf, kept).with_sign_of(x)
        return builder.fptrunc(abs(x).choose("<", math.inf, kept, x).value, ir.FloatType())

    return types.float32(types.float64), generate


@intrinsic
def to_bfloat(_: Any, a: Any) -> Any:
    """The bits of the BFLOAT16 nearest to a FLOAT."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        x = Num(builder, args[0])
        bits = x.bits()
        near = (bits + (2**15 - 1) + ((bits >> 16) & 1)) >> 16
        # A NaN stays one: its upper half becomes that of the quiet NaN of its sign.
        near = abs(x).choose("<=", math.inf, near, ((bits >> 16) & 0x8000) + 0x7FC0)
        return builder.trunc(near.value, ir.IntType(16))

    return types.uint16(types.float32), generate


@intrinsic
def bfloat(_: Any, a: Any) -> Any:
    """The FLOAT of a BFLOAT16's bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bits = Num(builder, builder.zext(args[0], ir.IntType(32)))
        return (bits << 16).from_bits().value

    return types.float32(types.uint16), generate
