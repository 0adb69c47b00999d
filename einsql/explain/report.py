"""The report of a plan: the content of EXPLAIN in all its formats.

A report has plain values only: no plan, no program and no connection. The keys of its JSON are
the names of the fields (docs/reference/explain.md). The JSON omits fields with the metadata
`TEXT_ONLY`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from einsql.core.records import dataclass
from einsql.explain.levels import LevelsReport
from einsql.explain.operations import InputReport, Measured, OperationReport, SimulationReport

Lines = Sequence[str]

TEXT_ONLY = {"text_only": True}
"""The metadata of a field that the JSON omits."""


# ---- parts that several reports have


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteReport:
    """The work of one site: measured with a measure, otherwise predicted.

    Attributes:
        memory: The predicted peak memory in bytes; None for a plan over tiles.
        memory_measured: The peak of bytes of tiles that the site stored; None without a measure.
        seconds: The seconds in kernels; None without a measure.
    """

    flops: int
    memory: int | None = None
    memory_measured: int | None = None
    bytes_sent: int
    bytes_received: int
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Sums over a plan.

    Attributes:
        floats_moved: The floats moved, by EinDecomp's count.
        bytes_sent: The bytes sent between different sites.
        tra_cost: The floats moved, by the count of the tensor-relational algebra.
        flops: The number of scalar operations.
    """

    floats_moved: float
    bytes_sent: int
    tra_cost: float
    flops: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PartReport:
    """A part of a statement that runs before the rest.

    Attributes:
        id: The name of the part.
        plan: The lines of the part's plan.
    """

    id: str
    plan: Lines


# ---- plans over elements


@dataclass(frozen=True, kw_only=True, slots=True)
class RewriteReport:
    """One application of a rewrite rule.

    Attributes:
        fired: The number of places where the rule applied.
        changes: The lines of the difference, which begin with "-", "+" or a blank.
        after: The lines of the graph after the rule.
    """

    rule: str
    law: str
    fired: int
    seconds: float
    changes: Lines
    after: Lines = field(metadata=TEXT_ONLY)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """A step of a program for one site.

    Attributes:
        nodes: The numbers of the step's operations.
        points: The number of points that the kernel visits.
        detail: The size of the blocks of a group, or "".
        reasons: Why the step is not dense, not fused or not BLAS, one line each.
    """

    nodes: Sequence[int]
    kernel: str
    points: int
    detail: str
    reasons: Sequence[str]
    measured: Measured | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramReport:
    """The text of a graph and of its program on one site.

    Attributes:
        parts: The parts that run first.
        bound: The lines of the graph before rewriting; empty without VERBOSE.
        rewrites: The rewrite rules that applied; None without VERBOSE.
        graph: The lines of the optimized graph.
        densities: The stored elements of its sparse tensors, those of results estimated.
        steps: The steps of a program for one site; None on several sites.
        blas: The BLAS library of steps under ANALYZE; None for NumPy's.
    """

    parts: Sequence[PartReport]
    bound: Lines
    rewrites: Sequence[RewriteReport] | None
    graph: Lines
    densities: Lines
    steps: Sequence[StepReport] | None
    blas: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TotalReport(Costs):
    """Sums over a plan; `memory` is the greatest peak memory of a site, in bytes."""

    seconds: float
    memory: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RunReport:
    """The time of a run, under ANALYZE.

    Attributes:
        seconds: Seconds of the run, with the parts of the statement and with reads of files.
        compiling: Seconds of it for which the run waited for the compiler.
    """

    seconds: float
    compiling: float


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphReport:
    """The plan of a query over elements.

    Attributes:
        statement: The EXPLAIN statement as written.
        program: The text of the graph and of its steps on one site.
        strategy: The search that chose the cuts.
        notice: A remark of the search, or None.
        plan_file: The plan file that gave cuts and the number of these cuts, or None.
        cost: The setting `cost`.
        nodes: The operations, producers first.
        ranks: The number of processes that ran the plan, under ANALYZE on several sites.
        inputs: The stored tensors.
        result: The id of the operation or tensor that is the result; None for several results.
        levels: The levels of the plan; None without LEVEL.
        run: The time of the run; None without ANALYZE.
    """

    statement: str = field(metadata=TEXT_ONLY)
    program: ProgramReport = field(metadata=TEXT_ONLY)
    strategy: str
    notice: str | None
    plan_file: str | None
    cost: str
    sites: int
    total: TotalReport
    nodes: Sequence[OperationReport]
    per_site: Sequence[SiteReport]
    ranks: int | None
    inputs: Sequence[InputReport]
    result: str | None
    simulation: SimulationReport | None
    levels: LevelsReport | None
    run: RunReport | None

    @property
    def measured(self) -> list[Measured]:
        """The measures of the operations."""
        return [n.measured for n in self.nodes if n.measured is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePart:
    """A change of a statement with several changes.

    Attributes:
        part: The title of the change, such as `INSERT t`.
        root: The id of its root in the plan of all changes; None for a separate plan.
        plan: The separate plan of the change on a GPU.
    """

    part: str
    root: str | None = None
    plan: GraphReport | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangesReport:
    """The plans of a statement with several changes.

    Attributes:
        plan: The plan of all changes; None for separate plans.
    """

    parts: Sequence[ChangePart]
    plan: GraphReport | None


# ---- plans over tiles


@dataclass(frozen=True, kw_only=True, slots=True)
class TileTotal(Costs):
    """Costs of a plan over tiles; a plan on one site moves no tiles.

    Attributes:
        summary: The costs as one line.
    """

    summary: str = field(metadata=TEXT_ONLY)


@dataclass(frozen=True, kw_only=True, slots=True)
class TileRewrite:
    """One application of a rule to a plan over tiles, with the lines of the plan after it."""

    rule: str
    law: str
    after: Lines


@dataclass(frozen=True, kw_only=True, slots=True)
class Table1Report:
    """The plan by the rules of Table 1 of the TRA paper."""

    total: TileTotal
    plan: Lines


@dataclass(frozen=True, kw_only=True, slots=True)
class TileReport:
    """The plan of a query over tiles.

    Attributes:
        parts: The parts that run first.
        plan: The lines of the plan.
        considered: The number of plans among which the search chose; None on one site.
        table1: The first plan of the search, under VERBOSE on several sites.
        rewrites: The rules that changed this first plan to the plan; None without VERBOSE.
        per_site: The work of each site, under ANALYZE.
        levels: The levels of the plan; None without LEVEL.
    """

    sites: int
    total: TileTotal
    parts: Sequence[PartReport]
    plan: Lines
    considered: int | None = field(metadata=TEXT_ONLY)
    table1: Table1Report | None
    rewrites: Sequence[TileRewrite] | None
    measured: Measured | None
    per_site: Sequence[SiteReport] | None
    levels: LevelsReport | None


# ---- statements that DuckDB runs


@dataclass(frozen=True, kw_only=True, slots=True)
class DuckDBReport:
    """The statement that DuckDB runs, and DuckDB's plan."""

    sql: str
    plan: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FragmentReport:
    """A part of a statement that einsql runs, with the names of its columns."""

    name: str
    columns: Sequence[str]
    sql: str
    plan: PlanReport


@dataclass(frozen=True, kw_only=True, slots=True)
class HybridReport:
    """A statement that is split between DuckDB and einsql.

    Attributes:
        why: The reasons for running parts in DuckDB, in text order.
        once: Subqueries that are computed once for several fragments.
        reads: Tensors that DuckDB reads.
    """

    duckdb: DuckDBReport
    why: Lines
    fragments: Sequence[FragmentReport]
    once: Lines
    reads: Lines


PlanReport = GraphReport | ChangesReport | TileReport | HybridReport
