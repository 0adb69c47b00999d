"""The operations and the simulation of a plan, as parts of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from einsql.core.machine import Topology

Kind = Literal["contraction", "reduction", "map"]
"""A contraction reduces over several operands, a reduction over one; a map does not reduce."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The measure of an operation or a step.

    Attributes:
        bytes: Bytes of the results, on one site.
        bytes_sent: Bytes sent between sites, on several.
        spilled: Bytes of the results that went to files.
        boxes: The number of boxes in which a step ran.
        blocks: The number of tiles of the result, of a plan over tiles.
    """

    seconds: float
    bytes: int | None = None
    bytes_sent: int | None = None
    spilled: int | None = None
    boxes: int | None = None
    blocks: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class InputReport:
    """A stored tensor.

    Attributes:
        keys: The bounds [lo, hi) of each key.
        values: The type of each value column.
        bytes: Bytes of the dense tensor.
    """

    id: str
    keys: Mapping[str, tuple[int, int]]
    values: Mapping[str, str]
    bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadReport:
    """An operand of an operation.

    Attributes:
        stored: Whether it is a stored tensor.
        labels: The labels it is read by.
        collective: The collectives that bring it to the sites of the operation; "shared" if
            another operation did.
        bytes_sent: The bytes that these collectives send.
    """

    id: str
    stored: bool
    labels: Sequence[str]
    collective: str
    bytes_sent: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Placements:
    """The placements of the operands and the result of an operation.

    Attributes:
        grid: The site grid: each cut label with its number of parts, slowest axis first.
        operands: The placement of each operand, one entry per grid axis.
        result: The placement of the result of the cells.
    """

    grid: Sequence[tuple[str, int]]
    operands: Sequence[Sequence[str]]
    result: Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class FloatsReport:
    """The cost of a cut by EinDecomp's count, in elements."""

    join: float
    aggregate: float
    repartition: float

    @property
    def sum(self) -> float:
        """The cost of the operation."""
        return self.join + self.aggregate + self.repartition


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveReport:
    """A collective, the axes of the grid that it runs along, and its bytes."""

    collective: str
    along: Sequence[str]
    bytes_sent: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupReport:
    """Operations that run together, block by block.

    Attributes:
        nodes: Their ids; the last one has the measure of all.
        detail: The size of a block, on one site.
    """

    nodes: Sequence[str]
    detail: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedReport:
    """Seconds at which the first site begins an operation and the last one ends it."""

    begins: float
    ends: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationReport:
    """An operation of a graph.

    Attributes:
        labels: The extent of each label.
        viable: The number of cuts from which its cut was chosen.
        partition: The number of parts of each label.
        hint: The parts that a PARTITION hint fixes.
        copies: The number of groups of sites that compute the same.
        collective: The names of the collectives that send bytes.
        bytes_sent: The bytes that all its collectives send.
        tra_cost: Floats moved, by the count of the tensor-relational algebra.
        seconds: Predicted seconds, with the collectives.
        memory: Bytes of the largest cell.
        measured: The measure; of a group only the last operation has one that is not 0.
        text: Its lines in the text of the graph.
        keys: The labels that are keys of the result.
        bytes: Bytes of the result.
        cells: The site of each cell of the grid, the last axis fastest; None if there are many.
        kernel: The kernel, on one site.
        points: The number of points that the kernel visits, on one site.
    """

    id: str
    op: Kind
    labels: Mapping[str, int]
    viable: int
    partition: Mapping[str, int]
    hint: Mapping[str, int]
    copies: int
    placements: Placements
    floats: FloatsReport
    collective: str
    collectives: Sequence[CollectiveReport]
    bytes_sent: int
    tra_cost: float
    flops: int
    seconds: float
    memory: int
    measured: Measured | None = None
    group: GroupReport | None = None
    text: Sequence[str]
    keys: Sequence[str]
    reads: Sequence[ReadReport]
    bytes: int
    cells: Sequence[int] | None = None
    simulated: SimulatedReport | None = None
    kernel: str | None = None
    points: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedNode:
    """The simulated work of a cluster node: mean seconds of its sites, and sums of the rest."""

    sites: int
    computing: float
    communicating: float
    waiting: float
    utilisation: float
    link_utilisation: float
    memory: int
    bytes_out: int
    bytes_in: int


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedSite:
    """The simulated work of a site."""

    computing: float
    communicating: float
    waiting: float
    memory: int
    bytes_sent: int
    bytes_received: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CourseReport:
    """The activity of cluster nodes over time.

    Attributes:
        nodes: The numbers of the nodes; of very many a sample.
        computing: For each of them the computing part of every time interval, 0 to 1.
        communicating: The same for communication.
    """

    nodes: Sequence[int]
    computing: Sequence[Sequence[float]]
    communicating: Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationReport:
    """A simulated run.

    Attributes:
        seconds: Seconds until the last site is done.
        notice: The nodes whose memory is too small, or None.
    """

    seconds: float
    notice: str | None
    cluster: Topology
    per_node: Sequence[SimulatedNode]
    per_site: Sequence[SimulatedSite]
    course: CourseReport
