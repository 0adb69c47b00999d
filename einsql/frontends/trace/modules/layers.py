"""ATen's products, norms, attention and losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from einsql.frontends.trace.modules.elements import log_softmax, reduced, safe_softmax, softmax
from einsql.frontends.trace.modules.registry import operator, table
from einsql.frontends.trace.source import untraceable

Array = Any


@operator("linear")
def _linear(x: Array, weight: Array, bias: Array = None) -> Array:
    product = np.matmul(x, np.swapaxes(weight, 0, 1)) if weight.ndim > 1 else np.matmul(x, weight)
    return product if bias is None else product + bias


@operator("addmm", "baddbmm", "addmv")
def _addmm(c: Array, x: Array, y: Array, beta: float = 1, alpha: float = 1) -> Array:
    product = np.matmul(x, y)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (c if beta == 1 else c * beta)


@operator("scaled_dot_product_attention")
def _attention(
    q: Array,
    k: Array,
    v: Array,
    mask: Array = None,
    dropout: float = 0.0,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Array:
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
    weights = softmax(scores, -1) if mask is None else safe_softmax(scores, -1)
    return np.matmul(weights, v)


table(
    {
        "mm bmm matmul mv dot": np.matmul,
        "outer ger": np.outer,
        "einsum": lambda expression, arrays, **_: np.einsum(expression, *arrays),
    }
)


# ---- norms


@operator("layer_norm")
def _layer_norm(
    x: Array,
    shape: Sequence[int],
    weight: Array = None,
    bias: Array = None,
    eps: float = 1e-5,
    *_: Any,
) -> Array:
    """Rows with mean 0 and variance 1, times a weight, plus a bias."""
    along = tuple(range(x.ndim - len(shape), x.ndim))
    away = x - np.mean(x, axis=along, keepdims=True)
    rows = away / np.sqrt(np.mean(away * away, axis=along, keepdims=True) + eps)
    rows = rows if weight is None else rows * weight
    return rows if bias is None else rows + bias


@operator("rms_norm")
def _rms_norm(
    x: Array, shape: Sequence[int], weight: Array = None, eps: float | None = None
) -> Array:
    along = tuple(range(x.ndim - len(shape), x.ndim))
    least = float(np.finfo(x.dtype).eps) if eps is None else eps
    rows = x / np.sqrt(np.mean(x * x, axis=along, keepdims=True) + least)
    return rows if weight is None else rows * weight


def channels(x: Array, values: Array) -> Array:
    """Values of each channel, the second axis, beside an array."""
    return np.reshape(values, (-1, *[1] * (x.ndim - 2)))


def _affine(x: Array, normed: Array, weight: Array, bias: Array) -> Array:
    """Returns the product with the weights of each channel, plus a bias."""
    normed = normed if weight is None else normed * channels(x, weight)
    return normed if bias is None else normed + channels(x, bias)


@operator("batch_norm", "_native_batch_norm_legit_no_training")
def _batch_norm(x: Array, weight: Array, bias: Array, mean: Array, var: Array, *rest: Any) -> Any:
    """Channels shifted and scaled by learned parameters."""
    training = len(rest) > 2 and rest[0] is True
    if mean is None:
        raise untraceable(
            "Batch normalisation by the batch's own mean and variance",
            "Let the layer have track_running_stats=True.",
        )
    if training:
        raise untraceable("Batch normalisation in training", "Call module.eval() before.")
    eps = next(r for r in rest[::-1] if isinstance(r, float))
    normed = (x - channels(x, mean)) / np.sqrt(channels(x, var) + eps)
    normed = _affine(x, normed, weight, bias)
    return normed if len(rest) > 2 else (normed, None, None)


@operator("_native_batch_norm_legit")
def _instance_norm(
    x: Array, weight: Array, bias: Array, training: bool, momentum: float, eps: float, *rest: Any
) -> tuple[Array, None, None]:
    """Channels with mean 0 and variance 1, as instance_norm has them."""
    if rest or not training:
        raise untraceable("Batch normalisation in training", "Call module.eval() before.")
    along = (0, *range(2, x.ndim))
    away = x - np.mean(x, axis=along, keepdims=True)
    normed = away / np.sqrt(np.mean(away * away, axis=along, keepdims=True) + eps)
    return _affine(x, normed, weight, bias), None, None


@operator("group_norm")
def _group_norm(
    x: Array, groups: int, weight: Array = None, bias: Array = None, eps: float = 1e-5, *_: Any
) -> Array:
    """Groups of channels with mean 0 and variance 1."""
    parts = np.reshape(x, (x.shape[0], groups, -1))
    normed = np.reshape(_layer_norm(parts, parts.shape[-1:], eps=eps), x.shape)
    return _affine(x, normed, weight, bias)


table(
    {  # without the statistics that training needs
        "native_layer_norm": lambda *args: (_layer_norm(*args), None, None),
        "native_group_norm": lambda x, weight, bias, n, channels, size, groups, eps: (
            _group_norm(x, groups, weight, bias, eps), None, None,
        ),
    }
)  # fmt: skip


@operator("bilinear")
def _bilinear(x: Array, y: Array, weight: Array, bias: Array = None) -> Array:
    product = np.einsum("...i,oij,...j->...o", x, weight, y)
    return product if bias is None else product + bias


@operator("nll_loss", "nll_loss_nd")
def _nll_loss(
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
def _cross_entropy(
    x: Array,
    target: Array,
    weight: Array = None,
    reduction: int = 1,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Array:
    """nll_loss of log_softmax."""
    if label_smoothing:
        raise untraceable("A loss with label_smoothing", "Mix the targets before.")
    return _nll_loss(log_softmax(x, 1), target, weight, reduction, ignore_index)
