"""The parts of needed tiles that sites store, and the elements that must move."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from einsql.core.boxes import common_volumes
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


def same(a: Tiles, b: Tiles) -> bool:
    """True if both have the same boxes at the same sites, in any order."""
    if len(a.sites) != len(b.sites):
        return False
    return bool((here(a, b)[1] >= 0).all() and (here(b, a)[1] >= 0).all())
