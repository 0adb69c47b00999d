"""Language 4: SPMD programs, which list the steps of every site.

A program is a sequence of steps. A local step runs one EinSum on tiles of the same site. An
exchange sends tiles to the sites that need them (the paper's BCAST and SHUF). A completion
merges partial results (SHUF and local aggregation). A step has the parameters of every site,
so all sites run the same program.

Plans of the implementation algebra (`einsql.ir.ia`) become SPMD programs by
`einsql.optimizer.lowering`. Programs are costed and run, but never rewritten. Their tiles are boxes
of keys. So tiles may overlap, as the halo of a window does, and a step moves all fields of a
relation together. A block under a key is a tile with one key along each leading axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT
from einsql.core.sparse.numbering import index_type, matrix_shape
from einsql.ir.einsum.density import density
from einsql.ir.einsum.graph import EinSum, Input
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.einsum.routing import Routing
from einsql.ir.layout import Tiles

COPIES = "*"
"""The axis of a site grid along which every cell is repeated."""


CollectiveName = Literal[
    "slice",
    "gather",
    "scatter",
    "broadcast",
    "all-gather",
    "all-to-all",
    "halo",
    "shift",
    "reduce",
    "reduce-scatter",
    "all-reduce",
]
"""Names as in MPI; a "slice" sends nothing, a "halo" sends only the margins of tiles, and by a
"shift" every site sends its tile to one other site, as around a ring."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective operation that moves tiles between sites.

    Attributes:
        name: The collective's name in MPI's terms.
        along: The axes of the site grid along which sites communicate.
        nbytes: Bytes that cross sites.
    """

    name: CollectiveName
    along: tuple[str, ...]
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Tiles of a stored tensor, read from storage at no cost.

    Attributes:
        source: The stored tensor.
        tiles: The stored tiles if the cut is declared, else the tiles that the reader needs.
    """

    source: Input
    tiles: Tiles


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The elements of exchanged tiles that sparse operands of the readers join.

    The other elements of a tile are 0, because no point reads them.

    Attributes:
        axis: The axis of the tiles along which elements are selected.
        by: For each needed tile the sparse tiles at its site: their step, number, and the key
            whose values with elements are needed.
        sends: int64 (sites, sites), the bytes that each site sends to each other one, flags of the
            needed elements included, for the elements that were present when it was planned.
    """

    axis: int
    by: tuple[tuple[tuple[int, int, int], ...], ...]
    sends: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Sends tiles of a relation to the sites that need them.

    A needed tile is sliced from a tile that its site already stores, or assembled from the
    tiles of the first source. Each piece comes from the site itself if it stores a copy,
    else from one of the copies.

    Attributes:
        sources: Steps that produce versions of the relation. If tiles are assembled, the
            tiles of the first are complete, and disjoint except for copies.
        at_hand: int64 (tiles, 2), for each needed tile the source (an index into `sources`)
            and the tile from which its site slices it; -1 if it is assembled.
        tiles: The needed tiles and their sites.
        collectives: The collectives in order; empty if every tile is local.
        completes: True if the source is a completion and every site that contributed to
            it receives the result: both steps together are one all-reduce.
        selection: The elements that are sent; None for all of them.
    """

    sources: tuple[int, ...]
    at_hand: np.ndarray
    tiles: Tiles
    collectives: tuple[Collective, ...]
    completes: bool = False
    selection: Selection | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that cross sites."""
        return sum(c.nbytes for c in self.collectives)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The blocks of operands that the rows of a local step choose by a value.

    Attributes:
        routing: How rows choose.
        starts: int64 (blocks,), the first value of each block.
        sites: int64 (blocks,), the site of each block, all distinct.
        tiles: For each operand without rows int64 (blocks,), the tile at the site of each block.
    """

    routing: Routing
    starts: np.ndarray
    sites: np.ndarray
    tiles: Mapping[int, np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class Local:
    """Runs an EinSum once for each cell of its cut domain.

    Attributes:
        node: The operation over the whole domain.
        labels: The free labels, in the order of `cells`.
        grid: The cut labels with their parts, possibly COPIES; sites are numbered by the
            coordinates of their cells in this grid, the last axis fastest.
        sites: int64 (cells,), the site of each cell.
        cells: int64 (cells, labels, 2), the part of the domain of each cell.
        operands: For each operand the step that produces its tiles.
        picks: For each operand int64 (cells,), the tile that each cell reads.
        tiles: The result, one tile per cell; partial if labels are reduced and cut.
            Copies of a cell give copies of its tile.
        partial: True if tiles of several cells must be merged; they have the state for that.
        is_template: True if the tiles of a cell determine the extents of all labels, and
            positions are counted from the start of the tiles.
        blocks: The blocks that rows choose. The points of a row run at the site of its block, and
            the results return to the tile of the cell. Of an operand in blocks a cell picks the
            block at its site, or the first one.
    """

    node: EinSum
    labels: tuple[str, ...]
    grid: tuple[tuple[str, int], ...]
    sites: np.ndarray
    cells: np.ndarray
    operands: tuple[int, ...]
    picks: tuple[np.ndarray, ...]
    tiles: Tiles
    partial: bool
    is_template: bool = False
    blocks: Blocks | None = None


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Tiles of another step under other keys, without a copy; a tile may occur several times.

    Attributes:
        source: The step.
        picks: int64 (tiles,), the source's tile of each tile, at the same site.
        tiles: The tiles with their new keys and as many elements along each axis.
        relation: The relation with new names of the fields, in the order of the source's;
            None if the names remain.
    """

    source: int
    picks: np.ndarray
    tiles: Tiles
    relation: Input | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Complete:
    """Merges partial tiles with their reductions.

    Attributes:
        source: The step that produces the partial tiles.
        node: The operation, whose outputs have the reductions.
        tiles: The result; if it is not partial, disjoint and complete except for copies.
        parts: int64 (tiles, n), the partial tiles that contribute to each tile; -1 where a
            tile has fewer.
        collectives: A "reduce" to one site of each group, or a "reduce-scatter" over it; empty if
            every part is at the site of its tile.
        partial: True if the result must be merged again; it has the state for that.
    """

    source: int
    node: EinSum
    tiles: Tiles
    parts: np.ndarray
    collectives: tuple[Collective, ...]
    partial: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that cross sites."""
        return sum(c.nbytes for c in self.collectives)


Step = Load | Exchange | Local | View | Complete


@dataclass(frozen=True, slots=True, eq=False)
class RowRelation:
    """A relation whose rows move to the blocks that they choose.

    Attributes:
        source: The step that produces its tiles.
        picks: int64 (cells,), the tile that each cell reads.
        axes: For each axis of a tile the number of its label among those of the rows, or None.
    """

    source: int
    picks: np.ndarray
    axes: tuple[int | None, ...]


@dataclass(frozen=True, slots=True, eq=False)
class RoutedRows:
    """The rows of fused steps, which all move by one choice.

    Attributes:
        blocks: The blocks.
        chooser: The number of the step, in the group, whose operand chooses.
        rows: For each step the labels of its rows.
        relations: The relations that move.
        reads: For each step and operand the number of the relation; None for other operands.
        tiles: For each step and operand without rows int64 (blocks,), the tile at the site of
            each block; None for other operands.
        sends: int64 (sites, sites), the bytes that each site sends to each other one if rows
            choose all keys equally often. A run sends more or less.
    """

    blocks: Blocks
    chooser: int
    rows: tuple[tuple[str, ...], ...]
    relations: tuple[RowRelation, ...]
    reads: tuple[tuple[int | None, ...], ...]
    tiles: tuple[tuple[np.ndarray | None, ...], ...]
    sends: np.ndarray

    @property
    def nbytes(self) -> int:
        """The expected bytes that cross sites."""
        return int(self.sends.sum())


@dataclass(frozen=True, slots=True, eq=False)
class FusedSteps:
    """Fused local steps: a site runs their cells together without storing intermediates.

    Attributes:
        steps: The local steps, which all have the same cells at the same sites. They run
            at the position of the last step.
        visible: For each step whether a step outside the group reads it.
        edges: For each step and operand the step of the group that produces it, or -1.
        links: The exchanges between these steps, which move nothing.
        shown: The links that steps outside the group read.
        routed: The rows that move to the blocks that they choose, where all steps run; None if
            every cell runs at its site. A single step with blocks is a group of its own.
    """

    steps: tuple[int, ...]
    visible: tuple[bool, ...]
    edges: tuple[tuple[int, ...], ...]
    links: tuple[int, ...]
    shown: tuple[int, ...]
    routed: RoutedRows | None = None


@dataclass(frozen=True, slots=True)
class Post:
    """The start of an exchange before its place, so that steps between overlap with it.

    Attributes:
        exchange: The number of the exchange, which is completed in its place.
        before: The number of the step before which its sends and receives are started.
    """

    exchange: int
    before: int


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Steps in order; some of their relations are results.

    Attributes:
        sites: The number of sites.
        roots: For each root of the graph the step that produces its tiles.
        together: Groups of fused local steps; the groups are disjoint.
        posts: The exchanges that start before their place, by the numbers of these steps.
    """

    sites: int
    steps: tuple[Step, ...]
    roots: tuple[int, ...]
    together: tuple[FusedSteps, ...] = ()
    posts: tuple[Post, ...] = ()

    @property
    def bytes_sent(self) -> int:
        """Bytes that cross sites; see `is_expected`."""
        moved = sum(s.nbytes for s in self.steps if isinstance(s, Exchange | Complete))
        return moved + sum(t.routed.nbytes for t in self.together if t.routed is not None)

    @property
    def is_expected(self) -> bool:
        """Whether its bytes are expected: rows choose blocks, or sparse results move."""
        sparse = (
            s.nbytes and isinstance(relation_of(self.steps, n), EinSum) and self.relation(n).sparse
            for n, s in enumerate(self.steps)
            if isinstance(s, Exchange | Complete)
        )
        return any(t.routed is not None for t in self.together) or any(sparse)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the stored tensors that the program reads."""
        return tuple(dict.fromkeys(s.source.name for s in self.steps if isinstance(s, Load)))

    def loaded(self, name: str) -> tuple[Tiles, ...]:
        """The tiles in which the program loads a stored tensor."""
        return tuple(s.tiles for s in self.steps if isinstance(s, Load) and s.source.name == name)

    @property
    def posts_before(self) -> dict[int, tuple[int, ...]]:
        """The exchanges that start before each step."""
        numbers: dict[int, tuple[int, ...]] = {}
        for post in self.posts:
            numbers[post.before] = (*numbers.get(post.before, ()), post.exchange)
        return numbers

    def relation(self, number: int) -> Input | EinSum:
        """The relation whose tiles a step produces."""
        return relation_of(self.steps, number)

    def hidden(self) -> frozenset[int]:
        """The steps inside fused groups whose tiles are never stored."""
        return frozenset(
            n
            for t in self.together
            for n in (
                *(n for n, seen in zip(t.steps, t.visible, strict=True) if not seen),
                *(n for n in t.links if n not in t.shown),
            )
        )

    def released(self, within: Mapping[int, int] | None = None) -> list[list[int]]:
        """For each step the steps whose tiles it is the last to read, except the results'.

        Args:
            within: The reader of each step that runs cell by cell within its reader.
        """
        run = list(range(len(self.steps)))
        for n, reader in sorted((within or {}).items(), reverse=True):
            run[n] = run[reader]
        for t in self.together:
            for n in (*t.steps, *t.links):
                run[n] = t.steps[-1]
        last = list(run)
        for n, step in enumerate(self.steps):
            for source in reads(step):
                last[source] = max(last[source], run[n])
        freed: list[list[int]] = [[] for _ in self.steps]
        for source, n in enumerate(last):
            if source not in self.roots:
                freed[n].append(source)
        return freed


def relation_of(steps: Sequence[Step], number: int) -> Input | EinSum:
    """The relation whose tiles a step produces."""
    step = steps[number]
    while isinstance(step, Exchange) or (isinstance(step, View) and step.relation is None):
        step = steps[reads(step)[0]]
    match step:
        case Load():
            return step.source
        case View():
            assert step.relation is not None
            return step.relation
        case _:
            return step.node


def reads(step: Step) -> tuple[int, ...]:
    """The steps whose tiles a step reads."""
    match step:
        case Local():
            return step.operands
        case Exchange():
            return step.sources
        case View() | Complete():
            return (step.source,)
        case Load():
            return ()


def reordered(program: Program, order: Sequence[int]) -> Program:
    """The program, in which nothing is fused, with its steps in another order.

    Args:
        program: The program.
        order: The numbers of all steps, producers first.
    """
    assert not program.together
    assert not program.posts
    numbers = {old: new for new, old in enumerate(order)}

    def renumbered(step: Step) -> Step:
        match step:
            case Local():
                return replace(step, operands=tuple(numbers[n] for n in step.operands))
            case Exchange():
                return replace(step, sources=tuple(numbers[n] for n in step.sources))
            case View() | Complete():
                return replace(step, source=numbers[step.source])
            case Load():
                return step

    steps = tuple(renumbered(program.steps[n]) for n in order)
    return replace(program, steps=steps, roots=tuple(numbers[n] for n in program.roots))


def tuple_bytes(node: Input | EinSum) -> float:
    """Bytes of one tuple's fields; of a sparse relation the expected bytes of one key.

    A stored element takes its values and a position.
    """
    if node.sparse:
        return density(node) * element_bytes(node)
    return sum(f.dtype.numpy.itemsize for f in node.schema.fields)


def tuple_fields(node: Input | EinSum) -> float:
    """Fields of one tuple; of a sparse relation the expected numbers for each key.

    The position of a stored element counts as one number, as its values do.
    """
    return density(node) * len(node.schema.fields)


def element_bytes(node: Input | EinSum) -> int:
    """Bytes of a stored element of a sparse relation: its values and its column."""
    return index_type(*matrix_shape(node.schema.shape)).itemsize + value_bytes(node)


def value_bytes(node: Input | EinSum) -> int:
    """Bytes of the values of a stored element."""
    return sum(f.dtype.numpy.itemsize for f in node.schema.fields if f.name != PRESENT)


def state_bytes(node: EinSum) -> float:
    """Bytes of one tuple of a partial result, including the state for merging."""
    return tuple_bytes(with_state(node))
