"""The partition of an operator that exceeds device memory along keys of its result.

Each slab is the operator for a part of the keys. It reads the part of each operand that these
keys index. The slabs' results need no merge, because keys do not share points.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from einsql.core.records import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """An array that a slab needs.

    Attributes:
        labels: The labels along which it can be cut.
        nbytes: Bytes of the complete array, with the working memory of its use.
    """

    labels: frozenset[str]
    nbytes: int


def plan_slabs(
    pieces: Sequence[Piece], extent: Mapping[str, int], limit: int
) -> dict[str, int] | None:
    """Chooses the number of parts of each label so that a slab fits.

    Every step halves the parts of the label with the least traffic per saved byte. An operand is
    copied once for every slab of the labels that it lacks.

    Args:
        pieces: The arrays of a slab, operands and results.
        extent: The extents of the labels that may be cut.
        limit: Greatest bytes of a slab.

    Returns:
        The number of parts of each cut label, or None if single keys are too large.
    """
    parts = dict.fromkeys(extent, 1)
    while (now := size(pieces, extent, parts)) > limit:
        best: tuple[float, str, int] | None = None
        for label, n in extent.items():
            more = min(n, parts[label] * 2)
            if more <= parts[label]:  # single values, or an empty label
                continue
            tried = {**parts, label: more}
            saved = now - size(pieces, extent, tried)
            if saved <= 0:
                continue
            cost = traffic(pieces, tried) / saved
            if best is None or cost < best[0]:
                best = cost, label, more
        if best is None:
            return None
        parts[best[1]] = best[2]
    return {label: n for label, n in parts.items() if n > 1}


def size(pieces: Sequence[Piece], extent: Mapping[str, int], parts: Mapping[str, int]) -> int:
    """The bytes of the largest slab."""
    total = 0
    for p in pieces:
        share = 1.0
        for x in p.labels & extent.keys():
            share *= -(-extent[x] // parts[x]) / max(1, extent[x])
        total += -int(-p.nbytes * share // 1)
    return total


def traffic(pieces: Sequence[Piece], parts: Mapping[str, int]) -> float:
    """The bytes that all slabs transfer."""
    return float(
        sum(p.nbytes * prod(n for x, n in parts.items() if x not in p.labels) for p in pieces)
    )


def slabs(
    bounds: Mapping[str, tuple[int, int]], parts: Mapping[str, int]
) -> Iterator[dict[str, tuple[int, int]]]:
    """Generates the bounds `[lo, hi)` of the cut labels of each slab.

    Args:
        bounds: The bounds `[lo, hi)` of every cut label.
        parts: The number of parts of each cut label.
    """
    cuts = []
    for label, n in parts.items():
        lo, hi = bounds[label]
        width = -(-(hi - lo) // n)
        cuts.append([(label, (at, min(hi, at + width))) for at in range(lo, hi, width)])
    for chosen in product(*cuts):
        yield dict(chosen)
