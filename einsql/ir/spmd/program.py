"""Language 3 for EinSum graphs: SPMD programs, which list the steps of every site.

A program is a sequence of steps. A local step runs one EinSum on tiles of the same site. An
exchange sends tiles to the sites that need them (the paper's BCAST and SHUF). A completion
merges partial results (SHUF and local aggregation). A step has the parameters of every site,
so all sites run the same program.

Tensor-relational plans become plans of the implementation algebra (`einsql.ir.ia`), which
rules rewrite. EinSum graphs become SPMD programs: EinDecomp decides the cuts, placement the
site of each cell. Programs are costed and run, but never rewritten. Their tiles are boxes of
keys rather than blocks under keys. So tiles may overlap, as the halo of a window does, and a
step moves all fields of a relation together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from einsql.core.schema import DType
from einsql.ir.einsum.conditional_outputs import always
from einsql.ir.einsum.graph import TRUE, EinSum, Input, Output
from einsql.ir.functions import REDUCTIONS
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
    "reduce",
    "reduce-scatter",
    "all-reduce",
]
"""Names as in MPI; a "slice" sends nothing, a "halo" sends only the margins of tiles."""


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
    """

    sources: tuple[int, ...]
    at_hand: np.ndarray
    tiles: Tiles
    collectives: tuple[Collective, ...]
    completes: bool = False

    @property
    def nbytes(self) -> int:
        """Bytes that cross sites."""
        return sum(c.nbytes for c in self.collectives)


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
        partial: True if tiles of several cells must be merged.
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


@dataclass(frozen=True, slots=True, eq=False)
class Complete:
    """Merges partial tiles with their reductions.

    Attributes:
        source: The local step.
        tiles: The result; disjoint and complete.
        parts: int64 (tiles, n), the cells that contribute to each tile.
        collectives: A "reduce" to one site of each group, or a "reduce-scatter" over it.
    """

    source: int
    tiles: Tiles
    parts: np.ndarray
    collectives: tuple[Collective, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that cross sites."""
        return sum(c.nbytes for c in self.collectives)


Step = Load | Exchange | Local | Complete


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
    """

    steps: tuple[int, ...]
    visible: tuple[bool, ...]
    edges: tuple[tuple[int, ...], ...]
    links: tuple[int, ...]
    shown: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Steps in order; some of their relations are results.

    Attributes:
        sites: The number of sites.
        roots: For each root of the graph the step that produces its tiles.
        together: Groups of fused local steps; the groups are disjoint.
    """

    sites: int
    steps: tuple[Step, ...]
    roots: tuple[int, ...]
    together: tuple[FusedSteps, ...] = ()

    @property
    def bytes_sent(self) -> int:
        """Bytes that cross sites, on dense relations."""
        return sum(s.nbytes for s in self.steps if isinstance(s, Exchange | Complete))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the stored tensors that the program reads."""
        return tuple(dict.fromkeys(s.source.name for s in self.steps if isinstance(s, Load)))

    def relation(self, number: int) -> Input | EinSum:
        """The relation whose tiles a step produces."""
        step = self.steps[number]
        while not isinstance(step, Load | Local):
            step = self.steps[reads(step)[0]]
        return step.source if isinstance(step, Load) else step.node

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

    def maker(self, step: Complete) -> Local:
        """The local step whose partial tiles a completion merges."""
        local = self.steps[step.source]
        assert isinstance(local, Local)
        return local

    def released(self) -> list[list[int]]:
        """For each step the steps whose tiles it is the last to read, except the results'."""
        run = list(range(len(self.steps)))
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


def reads(step: Step) -> tuple[int, ...]:
    """The steps whose tiles a step reads."""
    match step:
        case Local():
            return step.operands
        case Exchange():
            return step.sources
        case Complete():
            return (step.source,)
        case Load():
            return ()


def tuple_bytes(node: Input | EinSum) -> int:
    """Bytes of one tuple's fields."""
    return sum(f.dtype.numpy.itemsize for f in node.schema.fields)


def best_of(name: str) -> str:
    """The field that holds the extreme value of an ARG_MIN or ARG_MAX."""
    return f"{name}.best"


def some_of(name: str) -> str:
    """The field that is true if the group of an ARG_MIN or ARG_MAX has a value."""
    return f"{name}.some"


def with_state(node: EinSum) -> EinSum:
    """The node with the additional outputs for merging: the extreme value of each pair.

    A part does not have the sums of other parts, so every conditional output is computed.
    """
    node = always(node)
    extra: list[Output] = []
    for o in node.outputs:
        if o.reduction is not None and REDUCTIONS[o.reduction].better is not None:
            value = o.args[1]
            extreme = "min" if o.reduction == "arg_min" else "max"
            extra.append(Output(best_of(o.name), (value,), value.dtype, extreme, o.where))
            extra.append(Output(some_of(o.name), (TRUE,), DType.BOOLEAN, "bool_or", o.where))
    return replace(node, outputs=(*node.outputs, *extra)) if extra else node


def state_bytes(node: EinSum) -> int:
    """Bytes of one tuple of a partial result, including the state for merging."""
    return tuple_bytes(with_state(node))
