"""Which site sends how much to which other site in a step of a placed program.

The messages are those of the runtime, which go straight to their targets: one for each
piece of a tile and each of its fields. Those from one site to another are kept together,
for they share a connection.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from einsql.core.boxes import common, extents
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Complete, Exchange, Local
from einsql.ir.spmd.reduce_tree import rounds


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """The messages between different sites, at most one entry per pair of sites.

    Attributes:
        sites: The number of sites.
        source: int64 (entries,), the sending site.
        target: int64 (entries,), the receiving site.
        size: float64 (entries,), positive integers: elements or bytes.
        pieces: int64 (entries,), the number of pieces of tiles, or of messages.
    """

    sites: int
    source: np.ndarray
    target: np.ndarray
    size: np.ndarray
    pieces: np.ndarray

    def of(self, width: int, fields: int) -> Messages:
        """In bytes and messages, if an element has so many, in so many fields."""
        return replace(self, size=self.size * width, pieces=self.pieces * fields)

    def only(self, which: np.ndarray) -> Messages:
        """Some of the entries, by a flag for each, bool (entries,)."""
        columns = (self.source, self.target, self.size, self.pieces)
        return Messages(self.sites, *(c[which] for c in columns))

    def sent(self) -> np.ndarray:
        """The size that each site sends, float64 (sites,)."""
        return np.bincount(self.source, self.size, self.sites)

    def received(self) -> np.ndarray:
        """The size that each site receives, float64 (sites,)."""
        return np.bincount(self.target, self.size, self.sites)


def together(source: np.ndarray, target: np.ndarray, size: np.ndarray, sites: int) -> Messages:
    """Combines pieces with the same source and target; drops those that stay at their site."""
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
    # Each group of sites sends to its own members; a site with a copy receives nothing.
    source = holders[target * base.copies // sites, tile]
    there = (holders[:, tile] == target).any(axis=0)
    return together(np.where(there, target, source), target, size, sites)


def _shared(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Elements that each box has in common with each other one, float64 (boxes, others)."""
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
        rounds: For each round after that the messages, and the elements that their receivers
            read and write to merge them, float64 (sites,).
    """

    before: np.ndarray
    rounds: tuple[tuple[Messages, np.ndarray], ...]


def merging(local: Local, step: Complete, sites: int) -> Merging:
    """The work of merging partial results: several parts are read, and one is written.

    Args:
        local: The step whose partial tiles are merged.
        step: The completion.
        sites: The number of sites.
    """
    volumes = step.tiles.volumes.astype(np.float64)
    tile = np.repeat(np.arange(len(volumes)), step.parts.shape[1])
    key = tile * sites + local.tiles.sites[step.parts].reshape(-1)
    holders, parts = np.unique(key, return_counts=True)
    before = np.bincount(holders % sites, _merged(parts) * volumes[holders // sites], sites)
    per_round = []
    for r in rounds(local, step):
        messages = together(r.sources, r.targets, volumes[r.tiles], sites)
        places, arriving = np.unique(r.tiles * sites + r.targets, return_counts=True)
        merged = _merged(arriving + np.isin(places, holders)) * volumes[places // sites]
        per_round.append((messages, np.bincount(places % sites, merged, sites)))
        holders = np.union1d(holders, places)
    return Merging(before, tuple(per_round))


def _merged(parts: np.ndarray) -> np.ndarray:
    """How often an element is read or written where so many parts become one."""
    return np.where(parts > 1, parts + 1, 0)
