"""Numbers of LLVM code under construction, with the operators of Python.

A function written over them is straight-line code without calls and branches: a loop
around it vectorises, and it compiles quickly.
"""

from __future__ import annotations

import struct
import sys
from typing import Any

from llvmlite import ir

from einsql.core.records import dataclass


def pointer(builder: Any, address: Any, kind: Any) -> Any:
    """An address as a pointer to values of a type."""
    return builder.inttoptr(address, kind.as_pointer())


def spread(builder: Any, scalar: Any, vector: Any) -> Any:
    """A vector of copies of a scalar."""
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.IntType(32)(0))
    places = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(first, undefined, places)


def declared(builder: Any, name: str, result: Any, arguments: list[Any]) -> Any:
    """A function of LLVM's own by its full name; llvmlite knows none over vectors."""
    kind = ir.FunctionType(result, arguments)
    return builder.module.globals.get(name) or ir.Function(builder.module, kind, name)


def prefetch_line(builder: Any, address: Any, level: int) -> None:
    """Brings a line of memory nearer; the address may be any.

    Args:
        builder: Appends to the code.
        address: An address in the line.
        level: 3 for the first cache, 2 for the second.
    """
    word = ir.IntType(32)
    place = pointer(builder, address, ir.IntType(8))
    kind = ir.FunctionType(ir.VoidType(), [place.type, word, word, word])
    function = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
    builder.call(function, [place, *(ir.Constant(word, n) for n in (0, level, 1))])


@dataclass(frozen=True, slots=True)
class Num:
    """A float or an integer; the other side of an operator may be a literal.

    Attributes:
        builder: Appends to the code.
        value: An LLVM value of type float, double, i32 or i64, or a vector of them.
    """

    builder: Any
    value: Any

    @property
    def is_double(self) -> bool:
        """True for a double and for the integer as wide."""
        return str(self._element) in ("double", "i64")

    @property
    def _element(self) -> Any:
        kind = self.value.type
        return kind.element if isinstance(kind, ir.VectorType) else kind

    def _like(self, element: Any) -> Any:
        """Another type with the same number of elements."""
        kind = self.value.type
        return ir.VectorType(element, kind.count) if isinstance(kind, ir.VectorType) else element

    def literal(self, number: float) -> Num:
        """A literal of the same type."""
        kind = self.value.type
        if isinstance(kind, ir.VectorType):
            one = ir.Constant(kind.element, number)
            return Num(self.builder, ir.Constant(kind, [one] * kind.count))
        return Num(self.builder, ir.Constant(kind, number))

    def held(self, number: float) -> Num:
        """A float literal that a loop keeps in a register, rather than read it every time.

        Where it comes from is hidden from LLVM, which would otherwise make it an operand in
        memory: those of a polynomial are more than a processor loads meanwhile.
        """
        kind = self.value.type
        if isinstance(kind, ir.VectorType):
            return self.literal(number)
        word = ir.IntType(64 if self.is_double else 32)
        pattern = struct.pack("d" if self.is_double else "f", number)
        bits = ir.Constant(word, int.from_bytes(pattern, sys.byteorder))
        name = f"held.{word}.{pattern.hex()}"
        for known in self.builder.function.entry_basic_block.instructions:
            if known.name == name:
                return Num(self.builder, known)
        with self.builder.goto_entry_block():
            hidden = self.builder.asm(ir.FunctionType(word, [word]), "", "=r,0", [bits], False)
            return Num(self.builder, self.builder.bitcast(hidden, kind, name))

    def __add__(self, other: Num | float) -> Num:
        return self._with("add", other)

    def __sub__(self, other: Num | float) -> Num:
        return self._with("sub", other)

    def __mul__(self, other: Num | float) -> Num:
        return self._with("mul", other)

    def __truediv__(self, other: Num | float) -> Num:
        return self._with("div", other)

    def __and__(self, other: Num | float) -> Num:
        return Num(self.builder, self.builder.and_(self.value, self.as_operand(other)))

    def __xor__(self, other: Num | float) -> Num:
        return Num(self.builder, self.builder.xor(self.value, self.as_operand(other)))

    def __lshift__(self, places: int) -> Num:
        return Num(self.builder, self.builder.shl(self.value, self.as_operand(places)))

    def __rshift__(self, places: int) -> Num:
        """Division by a power of two, rounded down."""
        return Num(self.builder, self.builder.ashr(self.value, self.as_operand(places)))

    def __neg__(self) -> Num:
        return Num(self.builder, self.builder.fneg(self.value))

    def __abs__(self) -> Num:
        return self.called("llvm.fabs")

    def times_plus(self, factor: Num | float, term: Num | float) -> Num:
        """This · factor + term, rounded once where the processor can."""
        return self.called("llvm.fmuladd", factor, term)

    def with_sign_of(self, other: Num) -> Num:
        """The magnitude of this under the sign of another."""
        return self.called("llvm.copysign", other)

    def rounded(self) -> Num:
        """The nearest whole number, the even one of two."""
        return self.called("llvm.rint")

    def bits(self) -> Num:
        """The integer that a float's bits make."""
        kind = ir.IntType(64 if self.is_double else 32)
        return Num(self.builder, self.builder.bitcast(self.value, self._like(kind)))

    def from_bits(self) -> Num:
        """The float of these bits."""
        kind = ir.DoubleType() if self.is_double else ir.FloatType()
        return Num(self.builder, self.builder.bitcast(self.value, self._like(kind)))

    def to_float(self) -> Num:
        """An integer as a float of its width."""
        kind = ir.DoubleType() if self.is_double else ir.FloatType()
        return Num(self.builder, self.builder.sitofp(self.value, self._like(kind)))

    def widened(self) -> Num:
        """A float as a double."""
        return Num(self.builder, self.builder.fpext(self.value, self._like(ir.DoubleType())))

    def narrowed(self) -> Num:
        """A double rounded to a float."""
        return Num(self.builder, self.builder.fptrunc(self.value, self._like(ir.FloatType())))

    def looked_up(self, name: str, table: tuple[float, ...]) -> Num:
        """The element of a table of doubles, named for good, at this integer, no vector."""
        module, kind = self.builder.module, ir.ArrayType(ir.DoubleType(), len(table))
        constant = module.globals.get(name)
        if constant is None:
            constant = ir.GlobalVariable(module, kind, name)
            constant.linkage, constant.global_constant = "internal", True
            constant.initializer = ir.Constant(kind, table)
        start = ir.Constant(ir.IntType(32), 0)
        place = self.builder.gep(constant, [start, self.value], inbounds=True)
        return Num(self.builder, self.builder.load(place))

    def either(self, then: Num, other: Num) -> Num:
        """`then` where this integer is not 0."""
        test = self.builder.icmp_signed("!=", self.value, self.as_operand(0))
        return Num(self.builder, self.builder.select(test, then.value, other.value))

    def where(self, comparison: str, limit: Num | float, then: Num | float) -> Num:
        """`then` where this float compares so with a limit, otherwise this; NaN stays."""
        return self.choose(comparison, limit, then, self)

    def choose(self, comparison: str, limit: Num | float, then: Num | float, other: Num) -> Num:
        """`then` where this float compares so with a limit, otherwise `other`; of any type."""
        test = self.builder.fcmp_ordered(comparison, self.value, self.as_operand(limit))
        chosen = other.as_operand(then)
        return Num(self.builder, self.builder.select(test, chosen, other.value))

    def polynomial(self, coefficients: tuple[float, ...]) -> Num:
        """Σ coefficients[n] · thisⁿ, by Horner's rule."""
        total = self.held(coefficients[-1])
        for c in reversed(coefficients[:-1]):
            total = total.times_plus(self, self.held(c))
        return total

    def _with(self, operation: str, other: Num | float) -> Num:
        prefix = "" if isinstance(self._element, ir.IntType) else "f"
        emit = getattr(self.builder, prefix + operation)
        return Num(self.builder, emit(self.value, self.as_operand(other)))

    def called(self, name: str, *others: Num | float) -> Num:
        """An LLVM intrinsic of this and other floats of its type."""
        args = [self.value, *map(self.as_operand, others)]
        kind = self.value.type
        count = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
        full = f"{name}.{count}{self._element.intrinsic_name}"
        callee = declared(self.builder, full, kind, [kind] * len(args))
        return Num(self.builder, self.builder.call(callee, args))

    def as_operand(self, other: Num | float) -> Any:
        """The LLVM value of a Num, or a constant of this type for a number."""
        return other.value if isinstance(other, Num) else self.literal(other).value
