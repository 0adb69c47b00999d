"""The operations and the simulation of a plan, as parts of its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from einsql.core.records import dataclass

if TYPE_CHECKING:
    from einsql.core.machine import Topology

Kind = Literal["contraction", "reduction", "map"]
"""A contraction reduces over several operands, a reduction over one; a map does not reduce."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """The measure of an operation or a step.

    Attributes:
        bytes: The bytes of the results, on one site.
        bytes_sent: The bytes sent between sites, on several sites.
        spilled: The bytes of the results that were written to temporary files.
        boxes: The number of boxes of the step.
        tiles_read: The number of stored tiles that were read, of those in the operand's bounds
            whose values the condition reads.
        tiles_skipped: The number of stored tiles that statistics have excluded.
        blocks: The number of tiles of the result, for a plan over tiles.
        tier: "compiled" or "plain" for a step of two tiers, on one site or on virtual sites.
        stored: The stored elements of a sparse result, on one site.
    """

    seconds: float
    bytes: int | None = None
    bytes_sent: int | None = None
    spilled: int | None = None
    boxes: int | None = None
    tiles_read: int | None = None
    tiles_skipped: int | None = None
    blocks: int | None = None
    tier: str | None = None
    stored: int | None = None


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
        labels: The labels of the operand's keys.
        collective: The collectives that move the operand to the sites of the operation; "shared"
            if another operation's collectives moved it.
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
class NotationReport:
    """A step in sharded index notation, and the collectives that it takes.

    Attributes:
        text: The labels of the operands and of the result, each with its mesh axes, such as
            `b_data e, e f_model -> b_data f_model`.
        collectives: The collectives, along mesh axes.
    """

    text: str
    collectives: Sequence[CollectiveReport]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupReport:
    """Operations that run together, block by block.

    Attributes:
        nodes: The ids of the operations; the last operation has the measure of the group.
        detail: The size of a block, on one site; where rows run that move to blocks.
    """

    nodes: Sequence[str]
    detail: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedReport:
    """The times in seconds at which the first site begins an operation and the last ends it."""

    begins: float
    ends: float


@dataclass(frozen=True, kw_only=True, slots=True)
class OperationReport:
    """An operation of a graph.

    Attributes:
        labels: The extent of each label.
        viable: The number of cuts among which the search chose.
        partition: The number of parts of each label.
        hint: The number of parts of each label that a PARTITION hint fixes.
        copies: The number of groups of sites that compute the same.
        collective: The names of the collectives that send bytes.
        bytes_sent: The bytes that all collectives of the operation send.
        tra_cost: The floats moved, by the count of the tensor-relational algebra.
        seconds: The predicted seconds, with the collectives.
        memory: The bytes of the largest cell.
        measured: The measure; in a group only the last operation's measure is not 0.
        text: The operation's lines in the text of the graph.
        notation: The moves of the operands and the operation in sharded index notation; None
            without a mesh.
        keys: The labels that are keys of the result.
        bytes: The bytes of the result.
        cells: The site of each cell of the grid, the last axis fastest; None for many cells.
        kernel: The kernel, on one site.
        points: The number of points that the kernel visits, on one site.
        reasons: Why the operation is masked, and on one site why it is not fused or not BLAS.
        origins: The parts of the statement that it computes, with their lines.
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
    notation: Sequence[NotationReport] | None = None
    keys: Sequence[str]
    reads: Sequence[ReadReport]
    bytes: int
    cells: Sequence[int] | None = None
    simulated: SimulatedReport | None = None
    kernel: str | None = None
    points: int | None = None
    reasons: Sequence[str] = ()
    origins: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulatedNode:
    """The simulated work of a cluster node: mean seconds of its sites, sums of other fields."""

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
        nodes: The numbers of the nodes; a sample of a large cluster.
        computing: For each node the computing fraction of each time interval, 0 to 1.
        communicating: For each node the communicating fraction of each time interval, 0 to 1.
    """

    nodes: Sequence[int]
    computing: Sequence[Sequence[float]]
    communicating: Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationReport:
    """A simulated run.

    Attributes:
        seconds: The seconds until the last site ends.
        notice: A notice of the nodes whose memory is too small, or None.
    """

    seconds: float
    notice: str | None
    cluster: Topology
    per_node: Sequence[SimulatedNode]
    per_site: Sequence[SimulatedSite]
    course: CourseReport
