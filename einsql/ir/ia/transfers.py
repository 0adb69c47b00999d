"""The arrays that cross sites when the placement of a physical relation changes (TRA §3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from einsql.core.boxes import common, extents
from einsql.ir.ia.typing import PhysicalSchema
from einsql.ir.tra.block_schema import Cuts, KeyTuple


def array_transfers(
    source: PhysicalSchema, target: PhysicalSchema
) -> Iterator[tuple[KeyTuple, int, int, int]]:
    """Yields the transfers of moved arrays: key, part, sending site and receiving site.

    A site with a copy receives nothing. The sites with copies share the sending.
    """
    for key, parts in source.held.items():
        for n, copies in enumerate(parts):
            for site in target.held[key][n]:
                if site not in copies:
                    yield key, n, copies[site % len(copies)], site


@dataclass(frozen=True, slots=True)
class Piece:
    """The intersection of a block of one cut with a block of another.

    Attributes:
        source: The key of the old block that contains the piece.
        target: The key of the new block that contains the piece.
        box: The elements `[lo, hi)` along each axis of the tensor.
    """

    source: KeyTuple
    target: KeyTuple
    box: tuple[tuple[int, int], ...]

    @property
    def volume(self) -> int:
        """The number of elements."""
        return prod(hi - lo for lo, hi in self.box)


def pieces(old: Cuts, new: Cuts) -> Iterator[Piece]:
    """The intersections of the blocks of two cuts of a tensor, in the order of new blocks."""
    along = [_overlaps(a, b) for a, b in zip(old, new, strict=True)]
    for target in product(*(range(len(c) - 1) for c in new)):
        for overlaps in product(*(axis[k] for axis, k in zip(along, target, strict=True))):
            yield Piece(tuple(n for n, _ in overlaps), target, tuple(box for _, box in overlaps))


def _overlaps(old: Sequence[int], new: Sequence[int]) -> list[list[tuple[int, tuple[int, int]]]]:
    """For every new interval the old intervals that intersect it, with the intersections."""
    before, after = (np.stack([c[:-1], c[1:]], axis=1) for c in (np.array(old), np.array(new)))
    shared = common(after[:, None], before[None])
    return [
        [(int(n), (int(row[n, 0]), int(row[n, 1]))) for n in np.flatnonzero(extents(row))]
        for row in shared
    ]


def piece_transfers(
    source: PhysicalSchema, target: PhysicalSchema, old: Cuts, new: Cuts
) -> Iterator[tuple[Piece, int, int]]:
    """Yields every piece with its sending and its receiving site, which may be equal."""
    for piece in pieces(old, new):
        (copies,), (wanted,) = source.held[piece.source], target.held[piece.target]
        for site in wanted:
            yield piece, site if site in copies else copies[site % len(copies)], site
