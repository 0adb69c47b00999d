"""The messages between sites in a step of a placed program.

As in the runtime, messages go directly to their targets: one for each piece of a tile and
each of its fields. The messages from one site to another are combined into one entry,
because they share a connection.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from einsql.core.boxes import common, extents
from einsql.core.records import dataclass
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Complete, Exchange
from einsql.ir.spmd.reduce_tree import rounds


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """The messages between different sites, at most one entry per pair of sites.

    Attributes:
        sites: The number of sites.
        source: int64 (entries,), the sending site.
        target: int64 (entries,), the receiving site.
        size: float64 (entries,), positive integers: elements or bytes.
        pieces: int64 (entries,), the number of pieces of tiles or of messages.
    """

    sites: int
    source: np.ndarray
    target: np.ndarray
    size: np.ndarray
    pieces: np.ndarray

    def of(self, width: float, fields: int) -> Messages:
        """The messages in bytes, for elements of `width` bytes in a number of fields."""
        return replace(self, size=self.size * width, pieces=self.pieces * fields)

    def only(self, which: np.ndarray) -> Messages:
        """The entries selected by a mask, bool (entries,)."""
        columns = (self.source, self.target, self.size, self.pieces)
        return Messages(self.sites, *(c[which] for c in columns))

    def sent(self) -> np.ndarray:
        """The size that each site sends, float64 (sites,)."""
        return np.bincount(self.source, self.size, self.sites)

    def received(self) -> np.ndarray:
        """The size that each site receives, float64 (sites,)."""
        return np.bincount(self.target, self.size, self.sites)


def together(source: np.ndarray, target: np.ndarray, size: np.ndarray, sites: int) -> Messages:
    """Combines pieces with the same source and target; drops pieces that do not change site."""
    moves = (source != target) & (size > 0)
    ends = source[moves] * sites + target[moves]
    pairs, pair, pieces = np.unique(ends, return_inverse=True, return_counts=True)
    total = np.bincount(pair.reshape(-1), size[moves], len(pairs))
    return Messages(sites, pairs // sites, pairs % sites, total, pieces)


def exchanging(base: Tiles, step: Exchange, sites: int) -> Messages:
    """The messages of an exchange, in elements.

    Args:
        base: The tiles of the exchange's first source, from which tiles are assembled.
        step: The exchange.
        sites: The number of sites.
    """
    absent = step.at_hand[:, 0] < 0
    targets, boxes = step.tiles.sites[absent], step.tiles.boxes[absent]
    shared = _shared(base.boxes[: base.once], boxes)
    tile, needed = np.nonzero(shared)
    target, size = targets[needed], shared[tile, needed]
    holders = base.sites.reshape(base.copies, base.once)
    # Each group of sites sends to its own members; sites with a copy receive nothing.
    source = holders[target * base.copies // sites, tile]
    there = (holders[:, tile] == target).any(axis=0)
    return together(np.where(there, target, source), target, size, sites)


def _shared(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Elements of the intersections of boxes with other boxes, float64 (boxes, others)."""
    total = np.ones((len(boxes), len(others)))
    for a in range(boxes.shape[1]):
        mine, row = np.unique(boxes[:, a], axis=0, return_inverse=True)
        theirs, column = np.unique(others[:, a], axis=0, return_inverse=True)
        lengths = extents(common(mine[:, None, None], theirs[None, :, None])).astype(np.float64)
        total *= lengths[..., 0][np.ix_(row.reshape(-1), column.reshape(-1))]
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Merging:
    """The work of a completion, in elements.

    Attributes:
        before: float64 (sites,), elements that a site reads and writes to merge its own parts.
        rounds: For each later round the messages, and the elements that their receivers
            read and write to merge them, float64 (sites,).
    """

    before: np.ndarray
    rounds: tuple[tuple[Messages, np.ndarray], ...]


def merging(partial: Tiles, step: Complete, sites: int) -> Merging:
    """The work of merging partial results: several parts are read, and one is written.

    Args:
        partial: The partial tiles.
        step: The completion.
        sites: The number of sites.
    """
    volumes = step.tiles.volumes.astype(np.float64)
    tile, part = np.nonzero(step.parts >= 0)
    key = tile * sites + partial.sites[step.parts[tile, part]]
    holders, parts = np.unique(key, return_counts=True)
    before = np.bincount(holders % sites, _merged(parts) * volumes[holders // sites], sites)
    per_round = []
    for r in rounds(partial, step):
        messages = together(r.sources, r.targets, volumes[r.tiles], sites)
        places, arriving = np.unique(r.tiles * sites + r.targets, return_counts=True)
        merged = _merged(arriving + np.isin(places, holders)) * volumes[places // sites]
        per_round.append((messages, np.bincount(places % sites, merged, sites)))
        holders = np.union1d(holders, places)
    return Merging(before, tuple(per_round))


def _merged(parts: np.ndarray) -> np.ndarray:
    """Reads and writes per element when a number of parts are merged into one."""
    return np.where(parts > 1, parts + 1, 0)
