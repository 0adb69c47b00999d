"""Keys computed from labels: nothing is scattered, and presence is proven where it holds."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsql.core.schema import PRESENT, DType
from einsql.ir.einsum.affine import Affine
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Const,
    EinSum,
    Expr,
    Label,
    Operand,
    Output,
    Value,
    call,
    conj,
)
from einsql.optimizer import optimize
from tests.optimizer.graphs import assert_equal_results, data, key, less, tensor
from tests.support.samples import sample

B, I64, D = DType.BOOLEAN, DType.BIGINT, DType.DOUBLE


def windows(seed: int) -> EinSum:
    """A sum whose keys and operands' labels are random affine expressions or quotients."""
    chance = Random(seed)
    axes = [Axis(x, lo := chance.randint(-1, 2), lo + chance.randint(1, 5)) for x in "ijk"]
    keys: list[str] = [x for x in "ijk" if chance.random() < 0.2]
    for n in range(chance.randint(1, 2)):
        define = _expression(chance)
        lo = chance.randint(-3, 3)
        axes.append(Axis(f"d{n}", lo, lo + chance.randint(1, 6), define))
        if chance.random() < 0.8:
            keys.append(f"d{n}")
    chance.shuffle(keys)
    labels = [a.label for a in axes]
    guard: Expr = TRUE
    for a in axes[3:]:
        if chance.random() < 0.4:
            assert a.define is not None
            guard = conj(guard, less(a.define, key(chance.randint(-1, 4))))
    operands = []
    for n in range(2):
        read = chance.sample(labels, 2)
        bounds = [next((a.lo, a.hi) for a in axes if a.label == x) for x in read]
        operands.append(Operand(tensor(f"x{n}", *bounds), tuple(read)))
    value = call("mul", D, Value(0, "val", D), Value(1, "val", D))
    outputs = (Output("val", (value,), D, "sum"), Output(PRESENT, (TRUE,), B, "bool_or"))
    return EinSum(tuple(axes), tuple(operands), guard, tuple(keys), outputs)


def _expression(chance: Random) -> Expr:
    if chance.random() < 0.3:
        fn = chance.choice(("idiv", "mod"))
        return call(fn, I64, Label(chance.choice("ijk")), key(chance.randint(1, 3)))
    steps = {x: chance.choice((1, 1, -1, 2, 3)) for x in chance.sample("ijk", chance.randint(1, 3))}
    return Affine(steps, chance.randint(-2, 2)).expr()


@settings(max_examples=sample(40, 400))
@given(seed=st.integers(0, 2**32))
def test_computed_keys_keep_their_meaning(seed: int) -> None:
    graph = windows(seed)
    assert_equal_results(graph, optimize(graph).root, data(graph, seed))


def node_of(key_value: Expr, lo: int, hi: int, inner: int, outer: int) -> EinSum:
    axes = (Axis("i", 0, outer), Axis("r", 0, inner), Axis("k", lo, hi, key_value))
    total = Output("val", (Value(0, "val", D),), D, "sum")
    presence = Output(PRESENT, (TRUE,), B, "bool_or")
    source = tensor("x", (0, outer), (0, inner))
    return EinSum(axes, (Operand(source, ("i", "r")),), TRUE, ("k",), (total, presence))


ROW, R = Label("i"), Label("r")


@pytest.mark.parametrize(
    ("value", "lo", "hi", "inner", "outer", "proven"),
    [
        (call("sub", I64, ROW, R), 0, 8, 3, 10, True),  # a window
        (call("sub", I64, ROW, R), -2, 10, 3, 10, True),  # every place it can have
        (call("sub", I64, ROW, R), -3, 10, 3, 10, False),  # one where there is nothing
        (call("add", I64, ROW, R), 0, 12, 3, 10, True),  # polynomials multiplied
        (call("add", I64, call("mul", I64, ROW, key(3)), R), 0, 30, 3, 10, True),  # a merge
        (call("add", I64, call("mul", I64, ROW, key(4)), R), 0, 39, 3, 10, False),  # with gaps
        (call("idiv", I64, ROW, key(5)), 0, 2, 3, 10, True),  # pooling
    ],
)
def test_presence_of_computed_keys(
    value: Expr, lo: int, hi: int, inner: int, outer: int, proven: bool
) -> None:
    graph = node_of(value, lo, hi, inner, outer)
    found = optimize(graph).root
    assert_equal_results(graph, found, data(graph, 0))
    assert found.schema.has(PRESENT) is not proven


def test_a_key_that_is_a_difference_becomes_free() -> None:
    found = optimize(node_of(call("sub", I64, ROW, R), 0, 54, 3, 56)).root
    assert isinstance(found, EinSum)
    assert found.axis("k").define is None
    assert found.axis("i").define == call("add", I64, Label("k"), R)
    assert found.axis("r").define is None  # the shorter loop


def test_constants_are_spelled_out() -> None:
    text = Affine({"i": -2, "r": 1}, -3).expr()
    minus = call("neg", I64, call("mul", I64, ROW, Const(2, I64)))
    assert text == call("sub", I64, call("add", I64, minus, R), Const(3, I64))
