"""What a placed program will take: seconds of every step, and memory of every site.

Exact about which site computes, holds, sends and receives what; the rates are those of
the machine. A step takes as long as the site that is busiest with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from einsql.einsum import EinSum
from einsql.machine import Machine
from einsql.optimizer.decomposition.problem import renames
from einsql.optimizer.work import flops
from einsql.supersteps import (
    Complete,
    Exchange,
    Load,
    Local,
    Program,
    Step,
    Tiles,
    tuple_bytes,
    with_state,
)

LARGEST_GRID = 2**22
"""Cells of a grid of intervals, at most; beyond it pairs of tiles are looked at."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """What sites send and receive in one step; each array is float64 (sites,).

    Attributes:
        sent: Elements that leave each site.
        received: Elements that reach it.
        messages: Pieces of tiles that leave or reach it, whichever are more.
    """

    sent: np.ndarray
    received: np.ndarray
    messages: np.ndarray


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a program will take.

    Attributes:
        seconds: Of each step.
        cells: Bytes of the largest cell of each step; 0 for what is no local step.
        memory: int64 (sites,), the most bytes of tiles that a site holds at once.
    """

    seconds: list[float]
    cells: list[int]
    memory: np.ndarray


def predict(program: Program, machine: Machine) -> Prediction:
    """What a program will take on a machine."""
    predicting = _Predicting(program, machine)
    seconds, cells = [], []
    for n, step in enumerate(program.steps):
        seconds.append(predicting.seconds(n))
        cells.append(_largest(program, step) if isinstance(step, Local) else 0)
    return Prediction(seconds, cells, predicting.memory())


class _Predicting:
    """One prediction; layers of a network repeat steps, so equal ones are counted once."""

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program = program
        self.machine = machine
        self._traffic: dict[object, Traffic] = {}
        self._keys: dict[int, object] = {}

    def seconds(self, n: int) -> float:
        """Seconds of a step."""
        step = self.program.steps[n]
        if isinstance(step, Load):
            return 0.0
        if isinstance(step, Local):
            return self._local(step)
        width = tuple_bytes(self._node(n))
        if isinstance(step, Exchange):
            if step.nbytes == 0:
                return 0.0
            have = self.program.steps[step.source].tiles
            key = (self._key(have), self._key(step.tiles))
            if key not in self._traffic:
                self._traffic[key] = exchanged(have, step.tiles, self.program.sites)
            return self._moved(self._traffic[key], width)
        return self._complete(step)

    def _node(self, n: int) -> EinSum:
        """The operation whose result a step holds."""
        step = self.program.steps[n]
        while not isinstance(step, Local):
            assert isinstance(step, Exchange | Complete)
            step = self.program.steps[step.source]
        return step.node

    def _key(self, tiles: Tiles) -> object:
        """The same for equal tiles."""
        if id(tiles) not in self._keys:
            self._keys[id(tiles)] = tiles.sites.tobytes(), tiles.boxes.tobytes()
        return self._keys[id(tiles)]

    def _moved(self, traffic: Traffic, width: int) -> float:
        """Seconds of the site that sends or receives most."""
        busiest = np.maximum(traffic.sent, traffic.received) * width / self.machine.network
        return float((busiest + traffic.messages * self.machine.latency).max(initial=0.0))

    def _local(self, step: Local) -> float:
        """The roofline of every cell; cells at one site run one after another."""
        node, m = step.node, self.machine
        contraction = bool(node.reduced) and len(node.operands) > 1
        double = any(o.dtype.numpy.itemsize > 4 for o in node.outputs)
        points = _volumes(step.cells)
        if points.max(initial=0) == 0:
            return 0.0
        if renames(node):  # it hands on what it reads
            return float(np.bincount(step.sites).max() * m.call_overhead)
        work = points * (flops(node) // max(1, node.points))
        rate = m.rate(contraction=contraction, double=double)
        nbytes = _cell_bytes(self.program, step)
        each = np.maximum(work / rate, nbytes / m.memory_bandwidth) + m.call_overhead
        return float(np.bincount(step.sites, each).max())

    def _complete(self, step: Complete) -> float:
        """What the members of a group send to those who merge, and the merging itself."""
        local = self.program.steps[step.source]
        assert isinstance(local, Local)
        sites, width = self.program.sites, tuple_bytes(with_state(local.node))
        volumes = step.tiles.volumes.astype(np.float64)
        source, target = local.tiles.sites[step.parts], step.tiles.sites[:, None]
        remote = source != target
        moved = remote * volumes[:, None]
        received = np.bincount(step.tiles.sites, moved.sum(axis=1), sites)
        sent = np.bincount(source.reshape(-1), moved.reshape(-1), sites)
        messages = np.maximum(
            np.bincount(step.tiles.sites, remote.sum(axis=1), sites),
            np.bincount(source.reshape(-1), remote.reshape(-1), sites),
        )
        parts = step.parts.shape[1] + 1  # read one after another, and written once
        merging = np.bincount(step.tiles.sites, volumes * parts * width, sites)
        return self._moved(Traffic(sent, received, messages), width) + float(
            merging.max() / self.machine.memory_bandwidth
        )

    def memory(self) -> np.ndarray:
        """The most bytes each site holds at once; tiles go after their last reader."""
        steps = self.program.steps
        last = {n: n for n in range(len(steps))}
        for n, step in enumerate(steps):
            for source in _sources(step):
                last[source] = n
        last[self.program.root] = len(steps)
        ends: dict[int, list[int]] = {}
        for source, n in last.items():
            ends.setdefault(n, []).append(source)
        held = np.zeros(self.program.sites, np.int64)
        peak = held.copy()
        sizes: dict[int, np.ndarray] = {}
        for n, step in enumerate(steps):
            sizes[n] = self._sizes(n, step)
            held += sizes[n]
            np.maximum(peak, held + self._arriving(step), out=peak)
            for source in ends.get(n, ()):
                held -= sizes.pop(source)
        return peak

    def _arriving(self, step: Step) -> np.ndarray | int:
        """Bytes of partial tiles at the sites that merge them."""
        if not isinstance(step, Complete):
            return 0
        local = self.program.steps[step.source]
        assert isinstance(local, Local)
        remote = (local.tiles.sites[step.parts] != step.tiles.sites[:, None]).sum(axis=1)
        nbytes = remote * step.tiles.volumes * tuple_bytes(with_state(local.node))
        return np.bincount(step.tiles.sites, nbytes, self.program.sites).astype(np.int64)

    def _sizes(self, n: int, step: Step) -> np.ndarray:
        """Bytes of a step's tiles at each site."""
        if isinstance(step, Load):
            width = tuple_bytes(step.source)
        elif isinstance(step, Local) and step.partial:
            width = tuple_bytes(with_state(step.node))
        else:
            width = tuple_bytes(self._node(n))
        counts = np.bincount(step.tiles.sites, step.tiles.volumes * width, self.program.sites)
        return counts.astype(np.int64)


def exchanged(have: Tiles, need: Tiles, sites: int) -> Traffic:
    """What an exchange moves between sites.

    What a tile shares with all tiles of the other side is a product over the axes where
    those lie on a grid, so no pair of tiles is looked at.
    """
    sent, parcels_out = _shared(have.boxes, need.boxes)
    got, parcels_in = _shared(need.boxes, have.boxes)
    sent = np.bincount(have.sites, sent, sites)
    received = np.bincount(need.sites, got, sites)
    out = np.bincount(have.sites, parcels_out, sites)
    incoming = np.bincount(need.sites, parcels_in, sites)
    stays, pieces = _staying(have, need, sites)
    return Traffic(sent - stays, received - stays, np.maximum(out, incoming) - pieces)


def _shared(boxes: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each box what it shares with all the others in sum, and how many it meets."""
    if boxes.shape[1] == 0:
        once = np.full(len(boxes), float(len(others)))
        return once, once
    at, index = np.zeros(len(boxes), np.int64), np.zeros(len(others), np.int64)
    axes = range(boxes.shape[1])
    mine, rows = zip(*(_intervals(boxes[:, a]) for a in axes), strict=True)
    theirs, columns = zip(*(_intervals(others[:, a]) for a in axes), strict=True)
    shape = [len(t) for t in theirs]
    if prod(max(len(m), n) for m, n in zip(mine, shape, strict=True)) > LARGEST_GRID:
        return _shared_by_pairs(boxes, others)
    volumes = []
    for a in axes:
        at, index = at * len(mine[a]) + rows[a], index * shape[a] + columns[a]
        volumes.append(_common(mine[a][:, None], theirs[a][None]).astype(np.float64))
    grid = np.bincount(index, minlength=prod(shape)).astype(np.float64)
    meets = [(v > 0).astype(np.float64) for v in volumes]
    found = []
    for tables in (volumes, meets):
        total = grid.reshape(shape)
        for table in tables:  # the axis in front goes, the one of `boxes` comes last
            total = np.tensordot(total, table, axes=(0, 1))
        found.append(total.reshape(-1)[at])
    return found[0], found[1]


def _shared_by_pairs(boxes: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """As `_shared`, for boxes on no grid."""
    pairs = np.array([
        (common.sum(), (common > 0).sum())
        for common in (_common(box[None], others).prod(axis=1) for box in boxes)
    ]).reshape(-1, 2)  # fmt: skip
    return pairs[:, 0].astype(np.float64), pairs[:, 1].astype(np.float64)


def _common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What intervals share; the last axis of both holds lo and hi."""
    lo, hi = np.maximum(a[..., 0], b[..., 0]), np.minimum(a[..., 1], b[..., 1])
    return np.asarray(np.maximum(0, hi - lo))


def _intervals(axis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different intervals of an axis, and the number of each row's."""
    base = axis[:, 0].min(initial=0)
    span = int(axis.max(initial=0)) - int(base) + 1
    _, first, index = np.unique(
        (axis[:, 0] - base) * span + (axis[:, 1] - base), return_index=True, return_inverse=True
    )
    return axis[first], index.reshape(-1)


def _staying(have: Tiles, need: Tiles, sites: int) -> tuple[np.ndarray, np.ndarray]:
    """Elements of each site's needed tiles that it holds already, and the pieces they are."""
    order = np.argsort(have.sites, kind="stable")
    holders, boxes = have.sites[order], have.boxes[order]
    first = np.searchsorted(holders, need.sites, side="left")
    last = np.searchsorted(holders, need.sites, side="right")
    stays, pieces = np.zeros(sites), np.zeros(sites)
    for n in range(int((last - first).max(initial=0))):
        there = first + n < last
        mine = boxes[np.where(there, first + n, 0)]
        common = _common(need.boxes, mine).prod(axis=1) * there
        stays += np.bincount(need.sites, common, sites)
        pieces += np.bincount(need.sites, common > 0, sites)
    return stays, pieces


def _volumes(boxes: np.ndarray) -> np.ndarray:
    return np.asarray((boxes[:, :, 1] - boxes[:, :, 0]).prod(axis=1, dtype=np.float64))


def _cell_bytes(program: Program, step: Local) -> np.ndarray:
    """Bytes of each cell: the tiles it reads and the one it makes."""
    node = with_state(step.node) if step.partial else step.node
    total = step.tiles.volumes * float(tuple_bytes(node))
    for o, source, pick in zip(node.operands, step.operands, step.picks, strict=True):
        total += program.steps[source].tiles.volumes[pick] * float(tuple_bytes(o.source))
    return np.asarray(total)


def _largest(program: Program, step: Local) -> int:
    """Bytes of the largest cell; one that is merged gets as much as it makes from its group."""
    total = _cell_bytes(program, step)
    if step.partial:
        total = total + step.tiles.volumes * float(tuple_bytes(with_state(step.node)))
    return int(total.max(initial=0))


def _sources(step: Step) -> tuple[int, ...]:
    if isinstance(step, Local):
        return step.operands
    return () if isinstance(step, Load) else (step.source,)
