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
from einsql.ir.einsum.graph import EinSum, Input, Operand
from einsql.ir.einsum.routing import Routing, routed
from einsql.ir.ia.placement import everywhere
from einsql.ir.layout import Layout, Mesh, Shard, Tiles
from einsql.ir.spmd.program import tuple_bytes
from einsql.ir.tile_transfers import lacking
from einsql.ir.tra.block_schema import Dim, Dims
from einsql.optimizer.decomposition import Cut
from einsql.optimizer.placement.choose_grid import Choice, Fetch, Intern, Source, choose
from einsql.optimizer.placement.completion import freely
from einsql.optimizer.placement.layouts import declared, numbered

_ABSENT = Input("absent", Schema((), ()))
"""The operand that takes the place of one whose elements stay."""


@dataclass(frozen=True, slots=True)
class Staying:
    """The operands of a routed operation that are read at the sites of blocks.

    Attributes:
        routing: How rows choose a block.
        parts: The number of blocks.
        sites: The number of sites.
    """

    routing: Routing
    parts: int
    sites: int

    @classmethod
    def of(cls, node: EinSum, sites: int) -> Staying | None:
        """Those of a node; None for a node that is not routed."""
        found = routed(node)
        return None if found is None else cls(*found, sites)

    def numbers(self, node: EinSum) -> list[int]:
        """The numbers of the operands that stay."""
        return [n for n, o in enumerate(node.operands) if not self.routing.is_moved(o)]

    def law(self, operand: Operand) -> tuple[Dims, Layout]:
        """The axes and the sites of an operand: of its blocks, or of its copies."""
        keys = operand.source.schema.keys
        dims = [Dim((k.extent,), starts=(0,)) for k in keys]
        if self.routing.label not in operand.labels:
            return tuple(dims), everywhere(self.sites)
        axis = operand.labels.index(self.routing.label)
        dims[axis] = Dim.of(split(0, keys[axis].extent, self.parts), (0,))
        mesh = Mesh((("", self.parts),), tuple(numbered(self.parts, self.sites).tolist()))
        return tuple(dims), Layout(mesh, (Shard(0),))

    def tiles(self, operand: Operand) -> Tiles:
        """The tiles of an operand at their sites."""
        keys = [(k.lo, k.hi) for k in operand.source.schema.keys]
        parts = [self.parts if x == self.routing.label else 1 for x in operand.labels]
        return declared(keys, parts, self.sites)


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
        source, need = sources[n], intern(staying.tiles(node.operands[n]))
        versions = source.versions
        if source.partial is not None:
            same = (closing[m] for m in closing if sources[m] is source)
            closing[n] = next(same, None) or freely(source.partial)
            versions = (intern(closing[n].tiles),)
        elements = lacking(need, versions)[0] if versions else 0
        fetches[n] = Fetch(need, elements * tuple_bytes(node.operands[n].source))
    return replace(choice, closing=closing, fetches=tuple(fetches))


def block_starts(operand: Operand, staying: Staying) -> np.ndarray:
    """The first value of each block of an operand that is chosen, int64 (blocks,)."""
    key = operand.source.schema.keys[operand.labels.index(staying.routing.label)]
    return np.asarray(split(key.lo, key.hi, staying.parts)[:, 0])
