"""NumPy functions that are composed of other traced functions."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from einsql.frontends.trace.arguments import NO_VALUE
from einsql.frontends.trace.array import TracedArray, implements
from einsql.frontends.trace.shapes import axis_of, ravel
from einsql.frontends.trace.source import untraceable


def _along(a: Any, axis: int, part: slice) -> Any:
    return a[(slice(None),) * axis + (part,)]


# ---- differences and products


@implements(np.diff)
def _diff(
    a: TracedArray, n: int = 1, axis: int = -1, prepend: Any = NO_VALUE, append: Any = NO_VALUE
) -> TracedArray:
    if prepend is not NO_VALUE or append is not NO_VALUE:
        raise untraceable("np.diff with prepend or append", "np.concatenate them before.")
    if operator.index(n) < 0:
        raise ValueError(f"order must be non-negative but got {n}")
    at = axis_of(axis, a.ndim)
    for _ in range(n):
        above, below = _along(a, at, slice(1, None)), _along(a, at, slice(None, -1))
        a = above != below if a.dtype == np.bool_ else above - below
    return a


@implements(np.ediff1d)
def ediff1d(ary: TracedArray) -> TracedArray:
    """np.ediff1d without `to_begin` and `to_end`."""
    return _diff(ravel(ary))


@implements(np.trapezoid)
def _trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Any:
    y = y if isinstance(y, TracedArray) else np.asanyarray(y)
    at = axis_of(axis, y.ndim)
    means = (_along(y, at, slice(1, None)) + _along(y, at, slice(None, -1))) / 2.0
    steps: Any = dx
    if x is not None:
        x = x if isinstance(x, TracedArray) else np.asanyarray(x)
        steps = np.diff(x, axis=0 if x.ndim == 1 else at)
        if x.ndim == 1:
            steps = np.reshape(steps, (-1,) + (1,) * (y.ndim - at - 1))
    return (means * steps).sum(axis=at)


@implements(np.kron)
def _kron(a: Any, b: Any) -> Any:
    rank = max(np.ndim(a), np.ndim(b))
    left, right = ((1,) * (rank - np.ndim(v)) + np.shape(v) for v in (a, b))
    spread = np.reshape(a, [e for n in left for e in (n, 1)])
    within = np.reshape(b, [e for n in right for e in (1, n)])
    return np.reshape(spread * within, [m * n for m, n in zip(left, right, strict=True)])


@implements(np.cross)
def cross(a: Any, b: Any) -> Any:
    """np.cross of vectors with three components along the last axis."""
    if np.shape(a)[-1:] != (3,) or np.shape(b)[-1:] != (3,):
        raise untraceable("np.cross of other than three components", "Write its products.")
    (p, q, r), (u, v, w) = ([c[..., n] for n in range(3)] for c in (a, b))
    return np.stack([q * w - r * v, r * u - p * w, p * v - q * u], axis=-1)


@implements(np.linalg.multi_dot)
def multi_dot(arrays: Sequence[Any]) -> Any:
    """np.linalg.multi_dot; the planner orders the products."""
    return reduce(np.dot, arrays)


@implements(np.polyval)
def _polyval(p: Any, x: Any) -> Any:
    total: Any = np.zeros_like(x)
    for n in range(np.shape(p)[0]):
        total = total * x + p[n]
    return total


@implements(np.vander)
def _vander(
    x: TracedArray,
    N: int | None = None,  # noqa: N803 - as NumPy names it
    increasing: bool = False,
) -> Any:
    if x.ndim != 1:
        raise ValueError("x must be a one-dimensional array or sequence.")
    x = x.astype(np.promote_types(x.dtype, int))
    powers: list[Any] = [np.ones_like(x)]
    for _ in range(x.shape[0] if N is None else N):
        powers.append(powers[-1] * x)
    return np.stack(powers[:-1] if increasing else powers[-2::-1], axis=1)


@implements(np.cov)
def cov(
    m: TracedArray, y: Any = None, rowvar: bool = True, bias: bool = False, ddof: int | None = None
) -> Any:
    """np.cov of the rows of one array."""
    if y is not None or m.ndim > 2:
        raise untraceable("np.cov of this", "np.stack the variables as rows of one array.")
    m = m.astype(np.result_type(m.dtype, np.float64))
    x = m if rowvar or m.ndim == 1 else m.T
    centred = x - x.mean(axis=-1, keepdims=True)
    count = x.shape[-1] - ((0 if bias else 1) if ddof is None else ddof)
    return np.squeeze(np.matmul(centred, centred.T) / float(max(count, 0)))


@implements(np.corrcoef)
def corrcoef(x: TracedArray, y: Any = None, rowvar: bool = True) -> Any:
    """np.corrcoef of the rows of one matrix."""
    covariances = cov(x, y, rowvar)
    if not covariances.ndim:
        return covariances / covariances
    deviations = np.sqrt(np.diagonal(covariances))
    return np.clip(covariances / deviations[:, None] / deviations[None, :], -1, 1)


# ---- closeness and missing values


@implements(np.isclose)
def _isclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    near = (np.isfinite(b) & (np.abs(a - b) <= atol + rtol * np.abs(b))) | (a == b)
    return near | (np.isnan(a) & np.isnan(b)) if equal_nan else near


@implements(np.allclose)
def allclose(a: Any, b: Any, rtol: Any = 1e-5, atol: Any = 1e-8, equal_nan: bool = False) -> Any:
    """np.allclose, as an array of rank 0."""
    return _isclose(a, b, rtol, atol, equal_nan).all()


@implements(np.nan_to_num)
def _nan_to_num(
    x: TracedArray, copy: bool = True, nan: float = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    if not copy:
        raise untraceable(
            "np.nan_to_num with copy=False", "Assign the result: x = np.nan_to_num(x)."
        )
    if x.dtype.kind != "f":
        return np.copy(x)
    most = np.finfo(x.dtype).max
    ends = [float(most if posinf is None else posinf), float(-most if neginf is None else neginf)]
    finite = np.where(np.isnan(x), x.dtype.type(nan), x)
    finite = np.where(finite == np.inf, x.dtype.type(ends[0]), finite)
    return np.where(finite == -np.inf, x.dtype.type(ends[1]), finite)


def _filled(a: Any, value: float) -> Any:
    return np.where(np.isnan(a), a.dtype.type(value), a) if a.dtype.kind == "f" else a


@implements(np.nansum)
def _nansum(a: TracedArray, axis: Any = None, *, keepdims: bool = False) -> Any:
    return _filled(a, 0).sum(axis=axis, keepdims=keepdims)


implements(np.nanprod)(
    lambda a, axis=None, *, keepdims=False: _filled(a, 1).prod(axis=axis, keepdims=keepdims)
)


@implements(np.nanmean)
def _nanmean(a: TracedArray, axis: Any = None, *, keepdims: bool = False) -> Any:
    if a.dtype.kind != "f":
        return a.mean(axis=axis, keepdims=keepdims)
    count = (~np.isnan(a)).sum(axis=axis, keepdims=keepdims)
    return _nansum(a, axis, keepdims=keepdims) / count.astype(a.dtype)


@implements(np.nanmax)
def nanmax(a: TracedArray, axis: Any = None, *, keepdims: bool = False) -> Any:
    """np.nanmax; NaN if all elements are NaN."""
    if a.dtype.kind != "f":
        return a.max(axis=axis, keepdims=keepdims)
    none = np.isnan(a).all(axis=axis, keepdims=keepdims)
    maximum = _filled(a, -np.inf).max(axis=axis, keepdims=keepdims)
    return np.where(none, a.dtype.type(np.nan), maximum)


@implements(np.nanmin)
def nanmin(a: TracedArray, axis: Any = None, *, keepdims: bool = False) -> Any:
    """np.nanmin; NaN if all elements are NaN."""
    if a.dtype.kind != "f":
        return a.min(axis=axis, keepdims=keepdims)
    return -nanmax(-a, axis, keepdims=keepdims)


@implements(np.sinc)
def _sinc(x: TracedArray) -> Any:
    y = np.pi * np.where(x == 0, 1.0e-20, x)
    return np.sin(y) / y


@implements(np.select)
def _select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    if len(condlist) != len(choicelist):
        raise ValueError("list of cases must be same length as list of conditions")
    values = [*choicelist, default]
    dtype = np.result_type(*(getattr(v, "dtype", v) for v in values))
    chosen = default
    for condition, choice in zip(reversed(condlist), reversed(choicelist), strict=True):
        chosen = np.where(condition, choice, chosen)
    return chosen.astype(dtype)


# ---- places


implements(np.fix)(lambda x: np.trunc(x))
implements(np.fliplr)(lambda m: np.flip(m, 1))
implements(np.flipud)(lambda m: np.flip(m, 0))


@implements(np.rot90)
def _rot90(m: TracedArray, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Any:
    first, second = (axis_of(n, m.ndim) for n in axes)
    turned: Any = m
    for _ in range(k % 4):
        turned = np.flip(np.swapaxes(turned, first, second), first)
    return turned


@implements(np.column_stack)
def _column_stack(tup: Sequence[Any]) -> Any:
    return np.concatenate([v[:, None] if np.ndim(v) == 1 else v for v in tup], axis=1)


@implements(np.append)
def _append(arr: Any, values: Any, axis: int | None = None) -> Any:
    if axis is None:
        return np.concatenate([np.ravel(arr), np.ravel(values)])
    return np.concatenate([arr, values], axis=axis)


@implements(np.unstack)
def _unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    moved = np.moveaxis(x, axis, 0)
    return tuple(moved[n] for n in range(moved.shape[0]))


@implements(np.atleast_2d)
def _atleast_2d(*arys: Any) -> Any:
    matrices = [np.reshape(a, (1,) * (2 - np.ndim(a)) + np.shape(a)) for a in arys]
    return matrices[0] if len(matrices) == 1 else tuple(matrices)
