"""The pieces of tiles that move in a step of a placed program, and their sites."""

from __future__ import annotations

import numpy as np

from einsql.core.boxes import common, extents, volumes
from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.engine.transport import Routes
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Complete
from einsql.ir.spmd.reduce_tree import rounds


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """The transfers of a step.

    Attributes:
        routes: The sites and the sizes of the transfers.
        have: int64 (routes,), the tile from which each piece is cut.
        need: int64 (routes,), the tile of which it becomes a part.
        boxes: int64 (routes, array axes, 2), the keys of the piece along the axes of its arrays.
    """

    routes: Routes
    have: np.ndarray
    need: np.ndarray
    boxes: np.ndarray


def gathering(have: Tiles, need: Tiles, gathered: np.ndarray, sites: int, schema: Schema) -> Moves:
    """Computes the pieces from which tiles are assembled.

    Each group of sites serves its own needs; a site with a copy asks no other site.

    Args:
        have: Complete tiles, disjoint except for copies.
        need: The tiles that are needed.
        gathered: The numbers of the needed tiles that are assembled.
        sites: The number of sites.
        schema: Keys and fields of the relation.
    """
    overlaps: list[tuple[int, np.ndarray, np.ndarray]] = []
    for n, (area, candidates) in enumerate(
        zip(have.areas, _same_key(have, need, gathered), strict=True)
    ):
        copy, tile = divmod(n, have.once)
        targets = need.sites[candidates]
        shared = common(area, need.areas[candidates])
        meeting = volumes(shared) > 0
        if have.copies > 1:
            holders = have.sites[tile :: have.once]
            has = holders[:, None] == targets
            asked = np.where(has.any(axis=0), has.argmax(axis=0), targets * have.copies // sites)
            meeting &= asked == copy
        at = np.flatnonzero(meeting)
        overlaps.append((n, candidates[at], shared[at]))
    counts = [len(at) for _, at, _ in overlaps]
    source = np.repeat(np.arange(len(overlaps)), counts)
    target = np.concatenate([at for _, at, _ in overlaps]) if overlaps else gathered
    boxes = np.concatenate([b for _, _, b in overlaps]) if overlaps else need.areas[gathered]
    cuts = np.concatenate([source[:, None], boxes.reshape(len(source), 2 * boxes.shape[1])], axis=1)
    pieces = np.unique(cuts, axis=0, return_inverse=True)[1].reshape(-1)
    routes = _routes(have.sites[source], need.sites[target], boxes, schema, pieces)
    return Moves(routes, source, target, boxes)


def _same_key(have: Tiles, need: Tiles, gathered: np.ndarray) -> list[np.ndarray]:
    """Returns, for each tile, the needed tiles with the same key; all of them without keys."""
    if have.keyed == 0 or not len(gathered):
        return [gathered] * len(have.sites)
    keys = [t.boxes[:, : t.keyed, 0] for t in (have, need)]
    codes = np.unique(np.concatenate([keys[0], keys[1][gathered]]), axis=0, return_inverse=True)[1]
    own, wanted = np.split(codes.reshape(-1), [len(have.sites)])
    order = np.argsort(wanted, kind="stable")
    ends = (np.searchsorted(wanted[order], own, side) for side in ("left", "right"))
    return [gathered[order[lo:hi]] for lo, hi in zip(*ends, strict=True)]


def completing(partial: Tiles, step: Complete, schema: Schema) -> list[Moves]:
    """Computes the transfers of partial tiles to be merged, one entry per round.

    Args:
        partial: The partial tiles.
        step: The partial tiles of each complete tile.
        schema: Keys and fields of partial tiles, with the state that merging needs.
    """
    moves = []
    for r in rounds(partial, step):
        boxes = step.tiles.areas[r.tiles]
        routes = _routes(r.sources, r.targets, boxes, schema, np.arange(len(r.tiles)))
        moves.append(Moves(routes, r.tiles, r.tiles, boxes))
    return moves


def _routes(
    sources: np.ndarray, targets: np.ndarray, boxes: np.ndarray, schema: Schema, pieces: np.ndarray
) -> Routes:
    dtypes = {f.name: f.dtype.numpy for f in schema.fields}
    return Routes(sources, targets, extents(boxes), dtypes, pieces)
