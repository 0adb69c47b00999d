"""The partition of a kernel's loops into boxes, and the boxes that may run concurrently.

Boxes with different keys of the result are independent. If there are few keys, a reduced loop
is cut into slices too. Each slice has its own running values, which are merged at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, prod

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.states import has_order
from einsql.kernels.loops.loop_nest import STRIP, Mode, Nest, weight
from einsql.kernels.runtime import thread_pool

BOX = 2**24
"""Work of one kernel call, in cheap operations: some 10 to 100 milliseconds."""
PARALLEL = 2**19
"""Work from which using several threads pays."""
PER_THREAD = 4
"""Least number of pieces per thread, so that all threads end at about the same time."""
NARROW = 2**9
"""Least values of a row per thread, so that memory is read in long pieces (benchmark
`reductions`)."""
SLICED = 2**16
"""Greatest number of running values of all slices, which bounds the cost of the merge."""

Box = tuple[tuple[int, int], ...]
"""The zero-based half-open range of every loop."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A domain cut into boxes, which are generated lazily: 2⁶⁰ points have too many for a list.

    Attributes:
        extent: The extent of each loop.
        parts: The number of parts of each loop.
        kept: The loops over keys of the result.
        sliced: The reduced loop that is cut into slices.
        slices: The number of slices, each with the same number of parts of the loop.
        work: The total work in cheap operations.
    """

    extent: tuple[int, ...]
    parts: tuple[int, ...]
    kept: tuple[bool, ...]
    sliced: int = 0
    slices: int = 1
    work: int = 0

    @property
    def size(self) -> int:
        """The number of boxes."""
        return prod(self.parts)

    @property
    def grouped(self) -> int:
        """The number of groups; the boxes of one group share their running values."""
        keys = prod(p for p, k in zip(self.parts, self.kept, strict=True) if k)
        return keys * self.slices

    def groups(self) -> Iterator[tuple[int, Iterator[Box]]]:
        """The slice and the boxes of each group."""
        for number in range(self.grouped):
            rest, part = divmod(number, self.slices)
            yield part, self._boxes(rest, part)

    def _boxes(self, group: int, part: int) -> Iterator[Box]:
        for number in range(self.size // self.grouped):
            yield tuple(reversed(list(self._ranges(group, part, number))))

    def _ranges(self, group: int, part: int, number: int) -> Iterator[tuple[int, int]]:
        """The range of each loop of one box, the innermost first."""
        for n in reversed(range(len(self.parts))):
            parts = self.parts[n]
            if self.kept[n]:
                group, at = divmod(group, parts)
            elif n == self.sliced and self.slices > 1:
                number, at = divmod(number, parts // self.slices)
                at += part * (parts // self.slices)
            else:
                number, at = divmod(number, parts)
            yield self.extent[n] * at // parts, self.extent[n] * (at + 1) // parts


def cut(node: EinSum, nest: Nest) -> Cut:
    """Cuts the domain into boxes of about `BOX` operations, enough for all threads."""
    extent = [node.axis(x).extent for x in nest.loops]
    kept = [x in node.keys for x in nest.loops]
    keys = [n for n, k in enumerate(kept) if k]
    work = prod(extent) * weight(node)
    parts = [1] * len(extent)
    workers = thread_pool.threads() if work >= PARALLEL else 1
    pieces = PER_THREAD * workers if workers > 1 else 1
    if nest.mode is Mode.ROW:
        keys.remove(len(extent) - 1)
        rows = prod(extent[n] for n in keys)
        parts[-1] = max(ceil(extent[-1] / STRIP), min(ceil(pieces / rows), extent[-1] // NARROW))
    wanted = ceil(max(work / BOX, pieces) / prod(parts))
    for n in keys:
        # If running values are in memory, slices of the terms are faster than short rows.
        few = 8 * prod(node.schema.shape) < prod(extent)
        row = nest.mode is Mode.MEMORY and n == len(extent) - 1 and few
        parts[n] = min(max(1, extent[n] // NARROW) if row else extent[n], wanted)
        wanted = ceil(wanted / parts[n])
    sliced, slices = 0, 1
    if nest.keeps_state:
        groups = prod(p for p, k in zip(parts, kept, strict=True) if k)
        reduced = [n for n, k in enumerate(kept) if not k]
        values = prod(node.schema.shape) * len(node.outputs)
        in_order = has_order(node)
        sliced = max(reduced, key=extent.__getitem__, default=0)
        if in_order:  # an outer loop must be cut completely before an inner one
            sliced = next((n for n in reduced if extent[n] > 1), sliced)
        if reduced and groups < pieces:
            most = max(1, SLICED // values if nest.carry else workers * (8 * values < prod(extent)))
            slices = min(extent[sliced], ceil(pieces / groups), most)
            parts[sliced] = slices
        wanted = ceil(work / BOX / (groups * slices))
        for n in reduced:
            if n == sliced:
                more = min(extent[n] // slices, wanted)
                parts[n] = slices * more
            else:
                parts[n] = more = min(extent[n], wanted)
            wanted = ceil(wanted / more)
            if in_order and parts[n] < extent[n]:
                break
    return Cut(
        extent=tuple(extent),
        parts=tuple(parts),
        kept=tuple(kept),
        sliced=sliced,
        slices=slices,
        work=work,
    )
