"""Short tracebacks: a user's mistake shows the user's line and the message, not einsql's frames."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import FunctionType
from typing import Any, TypeVar

from einsql import errors

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_PUBLIC = (
    errors.InterfaceError,
    errors.DataError,
    errors.InterruptedError,
    errors.OperationalError,
    errors.IntegrityError,
    errors.InternalError,
    errors.ProgrammingError,
    errors.NotSupportedError,
    errors.DatabaseError,
    errors.Error,
)
"""The classes of errors that users see, derived ones first."""


def guarded(method: F) -> F:
    """Makes a public function raise einsql's errors without the frames inside of it.

    The error has a class of PEP 249. Python's development mode (`python -X dev`) keeps all frames.
    """
    if sys.flags.dev_mode:
        return method

    @wraps(method)
    def guard(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except errors.Error as error:
            raised = error
        raise _trimmed(raised)

    return guard  # type: ignore[return-value]  # a function of the same signature


def _trimmed(error: errors.Error) -> errors.Error:
    """Removes the frames of an error, its internal class and internal errors that led to it."""
    error.__class__ = next(kind for kind in _PUBLIC if isinstance(error, kind))
    if isinstance(error.__cause__, errors.Error):
        error.__cause__ = None
    error.__context__, error.__suppress_context__ = None, True
    return error.with_traceback(None)


_SPECIAL = ("__len__", "__iter__", "__arrow_c_stream__", "_repr_html_")
"""The methods that Python and notebooks call, and that run queries."""


def guarded_methods(*without: str) -> Callable[[C], C]:
    """A decorator of classes that guards the public methods which a class itself defines.

    It also guards its properties, and the methods that Python calls.

    Args:
        without: Methods that are not guarded: contexts, and those that are called for each row.
    """

    def guard_class(cls: C) -> C:
        for name, member in list(vars(cls).items()):
            if name in without or (name.startswith("_") and name not in _SPECIAL):
                continue
            if isinstance(member, FunctionType):
                setattr(cls, name, guarded(member))
            elif isinstance(member, property) and member.fget is not None:
                setattr(cls, name, member.getter(guarded(member.fget)))
        return cls

    return guard_class
