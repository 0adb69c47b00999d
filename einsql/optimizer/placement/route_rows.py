"""The placement of operations whose rows choose a block of an operand: blocks, and cells of rows.

The rows are cut as those of any operation, and each has a home. The blocks are distributed over all
sites. Operands without rows are read at the sites of the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from einsql.core.boxes import split
from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.ir.einsum.cells import values_read
from einsql.ir.einsum.graph import EinSum, Input, Operand, Roots
from einsql.ir.einsum.routing import Routing, routed, routed_groups
from einsql.ir.ia.placement import everywhere
from einsql.ir.layout import Layout, Mesh, Shard, Tiles
from einsql.ir.spmd.program import tuple_bytes
from einsql.ir.tile_transfers import lacking
from einsql.ir.tra.block_schema import Dim, Dims
from einsql.optimizer.decomposition import Cut
from einsql.optimizer.placement.choose_grid import Choice, Fetch, Intern, Source, choose
from einsql.optimizer.placement.completion import freely
from einsql.optimizer.placement.layouts import numbered

_ABSENT = Input("absent", Schema((), ()))
"""The operand that takes the place of one whose elements stay."""


@dataclass(frozen=True, slots=True)
class Staying:
    """The operands of an operation that are read at the sites of blocks.

    Attributes:
        routing: How rows choose a block. An operation between routed ones has no experts.
        parts: The number of blocks.
        sites: The number of sites.
    """

    routing: Routing
    parts: int
    sites: int

    @classmethod
    def of(cls, node: EinSum, sites: int) -> Staying | None:
        """Those of a node; None for a node that is not routed."""
        routing = routed(node)
        return None if routing is None else cls(routing[0], min(routing[1], sites), sites)

    def numbers(self, node: EinSum) -> list[int]:
        """The numbers of the operands that stay."""
        return [n for n, o in enumerate(node.operands) if not self.routing.is_moved(o)]

    def _intervals(self, node: EinSum, operand: Operand) -> list[np.ndarray]:
        """The keys of each axis of an operand that are read, int64 (blocks or 1, 2)."""
        every = np.zeros((1, 0, 2), np.int64)
        read = [values_read(node, x, (), every) for x in operand.labels]
        if self.routing.label in operand.labels:
            axis = operand.labels.index(self.routing.label)
            read[axis] = split(self.routing.lo, self.routing.hi, self.parts)
        return read

    def law(self, node: EinSum, operand: Operand) -> tuple[Dims, Layout]:
        """The axes and the sites of an operand of a node: of its blocks, or of its copies."""
        dims = []
        for key, read in zip(
            operand.source.schema.keys, self._intervals(node, operand), strict=True
        ):
            at = np.clip(read - key.lo, 0, key.extent)
            dims.append(Dim.of(at, (0,)) if len(at) > 1 else Dim.of(at[0], ()))
        if self.routing.label not in operand.labels:
            return tuple(dims), everywhere(self.sites)
        mesh = Mesh((("", self.parts),), tuple(self.block_sites.tolist()))
        return tuple(dims), Layout(mesh, (Shard(0),))

    @property
    def block_sites(self) -> np.ndarray:
        """The site of each block, int64 (blocks,)."""
        return numbered(self.parts, self.sites)

    def tiles(self, node: EinSum, operand: Operand) -> Tiles:
        """The tiles of an operand of a node at their sites."""
        blocks = self.routing.label in operand.labels
        sites = self.block_sites if blocks else np.arange(self.sites)
        boxes = np.empty((len(sites), len(operand.labels), 2), np.int64)
        keys = operand.source.schema.keys
        for axis, (key, read) in enumerate(zip(keys, self._intervals(node, operand), strict=True)):
            boxes[:, axis] = np.clip(read, key.lo, max(key.lo, key.hi))
        return Tiles(sites, boxes, 1 if blocks else self.sites)

    @property
    def starts(self) -> np.ndarray:
        """The first value of each block, int64 (blocks,)."""
        return np.asarray(split(self.routing.lo, self.routing.hi, self.parts)[:, 0])


def staying_operands(roots: Roots, sites: int) -> dict[int, Staying]:
    """Those of each operation whose rows move, by its identity.

    Args:
        roots: The roots of the graph.
        sites: The number of sites.
    """
    staying: dict[int, Staying] = {}
    for group in routed_groups(roots):
        for node, rows in zip(group.nodes, group.rows, strict=True):
            between = Staying(Routing("", -1, rows, (), 0, 0), 0, sites)
            staying[id(node)] = Staying.of(node, sites) or between
    return staying


def choose_routed(
    node: EinSum, cut: Cut, staying: Staying, sources: Sequence[Source], intern: Intern
) -> Choice:
    """The placement of a routed operation: cells where its rows move least before they are sent.

    Args:
        node: The operation.
        cut: The cut of the rows.
        staying: The operands that are read at the sites of blocks.
        sources: The source of each operand; operands of the same relation share the object.
        intern: Interns tiles.
    """
    numbers = staying.numbers(node)
    complete: Mapping[int, Source] = {id(s): replace(s, shared=True) for s in sources}
    rows = replace(
        node,
        operands=tuple(
            Operand(_ABSENT, ()) if n in numbers else o for n, o in enumerate(node.operands)
        ),
    )
    read = [Source() if n in numbers else complete[id(s)] for n, s in enumerate(sources)]
    choice = choose(rows, cut, staying.sites, read, intern)
    closing, fetches = dict(choice.closing), list(choice.fetches)
    for n in numbers:
        source, need = sources[n], intern(staying.tiles(node, node.operands[n]))
        versions = source.versions
        if source.partial is not None:
            same = (closing[m] for m in closing if sources[m] is source)
            closing[n] = next(same, None) or freely(source.partial)
            versions = (intern(closing[n].tiles),)
        elements = lacking(need, versions)[0] if versions else 0
        fetches[n] = Fetch(need, round(elements * tuple_bytes(node.operands[n].source)))
    return replace(choice, closing=closing, fetches=tuple(fetches))
