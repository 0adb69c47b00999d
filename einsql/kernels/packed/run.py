"""Runs of packed kernels: decisions by the data, the pieces and their buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.ir.einsum.graph import TRUE, EinSum, Expr, Label, Output, Value, conj, subexpressions
from einsql.ir.functions import SCALARS
from einsql.kernels.kernel import Arrays, Runner, Tick
from einsql.kernels.loops import compile_loops
from einsql.kernels.packed.factors import FactorProduct, factors_of
from einsql.kernels.packed.functions import Range
from einsql.kernels.packed.layout import (
    BOTH,
    COLUMNS,
    ROWS,
    Cube,
    Layout,
    cube_of,
    find_layout,
    label_cube,
)
from einsql.kernels.packed.pieces import Scratch, cut, flatten, scan
from einsql.kernels.packed.source import Leaf, Program, Variant, generate
from einsql.kernels.packed.terms import Columns, Ranges, compares
from einsql.kernels.runtime import compile_cache, thread_pool
from einsql.kernels.runtime.cpu_features import machine
from einsql.kernels.vectorized.sums import RunningSum

LONGEST = 2**17
"""Terms of a DOUBLE sum that a kernel adds: 128 one after another, and so up to 1,024 sums."""
LEAST = 2**21
"""Points from which packing pays for a longer compilation."""
_REDUCTIONS = frozenset(
    {"sum", "product", "min", "max", "bool_or", "bool_and", "arg_min", "arg_max"}
)


def compile_packed(node: EinSum) -> Runner | None:
    """Matches nodes that reduce an expression over two sides, each with keys of its own.

    Args:
        node: The node; its operands arrive as fields with one axis per key.

    Returns:
        The runner, or None. Its first run compiles. FLOAT sums are added in FLOAT for at
        most 32 terms, their sums in DOUBLE; long DOUBLE sums are taken part by part. It falls
        back to compiled loops where integers may overflow, which raise exactly where they do.
    """
    if node.points < LEAST or node.is_elementwise:
        return None
    parts = []
    for o in node.outputs:
        packed = _match(node, o)
        if packed is None:
            return None
        parts.append(packed)
    return _Packed(node, parts).run


def _match(node: EinSum, o: Output) -> _Part | None:
    """One output's columns, if packing suits it."""
    if o.reduction not in _REDUCTIONS or (o.reduction == "product" and not o.dtype.is_float):
        return None
    where = conj(node.guard, o.where)
    slowest = None
    if o.reduction.startswith("arg_"):
        key = o.args[0]
        if where != TRUE or not isinstance(key, Label) or key.name in node.keys:
            return None
        slowest = key.name
    elif o.args[0].dtype is not o.dtype and o.reduction not in ("sum", "product"):
        return None
    layout = find_layout(node, slowest)
    if layout is None:
        return None
    columns = Columns(node, layout)
    if not columns.take(o.args[-1]) or not (where == TRUE or columns.take(where)):
        return None
    if not (columns.sides[ROWS] and columns.sides[COLUMNS]):
        return None
    return _Part(node, o, None if where == TRUE else where, columns)


class _Packed:
    """A node and the parts that compute its outputs."""

    def __init__(self, node: EinSum, parts: Sequence[_Part]) -> None:
        self.node, self.parts = node, parts
        self.loops: Runner | None = None

    def run(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        fields: dict[str, np.ndarray] = {}
        for n, part in enumerate(self.parts):
            values = part.run(operands, _share(tick, n, len(self.parts)))
            if values is None:
                return self.fall_back()(operands, tick)
            fields[part.output.name] = values
        return fields

    def fall_back(self) -> Runner:
        """Compiled loops, which raise where arithmetic does."""
        if self.loops is None:
            self.loops = compile_loops(self.node)
        return self.loops


def _share(tick: Tick, number: int, of: int) -> Tick:
    return lambda done: tick((number + done) / of)


class _Part:
    """One output of a node."""

    def __init__(self, node: EinSum, o: Output, where: Expr | None, columns: Columns) -> None:
        self.node, self.output, self.where, self.columns = node, o, where, columns
        self.layout: Layout = columns.layout
        self.exprs = [o.args[-1], *([] if where is None else [where])]
        self.leaves = list(
            dict.fromkeys(
                x for e in self.exprs for x in subexpressions(e) if isinstance(x, Value | Label)
            )
        )
        self.cubes: dict[Leaf, Callable[[np.ndarray], np.ndarray]] = {
            x: cube_of(node, self.layout, x.operand) for x in self.leaves if isinstance(x, Value)
        }
        self.programs: dict[Variant, Program] = {}
        bounds = {a.label: (a.lo, a.hi) for a in node.axes}
        factors = factors_of(columns, o, where)
        self.product = None if factors is None else FactorProduct(self.layout, factors, bounds)
        plain = Ranges(node, {})
        self.term = plain.of(o.args[-1])
        for e in self.exprs:
            plain.of(e)
        self.floats_matter = compares(columns, o) or (
            any(isinstance(x, Value) and x.dtype.is_float for x in self.leaves) and plain.raises
        )
        self.integers_matter = plain.raises or not plain.narrow

    def run(self, operands: Sequence[Arrays], tick: Tick) -> np.ndarray | None:
        """The output's values, or None where integers may overflow."""
        arrays: dict[Leaf, np.ndarray] = {}
        for x in self.leaves:
            if isinstance(x, Value):
                arrays[x] = self.cubes[x](operands[x.operand][x.field])
            else:
                side = self.columns.side(x) or ROWS
                arrays[x] = label_cube(self.node, self.layout, x.name, side)
        choice = self.variant(arrays)
        if choice is None:
            return None
        variant, most = choice
        exact = None if self.product is None else self.product.type_for(most)
        if self.product is not None and exact is not None:
            _, view, result = self.allocate(np.dtype(np.int64))
            self.product.run(arrays, exact, view, tick)
            return self.finish(result)
        result, wild = self.compute(variant, arrays, tick)
        if wild:  # FLOAT may have been left on the way, or there is NaN
            careful = Variant(variant.narrow, variant.tame, True, variant.small)
            result, _ = self.compute(careful, arrays, tick)
        return self.finish(result)

    def variant(self, arrays: dict[Leaf, np.ndarray]) -> tuple[Variant, int] | None:
        """The variant that the data allow, and a bound of the magnitude of terms of integer sums.

        None where integers may overflow.
        """
        scanned: dict[Expr, Range] = {}
        for x, values in arrays.items():
            if isinstance(x, Value) and (
                (x.dtype.is_float and self.floats_matter)
                or (x.dtype.is_integer and self.integers_matter)
            ):
                scanned[x] = scan(values)
        ranges = Ranges(self.node, scanned)
        term = ranges.of(self.output.args[-1])
        for e in self.exprs:
            ranges.of(e)
        if ranges.raises:
            return None
        small, most = False, 0
        if self.output.reduction == "sum" and self.output.dtype.is_integer:
            most = int(max(abs(term.lo), abs(term.hi)))
            if most * self.layout.sizes[3] >= 2**63:
                return None
            small = ranges.narrow and most * 256 < 2**31
        tame = not any(r.nan for r in ranges.known.values())
        return Variant(ranges.narrow, tame, small=small), most

    def compute(
        self, variant: Variant, arrays: dict[Leaf, np.ndarray], tick: Tick
    ) -> tuple[np.ndarray, bool]:
        """The result in the order of the node's keys, and whether a sum was not finite."""
        terms, output = self.layout.sizes[3], self.output
        if terms <= LONGEST or output.reduction != "sum" or output.dtype is not DType.DOUBLE:
            return self.compute_terms(variant, arrays, terms, tick)
        total: RunningSum | None = None
        for start in range(0, terms, LONGEST):
            count = min(LONGEST, terms - start)
            part = {x: self.terms_of(x, cube, start, count) for x, cube in arrays.items()}
            done = _share(tick, start // LONGEST, -(-terms // LONGEST))
            sums, _ = self.compute_terms(variant, part, count, done)
            total = RunningSum(sums) if total is None else total.add(sums)
        assert total is not None
        return total.result(), False

    def terms_of(self, leaf: Leaf, cube: Cube, start: int, count: int) -> Cube:
        """Some terms of the operands of a kernel."""
        if cube.shape[2] == 1 or self.columns.own(leaf) == BOTH:
            return cube
        return cube[:, :, start : start + count]

    def compute_terms(
        self, variant: Variant, arrays: dict[Leaf, np.ndarray], terms: int, tick: Tick
    ) -> tuple[np.ndarray, bool]:
        """As `compute`, for so many terms at once."""
        program = self.programs.get(variant)
        if program is None:
            program = self.programs[variant] = generate(
                self.columns, self.output, self.where, variant, machine()
            )
        kernel = compile_cache.load(program.source, tick)
        flats, strides = [], []
        for leaf in program.leaves:
            flat, steps = flatten(arrays[leaf], leaf.dtype)
            flats.append(flat)
            strides += steps
        dtype = np.dtype(np.bool_ if program.out == "boolean" else program.out)
        array, view, result = self.allocate(dtype)
        flat_out, goal = array.reshape(-1), [s // dtype.itemsize for s in view.strides]
        flag = np.zeros(1, np.int64)
        free: list[Scratch] = []
        parts = cut(*self.layout.sizes[:3], terms, thread_pool.threads())

        def work(piece: tuple[int, ...]) -> None:
            try:
                scratch = free.pop()
            except IndexError:
                scratch = Scratch(program, parts)
            p = np.array([*piece, terms, *goal, *strides, *scratch.addresses], np.int64)
            kernel(p, flag, *flats, *scratch.arrays, flat_out, *program.consts, 1.0)
            free.append(scratch)

        thread_pool.run(work, parts.pieces(), parts.count, tick)
        return result, bool(flag[0])

    def allocate(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """An array in C order, as `[batch, row, column]`, and in the order of the node's keys."""
        lay = self.layout
        natural = (*lay.batch, *lay.rows, *lay.columns)
        keys = self.node.keys
        array = empty(tuple(lay.extent[x] for x in keys), dtype)
        turned = array.transpose([keys.index(x) for x in natural])
        try:
            return array, turned.reshape(lay.sizes[:3], copy=False), array
        except ValueError:
            array = empty(tuple(lay.extent[x] for x in natural), dtype)
            turned = array.transpose([natural.index(x) for x in keys])
            return array, array.reshape(lay.sizes[:3]), turned

    def finish(self, result: np.ndarray) -> np.ndarray:
        o, lay = self.output, self.layout
        if (o.reduction or "").startswith("arg_"):
            axis = self.node.axis(lay.terms[0])
            inner = lay.size(lay.terms[1:])
            if inner > 1:
                result //= inner
            if axis.lo:
                result += axis.lo
        elif o.reduction == "sum" and o.dtype.is_integer and o.dtype is not DType.BIGINT:
            lo, hi = o.dtype.range
            if result.min() < lo or result.max() > hi:
                raise DataError(SCALARS["add"].fails[o.dtype].reason)
        with np.errstate(over="ignore"):
            return result.astype(o.dtype.numpy, copy=False)
