"""EinSums as tensor-relational plans: random cuts keep the meaning, the rest is refused."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from einsql import tra
from einsql.einsum import (
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
    walk,
    with_sources,
)
from einsql.errors import NotSupportedError, ProgrammingError
from einsql.optimizer.decomposition import decompose
from einsql.optimizer.lower import lower, lower_graph
from einsql.reference import evaluate
from einsql.relational import Scan
from einsql.schema import DType
from einsql.tiles import Tile, instantiate
from tests.optimizer.graphs import data, key, less, tensor
from tests.relations import checked
from tests.test_notation import EXPRESSIONS, operands


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
    cuts = {n: c.parts for n, c in zip(nodes, decompose(root, sites).cuts, strict=True)}
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


def gather(label: str, define: Expr | None = None, **changes: Any) -> EinSum:
    """A sum over a vector with something that cannot be cut."""
    x = tensor("x", (0, 3), present=changes.pop("present", False))
    axes = (Axis("i", 0, changes.pop("hi", 3)), *([Axis("d", 0, 3, define)] if define else []))
    output = Output("val", (Value(0, "val", DType.DOUBLE),), DType.DOUBLE, "sum")
    return replace(EinSum(axes, (Operand(x, (label,)),), TRUE, (), (output,)), **changes)


@pytest.mark.parametrize(
    ("node", "part"),
    [
        (gather("d", Label("i")), "computed labels"),
        (gather("i", guard=less(Label("i"), key(2))), "a condition on its points"),
        (gather("i", hi=2), "a slice of an operand"),
        (gather("i", present=True), "an operand of several fields"),
        (gather("i", operands=()), "no operands"),
        (gather("i", outputs=gather("i").outputs * 2), "more than one result"),
        (gather("i", outputs=(Output("n", (Label("i"),), DType.BIGINT, "max"),)), "labels among"),
        (
            gather("i", outputs=(Output("n", (key(1), key(1)), DType.BIGINT, "arg_min"),)),
            "the reduction arg_min",
        ),
    ],
)
def test_what_cannot_be_cut_is_named(node: EinSum, part: str) -> None:
    with pytest.raises(NotSupportedError, match=part):
        lower(node, {"i": 2})


def test_more_parts_than_values_are_refused() -> None:
    with pytest.raises(ProgrammingError, match="axis 0 of 3 elements into 4 parts"):
        lower(gather("i"), {"i": 4})
