"""Expressions of a kernel's text as LLVM code; see `translator.py`."""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.dispatcher import Dispatcher
from numba.extending import intrinsic

from einsql.core.records import dataclass

BINARY: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
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
_Intrinsic: Any = type(intrinsic(lambda _: None))


class Unsupported(Exception):  # noqa: N818 - no error: Numba compiles the text
    """A text is beyond the part of Python that this module translates."""


@dataclass(frozen=True, slots=True)
class Text:
    """A function in the text of a kernel, or of a module whose functions kernels call.

    Attributes:
        tree: The function's definition.
        names: Its global names.
    """

    tree: ast.FunctionDef
    names: Mapping[str, Any]


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

    @property
    def context(self) -> Any:
        """Numba's target context, which has the implementations of operations."""

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
        self.context, self.typing = module.context, module.context.typing_context
        self.builder = builder
        self.places: dict[str, Any] = {}

    def place(self, name: str) -> Any:
        """Where a variable is in memory."""
        if name not in self.places:
            kind = self.context.get_value_type(self.variables[name])
            self.places[name] = cgutils.alloca_once(self.builder, kind, name=name)  # type: ignore[no-untyped-call]  # Numba's own
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
            return Known(getattr(owner.value, node.attr))
        kind = self.typing.resolve_getattr(owner.type, node.attr)
        if kind is None:
            raise Unsupported(f"the attribute {node.attr}")
        if self.builder is None:
            return Typed(kind)
        read = self.context.get_getattr(owner.type, node.attr)
        return Typed(kind, read(self.context, self.builder, owner.type, owner.code, node.attr))

    def _of_tuple(self, node: ast.Tuple) -> Item:
        parts = [self.expr(e) for e in node.elts]
        if all(isinstance(p, Known) for p in parts):
            return Known(tuple(p.value for p in parts if isinstance(p, Known)))
        return self.tuple_of([self.typed(p) for p in parts])

    def tuple_of(self, parts: Sequence[Typed]) -> Typed:
        """A tuple of values."""
        kind = types.Tuple([p.type for p in parts])  # type: ignore[no-untyped-call]  # Numba's own
        if self.builder is None:
            return Typed(kind)
        return Typed(kind, self.context.make_tuple(self.builder, kind, [p.code for p in parts]))

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
        place = cgutils.alloca_once(builder, ir.IntType(1))  # type: ignore[no-untyped-call]  # Numba's own
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
        place = cgutils.alloca_once(builder, self.context.get_value_type(kind))  # type: ignore[no-untyped-call]  # Numba's own

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
        whole = self.typed(value)
        if not isinstance(whole.type, types.BaseTuple):
            return self.call(operator.getitem, [whole, index])
        if not isinstance(index, Known):
            raise Unsupported("a tuple's element of a computed number")
        kind = whole.type[index.value]
        if self.builder is None:
            return Typed(kind)
        return Typed(kind, self.builder.extract_value(whole.code, index.value))

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
        text = function if isinstance(function, Text) else None
        if isinstance(function, Dispatcher):
            text = text_of(function)
        if text is not None:
            return self.call_text(text, [self.typed(a) for a in args])
        kinds = tuple(self.literal(a, isinstance(function, _Intrinsic)) for a in args)
        callee, signature = _resolved(self.typing, function, kinds)
        if self.builder is None:
            return Typed(signature.return_type)
        given = [self.typed(a) for a in args]
        last = signature.args[-1] if signature.args else None
        if isinstance(last, types.StarArgTuple | types.StarArgUniTuple):
            count = len(signature.args) - 1
            starred = self.tuple_of(given[count:])
            given = [*given[:count], Typed(last, starred.code)]
        nothing = self.context.get_dummy_value()  # for a parameter with a default
        given += [Typed(t, nothing) for t in signature.args[len(given) :]]
        values = [self.cast(a, t) for a, t in zip(given, signature.args, strict=True)]
        implementation = self.context.get_function(callee, signature)
        code = implementation(self.builder, values)
        self.context.add_linking_libs(getattr(implementation, "libs", ()))
        return Typed(signature.return_type, code)

    def call_text(self, text: Text, args: Sequence[Typed]) -> Item:
        """The result of a function of the text."""
        kinds = tuple(a.type for a in args)
        if self.builder is None:
            return Typed(self.module.types_of(text, kinds)[0])
        return self.module.call(self.builder, text, args)

    def literal(self, item: Item, exact: bool) -> Any:
        """The type of an argument; of a known number for an intrinsic its literal type."""
        if exact and isinstance(item, Known) and type(item.value) in (int, bool):
            return types.literal(item.value)  # type: ignore[no-untyped-call]  # Numba's own
        return self.typed(item, code=False).type

    def typed(self, item: Item, code: bool = True) -> Typed:
        """A known known as one of the kernel."""
        if isinstance(item, Typed):
            return item
        known = item.value
        if isinstance(known, tuple):
            return self.tuple_of([self.typed(Known(v)) for v in known])
        kind = _TYPES.get(type(known))
        if kind is None:
            kind = self.typing.resolve_value_type(known)
            return Typed(kind, self.context.get_dummy_value())
        if self.builder is None or not code:
            return Typed(kind)
        return Typed(kind, self.context.get_constant(kind, known))

    def cast(self, value: Typed, kind: Any) -> Any:
        """The code of a value as another type."""
        if value.type == kind:
            return value.code
        return self.context.cast(self.builder, value.code, value.type, kind)

    def truth(self, item: Item) -> Any:
        """The code of a condition, one bit."""
        condition = self.typed(item)
        return self.context.is_true(self.builder, condition.type, condition.code)

    def united(self, a: Any, b: Any) -> Any:
        """The type of a variable that is assigned values of two types."""
        kind = a if a == b else self.typing.unify_types(a, b)
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


_signatures: dict[tuple[Any, tuple[Any, ...]], tuple[Any, Any]] = {}
"""Resolved functions by object and argument types; resolving takes most of Numba's time."""


def _resolved(typing: Any, function: Any, kinds: tuple[Any, ...]) -> tuple[Any, Any]:
    """Numba's key of an operation, and its signature for argument types."""
    key = function, kinds
    known = _signatures.get(key)
    if known is None:
        is_operator = getattr(function, "__module__", "") == "_operator"
        callee = function if is_operator else typing.resolve_value_type(function)
        signature = typing.resolve_function_type(callee, kinds, {})
        if signature is None:
            raise Unsupported(f"{function} of {kinds}")
        known = _signatures[key] = callee, signature
    return known


@lru_cache(maxsize=256)
def text_of(dispatcher: Any) -> Text:
    """The text of a compiled function of a module."""
    function = dispatcher.py_func
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    if not isinstance(tree, ast.FunctionDef):
        raise Unsupported("no function")
    inside = inspect.getclosurevars(function).nonlocals
    return Text(tree, {**function.__globals__, **inside})
