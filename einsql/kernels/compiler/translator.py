"""Translates the text of kernels to LLVM code.

Kernels are written in a small part of Python: numbers, pointers and arrays, assignments, `for` over
ranges, `while`, `if`, calls. Their types follow from the text in order. All functions of a text
become one LLVM module, which is optimised once. A text beyond this part of Python raises
`Unsupported`.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from llvmlite import ir

from einsql.core.records import dataclass
from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler.language import Text, Unsupported
from einsql.kernels.compiler.llvm_code import alloca_once
from einsql.kernels.compiler.translated_expressions import (
    BINARY,
    Expressions,
    Given,
    Item,
    Known,
    Load,
    Typed,
)

_PASSES = 6
"""Passes over a function's text until the types of its variables are stable; most take two."""


@dataclass(eq=False)
class Module:
    """The functions of a kernel, in one LLVM module.

    Attributes:
        llvm: The LLVM module.
        functions: The translated functions and result types, by text and argument types.
        types: The types of functions' results and variables, in the same way.
    """

    llvm: Any
    functions: dict[tuple[int, tuple[Any, ...]], tuple[Any, Any]] = field(default_factory=dict)
    types: dict[tuple[int, tuple[Any, ...]], tuple[Any, dict[str, Any]]] = field(
        default_factory=dict
    )

    def function(self, text: Text, arguments: tuple[Any, ...]) -> tuple[Any, Any]:
        """The LLVM function of a text for argument types, and its result type."""
        key = id(text.tree), arguments
        if key not in self.functions:
            returned, variables = self.types_of(text, arguments)
            self.functions[key] = self._emit(text, arguments, returned, variables), returned
        return self.functions[key]

    def types_of(self, text: Text, arguments: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
        """The types of a result and of the variables, for argument types."""
        key = id(text.tree), arguments
        if key not in self.types:
            self.types[key] = _infer(self, text, arguments)
        return self.types[key]

    def _emit(
        self, text: Text, arguments: tuple[Any, ...], returned: Any, variables: dict[str, Any]
    ) -> Any:
        kind = ir.FunctionType(returned.code, [a.code for a in arguments])
        function = ir.Function(self.llvm, kind, self.llvm.get_unique_name(f"text.{text.tree.name}"))
        function.linkage = "internal"
        function.attributes.add("nounwind")
        builder = ir.IRBuilder(function.append_basic_block())
        writer = _Writer(self, text, variables, builder, returned)
        for arg, t, value in zip(text.tree.args.args, arguments, function.args, strict=True):
            writer.assign(arg.arg, Typed(t, value))
        writer.body(text.tree.body)
        if not builder.block.is_terminated:
            if returned != types.void:
                raise Unsupported("a function does not return")
            builder.ret_void()
        return function

    def call(self, builder: Any, text: Text, args: Sequence[Typed]) -> Typed:
        """Emits a call of a text."""
        function, returned = self.function(text, tuple(a.type for a in args))
        return Typed(returned, builder.call(function, [a.code for a in args]))


def _infer(module: Module, text: Text, arguments: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    """The types of a function's result and variables."""
    variables: dict[str, Any] = {}
    for _ in range(_PASSES):
        before = dict(variables)
        reader = _Writer(module, text, variables, None, None)
        for arg, t in zip(text.tree.args.args, arguments, strict=True):
            reader.assign(arg.arg, Typed(t))
        reader.body(text.tree.body)
        if variables == before:
            return reader.result or types.void, variables
    raise Unsupported("types are not stable")


class _Writer(Expressions):
    """Goes through a function's statements: infers types, or emits code if there is a builder."""

    def __init__(
        self, module: Module, text: Text, variables: dict[str, Any], builder: Any, result: Any
    ) -> None:
        super().__init__(module, text, variables, builder)
        self.result = result
        self.loops: list[tuple[Any, Any]] = []
        """The blocks after a `continue` and after a `break` of the enclosing loops."""

    # Statements ----------------------------------------------------------------------

    def body(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            method = getattr(self, f"_do_{type(statement).__name__.lower()}", None)
            if method is None:
                raise Unsupported(type(statement).__name__)
            method(statement)
            if self.builder is not None and self.builder.block.is_terminated:
                return

    def _do_pass(self, _: ast.Pass) -> None:
        pass

    def _do_expr(self, statement: ast.Expr) -> None:
        if not isinstance(statement.value, ast.Constant):  # a docstring
            self.expr(statement.value)

    def _do_assign(self, statement: ast.Assign) -> None:
        assigned = self.expr(statement.value)
        for target in statement.targets:
            self.store(target, assigned)

    def _do_augassign(self, statement: ast.AugAssign) -> None:
        operation = BINARY[type(statement.op)]
        target = statement.target
        if isinstance(target, ast.Name):
            old = self.expr(ast.Name(target.id, ast.Load()))
            self.store(target, self.call(operation, [old, self.expr(statement.value)]))
            return
        if not isinstance(target, ast.Subscript):
            raise Unsupported("assignment to an attribute")
        array, index = self.expr(target.value), self.expr(target.slice)
        old = self.item(array, index)
        self.set_item(array, index, self.call(operation, [old, self.expr(statement.value)]))

    def store(self, target: ast.expr, value: Item) -> None:
        if isinstance(target, ast.Name):
            self.assign(target.id, self.typed(value))
        elif isinstance(target, ast.Subscript):
            self.set_item(self.expr(target.value), self.expr(target.slice), value)
        elif isinstance(target, ast.Tuple):
            count = len(target.elts)
            parts = [self.item(value, Known(n)) for n in range(count)]
            for part_target, part in zip(target.elts, parts, strict=True):
                self.store(part_target, part)
        else:
            raise Unsupported(type(target).__name__)

    def assign(self, name: str, value: Typed) -> None:
        """Sets a variable."""
        if self.builder is None:
            known = self.variables.get(name)
            kind = types.plain(value.type) if known is None else self.united(known, value.type)
            self.variables[name] = kind
            return
        self.builder.store(self.cast(value, self.variables[name]), self.place(name))

    def _do_return(self, statement: ast.Return) -> None:
        returned = None if statement.value is None else self.typed(self.expr(statement.value))
        if self.builder is None:
            kind = types.void if returned is None else types.plain(returned.type)
            self.result = kind if self.result is None else self.united(self.result, kind)
        elif returned is None:
            self.builder.ret_void()
        else:
            self.builder.ret(self.cast(returned, self.result))

    def _do_if(self, statement: ast.If) -> None:
        test = self.expr(statement.test)
        if isinstance(test, Known):
            self.body(statement.body if test.value else statement.orelse)
            return
        if self.builder is None:
            self.body(statement.body)
            self.body(statement.orelse)
            return
        self.branch(test, lambda: self.body(statement.body), lambda: self.body(statement.orelse))

    def _do_while(self, statement: ast.While) -> None:
        if statement.orelse:
            raise Unsupported("else of a loop")
        if self.builder is None:
            self.expr(statement.test)
            self.body(statement.body)
            return
        self.loop(lambda: self.truth(self.expr(statement.test)), statement.body, lambda: None)

    def loop(
        self, test: Callable[[], Any], body: Sequence[ast.stmt], step: Callable[[], None]
    ) -> None:
        builder = self.builder
        head, inside, after, end = (builder.append_basic_block() for _ in range(4))
        builder.branch(head)
        builder.position_at_end(head)
        builder.cbranch(test(), inside, end)
        builder.position_at_end(inside)
        self.loops.append((after, end))
        self.body(body)
        self.loops.pop()
        if not builder.block.is_terminated:
            builder.branch(after)
        builder.position_at_end(after)
        step()
        builder.branch(head)
        builder.position_at_end(end)

    def _do_break(self, _: ast.Break) -> None:
        if self.builder is not None:
            self.builder.branch(self.loops[-1][1])

    def _do_continue(self, _: ast.Continue) -> None:
        if self.builder is not None:
            self.builder.branch(self.loops[-1][0])

    def _do_for(self, statement: ast.For) -> None:
        target, iterated = statement.target, statement.iter
        if not isinstance(target, ast.Name) or statement.orelse:
            raise Unsupported("a loop over pairs")
        if not (
            isinstance(iterated, ast.Call)
            and isinstance(iterated.func, ast.Name)
            and iterated.func.id == "range"
        ):
            items = self.expr(iterated)
            if not isinstance(items, Typed) or not isinstance(items.type, types.Tuple):
                raise Unsupported("a loop over no range")
            for n in range(len(items.type.items)):
                self.assign(target.id, self.typed(self.item(items, Known(n))))
                self.body(statement.body)
            return
        arguments = [self.expr(a) for a in iterated.args]
        start, stop, step = (
            [Known(0), *arguments, Known(1)] if len(arguments) == 1 else [*arguments, Known(1)][:3]
        )
        self.range_loop(target.id, start, stop, step, statement.body)

    def range_loop(
        self, name: str, start: Item, stop: Item, step: Item, body: Sequence[ast.stmt]
    ) -> None:
        if self.builder is None:
            self.assign(name, Typed(types.int64))
            self.body(body)
            return
        builder, word = self.builder, ir.IntType(64)
        first, last, by = (self.cast(self.typed(x), types.int64) for x in (start, stop, step))
        counter = alloca_once(builder, word)
        builder.store(first, counter)

        def test() -> Any:
            now = builder.load(counter)
            below = builder.icmp_signed("<", now, last)
            if isinstance(step, Known):
                return below if step.value > 0 else builder.icmp_signed(">", now, last)
            rises = builder.icmp_signed(">", by, word(0))
            return builder.select(rises, below, builder.icmp_signed(">", now, last))

        def advance() -> None:
            flags = ("nsw",) if isinstance(step, Known) else ()
            builder.store(builder.add(builder.load(counter), by, flags=flags), counter)

        setting = ast.Assign([ast.Name(name, ast.Store())], Given(Load(counter)))
        self.loop(test, [setting, *body], advance)
