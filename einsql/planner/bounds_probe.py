"""Bounds of keys that are found in the data, and whether they still are what they were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from einsql.errors import Error, NotSupportedError

if TYPE_CHECKING:
    from einsql.engine.step import Arrays, GraphExecutor, Tick
    from einsql.storage.fields import Fields

WIDEST = 2**31
"""A range of values wider than this is no tensor key."""
SPARSE = 2**27
"""From this range on a key needs enough points, for an array holds all of its values."""


def bounds_in(found: Arrays, points: int) -> tuple[int, int]:
    """`[lo, hi)` of a key.

    Args:
        found: Its least value `lo`, its greatest `hi`, and whether there is `some`.
        points: How many values there may be.

    Raises:
        NotSupportedError: They are too far apart.
    """
    if not bool(found["some"]):
        return 0, 0
    lo, hi = int(found["lo"]), int(found["hi"])
    if hi - lo >= WIDEST or (hi - lo >= SPARSE and hi - lo > 64 * points):
        raise NotSupportedError(
            f"A grouping key ranges from {lo} to {hi}, too far for a tensor key",
            hint="Group by an expression with a small range, such as v % 1024.",
        )
    return lo, hi + 1


@dataclass(frozen=True, slots=True)
class Probe:
    """Bounds that a plan was made for, and what finds them."""

    program: GraphExecutor
    points: int
    bounds: tuple[int, int]

    def holds(self, inputs: Mapping[str, Fields], tick: Tick) -> bool:
        """True if the data have the same bounds; they may not be found any more."""
        try:
            (extremes,) = self.program.run(inputs, tick)
            return bounds_in(extremes, self.points) == self.bounds
        except Error:
            return False  # a new plan meets it too, and says where
