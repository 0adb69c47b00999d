"""EXPLAIN: the graph of a plan, what each rule did, how it is cut and what each step took."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from einsql.engine.executor import Measure, Program, Tick
from einsql.engine.relation import Fields
from einsql.errors import NotSupportedError
from einsql.planning import Plan, sited
from einsql.printer import format_graph
from einsql.settings import Settings
from einsql.sql.syntax import Explain

if TYPE_CHECKING:
    from einsql.engine.sites import SiteMeasure
    from einsql.staged import TilePlan

    Measures = Sequence[Measure] | SiteMeasure | None


class Explanation:
    """A plan to look at: as text, as a value, as a drawing or as a page.

    `print` shows the text, and a notebook the page.

    Attributes:
        asked: The statement; VERBOSE also shows what each rewrite rule changed.
    """

    asked: Explain

    def __str__(self) -> str:
        return "\n".join(self.lines())

    __repr__ = __str__

    def lines(self) -> list[str]:
        """The lines of the text."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The plan as nested dicts and lists of plain values (docs/explain.md)."""
        raise NotImplementedError

    def to_json(self) -> str:
        """The plan as JSON text: `to_dict`, written down."""
        return json.dumps(self._report)

    def svg(self) -> str:
        """The plan's graph as an SVG document; what repeats is drawn once."""
        from einsql.drawing import standalone

        return standalone(self._report, self.asked.text)

    def html(self) -> str:
        """The plan as one HTML page that needs nothing else."""
        from einsql.drawing import page

        return page(self._report, self.asked.text, str(self))

    def _repr_html_(self) -> str:
        """The page in a frame of its own, for notebooks."""
        from html import escape  # a table of entities, and only notebooks need it

        return (
            '<iframe title="Plan" style="width:100%;height:640px;border:1px solid #8886" '
            f'srcdoc="{escape(self.html())}"></iframe>'
        )

    def rows(self) -> list[tuple[str]]:
        """What EXPLAIN gives: the lines of the text, or one document."""
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
        settings: Under which it was made.
        measures: What each step took, for EXPLAIN ANALYZE.
    """

    asked: Explain
    plan: Plan
    settings: Settings
    measures: Measures

    def to_dict(self) -> dict[str, Any]:
        """Cuts, placements and costs of every operation."""
        from einsql.engine.sites import SiteMeasure  # 20 ms, and only EXPLAIN needs it
        from einsql.graph_report import rewrites, with_graph, with_kernels
        from einsql.report import as_json

        plan = self.plan
        cut, placed = plan.cut, plan.placed
        if cut is None or placed is None:
            cut, placed = sited(plan.optimized.root, self.settings)
        by_site = self.measures if isinstance(self.measures, SiteMeasure) else None
        report = as_json(cut, placed, self.settings.cost, self.settings.machine, by_site)
        report = with_graph(report, plan.optimized.root, placed)
        if isinstance(plan.program, Program):
            given = None if isinstance(self.measures, SiteMeasure) else self.measures
            report = with_kernels(report, plan.program, given)
        if self.asked.verbose:
            report["rewrites"] = rewrites(plan.optimized.trace)
        return report

    def lines(self) -> list[str]:
        """The graph, and what runs."""
        plan = self.plan
        lines: list[str] = []
        for part in plan.parts:
            lines += [f"-- {part.name}", *part.text.split("\n")]
        if plan.parts:
            lines.append("-- elements")
        if self.asked.verbose:
            lines += ["-- as bound", *format_graph(plan.relation.node).split("\n")]
            for rewrite in plan.optimized.trace:
                lines.append(f"-- {rewrite.rule.name}: {rewrite.rule.law}")
                lines += rewrite.after.split("\n") if rewrite.fired else ["SAME TEXT AS ABOVE"]
            lines.append("-- optimized")
        lines += format_graph(plan.optimized.root).split("\n")
        return lines + self._program_lines()

    def _program_lines(self) -> list[str]:
        """What runs: the kernel of each step, or what the sites do."""
        from einsql.engine.sites import SiteMeasure  # as in `to_dict`
        from einsql.report import as_text

        by_site = self.measures if isinstance(self.measures, SiteMeasure) else None
        if isinstance(self.plan.program, Program):
            given = None if isinstance(self.measures, SiteMeasure) else self.measures
            return _steps(self.plan.program, given)
        if self.plan.cut is None or self.plan.placed is None:
            return []
        return as_text(self.plan.cut, self.plan.placed, self.settings.machine, by_site)


@dataclass(frozen=True, repr=False)
class TileExplanation(Explanation):
    """The plan of a query over tiles.

    Attributes:
        text: Its lines.
    """

    asked: Explain
    text: tuple[str, ...]

    def lines(self) -> list[str]:
        """The plan over blocks."""
        return list(self.text)

    def to_dict(self) -> dict[str, Any]:
        """No value yet.

        Raises:
            NotSupportedError: Always.
        """
        raise NotSupportedError(
            "EXPLAIN of tiles prints its plan as text",
            hint="CREATE TENSOR … AS keeps its result; what reads that can be drawn.",
        )


def explain_tiles(
    plan: TilePlan, asked: Explain, inputs: Mapping[str, Fields], tick: Tick
) -> TileExplanation:
    """The explanation of a query over tiles; ANALYZE adds what running it took.

    Raises:
        NotSupportedError: Another form than text or several sites are asked for.
    """
    if asked.form != "text" or asked.sites is not None:
        raise NotSupportedError(
            "EXPLAIN of tiles prints its plan as text, for one site",
            hint="CREATE TENSOR … AS keeps its result; what reads that can be cut over sites.",
        )
    lines = plan.explained()
    if asked.analyze:
        start = time.perf_counter()
        blocks = len(plan.result(inputs, tick))
        lines.append(f"-- {blocks} blocks  {(time.perf_counter() - start) * 1e3:.3f} ms")
    return TileExplanation(asked, tuple(lines))


def _steps(program: Program, measures: Sequence[Measure] | None) -> list[str]:
    lines = ["-- steps"] if program.steps else []
    for n, step in enumerate(program.steps):
        text = f"r{n}  {step.kernel}  {step.node.points:,} points"
        if measures is not None:
            took = measures[n]
            text += f"  {took.seconds * 1e3:.3f} ms  {took.nbytes:,} bytes"
        lines.append(text)
    return lines
