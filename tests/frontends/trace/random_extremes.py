"""Random NumPy programs over extremes: ±inf, NaN, ±0, empty arrays, views, changes in place."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy import special

from tests.frontends.trace.random_programs import FLOATS, Program, Writer

Array = Any

SEEN = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -1.5, 0.5, 2.5)
UNARY: tuple[Callable[..., Array], ...] = (
    np.rint, np.trunc, np.floor, np.sign, np.square, np.sqrt, np.cbrt, np.reciprocal, np.expm1,
    np.log1p, np.exp2, np.arctan, np.tanh, np.sinh, np.degrees, np.isnan, np.isinf, np.isfinite,
    np.logical_not, special.erf, special.erfc, np.positive, np.fabs, np.log,
    lambda x: special.expit(x), lambda x: np.round(x, 1), lambda x: x.round(), lambda x: x ** 3,
    lambda x: x ** 0.5, lambda x: x ** -1, lambda x: 2.0 ** np.clip(x, -9, 9), lambda x: x % -2.5,
    lambda x: x // 0.5, lambda x: np.fmod(x, 1.5), lambda x: np.clip(x, -1, None),
    lambda x: np.clip(x, x.dtype.type(-1), 2), lambda x: np.float_power(x, 0.5),
    lambda x: np.multiply(x, 2, dtype=np.float64), lambda x: np.where(x == x, x, 3),
    lambda x: x != np.inf, lambda x: np.full_like(x, np.nan), lambda x: np.zeros_like(x, np.int32),
    lambda x: x > 10.0 ** 300,
)  # fmt: skip
WHOLE: tuple[Callable[..., Array], ...] = (
    np.sign, np.sqrt, np.rint, np.floor, np.trunc, np.exp, np.tanh, np.isnan, np.logical_not,
    np.positive, np.invert, lambda x: x < 300, lambda x: x >= -(10 ** 25), lambda x: x == 2.0 ** 70,
    lambda x: np.add(x, 1, dtype=np.int64), lambda x: x.astype(np.int64) % -3, lambda x: x / 0,
    lambda x: np.round(x, 2), lambda x: x.astype(np.float32) // 2, lambda x: np.clip(x, -2, 2),
    lambda x: np.ones_like(x, dtype=bool), lambda x: np.full_like(x, 2.75), lambda x: -x * 1.5,
    lambda x: np.minimum(x, 3), lambda x: np.fmax(x, -1), lambda x: abs(x) ** 0.5,
)  # fmt: skip
TRUTHS: tuple[Callable[..., Array], ...] = (
    np.logical_not, np.invert, lambda x: x * 2, lambda x: x + True, lambda x: x < 2,
    lambda x: x & True, lambda x: x | (x ^ x), lambda x: np.fmin(x, ~x), lambda x: x * 0.5,
    lambda x: np.maximum(x, False), lambda x: np.where(x, 1.5, -0.0), lambda x: x.astype(np.int8),
    lambda x: np.logical_xor(x, True), lambda x: np.sqrt(x), lambda x: np.square(x),
)  # fmt: skip
BINARY: tuple[Callable[..., Array], ...] = (
    np.hypot, np.logaddexp, np.fmod, np.remainder, np.floor_divide, np.divide, np.minimum, np.fmax,
    np.fmin, np.maximum, np.equal, np.not_equal, np.less_equal, np.greater, np.logical_and,
    np.logical_or, np.subtract, np.multiply, lambda x, y: np.power(np.abs(x), y),
    lambda x, y: np.where(x > y, x, y), lambda x, y: np.arctan2(x, np.abs(y) + 1),
)  # fmt: skip
REDUCTIONS: tuple[Callable[..., Array], ...] = (
    np.sum, np.mean, np.max, np.min, np.var, np.std, np.any, np.all, np.prod, np.ptp,
    np.count_nonzero, np.linalg.norm,
)  # fmt: skip


class Extremes(Writer):
    """As `Writer`, with values, layouts and operations at the edges."""

    def leaf(self, dims: Sequence[str]) -> Program:
        """An array with extremes, at times of one element, reversed or transposed."""
        number = len(self.arrays)
        run = super().leaf(dims)
        if len(self.arrays) == number:
            return run
        array = self.arrays[number]
        r = self.random
        if array.dtype in FLOATS and r.random() < 0.6:
            for n in range(array.size):
                if r.random() < 0.4:
                    array.flat[n] = r.choice(SEEN)
        elif array.dtype.kind == "i" and r.random() < 0.3:
            array = array.astype(np.int8)
        if r.random() < 0.2:
            array = np.array(array.T, order="C").T
        if r.random() < 0.2:
            array = array[(slice(None, None, -1),) * array.ndim].copy()[
                (slice(None, None, -1),) * array.ndim
            ]
        self.arrays[number] = array
        return run

    def tree(self, dims: Sequence[str], depth: int) -> Program:
        """An expression, one of those here or of the plain ones."""
        if depth == 0 or self.random.random() < 0.5:
            return super().tree(dims, depth)
        make = self.random.choice(
            (self.edges, self.edges, self.pairs, self.pairs, self.totals, self.parts, self.changes,
             self.changes, self.others)
        )  # fmt: skip
        return make(dims, depth - 1)

    def edges(self, dims: Sequence[str], depth: int) -> Program:
        inner = self.tree(dims, depth)
        real, whole, truth = (self.random.choice(f) for f in (UNARY, WHOLE, TRUTHS))

        def run(*arrays: Array) -> Array:
            x = inner(*arrays)
            return {"f": real, "i": whole, "b": truth}[x.dtype.kind](x)

        return run

    def pairs(self, dims: Sequence[str], depth: int) -> Program:
        left = self.tree(dims, depth)
        right = self.tree(dims[self.random.randint(0, len(dims)) :], depth)
        call = self.random.choice(BINARY)
        number = self.random.choice((None, None, None, *SEEN, 0, -1, 3, True))

        def run(*arrays: Array) -> Array:
            x, y = left(*arrays), right(*arrays) if number is None else number
            return call(x + 0.0, y)

        return run

    def totals(self, dims: Sequence[str], depth: int) -> Program:
        inner, call = self.tree([*dims, "a"], depth), self.random.choice(REDUCTIONS)
        seed = self.random.randrange(100)

        def run(*arrays: Array) -> Array:
            x, r = inner(*arrays), random.Random(seed)
            axes = tuple(r.sample(range(x.ndim), r.randint(0, x.ndim)))
            if call in (np.prod, np.linalg.norm):
                x, axes = np.clip(x + 0.0, -2, 2), axes[:1] if call is np.prod else axes[:2]
            if call in (np.ptp, np.max, np.min) and (x.size == 0 or x.dtype.kind == "b"):
                return x
            if call is np.linalg.norm and not axes:
                return np.linalg.norm(x)
            if call is np.count_nonzero and not axes:
                return x
            axis: Any = r.choice((axes, None)) if len(axes) != 1 else axes[0]
            return call(x, axis=axis, keepdims=r.random() < 0.3)

        return run

    def parts(self, dims: Sequence[str], depth: int) -> Program:
        inner, how = self.tree(dims, depth), self.random.randrange(14)
        seed = self.random.randrange(1000)

        def run(*arrays: Array) -> Array:
            x, r = inner(*arrays), random.Random(seed)
            if not x.ndim:
                return np.array([0.5]) * x if how else np.broadcast_to(x, (2, 3))
            at = r.randrange(-x.ndim, x.ndim)
            n = x.shape[at]
            if how == 0:
                return np.cumsum(x, at)
            if how == 1:
                return np.cumsum(np.tile(x, (*[1] * (x.ndim - 1), 30)), -1)[..., ::17]
            if how == 2:
                return np.tile(x, (r.randint(0, 2), r.randint(1, 2)))
            if how == 3:
                return np.roll(x, (r.randint(-3, 3), 1), (at, 0))
            if how == 4:
                return np.array_split(x, r.randint(1, 3), at)[0]
            if how == 5:
                return np.triu(x, r.randint(-1, 1))
            if how == 6:
                return (
                    np.diagonal(x, r.randint(-1, 1)) if x.ndim > 1 else np.diag(x, r.randint(0, 1))
                )
            if how == 7 and n:
                return np.take(x, [r.randrange(-n, n) for _ in range(3)][::-1], at)
            if how == 8 and n:
                return np.take_along_axis(x, np.argmin(x, at, keepdims=True), at)
            if how == 9:
                weights = np.arange(n) + 1.0
                return np.average(x, at, weights[::-1]) if n else x
            if how == 10:
                return np.pad(x, ((r.randint(0, 1), 2),), constant_values=r.choice((0, 1)))
            if how == 11:
                return x[..., :: r.choice((-1, -2, 2, 3))]
            if how == 12:
                return np.stack([x, x * 2, x], at)
            return np.repeat(x, r.randint(0, 2), at)

        return run

    def changes(self, dims: Sequence[str], depth: int) -> Program:
        """Views, changes in place and assignments."""
        inner, other = self.tree(dims, depth), self.tree(dims, depth)
        how, seed = self.random.randrange(8), self.random.randrange(1000)

        def run(*arrays: Array) -> Array:
            x, value, r = inner(*arrays), other(*arrays), random.Random(seed)
            y = np.copy(x)
            number = r.choice((0, 2, -1))
            if not y.ndim or y.dtype.kind == "b" or how == 0:
                y[...] = number
                return y
            n = y.shape[0]
            view = y[:: r.choice((-1, 1, 2, -2))][r.randint(0, n) :]
            if how == 1:
                view += number
            elif how == 2:
                y.T[..., : r.randint(0, n)] = number
                return y[::-1]
            elif how == 3:
                y[y > number] = r.choice((0, 1))
            elif how == 4 and value.shape == y.shape and np.can_cast(value.dtype, y.dtype):
                y[r.randint(0, n) :] = value[: n - r.randint(0, n)][:1]
            elif how == 5:
                constant = np.array([[3.5], [1.25]])[:, 0]
                y = y + constant.sum()
                z = y + constant[:1]
                constant *= 4
                return z + constant[0]
            elif how == 6:
                turned = y.swapaxes(0, -1)
                turned[..., ::2] = number
                y *= 2
                return turned
            else:
                y[r.randint(-n, n) :, ...] = y[:1] * 2 if n else number
            return view

        return run

    def others(self, dims: Sequence[str], depth: int) -> Program:
        """Selections by computed indices and truth values."""
        inner, how = self.tree([*dims, "b"], depth), self.random.randrange(4)

        def run(*arrays: Array) -> Array:
            x = inner(*arrays)
            if not x.ndim or not x.size:
                return x
            if how == 0:
                return x[..., np.argmax(x, -1).ravel()[:3] * 0]
            if how == 1:
                order = np.arange(x.shape[-1])[::-1]
                return np.take_along_axis(x, np.broadcast_to(order, x.shape), -1)
            if how == 2:
                return np.where(np.isfinite(x), x, np.nan if x.dtype.kind == "f" else 0)
            chosen = np.argmax(x[..., ::-1], -1)
            return chosen - np.argmin(x, -1)

        return run


def program(seed: int) -> tuple[Program, list[Array], Any]:
    """A random program, its arrays, and the least exact type it computes in."""
    writer = Extremes(seed)
    dims = [writer.random.choice("abcde") for _ in range(writer.random.randint(0, 3))]
    run = writer.tree(dims, writer.random.randint(1, 4))
    if not writer.arrays:
        run = writer.leaf(dims)
    return run, writer.arrays, writer.real
