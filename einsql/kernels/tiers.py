"""Tiers: a statement runs on NumPy while its kernel is being compiled.

The compiled tier is tried first. If its kernel is not in the cache, compilation begins in another
process, the plain tier runs meanwhile, and is abandoned for the compiled one as soon as that is
ready and would end sooner. Results of an abandoned run are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Generic, TypeVar

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.kernels.kernel import Arrays, Tick

if TYPE_CHECKING:
    from einsql.kernels.runtime import compile_cache
else:  # loaded when a kernel is compiled
    compile_cache = LazyModule("einsql.kernels.runtime.compile_cache")

Operands = TypeVar("Operands")
T = TypeVar("T")

WORTH = 0.02
"""Seconds that the plain tier must still take for a switch to the compiled tier, which starts
anew; `python -m benchmarks first` has statements on either side."""

Tier = Callable[[Sequence[Arrays], Tick], T]
"""Runs a node or a group on the fields of its operands."""
Run = Callable[[Operands, Tick], T]
"""Runs a node, a group or a program on its inputs."""


@dataclass(slots=True, eq=False)
class Tiered(Generic[Operands, T]):
    """A runner of two tiers: of a node, a group, or a program at several sites.

    Attributes:
        compiled: The compiled tier.
        plain: Creates the plain tier, which needs no kernel.
        ran: The tier that ran last, "compiled" or "plain"; None before the first run.
    """

    compiled: Run[Operands, T]
    plain: Callable[[], Run[Operands, T]]
    ran: str | None = None
    _plain_run: Run[Operands, T] | None = None

    def __call__(self, operands: Operands, tick: Tick) -> T:
        """Runs the compiled tier, or the plain one while a kernel is being compiled."""
        while True:
            try:
                with compile_cache.WithoutWaiting():
                    fields = self.compiled(operands, tick)
                self.ran = "compiled"
                return fields
            except compile_cache.NotCompiledError as missing:
                compilation = missing.compilation
            if self._plain_run is None:
                self._plain_run = self.plain()
            self.ran = "plain"
            try:
                return self._plain_run(operands, _Switch(compilation.over.is_set, tick))
            except CompiledError:
                continue


def tier_of(run: object) -> str | None:
    """The tier of a runner that ran last; None for a runner of one tier."""
    return run.ran if isinstance(run, Tiered) else None


class CompiledError(Exception):
    """A kernel has been compiled, and the compiled tier would end sooner than the plain one."""


class _Switch:
    """The progress of the plain tier, which ends it when the kernel is compiled.

    Args:
        is_compiled: Whether the kernel is compiled.
        tick: The statement's callback.
    """

    __slots__ = ("_is_compiled", "_start", "_tick")

    def __init__(self, is_compiled: Callable[[], bool], tick: Tick) -> None:
        self._is_compiled = is_compiled
        self._tick = tick
        self._start = perf_counter()

    def __call__(self, done: float) -> None:
        """Reports progress.

        Raises:
            CompiledError: The compiled tier would end sooner.
        """
        self._tick(done)
        if self._is_compiled():
            left = (perf_counter() - self._start) * (1 - done) / max(done, 1e-9)
            if left > WORTH:
                raise CompiledError
