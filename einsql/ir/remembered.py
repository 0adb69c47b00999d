"""Types and other values that equal arguments share while a plan is searched or built."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_H = TypeVar("_H", bound=Hashable)
_KNOWN: ContextVar[dict[Hashable, Any] | None] = ContextVar("_KNOWN", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """Context in which types are cached: equal types are one object, computed once.

    A search builds the same operations repeatedly, and a network has many equal layers.
    """
    known = _KNOWN.get()
    token = _KNOWN.set({} if known is None else known)
    try:
        yield
    finally:
        _KNOWN.reset(token)


def recalled(key: Hashable, compute: Callable[[], _H]) -> _H:
    """The value of a key while `remembering`; equal values are one object."""
    known = _KNOWN.get()
    if known is None:
        return compute()
    if key not in known:
        computed = compute()
        known[key] = known.setdefault(computed, computed)
    value: _H = known[key]
    return value


def computed_once(key: Hashable, compute: Callable[[], _T]) -> _T:
    """The value of a key while `remembering`; unlike in `recalled`, the value may be unhashable."""
    known = _KNOWN.get()
    if known is None:
        return compute()
    if key not in known:
        known[key] = compute()
    cached: _T = known[key]
    return cached


def numbered(item: object, key: Callable[[], Hashable]) -> Hashable:
    """A key of an object: while `remembering` a number, equal for objects with equal keys."""
    known = _KNOWN.get()
    if known is None:
        return key()
    if ("number", id(item)) not in known:
        # The object is kept, so that no other one gets its identity.
        known["number", id(item)] = item, known.setdefault(("key", key()), len(known))
    return known["number", id(item)][1]  # type: ignore[no-any-return] # a number


def remembered(function: Callable[_P, _H]) -> Callable[_P, _H]:
    """Caches the results of a function of types while `remembering`."""

    @wraps(function)
    def typed(*args: _P.args, **kwargs: _P.kwargs) -> _H:
        return recalled((function, args, *kwargs.items()), lambda: function(*args, **kwargs))

    return typed
