"""Work on pieces of an operand as they arrive, without the complete operand.

A cell whose operand arrives in pieces is cut once more, along the pieces: each piece and the
matching part of the other operands give a part of the result. Pieces that divide a key give
disjoint parts. Pieces that divide a reduced label, as in a product of matrices by outer products,
give partial sums, which are merged like those of cells. The guarantees of cuts therefore hold:
only the order of float sums changes.

Choice. Streaming saves the memory of the operand and a copy of most of it, and on a network whose
adapters move data by themselves the transfer overlaps with the work. 4096² FLOAT products on two
cores, shared with other work, took in seconds of each rank's processor, and in MB at most (the
process with its tensors):

                                      complete operands    piece by piece
    pieces side by side, 4 ranks        0.43 s, 360 MB       0.36 s, 310 MB
    pieces side by side, 2 ranks        0.72 s, 418 MB       0.70 s, 370 MB
    outer products, 4 ranks             0.41 s, 358 MB       0.54 s, 390 MB
    outer products, 2 ranks             0.69 s, 418 MB       0.81 s, 518 MB

So large disjoint pieces are streamed. Each part is copied into its tile once more, and small
pieces arrive soon: with pieces of 1.6 MB at 4 ranks, which shared two cores and transferred by
shared memory from 256 kB on, a statement with two such steps took 772 ms, and 764 ms with complete
operands (medians of 18 runs each). Where parts are merged, in DOUBLE for sums, each element of a
part costs as much as some hundred multiplications, and the running result may be larger than the
memory saved: there the operand must be the larger one, and the work for each element of a part at
least `DEPTH`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from einsql.core.boxes import common, extents, volumes
from einsql.core.records import dataclass
from einsql.engine.routes import Moves
from einsql.ir.einsum.partial_states import merges, with_state
from einsql.ir.spmd.program import Exchange, Local, Program, reads

PIECE = 2**22
"""Least average size of a piece in bytes."""
PIECES = 32
"""Greatest number of pieces of a tile."""
MARGIN = 1
"""Least ratio of the memory saved to the memory of merging."""
WINDOW = 2
"""Pieces in transfer to a process at once, besides the current one."""
DEPTH = 4096
"""Least number of values of reduced labels for each element of a merged part."""


Part = tuple[tuple[int, int], ...]
"""A part of a cell's result: `[lo, hi)` along each key."""


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The work of a cell on a piece of the operand, or on a local tile.

    Attributes:
        cell: The cell's number.
        domain: int64 (labels, 2), the part of the cell's domain.
        made: The part of its result.
    """

    cell: int
    domain: np.ndarray
    made: Part


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """A local step that takes an operand from an exchange piece by piece.

    Attributes:
        exchange: The number of the exchange.
        operand: The position of the streamed operand.
        at_hand: Cells whose tile is cut from one at its site, or has no elements.
        shares: The share of each route.
        parts: By cell, the number of shares of each part of its result.
        released: Steps whose last reader is the exchange.
    """

    exchange: int
    operand: int
    at_hand: list[Share]
    shares: dict[int, list[Share]]
    parts: dict[int, dict[Part, int]]
    released: Sequence[int] = ()


def candidates(program: Program) -> dict[int, int]:
    """Finds local steps that may stream an operand, by the exchange of the operand.

    Such an exchange has one reader, and all steps between the two are exchanges. Pieces of sparse
    operands have no size in advance.
    """
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for n, step in enumerate(program.steps):
        for source in reads(step):
            readers[source].append(n)
    reader_of: dict[int, int] = {}
    for n, step in enumerate(program.steps):
        if not isinstance(step, Exchange) or len(readers[n]) != 1 or n in program.roots:
            continue
        reader = program.steps[at := readers[n][0]]
        between = program.steps[n + 1 : at]
        if not isinstance(reader, Local) or any(o.source.sparse for o in reader.node.operands):
            continue
        if all(isinstance(s, Exchange) for s in between):
            reader_of[n] = at
    return reader_of


def streamed(program: Program, exchange: int, reader: int, moves: Moves) -> Stream | None:
    """Returns the stream of a local step's operand, or None if the complete operand is faster.

    Args:
        program: The steps.
        exchange: The number of the exchange of the operand.
        reader: The number of the local step that reads it.
        moves: The pieces.
    """
    brought, step = program.steps[exchange], program.steps[reader]
    assert isinstance(brought, Exchange)
    assert isinstance(step, Local)
    operand = step.operands.index(exchange)
    labels, tiles = step.node.operands[operand].labels, brought.tiles
    pieces: defaultdict[int, list[int]] = defaultdict(list)
    for n, tile in enumerate(moves.need.tolist()):
        pieces[tile].append(n)
    counts = [len(p) for p in pieces.values()]
    if max(counts, default=0) < 2 or max(counts) > PIECES:
        return None
    if moves.routes.nbytes.mean() < PIECE or len(set(labels)) < len(labels):
        return None
    at_hand, by_route = list[Share](), defaultdict[int, list[Share]](list)
    parts_of: dict[int, dict[Part, int]] = {}
    for cell, tile in enumerate(step.picks[operand].tolist()):
        if extents(step.cells[cell]).min(initial=1) == 0:
            return None
        if tile not in pieces:
            share = Share(cell, step.cells[cell], _part(step.tiles.areas[cell]))
            at_hand.append(share)
            parts_of[cell] = {share.made: 1}
            continue
        boxes = moves.boxes[pieces[tile]]
        if volumes(boxes).sum() != tiles.volumes[tile]:
            return None
        shares = _shares(step, cell, labels, tiles.areas[tile], boxes)
        if shares is None:
            return None
        parts: defaultdict[Part, int] = defaultdict(int)
        for n, share in zip(pieces[tile], shares, strict=True):
            if extents(share.domain).min() > 0:
                by_route[n].append(share)
                parts[share.made] += 1
        volume = volumes(step.tiles.areas[cell])
        if (
            volumes(np.array(list(parts)).reshape(len(parts), len(step.node.keys), 2)).sum()
            != volume
        ):
            return None
        sizes = moves.routes.nbytes[pieces[tile]]
        if max(parts.values()) > 1 and (
            _depth(shares) < DEPTH or sizes.sum() - 2 * sizes.max() < MARGIN * volume * _width(step)
        ):
            return None
        parts_of[cell] = dict(parts)
    return Stream(
        exchange=exchange, operand=operand, at_hand=at_hand, shares=dict(by_route), parts=parts_of
    )


def _shares(
    step: Local, cell: int, labels: tuple[str, ...], tile: np.ndarray, boxes: np.ndarray
) -> list[Share] | None:
    """Returns the share of each piece for a cell; None if an axis of the pieces cannot be cut."""
    cut = {x for a, x in enumerate(labels) if (boxes[:, a] != tile[a]).any()}
    if not cut <= set(step.labels):
        return None  # read through an expression
    if not cut <= set(step.node.keys) and (step.node.is_elementwise or not merges(step.node)):
        return None
    shares = []
    for box in boxes:
        domain = step.cells[cell].copy()
        for a, label in enumerate(labels):
            if label in cut:
                at = step.labels.index(label)
                domain[at] = common(domain[at], box[a])
        box_made = step.tiles.areas[cell].copy()
        for k, key in enumerate(step.node.keys):
            if key in cut:
                box_made[k] = common(box_made[k], domain[step.labels.index(key)])
        shares.append(Share(cell, domain, _part(box_made)))
    return shares


def _part(box: np.ndarray) -> Part:
    return tuple((int(lo), int(hi)) for lo, hi in box)


def _width(step: Local) -> int:
    """Returns the bytes of an element of a part and of a running result."""
    return sum(8 + o.dtype.numpy.itemsize for o in with_state(step.node).outputs)


def _depth(shares: list[Share]) -> float:
    """Returns the average number of points for each element of a part."""
    points = [volumes(s.domain) / max(1, volumes(np.array(s.made).reshape(-1, 2))) for s in shares]
    return float(np.mean(points))


def within(labels: tuple[str, ...], box: np.ndarray, step: Local, domain: np.ndarray) -> np.ndarray:
    """Returns the part of an operand's tile that a part of a cell reads.

    Args:
        labels: The operand's labels.
        box: int64 (keys, 2), the keys of its tile.
        step: The local step.
        domain: int64 (labels of the step, 2).
    """
    part = box.copy()
    for a, label in enumerate(labels):
        if label in step.labels:
            part[a] = common(box[a], domain[step.labels.index(label)])
    return part
