"""The definition of a kernel: a named method to run some EinSum nodes, with a one-line law."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from einsql.core.fp_errors import Ignored, here
from einsql.core.records import dataclass
from einsql.core.source_writer import Write
from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.reasons import Reason

Arrays = Mapping[str, np.ndarray]
"""A relation's fields by name; axes are the schema's keys in order, origin `key.lo`."""

Tick = Callable[[float], None]
"""Callback with the completed fraction, 0 to 1, about twice per second; raises to cancel."""

Runner = Callable[[Sequence[Arrays], Tick], dict[str, np.ndarray]]
"""Takes the arrays of each operand of the node and returns the node's output fields.

Arrays may be strided, read-only or broadcast; a runner never writes into them. A result
has the output's dtype and the node's shape, and aliases an operand only in view kernels.
Raises DataError for selected elements that overflow, divide by zero or cannot be cast.
"""


AnyRunner = TypeVar("AnyRunner")


@dataclass(frozen=True, slots=True, eq=False)
class CompiledNode(Generic[AnyRunner]):
    """A node with the kernels that run it.

    Attributes:
        kernel: The names of the kernels, joined by "+", for EXPLAIN.
        run: The runner.
        views: The output fields that share memory with operands or constants of the node.
        calls_blas: Whether the runner may call a BLAS library.
        may_be_sparse: Whether the result may be a `Sparse` instead of a dictionary of arrays.
        reason: Why a sum of products is not computed by BLAS; None if it is, and for other nodes.
    """

    kernel: str
    run: AnyRunner
    views: frozenset[str] = frozenset()
    calls_blas: bool = False
    reason: Reason | None = None
    may_be_sparse: bool = False


Compile = Callable[[EinSum], CompiledNode[Runner]]
"""Chooses kernels for a node and compiles it."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A named entry of the registry.

    Attributes:
        name: The name that EXPLAIN ANALYZE shows.
        law: Its result and the nodes it applies to, in one line.
        match: Compiles a node, or returns None where the kernel does not apply.
        takes_half: Whether it reads and writes two-byte elements without conversion.
        makes_views: Whether results share memory with operands.
        calls_blas: Whether it may call a BLAS library.
    """

    name: str
    law: str
    match: Callable[[EinSum], Runner | None]
    takes_half: bool = False
    makes_views: bool = False
    calls_blas: bool = False

    def compiled(self, node: EinSum, run: Runner) -> CompiledNode[Runner]:
        """Combines the node with a runner that the kernel created."""
        fields = frozenset(o.name for o in node.outputs) if self.makes_views else frozenset()
        return CompiledNode(self.name, run, fields, self.calls_blas)


@dataclass(frozen=True, slots=True, eq=False)
class IgnoringConditions:
    """A runner that ignores floating-point conditions.

    Attributes:
        bare: The runner without this state.
        write: Writes the runner's operations as source that ignores conditions; or None.
    """

    bare: Runner
    write: Write | None = None

    def __call__(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        """Runs it."""
        if here.ignored:
            return self.bare(operands, tick)
        with Ignored():
            return self.bare(operands, tick)


@dataclass(frozen=True, slots=True, eq=False)
class WithWriter:
    """A runner that causes no floating-point conditions, with a writer of its operations.

    Attributes:
        bare: The runner.
        write: Writes the runner's operations as source.
    """

    bare: Runner
    write: Write

    def __call__(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        """Runs it."""
        return self.bare(operands, tick)


def ignoring(run: Runner, write: Write | None = None) -> Runner:
    """Wraps a runner so that it ignores floating-point conditions."""
    return IgnoringConditions(run, write)


def no_progress(_: float) -> None:
    """A callback without effect."""


def share(tick: Tick, number: int, of: int) -> Tick:
    """The callback of one of several equal parts of the work."""
    return lambda done: tick((number + done) / of)
