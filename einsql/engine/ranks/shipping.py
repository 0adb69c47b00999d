"""Preparation of data for ranks: programs without their graphs, and sets of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einsql.core.boxes import common, volumes
from einsql.core.schema import Schema
from einsql.ir.einsum.graph import Input, Operand
from einsql.ir.layout import Tiles, ranks_of
from einsql.ir.spmd.program import Complete, Exchange, Local, Program, Step

MOST_TILES = 4096
"""Greatest number of tiles for which ranks cache a tensor; others are sent by every statement."""


def detached(program: Program) -> Program:
    """Returns a program whose nodes keep only the schemas of their operands."""

    def alone(step: Step) -> Step:
        if not isinstance(step, Local | Complete):
            return step
        operands = tuple(
            Operand(Input(f"#{n}", o.source.schema), o.labels)
            for n, o in enumerate(step.node.operands)
        )
        return replace(step, node=replace(step.node, operands=operands))

    return replace(program, steps=tuple(map(alone, program.steps)))


def is_joint(program: Program) -> bool:
    """Whether tiles may move between the sites of a program."""
    return any(
        isinstance(s, Complete) or (isinstance(s, Exchange) and bool((s.at_hand[:, 0] < 0).any()))
        for s in program.steps
    )


def working(program: Program, ranks: int) -> Sequence[int]:
    """Returns the ranks with tiles of any step, and rank 0, which tells the progress."""
    sites = np.concatenate([s.tiles.sites for s in program.steps])
    return sorted({0, *ranks_of(sites, program.sites, ranks).tolist()})


def covers(tiles: Tiles, schema: Schema) -> bool:
    """Whether one copy of the tiles covers a relation, each key once."""
    boxes = tiles.boxes[: tiles.once]
    if len(boxes) > MOST_TILES or int(volumes(boxes).sum()) != schema.size:
        return False
    shared = volumes(common(boxes[:, None], boxes[None])).sum(axis=1)
    return bool((shared == volumes(boxes)).all())
