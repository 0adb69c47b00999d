"""Language 3 for EinSum graphs: a placed program, what every site does step by step.

A program is a straight line of steps. A local step runs one EinSum on tiles that lie at
the same site; an exchange brings tiles to the sites that need them (the paper's BCAST
and SHUF); a completion merges partial results (SHUF and local aggregation). Every step
holds what each site needs to know to do its part, so all sites can run the same program.

The third language has two dialects, one for each language it is made from. Plans over
blocks become plans of `implementation`, an algebra with laws, which rules rewrite until
they are cheap. EinSum graphs become programs: EinDecomp decides how they are cut, placement
decides where each cell runs, and the outcome is written down here, to be costed and run
but never rewritten. Its tiles are boxes of keys rather than blocks under keys, so they
may overlap (a window's halo), and a step moves all fields of a relation together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from einsql.core.schema import DType
from einsql.ir.einsum.graph import TRUE, Call, EinSum, Input, Output
from einsql.ir.functions import REDUCTIONS
from einsql.ir.layout import Tiles

COPIES = "*"
"""The axis of a site grid along which every cell is run again."""


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
"""As in MPI; a "slice" sends nothing, a "halo" only the margins of tiles."""


@dataclass(frozen=True, slots=True)
class Collective:
    """What sites do together to move tiles.

    Attributes:
        name: What it is called.
        along: The axes of the site grid along which they speak.
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
        tiles: Where it lies if its cut is declared, else what its reader needs.
    """

    source: Input
    tiles: Tiles


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Brings tiles of a relation to the sites that need them.

    A needed tile is cut from one that its site has at hand, or put together from the
    tiles of the first source: each share is taken from the site itself if it has a copy
    of it, else from one copy.

    Attributes:
        sources: Steps that hold versions of the relation. The tiles of the first are
            complete, and disjoint but for copies, if anything has to be put together.
        at_hand: int64 (tiles, 2), the source (its place in `sources`) and the tile each
            needed tile is cut from at its site; -1 where it is put together.
        tiles: What is needed, and where.
        collectives: What happens, one after another; nothing if all is at hand.
        completes: True if the source is a completion and every site that contributed to
            it gets the result here: together they are one all-reduce.
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
        grid: The labels that are cut with their parts, COPIES among them; sites are
            numbered by the coordinates of their cells in this grid, the last fastest.
        sites: int64 (cells,), where each cell runs.
        cells: int64 (cells, labels, 2), the part of the domain of each cell.
        operands: For each operand the step that holds its tiles.
        picks: For each operand int64 (cells,), the tile that each cell reads.
        tiles: What comes out, one tile per cell; partial if labels are reduced and cut.
            Cells that are there in several copies give that many copies.
        partial: True if tiles of several cells have to be merged.
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
        tiles: What comes out; disjoint and complete.
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
class Together:
    """Local steps whose cells a site runs together: what passes between is never there.

    Attributes:
        steps: The local steps, which all have the same cells at the same sites. They run
            in place of the last of them.
        visible: For each whether something else reads it.
        edges: For each and each of its operands the step among them that makes it, or -1.
        links: The exchanges between them, which move nothing.
        shown: Those of the links that something else reads.
    """

    steps: tuple[int, ...]
    visible: tuple[bool, ...]
    edges: tuple[tuple[int, ...], ...]
    links: tuple[int, ...]
    shown: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Steps in order; the last relation is the result.

    Attributes:
        sites: How many sites there are.
        root: The step that holds the result's tiles.
        together: Local steps that run together; none is in two of them.
    """

    sites: int
    steps: tuple[Step, ...]
    root: int
    together: tuple[Together, ...] = ()

    @property
    def bytes_sent(self) -> int:
        """Bytes that cross sites, on dense relations."""
        return sum(s.nbytes for s in self.steps if isinstance(s, Exchange | Complete))

    def relation(self, number: int) -> Input | EinSum:
        """The relation whose tiles a step holds."""
        step = self.steps[number]
        while not isinstance(step, Load | Local):
            step = self.steps[reads(step)[0]]
        return step.source if isinstance(step, Load) else step.node

    def hidden(self) -> frozenset[int]:
        """The steps whose tiles are never there as a whole."""
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
        """For each step those whose tiles nobody reads after it; the result's are kept."""
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
            if source != self.root:
                freed[n].append(source)
        return freed


def reads(step: Step) -> tuple[int, ...]:
    """The steps whose tiles a step reads."""
    if isinstance(step, Local):
        return step.operands
    if isinstance(step, Exchange):
        return step.sources
    return (step.source,) if isinstance(step, Complete) else ()


def tuple_bytes(node: Input | EinSum) -> int:
    """Bytes of one tuple's fields."""
    return sum(f.dtype.numpy.itemsize for f in node.schema.fields)


def best_of(name: str) -> str:
    """The field that holds the extreme value of an ARG_MIN or ARG_MAX."""
    return f"{name}.best"


def some_of(name: str) -> str:
    """The field that tells whether an ARG_MIN or ARG_MAX has seen any value."""
    return f"{name}.some"


def with_state(node: EinSum) -> EinSum:
    """The node with what merging needs beside its outputs: the extreme value of a pair.

    Parts do not know of each other's sums, so that all extremes matter.
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


def beside(o: Output) -> Call | None:
    """The mark of an output that matters only where the sum of a term is not finite."""
    value = o.args[0]
    marked = o.reduction is not None and isinstance(value, Call) and value.fn == "beside"
    return value if marked and isinstance(value, Call) else None


def always(node: EinSum) -> EinSum:
    """The node with outputs that matter whatever sums beside them are."""
    marks = [beside(o) for o in node.outputs]
    if not any(marks):
        return node
    pairs = zip(node.outputs, marks, strict=True)
    outputs = (o if mark is None else replace(o, args=mark.args[:1]) for o, mark in pairs)
    return replace(node, outputs=tuple(outputs))


def state_bytes(node: EinSum) -> int:
    """Bytes of one tuple of a partial result, with what merging needs."""
    return tuple_bytes(with_state(node))
