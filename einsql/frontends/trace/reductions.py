"""Reductions along axes: sums, means, extremes, and functions composed of them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from einsql.core.schema import DType
from einsql.frontends.trace.arguments import NO_VALUE, refuse_options
from einsql.frontends.trace.array import TracedArray, apply_, graph_of, implements, lifted
from einsql.frontends.trace.elementwise import computed, dtype_of, number, truth
from einsql.frontends.trace.expressions import alone, apply, cast, label
from einsql.frontends.trace.nodes import Expr, Literal
from einsql.frontends.trace.shapes import axis_of, diagonal, expand_dims, ravel, transpose
from einsql.frontends.trace.source import untraceable
from einsql.frontends.trace.steps import read

B, I64, F, D = DType.BOOLEAN, DType.BIGINT, DType.FLOAT, DType.DOUBLE


def reduced(
    x: TracedArray,
    axis: Any,
    keepdims: bool,
    how: str,
    element: Callable[[Expr], Expr] = lambda e: e,
    dtype: DType | None = None,
    nothing: float | bool | None = None,
) -> TracedArray:
    """An aggregate along axes.

    Args:
        x: The array.
        axis: One axis, several, or None for all.
        keepdims: Whether these axes stay, with one element.
        how: SQL's aggregate.
        element: Returns the aggregated expression of an element.
        dtype: The result's type; None for the element's type.
        nothing: The result over no elements.

    Raises:
        ValueError: There are no elements and no result for that.
    """
    gone = axes_of(axis, x.ndim)
    kept = [n for n in range(x.ndim) if n not in gone]
    extents = [x.shape[n] for n in (*kept, *gone)]
    places: list[Expr] = [label(0)] * x.ndim
    for at, n in enumerate((*kept, *gone)):
        places[n] = label(at)
    expr = element(read(x.step, places))
    shape = extents[: len(kept)]
    result = expr.dtype if dtype is None else dtype
    if prod(extents[len(kept) :]) == 0:
        if nothing is None:
            raise ValueError(f"zero-size array to reduction operation {how} which has no identity")
        step = x.graph.map(shape, Literal(result.numpy.type(nothing).item(), result))
    elif prod(extents[len(kept) :]) == 1 and how != "VAR_POP":
        step = x.graph.map(shape, cast(alone(expr, len(kept)), result))
    else:
        step = x.graph.reduce(extents, len(kept), how, expr, result)
    aggregate = TracedArray(x.graph, step)
    if not keepdims:
        return aggregate
    wide = [1 if n in gone else e for n, e in enumerate(x.shape)]
    return TracedArray(x.graph, x.graph.map(wide, read(aggregate.step, [label(n) for n in kept])))


def axes_of(axis: Any, rank: int) -> tuple[int, ...]:
    """Axes counted from 0, each once, in order."""
    if axis is None:
        return tuple(range(rank))
    axes = _listed(axis, rank)
    if len(set(axes)) != len(axes):
        raise ValueError("duplicate value in 'axis'")
    return tuple(sorted(axes))


def _options(what: str, options: dict[str, Any]) -> None:
    refuse_options(what, options, "Select with np.where before.")


def _keep(keepdims: Any) -> bool:
    return keepdims is not NO_VALUE and bool(keepdims)


def summed(dtype: DType, wanted: Any) -> DType:
    """The type of a sum: NumPy adds truth values and integers as int64."""
    if wanted is not None:
        return dtype_of(wanted)
    if not dtype.is_float:
        return I64
    return dtype_of(computed(dtype))


def _sum(
    a: TracedArray, axis: Any = None, dtype: Any = None, keepdims: Any = False, **options: Any
) -> TracedArray:
    _options("np.sum", options)
    total = summed(a.step.dtype, dtype)
    wide = total if total.is_float else I64
    if a.step.dtype.is_float and not wide.is_float:
        a = a.astype(wide.numpy)  # which truncates
    sums = reduced(a, axis, _keep(keepdims), "SUM", lambda e: cast(e, wide), wide, 0)
    return sums.astype(total.numpy) if total is not wide else sums


implements(np.sum)(_sum)


@implements(np.prod)
def product(
    a: TracedArray, axis: Any = None, dtype: Any = None, keepdims: Any = False, **options: Any
) -> TracedArray:
    """np.prod of floats."""
    _options("np.prod", options)
    total = summed(a.step.dtype, dtype)
    if not total.is_float:
        raise untraceable("np.prod of integers", "Convert them to float64.")
    return reduced(a, axis, _keep(keepdims), "PRODUCT", lambda e: cast(e, total), total, 1)


def _mean_type(a: TracedArray, dtype: Any) -> DType:
    if dtype is not None:
        return dtype_of(dtype)
    own = a.step.dtype
    return dtype_of(computed(own)) if own.is_float else D


@implements(np.mean)
def _mean(
    a: TracedArray, axis: Any = None, dtype: Any = None, keepdims: Any = False, **options: Any
) -> TracedArray:
    _options("np.mean", options)
    real = _mean_type(a, dtype)
    return reduced(a, axis, _keep(keepdims), "AVG", lambda e: cast(e, real), real, math.nan)


@implements(np.average)
def average(
    a: Any, axis: Any = None, weights: Any = None, returned: bool = False, *, keepdims: Any = False
) -> TracedArray:
    """np.average; weights whose sum is 0 give NaN or infinity."""
    if returned:
        raise untraceable("np.average with returned", "Sum the weights: weights.sum(axis).")
    graph = graph_of((a, weights))
    x = lifted(graph, a)
    if weights is None:
        return _mean(x, axis, keepdims=keepdims)
    by = lifted(graph, weights)
    gone = axes_of(axis, x.ndim)
    if by.shape != x.shape:
        if axis is None:
            raise ValueError("Axis must be specified when shapes of a and weights differ.")
        listed = _listed(axis, x.ndim)
        if by.shape != tuple(x.shape[n] for n in listed):
            raise ValueError("Shape of weights must be consistent with shape of a along the axis.")
        by = transpose(by, np.argsort(listed).tolist())
        by = by.reshape(tuple(e if n in gone else 1 for n, e in enumerate(x.shape)))
    real = np.result_type(x.dtype, by.dtype, *([] if x.step.dtype.is_float else [np.float64]))
    by = by.astype(real)
    total = _sum(apply_(np.multiply, x.astype(real), by), gone, keepdims=keepdims)
    return apply_(np.divide, total, _sum(by, gone, keepdims=keepdims))


def _listed(axis: Any, rank: int) -> list[int]:
    return [axis_of(n, rank) for n in (axis if isinstance(axis, tuple) else (axis,))]


@implements(np.var)
def variance(
    a: TracedArray,
    axis: Any = None,
    dtype: Any = None,
    ddof: float = 0,
    keepdims: Any = False,
    **options: Any,
) -> TracedArray:
    """np.var: the mean square of the distances from the mean, times n / (n - ddof)."""
    correction = options.pop("correction", NO_VALUE)
    _options("np.var", options)
    degrees = ddof if correction is NO_VALUE else correction
    real = _mean_type(a, dtype)
    gone = axes_of(axis, a.ndim)
    many = prod(a.shape[n] for n in gone)
    x = a if a.step.dtype is real else a.astype(real.numpy)
    away = apply_(np.subtract, x, _mean(x, gone, keepdims=True))
    square = apply_(np.multiply, away, away)
    if degrees == 0:
        return _mean(square, gone, keepdims=_keep(keepdims))
    total = _sum(square, gone, keepdims=_keep(keepdims))
    return apply_(np.divide, total, float(max(many - degrees, 0)))


@implements(np.std)
def _deviation(a: TracedArray, *args: Any, **options: Any) -> TracedArray:
    return apply_(np.sqrt, variance(a, *args, **options))


@implements(np.max, np.amax)
def maximum(a: TracedArray, axis: Any = None, keepdims: Any = False, **options: Any) -> TracedArray:
    """np.max: NaN where there is one."""
    _options("np.max", options)
    how = "BOOL_OR" if a.step.dtype is B else "MAX"
    return reduced(a, axis, _keep(keepdims), how)


@implements(np.min, np.amin)
def minimum(a: TracedArray, axis: Any = None, keepdims: Any = False, **options: Any) -> TracedArray:
    """np.min: NaN where there is one, which SQL's MIN skips."""
    _options("np.min", options)
    keep = _keep(keepdims)
    if not a.step.dtype.is_float:
        return reduced(a, axis, keep, "BOOL_AND" if a.step.dtype is B else "MIN")
    return apply_(np.negative, reduced(a, axis, keep, "MAX", lambda e: apply("neg", e)))


@implements(np.ptp)
def _spread(a: TracedArray, axis: Any = None, keepdims: Any = False, **options: Any) -> TracedArray:
    return apply_(np.subtract, maximum(a, axis, keepdims), minimum(a, axis, keepdims))


def _truth(how: str, nothing: bool, what: str) -> Callable[..., TracedArray]:
    def aggregate(
        a: TracedArray, axis: Any = None, keepdims: Any = False, **options: Any
    ) -> TracedArray:
        _options(what, options)
        return reduced(a, axis, _keep(keepdims), how, truth, B, nothing)

    return aggregate


implements(np.any)(_truth("BOOL_OR", False, "np.any"))
implements(np.all)(_truth("BOOL_AND", True, "np.all"))


@implements(np.count_nonzero)
def _count(a: TracedArray, axis: Any = None, *, keepdims: Any = False) -> TracedArray:
    return reduced(a, axis, keepdims, "SUM", lambda e: cast(truth(e), I64), I64, 0)


def _extreme(a: TracedArray, axis: Any, keepdims: Any, negate: bool) -> TracedArray:
    """The index of the greatest or least element: the first of equal ones, or the first NaN."""
    if axis is None:
        flat = _extreme(ravel(a), 0, False, negate)
        return flat.reshape((1,) * a.ndim) if _keep(keepdims) else flat
    at = axis_of(axis, a.ndim)
    if a.shape[at] == 0:
        raise ValueError("attempt to get argmax of an empty sequence")
    kept = [n for n in range(a.ndim) if n != at]
    extents = [*(a.shape[n] for n in kept), a.shape[at]]
    places: list[Expr] = [
        label(kept.index(n)) if n != at else label(len(kept)) for n in range(a.ndim)
    ]
    value: Expr = read(a.step, places)
    if value.dtype is B:
        value = cast(value, DType.INTEGER)
    if negate:
        value = (
            apply("neg", value) if value.dtype.is_float else apply("sub", number(-1, value), value)
        )
    step = (
        a.graph.map(extents[:-1], Literal(0, I64))
        if extents[-1] == 1
        else a.graph.reduce(extents, len(kept), "ARG_MAX", value, I64)
    )
    positions = TracedArray(a.graph, step)
    return expand_dims(positions, at) if _keep(keepdims) else positions


for _function, _negate in ((np.argmax, False), (np.argmin, True)):
    implements(_function)(
        lambda a, axis=None, out=None, *, keepdims=False, _negate=_negate: _extreme(
            a, axis, keepdims, _negate
        )
    )


@implements(np.trace)
def _trace(
    a: TracedArray, offset: int = 0, axis1: int = 0, axis2: int = 1, **options: Any
) -> TracedArray:
    _options("np.trace", options)
    return _sum(diagonal(a, offset, axis1, axis2), -1)


@implements(np.linalg.norm)
def norm(x: TracedArray, ord: Any = None, axis: Any = None, keepdims: bool = False) -> TracedArray:
    """np.linalg.norm: Euclidean and Frobenius, and the other norms of vectors."""
    flat = axis is None
    gone = axes_of(axis, x.ndim)
    real = x if x.step.dtype.is_float else x.astype(np.float64)
    if ord is None or (ord == "fro" and len(gone) == 2) or (ord == 2 and len(gone) == 1):
        return apply_(np.sqrt, _sum(apply_(np.multiply, real, real), gone, keepdims=keepdims))
    if len(gone) != 1 or (flat and x.ndim != 1):
        raise untraceable(f"np.linalg.norm with ord={ord!r}", "Spell it with sums and maxima.")
    size = apply_(np.abs, real)
    if ord == np.inf:
        return maximum(size, gone, keepdims)
    if ord == -np.inf:
        return minimum(size, gone, keepdims)
    if ord == 1:
        return _sum(size, gone, keepdims=keepdims)
    raise untraceable(f"np.linalg.norm with ord={ord!r}", "Spell it with sums and maxima.")


@implements(np.round, np.around)
def round_(a: TracedArray, decimals: int = 0) -> TracedArray:
    """np.round, halves to even."""
    decimals = operator.index(decimals)
    if not a.step.dtype.is_float:
        if decimals >= 0 and a.step.dtype is not B:
            return TracedArray(a.graph, a.step)
        raise untraceable("Rounding integers", "Divide and multiply: (a + 5) // 10 * 10.")
    if decimals == 0:
        return apply_(np.rint, a)
    by = 10.0 ** abs(decimals)
    there, back = (np.multiply, np.divide) if decimals > 0 else (np.divide, np.multiply)
    return apply_(back, apply_(np.rint, apply_(there, a, by)), by)
