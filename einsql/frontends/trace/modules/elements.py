"""ATen's element-wise operators and reductions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from einsql.frontends.trace.array import apply_, combine
from einsql.frontends.trace.elementwise import DEFINITIONS, B, sigmoid
from einsql.frontends.trace.expressions import apply, cast
from einsql.frontends.trace.modules.registry import axes, numpy_dtype, operator, table
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


def _sign(a: Expr) -> Expr:
    """Returns -1, 0 or 1; of NaN 0, where np.sign gives NaN."""
    return cast(a if a.dtype is B else apply("sign", a), a.dtype)


def _sub(x: Array, y: Array, alpha: float = 1) -> Array:
    return np.subtract(x, y if alpha == 1 else np.multiply(y, alpha))


def _div(x: Array, y: Array, rounding_mode: str | None = None) -> Array:
    if rounding_mode == "floor":
        return np.floor_divide(x, y)
    kinds = {getattr(v, "dtype", np.dtype(type(v))).kind for v in (x, y)}
    if rounding_mode == "trunc" and kinds <= {"i", "u"}:
        below = (np.remainder(x, y) != 0) & (np.less(x, 0) != np.less(y, 0))
        floor = np.floor_divide(x, y)  # a quotient of floats would lose digits
        return np.where(below, floor + 1, floor)
    quotient = np.divide(x, y)
    return np.trunc(quotient) if rounding_mode == "trunc" else quotient


table(
    {
        "erf special_erf": _defined(DEFINITIONS["erf"]),
        "erfc": _defined(DEFINITIONS["erfc"]),
        "sigmoid": _defined(sigmoid),
        "sign sgn": _defined(_sign),
        "round": lambda x, decimals=0: np.round(x, decimals),
        "add": lambda x, y, alpha=1: np.add(x, y if alpha == 1 else np.multiply(y, alpha)),
        "sub": _sub,
        "rsub": lambda x, y, alpha=1: _sub(y, x, alpha),
        "div true_divide": _div,
        "rsqrt": lambda x: 1 / np.sqrt(x),
    },
    elementwise=True,
)
table(
    {
        "relu": lambda x: np.maximum(x, 0),
        "silu": lambda x: np.multiply(x, combine(sigmoid, x)),
        "leaky_relu": lambda x, slope=0.01: np.where(x > 0, x, x * slope),
        "log_sigmoid": lambda x: -np.logaddexp(-x, 0),
        "clamp hardtanh clip": lambda x, low=None, high=None: np.clip(x, low, high),
        "relu6": lambda x: np.clip(x, 0, 6),
        "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
        "hardswish": lambda x: x * (np.clip(x + 3, 0, 6) / 6),
        "where": lambda condition, x, y: np.where(condition, x, y),
        "masked_fill": lambda x, mask, value: np.where(mask, value, x),
        "to _to_copy type_as": lambda x, *_, **__: x,  # the graph says in which type
    }
)


@operator("gelu")
def _gelu(x: Array, approximate: str = "none") -> Array:
    """X times the normal distribution at x."""
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))
        return 0.5 * x * (1 + np.tanh(inner))
    return 0.5 * x * (1 + combine(DEFINITIONS["erf"], x * math.sqrt(0.5)))


@operator("elu")
def _elu(x: Array, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Array:
    below = np.expm1(np.where(x > 0, 0, x) * input_scale) * (alpha * scale)
    return np.where(x > 0, x * scale, below)


@operator("softplus")
def _softplus(x: Array, beta: float = 1.0, threshold: float = 20.0) -> Array:
    inner = x * beta
    smooth = np.log1p(np.exp(np.where(inner > threshold, threshold, inner))) / beta
    return np.where(inner > threshold, x, smooth)


# ---- reductions


def _typed(x: Array, dtype: Any) -> Array:
    return x if dtype is None else x.astype(numpy_dtype(dtype))


def _along(function: Callable[..., Array]) -> Callable[..., Array]:
    def run(x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
        return function(_typed(x, dtype), axis=axes(dim), keepdims=keepdim)

    return run


def _extreme(plain: Any, at: Any) -> Callable[..., Any]:
    def run(x: Array, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return plain(x)
        return plain(x, axis=dim, keepdims=keepdim), at(x, axis=dim, keepdims=keepdim)

    return run


table(
    {
        "sum": _along(np.sum), "mean": _along(np.mean), "prod": _along(np.prod),
        "amax": _along(np.max), "amin": _along(np.min), "argmax": _along(np.argmax),
        "argmin": _along(np.argmin), "any": _along(np.any), "all": _along(np.all),
        "max": _extreme(np.max, np.argmax), "min": _extreme(np.min, np.argmin),
        "cumsum": lambda x, dim, dtype=None: np.cumsum(_typed(x, dtype), axis=dim),
    }
)  # fmt: skip


@operator("var")
def _var(
    x: Array, dim: Any = None, unbiased: Any = True, keepdim: bool = False, correction: Any = None
) -> Array:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    degrees = correction if correction is not None else int(bool(unbiased))
    return np.var(x, axis=axes(dim), ddof=degrees, keepdims=keepdim)


operator("std")(lambda *args, **options: np.sqrt(_var(*args, **options)))


@operator("var_mean")
def _var_mean(
    x: Array,
    dim: Any = None,
    unbiased: Any = True,
    keepdim: bool = False,
    correction: Any = None,
) -> tuple[Array, Array]:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    variance = _var(x, dim, unbiased, keepdim=keepdim, correction=correction)
    return variance, np.mean(x, axis=axes(dim), keepdims=keepdim)


@operator("softmax", "_softmax")
def softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    """Exponentials over their sum, by the distance from the greatest.

    Args:
        x: The array.
        dim: The axis.
        dtype: The type of the result; PyTorch's own form has a truth for HALF in its place.
    """
    x = _typed(x, None if isinstance(dtype, bool) else dtype)
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
def log_softmax(x: Array, dim: int, dtype: Any = None) -> Array:
    """The logarithm of softmax; see there for its arguments."""
    x = _typed(x, None if isinstance(dtype, bool) else dtype)
    away = x - np.max(x, axis=dim, keepdims=True)
    return away - np.log(np.sum(np.exp(away), axis=dim, keepdims=True))


@operator("logsumexp")
def _logsumexp(x: Array, dim: Any, keepdim: bool = False) -> Array:
    top = np.max(x, axis=axes(dim), keepdims=True)
    top = np.where(np.isinf(top), 0, top)  # of infinite ones the difference would be NaN
    logarithm = np.log(np.sum(np.exp(x - top), axis=axes(dim), keepdims=True)) + top
    return logarithm if keepdim else np.squeeze(logarithm, axis=axes(dim))


@operator("linalg_vector_norm", "norm")
def _norm(
    x: Array, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Array:
    x, along = _typed(x, dtype), axes(dim)
    if ord in (None, 2, "fro"):
        return np.sqrt(np.sum(x * x, axis=along, keepdims=keepdim))
    if ord == 1:
        return np.sum(np.abs(x), axis=along, keepdims=keepdim)
    if ord != math.inf:
        raise untraceable(f"A norm with ord={ord}", "Write it with abs, ** and sum.")
    return np.max(np.abs(x), axis=along, keepdims=keepdim)


@operator("mse_loss")
def _mse_loss(x: Array, y: Array, reduction: int = 1) -> Array:
    square = apply_(np.square, apply_(np.subtract, x, y))
    return reduced(square, reduction)


def reduced(loss: Array, reduction: int) -> Array:
    """Returns a loss per element, its mean or its sum."""
    return (loss, np.mean(loss), np.sum(loss))[reduction]
