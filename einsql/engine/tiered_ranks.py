"""A program on ranks that runs on NumPy while a rank compiles one of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.engine.exchange import Held
from einsql.engine.mpi_transport import COMPILING, Abandoned
from einsql.engine.spmd_executor import SiteProgram
from einsql.engine.step import Measure, Tick
from einsql.ir.spmd.program import Program
from einsql.kernels import compile_node, join
from einsql.kernels.tiers import CompiledError, Tiered

if TYPE_CHECKING:
    from einsql.kernels.compiler import process
    from einsql.kernels.runtime import compile_cache
else:  # loaded when a kernel is compiled
    compile_cache = LazyModule("einsql.kernels.runtime.compile_cache")
    process = LazyModule("einsql.kernels.compiler.process")

Results = tuple[list[Held], Measure]
"""The tiles of each root on this rank, and the measures of the run."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run on all ranks, which may begin several times.

    Attributes:
        run: Runs a program to its end with all ranks. Raises Abandoned if one of them leaves it.
        leave: Informs all ranks at their next agreement that this rank leaves the program with a
            status. Raises Abandoned with the greatest status of all ranks.
    """

    run: Callable[[SiteProgram, Tick], Results]
    leave: Callable[[int], None]


class TieredProgram:
    """Two programs for the same sites; all ranks run the same one, so equal cells have equal bits.

    A rank that misses a kernel leaves the compiled program. So do all ranks at their next
    agreement, and run the plain one. A rank whose kernel has been compiled meanwhile leaves that
    in the same way, if the compiled program would end sooner.

    Attributes:
        compiled: The program with kernels. It waits for them, except within `run`.
    """

    def __init__(self, program: Program, jit: str) -> None:
        """Prepares the programs.

        Args:
            program: The steps of all sites.
            jit: The mode of compilation.
        """
        self._program = program
        compile_one = partial(compile_node, jit="wait" if jit == "auto" else jit)
        self.compiled = SiteProgram(program, compile_one, partial(join, compile_node=compile_one))
        self._tiers: Tiered[Attempt, Results] = Tiered(self._run_compiled, self._plain)

    def run(self, attempt: Attempt, tick: Tick) -> Results:
        """Runs one of the programs; the measure names its tier.

        All ranks call it together.

        Raises:
            Abandoned: A rank has failed or was cancelled.
            Error: See `SiteProgram.execute`.
        """
        results, measure = self._tiers(attempt, tick)
        measure.tier = self._tiers.ran
        return results, measure

    def _run_compiled(self, attempt: Attempt, tick: Tick) -> Results:
        try:
            return attempt.run(self.compiled, tick)
        except compile_cache.NotCompiledError:
            _leave(attempt)
            raise
        except Abandoned as stop:
            if stop.status != COMPILING:
                raise
        # This rank has its kernels so far; another one will end the plain program.
        raise compile_cache.NotCompiledError(process.Compilation(None, "", ""))

    def _plain(self) -> Callable[[Attempt, Tick], Results]:
        plain = SiteProgram(self._program, partial(compile_node, jit="never"))

        def run(attempt: Attempt, tick: Tick) -> Results:
            try:
                return attempt.run(plain, tick)
            except CompiledError:
                _leave(attempt)
                raise
            except Abandoned as stop:
                if stop.status != COMPILING:
                    raise
            raise CompiledError

        return run


def _leave(attempt: Attempt) -> None:
    """Leaves a program to change the tier.

    Raises:
        Abandoned: A rank has failed or was cancelled.
    """
    try:
        attempt.leave(COMPILING)
    except Abandoned as stop:
        if stop.status != COMPILING:
            raise
