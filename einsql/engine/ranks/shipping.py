"""Preparation of data for ranks: programs without their graphs, and sets of tiles."""

from __future__ import annotations

from dataclasses import replace

from einsql.core.boxes import common, volumes
from einsql.core.schema import Schema
from einsql.ir.einsum.graph import Input, Operand
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import Complete, Local, Program, Step

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


def covers(tiles: Tiles, schema: Schema) -> bool:
    """Whether one copy of the tiles covers a relation, each key once."""
    boxes = tiles.boxes[: tiles.once]
    if len(boxes) > MOST_TILES or int(volumes(boxes).sum()) != schema.size:
        return False
    shared = volumes(common(boxes[:, None], boxes[None])).sum(axis=1)
    return bool((shared == volumes(boxes)).all())
