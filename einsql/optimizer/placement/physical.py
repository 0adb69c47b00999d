"""The plan of the implementation algebra of a placed graph.

The tensor-relational plan has the cuts that placement chose. Its operations become local ones,
whose laws are the grids of the cells. A repartition moves an operand to the cells that read it,
from all versions of the relation that sites store. A merge of partial results becomes a local
aggregation, a repartition to the sites of the completion, and a second aggregation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod

import numpy as np

from einsql.core.mappings import memoized
from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.ir.einsum.graph import EinSum, Input, Node, Operand, walk
from einsql.ir.ia import plan as ia
from einsql.ir.ia import typing
from einsql.ir.ia.placement import everywhere
from einsql.ir.ia.tiles import missing, tiles_of
from einsql.ir.layout import Entry, Layout, Mesh, Partial, Replicate, Shard, Single, Tiles
from einsql.ir.remembered import recalled, remembering
from einsql.ir.spmd.program import COPIES
from einsql.ir.tra import plan as tra
from einsql.ir.tra.block_schema import Dim, Dims
from einsql.optimizer.decomposition import Decomposition
from einsql.optimizer.placement.choose_grid import Choice
from einsql.optimizer.placement.layouts import Cells, entries, grid_layout, lying, spread
from einsql.optimizer.placement.placement import Placed, is_kept, place
from einsql.optimizer.placement.route_rows import Staying, staying_operands
from einsql.optimizer.placement.traffic import stored_exchanged
from einsql.optimizer.tra.lower import Parts, lowered_nodes

_NOTHING = Input("nothing", Schema((), ()))
"""The operand of a join that reads nothing."""


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """The plan of a graph in the implementation algebra.

    Attributes:
        roots: The relation of each root.
        sites: The number of sites.
        operations: The operation of the graph that the kernel of a join implements, by the
            kernel's identity. A kernel also computes the state of partial results.
    """

    roots: tuple[ia.Node, ...]
    sites: int
    operations: Mapping[int, EinSum] = field(repr=False)

    @property
    def bytes_sent(self) -> int:
        """Bytes that cross sites when the plan runs."""
        return sum(map(ia.sends, ia.walk(*self.roots)))


def physical_plan(*roots: Node, cut: Decomposition, placed: Placed | None = None) -> PhysicalPlan:
    """The plan of the implementation algebra of a cut graph.

    Args:
        roots: The roots of the graph that was cut.
        cut: The cuts of the graph's operations.
        placed: The placement of the operations; None to place them.
    """
    if placed is None:
        placed = place(*roots, cut=cut)
    with remembering():
        building = _Building(roots, placed, cut.sites)
        return PhysicalPlan(building.plans(), cut.sites, building.operations)


@dataclass(frozen=True, slots=True, eq=False)
class _Grid:
    """The cells of an operation as a law.

    Attributes:
        cut: The positions of the cut labels among the free ones, those of the result first.
        boundaries: The boundaries of the intervals of each, as positions from the least value.
        layout: The sites of the cells; a mesh axis shards a cut label by its number in `cut`.
            Its names are labels of the first operation with these cells.
    """

    cut: tuple[int, ...]
    boundaries: tuple[tuple[int, ...], ...]
    layout: Layout


class _Building:
    """The plans of the graph's nodes, producers first."""

    def __init__(self, roots: Sequence[Node], placed: Placed, sites: int) -> None:
        self.roots, self.placed, self.sites = roots, placed, sites
        self.operations: dict[int, EinSum] = {}
        self._staying_of = staying_operands(tuple(roots), sites)
        self._grids: dict[int, _Grid] = {}
        self._stored: dict[tuple[int, tuple[int, ...]], tuple[Tiles, tuple[Dims, Layout]]] = {}
        cuts = {n: self._parts(n) for n in walk(*roots) if isinstance(n, EinSum)}
        self._lowered = lowered_nodes(roots, cuts)
        self._plan_of: dict[int, ia.Node] = {}
        self._moved: dict[tuple[int, Dims, Layout], ia.Node] = {}
        self._versions: dict[int, list[ia.Node]] = {}
        """For each relation the versions from which readers take their tiles."""

    def plans(self) -> tuple[ia.Node, ...]:
        """The plan of each root."""
        for node in walk(*self.roots):
            if isinstance(node, EinSum):
                self._plan_of[id(node)] = self._operation(node)
            elif node.settled:
                dims, layout = self._law(lying(node, self.sites), node.schema)
                self._plan_of[id(node)] = ia.Scan(node, dims, layout, self.sites)
        return tuple(map(self._root, self.roots))

    def _root(self, root: Node) -> ia.Node:
        if id(root) not in self._plan_of:  # a tensor without fixed sites
            assert isinstance(root, Input)
            tiles = spread([(k.lo, k.hi) for k in root.schema.keys], self.sites)
            dims, layout = self._law(tiles, root.schema)
            self._plan_of[id(root)] = ia.Scan(root, dims, layout, self.sites)
        return self._plan_of[id(root)]

    def _choice(self, node: EinSum) -> Choice:
        return self.placed.choices[id(node)]

    def _grid(self, node: EinSum) -> _Grid:
        choice = self._choice(node)
        return memoized(self._grids, id(choice), lambda: _grid(node, choice))

    def _parts(self, node: EinSum) -> Parts:
        """The boundaries of each cut label."""
        grid, labels = self._grid(node), _free(node)
        cuts = zip(grid.cut, grid.boundaries, strict=True)
        return {labels[n]: boundaries for n, boundaries in cuts}

    def _law(self, tiles: Tiles, schema: Schema) -> tuple[Dims, Layout]:
        lows = tuple(k.lo for k in schema.keys)
        # The value has the tiles too, so that no others get their identity.
        known = memoized(self._stored, (id(tiles), lows), lambda: (tiles, _law(tiles, lows)))
        return known[1]

    def _operation(self, node: EinSum) -> ia.Node:
        lowered = self._lowered[id(node)]
        then = None
        if isinstance(lowered, tra.Transform):
            then, lowered = lowered, lowered.source
        merge = lowered if isinstance(lowered, tra.Aggregate) else None
        join = lowered.source if isinstance(lowered, tra.Aggregate) else lowered
        assert isinstance(join, tra.Join)
        plan = self._join(node, join)
        if merge is not None:
            plan = ia.LocalAggregate(plan, merge.group_by, merge.merge)
        completion = self.placed.completions.get(id(node))
        if completion is not None:
            dims, layout = self._law(completion.tiles, node.schema)
            nbytes = completion.nbytes if node.sparse else None
            moved = ia.Repartition(plan, dims, layout, nbytes=nbytes)
            assert moved.schema.merge is not None
            every = tuple(range(len(moved.schema.blocks.bounds)))
            plan = ia.LocalAggregate(moved, every, moved.schema.merge)
        return plan if then is None else ia.LocalMap(plan, kernels=(then.kernel,))

    def _join(self, node: EinSum, join: tra.Join) -> ia.Node:
        assert join.domain is not None
        layout = _named(self._grid(node).layout, self._choice(node).cells, _free(node))
        staying = self._staying_of.get(id(node))
        stay = [] if staying is None else staying.numbers(node)
        pairs = [
            self._operand(o, source, places, layout)
            if staying is None or n not in stay
            else (self._staying(node, o, staying), ())
            for n, (o, source, places) in enumerate(
                zip(node.operands, join.sources, join.keys, strict=True)
            )
        ]
        kernel = join.kernel
        if not pairs:  # every site can compute what reads nothing
            kernel = replace(kernel, operands=(Operand(_NOTHING, ()),))
            pairs = [(ia.Scan(_NOTHING, (), everywhere(self.sites), self.sites), ())]
        self.operations[id(kernel)] = node
        sources, keys = tuple(s for s, _ in pairs), tuple(k for _, k in pairs)
        return ia.LocalJoin(sources, keys, (kernel,), domain=join.domain, layout=layout)

    def _operand(
        self, operand: Operand, source: tra.Node, places: tuple[int, ...], cells: Layout
    ) -> tuple[ia.Node, tuple[int, ...]]:
        """An operand at the cells that read it, and the key of the cells of each of its keys."""
        blocks = source.schema
        keys, dims = recalled(("by cell", blocks, places), lambda: _by_cell(blocks.dims, places))
        own = {k: n for n, k in enumerate(keys)}
        layout = Layout(cells.mesh, tuple(_read(e, own) for e in cells.placed))
        base = self._plan_of.get(id(operand.source))
        if base is None:
            assert isinstance(operand.source, Input)
            return self._scan(operand.source, dims, layout), keys
        if base.schema.parts is not None or (
            base.schema.blocks.dims == dims and _alike(base.schema.layout, layout)
        ):
            return base, keys
        moved = memoized(
            self._moved,
            (id(base), dims, layout),
            lambda: self._moves(base, dims, layout, operand.source),
        )
        return moved, keys

    def _staying(self, node: EinSum, operand: Operand, staying: Staying) -> ia.Node:
        """An operand at the sites of the blocks that rows choose."""
        dims, layout = staying.law(node, operand)
        base = self._plan_of.get(id(operand.source))
        if base is None:
            assert isinstance(operand.source, Input)
            there = self._scan(operand.source, dims, layout)
        elif base.schema.blocks.dims == dims and _alike(base.schema.layout, layout):
            there = base
        else:
            there = memoized(
                self._moved,
                (id(base), dims, layout),
                lambda: self._moves(base, dims, layout, operand.source),
            )
        return ia.Routed(there) if staying.routing.label in operand.labels else there

    def _scan(self, tensor: Input, dims: Dims, layout: Layout) -> ia.Node:
        return memoized(
            self._moved,
            (id(tensor), dims, layout),
            lambda: ia.Scan(tensor, dims, layout, self.sites),
        )

    def _moves(self, base: ia.Node, dims: Dims, layout: Layout, relation: Node) -> ia.Node:
        """A relation at the cells that read it, from the versions that sites store."""
        versions = self._versions.setdefault(id(base), [base])
        target = typing.recut(base.schema, dims, layout)
        elements, at_hand = missing(target, tuple(v.schema for v in versions))
        tensor = base.tensor if isinstance(base, ia.Scan) else None
        if elements and tensor is not None and is_kept(tensor, tiles_of(target)):
            moved = self._scan(tensor, dims, layout)
        else:
            used = set(at_hand[:, 0].tolist()) - {0, -1}
            also = tuple(versions[n] for n in sorted(used))
            nbytes = None
            if relation.sparse:
                tiles, absent = (tiles_of(base.schema), tiles_of(target)), at_hand[:, 0] < 0
                nbytes = int(stored_exchanged(relation, *tiles, absent, self.sites).sent.sum())
            moved = ia.Repartition(base, dims, layout, also, nbytes)
        if elements:
            versions.append(moved)
        return moved


def _free(node: EinSum) -> tuple[str, ...]:
    """The free labels of an operation."""
    return tuple(a.label for a in node.axes if a.define is None)


def _grid(node: EinSum, choice: Choice) -> _Grid:
    """The law of the cells of an operation, with the labels of the cells as names."""
    cells, free = choice.cells, _free(node)
    position = {label: node.keys.index(label) for label in free if label in node.keys}
    cut = [n for n in range(len(free)) if (cells.coordinates[:, n] > 0).any()]
    cut.sort(key=lambda n: position.get(free[n], len(node.keys)))
    boundaries = []
    for n in cut:
        starts = np.empty(int(cells.coordinates[:, n].max()) + 2, np.int64)
        starts[cells.coordinates[:, n]] = cells.boxes[:, n, 0]
        starts[-1] = cells.boxes[:, n, 1].max()
        boundaries.append(tuple((starts - node.axis(free[n]).lo).tolist()))
    number = {cells.labels[n]: k for k, n in enumerate(cut)}
    merges = choice.partial is not None and choice.partial.along == (-1,)
    copies: Entry = Partial() if merges else Replicate()

    def entry(label: str, depth: int) -> Entry:
        return Shard(number[label], depth) if label in number else copies

    points = _points(cells)
    layout = grid_layout(cells, entry)
    if layout is None or not np.array_equal(_first_sites(layout)[points], cells.sites):
        sites = np.empty(len(cells.sites), np.int64)
        sites[points] = cells.sites
        layout = Layout(Mesh(cells.grid, tuple(sites.tolist())), entries(cells, entry))
    return _Grid(tuple(cut), tuple(boundaries), layout)


def _first_sites(layout: Layout) -> np.ndarray:
    """The sites of a mesh at the first coordinate of each axis that is Single."""
    at = layout.mesh.points.reshape(layout.mesh.shape)
    first = tuple(0 if isinstance(e, Single) else slice(None) for e in layout.placed)
    return np.asarray(at[first]).reshape(-1)


def _points(cells: Cells) -> np.ndarray:
    """The point of each cell in the grid, int64 (cells,)."""
    names = [x for x, _ in cells.grid]
    repeated = names.count(COPIES) > (cells.copies > 1)
    if repeated or len(set(names)) < len(names):
        return np.argsort(np.argsort(cells.sites))
    copy = np.arange(len(cells.sites)) // (len(cells.sites) // cells.copies)
    points = np.zeros(len(cells.sites), np.int64)  # all distinct
    for name, size in cells.grid:
        at = copy if name == COPIES else cells.coordinates[:, cells.labels.index(name)]
        points = points * size + at
    return points


def _named(layout: Layout, cells: Cells, labels: tuple[str, ...]) -> Layout:
    """The layout with an operation's labels as names of mesh axes."""
    if cells.labels == labels:
        return layout
    to = dict(zip(cells.labels, labels, strict=True))
    axes = tuple((to.get(x, x), size) for x, size in layout.mesh.axes)
    return replace(layout, mesh=replace(layout.mesh, axes=axes))


def _by_cell(dims: Dims, places: Sequence[int]) -> tuple[tuple[int, ...], Dims]:
    """The keys of cells that cut the axes of an operand, and the axes over these keys."""
    axes = [d.renumbered(places) for d in dims]
    keys = tuple(sorted({k for d in axes for k in d.keys}))
    to = [keys.index(k) if k in keys else 0 for k in range(1 + max(keys, default=-1))]
    return keys, tuple(d.renumbered(to) for d in axes)


def _read(entry: Entry, own: Mapping[int, int]) -> Entry:
    """The entry of an operand where the cells have an entry; `own` has its key of a cell's key."""
    if isinstance(entry, Shard):
        return replace(entry, axis=own[entry.axis]) if entry.axis in own else Replicate()
    return entry


def _alike(a: Layout, b: Layout) -> bool:
    """True if two layouts differ in the names of mesh axes at most."""
    return a.placed == b.placed and (a.mesh.shape, a.mesh.sites) == (b.mesh.shape, b.mesh.sites)


def _law(tiles: Tiles, lows: Sequence[int]) -> tuple[Dims, Layout]:
    """The axes and the law of the tiles of a relation.

    A key cuts an axis where tiles form a grid. A single key numbers tiles that form none.
    """
    boxes = tiles.boxes[: tiles.once] - np.array(lows, np.int64)[:, None]
    if tiles.layout is not None:
        dims, at = _intervals(boxes)
        layout = _over_keys(tiles.layout, {axis: int(n.max()) + 1 for axis, n in at.items()})
        if layout is not None:
            return dims, layout
    where = tiles.sites.reshape(tiles.copies, tiles.once)
    stored = np.flatnonzero((boxes[:, :, 0] < boxes[:, :, 1]).all(axis=1))
    if len(stored) < len(boxes):  # an empty tile is at no site
        stored = stored if len(stored) else np.zeros(1, np.int64)
        boxes, where = boxes[stored], where[:, stored]
    dims, at = _intervals(boxes)
    points = tuple(at.values())
    shape = [int(n.max()) + 1 for n in points]
    if prod(shape) != len(boxes):
        dims = tuple(Dim.of(boxes[:, axis], (0,)) for axis in range(boxes.shape[1]))
        points, shape = (np.arange(len(boxes)),), [len(boxes)]
    grid = np.zeros((*shape, len(where)), np.int64)
    grid[points] = where.T
    placed: list[Entry] = [Shard(n) for n in range(len(shape))]
    names = [f"k{n}" for n in range(len(shape))]
    if len(where) > 1:
        shape, names = [*shape, len(where)], [*names, COPIES]
        placed.append(Replicate())
    mesh = Mesh(tuple(zip(names, shape, strict=True)), tuple(grid.reshape(-1).tolist()))
    return dims, Layout(mesh, tuple(placed))


def _intervals(boxes: np.ndarray) -> tuple[Dims, dict[int, np.ndarray]]:
    """Axes with a key for each axis that is cut, and the number of each box's interval there."""
    dims: list[Dim] = []
    at: dict[int, np.ndarray] = {}
    for axis in range(boxes.shape[1]):
        intervals, number = np.unique(boxes[:, axis], axis=0, return_inverse=True)
        cut = len(intervals) > 1
        dims.append(Dim.of(intervals if cut else intervals[0], (len(at),) if cut else ()))
        if cut:
            at[axis] = number.reshape(-1)
    return tuple(dims), at


def _over_keys(layout: Layout, cut: Mapping[int, int]) -> Layout | None:
    """The layout of a relation whose keys cut the axes of a tensor with a layout.

    Args:
        layout: The layout of the tensor.
        cut: The number of intervals of each axis that a key cuts, in the order of keys.

    Returns:
        The layout; None if a mesh axis shards an axis whose tiles are not all different.
    """
    key = {axis: n for n, axis in enumerate(cut)}
    axes: list[tuple[str, int]] = []
    placed: list[Entry] = []
    pieces = dict.fromkeys(cut, 1)
    for (name, size), entry in zip(layout.mesh.axes, layout.placed, strict=True):
        if size == 1:
            continue
        if isinstance(entry, Shard):
            if entry.axis not in cut:
                return None
            pieces[entry.axis] *= size
            entry = replace(entry, axis=key[entry.axis])
        axes.append((name, size))
        placed.append(entry)
    return Layout(Mesh(tuple(axes)), tuple(placed)) if pieces == cut else None
