"""Kernels over operands and results of two bytes an element, HALF and BFLOAT16."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from einsql.core.bfloat16 import loaded, narrow, rounded, stored, widen
from einsql.core.schema import DType, Field, Key, Schema
from einsql.errors import DataError
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Operand,
    Output,
    Value,
    rewrite,
)
from einsql.ir.einsum.graph_rewriting import map_exprs
from einsql.kernels import compile_node
from einsql.kernels.loops import half_precision as short_kernels
from einsql.kernels.loops.generated import compile_loops
from einsql.kernels.runtime import thread_pool
from einsql.kernels.vectorized.vector import compile_vector
from tests.kernels.indexed import convolutions, segments
from tests.kernels.nodes import Case, Runner, cases, check, no_tick
from tests.kernels.test_kernels import products
from tests.support.samples import combinations, sample

Compile = Callable[[EinSum], Runner]
BF, H, F, D = DType.BFLOAT16, DType.HALF, DType.FLOAT, DType.DOUBLE


def shortened(case: Case, short: DType) -> Case:
    """The case with a short type for every FLOAT operand, cast where it is read."""

    def cast(e: Expr) -> Expr:
        if isinstance(e, Value) and e.dtype is F:
            return Call("cast", (replace(e, dtype=short),), F)
        return e

    sources: dict[int, Input] = {}
    for o in case.node.operands:
        fields = tuple(Field(f.name, short) if f.dtype is F else f for f in o.source.schema.fields)
        assert isinstance(o.source, Input)
        sources[id(o.source)] = Input(o.source.name, Schema(o.source.schema.keys, fields))
    node = map_exprs(case.node, lambda e: rewrite(e, cast))
    operands = tuple(Operand(sources[id(o.source)], o.labels) for o in node.operands)
    arrays = tuple(
        {f.name: _as(given[f.name], f.dtype, short) for f in o.source.schema.fields}
        for o, given in zip(case.node.operands, case.operands, strict=True)
    )
    return Case(replace(node, operands=operands), arrays, case.inexact, case.reordered)


def _as(array: np.ndarray, dtype: DType, short: DType) -> np.ndarray:
    if dtype is not F:
        return array
    return narrow(array) if short is BF else array.astype(np.float16)


@pytest.mark.parametrize(
    ("kind", "short"), combinations(["products", "windows", "segments"], [BF, H])
)
def test_kernels_of_floats(kind: str, short: DType) -> None:
    strategy = {
        "products": products(dtypes=(F,)),
        "windows": convolutions(dtypes=(F,)),
        "segments": segments(dtypes=(F,)),
    }[kind]

    @settings(max_examples=sample(12, 60) if kind == "products" else sample(4, 15))
    @given(strategy)
    def answers(case: Case) -> None:
        name = compile_node(case.node, jit="always").kernel
        changed = shortened(case, short)
        compiled = compile_node(changed.node, jit="always")
        found, runner = compiled.kernel, compiled.run
        assert found == name
        check(changed, runner)

    answers()


@settings(max_examples=sample(25, 150))
@given(cases())
def test_every_tier(case: Case) -> None:
    """Short operands and results among all others, by the kernels that are chosen."""
    runner = compile_node(case.node, jit="never").run
    check(case, runner)


def _casting(source: DType, target: DType, values: np.ndarray) -> EinSum:
    axes = (Axis("i", 0, len(values)),)
    x = Input("x", Schema((Key("i", 0, len(values)),), (Field("val", source),)))
    cast = Call("cast", (Value(0, "val", source),), target)
    return EinSum(axes, (Operand(x, ("i",)),), TRUE, ("i",), (Output("val", (cast,), target),))


def _awkward() -> np.ndarray:
    """Every BFLOAT16 and what lies at, beside and between two of them, as DOUBLE."""
    all_bits = np.arange(2**16, dtype=np.uint32) << 16
    edges = [all_bits, all_bits | 0x8000, all_bits | 0x7FFF, all_bits | 0x8001]
    with np.errstate(invalid="ignore"):  # some are signalling NaN
        floats = np.concatenate(edges).view(np.float32).astype(np.float64)
    most = 2.0**128 - 2.0**119
    floats = floats[np.isnan(floats) | np.isinf(floats) | (np.abs(floats) < most)]
    with np.errstate(all="ignore"):
        beside = [np.nextafter(floats, end) for end in (-np.inf, np.inf)]
    beside = [b[np.abs(b) < most] for b in beside]
    return np.concatenate([floats, *beside, [most - 2.0**75, 1e-300, -1e-60, 5e-324]])


@pytest.mark.parametrize("source", [F, D])
@pytest.mark.parametrize("compiler", [compile_loops, compile_vector])
def test_every_bfloat_is_written_and_read(compiler: Compile, source: DType) -> None:
    values = _awkward()
    if source is F:
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
        values = values[~(np.abs(values) >= 2.0**128 - 2.0**119) | np.isinf(values)]
    made = compiler(_casting(source, BF, values))([{"val": values}], no_tick)["val"]
    np.testing.assert_array_equal(widen(made), _nearest(values))
    np.testing.assert_array_equal(np.signbit(widen(made)), np.signbit(values))
    back = compiler(_casting(BF, D, made))([{"val": made}], no_tick)["val"]
    np.testing.assert_array_equal(back, widen(made).astype(np.float64))


def _nearest(values: np.ndarray) -> np.ndarray:
    """The nearest of the two BFLOAT16 around each number, the even one in the middle."""
    size = np.where(np.isfinite(values), np.abs(values), 0).astype(np.float64)
    with np.errstate(over="ignore"):
        lower = (size.astype(np.float32).view(np.uint32) >> 16).astype(np.int64)
    lower[widen(lower.astype(np.uint16)) > size] -= 1  # FLOAT has rounded up
    below, above = (widen((lower + n).astype(np.uint16)).astype(np.float64) for n in (0, 1))
    above[lower == 0x7F7F] = 2.0**128
    down, up = size - below, above - size
    chosen = np.where((down < up) | ((down == up) & (lower % 2 == 0)), lower, lower + 1)
    found = np.copysign(widen(chosen.astype(np.uint16)), values)
    with np.errstate(all="ignore"):
        return np.where(np.isfinite(values), found, values).astype(np.float32)


@pytest.mark.parametrize("compiler", [compile_loops, compile_vector])
@pytest.mark.parametrize("value", [2.0**128 - 2.0**119, -1e300])
def test_what_exceeds_bfloat_is_refused(compiler: Compile, value: float) -> None:
    values = np.array([1.0, value])
    with pytest.raises(DataError, match="out of range in CAST"):
        compiler(_casting(D, BF, values))([{"val": values}], no_tick)


def test_numpy_rounds_as_loops_do() -> None:
    values = _awkward()
    np.testing.assert_array_equal(rounded(values), _nearest(values))
    with np.errstate(over="ignore"):
        floats = values.astype(np.float32)
    np.testing.assert_array_equal(rounded(floats), _nearest(floats))
    np.testing.assert_array_equal(widen(narrow(floats)), rounded(floats))
    signalling = np.array([0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.isnan(rounded(signalling)).all()
    assert rounded(np.asarray(2.0**127 * 1.999)).item() == np.inf


@pytest.mark.parametrize("short", [BF, H])
def test_a_part_of_an_operand_is_widened(short: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """A product over a few rows of a large table converts those rows alone."""
    seen: list[tuple[int, ...]] = []
    convert = short_kernels.floats

    def watched(array: np.ndarray, *args: object) -> np.ndarray:
        seen.append(array.shape)
        return convert(array, *args)  # type: ignore[arg-type]  # passed on as they are

    monkeypatch.setattr(short_kernels, "floats", watched)
    tall = Input("a", Schema((Key("r", 0, 1000), Key("c", 0, 8)), (Field("val", short),)))
    wide = Input("b", Schema((Key("r", 0, 8), Key("c", 0, 5)), (Field("val", F),)))
    axes = (Axis("i", 990, 994), Axis("j", 0, 5), Axis("k", 0, 8))
    arg = Call("mul", (Call("cast", (Value(0, "val", short),), F), Value(1, "val", F)), F)
    node = EinSum(
        axes, (Operand(tall, ("i", "k")), Operand(wide, ("k", "j"))), TRUE, ("i", "j"),
        (Output("s", (arg,), F, "sum"),),
    )  # fmt: skip
    a = np.arange(8000, dtype=np.float32).reshape(1000, 8) % 16
    b = np.ones((8, 5), np.float32)
    compiled = compile_node(node)
    name, runner = compiled.kernel, compiled.run
    held = narrow(a) if short is BF else a.astype(np.float16)
    got = runner([{"val": held}, {"val": b}], no_tick)["s"]
    assert name == "blas"
    assert seen == [(4, 8)]
    np.testing.assert_array_equal(got, a[990:994] @ b)


@pytest.mark.parametrize("short", [BF, H])
@pytest.mark.parametrize("layout", ["c", "f", "strided", "repeated"])
@pytest.mark.parametrize("compiled", [False, True])
def test_widening_in_pieces(
    short: DType, layout: str, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(short_kernels, "PIECE", 100)
    monkeypatch.setattr(short_kernels, "LEAST", 100)
    monkeypatch.setattr(thread_pool, "threads", lambda: 2)
    values = np.arange(24 * 30, dtype=np.float32).reshape(24, 30) % 64
    values = {
        "c": values, "f": np.asfortranarray(values), "strided": values[::-2, ::3],
        "repeated": np.broadcast_to(values[:, None], (24, 5, 30)),
    }[layout]  # fmt: skip
    few = values if layout != "repeated" else values[:, 0]
    held = stored(few, short) if short is BF else few.astype(np.float16)
    if layout == "repeated":
        held = np.broadcast_to(held[:, None], values.shape)
    ticks: list[float] = []
    got = short_kernels.floats(held, short, ticks.append, compiled)
    np.testing.assert_array_equal(got, values)
    assert got.dtype == np.float32
    assert ticks


def test_a_default_is_not_spread() -> None:
    """A default may stand for more keys than memory has bytes."""
    huge = np.broadcast_to(narrow(np.asarray(0.5)), (2**40,))
    assert loaded(huge, BF).strides == (0,)
    assert short_kernels.floats(huge, BF, no_tick, True)[2**39] == 0.5


def test_a_literal_is_a_view() -> None:
    node = EinSum((Axis("i", 0, 3),), (), TRUE, ("i",), (Output("val", (Const(1.5, BF),), BF),))
    compiled = compile_node(node)
    name, runner = compiled.kernel, compiled.run
    assert name == "view"
    np.testing.assert_array_equal(widen(runner([], no_tick)["val"]), [1.5] * 3)
