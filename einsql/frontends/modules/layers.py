"""ATen's products, norms, attention and windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from einsql.frontends.array import TracedArray, graph_of, lifted
from einsql.frontends.elementwise import met
from einsql.frontends.expressions import Affine, Expr, apply, cast, label, plus, scaled
from einsql.frontends.modules.elements import log_softmax, reduced, softmax
from einsql.frontends.modules.registry import operator
from einsql.frontends.source import untraceable
from einsql.frontends.steps import read
from einsql.schema import DType

Array = Any


@operator("linear")
def linear(x: Array, weight: Array, bias: Array = None) -> Array:
    """X · weightᵀ + bias."""
    found = np.matmul(x, np.swapaxes(weight, 0, 1)) if weight.ndim > 1 else np.matmul(x, weight)
    return found if bias is None else found + bias


@operator("mm", "bmm", "matmul", "mv", "dot")
def product(x: Array, y: Array) -> Array:
    """A product of matrices or vectors."""
    return np.matmul(x, y)


@operator("addmm", "baddbmm", "addmv")
def addmm(c: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array:
    """Beta · c + alpha · x · y."""
    found = np.matmul(x, y)
    found = found if alpha == 1 else found * alpha
    return found if beta == 0 else found + (c if beta == 1 else c * beta)


@operator("outer", "ger")
def outer(x: Array, y: Array) -> Array:
    """All products of two vectors' elements."""
    return np.outer(x, y)


@operator("einsum")
def einsum(expression: str, arrays: Sequence[Array], **_: Any) -> Array:
    """An Einstein sum."""
    return np.einsum(expression, *arrays)


@operator("scaled_dot_product_attention")
def attention(
    q: Array, k: Array, v: Array, mask: Array = None, dropout: float = 0.0, causal: bool = False,
    scale: float | None = None, enable_gqa: bool = False,
) -> Array:  # fmt: skip
    """softmax(q kᵀ · scale + mask) v."""
    if dropout:
        raise untraceable("Dropout in training", "Give dropout_p=0.")
    if enable_gqa and k.shape[-3] != q.shape[-3]:
        k, v = (np.repeat(x, q.shape[-3] // k.shape[-3], axis=-3) for x in (k, v))
    by = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) * by
    if causal:
        lower = np.tri(q.shape[-2], k.shape[-2], dtype=bool)
        scores = np.where(lower, scores, -np.inf)
    if mask is not None:
        truths = mask.dtype == np.bool_
        scores = np.where(mask, scores, -np.inf) if truths else scores + mask
    return np.matmul(softmax(scores, -1), v)


# ---- norms


@operator("layer_norm")
def layer_norm(
    x: Array, shape: Sequence[int], weight: Array = None, bias: Array = None, eps: float = 1e-5,
    *_: Any,
) -> Array:  # fmt: skip
    """Rows with mean 0 and variance 1, times a weight, plus a bias."""
    along = tuple(range(x.ndim - len(shape), x.ndim))
    away = x - np.mean(x, axis=along, keepdims=True)
    found = away / np.sqrt(np.mean(away * away, axis=along, keepdims=True) + eps)
    found = found if weight is None else found * weight
    return found if bias is None else found + bias


@operator("native_layer_norm")
def native_layer_norm(*args: Any) -> tuple[Array, None, None]:
    """As layer_norm; what training needs beside it is not there."""
    return layer_norm(*args), None, None


@operator("rms_norm")
def rms_norm(
    x: Array, shape: Sequence[int], weight: Array = None, eps: float | None = None
) -> Array:
    """Rows over the root of their mean square, times a weight."""
    along = tuple(range(x.ndim - len(shape), x.ndim))
    least = float(np.finfo(x.dtype).eps) if eps is None else eps
    found = x / np.sqrt(np.mean(x * x, axis=along, keepdims=True) + least)
    return found if weight is None else found * weight


def _channels(x: Array, values: Array) -> Array:
    """Values of each channel, the second axis, beside an array."""
    return np.reshape(values, (-1, *[1] * (x.ndim - 2)))


@operator("batch_norm", "_native_batch_norm_legit_no_training")
def batch_norm(x: Array, weight: Array, bias: Array, mean: Array, var: Array, *rest: Any) -> Any:
    """Channels shifted and scaled by what was learned."""
    training = len(rest) > 2 and rest[0] is True
    if training or mean is None:
        raise untraceable("Batch normalisation in training", "Call module.eval() before.")
    eps = next(r for r in rest[::-1] if isinstance(r, float))
    found = (x - _channels(x, mean)) / np.sqrt(_channels(x, var) + eps)
    found = found if weight is None else found * _channels(x, weight)
    found = found if bias is None else found + _channels(x, bias)
    return found if len(rest) > 2 else (found, None, None)


@operator("group_norm")
def group_norm(
    x: Array, groups: int, weight: Array = None, bias: Array = None, eps: float = 1e-5, *_: Any
) -> Array:
    """Groups of channels with mean 0 and variance 1."""
    parts = np.reshape(x, (x.shape[0], groups, -1))
    found = np.reshape(layer_norm(parts, parts.shape[-1:], eps=eps), x.shape)
    found = found if weight is None else found * _channels(x, weight)
    return found if bias is None else found + _channels(x, bias)


@operator("native_group_norm")
def native_group_norm(
    x: Array, weight: Array, bias: Array, n: int, channels: int, size: int, groups: int, eps: float
) -> tuple[Array, None, None]:
    """As group_norm; what training needs beside it is not there."""
    return group_norm(x, groups, weight, bias, eps), None, None


@operator("bilinear")
def bilinear(x: Array, y: Array, weight: Array, bias: Array = None) -> Array:
    """Products of both arguments' rows with a matrix for each output."""
    found = np.einsum("...i,oij,...j->...o", x, weight, y)
    return found if bias is None else found + bias


# ---- windows


def _several(value: Any, many: int) -> list[int]:
    given = list(value) if isinstance(value, list | tuple) else [value]
    return given * many if len(given) == 1 else given


@operator("conv1d", "conv2d", "conv3d")
def convolution(
    x: Array, weight: Array, bias: Array = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Array:  # fmt: skip
    """Sums of products over windows; what lies outside counts as 0."""
    if isinstance(padding, str):
        raise untraceable(f"A convolution with padding='{padding}'", "Give numbers.")
    many = weight.ndim - 2
    steps, edges, gaps = (_several(v, many) for v in (stride, padding, dilation))
    if x.ndim == many + 1:
        return convolution(x[None], weight, bias, steps, edges, gaps, groups)[0]
    graph = graph_of((x, weight))
    x, weight = lifted(graph, x), lifted(graph, weight)
    windows = _Windows(x.shape[2:], weight.shape[2:], steps, edges, gaps)
    if not windows.reach:
        x, edges = _bordered(x, edges, 0), [0] * many
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
    found = np.reshape(TracedArray(graph, step), (x.shape[0], -1, *sizes))
    return found if bias is None else found + _channels(found, bias)


class _Windows:
    """Windows over axes.

    Attributes:
        sizes: How many there are along each axis.
        reach: Whether every one of them has a place that lies inside.
    """

    def __init__(
        self, extents: Sequence[int], sides: Sequence[int], steps: Sequence[int],
        edges: Sequence[int], gaps: Sequence[int],
    ) -> None:  # fmt: skip
        self.sizes: list[int] = []
        self.reach = True
        for e, k, s, p, g in zip(extents, sides, steps, edges, gaps, strict=True):
            self.sizes.append((e + 2 * p - g * (k - 1) - 1) // s + 1)
            places = np.arange(self.sizes[-1])[:, None] * s + np.arange(k) * g - p
            inside = ((places >= 0) & (places < e)).any(axis=1).all()
            self.reach = self.reach and bool(inside) and not (e == 1 and p)


def _bordered(x: Array, edges: Sequence[int], value: float) -> Array:
    """The array with its padding."""
    widths = [(0, 0)] * (x.ndim - len(edges)) + [(p, p) for p in edges]
    found: Array = np.pad(x, widths, constant_values=value)
    return found


@operator("convolution")
def aten_convolution(
    x: Array, weight: Array, bias: Array, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Array:  # fmt: skip
    """A convolution as decomposed graphs have it."""
    if transposed:
        raise untraceable("A transposed convolution", "Write it as a sum of products.")
    return convolution(x, weight, bias, stride, padding, dilation, groups)


def _pooled(x: Array, size: Any, stride: Any, padding: Any, dilation: Any, how: str,
            ceil_mode: bool = False) -> Array:  # fmt: skip
    """An aggregate over windows of the last axes."""
    many = len(size) if isinstance(size, list | tuple) else 2
    sides, edges, gaps = (_several(v, many) for v in (size, padding, dilation))
    steps = _several(stride, many) if stride not in (None, [], ()) else sides
    if ceil_mode:
        raise untraceable("Pooling with ceil_mode", "Pad the array before.")
    before = x.shape[: x.ndim - many]
    windows = _Windows(x.shape[-many:], sides, steps, edges, gaps)
    if not windows.reach:
        x, edges = _bordered(x, edges, 0 if how == "SUM" else -math.inf), [0] * many
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
def max_pool(x: Array, size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
             ceil_mode: bool = False) -> Array:  # fmt: skip
    """The greatest elements of windows."""
    return _pooled(x, size, stride, padding, dilation, "MAX", ceil_mode)


@operator("max_pool2d_with_indices")
def max_pool_with_indices(*args: Any) -> tuple[Array, None]:
    """As max_pool; where the elements are is not there."""
    return max_pool(*args), None


@operator("avg_pool2d", "avg_pool1d")
def avg_pool(x: Array, size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
             count_include_pad: bool = True, divisor: int | None = None) -> Array:  # fmt: skip
    """The means of windows; what lies outside counts as 0."""
    if not count_include_pad and np.any(padding):
        raise untraceable("Mean pooling that does not count padding", "Divide by the count.")
    many = len(size) if isinstance(size, list | tuple) else 2
    by = divisor or math.prod(_several(size, many))
    return _pooled(x, size, stride, padding, 1, "SUM", ceil_mode) / by


@operator("adaptive_avg_pool2d", "adaptive_avg_pool1d", "_adaptive_avg_pool2d")
def adaptive_avg_pool(x: Array, sizes: Any) -> Array:
    """Means of equal windows, so many along each of the last axes."""
    wanted = _several(sizes, len(sizes) if isinstance(sizes, list | tuple) else 2)
    last = x.shape[-len(wanted) :]
    if any(e % n for e, n in zip(last, wanted, strict=True)):
        raise untraceable("Adaptive pooling into unequal windows", "Choose sizes that divide.")
    shape, along = list(x.shape[: -len(wanted)]), []
    for e, n in zip(last, wanted, strict=True):
        along.append(len(shape) + 1)
        shape += [n, e // n]
    return np.mean(np.reshape(x, shape), axis=tuple(along))


@operator("nll_loss", "nll_loss_nd")
def nll_loss(
    x: Array, target: Array, weight: Array = None, reduction: int = 1, ignore_index: int = -100
) -> Array:
    """Minus the value of each row's class."""
    if ignore_index >= 0:
        raise untraceable("A loss with ignore_index", "Multiply by a mask.")
    if weight is not None:
        raise untraceable("A loss with weights", "Multiply by the weights.")
    chosen = np.take_along_axis(x, target[:, None], axis=1)[:, 0]
    return reduced(np.negative(chosen), reduction)


@operator("cross_entropy_loss")
def cross_entropy(
    x: Array, target: Array, weight: Array = None, reduction: int = 1, ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Array:  # fmt: skip
    """nll_loss of log_softmax."""
    if label_smoothing:
        raise untraceable("A loss with label_smoothing", "Mix the targets before.")
    return nll_loss(log_softmax(x, 1), target, weight, reduction, ignore_index)
