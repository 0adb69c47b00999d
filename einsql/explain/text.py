"""Reports as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from einsql.core.units import duration, plural
from einsql.explain.cost_text import cost_lines
from einsql.explain.level_text import level_lines
from einsql.explain.levels import LevelsReport
from einsql.explain.operations import Measured
from einsql.explain.repetitions import (
    Repetition,
    folded_graph,
    folded_steps,
    repeated_operations,
)
from einsql.explain.report import (
    ChangesReport,
    GraphReport,
    HybridReport,
    PartReport,
    PlanReport,
    ProgramReport,
    StepReport,
    TileReport,
)
from einsql.explain.simulation_text import simulation_lines
from einsql.explain.times import times_lines
from einsql.hybrid.split.parts import column_of


def lines(report: PlanReport) -> list[str]:
    """Returns the text of a report."""
    if isinstance(report, GraphReport):
        return _graph_lines(report)
    if isinstance(report, ChangesReport):
        return list(_change_lines(report))
    if isinstance(report, TileReport):
        return list(_tile_lines(report))
    return list(_hybrid_lines(report))


def _graph_lines(report: GraphReport) -> list[str]:
    """Returns the graph, then the steps on one site or the costs on several; or the level."""
    if report.levels is not None:
        shown = _level_lines(report.program, report.levels)
    else:
        shown = program_lines(report.program, repeated_operations(report))
        if report.program.steps is None:
            shown += cost_lines(report)
        shown += times_lines(report)
    if report.simulation is not None:
        shown += simulation_lines(report.simulation)
    return shown


def _level_lines(program: ProgramReport, levels: LevelsReport) -> list[str]:
    """Returns the asked level after the parts that run first; its rewrites under VERBOSE."""
    if levels.asked == "einsum":
        return program_lines(replace(program, steps=None, blas=None))
    return [*_part_lines(program.parts, "elements"), *level_lines(levels)]


def program_lines(program: ProgramReport, repeat: Repetition | None = None) -> list[str]:
    """Returns the text of a graph and of its steps on one site.

    Args:
        program: The graph and its steps.
        repeat: The operations whose repetitions are left out, without VERBOSE.
    """
    if program.rewrites is not None:
        repeat = None
    shown = list(_part_lines(program.parts, "elements"))
    if program.rewrites is not None:
        shown += ["-- as bound", *program.bound]
        for rewrite in program.rewrites:
            after = rewrite.after if rewrite.fired else ["SAME TEXT AS ABOVE"]
            shown += [f"-- {rewrite.rule}: {rewrite.law}", *after]
        shown.append("-- optimized")
    shown += program.graph if repeat is None else folded_graph(program.graph, repeat)
    if program.densities:
        shown += ["-- stored elements", *program.densities]
    if program.steps:
        shown.append("-- steps")
        steps = [
            (step.nodes, [_step_line(step), *(f"    {reason}" for reason in step.reasons)])
            for step in program.steps
        ]
        if repeat is None:
            shown += [line for _, lines in steps for line in lines]
        else:
            shown += folded_steps(steps, repeat)
    return shown if program.blas is None else [*shown, f"-- BLAS: {program.blas}"]


def _part_lines(parts: Sequence[PartReport], rest: str) -> Iterator[str]:
    """Yields the parts that run first, followed by the title of the rest, if there are parts."""
    for part in parts:
        yield f"-- {part.id}"
        yield from part.plan
    if parts:
        yield f"-- {rest}"


def _step_line(step: StepReport) -> str:
    text = f"{span(step.nodes)}  {step.kernel}  {plural(step.points, 'point')}"
    if step.detail:
        text += f"  {step.detail}"
    return text + measured_text(step.measured)


def measured_text(measured: Measured | None) -> str:
    """Formats the measure of a step on one site, as the end of its line; "" without a measure."""
    if measured is None:
        return ""
    text = f"  {measured.seconds * 1e3:.3f} ms  {measured.bytes:,} bytes"
    if measured.stored is not None:
        text += f"  {measured.stored:,} stored elements"
    if measured.boxes and measured.boxes > 1:
        text += f"  in {measured.boxes:,} boxes"
    if measured.tier == "plain":
        text += "  on NumPy, while its kernel is being compiled"
    if measured.tiles_skipped is not None:
        text += f"  {measured.tiles_read:,} tiles read, {measured.tiles_skipped:,} skipped"
    if measured.spilled:
        text += f"  {measured.spilled:,} bytes spilled"
    return text


def span(numbers: Sequence[int]) -> str:
    """Formats names of nodes, consecutive ones as a range."""
    runs: list[list[int]] = []
    for n in numbers:
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ",".join(f"r{r[0]}" if len(r) == 1 else f"r{r[0]}..r{r[-1]}" for r in runs)


def _change_lines(report: ChangesReport) -> Iterator[str]:
    """Yields the plan of all changes with the title of each root, or the plan of each change."""
    if report.plan is not None:
        yield from _graph_lines(report.plan)
        yield "-- roots"
    for part in report.parts:
        if part.plan is None:
            yield f"{part.root}  {part.part}"
        else:
            yield f"-- {part.part}"
            yield from _graph_lines(part.plan)


def _tile_lines(report: TileReport) -> Iterator[str]:
    """Yields the parts that run first, the plan, its costs and its measures."""
    yield from _part_lines(report.parts, "tiles")
    if report.levels is not None:
        yield from level_lines(report.levels)
    elif report.table1 is not None:
        yield f"-- by Table 1: {report.table1.total.summary}"
        yield from report.table1.plan
        for rewrite in report.rewrites or ():
            yield f"-- {rewrite.rule}: {rewrite.law}"
            yield from rewrite.after
        yield f"-- the cheapest of {plural(report.considered or 0, 'plan')}"
    if report.levels is None:
        yield from report.plan
        if report.considered is not None:
            yield f"-- {report.sites} sites: {report.total.summary}"
    if report.measured is not None:
        blocks = plural(report.measured.blocks or 0, "block")
        yield f"-- {blocks}  {report.measured.seconds * 1e3:.3f} ms"
        if report.considered is not None:
            for n, site in enumerate(report.per_site or ()):
                yield (
                    f"-- site {n}: {site.bytes_sent:,} bytes sent, {site.bytes_received:,} "
                    f"received; {site.flops:,} flops in {duration(site.seconds or 0.0)}"
                )


def _hybrid_lines(report: HybridReport) -> Iterator[str]:
    """Yields the text for DuckDB, the reasons, each fragment's plan, and DuckDB's plan."""
    count = len(report.fragments)
    shown = f"{count} fragment{'s' * (count != 1)}" if count else "no fragment"
    yield f"DuckDB runs over {shown}:"
    yield from _indented(report.duckdb.sql.strip().splitlines())
    if report.reads:
        yield "  reading " + ", ".join(report.reads)
    if report.once:
        yield "Computed once: " + ", ".join(report.once)
    yield "Why:"
    yield from _indented(report.why)
    for fragment in report.fragments:
        columns = ", ".join(f"{column_of(n)} = {name}" for n, name in enumerate(fragment.columns))
        yield f"Fragment {fragment.name} ({columns}):"
        yield from _indented(fragment.sql.strip().splitlines())
        yield from _indented(lines(fragment.plan), "    ")
    yield "DuckDB's plan:"
    yield from _indented(report.duckdb.plan.splitlines())


def _indented(text: Sequence[str], indent: str = "  ") -> Iterator[str]:
    return (indent + line for line in text)
