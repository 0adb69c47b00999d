"""EXPLAIN of statements that change tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql.errors import NotSupportedError
from einsql.explain.explanation import Explanation, refuse_drawing
from einsql.explain.graph_report import graph_report
from einsql.explain.report import ChangePart, ChangesReport
from einsql.ir.einsum.printer import node_names
from einsql.session.statements.dml import bind
from einsql.sql.parser import syntax as st
from einsql.sql.parser.syntax import Explain

if TYPE_CHECKING:
    from einsql.core.machine import Topology
    from einsql.planner.context import Context


def explain_change(ctx: Context, asked: Explain, cluster: Topology | None) -> Explanation:
    """Explains a statement that changes tensors. ANALYZE computes, but stores nothing.

    Raises:
        NotSupportedError: The statement computes nothing, or several changes are to be drawn.
        Error: The statement is wrong.
    """
    assert isinstance(asked.statement, st.Change)
    prepared, read = bind(ctx, asked.statement.tree)
    if not prepared.plans:
        raise NotSupportedError(
            "INSERT of VALUES computes nothing that a plan could show",
            hint="EXPLAIN shows plans of INSERT … SELECT, UPDATE and DELETE.",
        )
    titles = [f"{p.VERB} {p.name}" for p in prepared.parts if p.root is not None]
    if prepared.shown is not None:
        titles.insert(0, "SELECT")
    if len(titles) > 1:
        refuse_drawing(ChangesReport, asked.form)
    reports = []
    for plan in prepared.plans:
        measure = plan.measure(read, ctx.tick) if asked.analyze else None
        reports.append(graph_report(asked, plan, ctx.settings, measure, ctx.tick, read, cluster))
    if len(titles) == 1:
        return Explanation(reports[0], asked.form, prepared.plans[0])
    if len(prepared.plans) == 1:
        roots = prepared.plans[0].optimized.roots
        names = node_names(roots)
        parts = [
            ChangePart(part=title, root=names[id(root)])
            for title, root in zip(titles, roots, strict=True)
        ]
        return Explanation(ChangesReport(parts=parts, plan=reports[0]), asked.form)
    parts = [ChangePart(part=t, plan=r) for t, r in zip(titles, reports, strict=True)]
    return Explanation(ChangesReport(parts=parts, plan=None), asked.form)
