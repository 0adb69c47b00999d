"""The elements that sites send and receive when tiles change their cut."""

from __future__ import annotations

from math import prod

import numpy as np

from einsql.core.boxes import common, common_volumes, extents, volumes
from einsql.core.records import dataclass
from einsql.core.sparse.tiles import packed_bytes
from einsql.ir.einsum.density import density
from einsql.ir.einsum.graph import EinSum, Input
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Complete, value_bytes
from einsql.ir.spmd.reduce_tree import rounds
from einsql.ir.tile_transfers import beside, pieces

LARGEST_GRID = 2**22
"""The maximum of cells of an interval grid, 32 MiB of float64; else tiles are compared in pairs."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of sites in one step; each array is float64 (sites,).

    Attributes:
        sent: Elements that leave each site.
        received: Elements that reach each site.
        messages: The larger number of tile pieces, of those that leave and reach each site.
    """

    sent: np.ndarray
    received: np.ndarray
    messages: np.ndarray

    def of(self, width: float) -> Traffic:
        """The traffic in bytes, for elements of a number of bytes."""
        return Traffic(self.sent * width, self.received * width, self.messages)


def completing(partial: Tiles, step: Complete, sites: int) -> Traffic:
    """The traffic from the members of groups to the sites that merge their partial results.

    A site merges its own parts of a tile before it sends the tile.
    """
    volumes = step.tiles.volumes.astype(np.float64)
    sent, received, messages = np.zeros(sites), np.zeros(sites), np.zeros(sites)
    for r in rounds(partial, step):
        sent += np.bincount(r.sources, volumes[r.tiles], sites)
        received += np.bincount(r.targets, volumes[r.tiles], sites)
        messages += np.maximum(
            np.bincount(r.sources, minlength=sites), np.bincount(r.targets, minlength=sites)
        )
    return Traffic(sent, received, messages)


def exchanged(have: Tiles, need: Tiles, sites: int) -> Traffic:
    """The traffic of an exchange.

    If the tiles form a grid, the intersections of a tile with all tiles of the other side are
    a product over the axes, so pairs of tiles are not enumerated.
    """
    sent, parcels_out = _shared(have.boxes, need.boxes)
    got, parcels_in = _shared(need.boxes, have.boxes)
    sent = np.bincount(have.sites, sent, sites)
    received = np.bincount(need.sites, got, sites)
    out = np.bincount(have.sites, parcels_out, sites)
    incoming = np.bincount(need.sites, parcels_in, sites)
    stays, pieces = _staying(have, need, sites)
    return Traffic(sent - stays, received - stays, np.maximum(out, incoming) - pieces)


def stored_exchanged(
    relation: Input | EinSum, have: Tiles, need: Tiles, absent: np.ndarray, sites: int
) -> Traffic:
    """The traffic in bytes of an exchange of sparse tiles, with the messages about their sizes.

    It is exact for a stored tensor whose elements are known. For results it is expected.

    Args:
        relation: The relation.
        have: Its complete tiles, as positions from 0.
        need: The tiles that sites need, likewise.
        absent: bool (needed tiles,), whether a tile is assembled.
        sites: The number of sites.
    """
    source, target, boxes = pieces(have, need, np.flatnonzero(absent), sites)
    ends = have.sites[source], need.sites[target]
    crosses = ends[0] != ends[1]
    source, boxes, out, into = (a[crosses] for a in (source, boxes, *ends))
    counts = stored_counts(relation, boxes)
    width = value_bytes(relation)
    sizes = np.array(
        [
            packed_bytes(tuple(shape), int(n), width)
            for shape, n in zip(extents(boxes).tolist(), counts, strict=True)
        ]
    )
    cuts = np.concatenate([source[:, None], boxes.reshape(len(source), 2 * boxes.shape[1])], axis=1)
    first = np.unique(cuts, axis=0, return_index=True)[1]
    announced = 8 * np.bincount(out[first], minlength=sites)  # the sizes, to all other sites
    sent = np.bincount(out, sizes, sites) + announced * (sites - 1)
    received = np.bincount(into, sizes, sites) + announced.sum() - announced
    messages = np.maximum(*(np.bincount(s, minlength=sites) for s in (out, into)))
    return Traffic(sent, received, messages + (announced > 0) * (sites - 1.0))


def stored_counts(relation: Input | EinSum, boxes: np.ndarray) -> np.ndarray:
    """The number of stored elements of a sparse relation in boxes of positions, int64 (boxes,).

    It is expected for results, and for a tensor whose elements are not known.
    """
    if isinstance(relation, Input) and relation.pattern is not None:
        return relation.pattern.counts(boxes)
    return np.rint(volumes(boxes) * density(relation)).astype(np.int64)


def leaving(have: Tiles, need: Tiles, sites: int) -> np.ndarray:
    """Elements of the first copy that each site sends to other sites, float64 (sites,)."""
    once = Tiles(have.sites[: have.once], have.boxes[: have.once])
    shared, _ = _shared(once.boxes, need.boxes)
    return np.asarray(np.bincount(once.sites, shared, sites) - _staying(once, need, sites)[0])


def _shared(boxes: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each box the total volume of its intersections with others, and their number."""
    if boxes.shape[1] == 0:
        once = np.full(len(boxes), float(len(others)))
        return once, once
    at, index = np.zeros(len(boxes), np.int64), np.zeros(len(others), np.int64)
    axes = range(boxes.shape[1])
    mine, rows = zip(*(_intervals(boxes[:, a]) for a in axes), strict=True)
    theirs, columns = zip(*(_intervals(others[:, a]) for a in axes), strict=True)
    shape = [len(t) for t in theirs]
    if prod(max(len(m), n) for m, n in zip(mine, shape, strict=True)) > LARGEST_GRID:
        shared = (common_volumes(box[None], others) for box in boxes)
        pairs = np.array([(v.sum(), (v > 0).sum()) for v in shared], np.float64).reshape(-1, 2)
        return pairs[:, 0], pairs[:, 1]
    lengths = []
    for a in axes:
        at, index = at * len(mine[a]) + rows[a], index * shape[a] + columns[a]
        lengths.append(extents(common(mine[a][:, None], theirs[a][None])).astype(np.float64))
    grid = np.bincount(index, minlength=prod(shape)).astype(np.float64)
    meets = [(v > 0).astype(np.float64) for v in lengths]
    sums = []
    for tables in (lengths, meets):
        total = grid.reshape(shape)
        for table in tables:  # contracts the first axis and appends the axis of `boxes`
            total = np.tensordot(total, table, axes=(0, 1))
        sums.append(total.reshape(-1)[at])
    return sums[0], sums[1]


def _intervals(axis: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct intervals of an axis, and the interval number of each row."""
    base = axis[:, 0].min(initial=0)
    span = int(axis.max(initial=0)) - int(base) + 1
    _, first, index = np.unique(
        (axis[:, 0] - base) * span + (axis[:, 1] - base), return_index=True, return_inverse=True
    )
    return axis[first], index.reshape(-1)


def _staying(have: Tiles, need: Tiles, sites: int) -> tuple[np.ndarray, np.ndarray]:
    """Elements of needed tiles that their site already stores, and the number of their pieces."""
    stays, pieces = np.zeros(sites), np.zeros(sites)
    for there, at in beside(need, have):
        shared = common_volumes(need.boxes, have.boxes[at]) * there
        stays += np.bincount(need.sites, shared, sites)
        pieces += np.bincount(need.sites, shared > 0, sites)
    return stays, pieces
