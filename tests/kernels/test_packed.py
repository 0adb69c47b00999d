"""Packed kernels answer what the reference answers, whatever the data and their layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from einsql.einsum import (
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
from einsql.errors import DataError
from einsql.kernels import compile_node, pool
from einsql.kernels.packed import layout, run
from einsql.kernels.packed.run import compile_packed
from einsql.schema import DType, Field, Key, Schema
from tests.kernels.nodes import Case, check, lay_out, no_tick, random_array

B, T, I32, I64 = DType.BOOLEAN, DType.TINYINT, DType.INTEGER, DType.BIGINT
H, F, D = DType.HALF, DType.FLOAT, DType.DOUBLE

PROPERTY = settings(
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),  # shrinking would compile hundreds of kernels
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(autouse=True, scope="module")
def _cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EINSQL_CACHE_DIR", str(tmp_path_factory.mktemp("kernels")))
        yield


@pytest.fixture(autouse=True)
def _small_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs whatever can be, and leaves garbage wherever memory is not written."""
    monkeypatch.setattr(layout, "LEAST", 1)
    monkeypatch.setattr(run, "LEAST", 1)

    def poisoned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        memory = np.full(int(np.prod(shape)) * dtype.itemsize, 0xFF, np.uint8)
        return memory.view(dtype).reshape(shape)

    monkeypatch.setattr(run, "empty", poisoned)


def fn(name: str, dtype: DType, *args: Expr) -> Call:
    return Call(name, args, dtype)


# Random nodes ------------------------------------------------------------------------

_INTO = {"sum": (F, D, H, I32, I64), "product": (F, D), "min": (F, D, H, I32, I64, B),
         "max": (F, D, H, T, I64, B), "arg_min": (F, D, I32, I64, B), "arg_max": (F, D, I64),
         "bool_or": (B,), "bool_and": (B,)}  # fmt: skip
_FLOAT = ("add", "sub", "mul", "abs", "greatest", "least", "neg", "floor", "if")
_INTEGER = ("add", "sub", "mul", "abs", "greatest", "least", "if", "bitand", "xor")
_BOOLEAN = ("eq", "lt", "le", "ne", "and", "or", "not")


@st.composite
def sides(draw: st.DrawFn) -> Case:
    """Two operands that share labels, each with keys of its own, and one reduction."""
    reduction = draw(st.sampled_from(sorted(_INTO)))
    dtype = draw(st.sampled_from(_INTO[reduction]))
    pairs = reduction.startswith("arg_")
    # Sums of FLOAT stay exact, and products of few factors.
    long = reduction not in ("product",) and draw(st.integers(0, 3)) == 0
    extents = {
        "b": draw(st.sampled_from((1, 3))),
        "i": draw(st.sampled_from((1, 5, 13, 30))),
        "p": 2,
        "j": draw(st.sampled_from((1, 7, 33))),
        "k": 270 if long else draw(st.sampled_from((1, 4, 9))),
        "q": 3,
    }
    low = draw(st.sampled_from((-1, 0, 2)))
    axes = tuple(Axis(x, low, low + n) for x, n in extents.items())
    keep = {x for x in "bpq" if draw(st.booleans())} | set("ijk")
    axes = tuple(a for a in axes if a.label in keep)
    left = draw(st.permutations([x for x in "bipkq" if x in keep]))
    right = draw(st.permutations([x for x in "bjkq" if x in keep]))
    keys = draw(st.permutations([x for x in "bipj" if x in keep]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    specials = draw(st.integers(0, 2)) == 0
    types = [draw(st.sampled_from(_matching(dtype))) for _ in "lr"]
    operands, arrays = [], []
    for n, labels in enumerate((left, right)):
        bounds = {a.label: a for a in axes}
        pad = draw(st.sampled_from((0, 1)))
        source_keys = tuple(Key(x, bounds[x].lo - pad, bounds[x].hi) for x in labels)
        source = Input(f"r{n}", Schema(source_keys, (Field("val", types[n]),)))
        operands.append(Operand(source, tuple(labels)))
        values = random_array(source.schema.shape, types[n], rng, specials)
        arrays.append({"val": lay_out(values, draw(st.integers(0, 5)))})
    leaves: list[Expr] = [Value(n, "val", t) for n, t in enumerate(types)]
    term = draw(_joined(dtype, leaves))
    where = TRUE
    if not pairs and draw(st.integers(0, 2)) == 0:
        where = draw(st.sampled_from(_conditions(leaves)))
    args: tuple[Expr, ...] = (term,)
    out = dtype
    if pairs:
        args, out = (Label(draw(st.sampled_from(sorted(keep & set("kq"))))), term), I64
    output = Output("v", args, out, reduction, where)
    node = EinSum(axes, tuple(operands), TRUE, tuple(keys), (output,))
    return Case(node, tuple(arrays), inexact=reduction == "product")


def _matching(dtype: DType) -> tuple[DType, ...]:
    """Types whose values an expression of a type may be made of."""
    if dtype is B:
        return (B, F, I32)
    return {T: (T,), I32: (I32, T), I64: (I64, I32), H: (H,), F: (F, H), D: (D, F)}[dtype]


@st.composite
def _joined(draw: st.DrawFn, dtype: DType, leaves: list[Expr]) -> Expr:
    """An expression over both sides."""
    if dtype is B:
        a, b = leaves
        if a.dtype is b.dtype is B:
            return fn(draw(st.sampled_from(_BOOLEAN[:-1])), B, a, b)
        tests = [e if e.dtype is B else fn("lt", B, Const(0, e.dtype), e) for e in leaves]
        return fn(draw(st.sampled_from(("and", "or", "eq"))), B, *tests)
    a, b = (e if e.dtype is dtype else fn("cast", dtype, e) for e in leaves)
    if dtype is H:
        return fn("if", H, fn("lt", B, a, b), a, b)
    names = _INTEGER if dtype.is_integer else _FLOAT
    e: Expr = fn(draw(st.sampled_from(names[:3])), dtype, a, b)
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(names))
        if name in ("abs", "neg", "floor"):
            e = fn(name, dtype, e)
        elif name == "if":
            e = fn("if", dtype, fn(draw(st.sampled_from(_BOOLEAN[:4])), B, a, b), e, b)
        else:
            other = draw(st.sampled_from((a, b, Const(2, dtype))))
            e = fn(name, dtype, e, other)
    return e


def _conditions(leaves: list[Expr]) -> list[Expr]:
    a, b = leaves
    tests = [fn("lt", B, Label("i"), Label("j")), fn("le", B, Label("k"), Label("i"))]
    if a.dtype is b.dtype:
        tests.append(fn("ne", B, a, b))
    return tests


@settings(PROPERTY, max_examples=60)
@given(sides(), st.sampled_from((1, 2)))
def test_random_reductions_over_two_sides(case: Case, threads: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "SPAN", 16)
        patch.setattr(pool, "threads", lambda: threads)
        runner = compile_packed(case.node)
        assert runner is not None
        check(case, runner)
