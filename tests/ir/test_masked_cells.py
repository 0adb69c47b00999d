"""Cells of masked nodes: their expressions, and their points within the mask."""

from __future__ import annotations

import numpy as np
import pytest

from einsql.core.schema import DType, Field, Key, Schema
from einsql.ir.einsum.cells import cell_node
from einsql.ir.einsum.graph import (
    FALSE,
    TRUE,
    Axis,
    Call,
    EinSum,
    Expr,
    Input,
    Label,
    Operand,
    Output,
    Value,
    bigint,
    call,
)
from einsql.ir.einsum.points import cell_work

I64, B, D = DType.BIGINT, DType.BOOLEAN, DType.DOUBLE


def masked(guard: Expr, *derived: Axis) -> EinSum:
    """Sums of the elements of a 4 x 4 x 4 tensor with a condition on its keys."""
    x = Input("x", Schema(tuple(Key(k, 0, 4) for k in "pij"), (Field("val", D),)))
    axes = (*(Axis(k, 0, 4) for k in "pij"), *derived)
    value = Output("val", (Value(0, "val", D),), D, "sum")
    return EinSum(axes, (Operand(x, ("p", "i", "j")),), guard, ("p", "i"), (value,))


def of_part(node: EinSum, part: int) -> EinSum:
    box = np.array([(part, part + 1), (0, 4), (0, 4)], np.int64)
    return cell_node(node, ("p", "i", "j"), box, [box])


def key(part: Expr) -> Expr:
    """The key 4 p + j."""
    return call("add", I64, call("mul", I64, part, bigint(4)), Label("j"))


def test_cells_that_differ_in_position_have_equal_expressions() -> None:
    row = call("add", I64, call("mul", I64, Label("p"), bigint(4)), Label("i"))
    diagonal = masked(Call("le", (key(Label("p")), row), B))
    guards = {of_part(diagonal, part).guard for part in range(4)}
    assert guards == {Call("le", (Label("j"), Label("i")), B)}
    following = call("mod", I64, call("add", I64, Label("p"), bigint(1)), bigint(4))
    others = masked(Call("le", (key(following), row), B))
    assert [of_part(others, part).guard for part in range(4)] == [FALSE, FALSE, FALSE, TRUE]


@pytest.mark.parametrize("factor", [1, -1, 2])
def test_the_work_of_a_cell_counts_the_points_within_its_mask(factor: int) -> None:
    """Also through a label that only the condition reads."""
    total = Axis(
        "l", -20, 20, call("add", I64, Label("i"), call("mul", I64, bigint(factor), Label("j")))
    )
    node = masked(Call("lt", (Label("l"), Label("p")), B), total)
    cells = np.array([[(p, p + 1), (0, 4), (0, 4)] for p in range(4)], np.int64)
    points, _ = cell_work(node, ("p", "i", "j"), cells)
    wanted = [sum(i + factor * j < p for i in range(4) for j in range(4)) for p in range(4)]
    assert points.tolist() == wanted
    assert [of_part(node, p).axis("p").lo for p in range(4)] == [0] * 4
