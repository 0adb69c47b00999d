"""Operations on vectors as LLVM code, for register tiles to be made of.

A vector is as long as a row of a tile; LLVM cuts it into registers of the processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from llvmlite import ir

from einsql.core.records import dataclass
from einsql.kernels.packed.functions import SIZES
from einsql.kernels.runtime.vector_math import CODE
from einsql.kernels.runtime.vector_values import Num, declared, pointer, spread

TYPES: dict[str, Any] = {
    "f32": ir.FloatType(),
    "f64": ir.DoubleType(),
    "i8": ir.IntType(8),
    "i32": ir.IntType(32),
    "i64": ir.IntType(64),
}
BIT = ir.IntType(1)


@dataclass
class Registers:
    """Emits operations on vectors of equal length.

    Sums and differences of floats may be written as x·1 + y, which is the same value: many
    processors add, compare and multiply on different ports, and the less busy one is taken.

    Attributes:
        builder: LLVM's.
        lanes: Elements of every vector.
        tame: True if no NaN can occur, so that comparisons need not look for it.
        one: A 1 of each float type that LLVM does not know to be one; none without FMA.
        adding, multiplying: How many operations each kind of port has been given.
    """

    builder: Any
    lanes: int
    tame: bool
    one: Mapping[Any, Any] = field(default_factory=dict)
    adding: int = 0
    multiplying: int = 0

    def vector(self, element: Any) -> Any:
        """The vector type over an element type."""
        return ir.VectorType(element, self.lanes)

    def splat(self, value: Any) -> Any:
        """A vector that holds one value everywhere."""
        return spread(self.builder, value, self.vector(value.type))

    def literal(self, element: Any, value: Any) -> Any:
        """A vector of a known value."""
        return ir.Constant(self.vector(element), [ir.Constant(element, value)] * self.lanes)

    def load(self, address: Any, kind: str) -> Any:
        """A vector from memory."""
        place = pointer(self.builder, address, self.vector(TYPES[kind]))
        return self.builder.load(place, align=SIZES[kind])

    def store(self, value: Any, address: Any, kind: str) -> None:
        """A vector to memory."""
        self.builder.store(value, pointer(self.builder, address, value.type), align=SIZES[kind])

    def intrinsic(self, name: str, *args: Any) -> Any:
        """LLVM's function of that name over vectors of one type."""
        kind = args[0].type
        letter = "f" if is_float(args[0]) else "i"
        width = {"float": 32, "double": 64}.get(str(kind.element)) or kind.element.width
        full = f"llvm.{name}.v{self.lanes}{letter}{width}"
        return self.builder.call(declared(self.builder, full, kind, [kind] * len(args)), args)

    # Arithmetic --------------------------------------------------------------------

    def add(self, a: Any, b: Any) -> Any:
        """A + b."""
        if not is_float(a):
            return self.builder.add(a, b)
        if self.by_multiplying(a):
            return self.fma(a, self.one[a.type.element], b)
        self.adding += 1
        return self.builder.fadd(a, b)

    def sub(self, a: Any, b: Any) -> Any:
        """A - b."""
        if not is_float(a):
            return self.builder.sub(a, b)
        if self.by_multiplying(a):
            return self.fma(a, self.one[a.type.element], self.builder.fneg(b))
        self.adding += 1
        return self.builder.fsub(a, b)

    def by_multiplying(self, a: Any) -> bool:
        """True if a sum is better made by the ports that multiply."""
        return a.type.element in self.one and self.multiplying < self.adding

    def mul(self, a: Any, b: Any) -> Any:
        """A · b."""
        self.multiplying += 1
        return self.builder.fmul(a, b) if is_float(a) else self.builder.mul(a, b)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """A · b + c, rounded once."""
        self.multiplying += 1
        return self.intrinsic("fma", a, b, c)

    def div(self, a: Any, b: Any) -> Any:
        """A / b of floats."""
        self.multiplying += 8
        return self.builder.fdiv(a, b)

    def neg(self, a: Any) -> Any:
        """-a."""
        return self.builder.fneg(a) if is_float(a) else self.builder.neg(a)

    def abs(self, a: Any) -> Any:
        """|a|."""
        if is_float(a):
            return self.intrinsic("fabs", a)
        return self.choose(self.less(a, self.literal(a.type.element, 0)), self.neg(a), a)

    def rounded(self, name: str, a: Any) -> Any:
        """A function of LLVM's over floats; integers are whole."""
        return self.intrinsic(name, a) if is_float(a) else a

    def library(self, name: str, a: Any) -> Any:
        """A function of `kernels.maths`."""
        self.multiplying += 8
        return CODE[name](Num(self.builder, a)).value

    # Comparisons and logic: masks have one bit, BOOLEAN values from memory eight ------

    def less(self, a: Any, b: Any) -> Any:
        """A < b, NaN above everything."""
        self.adding += 1
        if not is_float(a):
            return self.builder.icmp_signed("<", *self._alike(a, b))
        below = self.builder.fcmp_ordered("<", a, b)
        if self.tame:
            return below
        number = self.builder.fcmp_ordered("ord", a, a)
        return self.builder.or_(below, self.builder.and_(number, self.is_nan(b)))

    def same(self, a: Any, b: Any) -> Any:
        """A = b, NaN equal to NaN."""
        self.adding += 1
        if not is_float(a):
            return self.builder.icmp_signed("==", *self._alike(a, b))
        equal = self.builder.fcmp_ordered("==", a, b)
        if self.tame:
            return equal
        return self.builder.or_(equal, self.builder.and_(self.is_nan(a), self.is_nan(b)))

    def is_nan(self, a: Any) -> Any:
        """True where a is NaN."""
        return self.builder.fcmp_unordered("uno", a, a)

    def choose(self, test: Any, a: Any, b: Any) -> Any:
        """A where the test holds, else b."""
        return self.builder.select(self.mask(test), *self._alike(a, b))

    def both(self, a: Any, b: Any) -> Any:
        """A AND b, of conditions or bit by bit."""
        return self.builder.and_(*self._alike(a, b))

    def either(self, a: Any, b: Any) -> Any:
        """A OR b, of conditions or bit by bit."""
        return self.builder.or_(*self._alike(a, b))

    def differing(self, a: Any, b: Any) -> Any:
        """A XOR b, of conditions or bit by bit."""
        return self.builder.xor(*self._alike(a, b))

    def inverse(self, a: Any) -> Any:
        """NOT of a condition."""
        return self.builder.xor(a, self.literal(a.type.element, 1))

    def mask(self, a: Any) -> Any:
        """A condition as a mask."""
        return a if a.type.element == BIT else self.builder.trunc(a, self.vector(BIT))

    def _alike(self, a: Any, b: Any) -> tuple[Any, Any]:
        """Two conditions in one form, as bytes where a mask is one already."""
        if a.type == b.type:
            return a, b
        return self.mask(a), self.mask(b)

    # Conversions -------------------------------------------------------------------

    def cast(self, a: Any, kind: str) -> Any:
        """A value in another type that holds it."""
        target = TYPES[kind]
        if a.type.element == target:
            return a
        goal = self.vector(target)
        boolean = a.type.element == BIT or a.type.element == TYPES["i8"]
        if is_float(a):
            wider = kind == "f64"
            return self.builder.fpext(a, goal) if wider else self.builder.fptrunc(a, goal)
        if kind in ("f32", "f64"):
            return self.builder.uitofp(a, goal) if boolean else self.builder.sitofp(a, goal)
        if boolean:
            return self.builder.zext(a, goal)
        wider = target.width > a.type.element.width
        return self.builder.sext(a, goal) if wider else self.builder.trunc(a, goal)

    def order(self, a: Any) -> Any:
        """Integers that compare as floats do, NaN above everything; see `runtime.order_back`."""
        double = a.type.element == TYPES["f64"]
        kind = self.vector(TYPES["i64" if double else "i32"])
        width = kind.element.width
        bits = self.builder.bitcast(a, kind)
        sign = self.builder.ashr(bits, self.literal(kind.element, width - 1))
        most = self.literal(kind.element, 2 ** (width - 1) - 1)
        return self.builder.select(
            self.is_nan(a), most, self.builder.xor(bits, self.builder.and_(sign, most))
        )


def is_float(a: Any) -> bool:
    """True for a vector of floats."""
    return isinstance(a.type.element, ir.FloatType | ir.DoubleType)
