"""The types of values in the text of kernels.

A type that is called with the types of arguments is a signature: `float64(float64, int64)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from llvmlite import ir

from einsql.core.records import dataclass

WORD = ir.IntType(64)
BIT = ir.IntType(1)


@dataclass(frozen=True, slots=True)
class Signature:
    """The types of a function's result and arguments."""

    return_type: Type
    args: tuple[Type, ...]


@dataclass(frozen=True)
class Type:
    """A type of values."""

    def __call__(self, *args: Type) -> Signature:
        """The signature of a function with this result."""
        return Signature(self, args)

    @property
    def code(self) -> Any:
        """The type of a value in LLVM code."""
        raise NotImplementedError

    @property
    def stored(self) -> Any:
        """The type of a value in memory."""
        return self.code


@dataclass(frozen=True)
class Integer(Type):
    """Integers."""

    bitwidth: int
    signed: bool = True

    @property
    def code(self) -> Any:
        """The type of a value in LLVM code."""
        return ir.IntType(self.bitwidth)

    def __str__(self) -> str:
        return f"{'' if self.signed else 'u'}int{self.bitwidth}"


@dataclass(frozen=True)
class IntegerLiteral(Integer):
    """An integer that is known while the kernel is translated."""

    literal_value: int = 0


@dataclass(frozen=True)
class Float(Type):
    """Floats."""

    bitwidth: int

    @property
    def code(self) -> Any:
        """The type of a value in LLVM code."""
        return ir.FloatType() if self.bitwidth == 32 else ir.DoubleType()

    def __str__(self) -> str:
        return f"float{self.bitwidth}"


@dataclass(frozen=True)
class Boolean(Type):
    """Conditions: one bit, and one byte in memory."""

    @property
    def code(self) -> Any:
        """The type of a value in LLVM code."""
        return BIT

    @property
    def stored(self) -> Any:
        """The type of a value in memory."""
        return ir.IntType(8)

    def __str__(self) -> str:
        return "bool"


@dataclass(frozen=True)
class BooleanLiteral(Boolean):
    """A condition that is known while the kernel is translated."""

    literal_value: bool = False


@dataclass(frozen=True)
class Nothing(Type):
    """The result of a function without one."""

    @property
    def code(self) -> Any:
        """The type of a value in LLVM code."""
        return ir.VoidType()


@dataclass(frozen=True)
class Kind(Type):
    """The type of a type, as an argument of a function that returns values of it."""

    dtype: Type


@dataclass(frozen=True)
class Pointer(Type):
    """The address of numbers, which are indexed without any check.

    Attributes:
        dtype: The type of the numbers.
        part: The part of memory that they are in: a number from 0 on, or None. Pointers to one
            part reach nothing in another part.
    """

    dtype: Type
    part: int | None = None

    @property
    def code(self) -> Any:
        """The type of a value in LLVM code."""
        return self.dtype.stored.as_pointer()


@dataclass(frozen=True)
class Array(Type):
    """An array in C order: a structure of its address and its extents.

    Attributes:
        dtype: The type of the elements.
        ndim: The number of axes.
    """

    dtype: Type
    ndim: int

    @property
    def code(self) -> Any:
        """The type of a value in LLVM code."""
        address = self.dtype.stored.as_pointer()
        return ir.LiteralStructType([address, *[WORD] * self.ndim])


@dataclass(frozen=True)
class Tuple(Type):
    """Several values."""

    items: tuple[Type, ...]

    @property
    def code(self) -> Any:
        """The type of a value in LLVM code."""
        return ir.LiteralStructType([item.code for item in self.items])


int8, int16, int32, int64 = (Integer(bits) for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (Integer(bits, signed=False) for bits in (8, 16, 32, 64))
float32, float64 = Float(32), Float(64)
boolean = Boolean()
void = Nothing()

_NAMED: dict[str, Type] = {
    **{str(kind): kind for kind in (int8, int16, int32, int64, uint8, uint16, uint32, uint64)},
    "float32": float32,
    "float64": float64,
    "bool": boolean,
    "boolean": boolean,
    "void": void,
}


def literal(value: int | bool) -> Type:
    """The type of a known integer or condition."""
    if isinstance(value, bool):
        return BooleanLiteral(value)
    return IntegerLiteral(64, True, value)


def is_word(kind: Type) -> bool:
    """True for int64, also if the value is known."""
    return isinstance(kind, Integer) and kind.signed and kind.bitwidth == 64


def plain(kind: Type) -> Type:
    """The type of a variable for values of a type, without properties of a single value."""
    if isinstance(kind, IntegerLiteral):
        return int64
    return boolean if isinstance(kind, BooleanLiteral) else kind


def united(a: Type, b: Type) -> Type | None:
    """The type that holds values of two types; None if there is none."""
    a, b = plain(a), plain(b)
    if a == b:
        return a
    if isinstance(a, Tuple) and isinstance(b, Tuple) and len(a.items) == len(b.items):
        items = [united(x, y) for x, y in zip(a.items, b.items, strict=True)]
        return Tuple(tuple(x for x in items if x)) if all(items) else None
    kinds = a, b
    if not all(isinstance(k, Integer | Float | Boolean) for k in kinds):
        return None
    integers = [k for k in kinds if isinstance(k, Integer)]
    if any(isinstance(k, Float) for k in kinds):
        floats = [k for k in kinds if isinstance(k, Float)]
        # A FLOAT does not hold all integers of 32 bits.
        narrow = all(k.bitwidth < 32 for k in integers)
        return max(floats, key=lambda k: k.bitwidth) if narrow else float64
    if len(integers) == 1:
        return integers[0]
    if integers[0].signed == integers[1].signed:
        return max(integers, key=lambda k: k.bitwidth)
    unsigned = next(k for k in integers if not k.signed)
    return int64 if unsigned.bitwidth < 64 else None


@lru_cache(maxsize=256)
def parsed(text: str) -> Signature:
    """Reads a signature: `void(int64, float64[:, ::1])`, or `Array(int64, 1, 'C', …)`."""
    returned, _, rest = text.partition("(")
    return _NAMED[returned](*map(_parameter, _split(rest.rstrip()[:-1])))


def _split(text: str) -> Sequence[str]:
    """The parts of a text between commas outside of brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def _parameter(text: str) -> Type:
    if text.startswith("Array("):
        dtype, axes, *_ = _split(text[len("Array(") : -1])
        return Array(_NAMED[dtype], int(axes))
    dtype, bracket, axes = text.partition("[")
    return Array(_NAMED[dtype], axes.count(":") - 1) if bracket else _NAMED[dtype]
