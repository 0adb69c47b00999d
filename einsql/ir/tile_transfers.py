"""The parts of needed tiles that sites store, and the elements that must move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from einsql.core.boxes import common, common_volumes, volumes
from einsql.ir.layout import Tiles


def here(need: Tiles, have: Tiles) -> tuple[np.ndarray, np.ndarray]:
    """The parts of needed tiles that are stored at their sites.

    Returns:
        For each needed tile the number of its elements that its site stores (tiles of one site
        are disjoint), and a tile at the site that contains it, or -1.
    """
    counts = np.zeros(len(need.sites), np.int64)
    holder = np.full(len(need.sites), -1)
    for there, at in beside(need, have):
        boxes = have.boxes[at]
        counts += common_volumes(need.boxes, boxes) * there
        inside = (boxes[:, :, 0] <= need.boxes[:, :, 0]) & (need.boxes[:, :, 1] <= boxes[:, :, 1])
        holds = there & inside.all(axis=1)
        holder[holds] = at[holds]
    return counts, holder


def beside(need: Tiles, have: Tiles) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs each needed tile with the tiles at its site, in turn.

    Yields:
        For each needed tile whether its site has another tile, and its number (else arbitrary).
    """
    order = np.argsort(have.sites, kind="stable")
    sites = have.sites[order]
    first = np.searchsorted(sites, need.sites, side="left")
    last = np.searchsorted(sites, need.sites, side="right")
    for n in range(int((last - first).max(initial=0))):
        there = first + n < last
        yield there, order[np.where(there, first + n, 0)]


def lacking(need: Tiles, versions: Sequence[Tiles]) -> tuple[int, np.ndarray]:
    """The elements that must move to provide every site with its needed tiles.

    Args:
        need: The needed tiles.
        versions: Stored tiles of the relation; the first version is complete.

    Returns:
        The number of elements, and `Exchange.at_hand` over these versions.
    """
    present, holder = here(need, versions[0])
    at_hand = np.stack([np.where(holder < 0, -1, 0), holder], axis=1)
    for n, version in enumerate(versions[1:], 1):
        if (at_hand[:, 0] >= 0).all():
            break
        _, holder = here(need, version)
        new = (at_hand[:, 0] < 0) & (holder >= 0)
        at_hand[new, 0], at_hand[new, 1] = n, holder[new]
    moved = (need.volumes - present)[at_hand[:, 0] < 0].sum()
    return int(moved), at_hand


def pieces(
    have: Tiles, need: Tiles, gathered: np.ndarray, sites: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The pieces from which needed tiles are assembled.

    Each group of sites serves its own needs; a site with a copy asks no other site.

    Args:
        have: Complete tiles, disjoint except for copies.
        need: The tiles that are needed.
        gathered: The numbers of the needed tiles that are assembled.
        sites: The number of sites.

    Returns:
        For each piece the tile from which it is cut, int64 (pieces,), the tile of which it becomes
        a part, int64 (pieces,), and its keys along the axes of the arrays, int64 (pieces, axes, 2).
    """
    overlaps: list[tuple[np.ndarray, np.ndarray]] = []
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
        overlaps.append((candidates[at], shared[at]))
    source = np.repeat(np.arange(len(overlaps)), [len(at) for at, _ in overlaps])
    if not overlaps:
        return source, gathered, need.areas[gathered]
    target = np.concatenate([at for at, _ in overlaps])
    return source, target, np.concatenate([b for _, b in overlaps])


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


def same(a: Tiles, b: Tiles) -> bool:
    """True if both have the same boxes at the same sites, in any order."""
    if len(a.sites) != len(b.sites):
        return False
    return bool((here(a, b)[1] >= 0).all() and (here(b, a)[1] >= 0).all())
