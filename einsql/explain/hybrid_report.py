"""The report of a statement that is split between einsql and DuckDB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql.errors import Error, NotSupportedError, ProgrammingError, UnknownHere
from einsql.explain.explanation import refuse_drawing
from einsql.explain.graph_report import graph_report
from einsql.explain.report import DuckDBReport, FragmentReport, HybridReport, PlanReport
from einsql.explain.tile_report import tile_report
from einsql.hybrid import duckdb_statements, hybrid_plan
from einsql.hybrid.split.blocks import Structure
from einsql.hybrid.split.parts import Fragment
from einsql.hybrid.split.sharing import share
from einsql.planner.plan import Plan
from einsql.planner.queries import query_binder
from einsql.sql.parser import syntax as st
from einsql.sql.parser.syntax import Explain
from einsql.sql.parser.tokens import tokenize

if TYPE_CHECKING:
    from einsql.planner.context import Context


def hybrid_report(ctx: Context, asked: Explain, refusal: Error) -> HybridReport:
    """Returns the report of a statement that einsql alone cannot run.

    Raises:
        Error: The refusal, if DuckDB may not run the statement, or an error of DuckDB's binder.
    """
    inner = asked.statement
    if not hybrid_plan.is_outside(refusal):
        raise refusal
    refuse_drawing(HybridReport, asked.form)
    if ctx.settings.fallback == "off":
        raise refusal
    text = asked.text
    is_statement = isinstance(inner, st.DuckDBStatement | st.Change)
    if is_statement:
        structure = Structure(tokenize(text))
        duckdb_statements.check(ctx, structure, refusal)
        if asked.analyze and duckdb_statements.stores(structure):
            raise NotSupportedError(
                "EXPLAIN ANALYZE of a change of tables would store it",
                hint="EXPLAIN shows its plan, and EXPLAIN ANALYZE of its SELECT what that takes.",
            )
        if asked.analyze and not duckdb_statements.is_query(structure):
            raise NotSupportedError(
                f"EXPLAIN ANALYZE of {structure.word(0)} would run it",
                hint="EXPLAIN ANALYZE measures queries.",
            )
    if isinstance(inner, st.CreateTensor):
        text = text[text.upper().index(" AS ") + 4 :]
    hybrid = (
        hybrid_plan.split_duckdb_statement(ctx, text)
        if is_statement
        else hybrid_plan.split(ctx, text)
    )
    try:
        plan = hybrid_plan.duckdb_plan(ctx, hybrid, asked.analyze)
    except ProgrammingError as error:
        if is_statement and not error.hint:
            error.hint = "EXPLAIN shows plans of queries and of changes."
        raise
    if asked.level is not None and not hybrid.parts.fragments:
        raise NotSupportedError(
            f"The statement has no level {asked.level}, for DuckDB runs all of it",
            hint="EXPLAIN without LEVEL shows DuckDB's plan.",
        )
    fragments = [
        FragmentReport(
            name=f.name, columns=f.names, sql=f.text, plan=_fragment_plan(ctx, asked, hybrid, f)
        )
        for f in hybrid.parts.fragments
    ]
    notes = sorted(hybrid.parts.why, key=lambda w: w.at)
    reasons = [_reason(ctx, refusal), *(w.reason for w in notes)]
    once, *_ = share(hybrid.parts.fragments, query_binder(ctx).catalog.view)
    return HybridReport(
        duckdb=DuckDBReport(sql=hybrid.text.text, plan=plan),
        why=list(dict.fromkeys(reasons)),
        fragments=fragments,
        once=[o.shown for o in once],
        reads=sorted(hybrid.parts.relations.values()),
    )


def _reason(ctx: Context, refusal: Error) -> str:
    """Returns the reason why einsql alone cannot run the statement."""
    named = refusal.reason.split('"')[1::2]
    if isinstance(refusal, UnknownHere) and named and ctx.has_table(named[0]):
        return f"{named[0]} is a table"
    return refusal.reason


def _fragment_plan(
    ctx: Context, asked: Explain, hybrid: hybrid_plan.Hybrid, fragment: Fragment
) -> PlanReport:
    planned, inputs = hybrid.runner.plan(fragment)
    if isinstance(planned.plan, Plan):
        # ANALYZE of DuckDB's part has run the fragment once more, without a measure of its steps.
        measure = planned.plan.measure(inputs, ctx.tick) if asked.analyze else None
        return graph_report(asked, planned.plan, ctx.settings, measure, ctx.tick, inputs)
    return tile_report(planned.plan, asked, ctx.settings, inputs, ctx.tick)
