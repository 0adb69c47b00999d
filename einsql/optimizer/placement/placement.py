"""Places a cut graph on sites: the site of every cell, and the exchanges between them.

Operations are placed in order, each at the sites for which least data move (`choose_grid.py`).
A partial result stays partial until its first reader, which determines its completion. Later
readers reuse the tiles that an exchange has sent to their site. Operations with equal cuts and
equally placed operands, such as the layers of a network, are placed once.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field, replace

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import EinSum, Input, Node, Roots, children, walk
from einsql.ir.einsum.graph_rewriting import consumers, relabel
from einsql.ir.einsum.rings import is_turn
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import COPIES, state_bytes, tuple_bytes
from einsql.ir.tile_copies import keepable
from einsql.optimizer.decomposition import Cut, Decomposition, Pinned
from einsql.optimizer.placement.choose_grid import Choice, Fetch, Source, choose
from einsql.optimizer.placement.completion import Completion, PartialResult, freely
from einsql.optimizer.placement.deferred_reduction import is_linear_in_sums
from einsql.optimizer.placement.layouts import lying
from einsql.optimizer.placement.route_rows import Staying, choose_routed, staying_operands


@dataclass(slots=True, eq=False)
class _Relation:
    """A relation of the graph.

    Attributes:
        source: The relation's placement.
        fetched: The tiles that readers have fetched, by identity.
    """

    source: Source = field(default_factory=Source)
    fetched: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Placed:
    """The placement of a graph's operations, by the identity of the nodes.

    Attributes:
        choices: The placement of each operation.
        completions: The completion of each partial result that was completed.
        bytes_sent: Bytes that cross sites, on dense relations.
    """

    choices: Mapping[int, Choice]
    completions: Mapping[int, Completion]
    bytes_sent: int


@dataclass(slots=True, eq=False)
class KnownChoices:
    """The choices for operations that placements of one graph share.

    A choice is found by the identities of the tiles and of the partial results that it reads, so
    equal ones are one object.
    """

    choices: dict[Hashable, Choice] = field(default_factory=dict)
    tiles: dict[Hashable, Tiles] = field(default_factory=dict)
    partials: dict[Hashable, PartialResult] = field(default_factory=dict)

    def interned(self, tiles: Tiles) -> Tiles:
        """Returns the object of equal tiles."""
        layout = tiles.layout
        known = None if layout is None else (layout.mesh.shape, layout.placed)
        identity = tiles.sites.tobytes(), tiles.boxes.tobytes(), tiles.boxes.shape
        return self.tiles.setdefault((identity, tiles.copies, known), tiles)

    def partial(self, partial: PartialResult) -> PartialResult:
        """Returns the object of an equal partial result."""
        merged = partial.members.tobytes(), partial.members.shape
        key = (id(partial.tiles), merged, partial.width, partial.along)
        return self.partials.setdefault(key, partial)


def place(*roots: Node, cut: Decomposition, known: KnownChoices | None = None) -> Placed:
    """The placement of a cut graph.

    Args:
        roots: The roots of the graph that was cut.
        cut: The cuts of the graph's operations.
        known: The choices of other placements of the same graph; new ones are added.
    """
    known = known or KnownChoices()
    placing = _Placing(roots, cut, {}, known)
    placed = placing.placed()
    if placing.wishes:
        other = _Placing(roots, cut, placing.wishes, known).placed()
        if other.bytes_sent < placed.bytes_sent:
            return other
    return placed


class _Placing:
    """One placement, producers first.

    Attributes:
        granted: Preferred partial results of operations, by the node's identity.
        wishes: Additional preferences for the next placement, which would keep sums partial.
    """

    def __init__(
        self,
        roots: Roots,
        cut: Decomposition,
        granted: Mapping[int, PartialResult],
        known: KnownChoices,
    ) -> None:
        self.granted = granted
        self.wishes: dict[int, PartialResult] = {}
        self.roots = roots
        self.sites = cut.sites
        nodes = [n for n in walk(*roots) if isinstance(n, EinSum)]
        self.cuts = {id(n): c for n, c in zip(nodes, cut.cuts, strict=True)}
        self.readers = consumers(*roots)
        self.staying = staying_operands(roots, self.sites)
        self.nbytes = 0
        self.relations: dict[int, _Relation] = {}
        self.known = known
        self.chosen: dict[int, Choice] = {}
        self.completions: dict[int, Completion] = {}

    def placed(self) -> Placed:
        """Places every operation, and completes the results."""
        for node in walk(*self.roots):
            if isinstance(node, Input):
                self._input(node)
            else:
                self._operation(node)
        for root in self.roots:
            partial = self.relations[id(root)].source.partial
            if partial is not None:
                self._complete(root, freely(partial))
        return Placed(self.chosen, self.completions, self.nbytes)

    def _input(self, node: Input) -> None:
        """Records the fixed sites of a tensor."""
        relation = self.relations[id(node)] = _Relation()
        if node.settled:
            relation.source = Source((self.known.interned(lying(node, self.sites)),))

    def _operation(self, node: EinSum) -> None:
        cut = self.cuts[id(node)]
        read = [self.relations[id(o.source)] for o in node.operands]
        wish = self.granted.get(id(node))
        if wish is not None:
            wish = self.known.partial(replace(wish, tiles=self.known.interned(wish.tiles)))
        pinned = cut.pinned
        recut = not node.hint if pinned is None else pinned.recut
        is_root = any(node is root for root in self.roots)
        free = is_root and recut and not node.grid and cut.copies == 1
        staying = self.staying.get(id(node))
        key = _signature(node, cut, read, staying), id(wish), free
        choice = self.known.choices.get(key)
        if choice is None:
            sources = [r.source for r in read]
            if staying is not None:
                choice = choose_routed(node, cut, staying, sources, self.known.interned)
            else:
                choice = choose(
                    node, cut, self.sites, sources, self.known.interned, wish, free=free
                )
            self.known.choices[key] = choice
        self.chosen[id(node)] = choice
        if len(choice.closing) > 1 and is_linear_in_sums(node) and staying is None:
            self._wish(node, read)
        for n, way in choice.closing.items():
            if read[n].source.partial is not None:
                self._complete(node.operands[n].source, way)
        for o, relation, fetch in zip(node.operands, read, choice.fetches, strict=True):
            self._fetch(o.source, relation, fetch)
        partial = None if choice.partial is None else self.known.partial(choice.partial)
        versions = (choice.tiles,) if partial is None else ()
        source = Source(versions, partial, shared=self.readers[id(node)] > 1)
        self.relations[id(node)] = _Relation(source)

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

    def _complete(self, node: Node, way: Completion) -> None:
        self.completions[id(node)] = way
        self.nbytes += way.nbytes
        self.relations[id(node)].source = Source((self.known.interned(way.tiles),))

    def _fetch(self, node: Node, relation: _Relation, fetch: Fetch) -> None:
        """Counts the moved bytes; later readers take the tiles from the sites that have them."""
        partial = relation.source.partial is not None  # read unmerged, completed later
        if partial or id(fetch.need) in relation.fetched:
            return
        relation.fetched.add(id(fetch.need))
        if fetch.nbytes:
            relation.source = Source((*relation.source.versions, fetch.need))
            if not (isinstance(node, Input) and is_kept(node, fetch.need)):
                self.nbytes += fetch.nbytes


def is_kept(tensor: Input, need: Tiles) -> bool:
    """True if sites keep a stored tensor in these tiles for later runs."""
    return tensor.constant and int(need.volumes.sum()) <= keepable(tensor.schema.size)


def _pinned_places(node: EinSum, pinned: Pinned) -> Hashable:
    """The grid and the sites of a plan file, with labels by position."""
    at = {COPIES: -1} | {a.label: n for n, a in enumerate(node.axes)}
    mesh = None if pinned.mesh is None else tuple(at[x] for x in pinned.mesh)
    return mesh, pinned.sites


def _signature(node: EinSum, cut: Cut, read: list[_Relation], staying: Staying | None) -> Hashable:
    """A key of all inputs of the choice for an operation, with labels by position."""
    at = {a.label: str(n) for n, a in enumerate(node.axes)}
    first: dict[int, int] = {}
    return (
        tuple((a.lo, a.hi, a.define and relabel(a.define, at)) for a in node.axes),
        tuple(at[k] for k in node.keys),
        tuple(cut.parts[a.label] for a in node.axes if a.define is None),
        tuple((at[x], id(b.pattern), b.axis, b.lo) for x, b in cut.balances),
        cut.copies,
        None
        if staying is None
        else (
            at.get(staying.routing.label),
            staying.parts,
            tuple(at[x] for x in staying.routing.rows),
        ),
        tuple((at.get(g.label), g.size, g.depth) for g in node.grid),
        None if cut.pinned is None else _pinned_places(node, cut.pinned),
        node.is_elementwise,
        is_turn(node),
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
