"""Exchanges of operands that sparse operands join: only the elements that these need are sent.

In y(i) = Σ_j a(i, j) · x(j) a site with some rows of a sparse a reads x(j) only where its rows have
an element. The other elements of its tile of x stay 0, because no point reads them. Sites send
flags of the elements that they need, one bit each, and then get these elements. That is done if
the tensor's present elements make it fewer bytes than complete tiles.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einsql.core.boxes import extents
from einsql.core.records import dataclass
from einsql.core.sparse.pattern import mark
from einsql.ir.einsum.graph import Input, stored_operands
from einsql.ir.spmd.program import (
    Collective,
    Exchange,
    Local,
    Program,
    Selection,
    reads,
    tuple_bytes,
)
from einsql.ir.tile_transfers import pieces


@dataclass(frozen=True, slots=True)
class _Reading:
    """A cell that reads a tile of an exchange, together with a tile of a sparse tensor.

    Attributes:
        axis: The axis of the exchanged tile that the sparse tile joins.
        step: The step of the sparse tile.
        tile: The number of the sparse tile.
        key: Its key of the same label.
    """

    axis: int
    step: int
    tile: int
    key: int


def selected(program: Program) -> Program:
    """The program, whose exchanges send the elements that sparse operands need."""
    if not any(isinstance(s, Local) and stored_operands(s.node) for s in program.steps):
        return program
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for n, step in enumerate(program.steps):
        for source in dict.fromkeys(reads(step)):
            readers[source].append(n)
    early = {post.exchange for post in program.posts}
    links = {n for t in program.together for n in t.links}
    steps = list(program.steps)
    for n, step in enumerate(program.steps):
        if isinstance(step, Exchange) and n not in early | links | set(program.roots):
            steps[n] = _selected(program, n, step, readers[n])
    return replace(program, steps=tuple(steps))


def _selected(program: Program, number: int, step: Exchange, readers: Sequence[int]) -> Exchange:
    """An exchange with a selection, if it sends fewer bytes."""
    if not step.nbytes or program.relation(number).sparse or step.tiles.keyed:
        return step
    by: list[list[_Reading]] = [[] for _ in step.tiles.sites]
    for reader in readers:
        local = program.steps[reader]
        if not isinstance(local, Local) or local.blocks is not None or local.is_template:
            return step
        for operand, source in enumerate(local.operands):
            if source == number and not _add(program, number, local, operand, by):
                return step
    if len({r.axis for each in by for r in each}) != 1:
        return step
    (axis,) = {r.axis for each in by for r in each}
    places = tuple(tuple((r.step, r.tile, r.key) for r in each) for each in by)
    sends = _sends(program, step, axis, by)
    if sends is None or sends.sum() >= step.nbytes:
        return step
    selection = Selection(axis, places, sends)
    moves = (Collective("all-to-all", (), int(sends.sum())),)
    return replace(step, collectives=moves, completes=False, selection=selection)


def _add(
    program: Program, number: int, local: Local, operand: int, by: list[list[_Reading]]
) -> bool:
    """Adds the cells of a reader to the tiles that they read; False if all elements are needed."""
    node = local.node
    labels = node.operands[operand].labels
    for driving in stored_operands(node):
        source, own = local.operands[driving], node.operands[driving]
        common = [x for x in own.labels if labels.count(x) == 1]
        known = isinstance(own.source, Input) and own.source.pattern is not None
        if source >= number or driving == operand or not common or not known:
            continue
        axis, key = labels.index(common[0]), own.labels.index(common[0])
        for cell in range(len(local.cells)):
            tile = int(local.picks[driving][cell])
            by[int(local.picks[operand][cell])].append(_Reading(axis, source, tile, key))
        return True
    return False


def _sends(
    program: Program, step: Exchange, axis: int, by: Sequence[Sequence[_Reading]]
) -> np.ndarray | None:
    """The bytes that each site sends to each other one, (sites, sites); None if unknown."""
    base = step.sources[0]
    have, need, sites = program.steps[base].tiles, step.tiles, program.sites
    width = tuple_bytes(program.relation(base))
    sends = np.zeros((sites, sites), np.int64)
    flags: dict[int, np.ndarray] = {}
    for source, tile, box in zip(
        *pieces(have, need, np.flatnonzero(step.at_hand[:, 0] < 0), sites), strict=True
    ):
        ends = int(have.sites[source]), int(need.sites[tile])
        if ends[0] == ends[1]:
            continue
        if int(tile) not in flags:
            needed = _needed(program, need.areas[tile, axis], by[int(tile)])
            if needed is None:
                return None
            flags[int(tile)] = needed
        lo, hi = (box[axis] - need.areas[tile, axis, 0]).tolist()
        count = max(1, int(np.count_nonzero(flags[int(tile)][lo:hi])))
        others = np.delete(extents(box), axis).prod()
        sends[ends] += round(count * others * width)
        sends[ends[::-1]] += -(-(hi - lo) // 8)
    return sends


def _needed(program: Program, values: np.ndarray, by: Sequence[_Reading]) -> np.ndarray | None:
    """Flags of the needed values of a key, bool (values,); None if unknown.

    Args:
        program: The program.
        values: The first value of the key in the tile, and the end, int64 (2,).
        by: The sparse tiles.
    """
    flags = np.zeros(int(values[1] - values[0]), np.bool_)
    for r in by:
        relation = program.relation(r.step)
        assert isinstance(relation, Input)
        assert relation.pattern is not None
        box = program.steps[r.step].tiles.boxes[r.tile]
        lows = np.array([[k.lo] for k in relation.schema.keys], np.int64)
        occupied = relation.pattern.occupied(r.key, box - lows)
        if occupied is None:
            return None
        mark(flags, int(values[0]), occupied, int(box[r.key, 0]))
    return flags
