"""What a plan over tiles does and costs, as text that EXPLAIN prints and as a value."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from einsql.core.units import duration
from einsql.engine.tra.site_executor import SiteRun
from einsql.ir.ia.printer import format_implementation
from einsql.ir.tra import plan as ra
from einsql.optimizer.tra import Cost, Costs, Implemented, translate
from einsql.planner.tile_plan import Inputs, Tick, TilePlan


@dataclass(frozen=True, slots=True)
class TileMeasure:
    """A run that was watched.

    Attributes:
        run: The blocks, and what every site sent and received.
        seconds: What it took, without the parts of the statement that come first.
    """

    run: SiteRun
    seconds: float


def measured(plan: TilePlan, inputs: Inputs, tick: Tick) -> TileMeasure:
    """Runs a plan and measures.

    Raises:
        Error: A part of the statement fails, or a kernel does.
    """
    known = plan.complete(inputs, tick)
    start = time.perf_counter()
    run = SiteRun(*plan.program.executor.measured(known, tick))
    return TileMeasure(run, time.perf_counter() - start)


def as_json(plan: TilePlan, verbose: bool, measure: TileMeasure | None) -> dict[str, Any]:
    """A plan as nested lists and dicts of plain values.

    Args:
        plan: The plan.
        verbose: Whether to tell how the plan came about.
        measure: What a run took, for EXPLAIN ANALYZE.

    Returns:
        sites, total, parts and plan, the last two as lines of text. In total, `tra_cost`
        is the TRA paper's count of floats, `floats_moved` the same with every part of a
        sum counted, and `bytes_sent` what crosses sites, exactly. `table1` and `rewrites`
        are there if verbose, `measured` and `per_site` with a measure.
    """
    sited = plan.program.sited
    report: dict[str, Any] = {
        "sites": 1 if sited is None else sited.cost.sites,
        "total": _total(_alone(plan.node) if sited is None else sited.cost),
        "parts": [{"id": p.name, "plan": p.text.split("\n")} for p in plan.parts],
        "plan": plan.program.lines(),
    }
    if verbose:
        trace = () if sited is None else sited.trace
        if sited is not None:
            lines = format_implementation(sited.given).split("\n")
            report["table1"] = {"total": _total(sited.first), "plan": lines}
        report["rewrites"] = [
            {"rule": s.rule.name, "law": s.rule.law, "after": s.after.split("\n")} for s in trace
        ]
    if measure is not None:
        run = measure.run
        report["measured"] = {
            "seconds": measure.seconds,
            "blocks": len(run.blocks),
            "bytes_sent": sum(run.sent),
        }
        report["per_site"] = [
            {"flops": f, "bytes_sent": s, "bytes_received": r, "seconds": t}
            for f, s, r, t in _sites(run)
        ]
    return report


def as_text(plan: TilePlan, verbose: bool, measure: TileMeasure | None) -> list[str]:
    """A plan as lines: the parts that run first, the plan, what it costs and what it took."""
    sited = plan.program.sited
    lines: list[str] = []
    for part in plan.parts:
        lines += [f"-- {part.name}", *part.text.split("\n")]
    if plan.parts:
        lines.append("-- tiles")
    if verbose and sited is not None:
        lines += _history(sited)
    lines += plan.program.priced()
    if measure is not None:
        run = measure.run
        lines.append(f"-- {len(run.blocks)} blocks  {measure.seconds * 1e3:.3f} ms")
        if sited is not None:
            lines += [
                f"-- site {n}: {s:,} bytes sent, {r:,} received; {f:,} flops in {duration(t)}"
                for n, (f, s, r, t) in enumerate(_sites(run))
            ]
    return lines


def _sites(run: SiteRun) -> Iterator[tuple[int, int, int, float]]:
    """Of each site its operations, bytes sent and received, and seconds."""
    return zip(run.flops, run.sent, run.received, run.measure.seconds, strict=True)


def _history(sited: Implemented) -> list[str]:
    """Table 1's plan, then what each rule made of the plan before."""
    lines = [f"-- by Table 1: {sited.first}"]
    lines += format_implementation(sited.given).split("\n")
    for step in sited.trace:
        lines += [f"-- {step.rule.name}: {step.rule.law}", *step.after.split("\n")]
    return [*lines, f"-- the cheapest of {sited.plans:,} plans"]


def _alone(node: ra.Node) -> Cost:
    """What a plan costs on one site, where nothing moves."""
    return Costs().plan(translate(node, 1))


def _total(cost: Cost) -> dict[str, int]:
    several = cost.sites > 1
    return {
        "tra_cost": cost.tra_cost if several else 0,
        "floats_moved": cost.floats if several else 0,
        "bytes_sent": cost.bytes_sent,
        "flops": cost.flops,
    }
