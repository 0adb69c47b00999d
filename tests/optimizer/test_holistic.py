"""Rules keep the meaning of graphs with holistic reductions, and no plan cuts reduced labels."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from einsql.core.schema import DType, is_flag
from einsql.ir.einsum.graph import Const, EinSum, Expr, Label, Node, Output, walk
from einsql.ir.einsum.partial_states import merges
from einsql.optimizer.decomposition import decompose
from tests.optimizer.graphs import random_graph
from tests.optimizer.test_rules import check
from tests.support.samples import sample

I64, D = DType.BIGINT, DType.DOUBLE


def holistic_graph(seed: int) -> EinSum:
    """A random graph in which holistic reductions replace some reductions of one value."""
    random = Random(seed)
    built: dict[int, Node] = {}
    root: Node | None = None
    for node in walk(random_graph(seed)):
        root = node
        if isinstance(node, EinSum):
            operands = tuple(replace(o, source=built[id(o.source)]) for o in node.operands)
            outputs = tuple(_replaced(random, node, o) for o in node.outputs)
            root = replace(node, operands=operands, outputs=outputs)
        built[id(node)] = root
    assert isinstance(root, EinSum)
    return root


def _replaced(random: Random, node: EinSum, o: Output) -> Output:
    if o.reduction is None or len(o.args) != 1 or is_flag(o.name) or random.random() < 0.3:
        return o
    (arg,) = o.args
    if arg.dtype is not o.dtype:
        return o
    names = ["mode", "quantile_disc"]
    names += ["quantile_cont", "sum_distinct"] if o.dtype is D else []
    names += ["count_distinct", "sum_distinct", "high_sum_distinct"] if o.dtype is I64 else []
    name = random.choice([*names, "nth_min", "nth_max"])
    if name.startswith("nth"):
        keys = [k for k in node.keys if node.axis(k).lo >= 0]
        places: list[Expr] = [Const(0, I64), Const(1, I64), *map(Label, keys)]
        return replace(o, args=(arg, arg, random.choice(places)), reduction=name)
    fraction = (Const(random.choice((0.5, 0.25, 1.0)), D),) if name.startswith("quantile") else ()
    return replace(o, args=(arg, *fraction), reduction=name)


@pytest.mark.parametrize("start", range(0, sample(20, 600), 20))
def test_random_graphs_keep_their_meaning(start: int) -> None:
    for seed in range(start, start + 20):
        root = check(holistic_graph(seed), seed).root
        for sites in (2, 5):
            nodes = [n for n in walk(root) if isinstance(n, EinSum)]
            if not isinstance(root, EinSum) or not nodes:
                continue
            for node, cut in zip(nodes, decompose(root, sites=sites).cuts, strict=True):
                whole = () if merges(node) else node.reduced
                assert all(cut.parts.get(x, 1) == 1 for x in whole)
