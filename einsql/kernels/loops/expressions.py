"""Expressions as the text of kernels, and the text that all loops share.

A kernel is a nest of loops. Every statement is placed at the outermost level where all of its
inputs are known. A failure sets a bit in `bad` instead of leaving the loop, so loops stay
vectorisable. The failed value is replaced by 0, because compiled integer arithmetic is
undefined on overflow and a division by zero stops the process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import Enum
from math import prod

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.ir.einsum.graph import (
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Value,
)
from einsql.ir.functions import SCALARS

CARRIERS: dict[DType, str] = {
    DType.BOOLEAN: "boolean",
    DType.TINYINT: "int8",
    DType.INTEGER: "int32",
    DType.BIGINT: "int64",
    DType.HALF: "float32",  # processors have no HALF arithmetic; results are rounded to HALF
    DType.BFLOAT16: "float32",  # as HALF
    DType.FLOAT: "float32",
    DType.DOUBLE: "float64",
}
"""The compiled type of a computed value of each type."""
STORED = {
    **CARRIERS,
    DType.BOOLEAN: "uint8",
    DType.HALF: "uint16",
    DType.BFLOAT16: "uint16",
}
"""The compiled type of a value in operands and results; HALF and BFLOAT16 are stored as bits."""
_STORE = {DType.HALF: "to_half({0})", DType.BFLOAT16: "to_bfloat({0})"}
ROUND = {DType.HALF: "round_half({0})", DType.BFLOAT16: "round_bfloat({0})"}
"""Source that rounds a DOUBLE to a type whose carrier is wider."""


NEAR = 2.0**22
"""Angle in radians below which argument reduction needs no table of digits of 2/π."""
MIDDLE = 2.0**-800, 2.0**800
"""Range of the absolute divisors for which `quotient` is exact."""
FAR = "a number is far from the usual"
"""The reason reported when a kernel for small angles and moderate divisors reads another value.
Its results are discarded."""


class Role(Enum):
    """The role of an integer argument: a bound of a label, or its stride in an array."""

    LO, HI, STRIDE, KEY = range(4)


@dataclass(frozen=True, slots=True)
class Argument:
    """An integer argument of generated source.

    Attributes:
        role: Its role.
        label: The label.
        array: The number of the array of a `Role.STRIDE`, otherwise -1.
    """

    role: Role
    label: str
    array: int = -1

    def of_node(self, node: EinSum) -> int:
        """The value of an argument other than a STRIDE, for a node whose result is in C order."""
        if self.role is Role.KEY:
            return prod(node.schema.shape[node.keys.index(self.label) + 1 :])
        axis = node.axis(self.label)
        return axis.lo if self.role is Role.LO else axis.hi


@dataclass(slots=True)
class Program:
    """Generated source and its arguments, in order.

    Attributes:
        arrays: The operand number and field of each array argument.
        params: The integer arguments.
        constants: The literals, each an argument of its own type.
        reasons: The reason of each bit of the error cell.
        has_gaps: Whether keys of the result may have no point.
    """

    source: str = ""
    params: list[Argument] = field(default_factory=list)
    constants: list[Const] = field(default_factory=list)
    arrays: list[tuple[int, str]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    has_gaps: bool = False


def first_error(reasons: Sequence[str], bits: int) -> DataError:
    """The error for the lowest bit that is set in the error cell."""
    return DataError(reasons[(bits & -bits).bit_length() - 1])


def typed(dtype: DType, text: str) -> str:
    """Source that converts a value to a type's carrier."""
    return text if dtype is DType.BOOLEAN else f"np.{CARRIERS[dtype]}({text})"


def literal(dtype: DType, value: float) -> str:
    """Source of a literal."""
    if dtype is DType.BOOLEAN:
        return str(bool(value))
    if value == DType.BIGINT.range[0]:
        return "(-9223372036854775807 - 1)"  # Python's parser has no negative literals
    text = str(value) if abs(value) < float("inf") else f"np.{value}".replace("np.-", "-np.")
    return typed(dtype, text)


def memory(dtype: DType) -> str:
    """The compiled type of a running value in memory."""
    return "uint8" if dtype is DType.BOOLEAN else CARRIERS[dtype]


def stored(dtype: DType, value: str) -> str:
    """Source that converts a computed value to the stored type of a result."""
    return _STORE.get(dtype, "{0}").format(value)


def cast_text(source: DType, target: DType, value: str) -> str:
    """Source that casts a value within the target's range."""
    if target is DType.BOOLEAN:
        return value if source is target else f"{value} != 0"
    if target in ROUND and source is not target:
        return ROUND[target].format(f"np.float64({value})")
    if source.is_float and target.is_integer:
        return typed(target, f"np.rint({value})")
    return typed(target, value)


class Builder:
    """Writes the statements that compute expressions, each value once.

    This is the only expression visitor that writes source text of kernels. Subclasses define
    where a statement is placed and how operands and labels are read.

    Attributes:
        known: The names of computed values by expression.
        lines: The statements.
    """

    def __init__(self) -> None:
        self.known: dict[Expr, str] = {}
        self.lines: list[str] = []
        self.temps = 0

    def value(self, e: Expr) -> str:
        """The name of an expression's value."""
        if isinstance(e, Const):
            return self.constant(e)
        if e not in self.known:
            self.known[e] = self.build(e)
        return self.known[e]

    def build(self, e: Expr) -> str:
        """Computes an expression; returns the name of its value."""
        if isinstance(e, Call):
            return self.call(e)
        if isinstance(e, Label):
            return self.temp(self.label(e))
        assert isinstance(e, Value)  # literals have no name
        return self.temp(self.load(e))

    def constant(self, e: Const) -> str:
        """Source of a literal."""
        return literal(e.dtype, e.value)

    def label(self, e: Label) -> str:
        """Source of a label's value."""
        raise NotImplementedError

    def load(self, e: Value) -> str:
        """Source that reads an operand."""
        raise NotImplementedError

    def call(self, e: Call) -> str:
        """Computes a function."""
        return self.temp(self.applied(e, [self.value(a) for a in e.args]))

    def applied(self, e: Call, args: Sequence[str]) -> str:
        """Source of a function over arguments whose result is in range."""
        if e.fn == "cast":
            return cast_text(e.args[0].dtype, e.dtype, args[0])
        return typed(e.dtype, self.spelled(e).format(*args))

    def spelled(self, e: Call) -> str:
        """The template of a function."""
        return SCALARS[e.fn].numba

    def emit(self, text: str) -> None:
        """Adds a statement."""
        self.lines.append(text)

    def temp(self, text: str) -> str:
        """Names the value of source text."""
        name = self.temp_name()
        self.emit(f"{name} = {text}")
        return name

    def temp_name(self) -> str:
        """Returns a new name."""
        self.temps += 1
        return f"t{self.temps - 1}"
