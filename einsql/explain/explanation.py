"""Explanations, the results of EXPLAIN: plans as text, JSON, drawing or page."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from einsql.core.machine import Topology
from einsql.core.settings import Settings
from einsql.engine.step import Measure, Step, StepMeasure
from einsql.errors import NotSupportedError
from einsql.explain import cost_text, simulation_report
from einsql.explain.cost_report import as_json, nodes_of
from einsql.explain.graph_report import rewrites, with_graph, with_kernels
from einsql.ir.einsum.printer import format_graph
from einsql.kernels.runtime import blas
from einsql.planner.plan import Plan
from einsql.planner.sites import sited
from einsql.sql.parser import syntax as st
from einsql.sql.parser.syntax import Explain

if TYPE_CHECKING:
    from sqlglot import exp


class Explanation(ABC):
    """A plan that renders as text, as a value, as a drawing or as a page.

    `print` shows the text, and a notebook shows the page.

    Attributes:
        asked: The EXPLAIN statement; VERBOSE adds the changes of each rewrite rule.
    """

    asked: Explain

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    @abstractmethod
    def lines(self) -> list[str]:
        """The lines of the text."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """The plan as nested dicts and lists of plain values (docs/explain.md)."""

    def to_json(self) -> str:
        """The plan as JSON text of `to_dict`."""
        return json.dumps(self._report)

    def svg(self) -> str:
        """The plan's graph as an SVG document; repeated operations are drawn once."""
        return self._drawn(as_page=False)

    def html(self) -> str:
        """The plan as one self-contained HTML page."""
        return self._drawn(as_page=True)

    def _drawn(self, as_page: bool) -> str:
        from einsql.explain.drawing import page, standalone  # few plans are drawn

        if as_page:
            return page(self._report, self.asked.text, str(self))
        return standalone(self._report, self.asked.text)

    def _repr_html_(self) -> str:
        """The page in a frame, for notebooks."""
        from html import escape  # a table of entities, and only notebooks need it

        return (
            '<iframe title="Plan" style="width:100%;height:640px;border:1px solid #8886" '
            f'srcdoc="{escape(self.html())}"></iframe>'
        )

    def rows(self) -> list[tuple[str]]:
        """The rows of EXPLAIN: the lines of the text, or one document."""
        documents = {"json": self.to_json, "svg": self.svg, "html": self.html}
        if self.asked.form in documents:
            return [(documents[self.asked.form](),)]
        return [(line,) for line in self.lines()]

    @cached_property
    def _report(self) -> dict[str, Any]:
        return self.to_dict()


@dataclass(frozen=True, repr=False)
class GraphExplanation(Explanation):
    """The plan of a query over elements.

    Attributes:
        plan: The plan.
        settings: The settings of the plan.
        measure: The measure of a run, for EXPLAIN ANALYZE.
        cluster: The cluster to simulate the plan on; None for no simulation.
    """

    asked: Explain
    plan: Plan
    settings: Settings
    measure: Measure | None
    cluster: Topology | None = None

    def to_dict(self) -> dict[str, Any]:
        """Cuts, placements and costs of every operation."""
        if not self.asked.verbose:
            return self._costs
        return {**self._costs, "rewrites": rewrites(self.plan.optimized.trace)}

    @cached_property
    def _costs(self) -> dict[str, Any]:
        """The report without the changes of rewrite rules."""
        plan = self.plan
        cut, placed = plan.cut, plan.placed
        by_site = self.measure
        if cut is None or placed is None:
            cut, placed = sited(plan.optimized.root, self.settings)
            by_site = None
        report = as_json(cut, placed, self.settings.cost, self.settings.machine, by_site)
        report = with_graph(report, plan.optimized.root, placed)
        if self.cluster is not None:
            from einsql.optimizer.simulation.simulation import simulate  # only SIMULATE needs it

            played = simulate(placed, self.settings.machine, self.cluster)
            operations = nodes_of(cut, placed)
            report = simulation_report.with_simulation(report, operations, played)
        return with_kernels(report, plan.program.steps, self._by_step)

    @property
    def _by_step(self) -> Sequence[StepMeasure] | None:
        return None if self.measure is None else self.measure.steps

    def lines(self) -> list[str]:
        """The graph, then the program."""
        plan = self.plan
        lines: list[str] = []
        for part in plan.parts:
            lines += [f"-- {part.name}", *part.text.split("\n")]
        if plan.parts:
            lines.append("-- elements")
        if self.asked.verbose:
            trace = plan.optimized.trace
            bound = trace[0].old if trace else plan.optimized.roots
            lines += ["-- as bound", *format_graph(*bound).split("\n")]
            for rewrite in trace:
                lines.append(f"-- {rewrite.rule.name}: {rewrite.rule.law}")
                lines += rewrite.after.split("\n") if rewrite.fired else ["SAME TEXT AS ABOVE"]
            lines.append("-- optimized")
        lines += format_graph(*plan.optimized.roots).split("\n")
        return lines + self._program_lines()

    def _program_lines(self) -> list[str]:
        """The kernel of each step, or the costs of each operation on several sites."""
        if self.plan.placed is None:
            lines = _steps(self.plan.program.steps, self._by_step)
        else:
            lines = cost_text.as_text(self._costs)
        if self.cluster is not None:
            lines += simulation_report.as_text(self._costs["simulation"])
        return lines


class TextExplanation(Explanation):
    """A plan that has no drawing."""

    @abstractmethod
    def undrawn(self, form: str) -> NotSupportedError:
        """Returns the error that there is no drawing or page."""

    def svg(self) -> str:
        """No drawing.

        Raises:
            NotSupportedError: Always.
        """
        raise self.undrawn("svg")

    def html(self) -> str:
        """No page.

        Raises:
            NotSupportedError: Always.
        """
        raise self.undrawn("html")

    def _repr_html_(self) -> str:
        """The text, for notebooks."""
        from html import escape  # few explanations are asked for it

        return f"<pre>{escape(str(self))}</pre>"


def explained(statement: Explain) -> exp.Query:
    """Returns the query whose plan an EXPLAIN shows.

    Raises:
        NotSupportedError: The statement has none.
    """
    inner = statement.statement
    query = inner.query if isinstance(inner, st.CreateTensor) else None
    if isinstance(inner, st.Query):
        query = inner.tree
    if query is None:
        raise NotSupportedError(
            "EXPLAIN shows plans of SELECT, CREATE TENSOR AS SELECT and changes of tensors",
            hint="EXPLAIN the SELECT that the statement computes.",
        )
    return query


def _steps(steps: Sequence[Step], measures: Sequence[StepMeasure] | None) -> list[str]:
    lines = ["-- steps"] if steps else []
    for n, step in enumerate(steps):
        names = _span([number for number, _ in step.nodes])
        text = f"{names}  {step.kernel}  {step.points:,} points"
        if step.detail:
            text += f"  {step.detail}"
        if measures is not None:
            took = measures[n]
            text += f"  {took.seconds * 1e3:.3f} ms  {took.nbytes:,} bytes"
            if took.boxes > 1:
                text += f"  in {took.boxes:,} boxes"
            if took.spilled:
                text += f"  {took.spilled:,} bytes spilled"
        lines.append(text)
    if measures is not None and any(step.calls_blas for step in steps):
        lines += _other_blas()
    return lines


def _other_blas() -> list[str]:
    """Returns a line that names the BLAS library if it is not NumPy's."""
    library = blas.library()
    return [] if library is None or blas.is_numpys() else [f"-- BLAS: {library.name}"]


def _span(numbers: Sequence[int]) -> str:
    """Formats names of nodes, consecutive ones as a range."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ",".join(f"r{r[0]}" if len(r) == 1 else f"r{r[0]}..r{r[-1]}" for r in runs)
