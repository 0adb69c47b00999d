"""The rules of the implementation algebra on placed plans, whose joins have domains."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from einsql import tra
from einsql.core.schema import DType
from einsql.errors import DataError, ProgrammingError
from einsql.ir.einsum.cells import sized
from einsql.ir.einsum.graph import Label
from einsql.ir.einsum.graph_rewriting import with_sources
from einsql.ir.ia.interpreter import evaluate_physical
from einsql.ir.ia.plan import LocalJoin, LocalMap, bytes_sent
from einsql.ir.remembered import remembering
from einsql.ir.tra.kernels import Tile
from einsql.optimizer.decomposition import decompose
from einsql.optimizer.placement.physical import physical_plan
from einsql.optimizer.tra import RULES, Costs, Weights
from einsql.optimizer.tra.beam import Neighbours
from tests.optimizer.graphs import data, equals, key, random_graph, tensor
from tests.support.samples import sample


def test_no_rule_improves_a_placed_plan_and_all_keep_its_meaning() -> None:
    """Cuts and placement have the outcomes of the rules, as the documentation tells."""
    fired: Counter[str] = Counter()
    for seed in sample(range(118, 127), range(100, 130)):
        root = random_graph(seed)
        inputs = data(root, seed)
        for sites, strategy in ((2, "eindecomp"), (4, "equal"), (5, "eindecomp")):
            cut = decompose(root, sites=sites, strategy=strategy)
            (plan,) = physical_plan(root, cut=cut).roots
            with remembering():
                cost, ways = Costs().plan(plan).total(Weights()), list(Neighbours(RULES).of(plan))
                for rule, new in ways:
                    fired[rule.name] += 1
                    assert bytes_sent(new) >= bytes_sent(plan)
                    assert Costs().plan(new).total(Weights()) >= cost
            for _, new in ways[:: len(ways) // 2 + 1]:
                try:
                    wanted = evaluate_physical(plan, inputs)
                except DataError:  # an element that no row of the result reads
                    break
                blocks = evaluate_physical(new, inputs)
                assert blocks.keys() == wanted.keys()
                for place, record in wanted.items():
                    for name, array in record.items():
                        np.testing.assert_array_equal(blocks[place][name], array)
    assert fired["R2-6"] > sample(30, 100)
    assert fired["BMM"] > 0


def test_a_join_with_given_sites_takes_no_map_condition_or_keys() -> None:
    kernel = tra.add.template([Tile(2, DType.DOUBLE)] * 2)
    whole = sized(kernel, ((4, 4), (4, 4)))
    root = with_sources(whole, [tensor("a", (0, 4), (0, 4)), tensor("b", (0, 4), (0, 4))])
    (join,) = physical_plan(root, cut=decompose(root, sites=4, strategy="equal")).roots
    assert isinstance(join, LocalJoin)
    assert join.layout is not None
    turned = LocalMap(join, kernels=(tra.einsum("ij->ji").template([Tile(2, DType.DOUBLE)]),))
    for attributes in (
        {"kernels": (*join.kernels, *turned.kernels)},
        {"where": equals(Label("k0"), key(1))},
        {"key_map": (Label("k1"), Label("k0"))},
    ):
        with pytest.raises(ProgrammingError, match="given sites"):
            replace(join, **attributes)
