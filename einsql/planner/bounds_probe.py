"""Bounds of keys that are computed from the data, and the test whether they still hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from einsql.core.records import dataclass
from einsql.errors import Error, NotSupportedError

if TYPE_CHECKING:
    from einsql.engine.step import Arrays, GraphExecutor, Tick
    from einsql.ir.einsum.graph import Node
    from einsql.storage.fields import Fields

WIDEST = 2**31
"""Greatest extent of a key that is computed from the data."""
SPARSE = 2**27
"""Extent from which a key needs a minimum density: an array stores all of its values."""


def bounds_in(extremes: Arrays, points: int) -> tuple[int, int]:
    """Returns the bounds `[lo, hi)` of a key.

    Args:
        extremes: Its least value `lo`, its greatest `hi`, and whether there is any (`some`).
        points: The greatest possible number of values.

    Raises:
        NotSupportedError: The bounds are too far apart.
    """
    if not bool(extremes["some"]):
        return 0, 0
    lo, hi = int(extremes["lo"]), int(extremes["hi"])
    if hi - lo >= WIDEST or (hi - lo >= SPARSE and hi - lo > 64 * points):
        raise NotSupportedError(
            f"A grouping key ranges from {lo} to {hi}, too far for a tensor key",
            hint="Group by an expression with a small range, such as v % 1024.",
        )
    return lo, hi + 1


@dataclass(slots=True)
class Probe:
    """Bounds that a plan was made for, and the query that computes them.

    Attributes:
        root: The query's rewritten graph.
        points: The greatest possible number of values.
        bounds: The bounds `[lo, hi)`.
        compile: Compiles the graph; the program is kept.
    """

    root: Node
    points: int
    bounds: tuple[int, int]
    compile: Callable[[Node], GraphExecutor]
    _program: GraphExecutor | None = field(init=False, default=None, repr=False)

    def holds(self, inputs: Mapping[str, Fields], tick: Tick) -> bool:
        """Whether the data still have the same bounds; False if the computation fails."""
        try:
            if self._program is None:
                self._program = self.compile(self.root)
            (extremes,) = self._program.run(inputs, tick)
            return bounds_in(extremes, self.points) == self.bounds
        except Error:
            return False  # a new plan reports the error
