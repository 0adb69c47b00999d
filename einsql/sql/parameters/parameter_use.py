"""The parameters of a statement: whose values its plan is for, and which it reads when it runs.

A parameter that only takes part in arithmetic and comparisons is read at run time, as a
scalar: an Input without keys. What must be known to plan (an extent, a divisor of keys, a
bound of range()) fixes its value: the plan is for that value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from einsql.core.schema import DType, Field, Schema
from einsql.errors import NotSupportedError
from einsql.ir.einsum.graph import (
    FALSE,
    TRUE,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Operand,
    Value,
    exprs,
    map_exprs,
    rewrite,
)
from einsql.sql.parameters.host_expr import (
    BUCKET,
    FIELD,
    Evaluate,
    NeedsValuesError,
    Values,
    computable,
    evaluator,
    number_of,
    parameter,
    parameters_of,
    shown,
    source,
)
from einsql.sql.parameters.runtime_inputs import Feed, Scalar, feeding
from einsql.sql.parameters.runtime_windows import View, Views
from einsql.sql.typing.casts import cast_expr
from einsql.sql.typing.typed_expr import NULL, Typed, integer


def bind_parameter(value: object) -> Typed:
    """Binds a Python value given for a parameter.

    Raises:
        NotSupportedError: The value is no number, boolean or None.
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
                hint="Tensors hold numbers from -2^63 to 2^63 - 1.",
            )
        return integer(value)
    if isinstance(value, float):
        return Typed(Const(value, DType.DOUBLE), DType.DOUBLE)
    raise NotSupportedError(
        f"A parameter of type {type(value).__name__} is outside the tensor fragment",
        hint="Tensors hold numbers and booleans.",
    )


def kind(value: object) -> object:
    """What of a parameter a plan always depends on: its type, of an integer also its width."""
    if type(value) is int:
        small = -(2**31) <= value < 2**31
        return "INTEGER" if small else "BIGINT" if -(2**63) <= value < 2**63 else "HUGEINT"
    return type(value)


@dataclass(frozen=True, slots=True)
class Use:
    """What a plan makes of parameters.

    Attributes:
        fixed: Numbers of those whose values it is for.
        keys: Expressions whose values it is for, as `host.source` spells them.
        tests: Conditions that must hold, likewise.
        scalars: What it reads at run time.
        views: Parts of other inputs that it reads.
    """

    fixed: tuple[int, ...] = ()
    keys: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    scalars: tuple[Scalar, ...] = ()
    views: tuple[View, ...] = ()
    _key: Evaluate = field(init=False, compare=False, repr=False)
    _feed: Feed = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_key", evaluator((*self.keys, *self.tests)))
        object.__setattr__(self, "_feed", feeding(self.scalars, self.views))

    def key(self, values: Values) -> object | None:
        """What the plan depends on besides types, or None if it does not hold for the values."""
        try:
            found = self._key(values)
        except (OverflowError, ZeroDivisionError):
            return None
        count = len(self.keys)
        if not all(found[count:]):
            return None
        if not self.fixed:
            return found[:count]
        # Spelled, for 0.0 and -0.0 are equal, and NaN is not equal to itself.
        return (*found[:count], *(repr(values[n - 1]) for n in self.fixed))

    def feed(self, values: Values, inputs: dict[str, Any]) -> None:
        """Adds what the plan reads of the parameters, and through them, to its inputs."""
        self._feed(values, inputs)


NOTHING = Use()
"""What a statement without parameters makes of them."""


@dataclass
class Given:
    """The parameters of one statement while it is bound.

    Attributes:
        values: What was given, in the order of their numbers.
        late: Whether any may be read at run time.
        fixed: Numbers of those whose values the plan is for.
        inputs: Fields of the scalars that have been made, for what runs while binding.
    """

    values: Sequence[object] = ()
    late: bool = False
    fixed: set[int] = field(default_factory=set)
    inputs: dict[str, Any] = field(default_factory=dict)
    read: bool = False
    """Whether any has been read as a value that is not known."""
    views: Views = field(init=False)
    """What is read within windows."""
    _scalars: dict[Expr, Input] = field(default_factory=dict)
    _texts: list[Scalar] = field(default_factory=list)
    _keys: dict[str, None] = field(default_factory=dict)
    _tests: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.views = Views(self)

    @property
    def early(self) -> Given:
        """The same parameters, none of which is read at run time."""
        return Given(self.values, False, self.fixed, self.inputs)

    def typed(self, number: int) -> Typed:
        """A parameter in an expression: a constant, or a value that is read at run time."""
        bound = bind_parameter(self.values[number - 1])
        late = self.late and number not in self.fixed
        dtype = bound.type
        if not late or not isinstance(dtype, DType) or dtype in (DType.BOOLEAN, DType.BFLOAT16):
            self.fixed.add(number)
            return bound
        self.read = True
        return Typed(parameter(number, dtype), dtype)

    def constants(self, e: Expr) -> Expr:
        """An expression with the values of its parameters, for which the plan is from now on."""
        numbers = parameters_of(e)
        if not numbers:
            return e
        self.fixed |= numbers

        def visit(x: Expr) -> Expr:
            number = number_of(x)
            if number is not None:
                return bind_parameter(self.values[number - 1]).value
            if isinstance(x, Call) and x.fn == "cast":
                return cast_expr(x.args[0], x.dtype)
            return x

        return rewrite(e, visit)

    def value(self, e: Expr) -> int:
        """The value of an integer expression of parameters alone.

        Raises:
            NeedsValuesError: It overflows or divides by zero.
        """
        return self._computed(source(e), parameters_of(e))

    def require(self, test: str, numbers: Iterable[int]) -> None:
        """Makes the plan one for values that meet a condition.

        Args:
            test: In Python, as `host.source` spells expressions.
            numbers: The parameters it reads.

        Raises:
            NeedsValuesError: These values do not meet it.
        """
        try:
            holds = evaluator([test])(self.values)[0]
        except (OverflowError, ZeroDivisionError):
            holds = False
        if not holds:
            raise NeedsValuesError(numbers)
        self._tests[test] = None

    def depend(self, text: str, numbers: set[int]) -> int:
        """Makes the plan one for the value of an expression, which it returns.

        Args:
            text: In Python, as `host.source` spells expressions.
            numbers: The parameters it reads.

        Raises:
            NeedsValuesError: With these values it has none.
        """
        found = self._computed(text, numbers)
        self._keys[text] = None
        return found

    def _computed(self, text: str, numbers: set[int]) -> int:
        try:
            (found,) = evaluator([text])(self.values)
        except (OverflowError, ZeroDivisionError):
            raise NeedsValuesError(numbers) from None
        return int(found)

    def tell(self, text: str) -> str:
        """The name of a BIGINT scalar that no expression reads.

        Args:
            text: Its value as `host.source` spells it.
        """
        told = Scalar(f"?{text}", text, DType.BIGINT)
        if told not in self._texts:
            self._texts.append(told)
            Use(scalars=(told,)).feed(self.values, self.inputs)
        return told.name

    def extent(self, text: str, most: int, numbers: set[int]) -> int:
        """The extent that a plan has where values leave a key so many of its own.

        Args:
            text: How many they leave, at least 1.
            most: How many there are.
            numbers: The parameters that `text` reads.
        """
        return most if most <= BUCKET else self.depend(f"bucket({text})", numbers)

    @property
    def use(self) -> Use:
        """What the statement makes of its parameters."""
        return Use(
            tuple(sorted(self.fixed)), tuple(self._keys), tuple(self._tests), tuple(self._texts),
            tuple(self.views.inputs),
        )  # fmt: skip

    # ---- scalars as operands

    def scalar(self, e: Expr) -> Input:
        """The input of a parameter, or of what the host computes of some."""
        if e not in self._scalars:
            name = shown(e)
            self._scalars[e] = Input(name, Schema((), (Field(FIELD, e.dtype),)))
            self._texts.append(Scalar(name, source(e), e.dtype))
            Use(scalars=(self._texts[-1],)).feed(self.values, self.inputs)
        return self._scalars[e]

    def lowered(self, node: EinSum) -> EinSum:
        """The node with scalars as operands where its expressions read parameters."""
        if not any(parameters_of(e) for e in exprs(node)):
            return node
        lowering = _Lowering(self, list(node.operands))
        made = map_exprs(node, lowering.expr)
        return replace(made, operands=tuple(lowering.operands))


@dataclass
class _Lowering:
    """Puts scalars into the expressions of a node, one for all that the host can compute."""

    given: Given
    operands: list[Operand]
    _numbers: dict[Expr, int] = field(default_factory=dict)

    def expr(self, e: Expr) -> Expr:
        """An expression over operands."""
        found, late = self._visit(e)
        return self._read(found) if late else found

    def _visit(self, e: Expr) -> tuple[Expr, bool]:
        """What an expression becomes, or itself and True if it is to be a scalar as a whole."""
        if number_of(e) is not None:
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
            return Call("cast", (self._read(e.args[0]),), e.dtype)  # its bounds stay known
        try:
            source = self.given.scalar(e)
        except (OverflowError, ZeroDivisionError):
            raise NeedsValuesError(parameters_of(e)) from None
        if e not in self._numbers:
            self._numbers[e] = len(self.operands)
            self.operands.append(Operand(source, ()))
        return Value(self._numbers[e], FIELD, e.dtype)


def _widens(e: Call) -> bool:
    before, after = e.args[0].dtype, e.dtype
    return before.is_integer and after.is_integer and after.range[1] >= before.range[1]
