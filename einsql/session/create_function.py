"""`Connection.create_function`: Python functions as scalar functions of SQL."""

from __future__ import annotations

import inspect
import keyword
import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlglot import exp

from einsql.core.quoting import in_quotes
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import Error, InterfaceError, ProgrammingError
from einsql.hybrid.registered_functions import register
from einsql.ir.functions.python_functions import (
    Calling,
    FunctionName,
    Laws,
    PythonFunction,
    add_opaque,
    unique_name,
)
from einsql.session.function_operations import derivative_of, prepared
from einsql.sql.parser.create.parameter_lists import TYPE_NAMES
from einsql.sql.parser.parser import parse
from einsql.storage.duckdb.failures import translated
from einsql.storage.error_boundary import boundary
from einsql.storage.objects import Definition, macro_key

if TYPE_CHECKING:
    from einsql.planner.context import Context

_OF_PYTHON = {float: "DOUBLE", int: "BIGINT", bool: "BOOLEAN", str: "VARCHAR", bytes: "BLOB"}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `create_function`, by the names of its arguments."""

    type: Any = "native"
    null_handling: Any = "default"
    exception_handling: Any = "default"
    side_effects: bool = False
    trace: bool = True
    derivative: Any = None
    commutative: bool = False
    associative: bool = False
    identity: float | bool | None = None
    annihilator: float | bool | None = None
    monotone: str = ""

    @property
    def laws(self) -> Laws:
        """The declared laws, without the derivative."""
        return Laws(
            self.commutative, self.associative, self.identity, self.annihilator, self.monotone
        )


def create_function(
    ctx: Context,
    execute: Callable[[str], object],
    name: str,
    fn: Callable[..., Any],
    types: tuple[object, object],
    options: Options,
) -> None:
    """Creates a function; see `Connection.create_function`.

    Args:
        ctx: The session.
        execute: Runs a statement.
        name: The name.
        fn: The Python function.
        types: The types of the parameters and of the result; None to read annotations.
        options: The options.

    Raises:
        Error: A type, an option, the name or a law is wrong.
    """
    if not isinstance(name, str) or not callable(fn):
        raise InterfaceError("create_function takes a name and a Python function")
    if ctx.store.get(macro_key(name)) is not None:
        raise ProgrammingError(
            f'There is a function "{name}" already', hint=f"remove_function('{name}') removes it."
        )
    texts = _type_texts(name, fn, *types)
    if len(texts) == 1:
        raise ProgrammingError(
            f"{name} has no parameters", hint=f"CREATE FUNCTION {name}() AS … is a constant."
        )
    function = _function(name, fn, texts, options)
    parameters = parameter_names(fn, len(texts) - 1)
    _refuse_name(name, parameters, texts)
    if not function.refusal:
        is_traced = options.trace and options.derivative is None
        function = prepared(function, is_traced, options.laws)
    unique = unique_name(function)
    if not function.refusal and function.expr is None:
        derivative = derivative_of(ctx, function, parameters, options.derivative)
        add_opaque(unique, replace(options.laws, derivative=derivative))
    with ctx.lock, boundary, translated(""):
        register(ctx.duck, unique)
    execute(f"CREATE TEMP {_text(name, unique, parameters, texts)}")
    definition = ctx.store.get(macro_key(name))
    assert isinstance(definition, Definition)
    definition.body.tree.body.set("this", unique)  # keeps the function


def remove_function(ctx: Context, execute: Callable[[str], object], name: str) -> None:
    """Removes a function; see `Connection.remove_function`.

    Raises:
        ProgrammingError: There is no Python function of that name.
    """
    definition = ctx.store.get(macro_key(str(name)))
    if not isinstance(definition, Definition) or _function_of(definition) is None:
        raise ProgrammingError(
            f'There is no Python function "{name}"',
            hint="" if definition is None else f"DROP FUNCTION {name} removes one of SQL.",
        )
    execute(f"DROP FUNCTION {in_quotes(str(name))}")


def _function_of(definition: Definition) -> FunctionName | None:
    body = getattr(definition.body.tree, "body", None)
    name = body.this if isinstance(body, exp.Anonymous) else None
    return name if isinstance(name, FunctionName) else None


def _text(name: str, unique: str, parameters: Sequence[str], texts: Sequence[str]) -> str:
    declared = ", ".join(f"{p} {t}" for p, t in zip(parameters, texts, strict=False))
    return f'FUNCTION {in_quotes(name)}({declared}) AS "{unique}"({", ".join(parameters)})'


def _refuse_name(name: str, parameters: Sequence[str], texts: Sequence[str]) -> None:
    """Refuses a name or a type that CREATE FUNCTION would refuse."""
    try:
        parse(f"CREATE {_text(name, 'f', parameters, texts)}")
    except Error as error:
        raise ProgrammingError(error.reason, hint=error.hint) from None


# ---- types and parameters


def _type_texts(name: str, fn: Callable[..., Any], given: object, result: object) -> list[str]:
    """The types of the parameters, then that of the result, as SQL spells them."""
    known: dict[str, Any] = {}
    if given is None or result is None:
        try:
            known = typing.get_type_hints(fn)
        except Exception:  # annotations may contain undefined names
            known = {}
    if given is None:
        given = [known.get(p) for p in _signature(fn)]
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InterfaceError(f"The types of the parameters of {name} are a list of types")
    every = [*given, known.get("return") if result is None else result]
    if None in every:
        raise InterfaceError(
            f"{name} needs the types of its parameters and of its result",
            hint=f"create_function('{name}', fn, ['DOUBLE'], 'DOUBLE'), or annotate it.",
        )
    return [type_text(t) for t in every]


def type_text(given: object) -> str:
    """The text in SQL of a type: one of Python, of NumPy, of einsql, or a text.

    Raises:
        InterfaceError: There is no such type.
    """
    if isinstance(given, DType):
        return given.value
    if isinstance(given, type) and given in _OF_PYTHON:
        return _OF_PYTHON[given]
    if isinstance(given, np.dtype) or (isinstance(given, type) and issubclass(given, np.generic)):
        dtype = DType.of(np.dtype(given))
        if dtype is None:
            raise InterfaceError(f"There is no type for {given}")
        return dtype.value
    return str(given).upper()


def _signature(fn: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):  # a function without a signature, such as a ufunc
        return []


def parameter_names(fn: Callable[..., Any], count: int | None) -> list[str]:
    """The names of a function's parameters in SQL; x1, x2, … if it has no suitable ones.

    Args:
        fn: The function.
        count: The number of parameters; None for all.
    """
    names = _signature(fn)[:count]
    count = len(names) if count is None else count
    plain = all(n.isascii() and n.isidentifier() and not keyword.iskeyword(n) for n in names)
    if len(names) == count and plain and len({n.lower() for n in names}) == count:
        try:
            parse(f"SELECT {', '.join(names)}")
        except Error:
            pass
        else:
            return names
    return [f"x{n}" for n in range(1, count + 1)]


def _word(option: str, value: Any, known: Sequence[str]) -> str:
    """The name of an option's value, which may be an enumeration of DuckDB's."""
    word = str(getattr(value, "name", value)).lower()
    if word not in known:
        raise InterfaceError(f"{option} is {' or '.join(known)}, not {value!r}")
    return word


def _function(
    name: str, fn: Callable[..., Any], texts: Sequence[str], options: Options
) -> PythonFunction:
    """The function, before its operations are recorded and its laws are tested."""
    calling = Calling(_word("type", options.type, [c.value for c in Calling]))
    special = {
        "null_handling": _word("null_handling", options.null_handling, ("default", "special")),
        "exception_handling": _word(
            "exception_handling", options.exception_handling, ("default", "return_null")
        ),
    }
    types = [TYPE_NAMES.get(t) for t in texts]
    refusals = [f"its {option} '{word}'" for option, word in special.items() if word != "default"]
    refusals += ["its side effects"] * options.side_effects
    refusals += [f"its type {t}" for t, d in zip(texts, types, strict=True) if d is None]
    known = [t for t in types if t is not None]
    arguments, returned = (
        (known[:-1], known[-1]) if len(known) == len(types) else ([], DType.DOUBLE)
    )
    if refusals and calling is Calling.NUMPY:
        raise ProgrammingError(
            f"{name} would run in DuckDB, because of {refusals[0]}",
            hint="type='arrow' is a function of arrays there.",
        )
    native = {
        "parameters": [_of_duckdb(t) for t in texts[:-1]],
        "return_type": _of_duckdb(texts[-1]),
        "type": calling.value,
        **special,
        "side_effects": options.side_effects,
    }
    refusal = f"{name} runs in DuckDB, because of {refusals[0]}" if refusals else ""
    return PythonFunction(
        name, fn, calling, tuple(arguments), returned, refusal=refusal, native=native
    )


def _of_duckdb(text: str) -> str:
    """The type in DuckDB of values of a type."""
    return "FLOAT" if text in ("HALF", "BFLOAT16", "FLOAT16") else text
