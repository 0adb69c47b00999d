"""Quantiles, MODE and aggregates of distinct values of random nodes, as in the reference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsql.core.schema import DType, Field, Key, Schema, is_flag
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
from einsql.ir.einsum.interpreter import evaluate_node
from einsql.kernels import compile_node
from einsql.kernels.vectorized import best, candidates, holistic
from tests.kernels.indexed import gathers, segments
from tests.kernels.nodes import Case, cases, check, no_tick
from tests.support.samples import sample

D, I64 = DType.DOUBLE, DType.BIGINT


@st.composite
def holistic_cases(draw: st.DrawFn) -> Case:
    """Random nodes of which holistic reductions replace most reductions."""
    case = draw(st.one_of(cases(), segments(), gathers()))
    outputs = tuple(_replaced(draw, case.node, o) for o in case.node.outputs)
    return replace(case, node=replace(case.node, outputs=outputs))


def _replaced(draw: st.DrawFn, node: EinSum, o: Output) -> Output:
    (arg, *more), dtype = o.args, o.args[0].dtype
    names = ["mode", "quantile_disc", "count_distinct"]
    names += ["quantile_cont", "sum_distinct"] if dtype is D else []
    names += ["sum_distinct", "high_sum_distinct", "low_sum_distinct"] if dtype is I64 else []
    names += ["nth_min", "nth_max"]
    name = draw(st.sampled_from(names))
    if o.reduction is None or more or is_flag(o.name) or draw(st.integers(0, 4)) == 0:
        return o
    if name.startswith("nth"):
        labels: list[Expr] = [Label(a.label) for a in node.axes if a.define is None]
        argument = draw(st.sampled_from((arg, *labels)))
        keys = [k for k in node.keys if node.axis(k).lo >= 0]
        places: list[Expr] = [*map(Label, keys), Const(0, I64), Const(1, I64)]
        return Output(
            o.name, (argument, arg, draw(st.sampled_from(places))), argument.dtype, name, o.where
        )
    if name.startswith("quantile"):
        return Output(o.name, (arg, _fraction(draw)), dtype, name, o.where)
    return Output(o.name, (arg,), I64 if name == "count_distinct" else dtype, name, o.where)


def _fraction(draw: st.DrawFn) -> Const:
    return Const(draw(st.sampled_from((0.5, 0.0, 1.0, 0.25, 0.3, 0.7))), D)


@settings(max_examples=sample(20, 400))
@given(holistic_cases(), st.booleans(), st.sampled_from((1, 64)))
def test_random_nodes(case: Case, small_blocks: bool, large: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holistic, "BLOCK", 4 if small_blocks else holistic.BLOCK)
        patch.setattr(holistic, "LOOSE", 0 if small_blocks else holistic.LOOSE)
        patch.setattr(holistic, "DENSE", 0 if small_blocks else 64)
        patch.setattr(holistic, "LARGE", large)
        patch.setattr(best, "BLOCK", 4 if small_blocks else best.BLOCK)
        for name in ("SPREAD", "PARTS"):
            patch.setattr(candidates, name, 1 if small_blocks else getattr(candidates, name))
        check(case, compile_node(case.node, jit="never").run)


@pytest.mark.parametrize("keys", ["i", "j", "ij", ""])
def test_blocks_of_a_compiled_product(keys: str) -> None:
    """A median over a label of both operands, whose points exceed a block."""
    rng = np.random.default_rng(0)
    bounds = {"i": 60, "j": 50, "k": 31}
    axes = tuple(Axis(x, 1, 1 + n) for x, n in bounds.items())
    operands, arrays = [], []
    for n, labels in enumerate(("ik", "kj")):
        schema = Schema(tuple(Key(x, 1, 1 + bounds[x]) for x in labels), (Field("val", D),))
        operands.append(Operand(Input(f"r{n}", schema), tuple(labels)))
        arrays.append({"val": rng.integers(-9, 9, schema.shape).astype(np.float64)})
    product = Call("mul", (Value(0, "val", D), Value(1, "val", D)), D)
    low = Call("lt", (product, Const(20.0, D)), DType.BOOLEAN)
    outputs = (
        Output("m", (product, Const(0.5, D)), D, "quantile_cont"),
        Output("f", (product, Const(0.3, D)), D, "quantile_disc", low),
        Output("n", (product,), I64, "count_distinct"),
        Output("s", (product,), D, "sum"),
    )
    node = EinSum(axes, tuple(operands), TRUE, tuple(keys), outputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holistic, "BLOCK", 1 << 12)
        got = compile_node(node).run(arrays, no_tick)
    wanted = evaluate_node(node, arrays)
    for name, column in wanted.items():
        np.testing.assert_array_equal(got[name], column)
