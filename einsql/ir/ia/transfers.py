"""The arrays that cross sites when the layout of a physical relation changes (TRA §3)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from einsql.core.boxes import common, extents, volumes
from einsql.core.records import dataclass
from einsql.ir.ia.physical_schema import PhysicalSchema
from einsql.ir.remembered import remembered
from einsql.ir.tra.block_schema import BlockSchema, Cuts, Dims, codes
from einsql.ir.tra.typing import assembled, by_axis


def transferred_bytes(source: PhysicalSchema, target: PhysicalSchema) -> int:
    """Bytes of the moved arrays that cross sites."""
    if source.layout == target.layout:
        return 0
    lacking = _lacking(source.holders, target.holders)
    return int(lacking.sum(axis=(1, 2)) @ source.nbytes)


def _lacking(have: np.ndarray, want: np.ndarray) -> np.ndarray:
    """The copies of `want`, bool (keys, parts, copies), at sites that have none."""
    lacks = want >= 0
    for sender in range(have.shape[2]):
        lacks &= want != have[:, :, sender, None]
    return lacks


@dataclass(frozen=True, slots=True, eq=False)
class PieceTransfers:
    """The transfers of a repartition: the intersections of old and new blocks.

    Attributes:
        old: int64 (transfers,), the position of the old block's key in the order of keys.
        new: int64 (transfers,), the position of the new block's key.
        boxes: int64 (transfers, axes, 2), the elements `[lo, hi)` along each axis.
        origin: int64 (transfers,), the sending site.
        target: int64 (transfers,), the receiving site, which may be the sending one.
    """

    old: np.ndarray
    new: np.ndarray
    boxes: np.ndarray
    origin: np.ndarray
    target: np.ndarray


@remembered
def moved_elements(source: PhysicalSchema, target: PhysicalSchema, cuts: Cuts | Dims) -> int:
    """The elements that cross sites in a repartition; a site merges parts before it sends them.

    The arguments are those of `piece_transfers`.
    """
    pieces = piece_transfers(source, target, cuts)
    crossing = pieces.origin != pieces.target
    ends = np.stack([pieces.old, pieces.new, pieces.origin, pieces.target], axis=1)[crossing]
    first = np.unique(ends, axis=0, return_index=True)[1]
    return int(volumes(pieces.boxes[crossing][first]).sum())


def piece_transfers(
    source: PhysicalSchema, target: PhysicalSchema, cuts: Cuts | Dims
) -> PieceTransfers:
    """The pieces that new blocks consist of, in the order of new blocks, with their sites.

    Args:
        source: The old blocks.
        target: The new blocks.
        cuts: The cuts of the new blocks, or their axes in intervals.
    """
    new, axes = by_axis(cuts), range(len(cuts))
    if new is not None:
        old = assembled(source.blocks, "Repartition")
        before, after, boxes = _cut_pieces((old, axes, source.blocks), (new, axes, target.blocks))
    else:
        ends = [_cuts_of(r.blocks) for r in (source, target)]
        if ends[0] is not None and ends[1] is not None:
            before, after, boxes = _cut_pieces(ends[0], ends[1])
        else:
            shared = common(target.blocks.boxes()[:, None], source.blocks.boxes()[None])
            after, before = np.nonzero(volumes(shared))
            boxes = shared[after, before]
    have, want = source.holders[before], target.holders[after]
    piece, part, copy = np.nonzero(want >= 0)
    site, have = want[piece, part, copy], have[piece, part]
    sends = have[np.arange(len(site)), site % have.shape[1]]
    origin = np.where((have == site[:, None]).any(axis=1), site, sends)
    return PieceTransfers(before[piece], after[piece], boxes[piece], origin, site)


_Cut = tuple[Cuts, Sequence[int | None], BlockSchema]
"""For each axis of a relation its boundaries, and the key that cuts it; and the relation."""


def _cuts_of(blocks: BlockSchema) -> _Cut | None:
    """The cuts of a relation, each by a key of its own; None if an axis is not cut so."""
    cuts = [d.cut for d in blocks.dims]
    keys = [d.keys[0] if d.keys else None for d in blocks.dims]
    cutting = [k for k in keys if k is not None]
    if None in cuts or sorted(cutting) != list(range(len(blocks.bounds))):
        return None
    return tuple(c for c in cuts if c is not None), keys, blocks


def _cut_pieces(old: _Cut, new: _Cut) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The old and the new block of each piece of a tensor that is cut anew, and its box."""
    along = [_overlaps(a, b) for a, b in zip(old[0], new[0], strict=True)]
    count = prod(len(pieces) for pieces, _ in along)
    number = np.indices([len(pieces) for pieces, _ in along]).reshape(len(along), count)
    pieces = np.zeros((count, len(along), 2), np.int64)
    boxes = np.zeros((count, len(along), 2), np.int64)
    for axis, (blocks, intervals) in enumerate(along):
        pieces[:, axis], boxes[:, axis] = blocks[number[axis]], intervals[number[axis]]
    rows: list[np.ndarray] = []
    for which, (_, keys, relation) in enumerate((old, new)):
        at = np.zeros((count, len(relation.bounds)), np.int64)
        for axis, key in enumerate(keys):
            if key is not None:
                at[:, key] = pieces[:, axis, which]
        rows += codes(relation.bounds, at)
    before, after = rows
    order = np.lexsort((before, after))
    return before[order], after[order], boxes[order]


def _overlaps(old: Sequence[int], new: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The intersections of old and new intervals that are not empty.

    Returns:
        int64 (intersections, 2), the numbers of the old and of the new interval; and int64
        (intersections, 2), the elements `[lo, hi)`.
    """
    before, after = (np.stack([c[:-1], c[1:]], axis=1) for c in (np.array(old), np.array(new)))
    shared = common(after[:, None], before[None])
    n, m = np.nonzero(extents(shared))
    return np.stack([m, n], axis=1), shared[n, m]
