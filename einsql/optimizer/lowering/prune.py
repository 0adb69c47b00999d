"""Removes values that no later step reads, such as blocks that a filter drops.

A block that is not computed cannot fail. Loads, and steps that move arrays between sites, stay
complete, so that the bytes of a run are those of the plan.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Complete, Exchange, Load, Local, Program, Step, View, reads


def pruned(program: Program) -> tuple[Program, np.ndarray]:
    """The program without unread steps and tiles; results keep all tiles.

    Returns:
        The program, and for each step its number there, int64 (steps,); -1 if nothing reads it.
    """
    steps = program.steps
    used = [False] * len(steps)
    kept = [np.zeros(len(s.tiles.sites), bool) for s in steps]
    for root in program.roots:
        used[root] = True
        kept[root][:] = True
    for n in reversed(range(len(steps))):
        step = steps[n]
        if not used[n]:
            continue
        if isinstance(step, Load | Exchange) or (isinstance(step, Complete) and step.collectives):
            kept[n][:] = True
        for source in reads(step):
            used[source] = True
        _mark(step, kept[n], kept)
    place = np.cumsum(used) - 1
    number = [np.where(k, np.cumsum(k) - 1, -1) for k in kept]
    left = [_restricted(s, kept[n], number, place) for n, s in enumerate(steps) if used[n]]
    roots = tuple(int(place[r]) for r in program.roots)
    return Program(program.sites, tuple(left), roots), np.where(used, place, -1)


def _mark(step: Step, own: np.ndarray, kept: list[np.ndarray]) -> None:
    """Marks the tiles that some tiles of a step are made of."""
    match step:
        case Local():
            for source, pick in zip(step.operands, step.picks, strict=True):
                kept[source][pick[own]] = True
        case View():
            kept[step.source][step.picks[own]] = True
        case Complete():
            parts = step.parts[own]
            kept[step.source][parts[parts >= 0]] = True
        case Exchange():
            for n, source in enumerate(step.sources):
                kept[source][step.at_hand[step.at_hand[:, 0] == n, 1]] = True
            if (step.at_hand[:, 0] < 0).any():
                kept[step.sources[0]][:] = True


def _restricted(step: Step, own: np.ndarray, number: list[np.ndarray], place: np.ndarray) -> Step:
    """A step with some of its tiles, over the new numbers of steps and tiles."""
    tiles = step.tiles
    if not own.all():
        tiles = Tiles(tiles.sites[own], tiles.boxes[own], keyed=tiles.keyed)
    match step:
        case Load():
            return step
        case Local():
            sources = zip(step.operands, step.picks, strict=True)
            return replace(
                step,
                sites=step.sites[own],
                cells=step.cells[own],
                operands=tuple(int(place[s]) for s in step.operands),
                picks=tuple(number[s][pick[own]] for s, pick in sources),
                tiles=tiles,
            )
        case View():
            picks = number[step.source][step.picks[own]]
            return replace(step, source=int(place[step.source]), picks=picks, tiles=tiles)
        case Complete():
            new, parts = number[step.source], step.parts[own]
            parts = np.where(parts < 0, -1, new[parts]) if len(new) else parts
            return replace(step, source=int(place[step.source]), parts=parts, tiles=tiles)
        case Exchange():
            at_hand = step.at_hand.copy()
            for n, source in enumerate(step.sources):
                here = at_hand[:, 0] == n
                at_hand[here, 1] = number[source][at_hand[here, 1]]
            return replace(
                step, sources=tuple(int(place[s]) for s in step.sources), at_hand=at_hand
            )
