"""The same graph at two levels: as EinSums, and as blocks under random cuts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from random import Random
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from einsql.core.schema import PRESENT, valid
from einsql.engine.step import Measure, Step
from einsql.engine.tra.block_kernels import kernel_runner
from einsql.errors import DataError, NotSupportedError
from einsql.ir.einsum.graph import EinSum, Input, Node, walk
from einsql.ir.einsum.interpreter import evaluate
from einsql.ir.tra import plan as ra
from einsql.ir.tra.interpreter import evaluate_blocks
from einsql.optimizer.decomposition import decompose
from einsql.optimizer.tra.lower import lower_graph_fields
from einsql.optimizer.tra.lower_operands import scanned_field
from einsql.planner import queries
from einsql.planner.plan import Plan
from einsql.planner.planner import BinderCatalog, make_plan
from einsql.sql.scope.relation import Relation
from einsql.storage.block_relation import assemble, run_blocks
from einsql.storage.session_store import Store

if TYPE_CHECKING:
    import einsql

Arrays = Mapping[str, np.ndarray]

CALLS = 48
"""Kernel calls that a node is cut into at most."""


def random_parts(root: Node, pick: Random) -> dict[EinSum, dict[str, int]]:
    """Into how many parts each label of each node is cut, at most as many as it has values."""
    return {n: _parts(n, pick) for n in walk(root) if isinstance(n, EinSum)}


def _parts(node: EinSum, pick: Random) -> dict[str, int]:
    parts = {a.label: pick.randint(1, max(1, min(3, a.extent))) for a in node.axes}
    while prod(parts.values()) > CALLS:
        parts[pick.choice(list(parts))] = 1
    return parts


def scanned_arrays(root: Node, inputs: Mapping[str, Arrays]) -> dict[str, np.ndarray]:
    """What the scans of a lowered graph read, by name."""
    return {
        scanned_field(node, f.name).name: inputs[node.name][f.name]
        for node in walk(root)
        if isinstance(node, Input)
        for f in node.schema.fields
    }


def by_definition(node: ra.Node, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """A relation's tensor as the reference gives it."""
    return assemble(node, evaluate_blocks(node, arrays))


def by_kernels(node: ra.Node, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """A relation's tensor as the engine gives it."""
    return assemble(node, run_blocks(node, arrays, kernel_runner("never")))


def assert_same(root: EinSum, inputs: Mapping[str, Arrays], pick: Random, rtol: float = 0) -> int:
    """Lowers a graph under random cuts and compares every field that means something.

    Returns:
        How many nodes the plans have.
    """
    plans = lower_graph_fields(root, random_parts(root, pick))
    try:
        wanted = evaluate(root, inputs)
    except DataError:
        return 0
    arrays = scanned_arrays(root, inputs)
    shape = root.schema.shape
    for run in (by_definition, by_kernels):
        got = {name: run(plan, arrays) for name, plan in plans.items()}
        present = wanted.get(PRESENT, np.ones(shape, bool))
        for f in root.schema.fields:
            known = present & wanted.get(valid(f.name), np.ones(shape, bool))
            if f.name == PRESENT:
                known = np.ones(shape, bool)
            np.testing.assert_allclose(
                got[f.name][known], wanted[f.name][known], rtol=rtol, err_msg=f.name
            )
    return sum(len(ra.walk(p)) for p in plans.values())


class BlockProgram:
    """Runs a graph as blocks in the place of a Program, under random or chosen cuts."""

    aliased_inputs: Sequence[str] = ()
    steps: Sequence[Step] = ()

    def __init__(self, root: EinSum, pick: Random) -> None:
        self.root = root
        parts: Mapping[EinSum, Mapping[str, int]] = random_parts(root, pick)
        if pick.random() < 0.3:
            nodes = [n for n in walk(root) if isinstance(n, EinSum)]
            cuts = decompose(root, sites=pick.randint(2, 6)).cuts
            parts = {n: c.parts for n, c in zip(nodes, cuts, strict=True)}
        self.plans = lower_graph_fields(root, parts)

    def run(self, inputs: Mapping[str, Arrays], tick: Callable[[float], None]) -> list[Arrays]:
        """The root's fields."""
        arrays = scanned_arrays(self.root, inputs)
        return [{name: by_kernels(plan, arrays) for name, plan in self.plans.items()}]

    def measured(
        self, inputs: Mapping[str, Arrays], tick: Callable[[float], None]
    ) -> tuple[list[Arrays], Measure]:
        return self.run(inputs, tick), Measure()


def run_as_blocks(con: einsql.Connection, pick: Random) -> Counter[str]:
    """Makes a connection run its queries as blocks.

    Returns:
        Counts, growing with each query, `lowered` or why a query could not be.
    """
    counts: Counter[str] = Counter()
    _AS_BLOCKS[con.store] = counts, pick
    setattr(queries, "make_plan", _make_plan)  # noqa: B010 - all plans of queries come from it
    return counts


_AS_BLOCKS: WeakKeyDictionary[Store, tuple[Counter[str], Random]] = WeakKeyDictionary()
"""What is counted of connections that run as blocks, and how their cuts are drawn."""


def _make_plan(
    relation: Relation, catalog: BinderCatalog, notices: list[str], more: Sequence[Node] = ()
) -> Plan:
    plan = make_plan(relation, catalog, notices, more)
    root = plan.optimized.root
    if not more and catalog.store in _AS_BLOCKS and isinstance(root, EinSum):
        counts, pick = _AS_BLOCKS[catalog.store]
        try:
            plan.program = BlockProgram(root, pick)
            counts["lowered"] += 1
        except NotSupportedError as error:
            counts[error.reason] += 1
    return plan
