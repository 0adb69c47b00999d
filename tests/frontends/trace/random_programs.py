"""Random NumPy programs: expressions over arrays of random shapes, which NumPy itself runs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = Any
Program = Callable[..., Array]
"""Takes the arrays; the same text runs on NumPy's arrays and on traced ones."""

FLOATS = (np.float32, np.float64)
# Annotated, as mypy takes seconds to join the types of NumPy's overloaded functions.
UNARY: tuple[Program, ...] = (
    np.negative, np.abs, np.tanh, np.sin, np.cos, np.square, np.sign, np.floor, np.ceil,
    lambda x: np.exp(-np.abs(x)), lambda x: np.sqrt(np.abs(x)), lambda x: np.log1p(np.abs(x)),
    lambda x: np.maximum(x, 0), lambda x: np.clip(x, -0.5, 0.5), lambda x: x * 2 + 1,
    lambda x: 1 / (1 + np.exp(-x)), lambda x: np.where(np.isnan(x), 0, x),
)  # fmt: skip
BINARY: tuple[Program, ...] = (
    np.add, np.subtract, np.multiply, np.maximum, np.minimum, np.fmax, np.fmin, np.arctan2,
    lambda x, y: x / (np.abs(y) + 1), lambda x, y: np.where(x > y, x, y * 0.5),
    lambda x, y: np.where((x < 0) & (y >= 0) | (x == y), 1.5, x), lambda x, y: np.hypot(x, y),
)  # fmt: skip
WHOLE: tuple[Program, ...] = (
    np.negative, np.abs, np.square, np.sign, lambda x: x // 3, lambda x: x % 5, lambda x: x // -2,
    lambda x: x % -3, lambda x: x ** 2, lambda x: x & 7, lambda x: ~x, lambda x: x | 1,
)  # fmt: skip
WHOLE_BINARY: tuple[Program, ...] = (
    np.add, np.subtract, np.multiply, np.maximum, np.minimum, lambda x, y: np.where(x < y, x, y),
    lambda x, y: x // (np.abs(y) + 1), lambda x, y: x % (np.abs(y) + 1),
    lambda x, y: (x != y) & (x > 0),
)  # fmt: skip
REDUCTIONS: tuple[Program, ...] = (
    np.sum, np.mean, np.max, np.min, np.var, np.std, np.any, np.all, np.argmax, np.argmin,
    np.count_nonzero,
)  # fmt: skip


class Writer:
    """Writes one program as a tree of closures over the arrays' positions.

    Args:
        seed: Chooses everything.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.data = np.random.default_rng(seed)
        self.arrays: list[Array] = []
        self.real: Any = self.random.choice(FLOATS)
        self.extents = {n: self.random.choice((1, 2, 3, 4, 5)) for n in "abcde"}
        if self.random.random() < 0.1:
            self.extents[self.random.choice("abcde")] = 0

    def leaf(self, dims: Sequence[str]) -> Program:
        """An array over named dims; at times one of them has a single element."""
        shape = [1 if self.random.random() < 0.15 else self.extents[d] for d in dims]
        if self.arrays and self.random.random() < 0.3:
            same = [n for n, a in enumerate(self.arrays) if a.shape == tuple(shape)]
            if same:
                number = self.random.choice(same)
                return lambda *arrays: arrays[number]
        dtype = self.random.choice((*[self.real] * 4, np.int64, np.int32, np.bool_))
        values = self.data.integers(-6, 7, shape)
        array = np.asarray(values > 0 if dtype is np.bool_ else values, dtype)
        if dtype in FLOATS:
            array = (array / 4).astype(dtype)
            if self.random.random() < 0.2 and array.size:
                array.flat[self.random.randrange(array.size)] = self.random.choice(
                    (np.nan, np.inf, -np.inf)
                )
        self.arrays.append(array)
        number = len(self.arrays) - 1
        return lambda *arrays: arrays[number]

    def tree(self, dims: Sequence[str], depth: int) -> Program:
        """An expression of about a rank."""
        if depth == 0 or self.random.random() < 0.1:
            return self.leaf(dims)
        make = self.random.choice(
            (self.unary, self.unary, self.binary, self.binary, self.binary, self.reduction,
             self.product, self.shaped, self.indexed, self.joined, self.softmax, self.cast)
        )  # fmt: skip
        return make(dims, depth - 1)

    def unary(self, dims: Sequence[str], depth: int) -> Program:
        inner = self.tree(dims, depth)
        real, whole = self.random.choice(UNARY), self.random.choice(WHOLE)

        def run(*arrays: Array) -> Array:
            x = inner(*arrays)
            if x.dtype.kind == "b":
                return ~x
            return real(x) if x.dtype.kind == "f" else whole(x)

        return run

    def binary(self, dims: Sequence[str], depth: int) -> Program:
        fewer = dims[self.random.randint(0, len(dims)) :]
        left, right = self.tree(dims, depth), self.tree(fewer, depth)
        real, whole = self.random.choice(BINARY), self.random.choice(WHOLE_BINARY)
        scalar = self.random.choice((2, 0.5, -1.5, np.float32(0.25), None, None, None, None))
        flip = self.random.random() < 0.5

        def run(*arrays: Array) -> Array:
            x = left(*arrays)
            y = right(*arrays) if scalar is None else scalar
            if flip:
                x, y = y, x
            kinds = {np.result_type(v).kind if not hasattr(v, "dtype") else v.dtype.kind
                     for v in (x, y)}  # fmt: skip
            if kinds == {"b"}:
                return x & y
            if "f" not in kinds and "b" not in kinds:
                return whole(x, y)
            return real(x + 0.0, y + 0.0)

        return run

    def reduction(self, dims: Sequence[str], depth: int) -> Program:
        more = list(dims)
        at = self.random.randint(0, len(dims))
        more.insert(at, self.random.choice("abcde"))
        inner, reduce_ = self.tree(more, depth), self.random.choice(REDUCTIONS)
        keep = self.random.random() < 0.3
        everything = self.random.random() < 0.15
        negative = self.random.random() < 0.5

        def run(*arrays: Array) -> Array:
            x = inner(*arrays)
            axis = min(at, x.ndim - 1) if x.ndim else None
            if x.ndim and negative:
                axis -= x.ndim
            if everything:
                axis = None
            if x.shape and (x.size == 0) and reduce_ not in (np.sum, np.any, np.all):
                return x.sum(axis=axis)
            if reduce_ is np.count_nonzero and axis is None:
                return np.sum(x != 0)
            if reduce_ in (np.var, np.std, np.mean) and x.dtype.kind == "b":
                return x.sum(axis=axis)
            return reduce_(x, axis=axis, keepdims=keep)

        return run

    def product(self, dims: Sequence[str], depth: int) -> Program:
        left, right = self.tree([*dims, "a"], depth), self.tree(["a", "b"], depth)

        def run(*arrays: Array) -> Array:
            x, y = left(*arrays), right(*arrays)
            if x.ndim == 0 or y.ndim == 0:
                return x + y
            if x.dtype.kind == "b":
                x = x + 0
            if y.dtype.kind == "b":
                y = y + 0
            inner = y.shape[-2] if y.ndim > 1 else y.shape[0]
            if x.shape[-1] == inner and (y.ndim < 3 or y.shape[:-2] == x.shape[:-2]):
                return x @ y
            if x.ndim == 2 and y.ndim == 2 and x.shape[0] == y.shape[0]:
                return np.einsum("ij,ik->jk", x, y)
            return np.multiply.outer(x, y)

        return run

    def shaped(self, dims: Sequence[str], depth: int) -> Program:
        inner = self.tree(dims, depth)
        how, seed = self.random.randrange(8), self.random.randrange(100)

        def run(*arrays: Array) -> Array:
            x = inner(*arrays)
            r = random.Random(seed)
            if how == 0:
                order = list(range(x.ndim))
                r.shuffle(order)
                return x.transpose(order)
            if how == 1:
                return x.reshape(-1) if x.size else np.ravel(x)
            if how == 2 and x.ndim > 1:
                shape = list(x.shape)
                at = r.randrange(x.ndim - 1)
                return x.reshape(*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :])
            if how == 3:
                factors = [f for f in (2, 3, 4) for n in x.shape[-1:] if n and n % f == 0]
                if factors:
                    f = r.choice(factors)
                    return x.reshape(*x.shape[:-1], f, x.shape[-1] // f)
            if how == 4:
                return np.expand_dims(x, r.randint(0, x.ndim))
            if how == 5 and x.ndim:
                return np.flip(x, r.randrange(x.ndim))
            if how == 6 and x.ndim and x.size:
                return np.roll(x, r.randint(-3, 3), r.randrange(x.ndim))
            if how == 7 and x.ndim:
                return np.repeat(x, 2, axis=r.randrange(x.ndim))
            return x

        return run

    def indexed(self, dims: Sequence[str], depth: int) -> Program:
        inner = self.tree([self.random.choice("abcde"), *dims], depth)
        how, seed = self.random.randrange(6), self.random.randrange(1000)

        def run(*arrays: Array) -> Array:
            x = inner(*arrays)
            if not x.ndim or not x.shape[0]:
                return x
            r = random.Random(seed)
            n = x.shape[0]
            if how == 0:
                return x[r.randrange(-n, n)]
            if how == 1:
                return x[r.randint(0, n) : r.randint(0, n) + 1 : r.choice((1, 2))]
            if how == 2:
                return x[::-1, ..., None]
            if how == 3:
                return x[np.array([r.randrange(-n, n) for _ in range(4)])]
            if how == 4 and x.ndim > 1 and x.shape[1]:
                rows = np.array([[r.randrange(n)], [r.randrange(n)]])
                columns = np.array([r.randrange(x.shape[1]) for _ in range(3)])
                return x[rows, columns]
            return x[np.argmax(x.reshape(n, -1).sum(-1) * 0) : 1] if False else x[-1:]

        return run

    def joined(self, dims: Sequence[str], depth: int) -> Program:
        inner, other = self.tree(dims, depth), self.tree(dims, depth)
        how, seed = self.random.randrange(4), self.random.randrange(100)

        def run(*arrays: Array) -> Array:
            x, y = inner(*arrays), other(*arrays)
            r = random.Random(seed)
            if how == 0 and x.ndim:
                return np.pad(x, r.randint(0, 2))
            if how == 1 and x.shape == y.shape:
                return np.stack([x, y], axis=r.randint(0, x.ndim))
            if how == 2 and x.ndim >= 2:
                return np.tril(x, r.randint(-1, 1))
            if x.ndim and x.ndim == y.ndim and x.shape[1:] == y.shape[1:]:
                return np.concatenate([x, y])
            return x

        return run

    def softmax(self, dims: Sequence[str], depth: int) -> Program:
        inner = self.tree(dims, depth)

        def run(*arrays: Array) -> Array:
            x = inner(*arrays)
            if not x.size or not x.ndim or x.dtype.kind != "f":
                return x
            e = np.exp(x - x.max(axis=-1, keepdims=True))
            return e / e.sum(axis=-1, keepdims=True)

        return run

    def cast(self, dims: Sequence[str], depth: int) -> Program:
        inner = self.tree(dims, depth)
        dtype = self.random.choice((self.real, np.float64, np.int32))

        def run(*arrays: Array) -> Array:
            x = inner(*arrays)
            if x.dtype.kind == "f" and dtype is np.int32:
                x = np.where(np.isfinite(x) & (np.abs(x) < 1e6), x, 0)
            return x.astype(dtype)

        return run


def program(seed: int) -> tuple[Program, list[Array], Any]:
    """A random program, its arrays, and the least exact type it computes in."""
    writer = Writer(seed)
    dims = [writer.random.choice("abcde") for _ in range(writer.random.randint(0, 3))]
    run = writer.tree(dims, writer.random.randint(1, 5))
    if not writer.arrays:
        run = writer.leaf(dims)
    return run, writer.arrays, writer.real
