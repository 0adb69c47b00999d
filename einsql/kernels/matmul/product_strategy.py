"""Which products are multiplied in place, and how they are cut for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np

from einsql.kernels.kernel import Tick
from einsql.kernels.matmul.unpacked_tiles import UnpackedTiles
from einsql.kernels.vectorized.sums import add_up

MANY, SMALL = 64, 64
"""How many matrices are many, and how many rows, columns and terms are few in each."""
NARROW, TERMS = 16, 1024
"""Columns of a narrow matrix, and terms that may be added one after another."""
SHALLOW, PANEL = 64, 2**17
"""Terms that are few for each element, and the elements of a matrix that stays in cache."""
LONG, SQUARE = 2**12, 2**16
"""Terms from which a sum is worth cutting, and the elements of the result that are few then."""

Matrices = tuple[np.ndarray, np.ndarray, np.ndarray]
Multiply = Callable[[np.ndarray, np.ndarray, np.ndarray, Tick], None]


class Form(Enum):
    """The forms of products for which packing does not pay."""

    MANY, NARROW, SHALLOW, LONG = range(4)


@dataclass(frozen=True, slots=True)
class ProductStrategy:
    """A stack of matrix products.

    Attributes:
        stack: How many.
        m, n, k: Rows, columns and terms of each.
    """

    stack: int
    m: int
    n: int
    k: int

    @property
    def form(self) -> Form | None:
        """Why packing does not pay; None where it does."""
        if self.n == 1:
            return None
        if self.stack >= MANY and max(self.m, self.n, self.k) <= SMALL:
            return Form.MANY
        if self.n <= NARROW and self.m >= MANY * self.n and (self.k <= TERMS or self.stack == 1):
            return Form.NARROW
        if self.stack > 1:
            return None
        if self.k <= SHALLOW and self.m >= MANY and self.k * self.n <= PANEL:
            return Form.SHALLOW
        return Form.LONG if self.k >= LONG and self.m * self.n <= SQUARE else None

    def multiply(self, left: np.ndarray, right: np.ndarray, out: np.ndarray) -> Multiply | None:
        """A function that multiplies such matrices, or None where their strides are unsuitable.

        Args:
            left: `[stack …, M, K]`, of the strides that are to come; so are the others.
            right: `[stack …, K, N]`.
            out: `[stack …, M, N]`.
        """
        if out.strides[-1] != out.itemsize:
            return None
        if self.form is Form.NARROW and left.strides[-1] != left.itemsize:
            return None  # each term of a row is in a line, and maybe on a page, of its own
        if self.m == 1 and right.strides[-1] != right.itemsize:
            return None  # a copy takes longer than the product
        return (_long if self.form is Form.LONG or self.k > TERMS else UnpackedTiles)(
            left, right, out
        )


def _long(left: np.ndarray, right: np.ndarray, out: np.ndarray) -> Multiply:
    """Sums of `TERMS` terms, as register tiles add them one after another, added in DOUBLE."""
    cut = left.shape[-1] // TERMS
    most = cut * TERMS

    def parts(left: np.ndarray, right: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        (m, k), n = left.shape[-2:], right.shape[-1]
        left, right = left.reshape(m, k), right.reshape(k, n)
        rows = left[:, :most].reshape(m, cut, TERMS).transpose(1, 0, 2)
        columns = right[:most].reshape(cut, TERMS, n)
        rest = left[None, :, most:], right[None, most:]
        return [(rows, columns)] + ([rest] if most < k else [])

    shape = (cut + (most < left.shape[-1]), *out.shape[-2:])
    sums = np.empty(shape, out.dtype)
    places = slice(0, cut), slice(cut, None)
    multiply = [
        UnpackedTiles(*part, sums[place])
        for part, place in zip(parts(left, right), places, strict=False)
    ]

    def run(left: np.ndarray, right: np.ndarray, out: np.ndarray, tick: Tick) -> None:
        sums = np.empty(shape, out.dtype)
        for direct, part, place in zip(multiply, parts(left, right), places, strict=False):
            direct(*part, sums[place], tick)
        out[...] = add_up(sums, (0,), sums.dtype == np.float64)

    return run
