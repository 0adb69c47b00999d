"""Sums of products of one or two operands, by BLAS.

Summed labels of a single operand are summed first; then `multiply.py` multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.lazy_module import lazy_modules
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.core.source_writer import FieldSource, Page
from einsql.ir.einsum.graph import EinSum, Output
from einsql.kernels.kernel import Arrays, Kernel, Runner, Tick, ignoring
from einsql.kernels.matmul.layout import Labels
from einsql.kernels.matmul.match import Factor, Product, is_safe_scale, product_of
from einsql.kernels.vectorized.views import View, reading, write_view

if TYPE_CHECKING:
    from einsql.kernels.matmul import multiply, rows
    from einsql.kernels.vectorized import sums, vector
else:  # loaded when a product or a sum needs one of these modules
    multiply, rows = lazy_modules("einsql.kernels.matmul", "multiply", "rows")
    sums, vector = lazy_modules("einsql.kernels.vectorized", "sums", "vector")

Compute = Callable[[Sequence[Arrays], Tick], np.ndarray]
WriteArray = Callable[[Page, Sequence[FieldSource]], str]
"""Writes the computation of an array; returns its name."""

STREAMED = 2**20
"""Points from which compiled loops are faster for operands that are read once."""


def is_contraction(node: EinSum, output: Output) -> bool:
    """True if the output is a float sum of products of at most two operands."""
    return product_of(node, output) is not None


def compile_contraction(node: EinSum, compiles: bool = True) -> Runner | None:
    """Matches nodes whose one output is a sum of products.

    HALF results are computed in FLOAT and rounded once.

    Args:
        node: The node.
        compiles: Whether its first run may compile kernels if BLAS is slow.
    """
    if len(node.outputs) != 1:
        return None
    factors = product_of(node, node.outputs[0])
    return None if factors is None else _compiled(node, factors, compiles)


def compile_parts(node: EinSum, compiles: bool = True) -> Callable[[EinSum], Runner] | None:
    """Creates a compiler for parts of a node's domain, which differ only in bounds.

    Args:
        node: A node with one output, a sum.
        compiles: Whether the first run may compile kernels if BLAS is slow.

    Returns:
        A function that returns the runner of a part, or None if another kernel might be faster
        for a part.
    """
    if len(node.outputs) != 1 or len(node.keys) == len(node.axes):
        return None
    factors = product_of(node, node.outputs[0])
    if factors is None or not (factors.right or node.points < STREAMED):
        return None  # loops are faster for long sums of one operand
    return lambda part: _compiled(part, factors, compiles)


def _compiled(node: EinSum, factors: Product, compiles: bool) -> Runner:
    """Creates a runner for the sum of a product."""
    output = node.outputs[0]
    name = output.name
    if any(a.extent == 0 for a in node.axes):
        shape = node.schema.shape
        return lambda operands, tick: {name: np.zeros(shape, output.dtype.numpy)}
    work = np.dtype(np.float32) if output.dtype is DType.HALF else output.dtype.numpy
    compute, write = (
        _pair(node, factors, work, compiles) if factors.right else _single(node, factors, work)
    )
    finish = _finish(node, factors, output.dtype.numpy)
    if factors.scalars:
        return _scaled(node, factors, compute, finish)

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        result = compute(operands, tick)
        return {name: result if finish is None else finish(result)}

    def lines(page: Page, operands: Sequence[FieldSource]) -> dict[str, str]:
        result = write(page, operands)
        return {name: result if finish is None else finish.write(page, result)}

    return ignoring(run, lines)


def _scaled(node: EinSum, factors: Product, compute: Compute, finish: _Finish | None) -> Runner:
    """Multiplies a product by scalars; term by term if a scalar is 0 or infinite."""
    output = node.outputs[0]
    each: list[Runner] = []

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        scale = 1.0
        for s in factors.scalars:
            scale *= float(operands[s.operand][s.field])
        if not is_safe_scale(factors.scale * scale, output.dtype):
            if not each:
                each.append(vector.compile_vector(node))
            return each[0](operands, tick)
        total = compute(operands, tick)
        total = sums.from_zero(np.asarray(total * total.dtype.type(scale)))
        return {output.name: total if finish is None else finish(total)}

    return ignoring(run)


@dataclass(frozen=True, slots=True)
class _Load:
    """The reading of a side: the product of its factors, with an axis per distinct label.

    Attributes:
        side: The factors of one operand.
        own: Whether the factors have the computation dtype.
        view: The view of the factors; None if they are unchanged.
        once: The summed axes of length 1, which need no sum, for example the layer of weights.
        axes: The other summed axes.
        work: The computation dtype; a single factor without a sum keeps its dtype.
        points: The number of elements before the sum.
    """

    side: Sequence[Factor]
    own: bool
    view: View | None
    once: tuple[int, ...]
    axes: tuple[int, ...]
    work: np.dtype
    points: int

    def __call__(self, operands: Sequence[Arrays]) -> np.ndarray:
        array, work = self._one(operands, self.side[0]), self.work
        if len(self.side) > 1:
            array = array.astype(work, copy=False)
            for factor in self.side[1:]:
                array = array * self._one(operands, factor).astype(work, copy=False)
        return sums.accurate_sum(array, self.axes, work) if self.axes else array

    def _one(self, operands: Sequence[Arrays], factor: Factor) -> np.ndarray:
        array = operands[factor.operand][factor.field]
        array = array if self.view is None else self.view(array)
        return array.squeeze(self.once) if self.once else array

    def write(self, page: Page, operands: Sequence[FieldSource]) -> str:
        known: dict[Factor, str] = {}
        for factor in self.side:
            if factor not in known:
                name = operands[factor.operand].array(factor.field)
                name = write_view(page, self.view, name)
                text = f"{name}.squeeze({self.once!r})" if self.once else name
                if len(self.side) > 1 and not self.own:
                    text = f"{text}.astype({page.held(self.work)}, copy=False)"
                known[factor] = name if text == name else page.line(text)
        array = known[self.side[0]]
        for factor in self.side[1:]:
            array = page.line(f"{array} * {known[factor]}")
        if not self.axes:
            return array
        if self.points < (2 * sums.CHAIN if self.work == np.float64 else sums.SMALL):
            return sums.write_small_sum(page, array, self.axes, self.work)
        accurate = page.held(sums.accurate_sum, "f")
        return page.line(f"{accurate}({array}, {self.axes!r}, {page.held(self.work)})")


def _load(node: EinSum, side: Sequence[Factor], gone: Sequence[str], work: np.dtype) -> _Load:
    """Plans the reading of a side.

    Args:
        node: The node.
        side: The factors of one operand.
        gone: The summed labels.
        work: The computation dtype.
    """
    operand = node.operands[side[0].operand]
    order = tuple(dict.fromkeys(operand.labels))
    once = tuple(order.index(x) for x in gone if node.axis(x).extent == 1)
    left = [x for n, x in enumerate(order) if n not in once]
    return _Load(
        side=side,
        own=all(operand.source.schema.dtype(f.field).numpy == work for f in side),
        view=reading(node, operand, order),
        once=once,
        axes=tuple(left.index(x) for x in gone if x in left),
        work=work,
        points=prod(node.axis(x).extent for x in order),
    )


def _single(node: EinSum, factors: Product, work: np.dtype) -> tuple[Compute, WriteArray]:
    labels = tuple(dict.fromkeys(node.operands[factors.left[0].operand].labels))
    kept = [k for k in node.keys if k in labels]
    summed = [x for x in labels if x not in kept]
    load = _load(node, factors.left, summed, work)
    rest = [x for x in labels if x in kept]
    turn = tuple(rest.index(x) for x in kept)
    turned = "" if turn == tuple(range(len(turn))) else f".transpose({turn!r})"
    if all(
        node.axis(x).extent == 1 for x in summed
    ):  # a new array, as only view kernels alias their operands

        def write_copy(page: Page, operands: Sequence[FieldSource]) -> str:
            array, to = load.write(page, operands), page.held(work)
            add, zero = page.held(sums.from_zero, "f"), f".astype({to}, copy=False)"
            return page.line(f"{add}({array}{zero}{turned})")

        return lambda operands, tick: sums.from_zero(
            load(operands).astype(work, copy=False).transpose(turn)
        ), write_copy

    def write(page: Page, operands: Sequence[FieldSource]) -> str:
        array = load.write(page, operands)
        return page.line(f"{array}{turned}") if turned else array

    return lambda operands, tick: load(operands).transpose(turn), write


def _pair(
    node: EinSum, factors: Product, work: np.dtype, compiles: bool
) -> tuple[Compute, WriteArray]:
    extent = {a.label: a.extent for a in node.axes}
    keys = node.keys
    sides = [
        (side, tuple(dict.fromkeys(node.operands[side[0].operand].labels)))
        for side in (factors.left, factors.right)
    ]
    if keys and keys[-1] in sides[0][1] and keys[-1] not in sides[1][1]:
        sides.reverse()  # the last key is in N, so that the result is in C order
    (a, in_a), (b, in_b) = sides
    gone_a = [x for x in in_a if x not in keys and x not in in_b]
    gone_b = [x for x in in_b if x not in keys and x not in in_a]
    labels = Labels(
        tuple(x for x in in_a if x not in gone_a),
        tuple(x for x in in_b if x not in gone_b),
        tuple(x for x in keys if x in in_a or x in in_b),
        {x: extent[x] for x in (*in_a, *in_b) if x not in gone_a and x not in gone_b},
    )
    load_a, load_b = (_load(node, side, gone, work) for side, gone in ((a, gone_a), (b, gone_b)))
    is_summed = len(labels.extent) > len(labels.keys)
    product = (
        multiply.Multiplied(labels, work, compiles) if is_summed else rows.by_rows(labels, work)
    )

    def write(page: Page, operands: Sequence[FieldSource]) -> str:
        left, right = load_a.write(page, operands), load_b.write(page, operands)
        return page.line(f"{page.held(product, 'f')}({left}, {right}, {page.tick})")

    return lambda operands, tick: product(load_a(operands), load_b(operands), tick), write


@dataclass(frozen=True, slots=True)
class _Finish:
    """The operations after the product: constants, labels without operand, rounding to HALF.

    Attributes:
        scale: The product of the constants and the extents of summed labels without operand.
        lift: The index that inserts axes for keys without operand; None if there are none.
        shape: The result's shape.
        dtype: The result's type.
    """

    scale: float
    lift: tuple[slice | None, ...] | None
    shape: tuple[int, ...]
    dtype: np.dtype

    def __call__(self, result: np.ndarray) -> np.ndarray:
        if self.scale != 1.0:
            result = sums.from_zero(np.asarray(result * result.dtype.type(self.scale)))
        result = np.asarray(result).astype(self.dtype, copy=False)
        return result if self.lift is None else np.broadcast_to(result[self.lift], self.shape)

    def write(self, page: Page, result: str) -> str:
        if self.lift is not None or self.dtype == np.float16:
            return page.line(f"{page.held(self, 'f')}({result})")
        factor, zero = (page.held(self.dtype.type(x)) for x in (self.scale, 0))
        scaled = page.line(f"asarray({result} * {factor})")
        page.lines.append(f"{page.held(np.add, 'f')}({scaled}, {zero}, {scaled})")
        return scaled


def _finish(node: EinSum, factors: Product, dtype: np.dtype) -> _Finish | None:
    labels = {x for f in (*factors.left, *factors.right) for x in node.operands[f.operand].labels}
    repeats = prod(
        a.extent for a in node.axes if a.label not in labels and a.label not in node.keys
    )
    scale = factors.scale * repeats
    lift: tuple[slice | None, ...] | None = None
    if not labels.issuperset(node.keys):
        lift = tuple(slice(None) if k in labels else None for k in node.keys)
    if scale == 1.0 and lift is None and dtype != np.float16:
        return None
    return _Finish(scale, lift, node.schema.shape, dtype)


_LAW = "a float sum of products of one or two operands is matrix products"
CONTRACTION = Kernel("blas", _LAW, compile_contraction, calls_blas=True)
UNCOMPILED = replace(CONTRACTION, match=partial(compile_contraction, compiles=False))
"""The same kernel without compiled code."""
