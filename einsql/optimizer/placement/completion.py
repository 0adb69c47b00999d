"""Completions of partial results: at one site of each group, or a piece at each member."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from einsql.core.boxes import part
from einsql.core.records import dataclass
from einsql.ir.layout import Entry, Layout, Partial, Shard, Single, Tiles
from einsql.ir.spmd.program import CollectiveName
from einsql.optimizer.placement.layouts import laid


@dataclass(frozen=True, slots=True, eq=False)
class PartialResult:
    """A result whose tiles must be merged.

    Attributes:
        tiles: The partial tiles.
        members: (groups, members), the tiles that are merged into one tile; the groups of one
            copy are contiguous.
        width: Bytes of a tuple, including the state for merging.
        along: Positions of the free labels along whose grid axes tiles are merged, -1 for
            the axis of copies.
    """

    tiles: Tiles
    members: np.ndarray
    width: float
    along: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """A possible completion of a partial result; attributes as in the step `Complete`."""

    tiles: Tiles
    parts: np.ndarray
    collective: CollectiveName
    nbytes: int


def completions(partial: PartialResult) -> list[Completion]:
    """The completions of a partial result: at one site of each group, or over all members."""
    members, parts = partial.members, partial.tiles
    first = members[:, 0]
    tiles = Tiles(parts.sites[first], parts.boxes[first], parts.copies)
    tiles = laid(tiles, _completed(parts.layout, Single()))
    nbytes = round(_sent(parts.sites[members], tiles) * partial.width)
    ways = [Completion(tiles, members, "reduce", nbytes)]
    for axis in range(tiles.boxes.shape[1]):
        extents = tiles.boxes[:, axis, 1] - tiles.boxes[:, axis, 0]
        if extents.min() >= members.shape[1]:
            ways.append(_spread(partial, tiles, axis))
    return ways


def freely(partial: PartialResult) -> Completion:
    """The completion of a result without required sites whose busiest site moves least.

    All completions send equally many bytes. If an axis is long enough to distribute the result
    over its group, every site sends and merges a share.
    """
    most = int(partial.tiles.sites.max()) + 1
    return min(completions(partial), key=lambda way: merging(partial, way, most).max())


def merging(partial: PartialResult, way: Completion, sites: int) -> np.ndarray:
    """Elements that each site sends and receives if all sites send at once, (2, sites)."""
    at = np.sort(partial.tiles.sites[way.parts], axis=1)
    sends = np.ones(at.shape, bool)  # a site merges its parts before it sends them
    sends[:, 1:] = at[:, 1:] != at[:, :-1]
    sends &= at != way.tiles.sites[:, None]
    tile = np.nonzero(sends)[0]
    moved, targets = way.tiles.volumes[tile], way.tiles.sites[tile]
    return np.stack([np.bincount(s, moved, sites) for s in (at[sends], targets)])


def _spread(partial: PartialResult, tiles: Tiles, axis: int) -> Completion:
    """Each member of a group completes its piece of the group's tile."""
    members, sites = partial.members, partial.tiles.sites
    n = members.shape[1]
    boxes = np.repeat(tiles.boxes, n, axis=0)
    boxes[:, axis] = part(boxes[:, axis], np.tile(np.arange(n), len(members)), n)
    spread = Tiles(sites[members].reshape(-1), boxes, tiles.copies)
    spread = laid(spread, _completed(partial.tiles.layout, Shard(axis, depth=1)))
    parts = np.repeat(members, n, axis=0)
    nbytes = round(_sent(sites[parts], spread) * partial.width)
    return Completion(spread, parts, "reduce-scatter", nbytes)


def _sent(contributing: np.ndarray, tiles: Tiles) -> int:
    """Elements received from other sites; each site merges its parts before it sends them.

    Args:
        contributing: (tiles, members), the sites of the parts, including the tile's own site.
        tiles: The completed tiles.
    """
    others = (np.diff(np.sort(contributing, axis=1), axis=1) > 0).sum(axis=1)
    return int((others * tiles.volumes).sum())


def _completed(layout: Layout | None, entry: Entry) -> Layout | None:
    """The layout with an entry in place of its partial entries."""
    if layout is None:
        return None
    placed = (entry if isinstance(e, Partial) else e for e in layout.placed)
    return replace(layout, placed=tuple(placed))
