"""The pieces of tiles that move in a step of a placed program, and their sites."""

from __future__ import annotations

import numpy as np

from einsql.core.boxes import extents
from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.engine.transport import Routes
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Complete
from einsql.ir.spmd.reduce_tree import rounds
from einsql.ir.tile_transfers import pieces


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
    """Computes the transfers of the pieces from which tiles are assembled; see `pieces`.

    Args:
        have: Complete tiles, disjoint except for copies.
        need: The tiles that are needed.
        gathered: The numbers of the needed tiles that are assembled.
        sites: The number of sites.
        schema: Keys and fields of the relation.
    """
    source, target, boxes = pieces(have, need, gathered, sites)
    cuts = np.concatenate([source[:, None], boxes.reshape(len(source), 2 * boxes.shape[1])], axis=1)
    numbers = np.unique(cuts, axis=0, return_inverse=True)[1].reshape(-1)
    routes = _routes(have.sites[source], need.sites[target], boxes, schema, numbers)
    return Moves(routes, source, target, boxes)


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
