"""Every function of NumPy that can be traced, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import einsql
from einsql.frontends.trace.array import FUNCTIONS
from einsql.frontends.trace.elementwise import DEFINITIONS
from tests.support.samples import spread

Array = Any
RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4, 5))
A, B = RNG.standard_normal((4, 6)), RNG.standard_normal((6, 4))
N = RNG.integers(-9, 9, (4, 6))
ROW = np.array([2, 0, -1])

CALLS: dict[str, Callable[..., Any]] = {
    "reshape": lambda x: np.reshape(x, (2, -1, 6)),
    "merge": lambda x: x.reshape(12, 5),
    "split an axis": lambda x: x.reshape(3, 2, 2, 5),
    "across": lambda x: x.reshape(5, 12),
    "ravel": np.ravel,
    "transpose": lambda x: x.transpose(2, 0, 1),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "swapaxes": lambda x: x.swapaxes(0, 2),
    "moveaxis": lambda x: np.moveaxis(x, 0, -1),
    "expand_dims": lambda x: np.expand_dims(x, (0, 2)),
    "squeeze": lambda x: np.squeeze(x[:, :1]),
    "broadcast_to": lambda x: np.broadcast_to(x[0], (3, 4, 5)),
    "flip": np.flip,
    "roll": lambda x: np.roll(x, 2, 1) + np.roll(x, -7),
    "repeat": lambda x: np.repeat(x, 3, 1),
    "tile": lambda x: np.tile(x, (2, 1, 3)),
    "concatenate": lambda x: np.concatenate([x, x[:, :2], x], axis=1),
    "stack": lambda x: np.stack([x, -x, x * 2], axis=-1),
    "vstack": lambda x: np.vstack([x[0, 0], x[0, 1]]),
    "hstack": lambda x: np.hstack([x[0], x[1]]),
    "split": lambda x: np.split(x, 2, axis=1)[1],
    "array_split": lambda x: np.array_split(x, [1, 3], axis=1)[1],
    "pad": lambda x: np.pad(x, ((1, 0), (0, 2), (1, 1)), constant_values=3),
    "tril": lambda x: np.tril(x, 1),
    "triu": lambda x: np.triu(x, -1),
    "diagonal": lambda x: np.diagonal(x, 1, 1, 2),
    "diag": lambda x: np.diag(x[0, 0], -1) + np.diag(x[0]).sum(),
    "trace": lambda x: np.trace(x, axis1=1, axis2=2),
    "zeros_like": lambda x: np.zeros_like(x) + np.ones_like(x) + np.full_like(x, 7),
    "copy": lambda x: x.copy() + np.copy(x),
    "take": lambda x: np.take(x, ROW, axis=1),
    "take_along_axis": lambda x: np.take_along_axis(x, np.argmax(x, 1, keepdims=True), 1),
    "gather": lambda x: x[ROW, :, ROW],
    "gathered rows": lambda x: x[ROW[:, None], ROW],
    "boundaries": lambda x: x[-1, ::-2, 1:100],
    "newaxis": lambda x: x[None, ..., None, 0],
    "argmax of negatives": lambda x: x[np.argmax(-np.abs(x).sum((1, 2)))],
    "where": lambda x: np.where(x > 0.5, x, -1),
    "clip": lambda x: np.clip(x, -1, 0.5) + np.clip(x, None, 0),
    "sum": lambda x: x.sum((0, -1), keepdims=True) + np.sum(x),
    "prod": lambda x: np.prod(x, axis=1),
    "mean": lambda x: x.mean(1) + np.average(x),
    "var": lambda x: x.var(1) + x.var(1, ddof=1) + x.std(),
    "max": lambda x: x.max(0) + np.amax(x) - x.min(0) - np.amin(x) + np.ptp(x),
    "any": lambda x: np.any(x > 1, axis=0) ^ np.all(x > -1, axis=0),
    "count_nonzero": lambda x: np.count_nonzero(x > 0, axis=1),
    "argmin": lambda x: np.argmin(x, axis=2) + np.argmax(x),
    "norm": lambda x: np.linalg.norm(x) + np.linalg.norm(x, axis=1),
    "other norms": lambda x: np.linalg.norm(x, 1, 0) + np.linalg.norm(x, np.inf, axis=0),
    "cumsum": lambda x: np.cumsum(x, axis=1) + np.cumsum(x).sum(),
    "dot": lambda x: np.dot(x, A.T[:5]),
    "inner": lambda x: np.inner(x, x[0]),
    "outer": lambda x: np.outer(x[0, 0], x[0, 1]) + np.multiply.outer(x[0, 0], x[0, 1]),
    "vdot": lambda x: np.vdot(x, x),
    "vecdot": lambda x: np.vecdot(x, x),
    "tensordot": lambda x: np.tensordot(x, x, axes=([0, 1], [0, 1])),
    "matmul": lambda x: x @ x.mT @ x,
    "vectors": lambda x: x @ x[0, 0] + x[0, 0] @ x[0, 1],
    "einsum": lambda x: np.einsum("aij,akj->ik", x, x) + np.einsum("...j,j", x, x[0, 0])[0, 0],
    "diagonal einsum": lambda x: np.einsum("aii->a", x[:, :, :4]),
    "reduce": lambda x: np.maximum.reduce(x, axis=0) + np.multiply.reduce(x),
    "arange": lambda x: x * np.arange(5) + np.arange(4)[:, None] % 3,
    "eye": lambda x: x @ np.eye(5) + np.eye(4, 5, 1) + np.full((4, 5), 2.5),
    "triangles": lambda x: x * np.tri(4, 5, 1) + np.triu(np.full((4, 5), -2.0), 2),
    "linspace": lambda x: x + np.linspace(0, 1, 5),
    "shape": lambda x: x * len(x) * np.shape(x)[1] * np.size(x) * np.ndim(x),
    "iteration": lambda x: sum(row.sum() for row in x),
    "compared with itself": lambda x: (x == x) & (x >= x) & ~(x != x),
    "broadcast_arrays": lambda x: np.broadcast_arrays(x, x[0])[1] + x,
    "in place": lambda x: added(x),
    "assignment": lambda x: assigned(x),
    "average": lambda x: np.average(x, 1, [1.0, 2, 0, 4]) + np.average(x, weights=np.abs(x)),
    "average over several": lambda x: np.average(x[:, :4, :4], (2, 0), np.abs(x[:, 0, :4]).T),
    "types by position": lambda x: np.full_like(x, 2.7, np.int32) + np.ones_like(x, np.int8),
    "full_like an array": lambda x: np.full_like(x, x[0, 0]) + np.zeros_like(x, np.float32),
    "types of ufuncs": lambda x: np.add(x, x, dtype=np.float32) + np.multiply(2, x, dtype="f8"),
    "out": lambda x: np.add(x, 1, out=x * 2) + np.sum(x, 0, out=x[0] * 1)[None],
    "where of ufuncs": lambda x: np.add(x, 1, out=x * 2, where=x > 0),
    "accumulate": lambda x: np.add.accumulate(x, axis=1),
    "cumsum of many": lambda x: np.cumsum(np.tile(x, (1, 1, 30)), axis=2) + np.cumsum(x).sum(),
    "round": lambda x: np.around(x, 1) + x.round() - np.round(x * 100, -1),
    "triangles of a vector": lambda x: np.tril(x[0, 0]) + np.triu(x[0, 1], 1),
    "rolled along two": lambda x: np.roll(x, (1, -2), (0, 2)),
    "uneven parts": lambda x: np.array_split(x, 3, axis=2)[1],
    "repeated never": lambda x: np.repeat(x, 0, 1).sum() + np.tile(x, 0).sum(),
    "beyond the type": lambda x: (x.astype(np.int8) < 300) & (x.astype(np.int32) != 10**30),
    "truths": lambda x: np.fmin(x > 0, x > 1) ^ np.fmax(x > 0, x > 1),
    "diff": lambda x: np.diff(x, 2) + np.diff(x > 0, axis=1).sum(),
    "ediff1d": np.ediff1d,
    "trapezoid": lambda x: np.trapezoid(x, dx=0.5) + np.trapezoid(x, np.arange(5.0) ** 2),
    "trapezoid along": lambda x: np.trapezoid(x, np.arange(4.0) ** 2, axis=1),
    "kron": lambda x: np.kron(x[0], x[1, :2]) + np.kron(x[0, 0], x[0]).sum(),
    "cross": lambda x: np.cross(x[..., :3], x[::-1, :, 2:]),
    "multi_dot": lambda x: np.linalg.multi_dot([x[0], x[1].T, x[2]]),
    "polyval": lambda x: np.polyval([1.0, 2, 3], x) + np.polyval(x[0, 0], x),
    "vander": lambda x: np.vander(x[0, 0], 3),
    "vander up": lambda x: np.vander(x[0, 0], increasing=True),
    "cov": lambda x: np.cov(x[0]) + np.cov(x[0, 0]) + np.cov(x[0].T, rowvar=False, bias=True),
    "corrcoef": lambda x: np.corrcoef(x[0]),
    "isclose": lambda x: np.isclose(x, np.round(x, 5)) | np.isclose(x, x + 1e-4, atol=1e-3),
    "isclose of infinities": lambda x: np.isclose(np.where(x > 0, np.inf, x), np.inf),
    "allclose": lambda x: (x > 0) & np.allclose(x, x + 1e-9),
    "nan_to_num": lambda x: np.nan_to_num(np.where(x > 0, x, np.nan)),
    "nan_to_num of infinities": lambda x: (
        np.nan_to_num(np.where(x > 0, np.inf, x), posinf=7.0)
        + np.nan_to_num(np.where(x > 0, -np.inf, x), neginf=-8.0)
    ),
    "nansum": lambda x: np.nansum(np.where(x > 0, x, np.nan), axis=1),
    "nanprod": lambda x: np.nanprod(np.where(x > 0, x, np.nan), axis=0, keepdims=True),
    "nanmean": lambda x: np.nanmean(np.where(x > 0, x, np.nan)),
    "nanmax": lambda x: np.nanmax(np.where(x > 0, x, np.nan), axis=(1, 2)),
    "nanmin": lambda x: np.nanmin(np.where(x > 0, x, np.nan), axis=(1, 2)),
    "sinc": lambda x: np.sinc(np.where(x > 0, x, 0.0)),
    "fix": lambda x: np.fix(x * 3),
    "select": lambda x: np.select([x > 1, x > 0], [x, x * 2], -1.0),
    "fliplr": np.fliplr,
    "flipud": np.flipud,
    "rot90": lambda x: np.rot90(x, 3, (1, 2)),
    "column_stack": lambda x: np.column_stack([x[0, 0], x[0].T]),
    "append": lambda x: np.append(x, x[:1], axis=0),
    "append flat": lambda x: np.append(x, x[0]),
    "unstack": lambda x: np.unstack(x, axis=1)[2],
    "atleast_2d": lambda x: np.atleast_2d(x[0, 0]),
    "powers": lambda x: np.float_power(x - np.inf, 0.5) + np.abs(x) ** np.float64(0.5),
}


def assigned(x: Array) -> Array:
    y = x * 2
    y[1:, 0] = x[0, 0]
    return y


def added(x: Array) -> Array:
    y = x * 1
    z = y
    y += 2
    y *= x
    return z + y


@pytest.mark.parametrize("name", spread(CALLS, 40))
def test_functions_give_what_numpys_give(name: str) -> None:
    expected = CALLS[name](X)
    found = einsql.trace(CALLS[name], X)(X)
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


SIGNED: dict[str, Callable[[Array], Array]] = {
    "rint": np.rint, "round": np.round, "trunc": np.trunc, "ceil": np.ceil, "floor": np.floor,
    "remainder": lambda x: x % -2.0, "negative divisors": lambda x: x % x[::-1],
    "floor_divide": lambda x: x // 2.0, "other quotients": lambda x: x // x[::-1],
}  # fmt: skip


@pytest.mark.parametrize("name", SIGNED)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeros_have_the_sign_that_numpy_gives_them(name: str, dtype: Any) -> None:
    x = np.array([-0.0, 0.0, -0.3, 0.3, 0.5, -0.5, 1.5, -1.5, 2.5, -2.0, 4.0], dtype)
    with np.errstate(all="ignore"):
        expected = SIGNED[name](x)
        found = einsql.trace(SIGNED[name], x)(x)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(found), np.signbit(expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_keep_their_precision_far_out(dtype: Any) -> None:
    x = np.linspace(-6, 26, 200).astype(dtype)
    near = 5e-7 if dtype is np.float32 else 1e-13
    np.testing.assert_allclose(
        einsql.trace(lambda x: special.erfc(x), x)(x), special.erfc(x), rtol=near
    )
    info = np.finfo(dtype)
    a = np.array([info.max / 2, info.tiny, info.tiny / 4, 3, 0, np.inf, -np.inf, np.nan], dtype)
    pair = a[:, None] * np.ones_like(a), a
    with np.errstate(all="ignore"):
        expected = np.hypot(*pair)
    found = einsql.trace(lambda a, b: np.hypot(a, b), *pair)(*pair)
    np.testing.assert_allclose(found, expected, rtol=float(4 * info.eps))


SPECIAL = ("erf", "erfc", "expit", "gammaln")
SEEN = np.array([-np.inf, -3.5, -1.0, -0.5, 0.0, 1e-9, 0.5, 1.0, 2.5, 300.0, np.inf, np.nan])


@pytest.mark.parametrize("name", spread(DEFINITIONS, 25))
def test_element_wise_functions_give_what_numpys_give(name: str) -> None:
    ufunc = getattr(special if name in SPECIAL else np, name)
    x = SEEN
    with np.errstate(all="ignore"):
        if name in ("bitwise_and", "bitwise_or", "bitwise_xor", "invert"):
            x = np.arange(-6, 6)
        arrays = (x,) if ufunc.nin == 1 else (x[:, None] * np.ones_like(x), x)
        expected = ufunc(*arrays)
        found = einsql.trace(lambda *given: ufunc(*given), *arrays)(*arrays)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-300)


def test_every_function_is_tried() -> None:
    """A function that nobody traces here would be one that nobody has tested."""
    tried: set[object] = set()
    for function, made in list(FUNCTIONS.items()):

        def seen(*args: Any, _f: object = function, _made: Any = made, **options: Any) -> Any:
            tried.add(_f)
            return _made(*args, **options)

        FUNCTIONS[function] = seen
    try:
        for call in CALLS.values():
            einsql.trace(call, X)
    finally:
        for function, made in list(FUNCTIONS.items()):
            wrapped: Any = made
            FUNCTIONS[function] = wrapped.__kwdefaults__["_made"]
    left = {getattr(f, "__name__", f) for f in FUNCTIONS if f not in tried}
    assert left <= {"matrix_transpose", "empty_like"}
