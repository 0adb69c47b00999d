"""The same graph at two levels: as EinSums, and as tensor relations under cuts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import prod
from random import Random
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np

from einsql.core.bfloat16 import stored
from einsql.core.schema import PRESENT, valid
from einsql.engine.step import Measure, Step
from einsql.errors import DataError, NotSupportedError
from einsql.ir.einsum.evaluation import wide
from einsql.ir.einsum.graph import EinSum, Node, walk
from einsql.ir.einsum.interpreter import evaluate
from einsql.ir.einsum.partial_states import merges
from einsql.ir.ia import plan as ia
from einsql.ir.ia.interpreter import evaluate_physical
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import BlockSchema
from einsql.ir.tra.interpreter import Blocks, evaluate_blocks
from einsql.ir.tra.printer import format_plan
from einsql.optimizer.decomposition import Cut, decompose
from einsql.optimizer.tra.lower import lower
from einsql.planner import queries
from einsql.planner.plan import Plan
from einsql.planner.planner import BinderCatalog, make_plan
from einsql.sql.scope.relation import Relation
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
    whole = () if merges(node) else node.reduced
    parts = {
        a.label: pick.randint(1, max(1, min(3, a.extent))) if a.label not in whole else 1
        for a in node.axes
        if a.define is None
    }
    while prod(parts.values()) > CALLS:
        parts[pick.choice(list(parts))] = 1
    return parts


def by_definition(plan: ra.Node, node: Node, inputs: Mapping[str, Arrays]) -> dict[str, np.ndarray]:
    """The fields of a node as the reference interpreter of its plan gives them."""
    return _fields(evaluate_blocks(plan, inputs), plan.schema, node)


def by_sites(plan: ia.Node, node: Node, inputs: Mapping[str, Arrays]) -> dict[str, np.ndarray]:
    """The fields of a node as the reference interpreter of its placed plan gives them."""
    return _fields(evaluate_physical(plan, inputs), plan.schema.blocks, node)


def _fields(blocks: Blocks, schema: BlockSchema, node: Node) -> dict[str, np.ndarray]:
    assert schema.fields == node.schema.fields
    fields = {f.name: np.zeros(node.schema.shape, wide(f.dtype).numpy) for f in schema.fields}
    covered = np.zeros(node.schema.shape, np.int64)
    for key, record in blocks.items():
        place = tuple(slice(lo, hi) for lo, hi in schema.box(key).tolist())
        assert {a.shape for a in record.values()} <= {schema.shape(key)}
        covered[place] += 1
        for f in schema.fields:
            fields[f.name][place] = record[f.name]
    assert (covered == 1).all()
    return fields


def assert_same(
    root: Node,
    inputs: Mapping[str, Arrays],
    cuts: Mapping[EinSum, Mapping[str, int]],
    rtol: float = 0,
) -> ra.Node:
    """Lowers a graph and compares every field that means something.

    Args:
        root: The graph.
        inputs: The fields of its inputs.
        cuts: The parts of each node's labels.
        rtol: The tolerance, in proportion to the greatest value of a field.
    """
    (plan,) = lower([root], cuts)
    format_plan(plan)
    try:
        wanted = evaluate(root, inputs)
    except DataError:
        return plan
    same_fields(root, by_definition(plan, root, inputs), wanted, rtol)
    return plan


def same_fields(root: Node, got: Arrays, wanted: Arrays, rtol: float = 0) -> None:
    """Compares the fields of a node where they mean something."""
    shape = root.schema.shape
    present = wanted.get(PRESENT, np.ones(shape, bool))
    for f in root.schema.fields:
        known = present & wanted.get(valid(f.name), np.ones(shape, bool))
        if f.name == PRESENT:
            known = np.ones(shape, bool)
        expected = wanted[f.name][known]
        finite = np.abs(expected[np.isfinite(expected)], dtype=float)
        atol = rtol * float(finite.max(initial=0))
        np.testing.assert_allclose(
            got[f.name][known], expected, rtol=rtol, atol=atol, err_msg=f.name
        )


def parts_of(root: Node, cuts: Sequence[Cut]) -> dict[EinSum, Mapping[str, int]]:
    """The parts of each node's labels in a decomposition."""
    nodes = [n for n in walk(root) if isinstance(n, EinSum)]
    return {n: c.parts for n, c in zip(nodes, cuts, strict=True)}


class BlockProgram:
    """Runs a graph as blocks in the place of a Program, under random or chosen cuts."""

    aliased_inputs: Sequence[str] = ()
    verifies: frozenset[str] = frozenset()
    steps: Sequence[Step] = ()

    def __init__(self, root: EinSum, pick: Random) -> None:
        self.root = root
        self.parts: Mapping[EinSum, Mapping[str, int]] = random_parts(root, pick)
        if pick.random() < 0.3:
            self.parts = parts_of(root, decompose(root, sites=pick.randint(2, 6)).cuts)
        (self.plan,) = lower([root], self.parts)

    def run(self, inputs: Mapping[str, Arrays], tick: Callable[[float], None]) -> list[Arrays]:
        """The root's fields, rounded to their types."""
        fields = by_definition(self.plan, self.root, inputs)
        with np.errstate(all="ignore"):
            return [
                {
                    f.name: stored(fields[f.name], f.dtype).astype(f.dtype.numpy)
                    for f in self.root.schema.fields
                }
            ]

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
