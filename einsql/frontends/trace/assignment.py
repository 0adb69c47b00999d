"""Assignments to elements, `y[key] = value`, as a condition on the keys of the new array."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsql.frontends.trace.array import FUNCTIONS, TracedArray, lifted
from einsql.frontends.trace.indexing import where
from einsql.frontends.trace.refusals import way_out
from einsql.frontends.trace.shapes import broadcast_to, expand_dims
from einsql.frontends.trace.source import untraceable
from einsql.frontends.trace.views import write


def setitem(x: TracedArray, key: Any, value: Any) -> None:
    """x[key] = value, where the key is made of integers, slices and `...`, or is a mask.

    Raises:
        NotSupportedError: The key holds arrays of integers, or the value has an element for
            each that a mask selects.
        ValueError: The value cannot be broadcast to the selected elements.
    """
    if x.number:
        raise TypeError("a number does not support item assignment")
    entries = key if isinstance(key, tuple) else (key,)
    arrays = [e for e in entries if isinstance(e, TracedArray | np.ndarray | list)]
    new = lifted(x.graph, value)
    if not arrays:
        part: TracedArray = FUNCTIONS["getitem"](x, key if Ellipsis in entries else (*entries, ...))
        if new.view == part.view and new.shape == part.shape:  # y[1:] += z has written it
            return
        write(part, _fitting(new, part.shape, part.dtype).step)
        return
    mask = lifted(x.graph, arrays[0])
    if len(entries) > 1 or mask.dtype != np.bool_:
        raise untraceable("Assigning by arrays of integers", way_out("put"))
    if mask.shape != x.shape[: mask.ndim]:
        raise ValueError(f"a mask of {mask.shape} does not fit an array of {x.shape}")
    if new.ndim > x.ndim - mask.ndim and new.size != 1:
        raise untraceable(
            "Assigning an element for each that a mask selects",
            "How many there are depends on data; write np.where(mask, value, x) with values in "
            "the array's shape.",
        )
    new = _fitting(new.reshape(()) if new.size == 1 else new, x.shape[mask.ndim :], x.dtype)
    chosen = expand_dims(mask, tuple(range(mask.ndim, x.ndim)))
    write(x, where(chosen, new, x).step)


FUNCTIONS["setitem"] = setitem


def _fitting(value: TracedArray, shape: tuple[int, ...], dtype: np.dtype) -> TracedArray:
    while value.ndim > len(shape) and value.shape[0] == 1:
        value = value[0]
    return broadcast_to(value, shape).astype(dtype)
