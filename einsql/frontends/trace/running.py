"""Running sums, by blocks: in about the extent's time."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsql.frontends.trace.array import TracedArray, implements
from einsql.frontends.trace.elementwise import I64, number
from einsql.frontends.trace.expressions import apply, label
from einsql.frontends.trace.joins import pad
from einsql.frontends.trace.nodes import Expr
from einsql.frontends.trace.reductions import summed
from einsql.frontends.trace.shapes import axis_of, moveaxis, ravel
from einsql.frontends.trace.steps import read


@implements(np.cumsum)
def cumsum(
    a: TracedArray, axis: int | None = None, dtype: Any = None, out: None = None
) -> TracedArray:
    """np.cumsum: sums within blocks, and the same of the sums of whole blocks before each."""
    x = ravel(a) if axis is None else a
    at = axis_of(0 if axis is None else axis, x.ndim)
    total = summed(a.step.dtype, dtype)
    wide = total if total.is_float else I64
    sums = moveaxis(_running(moveaxis(x.astype(wide.numpy), at, -1)), -1, at)
    return sums if wide is total else sums.astype(total.numpy)


BLOCK = 16
"""Elements that a running sum adds up for each of them."""


def _running(x: TracedArray) -> TracedArray:
    extent = x.shape[-1]
    if x.size == 0:
        return x
    if extent <= 4 * BLOCK:
        return _triangular(x)
    many = -(-extent // BLOCK)
    rest = many * BLOCK - extent
    full = pad(x, [(0, 0)] * (x.ndim - 1) + [(0, rest)]) if rest else x
    inner = _triangular(full.reshape(*x.shape[:-1], many, BLOCK))
    before = pad(_running(inner[..., :-1, -1]), [(0, 0)] * (x.ndim - 1) + [(1, 0)])
    sums = (inner + before[..., None]).reshape(full.shape)
    kept: TracedArray = sums[..., :extent]
    return kept


def _triangular(x: TracedArray) -> TracedArray:
    """Running sums along the last axis, each added up anew."""
    last = x.ndim - 1
    places: list[Expr] = [label(n) for n in range(last)]
    value = read(x.step, [*places, label(x.ndim)])
    chosen = apply("if", apply("le", label(x.ndim), label(last)), value, number(0, value))
    extents = [*x.shape, x.shape[-1]]
    return TracedArray(x.graph, x.graph.reduce(extents, x.ndim, "SUM", chosen, value.dtype))
