"""Counts, sums of integers and tests of pairs that are matrix products.

Where an output's term is a product of what each side has alone, and every sum of such
products is exact in FLOAT or DOUBLE, BLAS adds them: it multiplies integers faster than the
processor's integer instructions do. BOOL_OR of a conjunction holds where a count is not 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from einsql.buffers import empty
from einsql.einsum import TRUE, Call, Const, Expr, Label, Output, Value
from einsql.kernels import pool
from einsql.kernels.kernel import Tick
from einsql.kernels.packed.layout import COLUMNS, ROWS, Cube, Layout
from einsql.kernels.packed.terms import Columns
from einsql.kernels.products.layout import Labels
from einsql.kernels.products.multiply import Multiplied
from einsql.kernels.products.pieces import COPIES, cut, slices, wanted
from einsql.kernels.scalar import Block, Compiled, compile_expr
from einsql.schema import DType

TERMS = 16
"""Terms of an element from which a product in floating point pays for its conversions."""
EXACT = ((np.dtype(np.float32), 2**24), (np.dtype(np.float64), 2**53))
"""Types and the sums of magnitudes below which all of their partial sums are whole."""

Leaf = Value | Label


@dataclass(frozen=True, slots=True)
class Factors:
    """An output as a product of matrices.

    Attributes:
        sides: Expressions whose product is the element of each side.
        count: Whether elements are 0 and 1 and only matters whether a sum is 0.
        inverse: Whether the output holds where the sum is 0.
    """

    sides: Mapping[str, Sequence[Expr]]
    count: bool
    inverse: bool


def factors_of(columns: Columns, o: Output, where: Expr | None) -> Factors | None:
    """The factors of an output, or None if it is no sum of products of two sides.

    Args:
        columns: The node's sides.
        o: The output.
        where: What selects pairs, or None for all of them.
    """
    count = o.reduction in ("bool_or", "bool_and")
    inverse = o.reduction == "bool_and"
    if not count and not (o.reduction == "sum" and o.args[0].dtype.is_integer):
        return None
    sides: dict[str, list[Expr]] = {ROWS: [], COLUMNS: []}
    whole = _split(columns, o.args[0], sides, inverse)
    if where is not None:
        whole = whole and _split(columns, where, sides, False)
    if not whole or not all(sides.values()):
        return None
    return Factors(sides, count, inverse)


def _split(columns: Columns, e: Expr, sides: dict[str, list[Expr]], inverse: bool) -> bool:
    """Sorts the factors of an expression, or of its negation, by sides; False if it has others."""
    if e == TRUE and not inverse:
        return True
    side = columns.side(e)
    if side is not None:
        if side not in sides:
            return False
        sides[side].append(Call("not", (e,), DType.BOOLEAN) if inverse else e)
        return True
    if not isinstance(e, Call):
        return False
    if inverse:
        return e.fn == "or" and all(_split(columns, a, sides, True) for a in e.args)
    if e.fn == "cast" and e.args[0].dtype is not DType.BOOLEAN is e.dtype:
        return False  # no factor any more, but whether it is 0
    if e.fn == "cast" and not e.args[0].dtype.is_float:
        return _split(columns, e.args[0], sides, False)
    if e.fn == "if" and isinstance(e.args[2], Const) and not e.args[2].value:
        return all(_split(columns, a, sides, False) for a in e.args[:2])
    return e.fn in ("mul", "and") and all(_split(columns, a, sides, False) for a in e.args)


class FactorProduct:
    """Computes an output by its factors.

    Args:
        layout: The labels of the output's node in groups.
        factors: The output's factors.
        bounds: `[lo, hi)` of every label.
    """

    def __init__(
        self, layout: Layout, factors: Factors, bounds: Mapping[str, tuple[int, int]]
    ) -> None:
        self.factors = factors
        self._sizes = layout.sizes
        self._compiled = {
            side: [compile_expr(e, bounds) for e in exprs] for side, exprs in factors.sides.items()
        }
        extent = dict(zip("bmnk", layout.sizes, strict=True))
        labels = Labels(tuple("bmk"), tuple("bnk"), tuple("bmn"), extent)
        self._products = {dtype: Multiplied(labels, dtype) for dtype, _ in EXACT}

    def type_for(self, most: float) -> np.dtype | None:
        """The type to multiply in, or None where no type is exact or too few terms are added.

        Args:
            most: The magnitude that no term exceeds.
        """
        terms = self._sizes[3]
        if terms < TERMS:
            return None
        if self.factors.count:
            return EXACT[0][0]  # whole numbers that are not 0 do not sum to 0
        return next((dtype for dtype, limit in EXACT if most * terms < limit), None)

    def run(
        self, arrays: Mapping[Leaf, Cube], dtype: np.dtype, out: np.ndarray, tick: Tick
    ) -> None:
        """Computes the output.

        Args:
            arrays: What the factors read, as cubes of their sides; no factor may fail on it.
            dtype: The type to multiply in.
            out: Where the result goes, `[batch, row, column]` of any strides.
            tick: Told the fraction done.
        """
        block = _Cubes(arrays)
        b, m, n, k = self._sizes
        left = _matrices(self._compiled[ROWS], block, (b, m, k), dtype)
        right = _matrices(self._compiled[COLUMNS], block, (b, n, k), dtype)
        sums = self._products[dtype](left, right, tick)
        if not self.factors.count:
            _in_pieces(out.shape, lambda at: np.copyto(out[at], sums[at], casting="unsafe"))
            return
        test = np.equal if self.factors.inverse else np.not_equal
        _in_pieces(out.shape, lambda at: test(sums[at], 0, out=out[at]))


class _Cubes(Block):
    """What factors read."""

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
    """The product of a side's factors; its axes follow each other in memory as the first's do."""
    first, *rest = (np.broadcast_to(f.run(block, None), shape) for f in factors)
    order = sorted(range(len(shape)), key=lambda x: -abs(first.strides[x]))
    made = empty(tuple(shape[x] for x in order), dtype).transpose(np.argsort(order))

    def fill(at: tuple[slice, ...]) -> None:
        part = made[at]
        np.copyto(part, first[at], casting="unsafe")
        for other in rest:
            np.multiply(part, other[at], out=part, casting="unsafe")

    _in_pieces(shape, fill)
    return made


def _in_pieces(shape: tuple[int, ...], work: Callable[[tuple[slice, ...]], object]) -> None:
    """Does element-wise work on all threads."""

    def one(at: tuple[slice, ...]) -> None:
        work(at)

    parts = cut(shape, len(shape), wanted(prod(shape) / COPIES))
    pool.run(one, slices(shape, parts), prod(parts), lambda done: None)
