"""Preparation of runs for ranks: commands, programs without their graphs, and sets of tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from einsql.core.boxes import common_volumes, volumes
from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.core.sparse.matrix import sparse_of
from einsql.engine.exchange import Held, slices
from einsql.engine.ranks.groups import Lease
from einsql.engine.ranks.messages import Command, Kept, Mapped, Sent, Slice, Source
from einsql.engine.ranks.tile_store import nbytes
from einsql.engine.sparse.stored_elements import sparse_tile
from einsql.engine.spmd_executor import ALONG
from einsql.engine.step import Arrays
from einsql.ir.einsum.graph import EinSum, Input, Operand
from einsql.ir.layout import Tiles, ranks_of
from einsql.ir.spmd.program import Complete, Exchange, Load, Local, Program, Step

MOVED = "#"
"""The input of a program that moves tiles."""

MOST_TILES = 4096
"""Greatest number of tiles for which ranks cache a tensor; others are sent by every statement."""


@dataclass(frozen=True, slots=True)
class Then:
    """Callbacks for the inputs of a run.

    Attributes:
        sent: After the commands are sent; the next message may release tiles that the run reads.
        done: After the success of the run.
    """

    sent: list[Callable[[], None]] = field(default_factory=list)
    done: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """The commands of a run.

    Attributes:
        results: The handle of the tiles of each root.
        commands: The command of each rank.
        then: Callbacks.
        ahead: Whether the run starts before the previous ones are answered.
    """

    results: list[Lease]
    commands: dict[int, Command]
    then: Then
    ahead: bool


def detached(program: Program) -> Program:
    """Returns a program whose nodes keep only the schemas of their operands."""

    def alone(step: Step) -> Step:
        if isinstance(step, Load):
            return replace(step, source=replace(step.source, pattern=None))
        if not isinstance(step, Local | Complete):
            return step
        operands = tuple(
            Operand(Input(f"#{n}", o.source.schema, sparse=o.source.sparse), o.labels)
            for n, o in enumerate(step.node.operands)
        )
        return replace(step, node=replace(step.node, operands=operands))

    return replace(program, steps=tuple(map(alone, program.steps)))


def nodes_of(program: Program) -> list[EinSum]:
    """Returns the operations that a program's steps compute."""
    return [s.node for s in program.steps if isinstance(s, Local | Complete)]


def is_joint(program: Program) -> bool:
    """Whether tiles may move between the sites of a program."""
    return any(
        isinstance(s, Complete) or (isinstance(s, Exchange) and bool((s.at_hand[:, 0] < 0).any()))
        for s in program.steps
    )


def working(program: Program, ranks: int) -> Sequence[int]:
    """Returns the ranks with tiles of any step, and rank 0, which reports the progress."""
    sites = np.concatenate([s.tiles.sites for s in program.steps])
    return sorted({0, *ranks_of(sites, program.sites, ranks).tolist()})


def moving_program(schema: Schema, have: Tiles, need: Tiles, sites: int) -> Program:
    """Returns the program that sends the tiles of its input, `MOVED`, from site to site."""
    absent = np.full((len(need.sites), 2), -1)
    load = Load(Input(MOVED, schema), have)
    return Program(sites, (load, Exchange((0,), absent, need, ())), (1,))


@dataclass(frozen=True, slots=True)
class Distribution:
    """The distribution of a stored tensor's tiles over the ranks.

    Attributes:
        numbers: For each rank the numbers of its tiles.
        covers: Whether one copy of all tiles is the tensor, each key once.
    """

    numbers: list[list[int]]
    covers: bool


def distribution_of(tiles: Tiles, schema: Schema, sites: int, ranks: int) -> Distribution:
    """Returns the distribution of tiles over ranks."""
    rank = ranks_of(tiles.sites, sites, ranks)
    numbers = [np.flatnonzero(rank == r).tolist() for r in range(ranks)]
    return Distribution(numbers, covers(tiles, schema))


class Distributions:
    """The distributions of the tiles of a program's loads, each computed once.

    Args:
        loads: The loads of the program, which exist as long as it does.
        sites: The number of sites.
    """

    def __init__(self, loads: Iterable[Load], sites: int) -> None:
        self._loads = {id(step) for step in loads}
        self._sites = sites
        self._known: dict[tuple[int, int], Distribution] = {}

    def of(self, step: Load, ranks: int) -> Distribution:
        """Returns the distribution of a load's tiles over ranks."""
        distribution = self._known.get((id(step), ranks))
        if distribution is None:
            distribution = distribution_of(step.tiles, step.source.schema, self._sites, ranks)
            if id(step) in self._loads:
                self._known[id(step), ranks] = distribution
        return distribution


def is_light(loads: Mapping[int, Mapping[int, Source]]) -> bool:
    """Whether the messages with the inputs of a run, by rank and step, are short."""
    sources = (s for own in loads.values() for s in own.values())
    parts = (s.source if isinstance(s, Slice) else s for s in sources)
    known = [s for s in parts if not isinstance(s, Kept)]
    if any(isinstance(s, Mapped) for s in known):  # a rank may not find the files
        return False
    return sum(nbytes(s.tiles) for s in known if isinstance(s, Sent)) <= ALONG


def covers(tiles: Tiles, schema: Schema) -> bool:
    """Whether one copy of the tiles covers a relation, each key once."""
    boxes = tiles.boxes[: tiles.once]
    if len(boxes) > MOST_TILES or int(volumes(boxes).sum()) != schema.size:
        return False
    shared = common_volumes(boxes[:, None], boxes[None]).sum(axis=1)
    return bool((shared == volumes(boxes)).all())


def sliced(step: Load, fields: Arrays, tiles: Sequence[int]) -> Held:
    """Cuts tiles of a stored tensor from its complete arrays, as views.

    Args:
        step: The step with the keys of each tile.
        fields: The arrays, over all keys of the tensor.
        tiles: The numbers of the tiles.
    """
    origin = [k.lo for k in step.source.schema.keys]
    names = [f.name for f in step.source.schema.fields]
    if sparse_of(fields) is not None:
        return {n: sparse_tile(fields, slices(step.tiles.boxes[n], origin)) for n in tiles}
    return {
        n: {name: fields[name][slices(step.tiles.boxes[n], origin)] for name in names}
        for n in tiles
    }


def call_all(functions: Sequence[Callable[[], None]]) -> None:
    """Calls functions in their order."""
    for function in functions:
        function()


def forget(lease: Lease) -> None:
    """Releases a lease: the ranks may remove tiles that only one run reads."""
