"""A local step that runs on pieces of an operand as they arrive."""

from __future__ import annotations

import time

import numpy as np

from einsql.engine.exchange import Held, Moving, paste, slices
from einsql.engine.running import Running
from einsql.engine.site_cells import Cells
from einsql.engine.step import Arrays
from einsql.engine.streaming_exchange import WINDOW, Part, Share, Stream, within
from einsql.ir.einsum.flops import flops_at_point
from einsql.ir.einsum.partial_merge import Total
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.spmd.program import Exchange, Local, Program


def streamed_tiles(
    program: Program, cells: Cells, moving: Moving, stream: Stream, number: int, run: Running
) -> Held:
    """Runs a local step on pieces of an operand as they arrive.

    Args:
        program: The steps.
        cells: The compiled cells of the program.
        moving: The transfers of the program.
        stream: The operand.
        number: The number of the step.
        run: The run, which has the tiles of the other operands.

    Raises:
        DataError: A selected element overflows, divides by zero or cannot be cast.
    """
    steps, step, tiles_of, measure = program.steps, program.steps[number], run.tiles_of, run.measure
    assert isinstance(step, Local)
    node = with_state(step.node)
    names = [o.name for o in cells.node(number).outputs]
    exchange = steps[stream.exchange]
    assert isinstance(exchange, Exchange)
    moves = moving.gathering(stream.exchange, exchange)
    outputs: dict[int, dict[str, np.ndarray]] = {
        n: {} for n in moving.owned(number, step.tiles, run.transport)
    }
    totals: dict[tuple[int, Part], Total] = {}
    each = flops_at_point(step.node)

    def work(share: Share, box: np.ndarray, arrays: Arrays) -> None:
        """Computes the shares of a tile of the operand, or of a piece of one."""
        start, cell = time.perf_counter(), share.cell
        boxes, operands = [], []
        for n, (o, source, pick) in enumerate(
            zip(step.node.operands, step.operands, step.picks, strict=True)
        ):
            tile, fields = box, arrays
            if n != stream.operand:
                tile = steps[source].tiles.areas[pick[cell]]
                fields = tiles_of[source][int(pick[cell])]
            boxes.append(within(o.labels, tile, step, share.domain))
            inside = slices(boxes[-1], tile[:, 0])
            operands.append({k: a[inside] for k, a in fields.items()})
        runner, points = cells.runner(number, node, step, share.domain, boxes)
        part = runner(operands, lambda done: run.tick(number / len(steps)))
        total = totals.setdefault((cell, share.made), Total(node))
        total.add(part)
        if total.parts == stream.parts[cell][share.made]:
            at = np.array(share.made, np.int64).reshape(-1, 2)
            merged = totals.pop((cell, share.made)).result()
            paste(outputs[cell], at, {k: merged[k] for k in names}, step.tiles.boxes[cell])
        site = int(step.sites[cell])
        measure.seconds[site] += time.perf_counter() - start
        measure.flops[site] += points * each

    share_of = moving.share(stream.exchange, moves, exchange, tiles_of)
    for n, arrays in run.transport.exchange(moves.routes, share_of, window=WINDOW):
        for share in stream.shares.get(n, ()):
            work(share, moves.boxes[n], arrays)
    for share in stream.at_hand:
        if share.cell in outputs:
            tile = int(step.picks[stream.operand][share.cell])
            box = exchange.tiles.areas[tile]
            fields = moving.at_hand(exchange, tile, tiles_of)
            work(share, box, fields or moving.nothing(exchange.sources[0], box))
    return dict(outputs)
