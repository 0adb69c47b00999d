"""Predicts the seconds of every step and the memory of every site of an SPMD program.

The cells, tiles and messages of every site are exact; the rates are those of the machine. A
step's time is that of its busiest site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einsql.core.boxes import extents
from einsql.core.machine import Machine
from einsql.core.mappings import memoized
from einsql.core.records import dataclass
from einsql.core.sparse.numbering import index_type, matrix_shape
from einsql.ir.einsum.flops import effort_at_point
from einsql.ir.einsum.graph import EinSum, Input, Value, stored_operands
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.einsum.points import cell_work, in_cell
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import (
    Complete,
    Exchange,
    FusedSteps,
    Local,
    Program,
    Step,
    element_bytes,
    state_bytes,
    tuple_bytes,
)
from einsql.optimizer.decomposition.problem import renames
from einsql.optimizer.decomposition.seconds import CACHED
from einsql.optimizer.placement.traffic import (
    Traffic,
    completing,
    exchanged,
    stored_counts,
    stored_exchanged,
)
from einsql.optimizer.rewrite.node_properties import is_total


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted time, memory and traffic of a program.

    Attributes:
        seconds: The seconds of each step.
        cells: Bytes of the largest cell of each step; 0 for steps that are not local.
        memory: int64 (sites,), the peak of bytes of tiles that a site stores.
        sent: int64 (sites,), bytes that each site sends to others.
        received: int64 (sites,), bytes that each site receives from others.
    """

    seconds: list[float]
    cells: list[int]
    memory: np.ndarray
    sent: np.ndarray
    received: np.ndarray


def predict(program: Program, machine: Machine) -> Prediction:
    """Predicts a program's time, memory and traffic on a machine."""
    costs = StepCosts(program, machine)
    seconds, cells = [], []
    sent, received = np.zeros(program.sites), np.zeros(program.sites)
    for n, step in enumerate(program.steps):
        if isinstance(step, Local):
            moved = costs.traffic(n)
            seconds.append(float(costs.local(n, step).max()) + costs.moving(moved))
            cells.append(costs.largest(n, step))
        else:
            moved = costs.traffic(n)
            seconds.append(costs.moving(moved) + costs.merging(step))
            cells.append(0)
        sent += moved.sent
        received += moved.received
    memory = costs.memory()
    traffic = sent.astype(np.int64), received.astype(np.int64)
    return Prediction(_overlapped(program, seconds), cells, memory, *traffic)


def _overlapped(program: Program, seconds: Sequence[float]) -> list[float]:
    """The seconds of each step, of a posted exchange only those that no local step covers."""
    seconds = list(seconds)
    spare = [
        s if isinstance(step, Local) else 0.0
        for s, step in zip(seconds, program.steps, strict=True)
    ]
    for post in sorted(program.posts, key=lambda post: post.exchange):
        for n in range(post.before, post.exchange):
            covered = min(seconds[post.exchange], spare[n])
            seconds[post.exchange] -= covered
            spare[n] -= covered
    return seconds


class StepCosts:
    """The costs of steps at each site.

    Layers of a network repeat steps, so the traffic of equal steps is computed once.
    """

    def __init__(self, program: Program, machine: Machine) -> None:
        self.program = program
        self.machine = machine
        self._none = Traffic(*(np.zeros(program.sites) for _ in range(3)))
        self._traffic: dict[object, Traffic] = {}
        self._keys: dict[int, object] = {}
        self._volumes: dict[int, np.ndarray] = {}
        self._hidden = program.hidden()
        """Steps whose tiles are never stored."""
        self._begun = {n for t in program.together for n in t.steps[:-1]}
        """Local steps that run in place of another one."""
        self._groups = {t.steps[-1]: t.steps for t in program.together}
        self._routed = {t.steps[-1]: t for t in program.together if t.routed is not None}

    def traffic(self, n: int) -> Traffic:
        """The traffic of a step between sites, in bytes."""
        step, sites = self.program.steps[n], self.program.sites
        if n in self._routed:
            return _routed_traffic(self._routed[n])
        if isinstance(step, Complete):
            partial = self.program.steps[step.source].tiles
            return completing(partial, step, sites).of(state_bytes(step.node))
        if not isinstance(step, Exchange) or step.nbytes == 0:
            return self._none
        if step.selection is not None:
            return _between(step.selection.sends, 2)
        # Elements that are not at hand come from one copy of the relation.
        base = self.program.steps[step.sources[0]].tiles
        absent = step.at_hand[:, 0] < 0
        relation = self.program.relation(step.sources[0])
        if relation.sparse:
            return memoized(
                self._traffic,
                n,
                lambda: stored_exchanged(
                    relation, _from_0(relation, base), _from_0(relation, step.tiles), absent, sites
                ),
            )
        key = (self.key(base), self.key(step.tiles), absent.tobytes())
        if key not in self._traffic:
            have = Tiles(base.sites[: base.once], base.boxes[: base.once])
            need = Tiles(step.tiles.sites[absent], step.tiles.boxes[absent])
            self._traffic[key] = exchanged(have, need, sites)
        return self._traffic[key].of(tuple_bytes(relation))

    def key(self, tiles: Tiles) -> object:
        """A key that is equal for equal tiles."""
        return memoized(
            self._keys, id(tiles), lambda: (tiles.sites.tobytes(), tiles.boxes.tobytes())
        )

    def moving(self, traffic: Traffic) -> float:
        """Seconds of the site that sends or receives most."""
        busiest = np.maximum(traffic.sent, traffic.received) / self.machine.network
        return float((busiest + traffic.messages * self.machine.latency).max(initial=0.0))

    def merging(self, step: Step) -> float:
        """Seconds of the site that merges most: it reads the parts in turn and writes once."""
        if not isinstance(step, Complete):
            return 0.0
        passes = (step.parts >= 0).sum(axis=1) + 1
        nbytes = self._elements(step.tiles) * passes * state_bytes(step.node)
        most = np.bincount(step.tiles.sites, nbytes, self.program.sites).max()
        return float(most / self.machine.memory_bandwidth)

    def local(self, n: int, step: Local) -> np.ndarray:
        """Seconds in which each site runs its cells in sequence, float64 (sites,)."""
        node, m = step.node, self.machine
        contraction = bool(node.reduced) and len(node.operands) > 1
        double = any(o.dtype.numpy.itemsize > 4 for o in node.outputs)
        points = self._points(n, step) * occupied(step, self.program)
        if points.max(initial=0) == 0:
            return np.zeros(self.program.sites)
        if renames(node) or _is_view(node):  # it returns its operand's tiles
            return np.bincount(step.sites, minlength=self.program.sites) * m.call_overhead
        effort = effort_at_point(in_cell(node, step.labels, step.cells[0]))
        point = m.arithmetic(effort, contraction=contraction, double=double)
        stored, passed = self._cell_bytes(n, step, read=True)
        each = points * point + (stored + passed / CACHED) / m.memory_bandwidth
        if step.blocks is not None:  # rows of all cells run at the sites of blocks
            each = each * max(1.0, len(each) / len(step.blocks.sites))
        if n not in self._begun:
            each = each + m.call_overhead
        return np.bincount(step.sites, each, self.program.sites)

    def _points(self, n: int, step: Local) -> np.ndarray:
        """The points of each cell; a group of steps omits those that a mask excludes."""
        if n in self._begun or n in self._groups:
            points, _ = cell_work(step.node, step.labels, step.cells)
            return points.astype(np.float64)
        return np.asarray(extents(step.cells).prod(axis=1, dtype=np.float64))

    def _stored_bytes(self, relation: Input | EinSum, tiles: Tiles) -> np.ndarray:
        """Bytes of each tile of a relation."""
        if not relation.sparse:
            return self._elements(tiles) * tuple_bytes(relation)
        counts = stored_counts(relation, _from_0(relation, tiles).boxes)
        starts = index_type(*matrix_shape(relation.schema.shape)).itemsize
        shapes = extents(tiles.boxes)
        rows = shapes[:, 0] + 1 if shapes.shape[1] > 1 else 2
        return np.asarray(counts * element_bytes(relation) + rows * float(starts))

    def _cell_bytes(
        self, n: int, step: Local, *, read: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of each cell: the tiles that it reads and its result tile.

        Args:
            n: The number of the step.
            step: The step.
            read: Whether to count only the elements of operands that points can read, at
                most one per point.

        Returns:
            Bytes of stored tiles, and bytes of intermediates of fused steps.
        """
        node = with_state(step.node) if step.partial else step.node
        total = np.zeros((2, len(step.cells)))
        points = extents(step.cells).prod(axis=1, dtype=np.float64)
        total[int(n in self._hidden)] += self._stored_bytes(node, step.tiles)
        for o, source, pick in zip(node.operands, step.operands, step.picks, strict=True):
            there = self._stored_bytes(o.source, self.program.steps[source].tiles)[pick]
            if read:  # a gather reads few rows of its table
                there = np.minimum(there, points * tuple_bytes(o.source))
            total[int(source in self._hidden)] += there
        return total[0], total[1]

    def largest(self, n: int, step: Local) -> int:
        """Bytes of the largest cell; a merged cell also receives a tile from its group.

        The last step of a group has the tiles of all its steps.
        """
        if n in self._groups:
            return int(self._group_bytes(self._groups[n]).max(initial=0))
        total, _ = self._cell_bytes(n, step)
        if step.partial:
            total = total + self._elements(step.tiles) * state_bytes(step.node)
        return int(total.max(initial=0))

    def _group_bytes(self, steps: Sequence[int]) -> np.ndarray:
        """Bytes of each cell of a group: the tiles that it reads, each once, and that it stores."""
        total = np.zeros(len(self.program.steps[steps[-1]].tiles.boxes))
        read: set[object] = set()
        for n in steps:
            step = self.program.steps[n]
            assert isinstance(step, Local)
            if n not in self._hidden:
                width = 2 * state_bytes(step.node) if step.partial else tuple_bytes(step.node)
                total += self._elements(step.tiles) * width
            for o, source, pick in zip(step.node.operands, step.operands, step.picks, strict=True):
                key = source, pick.tobytes()
                if source not in self._hidden and key not in read:
                    read.add(key)
                    tiles = self._elements(self.program.steps[source].tiles)[pick]
                    total += tiles * tuple_bytes(o.source)
        return total

    def _elements(self, tiles: Tiles) -> np.ndarray:
        return memoized(self._volumes, id(tiles), lambda: tiles.volumes.astype(np.float64))

    def memory(self) -> np.ndarray:
        """The peak of bytes that each site stores; tiles are freed after their last reader.

        A view that is the last reader of its operand's tiles takes no memory besides theirs.
        """
        released, posts = self.program.released(), self.program.posts_before
        in_use = np.zeros(self.program.sites, np.int64)
        peak = in_use.copy()
        sizes: dict[int, np.ndarray] = {}
        for n, step in enumerate(self.program.steps):
            for exchange in posts.get(n, ()):  # its tiles are received from here on
                sizes[exchange] = self._sizes(exchange, self.program.steps[exchange])
                in_use += sizes[exchange]
            ending = released[n]
            if (
                isinstance(step, Local)
                and step.operands[:1] == tuple(ending)
                and _is_view(step.node)
            ):
                sizes[n] = sizes.pop(ending.pop())
                continue
            if n not in sizes:
                sizes[n] = self._sizes(n, step)
                in_use += sizes[n]
            arriving = isinstance(step, Complete)  # partial tiles at the sites that merge them
            extra = self.traffic(n).received.astype(np.int64) if arriving else 0
            np.maximum(peak, in_use + extra, out=peak)
            for source in ending:
                in_use -= sizes.pop(source)
        return peak

    def _sizes(self, n: int, step: Step) -> np.ndarray:
        """Bytes of a step's tiles at each site."""
        if n in self._hidden:
            return np.zeros(self.program.sites, np.int64)
        relation = self.program.relation(n)
        if isinstance(step, Local | Complete) and step.partial:
            relation = with_state(step.node)
        nbytes = self._stored_bytes(relation, step.tiles)
        return np.bincount(step.tiles.sites, nbytes, self.program.sites).astype(np.int64)


def _routed_traffic(plan: FusedSteps) -> Traffic:
    """The expected traffic of rows that move to blocks, and of their results."""
    assert plan.routed is not None
    return _between(plan.routed.sends, 1 + len(plan.routed.relations) + sum(plan.visible))


def _between(sends: np.ndarray, exchanges: int) -> Traffic:
    """The traffic of some exchanges, given the bytes between each pair of sites."""
    peers = np.maximum((sends > 0).sum(axis=0), (sends > 0).sum(axis=1))
    return Traffic(sends.sum(axis=1) * 1.0, sends.sum(axis=0) * 1.0, peers * float(exchanges))


def occupied(step: Local, program: Program) -> np.ndarray:
    """The fraction of each cell's points that exist, as sparse operands have elements."""
    fraction = np.ones(len(step.cells))
    for operand in stored_operands(step.node):
        source, relation = step.operands[operand], step.node.operands[operand].source
        tiles = program.steps[source].tiles
        counts = stored_counts(relation, _from_0(relation, tiles).boxes)
        fraction *= (counts / np.maximum(1, tiles.volumes))[step.picks[operand]]
    return fraction


def cell_flops(step: Local, program: Program) -> np.ndarray:
    """The scalar operations of each cell, int64 (cells,), expected for joins of sparse operands."""
    _, flops = cell_work(step.node, step.labels, step.cells)
    if not stored_operands(step.node):
        return flops
    return np.asarray(np.rint(flops * occupied(step, program)), np.int64)


def _from_0(relation: Input | EinSum, tiles: Tiles) -> Tiles:
    """The tiles of a relation as positions from 0."""
    lows = np.array([k.lo for k in relation.schema.keys], np.int64).reshape(-1, 1)
    return replace(tiles, boxes=tiles.boxes - lows) if lows.any() else tiles


def _is_view(node: EinSum) -> bool:
    """True if a map over one operand reads its values at other keys, all of which exist."""
    values = all(isinstance(a, Value) for o in node.outputs for a in o.args)
    return len(node.operands) == 1 and node.is_elementwise and values and is_total(node)
