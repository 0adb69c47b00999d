"""The report of a query over tiles."""

from __future__ import annotations

import time

from einsql.core.machine import Topology
from einsql.core.records import dataclass
from einsql.core.settings import Settings
from einsql.engine.block_program import SiteRun
from einsql.errors import NotSupportedError
from einsql.explain.explanation import refuse_drawing
from einsql.explain.graph_report import part_reports
from einsql.explain.level_report import levels_report
from einsql.explain.operations import Measured
from einsql.explain.report import SiteReport, Table1Report, TileReport, TileRewrite, TileTotal
from einsql.ir.ia.printer import format_implementation
from einsql.optimizer.tra import Cost, Costs, translate
from einsql.planner.tile_plan import Inputs, Tick, TilePlan
from einsql.sql.parser.syntax import Explain


@dataclass(frozen=True, slots=True)
class TileMeasure:
    """A measured run of a plan over tiles.

    Attributes:
        run: The blocks, and the bytes that each site sent and received.
        seconds: The seconds of the run, without the parts of the statement that run first.
    """

    run: SiteRun
    seconds: float


def measured(plan: TilePlan, inputs: Inputs, tick: Tick) -> TileMeasure:
    """Runs a plan and measures.

    Raises:
        Error: A part of the statement or a kernel fails.
    """
    known = plan.complete(inputs, tick)
    start = time.perf_counter()
    run = SiteRun(*plan.program.executor.measured(known, tick))
    return TileMeasure(run, time.perf_counter() - start)


def tile_report(
    plan: TilePlan,
    asked: Explain,
    settings: Settings,
    inputs: Inputs,
    tick: Tick,
    cluster: Topology | None = None,
) -> TileReport:
    """Returns the report of a plan; ANALYZE runs and measures it.

    Raises:
        NotSupportedError: The statement requests a drawing or a prediction in seconds.
    """
    refuse_drawing(TileReport, asked.form)
    if asked.network is not None or asked.flops is not None or cluster is not None:
        raise NotSupportedError(
            "EXPLAIN of tiles counts floats, bytes and operations, not seconds",
            hint="Leave NETWORK, FLOPS and what simulates out; EXPLAIN ANALYZE measures seconds.",
        )
    sited = plan.program.sited
    trace = () if sited is None else sited.trace
    table1, taken, per_site = None, None, None
    if sited is not None and asked.verbose:
        lines = format_implementation(sited.given).split("\n")
        table1 = Table1Report(total=_total(sited.first), plan=lines)
    if asked.analyze:
        measure = measured(plan, inputs, tick)
        run = measure.run
        taken = Measured(seconds=measure.seconds, blocks=len(run.blocks), bytes_sent=sum(run.sent))
        per_site = [
            SiteReport(flops=f, bytes_sent=s, bytes_received=r, seconds=t)
            for f, s, r, t in zip(
                run.flops, run.sent, run.received, run.measure.seconds, strict=True
            )
        ]
    cost = sited.cost if sited is not None else Costs().plan(translate(plan.node, 1))
    return TileReport(
        sites=cost.sites,
        total=_total(cost),
        parts=part_reports(plan.parts),
        plan=plan.program.lines(),
        considered=None if sited is None else sited.plans,
        table1=table1,
        rewrites=[
            TileRewrite(rule=s.rule.name, law=s.rule.law, after=s.after.split("\n")) for s in trace
        ]
        if asked.verbose
        else None,
        measured=taken,
        per_site=per_site,
        levels=levels_report(asked, plan, settings, tick),
    )


def _total(cost: Cost) -> TileTotal:
    moves = cost.sites > 1
    return TileTotal(
        tra_cost=cost.tra_cost if moves else 0,
        floats_moved=cost.floats if moves else 0,
        bytes_sent=cost.bytes_sent,
        flops=cost.flops,
        summary=str(cost),
    )
