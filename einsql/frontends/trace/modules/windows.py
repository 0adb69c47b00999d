"""ATen's convolutions and pooling: sums, means and maxima over windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from einsql.core.schema import DType
from einsql.frontends.trace.array import TracedArray, graph_of, lifted
from einsql.frontends.trace.elementwise import met
from einsql.frontends.trace.expressions import apply, cast, label, plus, scaled
from einsql.frontends.trace.modules.layers import channels
from einsql.frontends.trace.modules.places import widened
from einsql.frontends.trace.modules.registry import operator
from einsql.frontends.trace.nodes import Affine, Expr
from einsql.frontends.trace.source import untraceable
from einsql.frontends.trace.steps import read

Array = Any


def _several(value: Any, many: int) -> list[int]:
    numbers = list(value) if isinstance(value, list | tuple) else [value]
    return numbers * many if len(numbers) == 1 else numbers


@operator("conv1d", "conv2d", "conv3d")
def _convolution(
    x: Array,
    weight: Array,
    bias: Array = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Array:
    """Sums of products over windows; elements outside the array count as 0."""
    many = weight.ndim - 2
    steps, gaps = _several(stride, many), _several(dilation, many)
    if padding == "same":
        around = [g * (k - 1) for g, k in zip(gaps, weight.shape[2:], strict=True)]
        x, padding = widened(x, [(n // 2, n - n // 2) for n in around]), 0
    edges = _several(0 if padding == "valid" else padding, many)
    if x.ndim == many + 1:
        return _convolution(x[None], weight, bias, steps, edges, gaps, groups)[0]
    graph = graph_of((x, weight))
    x, weight = lifted(graph, x), lifted(graph, weight)
    windows = _Windows(x.shape[2:], weight.shape[2:], steps, edges, gaps)
    if not windows.reach:
        x, edges = widened(x, [(p, p) for p in edges]), [0] * many
    sizes = windows.sizes
    out, own = weight.shape[0] // groups, weight.shape[1]
    # n, group, channel of it, places; then what is summed over: channel, place in the window
    extents = [x.shape[0], groups, out, *sizes, own, *weight.shape[2:]]
    place, inner = 3, 3 + many
    at = [
        Affine(tuple(sorted(((place + n, steps[n]), (inner + 1 + n, gaps[n])))), -edges[n])
        for n in range(many)
    ]
    channel = plus(scaled(label(1), own), label(inner))
    number = plus(scaled(label(1), out), label(2))
    window = [label(inner + 1 + n) for n in range(many)]
    dtype = met(x.step.dtype, weight.step.dtype)
    dtype = DType.FLOAT if dtype.is_short else dtype
    left = cast(read(x.step, [label(0), channel, *at]), dtype)
    right = cast(read(weight.step, [number, label(inner), *window]), dtype)
    step = graph.reduce(extents, inner, "SUM", apply("mul", left, right), drops=any(edges))
    sums = np.reshape(TracedArray(graph, step), (x.shape[0], -1, *sizes))
    return sums if bias is None else sums + channels(sums, bias)


class _Windows:
    """Windows over axes.

    Attributes:
        sizes: The number of windows along each axis.
        reach: Whether every window covers an element of the array.
    """

    def __init__(
        self,
        extents: Sequence[int],
        sides: Sequence[int],
        steps: Sequence[int],
        edges: Sequence[int],
        gaps: Sequence[int],
    ) -> None:
        self.sizes: list[int] = []
        self.reach = True
        for e, k, s, p, g in zip(extents, sides, steps, edges, gaps, strict=True):
            self.sizes.append((e + 2 * p - g * (k - 1) - 1) // s + 1)
            places = np.arange(self.sizes[-1])[:, None] * s + np.arange(k) * g - p
            inside = ((places >= 0) & (places < e)).any(axis=1).all()
            self.reach = self.reach and bool(inside) and not (e == 1 and p)


@operator("convolution")
def _aten_convolution(
    x: Array,
    weight: Array,
    bias: Array,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Array:
    if transposed:
        return _transposed_convolution(
            x, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return _convolution(x, weight, bias, stride, padding, dilation, groups)


@operator("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed_convolution(
    x: Array,
    weight: Array,
    bias: Array = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Array:
    """The convolution of an array between whose elements are zeros, with windows turned around."""
    many = weight.ndim - 2
    steps, edges, more, gaps = (
        _several(v, many) for v in (stride, padding, output_padding, dilation)
    )
    if x.ndim == many + 1:
        return _transposed_convolution(x[None], weight, bias, steps, edges, more, groups, gaps)[0]
    sides = weight.shape[2:]
    for n, (step, g, k) in enumerate(zip(steps, gaps, sides, strict=True)):
        x = _apart(x, 2 + n, step)
        reach = g * (k - 1) - edges[n]
        x = widened(x, [(0, 0)] * n + [(reach, reach + more[n])] + [(0, 0)] * (many - n - 1))
    parts = np.reshape(weight, (groups, -1, *weight.shape[1:]))
    turned = np.flip(np.swapaxes(parts, 1, 2), tuple(range(3, 3 + many)))
    return _convolution(x, np.reshape(turned, (-1, *turned.shape[2:])), bias, 1, 0, gaps, groups)


def _apart(x: Array, axis: int, step: int) -> Array:
    """The array with zeros between the elements along an axis."""
    if step == 1 or x.shape[axis] == 1:
        return x
    wide = np.pad(
        np.expand_dims(x, axis + 1),
        [(0, 0)] * (axis + 1) + [(0, step - 1)] + [(0, 0)] * (x.ndim - axis - 1),
    )
    spread = np.reshape(wide, (*x.shape[:axis], x.shape[axis] * step, *x.shape[axis + 1 :]))
    return spread[(*[slice(None)] * axis, slice(0, (x.shape[axis] - 1) * step + 1))]


def _pooled(
    x: Array, size: Any, stride: Any, padding: Any, dilation: Any, how: str, ceil_mode: bool = False
) -> Array:
    many = len(size) if isinstance(size, list | tuple) else 2
    sides, edges, gaps = (_several(v, many) for v in (size, padding, dilation))
    steps = _several(stride, many) if stride not in (None, [], ()) else sides
    if ceil_mode:
        raise untraceable("Pooling with ceil_mode", "Pad the array before.")
    before = x.shape[: x.ndim - many]
    windows = _Windows(x.shape[-many:], sides, steps, edges, gaps)
    if not windows.reach:
        x, edges = widened(x, [(p, p) for p in edges], 0 if how == "SUM" else -math.inf), [0] * many
    sizes = windows.sizes
    rank = x.ndim
    at: list[Expr] = [label(n) for n in range(len(before))]
    at += [
        Affine(((len(before) + n, steps[n]), (rank + n, gaps[n])), -edges[n]) for n in range(many)
    ]
    extents = [*before, *sizes, *sides]
    expr = read(x.step, at)
    step = x.graph.reduce(extents, rank, how, expr, drops=any(edges))
    return TracedArray(x.graph, step)


@operator("max_pool2d", "max_pool1d", "max_pool3d")
def _max_pool(
    x: Array,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Array:
    return _pooled(x, size, stride, padding, dilation, "MAX", ceil_mode)


@operator("max_pool2d_with_indices")
def _max_pool_with_indices(*args: Any) -> tuple[Array, None]:
    """As max_pool; where the elements are is not there."""
    return _max_pool(*args), None


@operator("avg_pool2d", "avg_pool1d")
def _avg_pool(
    x: Array,
    size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> Array:
    """The means of windows; elements outside the array count as 0."""
    many = len(size) if isinstance(size, list | tuple) else 2
    sides, edges = _several(size, many), _several(padding, many)
    means = _pooled(x, size, stride, padding, 1, "SUM", ceil_mode)
    if divisor or count_include_pad or not any(edges):
        return means / (divisor or math.prod(sides))
    steps = sides if stride in (None, [], ()) else _several(stride, many)
    for n, (k, s, p) in enumerate(zip(sides, steps, edges, strict=True)):
        extent, axis = x.shape[x.ndim - many + n], x.ndim - many + n
        first = np.arange(means.shape[axis]) * s - p
        inside = np.minimum(first + k, extent) - np.maximum(first, 0)
        means = means / inside.astype(np.float32).reshape(-1, *[1] * (many - n - 1))
    return means


@operator("adaptive_avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool2d")
def _adaptive_avg_pool(x: Array, sizes: Any) -> Array:
    """Means of equal windows, a given number along each of the last axes."""
    wanted = _several(sizes, len(sizes) if isinstance(sizes, list | tuple) else 2)
    last = x.shape[-len(wanted) :]
    if any(e % n for e, n in zip(last, wanted, strict=True)):
        raise untraceable("Adaptive pooling into unequal windows", "Choose sizes that divide.")
    shape, along = list(x.shape[: -len(wanted)]), []
    for e, n in zip(last, wanted, strict=True):
        along.append(len(shape) + 1)
        shape += [n, e // n]
    return np.mean(np.reshape(x, shape), axis=tuple(along))
