"""The rows of fused steps that move to the blocks that they choose, and the bytes expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einsql.core.boxes import extents
from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.routing import rows_through
from einsql.ir.spmd.program import (
    Blocks,
    FusedSteps,
    Local,
    Program,
    RoutedRows,
    RowRelation,
    tuple_bytes,
)

COUNT_BYTES = 8
"""Bytes of the number of rows for one block, which a site sends to each other site."""


def with_moves(program: Program, plan: FusedSteps) -> FusedSteps | None:
    """Fused steps with the moves of their rows; None if the steps have different blocks."""
    every = [b for n in plan.steps if (b := _local(program, n).blocks) is not None]
    first = every[0]
    for other in every[1:]:
        if not np.array_equal(first.starts, other.starts):
            return None
        if not np.array_equal(first.sites, other.sites):
            return None
    rows = _rows(program, plan)
    for n, labels, edges in zip(plan.steps, rows, plan.edges, strict=True):
        step = _local(program, n)
        for k, (o, edge) in enumerate(zip(step.node.operands, edges, strict=True)):
            stays = edge < 0 and set(labels).isdisjoint(o.labels)
            if stays and _at_blocks(program, step, k, first) is None:
                return None
    return moved(program, plan)


def moved(program: Program, plan: FusedSteps) -> FusedSteps:
    """Fused steps with the moves of their rows."""
    rows = _rows(program, plan)
    chooser = next(k for k, n in enumerate(plan.steps) if _local(program, n).blocks is not None)
    blocks = _local(program, plan.steps[chooser]).blocks
    assert blocks is not None
    relations: dict[object, tuple[int, RowRelation]] = {}
    reads, tiles = [], []
    for n, labels, edges in zip(plan.steps, rows, plan.edges, strict=True):
        step = _local(program, n)
        read: list[int | None] = []
        staying: list[np.ndarray | None] = []
        for k, (o, edge) in enumerate(zip(step.node.operands, edges, strict=True)):
            moves = edge < 0 and not set(labels).isdisjoint(o.labels)
            number = None
            if moves:
                axes = tuple(labels.index(x) if x in labels else None for x in o.labels)
                relation = RowRelation(step.operands[k], step.picks[k], axes)
                key = relation.source, relation.picks.tobytes(), axes
                number = relations.setdefault(key, (len(relations), relation))[0]
            read.append(number)
            staying.append(None if moves or edge >= 0 else _at_blocks(program, step, k, blocks))
        reads.append(tuple(read))
        tiles.append(tuple(staying))
    moving = tuple(r for _, r in relations.values())
    sends = _expected(program, plan, rows, moving, blocks)
    routed = RoutedRows(blocks, chooser, rows, moving, tuple(reads), tuple(tiles), sends)
    return replace(plan, routed=routed)


def _local(program: Program, n: int) -> Local:
    step = program.steps[n]
    assert isinstance(step, Local)
    return step


def _rows(program: Program, plan: FusedSteps) -> tuple[tuple[str, ...], ...]:
    """The labels of the rows of each step: those of its routing, or those of a producer's rows."""
    rows: dict[int, tuple[str, ...]] = {}
    for n, edges in zip(plan.steps, plan.edges, strict=True):
        step = _local(program, n)
        if step.blocks is not None:
            rows[n] = step.blocks.routing.rows
            continue
        k = next(k for k, edge in enumerate(edges) if edge >= 0)
        rows[n] = rows_through(step.node.operands[k], rows[edges[k]])
    return tuple(rows[n] for n in plan.steps)


def _at_blocks(program: Program, step: Local, k: int, blocks: Blocks) -> np.ndarray | None:
    """The tile of an operand without rows at the site of each block; None if a site lacks it."""
    if step.blocks is not None:
        return step.blocks.tiles[k]
    tiles, picked = program.steps[step.operands[k]].tiles, step.picks[k]
    if (tiles.boxes[picked] != tiles.boxes[picked[0]]).any():
        return None
    alike = (tiles.boxes == tiles.boxes[picked[0]]).all(axis=(1, 2))
    at_site = {int(tiles.sites[n]): n for n in np.flatnonzero(alike).tolist()}
    if not at_site.keys() >= set(blocks.sites.tolist()):
        return None
    return np.array([at_site[site] for site in blocks.sites.tolist()], np.int64)


def _expected(
    program: Program,
    plan: FusedSteps,
    rows: Sequence[Sequence[str]],
    relations: Sequence[RowRelation],
    blocks: Blocks,
) -> np.ndarray:
    """The bytes that sites send if rows choose all values equally often, int64 (sites, sites)."""
    first = _local(program, plan.steps[0])
    at = [first.labels.index(x) for x in rows[0]]
    number = extents(first.cells[:, at]).prod(axis=1, dtype=np.float64)
    (expert, *_) = blocks.routing.experts
    chosen = next(s for n in plan.steps if (s := _local(program, n)).blocks is blocks)
    boxes = program.steps[chosen.operands[expert]].tiles.boxes[blocks.tiles[expert]]
    axis = chosen.node.operands[expert].labels.index(blocks.routing.label)
    lengths = extents(boxes)[:, axis]
    share = lengths / lengths.sum()
    there = sum(_row_bytes(program, r) for r in relations)
    visible = (n for n, seen in zip(plan.steps, plan.visible, strict=True) if seen)
    results = dict(zip(plan.steps, rows, strict=True))
    back = sum(_result_bytes(_local(program, n).node, results[n]) for n in visible)
    sends = np.zeros((program.sites, program.sites))
    for site, count in zip(first.sites.tolist(), number.tolist(), strict=True):
        np.add.at(sends, (site, blocks.sites), count * share * there)
        np.add.at(sends, (blocks.sites, site), count * share * back)
        sends[site] += COUNT_BYTES * len(blocks.sites)
    np.fill_diagonal(sends, 0)
    return np.rint(sends).astype(np.int64)


def _row_bytes(program: Program, relation: RowRelation) -> int:
    """Bytes of a row of a relation that moves."""
    tiles = program.steps[relation.source].tiles
    lengths = extents(tiles.areas[relation.picks[:1]])[0]
    others = [n for n, row in enumerate(relation.axes) if row is None]
    return int(lengths[others].prod() * tuple_bytes(program.relation(relation.source)))


def _result_bytes(node: EinSum, rows: Sequence[str]) -> int:
    """Bytes of a row of a result."""
    size = 1
    for k in node.schema.keys:
        size *= 1 if k.name in rows else k.extent
    return int(size * tuple_bytes(node))
