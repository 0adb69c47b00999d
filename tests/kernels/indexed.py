"""Random nodes whose operands are read through affine labels or labels found in data."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.ir.einsum.affine import Affine
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Label,
    Operand,
    Output,
    Value,
)
from tests.kernels.nodes import Case, lay_out, random_array

B, I32, I64, F, D = DType.BOOLEAN, DType.INTEGER, DType.BIGINT, DType.FLOAT, DType.DOUBLE
_LEAST_GEMM = 4
"""Least rows and least terms of a convolution that is computed as a matrix product."""
PRESENCE = Output(PRESENT, (TRUE,), B, "bool_or")


def source(name: str, dtype: DType, *bounds: tuple[int, int]) -> Input:
    """A relation with one value."""
    keys = tuple(Key(f"k{n}", lo, hi) for n, (lo, hi) in enumerate(bounds))
    return Input(name, Schema(keys, (Field("val", dtype),)))


@st.composite
def convolutions(draw: st.DrawFn, dtypes: tuple[DType, ...] = (F, F, D)) -> Case:
    """Products over strided, dilated, shifted and padded windows, in groups or not."""
    dtype = draw(st.sampled_from(dtypes))
    n, p = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    c, s = draw(st.integers(1, 3)), draw(st.integers(2, 3))
    free = {
        "n": n,
        "g": draw(st.sampled_from((1, 1, 2))),
        "o": draw(st.sampled_from((4, 5, 9, 70))),
        "c": c,
        "p": p,
        "q": draw(st.integers(max(2, -(-_LEAST_GEMM // (n * p))), 6)),
        "r": draw(st.integers(max(1, -(-_LEAST_GEMM // (c * s))), 3)),
        "s": s,
    }
    axes = [Axis(x, lo := draw(st.integers(-1, 1)), lo + size) for x, size in free.items()]
    by_name = {a.label: a for a in axes}
    for x, (first, second) in {"h": ("p", "r"), "w": ("q", "s")}.items():
        steps = {first: draw(st.sampled_from((1, 1, 2, -1))), second: draw(st.sampled_from((1, 2)))}
        value = Affine(steps, draw(st.integers(-2, 2)))
        lo, hi = value.least(by_name), value.most(by_name) + 1
        if draw(st.integers(0, 2)) == 0:  # some windows are partly outside
            lo += draw(st.integers(0, min(1, hi - lo - 1)))
            hi -= draw(st.integers(0, min(1, hi - lo - 1)))
        axes.append(Axis(x, lo, hi, value.expr()))
    by_name |= {a.label: a for a in axes}
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    specials = draw(st.integers(0, 3)) == 0
    operands, arrays = [], []
    for n, labels in enumerate(("ngchw", "gocrs")):
        order = draw(st.permutations(labels))
        pads = [draw(st.sampled_from((0, 0, 1))) for _ in order]
        bounds = [
            (by_name[x].lo - pad, by_name[x].hi + pad) for x, pad in zip(order, pads, strict=True)
        ]
        made = source(f"x{n}", dtype, *bounds)
        operands.append(Operand(made, tuple(order)))
        values = random_array(made.schema.shape, dtype, rng, specials)
        arrays.append({"val": lay_out(values, draw(st.integers(0, 5)))})
    factors: list[Expr] = [Value(0, "val", dtype), Value(1, "val", dtype)]
    if draw(st.booleans()):
        factors.append(Const(-0.5, dtype))
    value_of, *rest = draw(st.permutations(factors))
    for f in rest:
        value_of = Call("mul", (value_of, f), dtype)
    keys = tuple(draw(st.permutations("ngopq")))
    output = Output("val", (value_of,), dtype, "sum")
    node = EinSum(tuple(axes), tuple(operands), TRUE, keys, (output,))
    return Case(node, tuple(arrays), inexact=specials)


def _found(
    draw: st.DrawFn, rng: np.random.Generator, rows: tuple[int, ...], most: int
) -> np.ndarray:
    """Numbers of rows, some of which there may not be."""
    low, high = draw(st.sampled_from(((0, most), (0, most), (-2, most + 2))))
    numbers = rng.integers(low, max(low + 1, high), rows)
    return np.sort(numbers.reshape(-1)).reshape(rows) if draw(st.booleans()) else numbers


def _number(draw: st.DrawFn, operand: int, dtype: DType) -> Expr:
    value: Expr = Value(operand, "val", dtype)
    if dtype is not I64:
        value = Call("cast", (value,), I64)
    kind = draw(st.integers(0, 3))
    if kind == 0:
        value = Call("sub", (value, Const(1, I64)), I64)
    elif kind == 1:
        value = Call("mod", (Call("add", (value, Label("e")), I64), Const(3, I64)), I64)
    return value


@st.composite
def gathers(draw: st.DrawFn) -> Case:
    """Rows of tables by numbers, some of which lie outside."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    axes = [
        Axis(x, lo := draw(st.integers(-1, 1)), lo + draw(st.sampled_from((3, 1, 5, 2))))
        for x in "bedf"
    ]
    size = {a.label: (a.lo, a.hi) for a in axes}
    rows = draw(st.sampled_from(("e", "be", "eb")))
    axes = [a for a in axes if a.label in rows + "df"]
    lo = draw(st.integers(0, 2))
    dtype = draw(st.sampled_from((I64, I32)))
    ids = source("ids", dtype, *(size[x] for x in rows))
    features = draw(st.permutations(draw(st.sampled_from(("df", "d", "")))))
    axes = [a for a in axes if a.label in rows or a.label in features]
    kind = draw(st.sampled_from(tuple(DType)))
    labels = draw(st.permutations(("w", *features)))
    inside = Axis("w", lo, lo + draw(st.integers(1, 4)), _number(draw, 0, dtype))
    held = {**size, "w": (lo - draw(st.integers(0, 1)), inside.hi + 1)}
    table = source("table", kind, *(held[x] for x in labels))
    node = EinSum(
        (*axes, inside),
        (Operand(ids, tuple(rows)), Operand(table, tuple(labels))),
        TRUE,
        tuple(draw(st.permutations([a.label for a in axes]))),
        (Output("val", (Value(1, "val", kind),), kind), PRESENCE),
    )
    numbers = _found(draw, rng, ids.schema.shape, inside.hi).astype(dtype.numpy)
    values = random_array(table.schema.shape, kind, rng, draw(st.booleans()))
    arrays = (lay_out(numbers, draw(st.integers(0, 5))), lay_out(values, draw(st.integers(0, 5))))
    return Case(node, tuple({"val": a} for a in arrays))


@st.composite
def segments(draw: st.DrawFn, dtypes: tuple[DType, ...] = (F, D, I32, I64)) -> Case:
    """Reductions of rows, found or not, by one or two keys found in data."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    sizes = {"b": draw(st.integers(1, 2)), "e": draw(st.integers(1, 9)),
             "f": draw(st.integers(1, 3)), "g": draw(st.integers(1, 2))}  # fmt: skip
    axes = [Axis(x, lo := draw(st.integers(-1, 1)), lo + n) for x, n in sizes.items()]
    bounds = {a.label: (a.lo, a.hi) for a in axes}
    dtype = draw(st.sampled_from(dtypes))
    huge = draw(st.integers(0, 3)) == 0
    first = draw(st.integers(-1, 1))
    axes += [
        Axis("n", 0, draw(st.integers(1, 4)), _number(draw, 0, I64)),
        Axis("s", first, first + draw(st.integers(1, 5)), _number(draw, 1, I64)),
    ]
    bounds |= {a.label: (a.lo, a.hi + 1) for a in axes[4:]}
    keys = ["s", *(x for x in ("f", "g", "b", "n") if draw(st.booleans()))]
    features = [x for x in "fg" if x in keys]
    axes = [a for a in axes if a.label not in "fg" or a.label in keys]
    reads = [("b", "e"), ("e",), ("n", *draw(st.permutations(features))), ("e", "b")]
    reads.append(draw(st.sampled_from((("n", "e"), ("b", "n", *features)))))
    operands, arrays = [], []
    for n, labels in enumerate(reads):
        kind = I64 if n < 2 else dtype
        made = source(f"x{n}", kind, *(bounds[x] for x in labels))
        operands.append(Operand(made, labels))
        shape = made.schema.shape
        number = n < 2 and _found(draw, rng, shape, 4)
        special = draw(st.booleans())
        values = random_array(shape, dtype, rng, special, huge) if n >= 2 else number
        arrays.append({"val": lay_out(np.asarray(values), draw(st.integers(0, 5)))})
    # Few texts, for each is compiled.
    value: Expr = Value(2, "val", dtype)
    if dtype.is_float and draw(st.booleans()):
        for m in (3, 4):
            value = Call("mul", (value, Value(m, "val", dtype)), dtype)
    reduction = draw(st.sampled_from(("sum", "sum", "min", "max")))
    if dtype is I32 and reduction == "sum":
        value = Call("cast", (value,), I64)
    outputs = [Output("v", (value,), value.dtype, reduction)]
    outputs += [Output("count", (Const(1, I64),), I64, "sum"), PRESENCE]
    order = tuple(draw(st.permutations(keys)))
    node = EinSum(tuple(axes), tuple(operands), TRUE, order, tuple(outputs))
    return Case(node, tuple(arrays), inexact=True)
