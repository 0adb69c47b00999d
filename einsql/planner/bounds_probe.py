"""Bounds of keys that are computed from the data, and the test whether they still hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.errors import Error, NotSupportedError
from einsql.ir.einsum.graph import EinSum, Input, Node, walk
from einsql.optimizer import optimize
from einsql.planner.compile import compiled

if TYPE_CHECKING:
    from einsql.engine.step import Arrays, GraphExecutor, Tick
    from einsql.planner import tile_plan
    from einsql.planner.planner import BinderCatalog
    from einsql.storage.fields import Fields
else:  # imported for statements with tiles only
    tile_plan = LazyModule("einsql.planner.tile_plan")

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


def probed(catalog: BinderCatalog, node: EinSum) -> tuple[int, int]:
    """Computes the bounds of an expression from the data; the statement's plan relies on them.

    Args:
        catalog: The catalog of the statement's binder.
        node: The node with the outputs lo, hi and some.
    """
    recorder, settings = catalog.recorder, catalog.settings
    query = optimize(node, disabled=settings.disabled_rules).root, node.points
    root, points = query if recorder is None else recorder.build(query)[0]
    fields: Mapping[str, Fields] = catalog.fields
    parts = catalog.parts(n for n in walk(root) if isinstance(n, Input))
    if parts:
        fields = tile_plan.computed(parts, fields, catalog.tick)
    on_ranks = catalog.cluster is not None
    program = catalog.on_sites((root,)).program if on_ranks else catalog.compiled(root)
    (extremes,) = program.run(fields, catalog.tick)
    bounds = bounds_in(extremes, points)
    if parts or on_ranks:
        catalog.volatile = True
    else:
        again = partial(compiled, settings=settings, memory=catalog.memory)
        catalog.probes.append(Probe(*query, bounds, again if recorder else lambda _: program))
    return bounds


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
