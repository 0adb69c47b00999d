"""Execution of packed kernels: data-dependent choices, pieces and buffers of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil, isnan, prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from einsql.core.buffer_pool import empty
from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.ir.einsum.graph import TRUE, EinSum, Expr, Label, Output, Value, conj, subexpressions
from einsql.ir.einsum.states import owners, point_merges, state_name, state_of
from einsql.ir.functions import SCALARS
from einsql.kernels.compiler.cpu_features import machine
from einsql.kernels.kernel import Arrays, Runner, Tick, share
from einsql.kernels.loops import compile_loops
from einsql.kernels.matmul.pieces import slices
from einsql.kernels.packed.factors import FactorProduct, factors_of
from einsql.kernels.packed.functions import ANYTHING, Range
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
from einsql.kernels.packed.source import NUMPY, Leaf, Program, Variant, generate
from einsql.kernels.packed.states import ranges_of_state
from einsql.kernels.packed.terms import Columns, Ranges, compares
from einsql.kernels.runtime import compile_cache, thread_pool
from einsql.kernels.scalars import bounds_of
from einsql.kernels.vectorized.sums import RunningSum

LONGEST = 2**17
"""Terms of a DOUBLE sum per kernel: blocks of 128 terms, of which up to 1,024 are added."""
_REDUCTIONS = frozenset(
    {"sum", "product", "min", "max", "bool_or", "bool_and", "arg_min", "arg_max"}
)
SPAN = 512
"""Greatest rows and columns of a piece, so that packed panels stay in the L2 cache."""
PIECE = 2**31
"""Greatest points of a piece, some tens of milliseconds."""
SMALL_PIECE = 2**22
"""Least points of a piece that is cut for more threads."""


def compile_packed(node: EinSum) -> Runner | None:
    """Matches a node; see `einsql.kernels.packed.compile_packed`."""
    parts = []
    own = owners(node.outputs)
    for n, o in enumerate(node.outputs):
        if own[n] == n:
            of = [x for m, x in enumerate(node.outputs) if own[m] == n]
            packed = _match(node, o) if state_name(o) is None else _match_state(node, of)
            if packed is None:
                return None
            parts.append(packed)
    return _Packed(node, parts).run


def _match_state(node: EinSum, outputs: Sequence[Output]) -> _Part | None:
    """The columns of the outputs of a state; None if packing does not support it."""
    first = outputs[0]
    layout, state = find_layout(node, None), state_of(first.reduction or "")
    if layout is None or (state.ordered and layout.terms != node.reduced):
        return None
    merges = point_merges(replace(node, outputs=(first,)))
    where = conj(node.guard, first.where)
    number = Label(layout.terms[0]) if len(layout.terms) == 1 else None
    columns = Columns(node, layout, fields=tuple(f.name for f in state.fields), number=number)
    if not all(map(columns.take, merges)) or not (where == TRUE or columns.take(where)):
        return None
    if not (columns.sides[ROWS] and columns.sides[COLUMNS]):
        return None
    return _Part(node, outputs, merges, None if where == TRUE else where, columns)


def _match(node: EinSum, o: Output) -> _Part | None:
    """The columns of an output; None if packing does not support it."""
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
    return _Part(node, (o,), o.args[-1:], None if where == TRUE else where, columns)


class _Packed:
    def __init__(self, node: EinSum, parts: Sequence[_Part]) -> None:
        self.node, self.parts = node, parts
        self.loops: Runner | None = None

    def run(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        fields: dict[str, np.ndarray] = {}
        for n, part in enumerate(self.parts):
            values = part.run(operands, share(tick, n, len(self.parts)))
            if values is None:
                return self.fall_back()(operands, tick)
            fields |= values
        return fields

    def fall_back(self) -> Runner:
        if self.loops is None:
            self.loops = compile_loops(self.node)
        return self.loops


class _Part:
    """An output, or the outputs of a state, with the terms that are reduced.

    Args:
        node: The node.
        outputs: The outputs.
        terms: The term of the output, or all fields of the state merged with one.
        where: The condition that selects points, or None.
        columns: The columns of both sides.
    """

    def __init__(
        self,
        node: EinSum,
        outputs: Sequence[Output],
        terms: Sequence[Expr],
        where: Expr | None,
        columns: Columns,
    ) -> None:
        self.node, self.outputs, self.where, self.columns = node, outputs, where, columns
        self.output = o = outputs[0]
        self.terms = terms
        self.state = state_of(o.reduction or "") if columns.fields else None
        self.layout: Layout = columns.layout
        self.exprs = [*terms, *([] if where is None else [where])]
        self.leaves = list(
            dict.fromkeys(
                x
                for e in self.exprs
                for x in subexpressions(e)
                if isinstance(x, Label) or (isinstance(x, Value) and x.operand >= 0)
            )
        )
        self.cubes: dict[Leaf, Callable[[np.ndarray], np.ndarray]] = {
            x: cube_of(node, self.layout, x.operand) for x in self.leaves if isinstance(x, Value)
        }
        self.programs: dict[Variant, Program] = {}
        bounds = bounds_of(node)
        factors = factors_of(columns, o, where)
        self.product = None if factors is None else FactorProduct(self.layout, factors, bounds)
        plain = self.ranges({})
        for e in self.exprs:
            plain.of(e)
        self.floats_matter = compares(columns, o) or (
            any(isinstance(x, Value) and x.dtype.is_float for x in self.leaves) and plain.raises
        )
        self.integers_matter = plain.raises or not plain.narrow

    def ranges(self, leaves: dict[Expr, Range]) -> Ranges:
        """The ranges of expressions from those of the operands."""
        if self.state is not None:
            leaves = leaves | ranges_of_state(self.node, self.state, self.terms, leaves)
        return Ranges(self.node, leaves)

    def run(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray] | None:
        """The outputs' values, or None if integers may overflow."""
        arrays: dict[Leaf, np.ndarray] = {}
        for x in self.leaves:
            if isinstance(x, Value):
                arrays[x] = self.cubes[x](operands[x.operand][x.field])
            else:
                side = self.columns.side(x) or ROWS
                arrays[x] = label_cube(self.node, self.layout, x.name, side)
        if self.product is not None and self.product.is_test:
            exact = self.product.type_for(1)
            if exact is not None:
                return self.multiplied(self.product, exact, arrays, tick)
        choice = self.variant(arrays)
        if choice is None:
            return None
        variant, most = choice
        exact = None if self.product is None else self.product.type_for(most)
        if self.product is not None and exact is not None:
            return self.multiplied(self.product, exact, arrays, tick)
        results, wild = self.compute(variant, arrays, tick)
        if wild:  # a partial sum may have exceeded FLOAT, or a value is NaN
            careful = Variant(variant.narrow, variant.tame, True, variant.small)
            results, _ = self.compute(careful, arrays, tick)
        return {o.name: self.finish(r) for o, r in zip(self.outputs, results, strict=True)}

    def multiplied(
        self, product: FactorProduct, exact: np.dtype, arrays: dict[Leaf, np.ndarray], tick: Tick
    ) -> dict[str, np.ndarray]:
        """The output as a product of its factors."""
        is_sum = self.output.reduction == "sum"
        _, view, result = self.allocate(np.dtype(np.int64) if is_sum else self.output.dtype.numpy)
        product.run(arrays, exact, view, tick)
        return {self.output.name: self.finish(result)}

    def variant(self, arrays: dict[Leaf, np.ndarray]) -> tuple[Variant, int] | None:
        """The variant for the data, and a bound of the magnitude of terms of integer sums.

        None if integers may overflow.
        """
        scanned: dict[Expr, Range] = {}
        for x, values in arrays.items():
            if isinstance(x, Value) and (
                (x.dtype.is_float and self.floats_matter)
                or (x.dtype.is_integer and self.integers_matter)
            ):
                scanned[x] = scan(values)
        ranges = self.ranges(scanned)
        term = ranges.of(self.terms[0])
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
        # Vectors of one length have elements of one size.
        narrow = ranges.narrow and (self.state is None or not _any_double(self.exprs))
        return Variant(narrow, tame, small=small), most

    def compute(
        self, variant: Variant, arrays: dict[Leaf, np.ndarray], tick: Tick
    ) -> tuple[list[np.ndarray], bool]:
        """The results in the order of the node's keys, and whether a sum is not finite."""
        terms, output = self.layout.sizes[3], self.output
        if terms <= LONGEST or output.reduction != "sum" or output.dtype is not DType.DOUBLE:
            return self.compute_terms(variant, arrays, terms, tick)
        total: RunningSum | None = None
        for start in range(0, terms, LONGEST):
            count = min(LONGEST, terms - start)
            part = {x: self.terms_of(x, cube, start, count) for x, cube in arrays.items()}
            done = share(tick, start // LONGEST, -(-terms // LONGEST))
            (sums,), _ = self.compute_terms(variant, part, count, done)
            total = RunningSum(sums) if total is None else total.add(sums)
        assert total is not None
        return [total.result()], False

    def terms_of(self, leaf: Leaf, cube: Cube, start: int, count: int) -> Cube:
        if cube.shape[2] == 1 or self.columns.own(leaf) == BOTH:
            return cube
        return cube[:, :, start : start + count]

    def compute_terms(
        self, variant: Variant, arrays: dict[Leaf, np.ndarray], terms: int, tick: Tick
    ) -> tuple[list[np.ndarray], bool]:
        """The same as `compute` for all terms at once."""
        program = self.programs.get(variant)
        if program is None:
            program = self.programs[variant] = generate(
                self.columns, self.outputs, self.terms, self.where, variant, machine()
            )
        kernel = compile_cache.load(program.source, tick)
        flats, strides = [], []
        for leaf in program.leaves:
            flat, steps = flatten(arrays[leaf], leaf.dtype)
            flats.append(flat)
            strides += steps
        dtypes = [np.dtype(np.bool_ if out == "boolean" else out) for out in program.out]
        arrays_out, views, results = zip(*map(self.allocate, dtypes), strict=True)
        flat_out = [a.reshape(-1) for a in arrays_out]
        goal = [s // dtypes[0].itemsize for s in views[0].strides]
        number = self.columns.number
        base = 0 if number is None else self.node.axis(number.name).lo
        flag = np.zeros(1, np.int64)
        free: list[Scratch] = []
        extent = self.layout.sizes[:3]
        parts = cut(extent, prod(extent) * terms, thread_pool.threads())
        largest = [ceil(e / p) for e, p in zip(extent[1:], parts[1:], strict=True)]

        def work(piece: tuple[slice, ...]) -> None:
            try:
                scratch = free.pop()
            except IndexError:
                scratch = Scratch(program, *largest)
            ends = [end for part in piece for end in (part.start, part.stop)]
            p = np.array([*ends, terms, *goal, base, *strides, *scratch.addresses], np.int64)
            kernel(p, flag, *flats, *scratch.arrays, *flat_out, *program.consts, 1.0)
            free.append(scratch)

        thread_pool.run(work, slices(extent, parts), prod(parts), tick)
        return list(results), bool(flag[0])

    def allocate(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Allocates an array in C order; returns it, its cube, and its view in key order."""
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
        if self.state is not None:
            return result
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


def _any_double(exprs: Sequence[Expr]) -> bool:
    """True if an expression has a part of type DOUBLE."""
    return any(e.dtype is DType.DOUBLE for root in exprs for e in subexpressions(root))


def cut(extent: tuple[int, int, int], points: int, threads: int) -> tuple[int, ...]:
    """Cuts a result into short pieces that fit the cache, enough for all threads.

    Args:
        extent: The numbers of batches, rows and columns.
        points: The points of all of them.
        threads: The number of threads.

    Returns:
        The number of parts of each extent.
    """
    b, m, n = extent
    parts = [1, ceil(m / SPAN), ceil(n / SPAN)]
    several = min(2 * threads, points // SMALL_PIECE) if threads > 1 else 1
    wanted = max(several, ceil(points / PIECE))
    parts[0] = max(1, min(b, ceil(wanted / prod(parts))))
    while prod(parts) < wanted:
        axis = 1 if m / parts[1] > n / parts[2] else 2
        if parts[axis] >= extent[axis]:
            break
        parts[axis] += 1
    return tuple(parts)


class Scratch:
    """The buffers of one thread: packed columns of both sides and running values.

    Args:
        program: The kernel.
        m, n: The greatest rows and columns of a piece.
    """

    def __init__(self, program: Program, m: int, n: int) -> None:
        tile, depth = program.tile, program.depth
        high, wide = ceil(m / tile.rows) * tile.rows, ceil(n / tile.lanes) * tile.lanes
        sizes = [(kind, high * depth) for kind in tile.a]
        sizes += [(kind, wide * depth) for kind in tile.b]
        sizes += [(kind, high * wide) for kind in (*tile.c, *tile.states)]
        self.arrays = [_aligned(size, kind) for kind, size in sizes]
        self.addresses = [a.ctypes.data for a in self.arrays]


def _aligned(size: int, kind: str) -> np.ndarray:
    """Allocates an uninitialised array at the start of a cache line."""
    dtype = np.dtype(NUMPY[kind])
    block = np.empty(size * dtype.itemsize + 64, np.uint8)
    start = -block.ctypes.data % 64
    return block[start : start + size * dtype.itemsize].view(dtype)


def scan(values: np.ndarray) -> Range:
    """The least and greatest value of an array."""
    lo, hi = values.min(), values.max()
    if values.dtype.kind != "f":
        return Range(int(lo), int(hi))
    return ANYTHING if isnan(lo) else Range(float(lo), float(hi))


def flatten(cube: np.ndarray, dtype: DType) -> tuple[np.ndarray, list[int]]:
    """A cube as a flat array and the stride of each axis; copied only if strides require it."""
    carrier = np.dtype(np.float32) if dtype is DType.HALF else dtype.numpy
    cube = np.asarray(cube, carrier)
    size = carrier.itemsize
    pairs = list(zip(cube.strides, cube.shape, strict=True))
    if not cube.flags.aligned or any(n > 1 and (s < 0 or s % size) for s, n in pairs):
        cube = np.ascontiguousarray(cube)
        pairs = list(zip(cube.strides, cube.shape, strict=True))
    steps = [s // size if n > 1 else 0 for s, n in pairs]
    span = 1 + sum((n - 1) * s for n, s in zip(cube.shape, steps, strict=True))
    flat = as_strided(cube, (span,), (size,), writeable=False)
    return flat, steps
