"""The cost of an SPMD program in the model of the tensor-relational algebra (TRA §3).

The model counts floats and ignores the sites that store them. A relation that ends at several
sites was broadcast (BCAST) and costs its size for every copy. Any other movement is a shuffle
(SHUF) and costs its size once, even if part of it does not move.
"""

from __future__ import annotations

import numpy as np

from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Complete, Exchange, Program


def tra_costs(program: Program) -> list[float]:
    """Floats that each step costs.

    An exchange costs its relation's size, times the number of copies if every element ends at
    more than one site. A completion costs its size, or 0 if it is the first half of an
    all-reduce that makes copies. A step that moves nothing costs 0.
    """
    costs = [0.0] * len(program.steps)
    for t in program.together:
        if t.routed is not None:  # rows move once in each direction
            read = {r.source for r in t.routed.relations}
            made = {n for n, seen in zip(t.steps, t.visible, strict=True) if seen}
            moved = ((n, program.steps[n].tiles) for n in read | made)
            costs[t.steps[-1]] = float(
                sum(x.volumes[: x.once].sum() * _width(program, n) for n, x in moved)
            )
    sizes: dict[int, int] = {}  # by the identity of tiles, which repeated operations share
    for n, step in enumerate(program.steps):
        if isinstance(step, Complete):
            costs[n] = float(step.tiles.volumes[: step.tiles.once].sum() * _width(program, n))
        elif isinstance(step, Exchange) and step.nbytes:
            tiles = id(step.tiles)
            if tiles not in sizes:
                sizes[tiles] = _moved(step.tiles)
            costs[n] = float(sizes[tiles] * _width(program, n))
            if step.completes:
                costs[step.sources[0]] = 0.0
    return costs


def _moved(tiles: Tiles) -> int:
    """Elements of all copies if each element is at several sites, else elements of one copy."""
    axes = [np.unique(tiles.boxes[:, n]) for n in range(tiles.boxes.shape[1])]
    copies = np.zeros([max(1, len(a) - 1) for a in axes], np.int64)
    order = np.argsort(tiles.sites, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(tiles.sites[order])) + 1):
        there = np.zeros(copies.shape, np.bool_)
        for box in tiles.boxes[mine]:
            ends = (np.searchsorted(a, interval) for a, interval in zip(axes, box, strict=True))
            there[tuple(slice(*e) for e in ends)] = True
        copies += there
    volumes = np.ones(copies.shape, np.int64)
    for n, a in enumerate(axes):
        shape = [-1 if m == n else 1 for m in range(len(axes))]
        volumes *= np.diff(a).reshape(shape) if len(a) > 1 else 0
    everywhere = (copies[copies > 0] > 1).all()
    return int((volumes * (copies if everywhere else copies > 0)).sum())


def _width(program: Program, step: int) -> int:
    """The number of fields of a step's relation."""
    return len(program.relation(step).schema.fields)
