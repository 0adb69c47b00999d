"""A program on virtual sites that runs on NumPy while one of its kernels is being compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache

from einsql.engine.spmd_executor import SiteProgram
from einsql.engine.step import Arrays, GraphExecutor, Measure, Tick
from einsql.kernels.tiers import Tiered
from einsql.storage.fields import Fields


class TieredSites(GraphExecutor):
    """Two programs for the same sites, of which one run uses one.

    All steps of a run at all sites are of one tier, so that equal cells have equal bits. The
    compiled program ends at its first missing kernel, and its results are dropped.

    Attributes:
        compiled: The program with kernels.
    """

    def __init__(self, compiled: SiteProgram, plain: Callable[[], SiteProgram]) -> None:
        """Takes the programs.

        Args:
            compiled: The program with kernels, which waits for them.
            plain: Creates the program without kernels.
        """
        twin = cache(plain)
        self.compiled = compiled
        self.aliased_inputs = compiled.aliased_inputs
        self._run = Tiered(compiled.run, lambda: twin().run)
        self._measured = Tiered(compiled.measured, lambda: twin().measured)

    def run(self, inputs: Mapping[str, Arrays], tick: Tick) -> Sequence[Fields]:
        """Runs one of the programs; see `Executor.run`."""
        return self._run(inputs, tick)

    def measured(
        self, inputs: Mapping[str, Arrays], tick: Tick
    ) -> tuple[Sequence[Fields], Measure]:
        """Runs and measures one of the programs; see `Executor.measured`."""
        results, measure = self._measured(inputs, tick)
        measure.tier = self._measured.ran
        return results, measure
