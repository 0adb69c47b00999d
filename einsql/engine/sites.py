"""Runs a placed program: local steps on the tiles of each site, exchanges between them.

The same code runs every site a process owns, one after another, so that virtual sites
and ranks differ in their transport only.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType

import numpy as np

from einsql.boxes import extents
from einsql.einsum import (
    Axis,
    EinSum,
    Input,
    Operand,
    exprs,
    labels_of,
)
from einsql.engine.executor import Compile, Runner, Tick
from einsql.engine.merging import merged
from einsql.engine.relation import Fields
from einsql.engine.routes import Moves, completing, gathering
from einsql.engine.transport import Arrays, LocalTransport, Transport
from einsql.placements import Tiles
from einsql.schema import Key, Schema
from einsql.supersteps import (
    Complete,
    Exchange,
    Load,
    Local,
    Program,
    with_state,
)
from einsql.work import flops_at_point

Held = dict[int, dict[str, np.ndarray]]
"""Fields of the tiles that lie at owned sites, by the tile's number."""


@dataclass(slots=True)
class StepMeasure:
    """What a step took."""

    seconds: float = 0.0
    nbytes: int = 0


@dataclass(slots=True)
class SiteMeasure:
    """What the sites did in one run.

    Attributes:
        steps: What each step took.
        seconds: That each site spent in kernels.
        flops: Scalar operations of the kernels that each site ran.
        sent: Bytes that left each site for another one.
        received: Bytes that reached each site from another one.
        read: Bytes read from files.
        ranks: Processes that shared the work; a step lasted as long as at the slowest.
    """

    steps: list[StepMeasure] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    read: int = 0
    ranks: int = 1


Loading = Callable[[int, Load, Sequence[int]], Held]
"""Gives the tiles of a stored tensor: of which step, and the numbers of those wanted."""


class SiteProgram:
    """A placed program that is ready to run over the transport's sites."""

    def __init__(self, program: Program, schema: Schema, compile_node: Compile) -> None:
        self.program = program
        self.sites = program.sites
        self.schema = schema
        self._compile = compile_node
        self._runners: dict[object, tuple[Runner, int]] = {}
        self._moves: dict[int, Moves] = {}
        self._stated = {
            n: with_state(s.node)
            for n, s in enumerate(program.steps)
            if isinstance(s, Local) and s.partial
        }
        self._released = program.released()

    def run(self, inputs: Mapping[str, Fields], tick: Tick) -> Fields:
        """Runs every step on virtual sites and assembles the result.

        Raises:
            DataError: A selected element overflows, divides by zero or cannot be cast.
        """
        return self.measured(inputs, tick)[0]

    def measured(self, inputs: Mapping[str, Fields], tick: Tick) -> tuple[Fields, SiteMeasure]:
        """As `run`, with what every step and every site took."""

        def load(_: int, step: Load, tiles: Sequence[int]) -> Held:
            return sliced(step, inputs[step.source.name], tiles)

        held, measure = self.execute(LocalTransport(self.program.sites), load, tick)
        return self._assembled(held), measure

    def execute(
        self, transport: Transport, load: Loading, tick: Tick
    ) -> tuple[Held, SiteMeasure]:  # fmt: skip
        """Runs every step at the transport's own sites.

        Args:
            transport: Moves what crosses sites.
            load: Gives the tiles of stored tensors.
            tick: Told the fraction done; raises to cancel.

        Returns:
            The tiles of the result that lie at these sites, and what the run took here.

        Raises:
            DataError: A selected element overflows, divides by zero or cannot be cast.
        """
        sites = self.program.sites
        measure = SiteMeasure(seconds=[0.0] * sites, flops=[0] * sites)
        held: dict[int, Held] = {}
        for n, step in enumerate(self.program.steps):
            start, before = time.perf_counter(), sum(transport.sent)
            if isinstance(step, Load):
                held[n] = load(n, step, _owned(step.tiles, transport))
            elif isinstance(step, Exchange):
                held[n] = self._exchange(n, step, held, transport)
            elif isinstance(step, Local):
                held[n] = self._local(n, step, held, transport, tick, measure)
            else:
                held[n] = self._complete(n, step, held[step.source], transport)
            for source in self._released[n]:
                del held[source]
            measure.steps.append(
                StepMeasure(time.perf_counter() - start, sum(transport.sent) - before)
            )
            tick((n + 1) / len(self.program.steps))
        measure.sent, measure.received = transport.sent, transport.received
        return held[self.program.root], measure

    # ---- the steps

    def _exchange(
        self, number: int, step: Exchange, held: dict[int, Held], transport: Transport
    ) -> Held:  # fmt: skip
        """Cuts what is at hand, and sends each owned tile's share of every other tile."""
        steps, need = self.program.steps, step.tiles
        whole: Held = {n: {} for n in _owned(need, transport)}
        for n, fields in whole.items():
            source, tile = (int(k) for k in step.at_hand[n])
            if source >= 0:
                at = step.sources[source]
                cut = slices(need.boxes[n], steps[at].tiles.boxes[tile, :, 0])
                fields.update({k: a[cut] for k, a in held[at][tile].items()})
        base = step.sources[0]
        have = steps[base].tiles
        if number not in self._moves:
            gathered = np.flatnonzero(step.at_hand[:, 0] < 0)
            schema = self.program.relation(base).schema
            self._moves[number] = gathering(have, need, gathered, self.program.sites, schema)
        moves = self._moves[number]

        def share(n: int) -> Arrays:
            tile = int(moves.have[n])
            inside = slices(moves.boxes[n], have.boxes[tile, :, 0])
            return {k: a[inside] for k, a in held[base][tile].items()}

        for n, arrays in transport.exchange(moves.routes, share):
            tile = int(moves.need[n])
            _paste(whole[tile], moves.boxes[n], arrays, need.boxes[tile])
        for n, fields in whole.items():
            if not fields:  # a tile without elements meets no other
                fields.update(self._nothing(base, need.boxes[n]))
        return whole

    def _nothing(self, step: int, box: np.ndarray) -> dict[str, np.ndarray]:
        fields = self.program.relation(step).schema.fields
        return {f.name: np.empty(extents(box), f.dtype.numpy) for f in fields}

    def _local(
        self, number: int, step: Local, held: dict[int, Held], transport: Transport, tick: Tick,
        measure: SiteMeasure,
    ) -> Held:  # fmt: skip
        node = self._stated.get(number, step.node)
        each = flops_at_point(step.node)
        made: Held = {}
        for n in _owned(step.tiles, transport):
            start = time.perf_counter()
            tiles = [int(pick[n]) for pick in step.picks]
            boxes = [self.program.steps[s].tiles.boxes[t]
                     for s, t in zip(step.operands, tiles, strict=True)]  # fmt: skip
            operands = [held[s][t] for s, t in zip(step.operands, tiles, strict=True)]
            runner, points = self._runner(number, node, step, n, boxes)
            made[n] = dict(runner(operands, lambda done: tick(number / len(self.program.steps))))
            site = int(step.sites[n])
            measure.seconds[site] += time.perf_counter() - start
            measure.flops[site] += points * each
        return made

    def _runner(
        self, number: int, node: EinSum, step: Local, cell: int, boxes: Sequence[np.ndarray]
    ) -> tuple[Runner, int]:
        """The compiled node over one cell, and its points; cells that differ in position only
        share it.
        """
        local = cell_node(node, step.labels, step.cells[cell], boxes)
        key = (number, tuple((a.lo, a.hi) for a in local.axes),
               tuple(k for o in local.operands for k in o.source.schema.keys))  # fmt: skip
        if key not in self._runners:
            self._runners[key] = self._compile(local)[1], local.points
        return self._runners[key]

    def _complete(self, number: int, step: Complete, held: Held, transport: Transport) -> Held:
        """Merges contributions at each site, sends one of each, and merges these."""
        local = self.program.maker(step)
        node = self._stated[step.source]
        if number not in self._moves:
            self._moves[number] = completing(local, step, node.schema)
        moves = self._moves[number]

        def contribution(n: int) -> Arrays:
            tile = int(moves.need[n])
            box = step.tiles.boxes[tile]
            members = step.parts[tile]
            parts = []
            for m in members[local.tiles.sites[members] == moves.routes.sources[n]].tolist():
                inside = slices(box, local.tiles.boxes[m, :, 0])
                parts.append({k: a[inside] for k, a in held[m].items()})
            return merged(node, parts)

        arrived: dict[int, list[Arrays]] = {}
        for n, arrays in transport.exchange(moves.routes, contribution):
            arrived.setdefault(int(moves.need[n]), []).append(arrays)
        whole = {n: merged(node, parts) for n, parts in arrived.items()}
        return {n: {o.name: f[o.name] for o in local.node.outputs} for n, f in whole.items()}

    def _assembled(self, held: Held) -> Fields:
        """The result from one copy of its tiles."""
        tiles = self.program.steps[self.program.root].tiles
        keys = self.schema.keys
        whole = np.array([(k.lo, k.hi) for k in keys], np.int64).reshape(-1, 2)
        fields: dict[str, np.ndarray] = {}
        for n, part in held.items():
            if n < tiles.once:
                _paste(fields, tiles.boxes[n], part, whole)
        return fields


def sliced(step: Load, fields: Fields, tiles: Sequence[int]) -> Held:
    """Tiles of a stored tensor out of its whole arrays, as views.

    Args:
        step: Says which keys each tile covers.
        fields: The arrays, over all keys of the tensor.
        tiles: The numbers of those wanted.
    """
    origin = [k.lo for k in step.source.schema.keys]
    names = [f.name for f in step.source.schema.fields]
    return {
        n: {name: fields[name][slices(step.tiles.boxes[n], origin)] for name in names}
        for n in tiles
    }


def _owned(tiles: Tiles, transport: Transport) -> list[int]:
    return [int(n) for n in np.flatnonzero(np.isin(tiles.sites, transport.owned))]


def slices(box: np.ndarray, origin: Sequence[int] | np.ndarray) -> tuple[slice | EllipsisType, ...]:
    """What of an array lies in a box; with the ellipsis, a single value stays an array."""
    along = (slice(int(lo - at), int(hi - at)) for (lo, hi), at in zip(box, origin, strict=True))
    return (*along, ...)


def _paste(
    fields: dict[str, np.ndarray], at: np.ndarray, arrays: Arrays, box: np.ndarray
) -> None:  # fmt: skip
    """Puts a piece into its tile; a piece that is the whole tile is taken as it is.

    Args:
        fields: The tile so far.
        at: int64 (keys, 2), the keys of the piece.
        arrays: The piece.
        box: int64 (keys, 2), the keys of the tile.
    """
    if not fields and (at == box).all():
        fields.update(arrays)
        return
    if fields and (at[:, 0] >= at[:, 1]).any():
        return  # beside a tile that was taken as it is and may be read-only
    for name, part in arrays.items():
        if name not in fields:
            fields[name] = np.empty(extents(box), part.dtype)
        fields[name][slices(at, box[:, 0])] = part


# ---- one cell of a node


def cell_node(
    node: EinSum, labels: Sequence[str], cell: np.ndarray, boxes: Sequence[np.ndarray]
) -> EinSum:
    """The node over one cell, reading tiles instead of whole relations.

    Args:
        node: The operation over the whole domain.
        labels: The free labels.
        cell: int64 (labels, 2).
        boxes: For each operand the keys its tile covers.
    """
    bounds = {x: (int(lo), int(hi)) for x, (lo, hi) in zip(labels, cell, strict=True)}
    for o, box in zip(node.operands, boxes, strict=True):
        for label, (lo, hi) in zip(o.labels, box, strict=True):
            if label not in bounds:
                bounds[label] = (int(lo), int(hi))
    shift = {x: lo for x, (lo, _) in bounds.items()} if _is_relative(node) else {}
    axes = tuple(
        Axis(a.label, lo - shift.get(a.label, 0), hi - shift.get(a.label, 0), a.define)
        for a, (lo, hi) in ((a, bounds.get(a.label, (a.lo, a.hi))) for a in node.axes)
    )
    operands = []
    for n, (o, box) in enumerate(zip(node.operands, boxes, strict=True)):
        keys = tuple(
            Key(k.name, int(lo) - shift.get(x, 0), int(hi) - shift.get(x, 0))
            for k, x, (lo, hi) in zip(o.source.schema.keys, o.labels, box, strict=True)
        )
        operands.append(Operand(Input(f"#{n}", Schema(keys, o.source.schema.fields)), o.labels))
    return replace(node, axes=axes, operands=tuple(operands))


def _is_relative(node: EinSum) -> bool:
    """True if the position of a cell does not matter: no expression reads a key."""
    return not any(labels_of(e) for e in exprs(node)) and all(a.define is None for a in node.axes)
