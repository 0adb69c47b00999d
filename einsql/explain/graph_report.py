"""The report of a query over elements: its graph, its operations and its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from einsql.engine.step import Measure, Step, StepMeasure, Tick
from einsql.explain.cost_report import (
    Operation,
    operation_reports,
    operations_of,
    site_reports,
)
from einsql.explain.densities import density_lines, expected_elements, storage_line
from einsql.explain.level_report import levels_report
from einsql.explain.operations import GroupReport, InputReport, Measured, OperationReport
from einsql.explain.origins import origins_of
from einsql.explain.report import (
    GraphReport,
    PartReport,
    ProgramReport,
    RewriteReport,
    RunReport,
    StepReport,
    TotalReport,
)
from einsql.ir.einsum.graph import EinSum, Input, Roots, walk
from einsql.ir.einsum.printer import format_graph, format_node, node_names
from einsql.ir.layout import Mesh
from einsql.ir.spmd.program import Program, tuple_bytes
from einsql.kernels.runtime import blas
from einsql.optimizer.simulation.prediction import predict
from einsql.planner.sites import sited

if TYPE_CHECKING:
    from einsql.core.machine import Topology
    from einsql.core.settings import Settings
    from einsql.planner.plan import Plan
    from einsql.planner.tile_plan import Part
    from einsql.sql.parser.syntax import Explain
    from einsql.storage.fields import Fields

MOST_LINES = 400
"""The most lines of a comparison; longer changes show the graph before and after in full."""


def graph_report(
    asked: Explain,
    plan: Plan,
    settings: Settings,
    measure: Measure | None,
    tick: Tick,
    inputs: Mapping[str, Fields],
    cluster: Topology | None = None,
) -> GraphReport:
    """Returns the report of a plan over elements.

    Args:
        asked: The EXPLAIN statement; VERBOSE adds the changes of each rewrite rule, and LEVEL
            the levels of the plan.
        plan: The plan.
        settings: The settings of the plan.
        measure: The measure of a run, for EXPLAIN ANALYZE.
        tick: Callback with the completed fraction of a search for LEVEL; raises to cancel.
        inputs: The fields of the plan's inputs.
        cluster: The cluster to simulate the plan on; None for no simulation.
    """
    roots = plan.optimized.roots
    site_plan, by_site = plan.site_plan, measure
    if site_plan is None:
        site_plan, by_site = sited(roots, settings), None
    cut, placed = site_plan.cut, site_plan.program
    names = node_names(roots)
    predicted = predict(placed, settings.machine)
    operations = operations_of(cut, placed, names)
    mesh = Mesh(settings.mesh) if settings.mesh_in_force else None
    nodes = operation_reports(operations, placed, predicted, names, by_site, mesh)
    simulation = None
    if cluster is not None:
        from einsql.explain import simulation_report  # only SIMULATE needs it

        nodes, simulation = simulation_report.simulated(
            nodes, operations, placed, settings.machine, cluster
        )
    nodes = _with_groups(nodes, operations, placed)
    program = program_report(asked, plan, measure, inputs)
    nodes = _with_kernels(nodes, plan.program.steps, program.steps or ())
    written = getattr(asked.statement, "tree", None) or getattr(asked.statement, "query", None)
    origins = origins_of(roots, written)
    parts = {names[key]: texts for key, texts in origins.items()}
    nodes = [replace(node, origins=parts[node.id]) for node in nodes]
    return GraphReport(
        statement=asked.text,
        program=program,
        strategy=cut.strategy,
        notice="; ".join(filter(None, (cut.plan_notice, cut.notice))) or None,
        plan_file=cut.plan_file or None,
        cost=settings.cost,
        sites=cut.sites,
        total=TotalReport(
            floats_moved=cut.floats,
            bytes_sent=placed.bytes_sent,
            tra_cost=sum(n.tra_cost for n in nodes),
            flops=sum(n.flops for n in nodes),
            seconds=sum(predicted.seconds),
            memory=int(predicted.memory.max()),
        ),
        nodes=nodes,
        per_site=site_reports(operations, placed, predicted, by_site),
        ranks=None if by_site is None else by_site.ranks,
        inputs=[_input(n) for n in walk(*roots) if isinstance(n, Input)],
        result=names[id(roots[0])] if len(roots) == 1 else None,
        simulation=simulation,
        levels=levels_report(asked, plan, settings, tick, by_site, program.steps or ()),
        run=None
        if measure is None
        else RunReport(seconds=measure.wall, compiling=measure.compiling),
    )


def program_report(
    asked: Explain, plan: Plan, measure: Measure | None, inputs: Mapping[str, Fields]
) -> ProgramReport:
    """Returns the text of a graph and of its steps."""
    optimized = plan.optimized
    trace = optimized.trace if asked.verbose else ()
    bound = trace[0].old if trace else optimized.roots
    steps = plan.program.steps
    measures = None if measure is None else measure.steps
    return ProgramReport(
        parts=part_reports(plan.parts),
        bound=format_graph(*bound).split("\n") if asked.verbose else (),
        rewrites=[
            RewriteReport(
                rule=s.rule.name,
                law=s.rule.law,
                fired=s.fired,
                seconds=s.seconds,
                changes=changes(s.old, s.new),
                after=s.after.split("\n"),
            )
            for s in trace
        ]
        if asked.verbose
        else None,
        graph=format_graph(*optimized.roots).split("\n"),
        densities=density_lines(optimized.roots, inputs),
        steps=_steps(steps, measures, optimized.roots, inputs) if plan.placed is None else None,
        blas=None if measures is None else _other_blas(steps),
    )


def part_reports(parts: Sequence[Part]) -> list[PartReport]:
    """Returns the reports of the parts that run before a plan."""
    return [PartReport(id=p.name, plan=p.text.split("\n")) for p in parts]


def _input(node: Input) -> InputReport:
    return InputReport(
        id=node.name,
        keys={k.name: (k.lo, k.hi) for k in node.schema.keys},
        values={f.name: f.dtype.value for f in node.schema.values},
        bytes=round(node.schema.size * tuple_bytes(node)),
    )


def _steps(
    steps: Sequence[Step],
    measures: Sequence[StepMeasure] | None,
    roots: Roots,
    inputs: Mapping[str, Fields],
) -> list[StepReport]:
    names, elements = node_names(roots), expected_elements(roots, inputs)
    reports = []
    for n, step in enumerate(steps):
        measured = None
        storage = storage_line(step, elements, inputs, measures is not None)
        if measures is not None:
            took = measures[n]
            measured = Measured(
                seconds=took.seconds,
                bytes=took.nbytes,
                spilled=took.spilled,
                boxes=took.boxes,
                tiles_read=took.tiles[0] if sum(took.tiles) else None,
                tiles_skipped=took.tiles[1] if sum(took.tiles) else None,
                tier=took.tier,
                stored=took.stored,
            )
        reports.append(
            StepReport(
                nodes=[number for number, _ in step.nodes],
                kernel=step.kernel,
                points=step.points,
                detail=step.detail,
                reasons=[*(r.text(names) for r in step.reasons), *([storage] if storage else [])],
                measured=measured,
            )
        )
    return reports


def _other_blas(steps: Sequence[Step]) -> str | None:
    """Returns the name of the BLAS library if a step may call one other than NumPy's."""
    if not any(step.calls_blas for step in steps):
        return None
    library = blas.library()
    return None if library is None or blas.is_numpys() else library.name


def _with_groups(
    nodes: list[OperationReport], operations: Sequence[Operation], placed: Program
) -> list[OperationReport]:
    """Returns the operations with the groups of operations that run together on sites."""
    nodes = nodes.copy()
    position = {operation.number: n for n, operation in enumerate(operations)}
    for fused in placed.together:
        members = [position[n] for n in fused.steps]
        if len(members) == 1:
            continue
        detail = None if fused.routed is None else "where their rows are"
        group = GroupReport(nodes=[nodes[m].id for m in members], detail=detail)
        for m in members:
            nodes[m] = replace(nodes[m], group=group)
    return nodes


def _with_kernels(
    nodes: list[OperationReport], steps: Sequence[Step], reports: Sequence[StepReport]
) -> list[OperationReport]:
    """Returns the operations with their kernels and measures on one site.

    The measure of a group is assigned to its last operation.
    """
    nodes = nodes.copy()
    nothing = Measured(seconds=0.0, bytes=0, spilled=0, boxes=1)
    for step, report in zip(steps, reports, strict=True):
        for number, node in step.nodes:
            group, measured = nodes[number].group, report.measured
            if len(report.nodes) > 1:
                ids = [nodes[n].id for n in report.nodes]
                group = GroupReport(nodes=ids, detail=report.detail)
            if measured is not None and number != report.nodes[-1]:
                measured = nothing
            nodes[number] = replace(
                nodes[number],
                kernel=report.kernel,
                points=node.points,
                reasons=report.reasons,
                group=group,
                measured=measured,
            )
    return nodes


# ---- changes of a rule


def changes(old: Roots, new: Roots) -> list[str]:
    """Returns the lines of the nodes in which two graphs differ, the old graph's nodes first.

    Nodes are compared without their numbers, which shift when a node is added or removed.
    """
    before, after = _blocks(old), _blocks(new)
    lines: list[str] = []
    matcher = SequenceMatcher(None, [b[0] for b in before], [b[0] for b in after], autojunk=False)
    for tag, i0, i1, j0, j1 in matcher.get_opcodes():
        if tag == "equal":
            continue
        gone = [text for _, text in before[i0:i1]]
        come = [text for _, text in after[j0:j1]]
        lines += [" …"] * bool(lines)
        if len(gone) == len(come):
            lines += [line for a, b in zip(gone, come, strict=True) for line in _differing(a, b)]
        else:
            lines += _differing(*([x for text in side for x in text] for side in (gone, come)))
    return lines


def _blocks(roots: Roots) -> list[tuple[tuple[str, ...], list[str]]]:
    """Returns the lines of each operation: without names, for comparison, and as printed."""
    names = node_names(roots)
    blocks = []
    for node in walk(*roots):
        if isinstance(node, EinSum):
            numbered = tuple(f"#{n}" for n in range(len(node.operands)))
            operands = tuple(names[id(o.source)] for o in node.operands)
            plain = tuple(format_node(node, "", numbered))
            blocks.append((plain, format_node(node, names[id(node)], operands)))
    return blocks


def _differing(gone: list[str], come: list[str]) -> list[str]:
    if max(len(gone), len(come)) > MOST_LINES:
        return [*(f"- {line}" for line in gone), *(f"+ {line}" for line in come)]
    lines: list[str] = []
    matcher = SequenceMatcher(None, gone, come, autojunk=False)
    for tag, i0, i1, j0, j1 in matcher.get_opcodes():
        if tag == "equal":
            lines += [f"  {line}" for line in gone[i0:i1]]
        else:
            lines += [f"- {line}" for line in gone[i0:i1]]
            lines += [f"+ {line}" for line in come[j0:j1]]
    return lines
