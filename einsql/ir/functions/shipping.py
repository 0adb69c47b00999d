"""Python functions in messages to ranks.

A function of an importable module is sent as the names of the module and of the function. Any other
one is sent by cloudpickle where that is installed.
"""

from __future__ import annotations

import copyreg
import importlib
import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial, reduce
from typing import Any

from einsql.errors import Error, NotSupportedError, OperationalError
from einsql.ir.functions.functions import SCALARS
from einsql.ir.functions.numba_loops import NumbaLoop
from einsql.ir.functions.python_functions import (
    Calling,
    FunctionName,
    Laws,
    PythonFunction,
    add_opaque,
    function_name,
    unique_name,
)

Source = tuple[str, str] | bytes
"""The names of a module and of a function in it, or a pickle by cloudpickle."""


def sent(name: FunctionName) -> tuple[Any, ...]:
    """The pickle of a name and its function.

    Raises:
        NotSupportedError: The function is of no module, and cloudpickle is not installed or cannot
            pickle it.
    """
    f = name.function
    plain = replace(f, fn=_nothing, expr=None, faster=None, native={})
    entry = SCALARS[str(name)]
    laws = Laws(entry.commutative, entry.associative, entry.identity, entry.annihilator)
    return _arrived, (str(name), plain, laws, source_of(f))


def check(functions: Iterable[str]) -> None:
    """Requires that functions can be sent to ranks.

    Args:
        functions: Names of scalar functions.

    Raises:
        NotSupportedError: See `sent`.
    """
    for name in map(function_name, set(functions)):
        if name is not None:
            source_of(name.function)


def _nothing(*_: object) -> None:
    """Stands for a function in a message."""


def source_of(f: PythonFunction) -> Source:
    """The form in which a function is sent.

    Raises:
        NotSupportedError: See `sent`.
    """
    module, path = getattr(f.fn, "__module__", None), getattr(f.fn, "__qualname__", None)
    if module and path and module != "__main__" and "<" not in path:
        try:
            if _imported(module, path) is f.fn:
                return module, path
        except (ImportError, AttributeError):
            pass
    try:
        # cloudpickle is installed by choice, and has no types.
        import cloudpickle  # type: ignore[import-not-found,import-untyped,unused-ignore]

        text: bytes = cloudpickle.dumps(f.fn)
        return text
    except ImportError:
        hint = "Define it in a module that the ranks can import, or install cloudpickle."
    except Exception as error:
        hint = f"cloudpickle: {type(error).__name__}: {error}"
    raise NotSupportedError(f"The Python function {f.shown} cannot be sent to ranks", hint=hint)


def _imported(module: str, path: str) -> Callable[..., Any]:
    scope: Any = importlib.import_module(module)
    function: Callable[..., Any] = reduce(getattr, path.split("."), scope)
    return function


def _arrived(text: str, plain: PythonFunction, laws: Laws, source: Source) -> FunctionName:
    """The name in a message; a function that this process lacks raises its error when it runs."""
    known = function_name(text)
    if known is not None:
        return known
    try:
        fn = pickle.loads(source) if isinstance(source, bytes) else _imported(*source)
    except Exception as error:
        where = "" if isinstance(source, bytes) else f" of the module {source[0]}"
        fn = partial(_missing, f"The Python function {plain.shown}{where}", repr(error))
    loop = NumbaLoop(fn, plain.arguments) if plain.calling is Calling.NATIVE else None
    name = unique_name(replace(plain, fn=fn, faster=loop), text)
    add_opaque(name, laws)
    return name


def _missing(what: str, reason: str, *_: object) -> Error:
    raise OperationalError(
        f"{what} is missing on a rank: {reason}",
        hint="The ranks import its module, or need cloudpickle if it has none: PYTHONPATH.",
    )


copyreg.pickle(FunctionName, sent)
