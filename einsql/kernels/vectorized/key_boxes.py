"""Boxes of keys, one after another, in which a kernel computes its result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from einsql.ir.einsum.graph import Axis, EinSum
from einsql.kernels.kernel import Tick


def still(tick: Tick, done: float, _: float) -> None:
    """Reports progress before a part of the work."""
    tick(done)


def steps(extents: Sequence[int], room: int) -> list[int]:
    """The extents of boxes of at most `room` keys, which are complete along the last axes."""
    chosen: list[int] = []
    for extent in reversed(extents):
        step = max(1, min(extent, room))
        chosen.append(step)
        room = room // extent if step == extent else 1
    return chosen[::-1]


def boxes(extents: Sequence[int], steps: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """The boxes of such extents, in the order of keys."""
    if not extents:
        yield ()
        return
    for start in range(0, extents[0], steps[0]):
        first = slice(start, min(extents[0], start + steps[0]))
        for rest in boxes(extents[1:], steps[1:]):
            yield (first, *rest)


def within(node: EinSum, box: Mapping[str, slice]) -> EinSum:
    """The node over a box: the positions of some labels, counted from their lower bounds."""

    def narrow(a: Axis) -> Axis:
        part = box.get(a.label)
        return a if part is None else replace(a, lo=a.lo + part.start, hi=a.lo + part.stop)

    return replace(node, axes=tuple(map(narrow, node.axes)))
