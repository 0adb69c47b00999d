"""The table of ATen operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from einsql.frontends.trace.array import TracedArray

OPERATORS: dict[str, Callable[..., Any]] = {}
"""Implementations by operator name without overload; they take ATen's arguments."""

ELEMENTWISE: set[str] = set()
"""Operators whose tensors meet at a common type first."""

F = TypeVar("F", bound=Callable[..., Any])


def operator(*names: str, elementwise: bool = False) -> Callable[[F], F]:
    """Registers the implementation of operators."""

    def register(function: F) -> F:
        OPERATORS.update(dict.fromkeys(names, function))
        if elementwise:
            ELEMENTWISE.update(names)
        return function

    return register


def table(functions: Mapping[str, Callable[..., Any]], elementwise: bool = False) -> None:
    """Registers implementations under the names in their keys, which blanks separate."""
    for names, function in functions.items():
        operator(*names.split(), elementwise=elementwise)(function)


def numpy_dtype(dtype: Any) -> np.dtype:
    """NumPy's dtype of PyTorch's; two-byte floats are computed as float32."""
    name = str(dtype).removeprefix("torch.")
    return np.dtype("float32" if name in ("float16", "bfloat16") else name)


def axes(dim: Any) -> Any:
    """Dimensions as NumPy takes them; none means all."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return None
    return tuple(dim) if isinstance(dim, list | tuple) else dim


def rank(x: Any) -> int:
    """The number of axes of a traced or plain array."""
    return x.ndim if isinstance(x, TracedArray) else np.ndim(x)
