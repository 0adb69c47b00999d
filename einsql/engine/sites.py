"""Runs a placed program: local steps on the tiles of each site, exchanges between them.

The same code runs every site a process owns, one after another, so that virtual sites
and ranks differ in their transport only.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import EllipsisType

import numpy as np

from einsql.boxes import common, extents, volumes
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
from einsql.engine.transport import LocalTransport, Parcel, Transport
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

Held = dict[int, dict[str, np.ndarray]]
"""Fields of the tiles that lie at owned sites, by the tile's number."""


@dataclass(slots=True)
class StepMeasure:
    """What a step took."""

    seconds: float = 0.0
    nbytes: int = 0


@dataclass(slots=True)
class SiteMeasure:
    """What the sites did in one run."""

    steps: list[StepMeasure] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)


class SiteProgram:
    """A placed program that is ready to run over the transport's sites."""

    def __init__(self, program: Program, root: EinSum | Input, compile_node: Compile) -> None:
        self.program = program
        self.schema = root.schema
        self._compile = compile_node
        self._runners: dict[object, Runner] = {}
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
        transport = LocalTransport(self.program.sites)
        measure = SiteMeasure(seconds=[0.0] * self.program.sites)
        held: dict[int, Held] = {}
        for n, step in enumerate(self.program.steps):
            start, before = time.perf_counter(), sum(transport.sent)
            if isinstance(step, Load):
                held[n] = self._load(step, inputs[step.source.name], transport)
            elif isinstance(step, Exchange):
                held[n] = self._exchange(step, held, transport)
            elif isinstance(step, Local):
                held[n] = self._local(n, step, held, transport, tick, measure.seconds)
            else:
                held[n] = self._complete(step, held[step.source], transport)
            for source in self._released[n]:
                del held[source]
            measure.steps.append(
                StepMeasure(time.perf_counter() - start, sum(transport.sent) - before)
            )
            tick((n + 1) / len(self.program.steps))
        measure.sent, measure.received = transport.sent, transport.received
        return self._assembled(held[self.program.root]), measure

    # ---- the steps

    def _load(self, step: Load, fields: Fields, transport: Transport) -> Held:
        origin = [k.lo for k in step.source.schema.keys]
        names = [f.name for f in step.source.schema.fields]
        return {
            n: {name: fields[name][_slices(step.tiles.boxes[n], origin)] for name in names}
            for n in _owned(step.tiles, transport)
        }

    def _exchange(self, step: Exchange, held: dict[int, Held], transport: Transport) -> Held:
        """Cuts what is at hand, and sends each owned tile's share of every other tile."""
        steps, need = self.program.steps, step.tiles
        whole: Held = {n: {} for n in _owned(need, transport)}
        for n, fields in whole.items():
            source, tile = (int(k) for k in step.at_hand[n])
            if source >= 0:
                at = step.sources[source]
                cut = _slices(need.boxes[n], steps[at].tiles.boxes[tile, :, 0])
                fields.update({k: a[cut] for k, a in held[at][tile].items()})
        gathered = np.flatnonzero(step.at_hand[:, 0] < 0)
        base = step.sources[0]
        parcels = _shares(steps[base].tiles, need, gathered, held[base], self.program.sites)
        for p in transport.exchange(parcels):
            _paste(whole[p.tile], p, need.boxes[p.tile])
        for n, fields in whole.items():
            if not fields:  # a tile without elements meets no other
                fields.update(self._nothing(base, need.boxes[n]))
        return whole

    def _nothing(self, step: int, box: np.ndarray) -> dict[str, np.ndarray]:
        fields = self.program.relation(step).schema.fields
        return {f.name: np.empty(extents(box), f.dtype.numpy) for f in fields}

    def _local(
        self, number: int, step: Local, held: dict[int, Held], transport: Transport, tick: Tick,
        seconds: list[float],
    ) -> Held:  # fmt: skip
        node = self._stated.get(number, step.node)
        made: Held = {}
        for n in _owned(step.tiles, transport):
            start = time.perf_counter()
            tiles = [int(pick[n]) for pick in step.picks]
            boxes = [self.program.steps[s].tiles.boxes[t]
                     for s, t in zip(step.operands, tiles, strict=True)]  # fmt: skip
            operands = [held[s][t] for s, t in zip(step.operands, tiles, strict=True)]
            runner = self._runner(number, node, step, n, boxes)
            made[n] = dict(runner(operands, lambda done: tick(number / len(self.program.steps))))
            seconds[int(step.sites[n])] += time.perf_counter() - start
        return made

    def _runner(
        self, number: int, node: EinSum, step: Local, cell: int, boxes: Sequence[np.ndarray]
    ) -> Runner:
        """The compiled node over one cell; cells that differ in position only share it."""
        local = cell_node(node, step.labels, step.cells[cell], boxes)
        key = (number, tuple((a.lo, a.hi) for a in local.axes),
               tuple(k for o in local.operands for k in o.source.schema.keys))  # fmt: skip
        if key not in self._runners:
            self._runners[key] = self._compile(local)[1]
        return self._runners[key]

    def _complete(self, step: Complete, held: Held, transport: Transport) -> Held:
        """Merges contributions at each site, sends one of each, and merges these."""
        local = self.program.maker(step)
        node = self._stated[step.source]
        parcels = []
        for n, members in enumerate(step.parts):
            box = step.tiles.boxes[n]
            mine: dict[int, list[dict[str, np.ndarray]]] = {}
            for m in members:
                if int(m) in held:
                    origin = local.tiles.boxes[m, :, 0]
                    part = {k: a[_slices(box, origin)] for k, a in held[int(m)].items()}
                    mine.setdefault(int(local.sites[m]), []).append(part)
            for site, parts in mine.items():
                parcels.append(Parcel(site, int(step.tiles.sites[n]), n, box, merged(node, parts)))
        arrived: dict[int, list[dict[str, np.ndarray]]] = {}
        for p in transport.exchange(parcels):
            arrived.setdefault(p.tile, []).append(p.fields)
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
                _paste(fields, Parcel(0, 0, n, tiles.boxes[n], part), whole)
        return fields


def _shares(
    have: Tiles, need: Tiles, gathered: np.ndarray, held: Held, sites: int
) -> list[Parcel]:  # fmt: skip
    """The parcels that leave owned tiles for tiles that have to be put together."""
    parcels = []
    for n, fields in held.items():
        copy, tile = divmod(n, have.once)
        holders = have.sites[tile :: have.once]
        shared = common(have.boxes[n], need.boxes[gathered])
        meeting = volumes(shared) > 0
        for m, box in zip(gathered[meeting], shared[meeting], strict=True):
            target = int(need.sites[m])
            own = np.flatnonzero(holders == target)
            # Each group of sites serves its own; who has a copy asks nobody.
            if copy == (own[0] if len(own) else target * have.copies // sites):
                part = {k: a[_slices(box, have.boxes[n, :, 0])] for k, a in fields.items()}
                parcels.append(Parcel(int(have.sites[n]), target, int(m), box, part))
    return parcels


def _owned(tiles: Tiles, transport: Transport) -> list[int]:
    return [int(n) for n in np.flatnonzero(np.isin(tiles.sites, transport.owned))]


def _slices(
    box: np.ndarray, origin: Sequence[int] | np.ndarray
) -> tuple[slice | EllipsisType, ...]:
    """What of an array lies in a box; with the ellipsis, a single value stays an array."""
    slices = (slice(int(lo - at), int(hi - at)) for (lo, hi), at in zip(box, origin, strict=True))
    return (*slices, ...)


def _paste(fields: dict[str, np.ndarray], p: Parcel, box: np.ndarray) -> None:
    """Puts a parcel into its tile; a parcel that is the whole tile is taken as it is."""
    if not fields and (p.box == box).all():
        fields.update(p.fields)
        return
    if fields and (p.box[:, 0] >= p.box[:, 1]).any():
        return  # beside a tile that was taken as it is and may be read-only
    for name, part in p.fields.items():
        if name not in fields:
            fields[name] = np.empty(extents(box), part.dtype)
        fields[name][_slices(p.box, box[:, 0])] = part


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
