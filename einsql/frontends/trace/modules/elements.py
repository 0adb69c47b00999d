"""ATen's element-wise operators and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from einsql.frontends.trace.array import apply_, combine
from einsql.frontends.trace.elementwise import DEFINITIONS, B, sigmoid
from einsql.frontends.trace.expressions import apply, cast
from einsql.frontends.trace.modules.registry import axes, numpy_dtype, operator
from einsql.frontends.trace.nodes import Expr
from einsql.frontends.trace.source import untraceable

Array = Any

_UNARY = {
    "exp": np.exp, "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "expm1": np.expm1, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin,
    "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "sqrt": np.sqrt,
    "abs": np.abs, "neg": np.negative, "floor": np.floor, "ceil": np.ceil,
    "trunc": np.trunc, "fix": np.trunc, "square": np.square, "reciprocal": np.reciprocal,
    "logical_not": np.logical_not, "bitwise_not": np.invert, "isnan": np.isnan,
    "isinf": np.isinf, "isfinite": np.isfinite, "exp2": np.exp2,
}  # fmt: skip
_BINARY = {
    "mul": np.multiply, "maximum": np.maximum, "minimum": np.minimum, "pow": np.power,
    "atan2": np.arctan2, "remainder": np.remainder, "fmod": np.fmod,
    "floor_divide": np.floor_divide, "eq": np.equal, "ne": np.not_equal, "lt": np.less,
    "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "logical_xor": np.logical_xor, "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or, "bitwise_xor": np.bitwise_xor, "__and__": np.bitwise_and,
    "__or__": np.bitwise_or, "hypot": np.hypot, "logaddexp": np.logaddexp, "fmin": np.fmin,
    "fmax": np.fmax,
}  # fmt: skip
for _name, _ufunc in (_UNARY | _BINARY).items():
    operator(_name, elementwise=True)(lambda *args, _ufunc=_ufunc: _ufunc(*args))


def _defined(definition: Callable[..., Expr]) -> Callable[[Array], Array]:
    return lambda x: combine(definition, x)


operator("erf", "special_erf", elementwise=True)(_defined(DEFINITIONS["erf"]))
operator("erfc", elementwise=True)(_defined(DEFINITIONS["erfc"]))
operator("sigmoid", elementwise=True)(_defined(sigmoid))


@operator("sign", "sgn", elementwise=True)
def sign(x: Array) -> Array:
    """-1, 0 or 1; of NaN 0, which NumPy leaves."""
    return combine(lambda a: cast(a if a.dtype is B else apply("sign", a), a.dtype), x)


@operator("round", elementwise=True)
def round_(x: Array, decimals: int = 0) -> Array:
    """The nearest number of so many decimals, halves to even."""
    return np.round(x, decimals)


@operator("add", elementwise=True)
def add(x: Array, y: Array, alpha: float = 1) -> Array:
    """X + alpha · y."""
    return np.add(x, y if alpha == 1 else np.multiply(y, alpha))


@operator("sub", elementwise=True)
def sub(x: Array, y: Array, alpha: float = 1) -> Array:
    """X - alpha · y."""
    return np.subtract(x, y if alpha == 1 else np.multiply(y, alpha))


@operator("rsub", elementwise=True)
def rsub(x: Array, y: Array, alpha: float = 1) -> Array:
    """Y - alpha · x."""
    return sub(y, x, alpha)


@operator("div", "true_divide", elementwise=True)
def div(x: Array, y: Array, rounding_mode: str | None = None) -> Array:
    """X / y, rounded if that is asked for."""
    if rounding_mode == "floor":
        return np.floor_divide(x, y)
    quotient = np.divide(x, y)
    return np.trunc(quotient) if rounding_mode == "trunc" else quotient


@operator("rsqrt", elementwise=True)
def rsqrt(x: Array) -> Array:
    """1 / √x."""
    return 1 / np.sqrt(x)


@operator("relu")
def relu(x: Array) -> Array:
    """max(x, 0)."""
    return np.maximum(x, 0)


@operator("silu")
def silu(x: Array) -> Array:
    """X · sigmoid(x)."""
    return np.multiply(x, combine(sigmoid, x))


@operator("gelu")
def gelu(x: Array, approximate: str = "none") -> Array:
    """X times the normal distribution at x."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1 + np.tanh(inner))
    return 0.5 * x * (1 + combine(DEFINITIONS["erf"], x * math.sqrt(0.5)))


@operator("leaky_relu")
def leaky_relu(x: Array, slope: float = 0.01) -> Array:
    """X, or slope · x below 0."""
    return np.where(x > 0, x, x * slope)


@operator("elu")
def elu(x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    """X, or α (exp(x) - 1) below 0."""
    below = np.expm1(np.where(x > 0, 0, x) * input_scale) * (alpha * scale)
    return np.where(x > 0, x * scale, below)


@operator("softplus")
def softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    """ln(1 + exp(βx)) / β."""
    inner = x * beta
    smooth = np.log1p(np.exp(np.where(inner > threshold, threshold, inner))) / beta
    return np.where(inner > threshold, x, smooth)


@operator("log_sigmoid")
def log_sigmoid(x: Array) -> Array:
    """ln(1 / (1 + exp(-x)))."""
    return -np.logaddexp(-x, 0)


@operator("clamp", "hardtanh", "clip")
def clamp(x: Array, low: Array = None, high: Array = None) -> Array:
    """X within limits."""
    return np.clip(x, low, high)


@operator("relu6")
def relu6(x: Array) -> Array:
    """X within 0 and 6."""
    return np.clip(x, 0, 6)


@operator("hardsigmoid")
def hardsigmoid(x: Array) -> Array:
    """(x + 3) / 6 within 0 and 1."""
    return np.clip(x + 3, 0, 6) / 6


@operator("hardswish")
def hardswish(x: Array) -> Array:
    """X · hardsigmoid(x)."""
    return x * hardsigmoid(x)


@operator("where")
def where(condition: Array, x: Array, y: Array) -> Array:
    """X where the condition holds, else y."""
    return np.where(condition, x, y)


@operator("masked_fill")
def masked_fill(x: Array, mask: Array, value: Any) -> Array:
    """The value where the mask holds, else x."""
    return np.where(mask, value, x)


@operator("to", "_to_copy", "type_as")
def to(x: Array, *args: Any, dtype: Any = None, **options: Any) -> Array:
    """X in another type; the graph says which."""
    return x


# ---- reductions


def _typed(x: Array, dtype: Any) -> Array:
    return x if dtype is None else x.astype(numpy_dtype(dtype))


@operator("sum")
def sum_(x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """Sums along dimensions."""
    return np.sum(_typed(x, dtype), axis=axes(dim), keepdims=keepdim)


@operator("mean")
def mean(x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """Means along dimensions."""
    return np.mean(_typed(x, dtype), axis=axes(dim), keepdims=keepdim)


@operator("amax")
def amax(x: Array, dim: Any = (), keepdim: bool = False) -> Array:
    """Greatest elements along dimensions."""
    return np.max(x, axis=axes(dim), keepdims=keepdim)


@operator("amin")
def amin(x: Array, dim: Any = (), keepdim: bool = False) -> Array:
    """Least elements along dimensions."""
    return np.min(x, axis=axes(dim), keepdims=keepdim)


def _extreme(plain: Any, at: Any) -> Callable[..., Any]:
    def run(x: Array, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return plain(x)
        return plain(x, axis=dim, keepdims=keepdim), at(x, axis=dim, keepdims=keepdim)

    return run


operator("max")(_extreme(np.max, np.argmax))
operator("min")(_extreme(np.min, np.argmin))


@operator("argmax")
def argmax(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The index of the greatest element."""
    return np.argmax(x, axis=dim, keepdims=keepdim)


@operator("argmin")
def argmin(x: Array, dim: int | None = None, keepdim: bool = False) -> Array:
    """The index of the least element."""
    return np.argmin(x, axis=dim, keepdims=keepdim)


@operator("any")
def any_(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    """Whether any element is not 0."""
    return np.any(x, axis=axes(dim), keepdims=keepdim)


@operator("all")
def all_(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    """Whether no element is 0."""
    return np.all(x, axis=axes(dim), keepdims=keepdim)


@operator("prod")
def prod(x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    """Products along a dimension."""
    return np.prod(_typed(x, dtype), axis=axes(dim), keepdims=keepdim)


@operator("cumsum")
def cumsum(x: Array, dim: int, dtype: Any = None) -> Array:
    """Sums up to each element."""
    return np.cumsum(_typed(x, dtype), axis=dim)


@operator("var")
def var(
    x: Array, dim: Any = None, unbiased: Any = True, keepdim: bool = False, correction: Any = None
) -> Array:
    """Variances along dimensions."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    degrees = correction if correction is not None else int(bool(unbiased))
    return np.var(x, axis=axes(dim), ddof=degrees, keepdims=keepdim)


@operator("std")
def std(*args: Any, **options: Any) -> Array:
    """Standard deviations along dimensions."""
    return np.sqrt(var(*args, **options))


@operator("var_mean")
def var_mean(x: Array, dim: Any = None, *args: Any, **options: Any) -> tuple[Array, Array]:
    """Variances and means."""
    keep = options.get("keepdim", False)
    return var(x, dim, *args, **options), mean(x, dim, keep)


@operator("softmax", "_softmax")
def softmax(x: Array, dim: int, *_: Any, dtype: Any = None) -> Array:
    """Exponentials over their sum, by the distance from the greatest."""
    x = _typed(x, dtype)
    e = np.exp(x - np.max(x, axis=dim, keepdims=True))
    return e / np.sum(e, axis=dim, keepdims=True)


@operator("_safe_softmax")
def safe_softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    """Softmax that gives 0 for rows of -inf."""
    x = _typed(x, dtype)
    top = np.maximum(np.max(x, axis=dim, keepdims=True), np.finfo(x.dtype).min)
    e = np.exp(x - top)
    return e / np.maximum(np.sum(e, axis=dim, keepdims=True), 1)  # 0 or at least 1


@operator("log_softmax", "_log_softmax")
def log_softmax(x: Array, dim: int, *_: Any, dtype: Any = None) -> Array:
    """The logarithm of softmax."""
    x = _typed(x, dtype)
    away = x - np.max(x, axis=dim, keepdims=True)
    return away - np.log(np.sum(np.exp(away), axis=dim, keepdims=True))


@operator("logsumexp")
def logsumexp(x: Array, dim: Any, keepdim: bool = False) -> Array:
    """The logarithm of the sum of exponentials."""
    top = np.max(x, axis=axes(dim), keepdims=True)
    top = np.where(np.isinf(top), 0, top)  # of infinite ones the difference would be NaN
    logarithm = np.log(np.sum(np.exp(x - top), axis=axes(dim), keepdims=True)) + top
    return logarithm if keepdim else np.squeeze(logarithm, axis=axes(dim))


@operator("linalg_vector_norm", "norm")
def norm(
    x: Array, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Array:
    """Norms of vectors."""
    x, along = _typed(x, dtype), axes(dim)
    if ord in (None, 2, "fro"):
        return np.sqrt(np.sum(x * x, axis=along, keepdims=keepdim))
    if ord == 1:
        return np.sum(np.abs(x), axis=along, keepdims=keepdim)
    if ord != math.inf:
        raise untraceable(f"A norm with ord={ord}", "Write it with abs, ** and sum.")
    return np.max(np.abs(x), axis=along, keepdims=keepdim)


@operator("mse_loss")
def mse_loss(x: Array, y: Array, reduction: int = 1) -> Array:
    """The mean, or sum, of squared differences."""
    square = apply_(np.square, apply_(np.subtract, x, y))
    return reduced(square, reduction)


def reduced(loss: Array, reduction: int) -> Array:
    """A loss as it is, its mean or its sum."""
    return (loss, np.mean(loss), np.sum(loss))[reduction]
