"""Sums of integers, counts and tests for existence, as matrix products.

The term of such an output is a product of one factor per side. For a sum every partial sum is
exact in FLOAT or DOUBLE. BOOL_OR of AND, and MAX of a value or 0 under such a condition, test
whether a sum of flags is positive. BLAS computes the products without a compiled kernel, and
faster than the processor's integer instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import TRUE, Call, Const, Expr, Label, Output, Value
from einsql.ir.einsum.intervals import can_raise
from einsql.kernels.kernel import Tick
from einsql.kernels.matmul.layout import Labels
from einsql.kernels.matmul.multiply import Multiplied
from einsql.kernels.matmul.pieces import COPIES, cut, slices, wanted
from einsql.kernels.packed.layout import COLUMNS, ROWS, Cube, Layout
from einsql.kernels.packed.terms import Columns
from einsql.kernels.runtime import thread_pool
from einsql.kernels.vectorized.scalar import Block, Compiled, compile_expr

TERMS = 16
"""Terms of an element from which a floating-point product pays for its conversions."""
EXACT = ((np.dtype(np.float32), 2**24), (np.dtype(np.float64), 2**53))
"""Float types, and the sum of magnitudes below which all partial sums are exact."""

Leaf = Value | Label


Sides = Mapping[str, Sequence[Expr]]
"""The expressions whose product is the element of a side, by side."""


@dataclass(frozen=True, slots=True)
class Factors:
    """The factors of an output.

    Attributes:
        sides: The factors of each side.
        positive: The output where a product is positive, and 0 elsewhere; None for a sum.
    """

    sides: Sides
    positive: int | None


def factors_of(columns: Columns, o: Output, where: Expr | None) -> Factors | None:
    """The factors of an output; None if it is not a sum of products of integers or flags.

    Args:
        columns: The node's sides.
        o: The output.
        where: The condition that selects pairs, or None for all of them.
    """
    term, positive = o.args[0], None
    if o.reduction == "bool_or":
        positive = 1
    elif o.reduction == "max" and where is None:
        positive, term = _flagged(term)
        if positive is None:
            return None
    elif o.reduction != "sum" or not term.dtype.is_integer:
        return None
    sides: dict[str, list[Expr]] = {ROWS: [], COLUMNS: []}
    terms = (term, TRUE if where is None else where)
    if not all(_split(columns, e, sides) for e in terms):
        return None
    return Factors(sides, positive) if all(sides.values()) else None


def _flagged(term: Expr) -> tuple[int | None, Expr]:
    """A positive integer and its condition, if the term is 0 without it; else None."""
    if isinstance(term, Call) and term.fn == "if" and term.dtype.is_integer:
        condition, one, other = term.args
        if isinstance(one, Const) and isinstance(other, Const) and one.value > 0 == other.value:
            return int(one.value), condition
    return None, term


def _split(columns: Columns, e: Expr, sides: dict[str, list[Expr]]) -> bool:
    """Groups the factors of an expression by side; False if a factor reads both sides."""
    if e == TRUE:
        return True
    side = columns.side(e)
    if side is not None:
        sides.setdefault(side, []).append(e)
        return side in (ROWS, COLUMNS)
    if not isinstance(e, Call):
        return False
    args = e.args
    if e.fn == "cast" and e.args[0].dtype is not DType.BOOLEAN is e.dtype:
        return False  # a comparison with 0 is not a factor
    if e.fn == "if" and isinstance(e.args[2], Const) and not e.args[2].value:
        args = e.args[:2]
    elif e.fn not in ("mul", "and", "cast") or e.args[0].dtype.is_float:
        return False
    return all(_split(columns, a, sides) for a in args)


class FactorProduct:
    """Computes an output from its factors.

    Args:
        layout: The labels of the output's node in groups.
        factors: The output's factors.
        bounds: The bounds `[lo, hi)` of every label.
    """

    def __init__(
        self, layout: Layout, factors: Factors, bounds: Mapping[str, tuple[int, int]]
    ) -> None:
        self._sizes = layout.sizes
        self._compiled = {
            side: [compile_expr(e, bounds) for e in exprs] for side, exprs in factors.sides.items()
        }
        self._positive = factors.positive
        exprs = [e for side in factors.sides.values() for e in side]
        self.is_test = factors.positive is not None and not any(can_raise(e, bounds) for e in exprs)
        """Whether all terms are flags, whatever the data."""
        extent = dict(zip("bmnk", layout.sizes, strict=True))
        labels = Labels(tuple("bmk"), tuple("bnk"), tuple("bmn"), extent)
        self._products = {dtype: Multiplied(labels, dtype) for dtype, _ in EXACT}

    def type_for(self, most: float) -> np.dtype | None:
        """The float type of the product, or None if no type is exact or there are too few terms.

        Args:
            most: An upper bound of the terms' magnitude.
        """
        terms = self._sizes[3]
        if terms < TERMS:
            return None
        return next((dtype for dtype, limit in EXACT if most * terms < limit), None)

    def run(
        self, arrays: Mapping[Leaf, Cube], dtype: np.dtype, out: np.ndarray, tick: Tick
    ) -> None:
        """Computes the output.

        Args:
            arrays: The operands of the factors, as cubes of their sides; factors must not fail.
            dtype: The float type of the product.
            out: The result, `[batch, row, column]` with any strides.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.
        """
        block = _Cubes(arrays)
        b, m, n, k = self._sizes
        left = _matrices(self._compiled[ROWS], block, (b, m, k), dtype)
        right = _matrices(self._compiled[COLUMNS], block, (b, n, k), dtype)
        sums = self._products[dtype](left, right, tick)
        positive = self._positive

        def write(at: tuple[slice, ...]) -> None:
            if positive is None:
                np.copyto(out[at], sums[at], casting="unsafe")
                return
            np.copyto(out[at], sums[at] > 0, casting="unsafe")
            if positive != 1:
                out[at] *= positive

        _in_pieces(out.shape, write)


class _Cubes(Block):
    """The operand fields that factors read."""

    def __init__(self, arrays: Mapping[Leaf, Cube]) -> None:
        self._labels = {x.name: a for x, a in arrays.items() if isinstance(x, Label)}
        self._values = {(x.operand, x.field): a for x, a in arrays.items() if isinstance(x, Value)}

    def label(self, name: str) -> np.ndarray:
        return self._labels[name]

    def value(self, operand: int, field: str) -> np.ndarray:
        return self._values[operand, field]


def _matrices(
    factors: Sequence[Compiled], block: Block, shape: tuple[int, ...], dtype: np.dtype
) -> np.ndarray:
    """The product of a side's factors, with the first factor's order of axes in memory."""
    first, *rest = (np.broadcast_to(f.run(block, None), shape) for f in factors)
    order = sorted(range(len(shape)), key=lambda x: -abs(first.strides[x]))
    products = empty(tuple(shape[x] for x in order), dtype).transpose(np.argsort(order))

    def fill(at: tuple[slice, ...]) -> None:
        part = products[at]
        np.copyto(part, first[at], casting="unsafe")
        for other in rest:
            np.multiply(part, other[at], out=part, casting="unsafe")

    _in_pieces(shape, fill)
    return products


def _in_pieces(shape: tuple[int, ...], work: Callable[[tuple[slice, ...]], None]) -> None:
    """Runs element-wise work on all threads."""
    parts = cut(shape, len(shape), wanted(prod(shape) / COPIES))
    thread_pool.run(work, slices(shape, parts), prod(parts), lambda done: None)
