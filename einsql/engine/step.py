"""Executors, their steps and measures, and the functions passed in from the kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Protocol, TypeVar

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import EinSum, Node
from einsql.ir.einsum.reasons import Reason, why_masked
from einsql.kernels.kernel import Arrays as Arrays
from einsql.kernels.kernel import Compile as Compile
from einsql.kernels.kernel import Runner as Runner
from einsql.kernels.kernel import Tick as Tick
from einsql.kernels.storage_choice import StorageChoice
from einsql.kernels.vectorized.views import VIEWS

if TYPE_CHECKING:
    from einsql.engine.boxes.tile_reader import TileReader

Run = Callable[[Mapping[str, Arrays], Tick], Sequence[Arrays]]
"""Runs all steps of a program; takes the inputs by name, and returns the fields of each root."""

R_co = TypeVar("R_co", covariant=True)


class Group(Protocol):
    """Nodes that run together, without complete intermediate results."""

    @property
    def nodes(self) -> tuple[EinSum, ...]:
        """The nodes, producers first; the group has no other nodes."""

    @property
    def sources(self) -> tuple[Node, ...]:
        """The distinct operands from outside the group."""

    @property
    def results(self) -> tuple[EinSum, ...]:
        """The nodes whose results are visible outside the group."""

    @property
    def tier(self) -> str | None:
        """The tier that ran last; None for a group of one tier."""

    @property
    def detail(self) -> str:
        """The description of the execution, for EXPLAIN."""

    def run(self, operands: Sequence[Arrays], tick: Tick) -> Sequence[Arrays]:
        """Runs the nodes on the fields of their sources; returns the fields of their results."""


class Grouping(Protocol):
    """The groups of a graph."""

    @property
    def groups(self) -> Sequence[Group]:
        """Disjoint groups of nodes."""

    def refusal(self, node: EinSum) -> Reason | None:
        """Returns why a node and its operands are in no group; None if no group is possible."""


FindGroups = Callable[[Sequence[Node]], Grouping]
"""Finds the nodes of a graph that run together; the session passes it in from the kernels."""


@dataclass(frozen=True, slots=True)
class Step:
    """One node, or several nodes that run together.

    Attributes:
        nodes: The nodes, with their numbers among all nodes except inputs.
        kernel: The name of the kernel, for EXPLAIN.
        run: Runs the nodes; returns the fields of each result.
        sources: The slots of the operands.
        targets: The slots of the results.
        free: The slots that no later step reads.
        nbytes: Bytes of the results; a view takes none, and neither does a result that may be
            sparse, whose kernel checks the free memory.
        detail: The description of a group's execution.
        runner: The runner of a single node; `run` calls it.
        reader: The runner, if the node reads tiles of stored tensors as it needs them.
        aliases_input: Whether a result may share memory with an operand.
        calls_blas: Whether it may call a BLAS library.
        may_be_sparse: Whether a result may be a `Sparse`.
        choice: The choice between stored elements and a dense copy; None for other steps.
        chosen: The reasons for the kernel and for running alone, recorded with the choice.
        tier: Returns the tier that ran last; None for a step of one tier.
    """

    nodes: tuple[tuple[int, EinSum], ...]
    kernel: str
    run: Callable[[Sequence[Arrays], Tick], Sequence[Arrays]]
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    free: tuple[int, ...]
    nbytes: int
    detail: str = ""
    runner: Runner | None = None
    reader: TileReader | None = None
    aliases_input: bool = False
    calls_blas: bool = False
    may_be_sparse: bool = False
    choice: StorageChoice | None = None
    chosen: tuple[Reason, ...] = ()
    tier: Callable[[], str | None] = lambda: None

    @property
    def points(self) -> int:
        """Points of all nodes."""
        return sum(node.points for _, node in self.nodes)

    @property
    def tiles(self) -> tuple[int, int]:
        """The stored tiles that the last run has read and skipped."""
        return (0, 0) if self.reader is None else (self.reader.read, self.reader.skipped)

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why it is not dense, not fused or not BLAS; masks of views and groups cost little."""
        has_mask = self.runner is not None and self.kernel != VIEWS.name
        mask = why_masked(self.nodes[0][1]) if has_mask else None
        return self.chosen if mask is None else (mask, *self.chosen)


@dataclass(slots=True)
class StepMeasure:
    """The measure of one step.

    Attributes:
        seconds: Wall time of the step; the slowest rank's time on several ranks. On one site it
            leaves out the wait for the compiler.
        nbytes: Bytes of its results, on one site.
        sent: Bytes sent between sites.
        spilled: Bytes of its results in temporary files.
        boxes: The number of boxes of the step.
        tier: The tier that ran on one site, "compiled" or "plain"; None for a step of one tier.
        tiles: The stored tiles that were read, and those that were skipped by their statistics.
        stored: The stored elements of a sparse result; None for arrays.
    """

    seconds: float = 0.0
    nbytes: int = 0
    sent: int = 0
    spilled: int = 0
    boxes: int = 1
    tier: str | None = None
    tiles: tuple[int, int] = (0, 0)
    stored: int | None = None


@dataclass(slots=True)
class Measure:
    """The measure of one run.

    Attributes:
        steps: The measure of each step.
        seconds: Seconds that each site spent in kernels.
        flops: Scalar operations of the kernels that each site ran.
        sent: Bytes that left each site for another one.
        received: Bytes that reached each site from another one.
        memory: The peak of bytes of tiles that each site stored between steps.
        read: Bytes read from files.
        ranks: Number of processes that shared the work.
        tiles: For each root one copy of its tiles, if they are small enough to travel with the
            measure; else no tiles.
        tier: The tier that ran at all sites; None for a program of one tier, and on one site.
        wall: Seconds of the run, with the parts of the statement and with reads of files.
        compiling: Seconds of `wall` for which the run waited for the compiler.
    """

    steps: list[StepMeasure] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    flops: list[int] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    read: int = 0
    ranks: int = 1
    tiles: list[dict[int, Arrays]] = field(default_factory=list)
    tier: str | None = None
    wall: float = 0.0
    compiling: float = 0.0


def combined_measure(measures: Sequence[Measure]) -> Measure:
    """Combines the measures of all ranks. The time of a step is that of its slowest rank."""
    every = zip(*(m.steps for m in measures), strict=True)
    steps = [
        StepMeasure(max(s.seconds for s in each), sent=sum(s.sent for s in each)) for each in every
    ]
    seconds = [sum(each) for each in zip(*(m.seconds for m in measures), strict=True)]
    names = ("flops", "sent", "received", "memory")
    counts = ([getattr(m, name) for m in measures] for name in names)
    flops, sent, received, memory = ([sum(n) for n in zip(*lists, strict=True)] for lists in counts)
    read = sum(m.read for m in measures)
    each_root = zip(*(m.tiles for m in measures), strict=True)
    tiles = [{n: f for part in parts for n, f in part.items()} for parts in each_root]
    return Measure(
        steps=steps,
        seconds=seconds,
        flops=flops,
        sent=sent,
        received=received,
        memory=memory,
        read=read,
        ranks=len(measures),
        tiles=tiles,
        tier=next((m.tier for m in measures), None),
    )


class Executor(Protocol[R_co]):
    """A compiled plan for any number of runs on different inputs.

    Programs of graphs return the fields of each root, and programs over tiles return arrays by
    key.
    """

    def run(self, inputs: Mapping[str, Arrays], tick: Tick) -> R_co:
        """Runs the plan.

        Args:
            inputs: Arrays of each input by name.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.

        Raises:
            DataError: A selected element overflows, divides by zero or cannot be cast.
            OperationalError: Memory or space for temporary files is short, or ranks have ended.
        """
        return self.measured(inputs, tick)[0]

    def measured(self, inputs: Mapping[str, Arrays], tick: Tick) -> tuple[R_co, Measure]:
        """Runs the plan as `run` does, and measures its steps and sites."""


class GraphExecutor(Executor[Sequence[Arrays]], Protocol):
    """An executor of an EinSum graph, on one site, a device, virtual sites or MPI ranks.

    Attributes:
        aliased_inputs: Names of the inputs whose memory a result may share.
        steps: The steps with their kernels; empty if each site chooses kernels for its own tiles.
        verifies: Names of the inputs in files whose tiles the steps verify when they read them.
    """

    aliased_inputs: Sequence[str] = ()
    steps: Sequence[Step] = ()
    verifies: frozenset[str] = frozenset()
