"""EXPLAIN: the graph of a plan, what each rule did, how it is cut and what each step took."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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


def explain_rows(
    plan: Plan, settings: Settings, asked: Explain, measures: Measures
) -> list[tuple[str]]:
    """The lines of EXPLAIN; with FORMAT json a single one.

    Args:
        plan: A plan.
        settings: Under which it was made.
        asked: The statement; VERBOSE also shows the graph as bound and what rules changed.
        measures: What each step took, for EXPLAIN ANALYZE.
    """
    from einsql.engine.sites import SiteMeasure  # 20 ms, and only EXPLAIN needs it
    from einsql.report import as_json, as_text

    if asked.form == "json":
        cut, placed = (plan.cut, plan.placed)
        if cut is None or placed is None:
            cut, placed = sited(plan.optimized.root, settings)
        measure = measures if isinstance(measures, SiteMeasure) else None
        return [(json.dumps(as_json(cut, placed, settings.cost, measure)),)]
    lines: list[str] = []
    for part in plan.parts:
        lines += [f"-- {part.name}", *part.text.split("\n")]
    if plan.parts:
        lines.append("-- elements")
    if asked.verbose:
        lines += ["-- as bound", *format_graph(plan.relation.node).split("\n")]
        for rewrite in plan.optimized.trace:
            lines.append(f"-- {rewrite.rule.name}: {rewrite.rule.law}")
            lines += rewrite.after.split("\n") if rewrite.fired else ["SAME TEXT AS ABOVE"]
        lines.append("-- optimized")
    lines += format_graph(plan.optimized.root).split("\n")
    if isinstance(plan.program, Program):
        given = None if isinstance(measures, SiteMeasure) else measures
        lines += _steps(plan.program, given)
    elif plan.cut is not None and plan.placed is not None:
        measure = measures if isinstance(measures, SiteMeasure) else None
        lines += as_text(plan.cut, plan.placed, measure)
    return [(line,) for line in lines]


def explain_tiles(
    plan: TilePlan, asked: Explain, inputs: Mapping[str, Fields], tick: Tick
) -> list[tuple[str]]:
    """The lines of EXPLAIN for a query over tiles; ANALYZE adds what running it took.

    Raises:
        NotSupportedError: JSON or several sites are asked for.
    """
    if asked.form == "json" or asked.sites is not None:
        raise NotSupportedError(
            "EXPLAIN of tiles prints its plan as text, for one site",
            hint="CREATE TENSOR … AS keeps its result; what reads that can be cut over sites.",
        )
    lines = plan.explained()
    if asked.analyze:
        start = time.perf_counter()
        blocks = len(plan.result(inputs, tick))
        lines.append(f"-- {blocks} blocks  {(time.perf_counter() - start) * 1e3:.3f} ms")
    return [(line,) for line in lines]


def _steps(program: Program, measures: Sequence[Measure] | None) -> list[str]:
    lines = ["-- steps"] if program.steps else []
    for n, step in enumerate(program.steps):
        text = f"r{n}  {step.kernel}  {step.node.points:,} points"
        if measures is not None:
            took = measures[n]
            text += f"  {took.seconds * 1e3:.3f} ms  {took.nbytes:,} bytes"
        lines.append(text)
    return lines
