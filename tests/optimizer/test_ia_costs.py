"""Costs of plans on sites: single operations, and the predictions of the TRA slides."""

from __future__ import annotations

import pytest

from einsql import tra
from einsql.core.schema import DType, Field, Key, Schema
from einsql.errors import IntegrityError
from einsql.ir.einsum.graph import Call, Const, Input, Label
from einsql.ir.ia.placement import everywhere, spread
from einsql.ir.ia.plan import (
    Bcast,
    LocalAggregate,
    LocalFilter,
    LocalJoin,
    LocalMap,
    Node,
    Scan,
    Shuffle,
)
from einsql.ir.tra.block_schema import equal_cuts
from einsql.ir.tra.kernels import Tile
from einsql.optimizer.tra import Cost, Costs, Weights

MATRIX = Tile(2, DType.FLOAT)
ROWS, COLUMNS, COPIES = (0,), (1,), None
ALL_KEYS, PRODUCT_KEYS = ((0, 1), (0, 1)), ((0, 1), (1, 2))


def scan(
    name: str, shape: tuple[int, int], parts: tuple[int, int], keys: tuple[int, ...] | None,
    sites: int = 5,
) -> Node:  # fmt: skip
    axes = tuple(Key(n, 0, extent) for n, extent in zip("ij", shape, strict=True))
    tensor = Input(name, Schema(axes, (Field("val", DType.FLOAT),)))
    layout = everywhere(sites)
    if keys is not None:
        layout = spread(sites, keys, [parts[k] for k in keys])
    return Scan(tensor, equal_cuts("Scan", shape, parts), layout, sites)


def join(x: Node, y: Node, keys: tuple[tuple[int, int], ...], kernel: tra.Kernel) -> Node:
    return LocalJoin((x, y), keys, (kernel.template([MATRIX, MATRIX]),))


def contraction(x: Node, y: Node, spec: str, keys: tuple[tuple[int, int], ...]) -> Node:
    kept = tuple(sorted(set(keys[0]) ^ set(keys[1])))
    return LocalAggregate(join(x, y, keys, tra.einsum(spec)), kept, "sum")


def test_costs_of_single_operations() -> None:
    x, y = (scan(name, (4, 4), (2, 2), k, 4) for name, k in (("x", ROWS), ("y", COLUMNS)))
    doubled = tra.map(lambda v: v * 2).template([MATRIX])
    first = Call("eq", (Label("k0"), Const(0, DType.BIGINT)), DType.BOOLEAN)

    def own(node: Node) -> tuple[int, int]:
        cost = Costs().plan(node)
        return cost.tra_cost, cost.flops

    assert own(Bcast(x)) == (4 * 16, 0)
    assert own(Shuffle(x, (1,))) == (16, 0)
    assert own(LocalFilter(x, first)) == (0, 0)
    assert own(LocalMap(x, kernels=(doubled,))) == (0, 16)
    assert own(LocalMap(LocalFilter(x, first), kernels=(doubled,))) == (0, 8)
    assert own(LocalAggregate(x, (0,), "sum")) == (0, 16)
    assert own(LocalAggregate(x, (0,), "sum", (doubled,), (doubled,), first)) == (0, 8 + 8 + 4)
    assert own(join(x, Bcast(y), PRODUCT_KEYS, tra.matmul)) == (4 * 16, 8 * 2 * 2**3)
    with pytest.raises(IntegrityError, match="miss matches"):
        join(x, y, PRODUCT_KEYS, tra.matmul)
    both = join(x, x, ALL_KEYS, tra.add)
    assert own(both) == (0, 16)


def test_parts_and_idle_sites_count_in_what_is_minimised() -> None:
    x = scan("x", (4, 4), (2, 2), COLUMNS, 4)
    parts = LocalAggregate(x, (0,), "sum")
    cost = Costs().plan(Shuffle(parts, (0,)))
    assert (cost.tra_cost, cost.floats) == (2 * 4, 2 * 2 * 4)
    assert (cost.flops, cost.busiest) == (16, 8)  # two of four sites work
    assert cost.total(Weights(alpha=1.0, beta=0.5)) == 16 + 0.5 * 4 * 8
    everywhere_else = Costs().plan(LocalAggregate(Bcast(x), (0,), "sum"))
    assert (everywhere_else.flops, everywhere_else.busiest) == (16, 16)


# ---- a training step of a network of two layers on 5 sites: X n×d, W1 d×h, W2 h×k


def by_data(n: int, d: int, h: int, k: int) -> Cost:
    """Rows at sites; weights go out, gradients come back."""
    x, y = scan("x", (n, d), (5, 1), ROWS), scan("y", (n, k), (5, 1), ROWS)
    w1 = Bcast(scan("w1", (d, h), (1, 5), COLUMNS))
    w2 = Bcast(scan("w2", (h, k), (5, 1), ROWS))
    hidden = contraction(x, w1, "nd,dh->nh", PRODUCT_KEYS)
    loss = join(contraction(hidden, w2, "nh,hk->nk", PRODUCT_KEYS), y, ALL_KEYS, tra.sub)
    back = contraction(loss, w2, "nk,hk->nh", ((0, 1), (2, 1)))
    gradients = [
        contraction(x, back, "nd,nh->dh", ((0, 1), (0, 2))),
        contraction(hidden, loss, "nh,nk->hk", ((0, 1), (0, 2))),
    ]
    assert all(g.schema.merge == "sum" for g in gradients)
    return Costs().plan(*(LocalAggregate(Shuffle(g, (0,)), (0, 1), "sum") for g in gradients))


def by_model(n: int, d: int, h: int, k: int) -> Cost:
    """Columns of the layers at sites; hidden activations and their gradients go out."""
    x, y = scan("x", (n, d), (1, 1), COPIES), scan("y", (n, k), (1, 5), COLUMNS)
    w1 = scan("w1", (d, h), (1, 5), COLUMNS)
    w2 = scan("w2", (h, k), (5, 5), COLUMNS)
    hidden = Bcast(contraction(x, w1, "nd,dh->nh", PRODUCT_KEYS))
    loss = join(contraction(hidden, w2, "nh,hk->nk", PRODUCT_KEYS), y, ALL_KEYS, tra.sub)
    back = Bcast(contraction(loss, w2, "nk,hk->nh", ((0, 1), (2, 1))))
    gradients = [
        contraction(x, LocalAggregate(back, (0, 1), "sum"), "nd,nh->dh", ((0, 1), (0, 2))),
        contraction(hidden, loss, "nh,nk->hk", ((0, 1), (0, 2))),
    ]
    assert all(g.schema.merge is None for g in gradients)
    return Costs().plan(*gradients)


@pytest.mark.parametrize(
    ("shape", "data", "model"),
    [
        ((10**4, 1600, 10**5, 10), 9.7e8, 1.0e10),
        ((10**4, 1600, 2 * 10**5, 10), 1.9e9, 2.0e10),
        ((10**3, 597540, 10**3, 14588), 3.7e9, 1.0e7),
        ((10**3, 597540, 5 * 10**3, 14588), 1.8e10, 5.0e7),
    ],
)
def test_predictions_of_the_slides(
    shape: tuple[int, int, int, int], data: float, model: float
) -> None:
    n, d, h, k = shape
    found = by_data(*shape).tra_cost, by_model(*shape).tra_cost
    assert found == (6 * (d * h + h * k), 2 * 5 * n * h)
    # The slides print two digits.
    assert [f"{c:.1e}" for c in found] == [f"{data:.1e}", f"{model:.1e}"]
