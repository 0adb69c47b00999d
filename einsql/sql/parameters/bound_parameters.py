"""The parameters of a statement during binding.

A parameter in arithmetic or a comparison is read at run time as a scalar, an Input without keys. A
parameter that determines the plan has a fixed value: the plan is for that value only. Examples are
an extent, a divisor of keys and a bound of range().
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import Any

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import NotSupportedError
from einsql.ir.einsum.graph import (
    FALSE,
    SCALAR,
    TRUE,
    Call,
    Const,
    EinSum,
    Expr,
    Operand,
    Param,
    ParameterInput,
    Value,
    exprs,
    rewrite,
)
from einsql.ir.einsum.graph_rewriting import map_exprs
from einsql.sql.parameters.host_expr import (
    BUCKET,
    NeedsValuesError,
    computable,
    evaluator,
    parameters_of,
    shown,
    source,
)
from einsql.sql.parameters.runtime_inputs import ParameterUse, Scalar, View
from einsql.sql.typing.casts import cast_expr
from einsql.sql.typing.typed_expr import NULL, Typed, integer


def bind_parameter(value: object) -> Typed:
    """Binds the Python value of a parameter.

    Raises:
        NotSupportedError: The value is not a number, a boolean or None.
    """
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        dtype = DType.of(value.dtype)  # type: ignore[attr-defined]  # a NumPy scalar
        if dtype is not None:
            return Typed(Const(value.item(), dtype), dtype)
    if value is None:
        return NULL
    if isinstance(value, bool):
        return Typed(TRUE if value else FALSE, DType.BOOLEAN)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise NotSupportedError(
                "A parameter beyond BIGINT is outside the tensor fragment",
                hint="Tensors contain numbers from -2^63 to 2^63 - 1.",
            )
        return integer(value)
    if isinstance(value, float):
        return Typed(Const(value, DType.DOUBLE), DType.DOUBLE)
    raise NotSupportedError(
        f"A parameter of type {type(value).__name__} is outside the tensor fragment",
        hint="Tensors contain numbers and booleans.",
    )


def kind(value: object) -> object:
    """The property of a value on which every plan depends: its type, and an integer's width."""
    if type(value) is int:
        small = -(2**31) <= value < 2**31
        return "INTEGER" if small else "BIGINT" if -(2**63) <= value < 2**63 else "HUGEINT"
    return type(value)


@dataclass
class BoundParameters:
    """The parameters of one statement during binding.

    Attributes:
        values: The values of the parameters, in the order of their numbers.
        late: Whether the plan may read parameters at run time.
        fixed: The numbers of the parameters whose values are fixed in the plan.
        inputs: The fields of the scalars created so far, for nodes that run during binding.
    """

    values: Sequence[object] = ()
    late: bool = False
    fixed: set[int] = field(default_factory=set)
    inputs: dict[str, Any] = field(default_factory=dict)
    read: bool = False
    """Whether an expression reads a parameter at run time."""
    views: list[View] = field(default_factory=list)
    """The parts of stored inputs that the plan reads."""
    _scalars: dict[Expr, ParameterInput] = field(default_factory=dict)
    _texts: list[Scalar] = field(default_factory=list)
    _keys: dict[str, None] = field(default_factory=dict)
    _tests: dict[str, None] = field(default_factory=dict)

    def typed(self, number: int) -> Typed:
        """A parameter in an expression: a constant, or a value read at run time."""
        bound = bind_parameter(self.values[number - 1])
        late = self.late and number not in self.fixed
        dtype = bound.type
        if not late or not isinstance(dtype, DType) or dtype in (DType.BOOLEAN, DType.BFLOAT16):
            self.fixed.add(number)
            return bound
        self.read = True
        return Typed(Param(number, dtype), dtype)

    def constants(self, e: Expr) -> Expr:
        """Replaces the parameters of an expression by their values, which become fixed."""
        numbers = parameters_of(e)
        if not numbers:
            return e
        self.fixed |= numbers

        def visit(x: Expr) -> Expr:
            if isinstance(x, Param):
                return bind_parameter(self.values[x.number - 1]).value
            if isinstance(x, Call) and x.fn == "cast":
                return cast_expr(x.args[0], x.dtype)
            return x

        return rewrite(e, visit)

    def require(self, test: str, numbers: Iterable[int]) -> None:
        """Restricts the plan to values that satisfy a condition.

        Args:
            test: The condition in Python, in the form of `host_expr.source`.
            numbers: The parameters it reads.

        Raises:
            NeedsValuesError: The current values do not satisfy it.
        """
        try:
            holds = evaluator([test])(self.values)[0]
        except (OverflowError, ZeroDivisionError):
            holds = False
        if not holds:
            raise NeedsValuesError(numbers)
        self._tests[test] = None

    def depend(self, text: str, numbers: set[int]) -> int:
        """Fixes the value of an expression in the plan, and returns the value.

        Args:
            text: The expression in Python, in the form of `host_expr.source`.
            numbers: The parameters it reads.

        Raises:
            NeedsValuesError: The expression has no value for the current parameters.
        """
        try:
            (number,) = evaluator([text])(self.values)
        except (OverflowError, ZeroDivisionError):
            raise NeedsValuesError(numbers) from None
        self._keys[text] = None
        return int(number)

    def scalar_name(self, text: str) -> str:
        """Adds a BIGINT scalar that no expression reads, and returns its name.

        Args:
            text: The scalar's value in Python, in the form of `host_expr.source`.
        """
        return self._add(Scalar(f"?{text}", text, DType.BIGINT))

    def _add(self, scalar: Scalar) -> str:
        if scalar not in self._texts:
            self._texts.append(scalar)
            ParameterUse(scalars=(scalar,)).feed(self.values, self.inputs)
        return scalar.name

    def extent(self, text: str, most: int, numbers: set[int]) -> int:
        """The extent in a plan of a key whose values parameters restrict.

        Args:
            text: The number of remaining values in Python, at least 1.
            most: The number of all values of the key.
            numbers: The numbers of the parameters that `text` reads.
        """
        return most if most <= BUCKET else self.depend(f"bucket({text})", numbers)

    @property
    def use(self) -> ParameterUse:
        """The dependence of the statement's plan on its parameters."""
        return ParameterUse(
            fixed=tuple(sorted(self.fixed)),
            keys=tuple(self._keys),
            tests=tuple(self._tests),
            scalars=tuple(self._texts),
            views=tuple(self.views),
        )

    # ---- scalars as operands

    def scalar(self, e: Expr) -> ParameterInput:
        """The scalar input for a parameter, or for an expression that the host computes."""
        if e not in self._scalars:
            name = self._add(Scalar(shown(e), source(e), e.dtype))
            self._scalars[e] = ParameterInput.of(name, e.dtype)
        return self._scalars[e]

    def lowered(self, node: EinSum) -> EinSum:
        """Replaces the parameters in a node's expressions by scalar operands."""
        if not any(parameters_of(e) for e in exprs(node)):
            return node
        lowering = _Lowering(self, list(node.operands))
        rewritten = map_exprs(node, lowering.expr)
        return replace(rewritten, operands=tuple(lowering.operands))


@dataclass
class _Lowering:
    """Replaces the largest expressions computable on the host by scalar operands."""

    parameters: BoundParameters
    operands: list[Operand]
    _numbers: dict[Expr, int] = field(default_factory=dict)

    def expr(self, e: Expr) -> Expr:
        """An expression over operands."""
        rewritten, late = self._visit(e)
        return self._read(rewritten) if late else rewritten

    def _visit(self, e: Expr) -> tuple[Expr, bool]:
        """The rewritten expression and False; or itself and True if it becomes one scalar."""
        if isinstance(e, Param):
            return e, True
        if not isinstance(e, Call):
            return e, False
        visited = [self._visit(a) for a in e.args]
        if any(late for _, late in visited) and computable(e):
            return e, True
        args = tuple(self._read(a) if late else a for a, late in visited)
        same = all(a is b for a, b in zip(args, e.args, strict=True))
        return (e if same else Call(e.fn, args, e.dtype)), False

    def _read(self, e: Expr) -> Expr:
        if isinstance(e, Call) and e.fn == "cast" and _widens(e):
            return Call("cast", (self._read(e.args[0]),), e.dtype)  # a cast preserves the bounds
        try:
            source = self.parameters.scalar(e)
        except (OverflowError, ZeroDivisionError):
            raise NeedsValuesError(parameters_of(e)) from None
        if e not in self._numbers:
            self._numbers[e] = len(self.operands)
            self.operands.append(Operand(source, ()))
        return Value(self._numbers[e], SCALAR, e.dtype)


def _widens(e: Call) -> bool:
    before, after = e.args[0].dtype, e.dtype
    return before.is_integer and after.is_integer and after.range[1] >= before.range[1]
