"""Expressions of a kernel's text as LLVM code; see `translator.py`."""

from __future__ import annotations

import ast
import builtins
import operator
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any, Protocol

from einsql.core.records import dataclass
from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler import memory
from einsql.kernels.compiler.language import (
    REPRESENTATION,
    ByKind,
    Elsewhere,
    Intrinsic,
    Later,
    Text,
    Unsupported,
)
from einsql.kernels.compiler.llvm_code import alloca_once
from einsql.kernels.compiler.operations import (
    FUNCTIONS,
    KINDS,
    cast,
    constant,
    numbers,
    struct,
    truth,
)

BINARY: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_UNARY: dict[type, Callable[..., Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A value of the kernel. There is no code while types are inferred."""

    type: Any
    code: Any = None


@dataclass(frozen=True, slots=True)
class Known:
    """A value that is known while the kernel is translated."""

    value: Any


Item = Typed | Known


class Functions(Protocol):
    """The functions of a kernel; see `translator.Module`."""

    def types_of(self, text: Text, arguments: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
        """The types of a function's result and of its variables, for argument types."""

    def call(self, builder: Any, text: Text, args: Sequence[Typed]) -> Typed:
        """Emits a call of a text."""


class Expressions:
    """Goes through expressions: infers types, or emits code if there is a builder.

    Args:
        module: The functions of the kernel.
        text: The function that contains the expressions.
        variables: The types of the function's variables; inference adds to them.
        builder: LLVM's builder; None while types are inferred.
    """

    def __init__(
        self, module: Functions, text: Text, variables: dict[str, Any], builder: Any
    ) -> None:
        self.module, self.text, self.variables = module, text, variables
        self.builder = builder
        self.places: dict[str, Any] = {}

    def place(self, name: str) -> Any:
        """Where a variable is in memory."""
        if name not in self.places:
            self.places[name] = alloca_once(self.builder, self.variables[name].code, name)
        return self.places[name]

    def branch(
        self, test: Item, then: Callable[[], object], otherwise: Callable[[], object]
    ) -> None:
        """Emits both sides of a condition, and continues after them."""
        builder = self.builder
        blocks = [builder.append_basic_block() for _ in range(3)]
        builder.cbranch(self.truth(test), blocks[0], blocks[1])
        for block, side in zip(blocks[:2], (then, otherwise), strict=True):
            builder.position_at_end(block)
            side()
            if not builder.block.is_terminated:
                builder.branch(blocks[2])
        builder.position_at_end(blocks[2])
        if not any(True for b in builder.function.blocks if _leads(b, blocks[2])):
            builder.unreachable()

    # Expressions ---------------------------------------------------------------------

    def expr(self, node: ast.expr) -> Item:
        """The value of an expression."""
        method = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        if method is None:
            raise Unsupported(type(node).__name__)
        emitted: Item = method(node)
        return emitted

    def _of_given(self, node: Given) -> Item:
        return Typed(types.int64, node.load.read(self.builder))

    def _of_constant(self, node: ast.Constant) -> Item:
        return Known(node.value)

    def _of_name(self, node: ast.Name) -> Item:
        name = node.id
        if name in self.variables:
            kind = self.variables[name]
            code = None if self.builder is None else self.builder.load(self.place(name))
            return Typed(kind, code)
        if name in self.text.names:
            return Known(self.text.names[name])
        if hasattr(builtins, name):
            return Known(getattr(builtins, name))
        raise Unsupported(f"the name {name}")

    def _of_attribute(self, node: ast.Attribute) -> Item:
        owner = self.expr(node.value)
        if isinstance(owner, Known):
            known = owner.value
            is_numpy = isinstance(known, ModuleType) and known.__name__ == "numpy"
            return Known(getattr(numbers if is_numpy else known, node.attr))
        kind = owner.type
        if isinstance(kind, types.Array):
            if node.attr == "shape":
                extents = memory.extents_of(self.builder, kind, owner.code)
                return self.tuple_of([Typed(types.int64, extent) for extent in extents])
            if node.attr == "ctypes":
                return owner  # of which `data` is the address
            if node.attr == "data":
                code = self.builder and memory.address_of(self.builder, owner.code)
                return Typed(types.int64, code)
        raise Unsupported(f"the attribute {node.attr}")

    def _of_tuple(self, node: ast.Tuple) -> Item:
        parts = [self.expr(e) for e in node.elts]
        if all(isinstance(p, Known) for p in parts):
            return Known(tuple(p.value for p in parts if isinstance(p, Known)))
        return self.tuple_of([self.typed(p) for p in parts])

    def tuple_of(self, parts: Sequence[Typed]) -> Typed:
        """A tuple of values."""
        kind = types.Tuple(tuple(p.type for p in parts))
        if self.builder is None:
            return Typed(kind)
        return Typed(kind, struct(self.builder, kind, [p.code for p in parts]))

    def _of_unaryop(self, node: ast.UnaryOp) -> Item:
        operand = self.expr(node.operand)
        if not isinstance(node.op, ast.Not):
            return self.call(_UNARY[type(node.op)], [operand])
        if isinstance(operand, Known):
            return Known(not operand.value)
        code = None if self.builder is None else self.builder.not_(self.truth(operand))
        return Typed(types.boolean, code)

    def _of_binop(self, node: ast.BinOp) -> Item:
        if type(node.op) not in BINARY:
            raise Unsupported(type(node.op).__name__)
        return self.call(BINARY[type(node.op)], [self.expr(node.left), self.expr(node.right)])

    def _of_compare(self, node: ast.Compare) -> Item:
        if len(node.ops) > 1 or type(node.ops[0]) not in BINARY:
            raise Unsupported("a chain of comparisons")
        sides = [self.expr(node.left), self.expr(node.comparators[0])]
        return self.call(BINARY[type(node.ops[0])], sides)

    def _of_boolop(self, node: ast.BoolOp) -> Item:
        first, *rest = node.values
        condition = self.expr(first)
        for more in rest:
            condition = self.either(isinstance(node.op, ast.And), condition, more)
        return condition

    def either(self, both: bool, value: Item, more: ast.expr) -> Item:
        """A condition, and another one if the first does not decide."""
        if isinstance(value, Known):
            return self.expr(more) if bool(value.value) == both else value
        if self.builder is None:
            self.expr(more)
            return Typed(types.boolean)
        builder = self.builder
        place = alloca_once(builder, types.BIT)
        test = self.truth(value)
        builder.store(test, place)

        def other() -> None:
            builder.store(self.truth(self.expr(more)), place)

        condition = Typed(types.boolean, test)
        self.branch(condition, *((other, _nothing) if both else (_nothing, other)))
        return Typed(types.boolean, builder.load(place))

    def _of_ifexp(self, node: ast.IfExp) -> Item:
        test = self.expr(node.test)
        if isinstance(test, Known):
            return self.expr(node.body if test.value else node.orelse)
        reader = Expressions(self.module, self.text, dict(self.variables), None)
        kinds = [reader.typed(reader.expr(e)).type for e in (node.body, node.orelse)]
        kind = self.united(*kinds)
        if self.builder is None:
            return Typed(kind)
        builder = self.builder
        place = alloca_once(builder, kind.code)

        def side(e: ast.expr) -> Callable[[], None]:
            return lambda: builder.store(self.cast(self.typed(self.expr(e)), kind), place)

        self.branch(test, side(node.body), side(node.orelse))
        return Typed(kind, builder.load(place))

    def _of_subscript(self, node: ast.Subscript) -> Item:
        return self.item(self.expr(node.value), self.expr(node.slice))

    def item(self, value: Item, index: Item) -> Item:
        """An element of an array, a pointer or a tuple."""
        if isinstance(value, Known) and isinstance(index, Known):
            return Known(value.value[index.value])
        owner = self.typed(value)
        if not isinstance(owner.type, types.Tuple):
            indices = self.indices(index)
            kind = memory.element(owner.type, [t for t, _ in indices])
            if self.builder is None:
                return Typed(kind)
            return Typed(kind, memory.read(self.builder, owner.type, owner.code, indices))
        if not isinstance(index, Known):
            raise Unsupported("a tuple's element of a computed number")
        kind = owner.type.items[index.value]
        if self.builder is None:
            return Typed(kind)
        return Typed(kind, self.builder.extract_value(owner.code, index.value))

    def set_item(self, value: Item, index: Item, number: Item) -> None:
        """Sets an element of an array or a pointer."""
        owner, source, indices = self.typed(value), self.typed(number), self.indices(index)
        if self.builder is None:
            memory.element(owner.type, [t for t, _ in indices])
            return
        memory.write(self.builder, owner.type, owner.code, indices, (source.type, source.code))

    def indices(self, index: Item) -> list[tuple[Any, Any]]:
        """The types and the code of the indices of an element."""
        typed = self.typed(index)
        if not isinstance(typed.type, types.Tuple):
            return [(typed.type, typed.code)]
        parts = [self.item(index, Known(n)) for n in range(len(typed.type.items))]
        return [(part.type, part.code) for part in map(self.typed, parts)]

    def _of_call(self, node: ast.Call) -> Item:
        function = self.expr(node.func)
        if not isinstance(function, Known) or node.keywords:
            raise Unsupported("a call of a method")
        return self.call(function.value, [self.expr(a) for a in node.args])

    # Operations ----------------------------------------------------------------------

    def call(self, function: Any, args: Sequence[Item]) -> Item:
        """A function's or an operator's result."""
        if all(isinstance(a, Known) for a in args) and getattr(function, "__module__", "") in (
            "_operator",
            "builtins",
        ):
            return Known(function(*(a.value for a in args if isinstance(a, Known))))
        if isinstance(function, ByKind):
            function = function.body(self.typed(args[0], code=False).type)
        if isinstance(function, FunctionType) and function not in FUNCTIONS:
            function = Later(function)
        if isinstance(function, Text | Later | Elsewhere):
            text = function if isinstance(function, Text) else function.text()
            return self.call_text(text, [self.typed(a) for a in args])
        if not isinstance(function, Intrinsic):
            function = FUNCTIONS.get(function)
        if function is None:
            raise Unsupported("a function that kernels do not have")
        kinds = tuple(self.typed(a, code=False).type for a in args)
        signature, generate = _resolved(function, kinds, tuple(map(_literal, args, kinds)))
        if self.builder is None:
            return Typed(signature.return_type)
        values = [self.cast(self.typed(a), t) for a, t in zip(args, signature.args, strict=True)]
        code = generate(REPRESENTATION, self.builder, signature, values)
        return Typed(signature.return_type, code)

    def call_text(self, text: Text, args: Sequence[Typed]) -> Item:
        """The result of a function of the text."""
        if self.builder is None:
            return Typed(self.module.types_of(text, tuple(a.type for a in args))[0])
        return self.module.call(self.builder, text, args)

    def typed(self, item: Item, code: bool = True) -> Typed:
        """A value; a known one becomes a constant of the kernel."""
        if isinstance(item, Typed):
            return item
        known = item.value
        if isinstance(known, tuple):
            return self.tuple_of([self.typed(Known(v)) for v in known])
        if isinstance(known, Intrinsic) and known in KINDS:
            return Typed(types.Kind(KINDS[known]))
        kind = _TYPES.get(type(known))
        if kind is None:
            raise Unsupported(f"a value of {type(known).__name__}")
        if self.builder is None or not code:
            return Typed(kind)
        return Typed(kind, constant(kind, known))

    def cast(self, value: Typed, kind: Any) -> Any:
        """The code of a value as another type."""
        return (
            value.code if value.type == kind else cast(self.builder, value.code, value.type, kind)
        )

    def truth(self, item: Item) -> Any:
        """The code of a condition, one bit."""
        condition = self.typed(item)
        return truth(self.builder, condition.code, condition.type)

    def united(self, a: Any, b: Any) -> Any:
        """The type of a variable that is assigned values of two types."""
        kind = types.united(a, b)
        if kind is None:
            raise Unsupported(f"a variable of {a} and {b}")
        return kind


_TYPES = {int: types.int64, float: types.float64, bool: types.boolean}


@dataclass(frozen=True, slots=True)
class Load:
    """The counter of a loop."""

    place: Any

    def read(self, builder: Any) -> Any:
        """Emits a load."""
        return builder.load(self.place)


class Given(ast.expr):
    """An expression whose value is in memory already."""

    def __init__(self, load: Load) -> None:
        self.load = load


def _nothing() -> None:
    pass


def _leads(block: Any, to: Any) -> bool:
    end = block.terminator
    return end is not None and to in getattr(end, "operands", ())


def _literal(item: Item, kind: types.Type) -> types.Type:
    """The type of an argument, with the value of a known integer."""
    known = isinstance(item, Known) and type(item.value) in (int, bool)
    return types.literal(item.value) if known and isinstance(item, Known) else kind


_signatures: dict[tuple[Any, ...], tuple[Any, Any]] = {}
"""Resolved functions by function and argument types."""


def _resolved(function: Intrinsic, kinds: tuple[Any, ...], literal: tuple[Any, ...]) -> Any:
    key = function, kinds, literal
    if key not in _signatures:
        _signatures[key] = function.resolved(kinds, literal)
    return _signatures[key]
