"""Conditions on keys of both sides of a contraction move to its readers, and change no row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from einsql.core.schema import PRESENT, DType
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Node,
    Operand,
    Output,
    Value,
    call,
    cast,
    conj,
    walk,
)
from einsql.optimizer import optimize
from tests.optimizer.graphs import assert_equal_results, data, key, less, tensor
from tests.support.samples import combinations, sample

B, I32, I64, F, D = DType.BOOLEAN, DType.INTEGER, DType.BIGINT, DType.FLOAT, DType.DOUBLE
FLAG = Output(PRESENT, (TRUE,), B, "bool_or")
ABOVE = less(Label("i"), Label("j"))
TERMS = 9


def product(
    condition: Expr, *, dtype: DType = D, terms: int = TERMS, reduction: str = "sum"
) -> EinSum:
    """A sparse product x[i, k] · y[j, k] at the keys (i, j) that a condition selects."""
    x, y = (tensor(n, (0, 5), (0, terms), dtype=dtype, present=True) for n in "xy")
    axes = (Axis("i", 0, 5), Axis("k", 0, terms), Axis("j", 0, 5))
    guard = conj(Value(0, PRESENT, B), Value(1, PRESENT, B), condition)
    fn = "mul" if reduction == "sum" else "add"
    value = Call(fn, (Value(0, "val", dtype), Value(1, "val", dtype)), dtype)
    operands = (Operand(x, ("i", "k")), Operand(y, ("j", "k")))
    total = Output("val", (value,), dtype, reduction)
    return EinSum(axes, operands, guard, ("i", "j"), (total, FLAG))


def reading(source: EinSum, *, guard: Expr = TRUE, value: Expr | None = None) -> EinSum:
    """The present groups of a product, under further conditions."""
    value = value if value is not None else Value(0, "val", source.outputs[0].dtype)
    asked = conj(Value(0, PRESENT, B), guard)
    axes = (Axis("i", 0, 5), Axis("j", 0, 5))
    outputs = (Output("val", (value,), value.dtype), FLAG)
    return EinSum(axes, (Operand(source, ("i", "j")),), asked, ("i", "j"), outputs)


def pulls(graph: EinSum) -> bool:
    """Whether the rule fires."""
    return any(step.rule.name == "pull-filter" for step in optimize(graph).trace)


def contraction(root: Node) -> EinSum:
    """The node with two operands."""
    (node,) = (n for n in walk(root) if isinstance(n, EinSum) and len(n.operands) == 2)
    return node


@st.composite
def conditions(draw: st.DrawFn) -> Expr:
    """One to three conditions on i, j or both."""
    terms: list[Expr] = []
    for _ in range(draw(st.integers(1, 3))):
        a: Expr = Label(draw(st.sampled_from("ij")))
        choices: list[Expr] = [Label("i"), Label("j"), key(2), key(7)]
        b = draw(st.sampled_from(choices))
        bounds: list[Expr] = [b, key(1), key(3)]
        if draw(st.booleans()):
            a = call(draw(st.sampled_from(("add", "sub", "mul"))), I64, a, b)
        fn = draw(st.sampled_from(("lt", "le", "eq", "ne")))
        terms.append(call(fn, B, a, draw(st.sampled_from(bounds))))
    return conj(*terms)


@settings(max_examples=sample(25, 150))
@given(
    condition=conditions(),
    seed=st.integers(0, 2**32),
    terms=st.sampled_from((2, TERMS)),
    reduction=st.sampled_from(("sum", "min", "max")),
)
def test_any_condition_on_keys_selects_the_same_groups(
    condition: Expr, seed: int, terms: int, reduction: str
) -> None:
    graph = reading(product(condition, terms=terms, reduction=reduction))
    inputs = data(graph, seed)
    chance = np.random.default_rng(seed)
    values = inputs["x"]["val"]
    values[chance.random(values.shape) < 0.1] = chance.choice([np.nan, np.inf, -np.inf])
    assert_equal_results(graph, optimize(graph).root, inputs)


def test_the_product_is_unmasked_and_its_reader_masked() -> None:
    graph = reading(product(ABOVE))
    root = optimize(graph).root
    assert contraction(root).guard == conj(Value(0, PRESENT, B), Value(1, PRESENT, B))
    assert isinstance(root, EinSum)
    assert root.guard == conj(Value(0, PRESENT, B), ABOVE)


@pytest.mark.parametrize(
    "condition",
    [
        less(Label("i"), Label("k")),  # not a condition on the result's keys
        less(Value(0, "val", D), Value(1, "val", D)),
        less(call("idiv", I64, key(6), Label("i")), Label("j")),  # raises at i = 0
    ],
)
def test_other_conditions_stay(condition: Expr) -> None:
    assert not pulls(reading(product(condition)))


def test_short_sums_stay_masked() -> None:
    assert not pulls(reading(product(ABOVE, terms=2)))


def test_sums_that_can_overflow_stay_masked() -> None:
    wide = product(ABOVE)
    (total, flag), (x, y) = wide.outputs, wide.operands
    for dtype, is_pulled in ((DType.TINYINT, True), (I32, True), (I64, False)):
        sources = [tensor(n, (0, 5), (0, TERMS), dtype=dtype, present=True) for n in "xy"]
        first, second = (cast(Value(n, "val", dtype), I64) for n in (0, 1))
        value = Call("mul", (first, second), I64)
        if dtype is I32:  # the products fit, but nine of them do not
            value = Call("mul", (value, Const(2, I64)), I64)
            is_pulled = False
        node = replace(
            wide,
            operands=(Operand(sources[0], x.labels), Operand(sources[1], y.labels)),
            outputs=(replace(total, args=(value,), dtype=I64), flag),
        )
        assert pulls(reading(node)) is is_pulled, dtype


def test_a_reader_that_can_raise_early_keeps_the_product_masked() -> None:
    ratio = less(cast(Value(0, "val", D), I32), Const(3, I32))
    assert not pulls(reading(product(ABOVE), guard=ratio))


def test_a_reader_without_flag_keeps_the_product_masked() -> None:
    node = product(ABOVE)
    axes = (Axis("i", 0, 5), Axis("j", 0, 5))
    total = Output("val", (Value(0, "val", D),), D, "sum")
    assert not pulls(EinSum(axes, (Operand(node, ("i", "j")),), TRUE, ("i",), (total,)))


def test_every_reader_tests_the_condition() -> None:
    node = product(conj(ABOVE, call("ne", B, Label("j"), key(3))))
    rows = reading(node, value=Call("exp", (Value(0, "val", D),), D))
    axes = (Axis("i", 0, 5), Axis("j", 0, 5))
    operands = (Operand(node, ("i", "j")), Operand(rows, ("i", "j")))
    asked = conj(Value(0, PRESENT, B), Value(1, PRESENT, B))
    value = call("add", D, Value(0, "val", D), Value(1, "val", D))
    outputs = (Output("val", (value,), D, "sum"), FLAG)
    graph = EinSum(axes, operands, asked, ("i",), outputs)
    for seed in range(20):
        assert_equal_results(graph, optimize(graph).root, data(graph, seed))


# The same rows as DuckDB --------------------------------------------------------------------

QUERY = """
SELECT a.i AS i, b.i AS j, {what} AS val FROM x a JOIN x b USING (k)
WHERE {where} GROUP BY a.i, b.i ORDER BY ALL
"""


def rows(values: np.ndarray, there: np.ndarray, what: str, where: str) -> tuple[Any, Any]:
    """The rows of einsql and of DuckDB."""
    i, k = np.nonzero(there)
    elements = pa.table({"i": i, "k": k, "val": values[there]})
    con = einsql.connect()
    con.register("raw", values, dims=("i", "k"))
    con.register("kept", there, dims=("i", "k"))
    con.execute(
        "CREATE TENSOR x AS SELECT i, k, raw.val FROM raw JOIN kept USING (i, k) WHERE kept.val"
    )
    duck = duckdb.connect()
    duck.register("x", elements)
    query = QUERY.format(what=what, where=where)
    return con.execute(query).fetchall(), duck.execute(query).fetchall()


@pytest.mark.parametrize(
    ("where", "special"),
    combinations(
        ["a.i < b.i", "a.i <> b.i", "abs(a.i - b.i) < 3", "a.i > 99"], [1.0, np.nan, np.inf]
    ),
)
def test_pairs_of_sparse_rows(where: str, special: float) -> None:
    chance = np.random.default_rng(3)
    values = np.where(chance.random((40, 60)) < 0.02, special, chance.random((40, 60)))
    ours, theirs = rows(values, chance.random((40, 60)) < 0.1, "SUM(a.val * b.val)", where)
    assert [r[:2] for r in ours] == [r[:2] for r in theirs]
    np.testing.assert_allclose([r[2] for r in ours], [r[2] for r in theirs], rtol=1e-12)


def test_an_excluded_sum_does_not_raise() -> None:
    values = np.ones((40, 60), np.int64)
    values[0] = 2**31  # sixty squares are beyond BIGINT
    there = np.ones((40, 60), bool)
    ours, theirs = rows(values, there, "CAST(SUM(a.val * b.val) AS BIGINT)", "a.i < b.i")
    assert ours == theirs
