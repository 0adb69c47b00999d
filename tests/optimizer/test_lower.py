"""EinSums as tensor-relational plans: random cuts keep the meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from einsql import tra
from einsql.core.schema import PRESENT, DType
from einsql.errors import NotSupportedError, ProgrammingError
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Expr,
    Input,
    Label,
    Node,
    Operand,
    Output,
    Value,
    call,
    walk,
    with_sources,
)
from einsql.ir.einsum.interpreter import evaluate
from einsql.ir.tra.kernels import Tile, instantiate
from einsql.ir.tra.plan import Scan
from einsql.ir.tra.plan import walk as walk_plan
from einsql.optimizer.decomposition import decompose
from einsql.optimizer.tra.lower import lower, lower_graph
from tests.ir.test_notation import EXPRESSIONS, operands
from tests.optimizer.graphs import data, key, less, random_graph, random_join, tensor
from tests.support.levels import assert_same
from tests.support.relations import checked


def einsum_node(notation: str, arrays: list[np.ndarray], *spec: str) -> EinSum:
    tiles = [Tile(a.ndim, DType.of(a.dtype) or DType.DOUBLE) for a in arrays]
    return instantiate(tra.einsum(notation, *spec).template(tiles), [a.shape for a in arrays])


def lowered(node: EinSum, arrays: list[np.ndarray], pick: Random) -> tra.Relation:
    """The node's plan under random cuts, some operands cut otherwise beforehand."""
    most = 2 if len(node.axes) > 5 else 4
    parts = {a.label: pick.randint(1, min(most, a.extent)) for a in node.axes}
    sources: list[Scan | None] = []
    for o in node.operands:
        own = [_cut_of(k.extent, pick) for k in o.source.schema.keys]
        assert isinstance(o.source, Input)
        sources.append(Scan(o.source, tuple(own)) if pick.random() < 0.5 else None)
    plan = lower(node, parts, sources)
    assert plan.schema.bounds == tuple(parts[k] for k in node.keys)
    return tra.Relation(plan, {f"x{n}": a for n, a in enumerate(arrays)})


def _cut_of(extent: int, pick: Random) -> tuple[int, ...]:
    inner = [n for n in range(1, extent) if pick.random() < 0.4]
    return (0, *inner, extent)


@pytest.mark.parametrize("notation", EXPRESSIONS)
@pytest.mark.parametrize("spec", [("mul", "sum"), ("add", "max"), ("least", "min")])
def test_lowered_einsums_keep_their_meaning(notation: str, spec: tuple[str, str]) -> None:
    arrays = operands(notation, len(notation))
    node = einsum_node(notation, arrays, *spec)
    wanted = evaluate(node, {f"x{n}": {"val": a} for n, a in enumerate(arrays)})["val"]
    for seed in range(3):
        relation = lowered(node, arrays, Random(f"{notation} {seed}"))
        checked(relation)
        np.testing.assert_array_equal(relation.numpy(), wanted)


def product_of(left: Node, right: Node, value: str = "mul") -> EinSum:
    """A matrix product, or with `add` the sum of two matrices."""
    notation = "ij,jk->ik" if value == "mul" else "ik,ik->ik"
    shapes = [left.schema.shape, right.schema.shape]
    kernel = tra.einsum(notation, value).template([Tile(2, DType.DOUBLE)] * 2)
    node = instantiate(kernel, shapes)
    return with_sources(node, [left, right])


@pytest.mark.parametrize("sites", [1, 3, 4, 8])
def test_decomposed_graphs_are_lowered_node_by_node(sites: int) -> None:
    a, b, c, d, e = (tensor(x, (0, n), (0, m)) for x, n, m in SHAPES)
    root = product_of(product_of(a, b), product_of(c, product_of(d, e)), "add")
    nodes = [n for n in walk(root) if isinstance(n, EinSum)]
    cuts = {n: c.parts for n, c in zip(nodes, decompose(root, sites=sites).cuts, strict=True)}
    inputs = data(root, sites)
    relation = tra.Relation(lower_graph(root, cuts), {x: f["val"] for x, f in inputs.items()})
    checked(relation)
    np.testing.assert_array_equal(relation.numpy(), evaluate(root, inputs)["val"])


SHAPES = [("a", 6, 5), ("b", 5, 7), ("c", 6, 4), ("d", 4, 9), ("e", 9, 7)]


def test_labels_of_no_operand_are_cut_in_the_result() -> None:
    x = tensor("x", (1, 4))  # keys start at 1, blocks at 0
    axes = (Axis("i", 1, 4), Axis("z", -1, 4), Axis("n", 0, 3))
    total = Output("val", (Value(0, "val", DType.DOUBLE),), DType.DOUBLE, "sum")
    node = EinSum(axes, (Operand(x, ("i",)),), TRUE, ("z", "i"), (total,))
    array = np.array([0.5, 1, 2])
    relation = tra.Relation(lower(node, {"i": 2, "z": 3, "n": 2}), {"x": array})
    assert relation.schema.bounds == (3, 2)
    checked(relation)
    np.testing.assert_array_equal(relation.numpy(), np.tile(array * 3, (5, 1)))


def summed(label: str, define: Expr | None = None, **changes: Any) -> EinSum:
    """A sum over a vector, changed."""
    x = tensor("x", (0, 3), present=changes.pop("present", False))
    axes = (Axis("i", 0, changes.pop("hi", 3)), *([Axis("d", 0, 3, define)] if define else []))
    output = Output("val", (Value(0, "val", DType.DOUBLE),), DType.DOUBLE, "sum")
    return replace(EinSum(axes, (Operand(x, (label,)),), TRUE, (), (output,)), **changes)


def extreme(value: Expr, argument: Expr | None = None) -> Output:
    return Output("n", (argument or Label("i"), value), DType.BIGINT, "arg_min")


SQUARES = [tensor(x, (0, 6), (0, 6)) for x in "ab"]
VAL = Value(0, "val", DType.DOUBLE)
BEYOND_SUMS = {
    "a gather": summed("d", Label("i")),
    "a gather by values": summed("d", Value(1, "val", DType.BIGINT), operands=(
        Operand(tensor("x", (0, 3)), ("d",)),
        Operand(tensor("at", (0, 3), dtype=DType.BIGINT), ("i",)),
    )),
    "a segment": summed("i", call("idiv", DType.BIGINT, Label("i"), key(2)), keys=("d",)),
    "a shift": replace(
        summed("d", keys=("i",), outputs=(Output("val", (VAL,), DType.DOUBLE),)),
        axes=(Axis("i", 2, 5), Axis("d", 1, 3, call("sub", DType.BIGINT, Label("i"), key(2)))),
    ),
    "a condition": summed("i", guard=less(Label("i"), key(2))),
    "a slice": summed("i", hi=2),
    "an empty slice": summed("i", hi=0),
    "presence": summed("i", present=True, guard=Value(0, PRESENT, DType.BOOLEAN)),
    "no operands": summed("i", operands=(), outputs=(
        Output("n", (Label("i"),), DType.BIGINT, "sum"),
    )),
    "nothing at all": EinSum((), (), TRUE, (), (Output("n", (key(3),), DType.BIGINT),)),
    "several results": summed("i", outputs=(
        Output("val", (VAL,), DType.DOUBLE, "max"), Output("n", (Label("i"),), DType.BIGINT, "max"),
    )),
    "an argument of the least": summed("i", outputs=(extreme(VAL),)),
    "of a least that is computed": summed("i", outputs=(
        extreme(call("mul", DType.DOUBLE, VAL, VAL)),
    )),
}  # fmt: skip


@pytest.mark.parametrize("name", BEYOND_SUMS)
def test_whatever_an_einsum_says_can_be_cut(name: str) -> None:
    node = BEYOND_SUMS[name]
    for seed in range(6):
        assert_same(node, data(node, seed), Random(seed))


@pytest.mark.parametrize("make", [random_graph, random_join])
@pytest.mark.parametrize("start", range(0, 120, 40))
def test_every_level_executes(make: Callable[[int], EinSum], start: int) -> None:
    for seed in range(start, start + 40):
        root = make(seed)
        assert_same(root, data(root, seed), Random(seed))


def test_only_labels_that_are_cut_and_read_need_tensors_of_their_own() -> None:
    node = summed("i", guard=less(Label("i"), key(2)))
    names = [n.tensor.name for n in walk_plan(lower(node, {"i": 3})) if isinstance(n, Scan)]
    assert names == ["x", "RANGE(0, 3)"]
    assert len(walk_plan(lower(node, {}))) == 3  # scan, transform, aggregate
    work = EinSum((Axis("n", 0, 9),), (), TRUE, (), (Output("c", (key(1),), DType.BIGINT, "sum"),))
    assert lower(work, {"n": 3}).schema.bounds == ()
    assert [n.schema.bounds for n in walk_plan(lower(work, {"n": 3}))] == [(3,), (3,), ()]


def test_an_arg_min_is_cut_only_where_its_value_is_exact() -> None:
    exact, computed = (BEYOND_SUMS[f"{n}"].outputs[0] for n in (
        "an argument of the least", "of a least that is computed"))  # fmt: skip
    bounds = [
        max(n.schema.bounds for n in walk_plan(lower(summed("i", outputs=(o,)), {"i": 3})))
        for o in (exact, computed)
    ]
    assert bounds == [(3,), (1,)]


@pytest.mark.parametrize(
    ("call_it", "part"),
    [
        (lambda: lower(BEYOND_SUMS["several results"], {}), "several fields"),
        (lambda: lower_graph(BEYOND_SUMS["several results"], {}), "several fields"),
        (lambda: lower_graph(tensor("x", (0, 3)), {}), "nothing to compute"),
        (
            lambda: lower(product_of(product_of(SQUARES[0], SQUARES[1]), SQUARES[0]), {}),
            "needs its relation",
        ),
        (
            lambda: lower(BEYOND_SUMS["presence"], {}, [Scan(SQUARES[0], ((0, 6), (0, 6)))]),
            "a relation for each",
        ),
    ],
)
def test_what_is_missing_is_named(call_it: Callable[[], object], part: str) -> None:
    with pytest.raises(NotSupportedError, match=part):
        call_it()


def test_more_parts_than_values_are_refused() -> None:
    with pytest.raises(ProgrammingError, match="axis 0 of 3 elements into 4 parts"):
        lower(summed("i"), {"i": 4})
