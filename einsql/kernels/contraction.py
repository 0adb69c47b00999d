"""Sums of products of one or two operands, by BLAS.

Labels fall into four groups: batch (in both operands and the result), M and N (in one
operand and the result) and K (in both, summed). Labels summed that only one operand has
are summed first. Each operand becomes a stack of matrices, `[batch, M, K]` and
`[batch, K, N]`: a view where its strides allow, a copy where they force one (TTGT).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import isfinite, prod

import numpy as np

from einsql.algebra import cast_failure
from einsql.buffers import LARGE, empty
from einsql.einsum import TRUE, Call, Const, EinSum, Expr, Output, Value
from einsql.kernels.kernel import Fields, Kernel, Runner, Tick
from einsql.kernels.sums import accurate_sum, from_zero
from einsql.kernels.views import reading
from einsql.schema import DType

CHUNK = 2.3e10
"""Operations on doubles between two ticks, per thread: some tenths of a second of BLAS."""
MOST_PIECES = 2**16
"""A product is not cut into more."""
LEAST = 256
"""Rows and columns of a block of a product below which BLAS is slower."""
FLAT = 4
"""How many times wider than high a product must be to be computed transposed."""
WIDE = 2048
"""Width from which that pays whatever the layout; see `_flat_product`."""
THIN = 64
"""Rows up to which it pays for a single thread."""
TILE = 16
"""Rows that OpenBLAS's kernels take at once."""

IN_CACHE = 2**19
"""Bytes that are still in cache when they are read again."""

LONG_ROWS = 8
"""A row of so many times that size gains nothing from being made by itself."""

Load = Callable[[Sequence[Fields]], np.ndarray]
Combine = Callable[[np.ndarray, np.ndarray, Tick], np.ndarray]
Multiply = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class _Factor:
    """A field of an operand, cast without failure to the type of the product."""

    operand: int
    field: str


@dataclass(frozen=True, slots=True)
class _Product:
    """Σ scale · factors: the factors of each side, which is one operand's."""

    left: tuple[_Factor, ...]
    right: tuple[_Factor, ...]
    scale: float


def is_contraction(node: EinSum, output: Output) -> bool:
    """True if the output is a float sum of products of at most two operands."""
    return _product(node, output) is not None


def compile_contraction(node: EinSum) -> Runner | None:
    """Matches nodes whose one output is a sum of products.

    HALF results are computed in FLOAT and rounded once.
    """
    if len(node.outputs) != 1:
        return None
    output = node.outputs[0]
    found = _product(node, output)
    if found is None:
        return None
    name, shape = output.name, node.schema.shape
    if any(a.extent == 0 for a in node.axes):
        return lambda operands, tick: {name: np.zeros(shape, output.dtype.numpy)}
    work = np.dtype(np.float32) if output.dtype is DType.HALF else output.dtype.numpy
    compute = _single(node, found, work) if not found.right else _pair(node, found, work)
    finish = _finish(node, found, output.dtype.numpy)

    def run(operands: Sequence[Fields], tick: Tick) -> dict[str, np.ndarray]:
        with np.errstate(all="ignore"):
            result = compute(operands, tick)
            return {name: result if finish is None else finish(result)}

    return run


# What is a sum of products


def _product(node: EinSum, output: Output) -> _Product | None:
    if (
        output.reduction != "sum"
        or not output.dtype.is_float
        or output.args[0].dtype is not output.dtype
        or output.where != TRUE
        or node.guard != TRUE
        or any(a.define is not None for a in node.axes)
    ):
        return None
    values: list[_Factor] = []
    scale = 1.0
    for term in _factors(output.args[0], output.dtype):
        if isinstance(term, Const):
            if not _is_safe_scale(scale := scale * float(term.value), output.dtype):
                return None
            continue
        value = _uncast(term)
        if value is None:
            return None
        values.append(_Factor(value.operand, value.field))
    owners = list(dict.fromkeys(v.operand for v in values))
    if not 1 <= len(owners) <= 2 or any(len(node.operands[o].labels) > 26 for o in owners):
        return None
    if len(owners) == 1:  # x·x is a product of two sides as well
        return _Product(tuple(values[:1]), tuple(values[1:]), scale)
    left = tuple(v for v in values if v.operand == owners[0])
    return _Product(left, tuple(v for v in values if v.operand == owners[1]), scale)


def _is_safe_scale(scale: float, dtype: DType) -> bool:
    """True if Σ scale·x = scale·Σ x for infinite x too: the scale is no 0, inf or NaN."""
    with np.errstate(all="ignore"):
        rounded = float(np.asarray(scale).astype(dtype.numpy))
    return isfinite(rounded) and rounded != 0.0


def _factors(expr: Expr, dtype: DType) -> list[Expr]:
    """The factors of a product computed in `dtype`, left to right."""
    if isinstance(expr, Call) and expr.fn == "mul" and expr.dtype is dtype:
        return [f for a in expr.args for f in _factors(a, dtype)]
    return [expr]


def _uncast(expr: Expr) -> Value | None:
    """The operand value under casts that lose nothing and cannot fail."""
    while isinstance(expr, Call) and expr.fn == "cast":
        source, target = expr.args[0].dtype, expr.dtype
        widens = np.can_cast(source.numpy, target.numpy, "safe")
        if cast_failure(source, target) is not None or not widens:
            return None
        expr = expr.args[0]
    return expr if isinstance(expr, Value) else None


# Loading an operand


def _load(
    node: EinSum, side: Sequence[_Factor], order: Sequence[str], gone: int, work: np.dtype
) -> Load:
    """How a side is read: the product of its factors over labels `order`.

    Args:
        node: The node.
        side: Factors of one operand.
        order: The operand's distinct labels as wanted, the last `gone` of them summed.
        gone: How many trailing labels are summed.
        work: The dtype to compute in.
    """
    operand, field = side[0].operand, side[0].field
    view = reading(node, node.operands[operand], order)
    exact = node.operands[operand].source.schema.dtype(field).numpy == work
    if len(side) == 1 and exact and not gone and view is None:
        return lambda operands: operands[operand][field]
    axes = tuple(range(len(order) - gone, len(order)))

    def one(operands: Sequence[Fields], factor: _Factor) -> np.ndarray:
        array = operands[factor.operand][factor.field]
        return array if view is None else view(array)

    def load(operands: Sequence[Fields]) -> np.ndarray:
        array = one(operands, side[0])
        if len(side) > 1 or not axes:
            array = array.astype(work, copy=False)
        for factor in side[1:]:
            array = array * one(operands, factor).astype(work, copy=False)
        return accurate_sum(array, axes, work) if axes else array

    return load


# One operand


def _single(node: EinSum, found: _Product, work: np.dtype) -> Callable[..., np.ndarray]:
    labels = node.operands[found.left[0].operand].labels
    kept = [k for k in node.keys if k in labels]
    summed = [x for x in dict.fromkeys(labels) if x not in kept]
    load = _load(node, found.left, [*kept, *summed], len(summed), work)
    if not summed:  # a new array, for only view kernels alias their operands
        return lambda operands, tick: from_zero(load(operands))
    return lambda operands, tick: load(operands)


# Two operands


def _pair(node: EinSum, found: _Product, work: np.dtype) -> Callable[..., np.ndarray]:
    """Reads both sides and multiplies them as matrices, or element by element."""
    extent = {a.label: a.extent for a in node.axes}
    keys = node.keys
    left = set(node.operands[found.left[0].operand].labels)
    right = set(node.operands[found.right[0].operand].labels)
    sides = [(found.left, left), (found.right, right)]
    if keys and keys[-1] in left and keys[-1] not in right:
        sides.reverse()  # the last key belongs to N, so that the result is in C order
    (a, in_a), (b, in_b) = sides
    batch = [k for k in keys if k in in_a and k in in_b]
    m = [k for k in keys if k in in_a and k not in in_b]
    n = [k for k in keys if k in in_b and k not in in_a]
    shared = (in_a & in_b) - set(keys)
    size_a, size_b = (prod(extent[x] for x in s) for s in (in_a, in_b))
    # K is ordered as the larger operand has it, so that only the smaller may be copied.
    guide = node.operands[(a if size_a >= size_b else b)[0].operand].labels
    k = [x for x in dict.fromkeys(guide) if x in shared]
    gone_a = sorted(in_a - {*keys, *k})
    gone_b = sorted(in_b - {*keys, *k})
    result = [x for x in keys if x in in_a | in_b]
    if not k:
        load_a = _load(node, a, [*[x for x in result if x in in_a], *gone_a], len(gone_a), work)
        load_b = _load(node, b, [*[x for x in result if x in in_b], *gone_b], len(gone_b), work)
        combine = _outer(result, in_a, in_b, extent, work)
    else:
        load_a = _load(node, a, [*batch, *m, *k, *gone_a], len(gone_a), work)
        load_b = _load(node, b, [*batch, *k, *n, *gone_b], len(gone_b), work)
        combine = _matrices(result, (batch, m, n, k), extent, work)
    return lambda operands, tick: combine(load_a(operands), load_b(operands), tick)


def _outer(
    result: Sequence[str], in_a: set[str], in_b: set[str], extent: dict[str, int], work: np.dtype
) -> Combine:
    """Products of every element of one side with those of the other it shares a key with."""
    lift_a = tuple(slice(None) if x in in_a else None for x in result)
    lift_b = tuple(slice(None) if x in in_b else None for x in result)
    shape = tuple(extent[x] for x in result)

    def outer(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        out = empty(shape, work)
        a, b = a[lift_a], b[lift_b]
        if IN_CACHE < out.nbytes < LONG_ROWS * IN_CACHE * shape[0]:
            return _outer_by_rows(np.broadcast_to(a, shape), np.broadcast_to(b, shape), out, tick)
        return from_zero(np.multiply(a, b, out=out), out=out)

    return outer


def _outer_by_rows(a: np.ndarray, b: np.ndarray, out: np.ndarray, tick: Tick) -> np.ndarray:
    """Products, a few rows at a time: they are still in cache when they become sums."""
    rows = max(1, IN_CACHE * len(out) // out.nbytes)
    products = np.empty((rows, *out.shape[1:]), out.dtype)
    for start in range(0, len(out), rows):
        part = slice(start, start + rows)
        made = np.multiply(a[part], b[part], out=products[: len(out[part])])
        from_zero(made, out=out[part])
        tick(start / len(out))
    return out


def _matrices(
    result: Sequence[str],
    groups: tuple[list[str], list[str], list[str], list[str]],
    extent: dict[str, int],
    work: np.dtype,
) -> Combine:
    """Products of `[batch, M, K]` and `[batch, K, N]` with axes in `result` order."""
    batch, m, n, k = groups
    stack = tuple(extent[x] for x in batch)
    size_m, size_n, size_k = (prod(extent[x] for x in g) for g in (m, n, k))
    natural = [*batch, *m, *n]
    if not m and not n:
        return _dots(stack, size_k)
    flat_m = (size_m,) if m or batch else ()
    flat_n = (size_n,) if n or batch else ()
    shape_a, shape_b = (*stack, *flat_m, size_k), (*stack, size_k, *flat_n)
    fold_a = None if len(m) == len(flat_m) and len(k) == 1 else shape_a
    fold_b = None if len(n) == len(flat_n) and len(k) == 1 else shape_b
    flat = (*stack, *flat_m, *flat_n)
    pieces = _pieces(flat, size_k, work)
    if natural == list(result) and prod(pieces) == 1:
        out_shape = tuple(extent[x] for x in natural)
        unfold = None if out_shape == flat else out_shape
        is_flat = bool(m and n) and not batch and FLAT * size_m <= size_n
        product = _flat_product if is_flat else _whole_product(flat, work)

        def multiply(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
            if fold_a is not None:
                a = a.reshape(fold_a)
            if fold_b is not None:
                b = b.reshape(fold_b)
            out = product(a, b)
            return out if unfold is None else out.reshape(unfold)

        return multiply

    prepare, turn = _result_layout(result, natural, (batch, m, n), extent, work)

    def multiply_into(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        whole, out = prepare(flat)
        _blocked(a.reshape(shape_a), b.reshape(shape_b), out, pieces, tick)
        return whole if turn is None else whole.transpose(turn)

    return multiply_into


def _whole_product(shape: tuple[int, ...], work: np.dtype) -> Multiply:
    """A product in C order; a large one is written to memory that was used before."""
    if prod(shape) * work.itemsize < LARGE:
        return lambda a, b: np.asarray(np.matmul(a, b))  # 1 µs less than with an array to fill
    return lambda a, b: np.matmul(a, b, out=empty(shape, work))


def _flat_product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A product much wider than high, in C order.

    OpenBLAS cuts it so that its threads wait for each other at every block of K: beside a
    busy neighbour it takes several times longer than its transpose, which is cut into
    independent halves. An idle machine gains where the columns of `b` are contiguous, and
    loses little where its rows are long, but 5 % where the rows of `a` do not fill tiles.

    A single thread waits for nobody. Of 36 shapes, types and layouts, transposing slowed it
    down in 31, by 1 % to a factor of 2. It gained 14 to 26 % with up to 64 rows of FLOATs and
    contiguous columns, and at most 4 % elsewhere.
    """
    if a.shape[0] % TILE or not _transposes(a, b):
        return _whole_product((a.shape[0], b.shape[1]), np.result_type(a, b))(a, b)
    transposed = np.empty((b.shape[1], a.shape[0]), np.result_type(a, b))
    np.matmul(a, b, out=transposed.T)
    return np.ascontiguousarray(transposed.T)


def _transposes(a: np.ndarray, b: np.ndarray) -> bool:
    """True if a flat product had better be computed transposed."""
    columns = b.strides[0] == b.itemsize
    if _threads() == 1:
        return columns and a.shape[0] <= THIN and a.dtype == np.float32
    return columns or b.shape[1] >= WIDE


def _result_layout(
    result: Sequence[str],
    natural: Sequence[str],
    groups: tuple[list[str], list[str], list[str]],
    extent: dict[str, int],
    work: np.dtype,
) -> tuple[Callable[[tuple[int, ...]], tuple[np.ndarray, np.ndarray]], tuple[int, ...] | None]:
    """Where a product is written: into the result itself if M and N stand together there.

    Returns:
        A function making the array that holds the result and its view as matrices, and
        the transposition that turns the former into result order.
    """
    shape = tuple(extent[x] for x in result)
    together = all(list(result[result.index(g[0]) :][: len(g)]) == g for g in groups[1:] if g)
    if together:
        order = tuple(result.index(x) for x in natural)

        def direct(flat: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
            whole = empty(shape, work)
            return whole, whole.transpose(order).reshape(flat)

        return direct, None
    turned = tuple(extent[x] for x in natural)

    def apart(flat: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        whole = empty(turned, work)
        return whole, whole.reshape(flat)

    return apart, tuple(natural.index(x) for x in result)


def _dots(stack: tuple[int, ...], size_k: int) -> Combine:
    """Dot products, one for each element of the result."""
    shape = (*stack, size_k)

    def dots(a: np.ndarray, b: np.ndarray, tick: Tick) -> np.ndarray:
        a, b = a.reshape(shape), b.reshape(shape)
        if not stack:
            return np.asarray(np.dot(a, b))
        if max(abs(a.strides[-1]), abs(b.strides[-1])) <= a.itemsize:
            return np.asarray(np.vecdot(a, b))
        return np.asarray(np.einsum("...k,...k->...", a, b))  # adds rows of the stack

    return dots


def _threads() -> int:
    """How many threads BLAS has, as far as the environment says."""
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if os.environ.get(name, "").isdigit():
            return max(1, int(os.environ[name]))
    return os.cpu_count() or 1


def _pieces(flat: tuple[int, ...], size_k: int, work: np.dtype) -> tuple[int, ...]:
    """Into how many parts the axes of a product and then K are cut, to tick in between.

    Always the longest pieces are cut: a block is fast if it is high and wide. K is cut where
    the result is too small for that.
    """
    wanted = 2.0 * prod(flat) * size_k * work.itemsize / (8 * CHUNK * _threads())
    parts, extents = [1] * (len(flat) + 1), (*flat, size_k)
    while prod(parts) < min(wanted, MOST_PIECES):
        pieces = [e / p for e, p in zip(flat, parts, strict=False)]
        # Of equal axes the last: a block that is high is cut among threads better.
        axis = max(range(len(flat)), key=lambda d: (pieces[d], d))
        if pieces[axis] < 2 * LEAST:
            axis = len(flat) if size_k / parts[-1] >= 2 * LEAST else axis
        if parts[axis] == extents[axis]:
            break
        parts[axis] += 1
    return tuple(parts)


def _blocked(
    a: np.ndarray, b: np.ndarray, out: np.ndarray, pieces: tuple[int, ...], tick: Tick
) -> None:  # fmt: skip
    """Products of matrices, block by block of the result and piece by piece of K."""
    whole = prod(pieces)
    if whole == 1:
        np.matmul(a, b, out=out)
        return
    extents = (*out.shape, a.shape[-1])
    edges = [np.linspace(0, e, p + 1).astype(int) for e, p in zip(extents, pieces, strict=True)]
    cuts = [[slice(lo, hi) for lo, hi in pairwise(e)] for e in edges]
    stack = max(0, min(a.ndim, b.ndim) - 2)
    high = a.ndim > 1
    for n, (*block, k) in enumerate(product(*cuts)):
        over, rest = block[:stack], block[stack:]
        rows, columns = rest[: int(high)], rest[int(high) :]
        left, right = a[(*over, *rows, k)], b[(*over, k, *columns)]
        part = out[tuple(block)]
        if k.start == 0:
            np.matmul(left, right, out=part)
        else:
            part += np.matmul(left, right)
        tick((n + 1) / whole)


def _finish(
    node: EinSum, found: _Product, dtype: np.dtype
) -> Callable[[np.ndarray], np.ndarray] | None:
    """What remains after the product: constants, labels of no operand, rounding to HALF."""
    held = {x for f in (*found.left, *found.right) for x in node.operands[f.operand].labels}
    repeats = prod(a.extent for a in node.axes if a.label not in held and a.label not in node.keys)
    scale = found.scale * repeats
    lift: tuple[slice | None, ...] | None = None
    if not held.issuperset(node.keys):
        lift = tuple(slice(None) if k in held else None for k in node.keys)
    if scale == 1.0 and lift is None and dtype != np.float16:
        return None
    shape = node.schema.shape

    def finish(result: np.ndarray) -> np.ndarray:
        if scale != 1.0:
            result = from_zero(np.asarray(result * result.dtype.type(scale)))
        result = np.asarray(result).astype(dtype, copy=False)
        return result if lift is None else np.broadcast_to(result[lift], shape)

    return finish


CONTRACTION = Kernel(
    "blas", "a float sum of products of one or two operands is matrix products", compile_contraction
)
