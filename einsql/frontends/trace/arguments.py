"""Binds the arguments of a call to the signature of a NumPy function."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

NO_VALUE: Any = getattr(np, "_NoValue", None)
"""The default of arguments that the caller of a NumPy function left out."""


@lru_cache(maxsize=256)
def _signature(function: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


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
