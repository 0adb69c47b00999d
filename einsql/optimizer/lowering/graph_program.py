"""The SPMD program of a plan of the implementation algebra over elements.

The tiles of such a plan have positions in their tensors, so tiles are boxes of keys. Every joined
cell becomes a cell of a local step, every repartition an exchange. A merge of partial results
before and after a repartition becomes one completion.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from einsql.core.mappings import memoized
from einsql.core.records import dataclass
from einsql.errors import InternalError
from einsql.ir.einsum.graph import EinSum, Node, stored_operands
from einsql.ir.einsum.structure import structure
from einsql.ir.ia import plan as ia
from einsql.ir.ia.physical_schema import PhysicalSchema
from einsql.ir.ia.tiles import missing, tiles_of
from einsql.ir.ia.transfers import piece_transfers
from einsql.ir.layout import Entry, Partial, Shard, Single, Tiles
from einsql.ir.remembered import remembering
from einsql.ir.spmd.program import (
    COPIES,
    Blocks,
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
from einsql.ir.tile_transfers import same
from einsql.ir.tra.block_schema import codes
from einsql.ir.tra.kernel_typing import domain_cells
from einsql.optimizer.decomposition import Decomposition
from einsql.optimizer.lowering.tiles import Copies
from einsql.optimizer.placement.collectives import collectives
from einsql.optimizer.placement.physical import PhysicalPlan, physical_plan
from einsql.optimizer.placement.route_rows import Staying

_GENERAL = Collective("all-to-all", (), 0)
"""The exchange of sparse tiles for which no single collective is known."""


@dataclass(frozen=True, slots=True, eq=False)
class _Relation:
    """A physical relation and the step with its tiles.

    Attributes:
        step: The number of the step.
        schema: The type of the relation.
        numbers: int64 (tiles,), the step's tile of each tile of the relation; None if the tiles
            of both are the same.
    """

    step: int
    schema: PhysicalSchema
    numbers: np.ndarray | None = None

    def tile(self, numbers: np.ndarray) -> np.ndarray:
        """The step's tiles of some tiles of the relation."""
        return numbers if self.numbers is None else self.numbers[numbers]


def site_program(*roots: Node, cut: Decomposition) -> Program:
    """The SPMD program of a cut graph: of its placed plan in the implementation algebra.

    Args:
        roots: The roots of the graph that was cut.
        cut: The cuts of the graph's operations.
    """
    with remembering():
        return graph_program(physical_plan(*roots, cut=cut))


def graph_program(plan: PhysicalPlan) -> Program:
    """The SPMD program of a plan over elements.

    Operations run in the order of the graph; their operands move just before.
    """
    with remembering():
        lowering = _Lowering(plan)
        for node in ia.walk(*plan.roots):
            if isinstance(node, ia.LocalJoin):
                lowering.relation(node)
        roots = tuple(lowering.relation(root).step for root in plan.roots)
        return Program(plan.sites, tuple(lowering.steps), roots)


class _Lowering:
    """The steps so far, and the relation of each node by its identity."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self.steps: list[Step] = []
        self._operations = plan.operations
        self._relations: dict[int, _Relation] = {}
        self._unread: dict[int, PhysicalSchema] = {}
        """The parts of each completion that no exchange has read."""
        self._known: dict[Hashable, Any] = {}
        """The results that depend on types alone, which equal layers share."""

    def relation(self, node: ia.Node) -> _Relation:
        """The relation of a node; its steps are added if they do not exist."""
        if id(node) not in self._relations:
            self._relations[id(node)] = self._lowered(node)
        return self._relations[id(node)]

    def _lowered(self, node: ia.Node) -> _Relation:
        match node:
            case ia.Scan():
                lows = [k.lo for k in node.tensor.schema.keys]
                return self._step(Load(node.tensor, self._tiles(node.schema, lows)), node.schema)
            case ia.LocalJoin():
                return self._join(node)
            case ia.Repartition():
                return self._moved(node)
            case ia.LocalAggregate():
                if isinstance(node.source, ia.Repartition):
                    return self._complete(node, node.source)
                return self._parts(node)
            case ia.LocalMap() | ia.Routed():  # no state of a completion, and nothing moves
                return replace(self.relation(node.source), schema=node.schema)
        raise InternalError("A plan over elements has no such operation")

    def _step(self, step: Step, schema: PhysicalSchema) -> _Relation:
        self.steps.append(step)
        return _Relation(len(self.steps) - 1, schema)

    def _tiles(self, schema: PhysicalSchema, lows: Sequence[int]) -> Tiles:
        """The tiles of a relation as boxes of keys, with the first key of each axis."""

        def moved() -> Tiles:
            tiles = tiles_of(schema)
            return replace(tiles, boxes=tiles.boxes + np.array(lows, np.int64).reshape(-1, 1))

        if not any(lows):
            return tiles_of(schema)
        tiles: Tiles = memoized(self._known, (id(schema), tuple(lows)), moved)
        return tiles

    # ---- moves

    def _moved(self, node: ia.Repartition) -> _Relation:
        if node.schema.parts is not None:  # its reader merges the parts
            return self.relation(node.source)
        versions = [node.source, *node.also]
        types = [v.schema for v in versions]
        elements, at_hand, used = memoized(
            self._known,
            ("moved", id(node.schema), *map(id, types)),
            lambda: _taken(node.schema, types),
        )
        sources = [self.relation(versions[n]) for n in used]
        if elements == 0 and len(used) == 1:
            (source,) = sources
            own, all_of = tiles_of(source.schema).boxes, tiles_of(node.schema).boxes
            if np.array_equal(own[at_hand[:, 1]], all_of):  # read in place
                return _Relation(source.step, node.schema, source.tile(at_hand[:, 1]))
        for n, source in enumerate(sources):
            if source.numbers is not None:
                at_hand = at_hand.copy()
                of = at_hand[:, 0] == n
                at_hand[of, 1] = source.tile(at_hand[of, 1])
        relation = relation_of(self.steps, sources[0].step)
        need = self._tiles(node.schema, [k.lo for k in relation.schema.keys])
        width = 1 if node.nbytes is not None else int(tuple_bytes(relation))
        moves = self._collectives(sources[0].schema, node.schema, elements, width)
        if node.nbytes is not None and moves:
            moves = (replace(moves[0] if len(moves) == 1 else _GENERAL, nbytes=node.nbytes),)
        completes = self._completes(sources[0], node.schema) if elements else False
        exchange = Exchange(tuple(s.step for s in sources), at_hand, need, moves, completes)
        return self._step(exchange, node.schema)

    def _collectives(
        self, have: PhysicalSchema, need: PhysicalSchema, elements: int, width: int
    ) -> tuple[Collective, ...]:
        def solved() -> tuple[Collective, ...]:
            moves = collectives(tiles_of(have), tiles_of(need), elements, width)
            return tuple(replace(c, along=tuple(x for x in c.along if x)) for c in moves)

        return memoized(self._known, ("collectives", id(have), id(need), elements, width), solved)

    def _completes(self, source: _Relation, need: PhysicalSchema) -> bool:
        """True if the exchange is the first of a completion, and both are one all-reduce."""
        parts = self._unread.pop(source.step, None)
        if parts is None:
            return False
        key = ("completes", id(parts), id(need))
        completes: bool = memoized(self._known, key, lambda: same(tiles_of(need), tiles_of(parts)))
        return completes

    # ---- operations

    def _join(self, node: ia.LocalJoin) -> _Relation:
        assert node.domain is not None
        operation, schema = self._operations[id(node.kernels[0])], node.schema
        sources = node.sources[: len(operation.operands)]
        for n in stored_operands(operation):  # exchanges of the others may depend on their elements
            self.relation(sources[n])
        operands = [self.relation(s) for s in sources]
        free = tuple(a.label for a in operation.axes if a.define is None)
        types = tuple(id(o.schema) for o in operands)
        key = ("cells", id(schema), types, node.keys, structure(operation))
        cells = memoized(self._known, key, lambda: _cells(node, operation, operands))
        layout = schema.layout
        axes = zip(layout.mesh.axes, layout.placed, strict=True)
        sites = tiles_of(schema).sites[cells.order]
        blocks = self._blocks(operation, node, operands)
        stay = {} if blocks is None else blocks.tiles
        picks = tuple(
            _at_sites(blocks, stay[n], sites) if blocks and n in stay else o.tile(reads)
            for n, (o, reads) in enumerate(zip(operands, cells.reads, strict=True))
        )
        step = Local(
            node=operation,
            labels=free,
            grid=tuple(
                (node.domain[e.axis][0] if isinstance(e, Shard) else COPIES, size)
                for (_, size), e in axes
                if not isinstance(e, Single)
            ),
            sites=sites,
            cells=cells.boxes,
            operands=tuple(o.step for o in operands),
            picks=picks,
            tiles=self._ordered(schema, cells, [k.lo for k in operation.schema.keys]),
            partial=cells.merged or schema.parts is not None,
            blocks=blocks,
        )
        self.steps.append(step)
        return _Relation(len(self.steps) - 1, schema, cells.numbers)

    def _blocks(
        self, operation: EinSum, node: ia.LocalJoin, operands: Sequence[_Relation]
    ) -> Blocks | None:
        """The blocks that the rows of an operation choose; None if it is not routed."""
        staying = Staying.of(operation, node.schema.sites)
        if staying is None:
            return None
        first = staying.routing.experts[0]
        sites = self.steps[operands[first].step].tiles.sites[self._every(operands[first])]
        tiles = {}
        for n in staying.numbers(operation):
            every = self._every(operands[n])
            own = self.steps[operands[n].step].tiles.sites[every]
            # Blocks are in order; of copies it is the one at the site of each block.
            order = np.argsort(own, kind="stable")
            tiles[n] = every[order[np.searchsorted(own, sites, sorter=order)]]
        return Blocks(staying.routing, staying.starts, sites, tiles)

    def _every(self, relation: _Relation) -> np.ndarray:
        """The step's tiles of all tiles of a relation."""
        if relation.numbers is not None:
            return relation.numbers
        return np.arange(len(self.steps[relation.step].tiles.sites))

    def _ordered(self, schema: PhysicalSchema, cells: _Cells, lows: Sequence[int]) -> Tiles:
        """The tiles of a relation as boxes of keys, in the order of its cells."""
        tiles = self._tiles(schema, lows)
        if cells.numbers is None:
            return tiles

        def ordered() -> Tiles:
            return replace(tiles, sites=tiles.sites[cells.order], boxes=tiles.boxes[cells.order])

        result: Tiles = memoized(self._known, ("ordered", id(schema), tuple(lows)), ordered)
        return result

    def _parts(self, node: ia.LocalAggregate) -> _Relation:
        """The tiles of cells as parts; every point of the mesh has one cell, so it merges none."""
        cells = self.relation(node.source)

        def numbers() -> np.ndarray:
            have, want = cells.schema, node.schema
            tile = np.zeros(len(have.layout.mesh.points), np.int64)
            tile[_points(have)] = cells.tile(np.arange(len(tiles_of(have).sites)))
            return np.asarray(tile[_points(want)])

        key = ("parts", id(cells.schema), id(node.schema))
        return _Relation(cells.step, node.schema, memoized(self._known, key, numbers))

    def _complete(self, node: ia.LocalAggregate, move: ia.Repartition) -> _Relation:
        """The tiles of all parts of each block, which may be a piece of the parts' block."""
        partial = self.relation(move.source)
        local = self.steps[partial.step]
        assert isinstance(local, Local)
        key = ("complete", id(partial.schema), id(move.schema), id(node.schema))
        numbers, scatters = memoized(self._known, key, lambda: _merged(node, move))
        tiles = self._tiles(node.schema, [k.lo for k in local.node.schema.keys])
        law = partial.schema.layout
        along = (n for (n, _), e in zip(law.mesh.axes, law.placed, strict=True) if _is_partial(e))
        name: CollectiveName = "reduce-scatter" if scatters else "reduce"
        moves = (Collective(name, tuple(along), ia.sends(move)),)
        step = Complete(partial.step, local.node, tiles, partial.tile(numbers), moves)
        completed = self._step(step, node.schema)
        self._unread[completed.step] = partial.schema
        return completed


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """The cells of a join, by copy, then in the order of the grid.

    Attributes:
        order: int64 (cells,), the tile of the relation that each cell makes.
        numbers: int64 (tiles,), the cell of each tile; None if the orders are the same.
        boxes: int64 (cells, labels, 2), the part of the domain of each cell.
        reads: For each operand int64 (cells,), the tile of the relation that each cell reads.
        merged: Whether tiles of several cells are merged.
    """

    order: np.ndarray
    numbers: np.ndarray | None
    boxes: np.ndarray
    reads: tuple[np.ndarray, ...]
    merged: bool


def _cells(node: ia.LocalJoin, operation: EinSum, operands: Sequence[_Relation]) -> _Cells:
    assert node.domain is not None
    copies, keys = Copies.of(node.schema.holders), node.schema.blocks.key_array()
    free = [a for a in operation.axes if a.define is None]
    cut = domain_cells(operation, node.domain, node.schema.blocks)[copies.rows]
    boxes = np.empty((len(copies.rows), len(free), 2), np.int64)
    boxes[:] = np.array([(a.lo, max(a.lo, a.hi)) for a in free], np.int64).reshape(-1, 2)
    labels = [a.label for a in free]
    for n, (label, _) in enumerate(node.domain):
        boxes[:, labels.index(label)] = cut[:, n]
    reads = []
    for operand, places in zip(operands, node.keys, strict=False):
        (rows,) = codes(operand.schema.blocks.bounds, keys[:, list(places)])
        rows, own = rows[copies.rows], Copies.of(operand.schema.holders)
        parts = np.minimum(copies.parts, own.numbers.shape[1] - 1)
        at_site = operand.schema.holders[rows, parts] == copies.sites[:, None]
        reads.append(own.numbers[rows, parts, at_site.argmax(axis=1)])
    merged = any(label not in operation.keys for label, _ in node.domain)
    # All copies have their boxes in one order, that of the first point of each cell.
    first = node.schema.points.min(axis=2)[copies.rows, copies.parts]
    order = np.lexsort((first, copies.which))
    numbers = None if (order[1:] > order[:-1]).all() else np.argsort(order)
    return _Cells(order, numbers, boxes[order], tuple(r[order] for r in reads), merged)


def _taken(
    target: PhysicalSchema, versions: Sequence[PhysicalSchema]
) -> tuple[int, np.ndarray, tuple[int, ...]]:
    """The elements that move, `Exchange.at_hand` over the used versions, and these versions."""
    elements, at_hand = missing(target, versions)
    used = tuple(np.unique(np.maximum(0, at_hand[:, 0])).tolist())
    at_hand, is_here = at_hand.copy(), at_hand[:, 0] >= 0
    at_hand[is_here, 0] = np.searchsorted(used, at_hand[is_here, 0])
    return elements, at_hand, used


def _points(schema: PhysicalSchema) -> np.ndarray:
    """The mesh point of each tile of a relation, int64 (tiles,)."""
    copies = Copies.of(schema.holders)
    return np.asarray(schema.points[copies.rows, copies.parts, copies.which])


def _merged(node: ia.LocalAggregate, move: ia.Repartition) -> tuple[np.ndarray, bool]:
    """The tiles of the partial relation that each tile merges, and whether tiles are pieces."""
    source = move.source.schema
    pieces = piece_transfers(source, move.schema, move.cuts)
    old = np.zeros(move.schema.blocks.count, np.int64)
    old[pieces.new] = pieces.old
    copies, parts = Copies.of(node.schema.holders), Copies.of(source.holders).numbers
    which = np.minimum(copies.which, parts.shape[2] - 1)
    return parts[old[copies.rows], :, which], node.schema.blocks.count > source.blocks.count


def _at_sites(blocks: Blocks, tiles: np.ndarray, sites: np.ndarray) -> np.ndarray:
    """The block at each of some sites; the first block for sites without one."""
    at_site = dict(zip(blocks.sites.tolist(), tiles.tolist(), strict=True))
    return np.array([at_site.get(site, tiles[0]) for site in sites.tolist()], np.int64)


def _is_partial(entry: Entry) -> bool:
    return isinstance(entry, Partial)
