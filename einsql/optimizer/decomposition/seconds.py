"""Predicted seconds of a cut, from a machine's rates: the objective of `SET cost = 'seconds'`.

The sites of cells are unknown before placement, so the prediction assumes a good placement:

* Cells are distributed evenly over the sites.
* Every site already stores the tile of its operand that overlaps the needed one most.
* All sites of a group share the merge of partial results, if an axis of the result is long
  enough.
* Senders share the traffic evenly.
* Stored tensors are read at their sites. The movement of one that nothing changes counts once in
  `RUNS` runs, because sites keep it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import inf, prod

import numpy as np

from einsql.core.boxes import split
from einsql.core.machine import Machine
from einsql.core.records import dataclass
from einsql.ir.remembered import computed_once
from einsql.ir.tile_copies import keepable
from einsql.optimizer.decomposition.costs import tiles
from einsql.optimizer.decomposition.problem import Use, Vertex, cost_key
from einsql.optimizer.decomposition.vectors import restricted

CACHED = 3
"""The speed-up of reads and writes of data in a cache of the core."""

RUNS = 16
"""Runs of a statement that share the movement of a constant tensor; most statements run once or
very often, and between both the choice hardly matters."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of the busiest site, summed over operations and the exchanges between them.

    Attributes:
        machine: The rates.
        sites: p, the number of sites.
        memory: The maximum of bytes of a cell; None for no limit.
    """

    machine: Machine
    sites: int
    memory: int | None = None

    @property
    def exactly(self) -> bool:
        """False: a contraction may use fewer sites, because the objective costs idle sites."""
        return False

    @property
    def gains_by_groups(self) -> bool:
        """True, because what a group passes is in a cache."""
        return True

    @property
    def without_network(self) -> Seconds:
        """Seconds of kernels and of merging."""
        return replace(self, machine=replace(self.machine, network=inf, latency=0.0))

    def vertex(self, v: Vertex, vectors: np.ndarray) -> np.ndarray:
        """Seconds of the largest cell, of a call's overhead and of merging partial results.

        A cell's arithmetic is costed at the machine's rate, its tiles at the bandwidth of
        memory: kernels copy operands before they multiply, or alternate reading and computing.
        What a group passes is in a cache, and one call runs all operations of the group.
        """
        if not v.computes:
            return np.zeros(len(vectors))
        state = vectors.shape, vectors.tobytes()
        key = "vertex", self.machine, self.sites, v.reduced, *state, *cost_key(v)
        return computed_once(key, lambda: _read_only(self._vertex(v, vectors)))

    def _vertex(self, v: Vertex, vectors: np.ndarray) -> np.ndarray:
        m = self.machine
        rounds = -(-vectors.prod(axis=1) // self.sites)
        if v.renames:
            return np.asarray(rounds * m.call_overhead)
        point = m.arithmetic(v.effort, contraction=v.contraction, double=v.double)
        points = _volume(tiles(v.extents, vectors)) * v.density
        work = points * point
        cut = restricted(vectors, v.keys)
        result = _volume(tiles(v.shape, cut)) * v.state_bytes
        nbytes = result / (CACHED if v.passes else 1)
        for use in v.uses:
            read = _volume(tiles(use.shape, restricted(vectors, use.axes)))
            # A gather reads few rows of its table.
            nbytes += np.minimum(read, points) * use.nbytes / (CACHED if use.passed else 1)
        once = work + nbytes / m.memory_bandwidth + (0.0 if v.follows else m.call_overhead)
        group = vectors[:, list(v.reduced)].prod(axis=1)
        share = np.where(_spreads(v.shape, cut, group), group, 1)
        arriving = (group - 1) / share * result
        merging = arriving / m.network + (group - 1) * m.latency
        merging += (arriving + result) / m.memory_bandwidth
        return np.asarray(rounds * once + np.where(group > 1, merging, 0.0))

    def made(self, v: Vertex, vectors: np.ndarray) -> np.ndarray:
        """The cut of the result, its number of calls, and the number of calls per tile.

        For a stored tensor, the number of its sites takes the place of the calls.
        """
        calls = np.full(len(vectors), v.holders) if v.holders else vectors.prod(axis=1)
        group = vectors[:, list(v.reduced)].prod(axis=1)
        return np.column_stack([restricted(vectors, v.keys), calls, group])

    def used(self, use: Use, vectors: np.ndarray) -> np.ndarray:
        """The cut of the operand, and the calls that read it."""
        return np.column_stack([restricted(vectors, use.axes), vectors.prod(axis=1)])

    def repartition(self, use: Use, made: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Seconds of the site that receives or sends most, for every pair of cuts; (a, b).

        A reader's site receives its tile except for the overlap with its stored tile. If
        there are more reading calls than sites with tiles, some sites receive the complete tile.
        """
        cuts = made.shape, made.tobytes(), used.shape, used.tobytes()
        key = "repartition", self.machine, self.sites, use.shape, use.nbytes, use.constant, *cuts
        return computed_once(key, lambda: _read_only(self._repartition(use, made, used)))

    def _repartition(self, use: Use, made: np.ndarray, used: np.ndarray) -> np.ndarray:
        axes = len(use.shape)
        calls, group = made[:, None, axes], made[:, None, axes + 1]
        readers = used[None, :, axes]
        shares = _spreads(use.shape, made[:, :axes], made[:, axes + 1])[:, None]
        piece = _volume(tiles(use.shape, made[:, :axes]))[:, None] / np.where(shares, group, 1)
        holders = np.minimum(np.where(shares, calls, calls // group), self.sites)
        need = _volume(tiles(use.shape, used[:, :axes]))[None, :]
        least, mean, met = _overlaps(use.shape, made[:, :axes], used[:, :axes])
        idle = readers > holders
        missing = need - np.where(idle, 0.0, np.minimum(least, piece))
        local = np.minimum(mean, piece) * np.minimum(readers, holders)
        sent = np.maximum(0.0, readers * need - local) / holders
        most = np.maximum(missing, sent) * use.nbytes
        messages = met * np.where(shares & (group > 1), group, 1) - np.where(idle, 0, 1)
        messages = np.clip(messages, 1, np.maximum(1, holders))
        m = self.machine
        seconds = np.where(most > 0, most / m.network + messages * m.latency, 0.0)
        if use.constant:
            is_kept = readers * need <= keepable(prod(use.shape))
            seconds = np.where(is_kept, seconds / RUNS, seconds)
        return np.asarray(seconds)

    def repeated(self, copies: int) -> float:
        """1, because groups work at the same time."""
        return 1.0


def _read_only(costs: np.ndarray) -> np.ndarray:
    """The costs, which callers share."""
    costs.flags.writeable = False
    return costs


def _volume(extents: np.ndarray) -> np.ndarray:
    return np.asarray(extents.prod(axis=1, dtype=np.float64))


def _spreads(shape: tuple[int, ...], cut: np.ndarray, group: np.ndarray) -> np.ndarray:
    """True where some axis of a result's tiles has a slice for each member of a group."""
    smallest = np.asarray(shape, np.int64) // cut
    return np.asarray((smallest >= group[:, None]).any(axis=1))


def _overlaps(
    shape: tuple[int, ...], made: np.ndarray, used: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The overlap of each needed tile with the stored tile that overlaps it most.

    Returns:
        Three arrays (a, b): elements of the least overlap over the tiles, elements of the
        mean overlap, and the maximum of tiles that intersect one tile.
    """
    least, mean, met = (np.ones((len(made), len(used))) for _ in range(3))
    for axis, extent in enumerate(shape):
        rows, row = np.unique(made[:, axis], return_inverse=True)
        columns, column = np.unique(used[:, axis], return_inverse=True)
        table = np.array([[_overlap(extent, int(a), int(b)) for b in columns] for a in rows])
        for total, part in zip((least, mean, met), table.transpose(2, 0, 1), strict=True):
            total *= part[row[:, None], column[None, :]]
    return least, mean, met


@lru_cache(maxsize=65536)
def _overlap(extent: int, made: int, used: int) -> tuple[float, float, float]:
    """The overlaps along one axis, for the numbers of intervals of both cuts."""
    have, need = split(0, extent, made), split(0, extent, used)
    first = np.searchsorted(have[:, 1], need[:, 0], side="right")
    last = np.searchsorted(have[:, 0], need[:, 1], side="left")
    best = np.zeros(used)
    # The first two intervals and the last one suffice, because the intervals
    # between them are covered completely and differ by one element at most.
    for at in (first, first + 1, last - 1):
        mine = have[np.clip(at, 0, made - 1)]
        common = np.minimum(mine[:, 1], need[:, 1]) - np.maximum(mine[:, 0], need[:, 0])
        best = np.maximum(best, common)
    return float(best.min()), float(best.mean()), float(np.maximum(1, last - first).max())
