"""The program of one site: its steps, the groups that run together, and those beyond memory."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from einsql.core.units import data_size, plural
from einsql.engine.spilling_executor import peak
from einsql.engine.step import Step
from einsql.explain.levels import LevelNode, LevelReport, StepsReport
from einsql.explain.operations import Measured
from einsql.explain.report import StepReport
from einsql.explain.text import measured_text, span
from einsql.ir.einsum.graph import walk
from einsql.ir.einsum.printer import node_names

if TYPE_CHECKING:
    from einsql.core.settings import Settings
    from einsql.planner.plan import Plan


def straight_line(
    plan: Plan, settings: Settings, reports: Sequence[StepReport], verbose: bool
) -> LevelReport:
    """Returns the program of one site.

    Args:
        plan: The plan, for one site.
        settings: The settings of the plan.
        reports: The reports of the program's steps, with ANALYZE measured.
        verbose: Whether to add the step that each operation became.
    """
    roots, steps = plan.optimized.roots, plan.program.steps
    numbered = node_names(roots)
    names = [numbered[id(node)] for node in walk(*roots)]  # by slot
    computed = {t for step in steps for t in step.targets}
    texts = [
        _format_step(n, step, report.measured, names, computed)
        for n, (step, report) in enumerate(zip(steps, reports, strict=True))
    ]
    nodes = [
        LevelNode(
            id=f"s{n}",
            op=step.kernel,
            reads=[names[s] for s in step.sources],
            relation=", ".join(names[t] for t in step.targets),
            bytes_sent=0,
        )
        for n, step in enumerate(steps)
    ]
    became = {f"r{k}": [f"s{n}"] for n, step in enumerate(steps) for k, _ in step.nodes}
    return LevelReport(
        text=[*texts, *_format_memory(plan, steps, computed, settings)],
        nodes=nodes,
        derivation=StepsReport(source="einsum", steps=became) if verbose else None,
    )


def _format_step(
    number: int, step: Step, measured: Measured | None, names: Sequence[str], computed: Set[int]
) -> str:
    """Formats a step; `computed` are the slots that steps produce, whose memory can be freed."""
    read, produced = (", ".join(names[s] for s in slots) for slots in (step.sources, step.targets))
    text = f"s{number} {produced} := {step.kernel}({read})  {plural(step.points, 'point')}"
    if len(step.nodes) > 1:
        text += f"  of {span([k for k, _ in step.nodes])}"
    if step.detail:
        text += f"  {step.detail}"
    text += measured_text(measured) or f"  {step.nbytes:,} bytes"
    freed = [names[slot] for slot in step.free if slot in computed]
    return text + (f"  frees {', '.join(freed)}" if freed else "")


def _format_memory(
    plan: Plan, steps: Sequence[Step], computed: Set[int], settings: Settings
) -> list[str]:
    """Returns where the steps run, and whether their fields exceed the memory."""
    if settings.device != "cpu":
        return [f"-- on the device {settings.device}"]
    most = peak(steps, {s for step in steps for s in step.sources} - computed)
    if plan.memory is None or plan.memory.allows(most):
        return []
    room = plan.memory.room
    return [
        f"-- spills: the steps take {data_size(most)} at their peak, and have {data_size(room)}; "
        "large steps run box by box, and results that later steps read move to files"
    ]
