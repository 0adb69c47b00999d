"""The order in which the sites of a group merge their partial results.

If one site of a group receives the result, the group merges along a binomial tree of
⌈log₂ n⌉ rounds. A site then receives at most one tile per round, where a direct merge sends
n − 1 tiles to one site. If the result is distributed over the group, all links are used
without a tree, so all sites send at once. In both cases every other site sends its merged
tile once.
"""

from __future__ import annotations

import numpy as np

from einsql.core.records import dataclass
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Complete

TREE = 4
"""The minimum of sites of a group for which a tree has fewer rounds than senders."""


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """The transfers of one round.

    Attributes:
        tiles: int64 (n,), the completion's tile of each partial tile.
        sources: int64 (n,), the site that sends its merged tile.
        targets: int64 (n,), the site that merges the tile with its own.
    """

    tiles: np.ndarray
    sources: np.ndarray
    targets: np.ndarray


def rounds(partial: Tiles, step: Complete) -> list[Round]:
    """The rounds in which partial results are merged; empty if no tile must move.

    Args:
        partial: The partial tiles.
        step: The completion, with the groups of partial tiles and the sites of the result.
    """
    groups, which = np.unique(
        np.sort(contributing(partial, step), axis=1), axis=0, return_inverse=True
    )
    by_round: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = []
    for number, row in enumerate(groups):
        tiles = np.flatnonzero(which.reshape(-1) == number)
        group, targets = np.unique(row), step.tiles.sites[tiles]
        if len(group) >= TREE and 2 * len(np.unique(targets)) <= len(group):
            moves = _by_tree(tiles, group, targets)
        else:
            moves = [_at_once(tiles, group, targets)]
        by_round += [[] for _ in range(len(moves) - len(by_round))]
        for at, move in enumerate(moves):
            by_round[at].append(move)
    every = [Round(*map(np.concatenate, zip(*moves, strict=True))) for moves in by_round]
    return [r for r in every if len(r.tiles)]


def contributing(partial: Tiles, step: Complete) -> np.ndarray:
    """The sites of the parts of each tile, int64 (tiles, n); a site is repeated for -1."""
    parts = np.where(step.parts < 0, step.parts[:, :1], step.parts)
    return np.asarray(partial.sites[parts])


def _at_once(
    tiles: np.ndarray, group: np.ndarray, targets: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    at, member = np.nonzero(group != targets[:, None])
    return tiles[at], group[member], targets[at]


def _by_tree(
    tiles: np.ndarray, group: np.ndarray, targets: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Merges neighbours first; each tile has a separate tree with its target as the root."""
    by_round: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    for target in np.unique(targets):
        own = tiles[targets == target]
        order = np.concatenate([[target], group[group > target], group[group < target]])
        for at, distance in enumerate(1 << n for n in range((len(order) - 1).bit_length())):
            senders = np.arange(distance, len(order), 2 * distance)
            move = (
                np.repeat(own, len(senders)),
                np.tile(order[senders], len(own)),
                np.tile(order[senders - distance], len(own)),
            )
            if at == len(by_round):
                by_round.append(move)
            else:
                both, sources, ends = map(np.concatenate, zip(by_round[at], move, strict=True))
                by_round[at] = both, sources, ends
    return by_round
