"""The SPMD program of a plan of the implementation algebra over elements.

The tiles of such a plan have positions in their tensors, so tiles are boxes of keys. Every joined
cell becomes a cell of a local step, every repartition an exchange. A merge of partial results
before and after a repartition becomes one completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from einsql.errors import InternalError
from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.partial_states import state_fields
from einsql.ir.ia import plan as ia
from einsql.ir.ia.physical_schema import PhysicalSchema
from einsql.ir.ia.transfers import piece_transfers
from einsql.ir.layout import Entry, Partial, Tiles
from einsql.ir.spmd.program import (
    Collective,
    CollectiveName,
    Complete,
    Exchange,
    Load,
    Local,
    Program,
    Step,
    relation_of,
    tuple_bytes,
)
from einsql.ir.tra.block_schema import codes
from einsql.ir.tra.kernel_typing import domain_cells
from einsql.optimizer.lowering.tiles import Copies
from einsql.optimizer.placement.collectives import collectives
from einsql.optimizer.placement.layouts import lacking


@dataclass(frozen=True, slots=True, eq=False)
class _Relation:
    """A physical relation and the step with its tiles.

    Attributes:
        step: The number of the step.
        schema: The type of the relation.
        numbers: int64 (keys, parts, copies), the step's tile of each copy.
    """

    step: int
    schema: PhysicalSchema
    numbers: np.ndarray

    def at(self, rows: np.ndarray, sites: np.ndarray, parts: np.ndarray) -> np.ndarray:
        """The tile of each key and part at a site, int64 (n,)."""
        here = self.schema.holders[rows, parts] == sites[:, None]
        return np.asarray(self.numbers[rows, parts, here.argmax(axis=1)])


def graph_program(roots: Sequence[ia.Node], sites: int) -> Program:
    """The SPMD program of a plan whose joins have domains.

    Args:
        roots: The root of each result.
        sites: The number of sites.
    """
    lowering = _GraphLowering()
    for node in ia.walk(*roots):
        if node.schema.blocks.fields:  # a join without operands scans a tensor without fields
            lowering.relations[id(node)] = lowering.relation(node)
    results = tuple(lowering.relations[id(root)].step for root in roots)
    return Program(sites, tuple(lowering.steps), results)


class _GraphLowering:
    """The steps so far, and the relation of each node by its identity."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.relations: dict[int, _Relation] = {}

    def relation(self, node: ia.Node) -> _Relation:
        """Adds the steps of a node, whose operands have been added."""
        match node:
            case ia.Scan():
                return self._scan(node)
            case ia.LocalJoin():
                return self._join(node)
            case ia.Repartition():
                return self._moved(node)
            case ia.LocalAggregate():
                return self._merged(node)
            case ia.LocalMap():  # a completion drops the state
                return replace(self.relations[id(node.source)], schema=node.schema)
        raise InternalError("A plan over elements has no such operation")

    def _step(self, step: Step, schema: PhysicalSchema) -> _Relation:
        self.steps.append(step)
        return _Relation(len(self.steps) - 1, schema, Copies.of(schema.holders).numbers)

    def _scan(self, node: ia.Scan) -> _Relation:
        tiles = _tiles(node.schema, [k.lo for k in node.tensor.schema.keys])
        return self._step(Load(node.tensor, tiles), node.schema)

    def _moved(self, node: ia.Repartition) -> _Relation:
        source = self.relations[id(node.source)]
        if node.schema.parts is not None:  # its reader merges the parts
            return source
        have = self.steps[source.step].tiles
        relation = relation_of(self.steps, source.step)
        need = _tiles(node.schema, [k.lo for k in relation.schema.keys])
        elements, at_hand = lacking(need, [have])
        moves = collectives(have, need, elements, tuple_bytes(relation))
        return self._step(Exchange((source.step,), at_hand, need, moves), node.schema)

    def _join(self, node: ia.LocalJoin) -> _Relation:
        assert node.domain is not None
        kernel, schema = _operation(node.kernels[0]), node.schema
        copies = Copies.of(schema.holders)
        keys = schema.blocks.key_array()
        free = [a for a in kernel.axes if a.define is None]
        cut = domain_cells(kernel, node.domain, schema.blocks)[copies.rows]
        cells = np.empty((len(copies.rows), len(free), 2), np.int64)
        cells[:] = np.array([(a.lo, a.hi) for a in free], np.int64).reshape(-1, 2)
        labels = tuple(a.label for a in free)
        for n, (label, _) in enumerate(node.domain):
            cells[:, labels.index(label)] = cut[:, n]
        operands = [self.relations[id(s)] for s in node.sources[: len(kernel.operands)]]
        picks: list[np.ndarray] = []
        for operand, places in zip(operands, node.keys, strict=False):
            (rows,) = codes(operand.schema.blocks.bounds, keys[:, list(places)])
            picks.append(operand.at(rows[copies.rows], copies.sites, copies.parts))
        merged = any(label not in kernel.keys for label, _ in node.domain)
        step = Local(
            node=kernel,
            labels=labels,
            grid=tuple((label, len(cuts) - 1) for label, cuts in node.domain),
            sites=copies.sites,
            cells=cells,
            operands=tuple(o.step for o in operands),
            picks=tuple(picks),
            tiles=_tiles(schema, [k.lo for k in kernel.schema.keys]),
            partial=merged or schema.parts is not None,
        )
        return self._step(step, schema)

    def _merged(self, node: ia.LocalAggregate) -> _Relation:
        source = self.relations[id(node.source)]
        if isinstance(node.source, ia.Repartition):
            return self._completed(node, node.source, source)
        # A site has one cell, so it merges nothing before tiles move.
        local = self.steps[source.step]
        tile_at = np.zeros(node.schema.sites, np.int64)
        tile_at[local.tiles.sites] = np.arange(len(local.tiles.sites))
        return _Relation(source.step, node.schema, tile_at[node.schema.holders])

    def _completed(
        self, node: ia.LocalAggregate, move: ia.Repartition, partial: _Relation
    ) -> _Relation:
        """The tiles of all parts of each block, which may be a piece of the parts' block."""
        local = self.steps[partial.step]
        assert isinstance(local, Local)
        pieces = piece_transfers(partial.schema, move.schema, move.cuts)
        old = np.zeros(move.schema.blocks.count, np.int64)
        old[pieces.new] = pieces.old
        copies = Copies.of(node.schema.holders)
        which = np.minimum(copies.which, partial.numbers.shape[2] - 1)
        parts = partial.numbers[old[copies.rows], :, which]
        tiles = _tiles(node.schema, [k.lo for k in local.node.schema.keys])
        scatters = node.schema.blocks.count > partial.schema.blocks.count
        mesh = partial.schema.layout
        along = (n for (n, _), e in zip(mesh.mesh.axes, mesh.placed, strict=True) if _merges(e))
        name: CollectiveName = "reduce-scatter" if scatters else "reduce"
        moves = (Collective(name, tuple(along), ia.sends(move)),)
        return self._step(Complete(partial.step, local.node, tiles, parts, moves), node.schema)


def _merges(entry: Entry) -> bool:
    return isinstance(entry, Partial)


def _operation(kernel: EinSum) -> EinSum:
    """The operation of a kernel: without the state of its outputs, and without no operands."""
    state = {
        name for o in kernel.outputs for name in state_fields(o.name, o.reduction or "sum")[1:]
    }
    outputs = tuple(o for o in kernel.outputs if o.name not in state)
    operands = tuple(o for o in kernel.operands if o.source.schema.fields)
    return replace(kernel, outputs=outputs, operands=operands)


def _tiles(schema: PhysicalSchema, lows: Sequence[int]) -> Tiles:
    """The tiles of a relation as boxes of keys, by copy, then key, then part."""
    copies = Copies.of(schema.holders)
    boxes = schema.blocks.boxes()[copies.rows]
    boxes = boxes + np.array(lows, np.int64).reshape(-1, 1)
    return Tiles(copies.sites, boxes, copies.repeated)
