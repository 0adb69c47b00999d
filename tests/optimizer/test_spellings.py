"""Spellings of one query are planned alike, up to the names of labels."""

from __future__ import annotations

import re
from dataclasses import replace
from random import Random

import pytest

import einsql
from benchmarks.respelling import Spelling, respelled
from benchmarks.spelled import QUERIES, Query
from benchmarks.statements import drawn, registered, split
from einsql.ir.einsum.graph import EinSum, Node, Operand, Value
from einsql.ir.einsum.graph_rewriting import map_exprs, relabel, transform
from einsql.ir.einsum.printer import format_graph
from tests.support.plans import planned, tree_of
from tests.support.samples import spread

SPELLINGS = 5


def spellings(query: Query) -> list[Spelling]:
    """Texts of a query over small tensors: as it is, and drawn at random."""
    sql = query.sql.format(**query.sizes) if "{" in query.sql else query.sql
    tensors = {name: split(axes)[0] for name, axes in query.tensors.items()}
    chances = (Random(f"{n} {query.name}") for n in range(SPELLINGS))
    return [respelled(sql, tensors, chance) for chance in (None, *chances)]


def plan_text(con: einsql.Connection, sql: str) -> str:
    """The optimized graph with numbers as labels, without a view that orders the result."""
    plan, _ = planned(con, tree_of(sql))
    root = transform(plan.optimized.root, numbered)
    assert isinstance(root, EinSum)
    is_view = len(root.operands) == 1 and all(
        isinstance(e, Value) for o in root.outputs for e in o.args
    )
    text = format_graph(root.operands[0].source if is_view and not root.reduced else root)
    return re.sub(r"_\d+\b", "", text)  # fields are numbered in the order of the statement


def numbered(node: EinSum) -> Node:
    """A node with its labels renamed to their places among the axes."""
    names = {a.label: f"x{n}" for n, a in enumerate(node.axes)}
    node = map_exprs(node, lambda e: relabel(e, names))
    operands = (Operand(o.source, tuple(names[x] for x in o.labels)) for o in node.operands)
    axes = tuple(replace(a, label=names[a.label]) for a in node.axes)
    keys = tuple(names[k] for k in node.keys)
    return replace(node, axes=axes, operands=tuple(operands), keys=keys)


@pytest.mark.parametrize(
    ("name", "by_result"),
    spread(
        [
            ("product and GELU", True),  # a product has the order of the result
            ("cosine", True),
            ("product of four", True),
            ("quadratic forms", False),
            ("covariance", True),
            ("sum of two", False),
            ("columns normalised", False),
            ("softmax by joins", False),
            ("attention", False),
            ("cross entropy", False),
            ("convolution 3×3", False),
        ],
        6,
    ),
)
def test_all_spellings_of_a_query_have_one_plan(name: str, by_result: bool) -> None:
    query = next(q for q in QUERIES if q.name == name)
    texts = spellings(query)
    plans: dict[object, set[str]] = {}
    with einsql.connect() as con:
        arrays = drawn(query.tensors, query.sizes)
        for tensor, array, dims in registered(query.tensors, query.sizes, arrays):
            con.register(tensor, array, dims=dims)
        for text in texts:
            order = text.keys if by_result else None
            plans.setdefault(order, set()).add(plan_text(con, text.sql))
    assert len({text.sql for text in texts}) > 2
    assert all(len(same) == 1 for same in plans.values()), plans
