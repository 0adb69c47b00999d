"""The report of a plan: everything that EXPLAIN shows, in all its formats.

A report has plain values only: no plan, no program and no connection. Its JSON has the names of
the fields as keys (docs/explain.md); fields with the metadata `TEXT_ONLY` are not part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from einsql.explain.operations import InputReport, Measured, OperationReport, SimulationReport

Lines = Sequence[str]

TEXT_ONLY = {"text_only": True}
"""Metadata of a field that the JSON leaves out."""


# ---- parts that several reports have


@dataclass(frozen=True, kw_only=True, slots=True)
class SiteReport:
    """The work of one site; measured if there is a measure, otherwise predicted.

    Attributes:
        memory: The most bytes at once, predicted; None for a plan over tiles.
        seconds: Seconds in kernels; None without a measure.
    """

    flops: int
    memory: int | None = None
    bytes_sent: int
    bytes_received: int
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Costs:
    """Sums over a plan.

    Attributes:
        floats_moved: Floats moved, by EinDecomp's count.
        bytes_sent: Bytes sent between different sites.
        tra_cost: Floats moved, by the count of the tensor-relational algebra.
        flops: Scalar operations.
    """

    floats_moved: float
    bytes_sent: int
    tra_cost: float
    flops: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PartReport:
    """A part of a statement that runs before the rest.

    Attributes:
        id: Its name.
        plan: The lines of its plan.
    """

    id: str
    plan: Lines


# ---- plans over elements


@dataclass(frozen=True, kw_only=True, slots=True)
class RewriteReport:
    """One application of a rewrite rule.

    Attributes:
        fired: The number of places where the rule applied.
        changes: The changed lines; they begin with "-", "+" or a blank.
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
        nodes: The numbers of its operations.
        points: The number of points that the kernel visits.
        detail: The size of blocks of several operations, or "".
    """

    nodes: Sequence[int]
    kernel: str
    points: int
    detail: str
    measured: Measured | None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramReport:
    """The text of a graph and of its program on one site.

    Attributes:
        parts: The parts that run first.
        bound: The lines of the graph before rewriting; empty without VERBOSE.
        rewrites: The rewrite rules that applied; None without VERBOSE.
        graph: The lines of the optimized graph.
        steps: The steps of a program for one site; None on several sites.
        blas: The BLAS library that ran steps under ANALYZE, if it is not NumPy's.
    """

    parts: Sequence[PartReport]
    bound: Lines
    rewrites: Sequence[RewriteReport] | None
    graph: Lines
    steps: Sequence[StepReport] | None
    blas: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class TotalReport(Costs):
    """Sums over a plan; `memory` is the most bytes that one site has at once."""

    seconds: float
    memory: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphReport:
    """The plan of a query over elements.

    Attributes:
        statement: The EXPLAIN statement as written.
        program: The text of the graph and of its steps on one site.
        strategy: The search that chose the cuts.
        notice: A remark of the search, or None.
        cost: The setting `cost`.
        nodes: The operations, producers first.
        ranks: The processes that shared the work, under ANALYZE on several sites.
        inputs: The stored tensors.
        result: The id of the operation or tensor that is the result.
    """

    statement: str = field(metadata=TEXT_ONLY)
    program: ProgramReport = field(metadata=TEXT_ONLY)
    strategy: str
    notice: str | None
    cost: str
    sites: int
    total: TotalReport
    nodes: Sequence[OperationReport]
    per_site: Sequence[SiteReport]
    ranks: int | None
    inputs: Sequence[InputReport]
    result: str
    simulation: SimulationReport | None

    @property
    def measured(self) -> list[Measured]:
        """The measures of the operations."""
        return [n.measured for n in self.nodes if n.measured is not None]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangePart:
    """A change of a statement with several changes.

    Attributes:
        part: Its title, such as `INSERT t`.
        root: The name of its root in the plan of all changes; None if it has its own plan.
        plan: Its own plan, on several sites or a GPU.
    """

    part: str
    root: str | None = None
    plan: GraphReport | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangesReport:
    """The plans of a statement with several changes.

    Attributes:
        program: The program of all changes on one site; None if each has its own plan.
    """

    parts: Sequence[ChangePart]
    program: ProgramReport | None = field(metadata=TEXT_ONLY)


# ---- plans over tiles


@dataclass(frozen=True, kw_only=True, slots=True)
class TileTotal(Costs):
    """Costs of a plan over tiles; on one site nothing moves.

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
    """The plan that Table 1 of the TRA paper gives."""

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
        rewrites: The rules that led from it to the plan; None without VERBOSE.
        per_site: The work of each site, under ANALYZE.
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
        why: The reasons why parts run in DuckDB, in text order.
        once: Subqueries that are computed once for several fragments.
        reads: Tensors that DuckDB reads.
    """

    duckdb: DuckDBReport
    why: Lines
    fragments: Sequence[FragmentReport]
    once: Lines
    reads: Lines


PlanReport = GraphReport | ChangesReport | TileReport | HybridReport
