"""Places a cut graph on sites: the site of every cell, and the exchanges between them.

Operations are placed in order, each at the sites for which least data move (`choose_grid.py`).
A partial result stays partial until its first reader, which determines its completion. Later
readers reuse the tiles that an exchange has sent to their site. Operations with equal cuts and
equally placed operands, such as the layers of a network, are placed once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from einsql.ir.einsum.graph import (
    EinSum,
    Input,
    Node,
    Roots,
    children,
    consumers,
    keepable,
    relabel,
    walk,
)
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import (
    COPIES,
    Collective,
    Complete,
    Exchange,
    Load,
    Local,
    Program,
    Step,
    state_bytes,
    tuple_bytes,
)
from einsql.optimizer.decomposition import Cut, Decomposition, Pinned
from einsql.optimizer.placement.choose_grid import Choice, Fetch, Source, choose
from einsql.optimizer.placement.completion import Completion, PartialResult, freely
from einsql.optimizer.placement.deferred_reduction import is_linear_in_sums
from einsql.optimizer.placement.layouts import lying, spread

_NOT_LOADED = -1
"""In place of a step: no operation has read a stored tensor at its sites yet."""


@dataclass(slots=True)
class _Relation:
    """A relation of the graph with its steps in the program.

    Attributes:
        source: The relation's placement.
        steps: The step that produces each version, or the partial result.
        fetched: The exchange of needed tiles, by the identity of the tiles.
    """

    source: Source = field(default_factory=Source)
    steps: list[int] = field(default_factory=list)
    fetched: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Placed:
    """The placement of a graph's operations, by the identity of the nodes.

    Attributes:
        choices: The placement of each operation.
        completions: The completion of each partial result that was completed.
    """

    choices: Mapping[int, Choice]
    completions: Mapping[int, Completion]


def place(*roots: Node, cut: Decomposition) -> Program:
    """The program of a cut graph.

    Args:
        roots: The roots of the graph that was cut.
        cut: The cuts of the graph's operations.
    """
    return placed(*roots, cut=cut)[0]


def placed(*roots: Node, cut: Decomposition) -> tuple[Program, Placed]:
    """The program of a cut graph, and the placement of its operations; arguments as of `place`."""
    placing = _Placing(roots, cut, {})
    program = placing.program()
    if placing.wishes:
        again = _Placing(roots, cut, placing.wishes)
        other = again.program()
        if other.bytes_sent < program.bytes_sent:
            placing, program = again, other
    return program, Placed(placing.chosen, placing.completions)


class _Placing:
    """One placement, producers first.

    Attributes:
        granted: Preferred partial results of operations, by the node's identity.
        wishes: Additional preferences for the next placement, which would keep sums partial.
    """

    def __init__(
        self, roots: Roots, cut: Decomposition, granted: Mapping[int, PartialResult]
    ) -> None:
        self.granted = granted
        self.wishes: dict[int, PartialResult] = {}
        self.roots = roots
        self.sites = cut.sites
        nodes = [n for n in walk(*roots) if isinstance(n, EinSum)]
        self.cuts = {id(n): c for n, c in zip(nodes, cut.cuts, strict=True)}
        self.readers = consumers(*roots)
        self.steps: list[Step] = []
        self.relations: dict[int, _Relation] = {}
        self.choices: dict[Hashable, Choice] = {}
        self.chosen: dict[int, Choice] = {}
        self.completions: dict[int, Completion] = {}
        self.tiles: dict[Hashable, Tiles] = {}
        self.partials: dict[Hashable, PartialResult] = {}

    def program(self) -> Program:
        """Places every relation."""
        for node in walk(*self.roots):
            if isinstance(node, Input):
                self._input(node)
            else:
                self._operation(node)
        roots = tuple(map(self._result, self.roots))
        return Program(self.sites, tuple(self.steps), roots)

    def _result(self, root: Node) -> int:
        relation = self.relations[id(root)]
        if relation.source.partial is not None:
            way = self.completions[id(root)] = freely(relation.source.partial)
            self._complete(relation, way)
        if not relation.steps:  # a stored tensor without a declared cut
            assert isinstance(root, Input)
            tiles = spread([(k.lo, k.hi) for k in root.schema.keys], self.sites)
            relation.steps = [self._add(Load(root, tiles))]
        return self._version(root, relation, 0)

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def _input(self, node: Input) -> None:
        """Records the fixed sites of a tensor, from which it is loaded when it is first read."""
        relation = self.relations[id(node)] = _Relation()
        if node.settled:
            relation.source = Source((self._interned(lying(node, self.sites)),))
            relation.steps = [_NOT_LOADED]

    def _operation(self, node: EinSum) -> None:
        cut = self.cuts[id(node)]
        read = [self.relations[id(o.source)] for o in node.operands]
        wish = self.granted.get(id(node))
        if wish is not None:
            wish = self._partial(replace(wish, tiles=self._interned(wish.tiles)))
        pinned = cut.pinned
        recut = not node.hint if pinned is None else pinned.recut
        is_root = any(node is root for root in self.roots)
        free = is_root and recut and not node.grid and cut.copies == 1
        key = _signature(node, cut, read), id(wish), free
        choice = self.choices.get(key)
        if choice is None:
            sources = [r.source for r in read]
            choice = choose(node, cut, self.sites, sources, self._interned, wish, free=free)
            self.choices[key] = choice
        self.chosen[id(node)] = choice
        if len(choice.closing) > 1 and is_linear_in_sums(node):
            self._wish(node, read)
        for n, way in choice.closing.items():
            if read[n].source.partial is not None:
                self.completions[id(node.operands[n].source)] = way
                self._complete(read[n], way)
        labels = (a.label for a in node.axes if a.define is None)
        names = dict(zip(choice.cells.labels, labels, strict=True)) | {COPIES: COPIES}
        fetched = [
            self._fetch(o.source, r, fetch, names)
            for o, r, fetch in zip(node.operands, read, choice.fetches, strict=True)
        ]
        self._local(node, choice, fetched, names)

    def _wish(self, node: EinSum, read: Sequence[_Relation]) -> None:
        """Records the preference to place operands without fixed sites like another operand."""
        free = [
            isinstance(o.source, EinSum)
            and all(isinstance(s, Input) and not s.settled for s in children(o.source))
            for o in node.operands
        ]
        model = free.index(False) if False in free else 0
        partial = read[model].source.partial
        if partial is None or any(r.source.shared for r in read):
            return
        keys = node.operands[model].labels
        for o, moves in zip(node.operands, free, strict=True):
            if moves and o is not node.operands[model] and sorted(o.labels) == sorted(keys):
                boxes = partial.tiles.boxes[:, [keys.index(x) for x in o.labels]]
                tiles = Tiles(partial.tiles.sites, boxes)
                self.wishes[id(o.source)] = replace(partial, tiles=tiles)

    def _complete(self, relation: _Relation, way: Completion) -> None:
        (partial,) = relation.steps
        local, waiting = self.steps[partial], relation.source.partial
        assert isinstance(local, Local)
        assert waiting is not None
        along = tuple(COPIES if n < 0 else local.labels[n] for n in waiting.along)
        merge = Collective(way.collective, along, way.nbytes)
        relation.steps = [self._add(Complete(partial, local.node, way.tiles, way.parts, (merge,)))]
        relation.source = Source((self._interned(way.tiles),))

    def _fetch(
        self, node: Node, relation: _Relation, fetch: Fetch, names: Mapping[str, str]
    ) -> tuple[int, np.ndarray]:
        """The step that produces the needed tiles, and the tile that each cell reads.

        Equal tiles are fetched once. Tiles that are complete at their sites are read in place.
        """
        known = relation.fetched.get(id(fetch.need))
        if known is not None:
            return known, fetch.pick
        if relation.source.partial is not None:  # read unmerged, completed later
            return relation.steps[0], fetch.pick
        version = _in_place(relation.source, fetch)
        if version is not None:
            return self._version(node, relation, version), fetch.at_hand[fetch.pick, 1]
        nbytes = sum(c.nbytes for c in fetch.collectives)
        if not fetch.used or (nbytes and _is_kept(node, fetch.need)):
            assert isinstance(node, Input)
            step = self._add(Load(node, fetch.need))
        else:
            sources = tuple(self._version(node, relation, v) for v in fetch.used)
            moves = tuple(
                replace(c, along=tuple(names[x] for x in c.along if x)) for c in fetch.collectives
            )
            exchange = Exchange(sources, fetch.at_hand, fetch.need, moves, fetch.completes)
            step = self._add(exchange)
        if nbytes:
            relation.source = Source((*relation.source.versions, fetch.need))
            relation.steps.append(step)
        relation.fetched[id(fetch.need)] = step
        return step, fetch.pick

    def _version(self, node: Node, relation: _Relation, version: int) -> int:
        """The step that produces a version of a relation."""
        if relation.steps[version] == _NOT_LOADED:
            assert isinstance(node, Input)
            relation.steps[version] = self._add(Load(node, relation.source.versions[version]))
        return relation.steps[version]

    def _local(
        self,
        node: EinSum,
        choice: Choice,
        fetched: Sequence[tuple[int, np.ndarray]],
        names: Mapping[str, str],
    ) -> None:
        cells = choice.cells
        labels = tuple(names[x] for x in cells.labels)
        grid = tuple((names[x], parts) for x, parts in cells.grid)
        operands, picks = tuple(n for n, _ in fetched), tuple(pick for _, pick in fetched)
        reads = operands, picks, choice.tiles, choice.partial is not None
        step = self._add(Local(node, labels, grid, cells.sites, cells.boxes, *reads))
        partial = None if choice.partial is None else self._partial(choice.partial)
        versions = (choice.tiles,) if partial is None else ()
        source = Source(versions, partial, shared=self.readers[id(node)] > 1)
        self.relations[id(node)] = _Relation(source, [step])

    def _interned(self, tiles: Tiles) -> Tiles:
        layout = tiles.layout
        known = None if layout is None else (layout.mesh.shape, layout.placed)
        identity = tiles.sites.tobytes(), tiles.boxes.tobytes(), tiles.boxes.shape
        return self.tiles.setdefault((identity, tiles.copies, known), tiles)

    def _partial(self, partial: PartialResult) -> PartialResult:
        merged = partial.members.tobytes(), partial.members.shape
        key = (id(partial.tiles), merged, partial.width, partial.along)
        return self.partials.setdefault(key, partial)


def _in_place(source: Source, fetch: Fetch) -> int | None:
    """The version of a relation of which cells read complete tiles at their sites, if one is."""
    if len(fetch.used) != 1 or (fetch.at_hand[:, 0] != 0).any():
        return None
    (version,) = fetch.used
    whole = source.versions[version].boxes[fetch.at_hand[:, 1]]
    return version if (fetch.need.boxes == whole).all() else None


def _is_kept(node: Node, need: Tiles) -> bool:
    """Whether sites keep a stored tensor in these tiles for later runs."""
    if not isinstance(node, Input) or not node.constant:
        return False
    return int(need.volumes.sum()) <= keepable(node.schema.size)


def _pinned_places(node: EinSum, pinned: Pinned) -> Hashable:
    """The grid and the sites of a plan file, with labels by position."""
    at = {COPIES: -1} | {a.label: n for n, a in enumerate(node.axes)}
    mesh = None if pinned.mesh is None else tuple(at[x] for x in pinned.mesh)
    return mesh, pinned.sites


def _signature(node: EinSum, cut: Cut, read: list[_Relation]) -> Hashable:
    """A key of all inputs of the choice for an operation, with labels by position."""
    at = {a.label: str(n) for n, a in enumerate(node.axes)}
    first: dict[int, int] = {}
    return (
        tuple((a.lo, a.hi, a.define and relabel(a.define, at)) for a in node.axes),
        tuple(at[k] for k in node.keys),
        tuple(cut.parts[a.label] for a in node.axes if a.define is None),
        cut.copies,
        tuple((at.get(g.label), g.size, g.depth) for g in node.grid),
        None if cut.pinned is None else _pinned_places(node, cut.pinned),
        node.is_elementwise,
        is_linear_in_sums(node),
        state_bytes(node),
        tuple(
            (
                tuple(at[x] for x in o.labels),
                tuple_bytes(o.source),
                first.setdefault(id(r), n),
                tuple(map(id, r.source.versions)),
                id(r.source.partial),
                r.source.shared,
            )
            for n, (o, r) in enumerate(zip(node.operands, read, strict=True))
        ),
    )
