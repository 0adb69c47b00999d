"""Binds the arguments of a call to the signature of a NumPy function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from einsql.frontends.trace.source import untraceable

NO_VALUE: Any = getattr(np, "_NoValue", None)
"""The default of arguments that the caller of a NumPy function left out."""


def refuse_options(what: str, options: dict[str, Any], hint: str) -> None:
    """Refuses options of a NumPy function that have values.

    Raises:
        NotSupportedError: There are such options.
    """
    refused = [k for k, v in options.items() if v is not None and v is not NO_VALUE]
    if refused:
        raise untraceable(f"{what} with {', '.join(refused)}", hint)


@lru_cache(maxsize=256)
def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Nested lists, tuples and dicts with other leaves.

    Args:
        value: A container or a leaf.
        change: Returns the new leaf; called in order.
    """
    if isinstance(value, list | tuple):
        return rebuilt(value, [mapped(v, change) for v in value])
    if isinstance(value, dict):
        return {k: mapped(v, change) for k, v in value.items()}
    return change(value)


def rebuilt(like: Any, values: list[Any]) -> Any:
    """Values in a list, tuple or named tuple of the same kind."""
    if hasattr(like, "_fields"):
        return type(like)(*values)
    return values if isinstance(like, list) else tuple(values)


def leaves(value: Any) -> list[Any]:
    """The leaves of nested containers, in order."""
    every: list[Any] = []
    mapped(value, every.append)
    return every


def bound_arguments(
    function: Any, args: Sequence[Any], options: dict[str, Any]
) -> tuple[Sequence[Any], dict[str, Any]]:
    """Positional and named arguments of a NumPy function, by the names in its signature."""
    signature = _signature(function)
    if signature is None:
        return args, options
    bound = signature.bind(*args, **options)
    kinds = {n: p.kind for n, p in signature.parameters.items()}
    if inspect.Parameter.VAR_POSITIONAL in kinds.values():
        return args, options
    only = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_KEYWORD
    named = {n: v for n, v in bound.arguments.items() if kinds[n] not in only}
    positional = [v for n, v in bound.arguments.items() if kinds[n] is only[0]]
    for n, kind in kinds.items():
        if kind is only[1]:
            named.update(bound.arguments.get(n, {}))
    return positional, named
