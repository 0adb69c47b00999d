"""The plan of the implementation algebra of a placed graph.

The tensor-relational plan has the cuts that placement chose. Its operations become local ones,
whose laws are the grids of the cells. A repartition moves an operand to the cells that read it. A
merge of partial results becomes a local aggregation, a repartition to the sites of the completion,
and a second aggregation. A repartition takes all tiles from one version of a relation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from einsql.core.schema import Schema
from einsql.core.tables import Table
from einsql.errors import NotSupportedError
from einsql.ir.einsum.graph import EinSum, Input, Node, Operand, walk
from einsql.ir.ia import plan as ia
from einsql.ir.ia.placement import everywhere
from einsql.ir.layout import (
    Entry,
    Layout,
    Mesh,
    Partial,
    Replicate,
    Scattered,
    Shard,
    Tiles,
)
from einsql.ir.spmd.program import COPIES
from einsql.ir.tra import plan as tra
from einsql.ir.tra.block_schema import Dim, Dims
from einsql.optimizer.placement.layouts import Cells, lying
from einsql.optimizer.placement.placement import Placed
from einsql.optimizer.tra.lower import Parts, lowered_nodes


def physical_plan(roots: Sequence[Node], placed: Placed, sites: int) -> tuple[ia.Node, ...]:
    """The plan of the implementation algebra of each root.

    Args:
        roots: The roots of the graph.
        placed: The placement of every operation.
        sites: The number of sites.

    Raises:
        NotSupportedError: A site has several cells of an operation, or a part has no values.
    """
    return _Building(roots, placed, sites).plans()


class _Building:
    """The plans of the graph's nodes, producers first."""

    def __init__(self, roots: Sequence[Node], placed: Placed, sites: int) -> None:
        self.roots, self.placed, self.sites = roots, placed, sites
        nodes = [n for n in walk(*roots) if isinstance(n, EinSum)]
        cuts = {n: _parts(n, self._cells(n)) for n in nodes}
        self.lowered = lowered_nodes(roots, cuts)
        self.plan_of: dict[int, ia.Node] = {}
        self.moved: dict[tuple[int, Dims, Layout], ia.Node] = {}
        self.versions: dict[int, list[ia.Node]] = {}
        """For each relation the complete versions from which readers take their tiles."""

    def _cells(self, node: EinSum) -> Cells:
        """The cells of an operation, by its own labels."""
        labels = tuple(a.label for a in node.axes if a.define is None)
        return replace(self.placed.choices[id(node)].cells, labels=labels)

    def plans(self) -> tuple[ia.Node, ...]:
        """The plan of each root."""
        for node in walk(*self.roots):
            if isinstance(node, EinSum):
                self.plan_of[id(node)] = self._operation(node)
            elif node.settled:
                dims, layout = _stored(lying(node, self.sites), node.schema)
                self.plan_of[id(node)] = ia.Scan(node, dims, layout, self.sites)
        for root in self.roots:
            if id(root) not in self.plan_of:  # a tensor without fixed sites
                assert isinstance(root, Input)
                whole = tuple(Dim.of(np.array([0, k.extent]), ()) for k in root.schema.keys)
                scan = ia.Scan(root, whole, everywhere(self.sites), self.sites)
                self.plan_of[id(root)] = scan
        return tuple(self.plan_of[id(root)] for root in self.roots)

    def _operation(self, node: EinSum) -> ia.Node:
        lowered = self.lowered[id(node)]
        then = None
        if isinstance(lowered, tra.Transform):
            then, lowered = lowered, lowered.source
        merge = lowered if isinstance(lowered, tra.Aggregate) else None
        join = lowered.source if isinstance(lowered, tra.Aggregate) else lowered
        assert isinstance(join, tra.Join)
        assert join.domain is not None
        plan = self._join(node, join)
        if merge is not None:
            plan = ia.LocalAggregate(plan, merge.group_by, merge.merge)
        completion = self.placed.completions.get(id(node))
        if completion is not None:
            dims, layout = _stored(completion.tiles, node.schema)
            reductions = merge.merge if merge is not None else ("sum",) * len(node.outputs)
            moved = ia.Repartition(plan, dims, layout)
            every = tuple(range(len(moved.schema.blocks.bounds)))
            plan = ia.LocalAggregate(moved, every, reductions)
        return plan if then is None else ia.LocalMap(plan, kernels=(then.kernel,))

    def _join(self, node: EinSum, join: tra.Join) -> ia.Node:
        choice = self.placed.choices[id(node)]
        assert join.domain is not None
        labels = [label for label, _ in join.domain]
        mesh = _mesh(self._cells(node), labels)
        copies: Entry = Replicate()
        if choice.partial is not None and choice.partial.along == (-1,):
            copies = Partial()
        sources = [
            self._operand(o, source, places, mesh, copies)
            for o, source, places in zip(node.operands, join.sources, join.keys, strict=True)
        ]
        kernel = join.kernel
        if not sources:  # every site can compute what reads nothing
            nothing = Input("nothing", Schema((), ()))
            kernel = replace(kernel, operands=(Operand(nothing, ()),))
            sources.append(ia.Scan(nothing, (), everywhere(self.sites), self.sites))
        layout = Layout(mesh, _entries(mesh, range(len(labels)), copies))
        return ia.LocalJoin(
            tuple(sources), join.keys or ((),), (kernel,), domain=join.domain, layout=layout
        )

    def _operand(
        self,
        operand: Operand,
        source: tra.Node,
        places: tuple[int, ...],
        mesh: Mesh,
        copies: Entry,
    ) -> ia.Node:
        """An operand at the cells that read it."""
        dims = source.schema.dims
        layout = Layout(mesh, _entries(mesh, places, copies))
        base = self.plan_of.get(id(operand.source))
        if base is None:
            assert isinstance(operand.source, Input)
            return ia.Scan(operand.source, dims, layout, self.sites)
        schema = base.schema
        if schema.blocks.dims == dims and (schema.parts is not None or schema.layout == layout):
            return base
        key = (id(base), dims, layout)
        if key not in self.moved:
            versions = self.versions.setdefault(id(base), [base])
            moves = [ia.Repartition(version, dims, layout) for version in versions]
            moved = self.moved[key] = min(moves, key=ia.sends)  # the first one among equals
            if moved.schema.blocks.covers(schema.blocks):
                versions.append(moved)
        return self.moved[key]


def _entries(mesh: Mesh, places: Sequence[int], copies: Entry) -> tuple[Entry, ...]:
    """The law of a relation at cells; mesh axis n is along key n of the cells.

    Args:
        mesh: The mesh of the cells, possibly with a last axis of copies.
        places: For each key of the relation the key of the cells.
        copies: The entry of the axis of copies.
    """
    own = {place: n for n, place in enumerate(places)}
    return tuple(
        copies if name == COPIES else Shard(own[n]) if n in own else Replicate()
        for n, (name, _) in enumerate(mesh.axes)
    )


def _parts(node: EinSum, cells: Cells) -> Parts:
    """The boundaries of each cut label, from its least value.

    Raises:
        NotSupportedError: A part has no values, as mesh axes with more points than values make.
    """
    parts: dict[str, tuple[int, ...]] = {}
    for n, label in enumerate(cells.labels):
        if (cells.coordinates[:, n] > 0).any():
            if (cells.boxes[:, n, 0] >= cells.boxes[:, n, 1]).any():
                raise NotSupportedError(
                    f"LEVEL ia cannot show an operation with empty parts of {label}",
                    hint="Shard a label with at least one value for each site along its axes.",
                )
            starts = np.unique(cells.boxes[:, n, 0])
            ends = (*starts.tolist(), int(cells.boxes[:, n, 1].max()))
            lo = node.axis(label).lo
            parts[label] = tuple(x - lo for x in ends)
    return parts


def _mesh(cells: Cells, labels: Sequence[str]) -> Mesh:
    """The mesh of cells: an axis for each cut label, and one of copies."""
    columns = [cells.coordinates[:, cells.labels.index(x)] for x in labels]
    shape = [int(c.max()) + 1 for c in columns]
    if cells.copies > 1:
        columns.append(np.arange(len(cells.sites)) // (len(cells.sites) // cells.copies))
        shape.append(cells.copies)
    sites = np.zeros(shape, np.int64)
    sites[tuple(columns)] = cells.sites if columns else cells.sites[0]
    if len(np.unique(cells.sites)) < len(cells.sites):
        raise NotSupportedError(
            "LEVEL ia cannot show an operation with several cells at one site",
            hint="SET strategy = 'eindecomp' makes at most one cell for each site.",
        )
    names = (*labels, *([COPIES] if cells.copies > 1 else []))
    axes = tuple(zip(names, shape, strict=True))
    return Mesh(axes, tuple(sites.reshape(-1).tolist()))


def _stored(tiles: Tiles, schema: Schema) -> tuple[Dims, Layout]:
    """The axes and the law of the tiles of a relation, which form a grid except for copies."""
    boxes = tiles.boxes[: tiles.once] - np.array([k.lo for k in schema.keys], np.int64)[:, None]
    dims: list[Dim] = []
    columns: list[np.ndarray] = []
    shape: list[int] = []
    for axis in range(boxes.shape[1]):
        intervals, at = np.unique(boxes[:, axis], axis=0, return_inverse=True)
        if len(intervals) > 1:
            dims.append(Dim.of(intervals, (len(shape),)))
            columns.append(at.reshape(-1))
            shape.append(len(intervals))
        else:
            dims.append(Dim.of(intervals[0], ()))
    sites = np.zeros((*shape, tiles.copies), np.int64)
    sites[tuple(columns)] = tiles.sites.reshape(tiles.copies, tiles.once).T
    places = sites.reshape(-1)
    if len(np.unique(places)) < len(places):  # several tiles at one site
        used, at = np.unique(places, return_inverse=True)
        mesh = Mesh.of([len(used)] if len(used) > 1 else [], used.tolist())
        table = Scattered(Table.of(at.reshape(-1)))
        return tuple(dims), Layout(mesh, (table,) if len(used) > 1 else ())
    entries: list[Entry] = [Shard(n) for n in range(len(shape))]
    names = [f"k{n}" for n in range(len(shape))]
    if tiles.copies > 1:
        shape, names = [*shape, tiles.copies], [*names, COPIES]
        entries.append(Replicate())
    mesh = Mesh(tuple(zip(names, shape, strict=True)), tuple(places.tolist()))
    assert prod(shape) == len(places)
    return tuple(dims), Layout(mesh, tuple(entries))
