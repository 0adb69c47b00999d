"""The vocabulary of kernels' source: functions, and the functions that they call.

Kernels, and functions that they call, are Python text that `translator.py` compiles. An intrinsic
is a function that is LLVM code: a Python function writes that code.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from einsql.core.records import dataclass
from einsql.kernels.compiler import kernel_types as types

Generate = Callable[[Any, Any, types.Signature, Any], Any]
"""Writes the code of a call, for LLVM's builder, the signature and the arguments; its first
argument says how types are represented, see `Representation`."""


class Unsupported(Exception):  # noqa: N818 - the text is wrong, which the compiler reports
    """A text is beyond the part of Python that kernels are written in."""


class Representation:
    """The representation of values in LLVM code."""

    @staticmethod
    def get_value_type(kind: types.Type) -> Any:
        """The LLVM type of values of a type."""
        return kind.code

    @staticmethod
    def get_dummy_value() -> None:
        """The value of a function without a result."""
        return


REPRESENTATION = Representation()


@dataclass(frozen=True, slots=True, eq=False)
class Intrinsic:
    """A function that is LLVM code.

    Attributes:
        typed: Takes None and the types of arguments; returns the signature and the function that
            writes the code, or None if there is no such function.
        prefer_literal: Whether known integers have literal types.
    """

    typed: Callable[..., tuple[types.Signature, Generate] | None]
    prefer_literal: bool = False

    def resolved(
        self, kinds: tuple[types.Type, ...], literal: tuple[types.Type, ...]
    ) -> tuple[types.Signature, Generate]:
        """The signature and the code for argument types.

        Args:
            kinds: The types.
            literal: The same, with literal types of known integers.

        Raises:
            Unsupported: There is no function of such arguments.
        """
        attempts = (literal, kinds) if self.prefer_literal else (kinds, literal)
        for attempt in dict.fromkeys(attempts):
            resolved = self.typed(None, *attempt)
            if resolved is not None:
                return resolved
        raise Unsupported(f"{self.typed.__qualname__} of {', '.join(map(str, kinds))}")


def intrinsic(typed: Any = None, *, prefer_literal: bool = False) -> Any:
    """Makes an `Intrinsic` of a function; a decorator."""
    if typed is None:
        return lambda function: Intrinsic(function, prefer_literal)
    return Intrinsic(typed, prefer_literal)


@dataclass(frozen=True, slots=True, eq=False)
class Text:
    """A function of a kernel's text.

    Attributes:
        tree: The function's definition.
        names: Its global names.
        signature: The types of its result and arguments; None if each call has its own.
    """

    tree: ast.FunctionDef
    names: Mapping[str, Any]
    signature: types.Signature | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Later:
    """A function of a module that kernels call; its text is read when one does."""

    function: Callable[..., Any]

    def text(self) -> Text:
        """The function's text."""
        return _text_of(self.function)


@dataclass(frozen=True, slots=True, eq=False)
class Elsewhere:
    """A function of a module that is imported when a kernel calls it."""

    module: str
    name: str

    def text(self) -> Text:
        """The function's text."""
        return _text_of(getattr(import_module(self.module), self.name))


@dataclass(frozen=True, slots=True, eq=False)
class ByKind:
    """A function with one body for integers and one for floats."""

    on_integers: Later
    on_floats: Later

    def body(self, kind: types.Type) -> Later:
        """The body for the type of the first argument."""
        return self.on_integers if isinstance(kind, types.Integer) else self.on_floats


def njit(signature: Any = None, **_: Any) -> Any:
    """Marks a function of a kernel; a decorator, with or without the text of a signature."""
    return Later(signature) if callable(signature) else Later


def by_kind(on_integers: Callable[..., Any], on_floats: Callable[..., Any]) -> ByKind:
    """A function with one body for integers and one for floats."""
    return ByKind(Later(on_integers), Later(on_floats))


@lru_cache(maxsize=256)
def _text_of(function: Callable[..., Any]) -> Text:
    code = function.__code__
    for tree in _definitions(code.co_filename):
        first = tree.decorator_list[0].lineno if tree.decorator_list else tree.lineno
        if tree.name == code.co_name and first == code.co_firstlineno:
            inside = inspect.getclosurevars(function).nonlocals
            return Text(tree, {**function.__globals__, **inside})
    raise Unsupported(f"the text of {code.co_name} is not there")


@lru_cache(maxsize=32)
def _definitions(path: str) -> list[ast.FunctionDef]:
    """All functions that a module defines, also within others."""
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
