"""Plans whose rows choose blocks, by the definition of their operations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from einsql.core.schema import PRESENT, DType
from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Label, Operand, Output, Value, call
from einsql.ir.einsum.interpreter import evaluate
from einsql.ir.einsum.routing import routed_groups, routings
from einsql.ir.ia.printer import format_implementation
from einsql.ir.spmd.printer import format_groups
from einsql.optimizer.decomposition.objective import FLOATS
from einsql.optimizer.site_optimizer import plan_sites
from tests.optimizer.graphs import tensor
from tests.support.levels import by_sites, same_fields

D, I64 = DType.DOUBLE, DType.BIGINT
X, R, W = tensor("x", (0, 7), (0, 3)), tensor("r", (0, 7), dtype=I64), tensor("w", (0, 5), (0, 3))


def chosen(parts: int) -> EinSum:
    """A product with the row of w that each row of x chooses, which is its own reader."""
    product = call("mul", D, Value(0, "val", D), Value(2, "val", D))
    define = Value(1, "val", I64)
    present = Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or")
    return EinSum(
        (Axis("i", 0, 7), Axis("h", 0, 3), Axis("e", 1, 5, define)),
        (Operand(X, ("i", "h")), Operand(R, ("i",)), Operand(W, ("e", "h"))),
        TRUE,
        ("h", "i"),
        (Output("val", (product,), D, "sum"), present),
        (("e", parts),),
    )


def chained(parts: int) -> EinSum:
    first = chosen(parts)
    operands = (Operand(first, ("h", "i")), *first.operands[1:])
    guard = Value(0, PRESENT, DType.BOOLEAN)
    return replace(first, operands=operands, guard=guard)


@pytest.mark.parametrize("sites", [2, 3, 5, 8])
def test_placed_plans_keep_the_meaning(sites: int) -> None:
    """The interpreter of the implementation algebra reads all blocks; a program sends rows."""
    chance = np.random.default_rng(sites)
    inputs: dict[str, dict[str, np.ndarray]] = {
        "x": {"val": chance.standard_normal((7, 3))},
        "r": {"val": chance.integers(-1, 7, 7)},
        "w": {"val": chance.standard_normal((5, 3))},
    }
    root = chained(min(sites, 4))
    plan = plan_sites((root,), sites, "eindecomp", FLOATS, frozenset())
    (relation,) = plan.plan.roots
    same_fields(root, by_sites(relation, root, inputs), evaluate(root, inputs))
    assert format_implementation(relation).count("  routed ") == 2
    (group,) = format_groups(plan.program)
    assert group.startswith("routed s")
    assert plan.program.bytes_sent > 0


def test_only_rows_that_are_computed_apart_are_sent() -> None:
    node = chosen(2)
    assert [r.rows for r in routings(node)] == [("i",)]
    reads_key = replace(node, guard=call("lt", DType.BOOLEAN, Value(1, "val", I64), Label("i")))
    assert [*routings(reads_key)] == []
    by_row = replace(node, operands=(*node.operands[:2], Operand(W, ("e", "i"))))
    assert [*routings(replace(by_row, axes=(Axis("i", 0, 3), *node.axes[1:])))] == []
    (group,) = routed_groups((chained(2),))
    assert len(group.nodes) == 2
    assert routed_groups((replace(chosen(2), hint=()),)) == []
