"""EXPLAIN: the plan of a statement, and with ANALYZE what running it took."""

from __future__ import annotations

from einsql import errors
from einsql.explain.explanation import Explanation, GraphExplanation, explained
from einsql.explain.hybrid_report import explain_hybrid
from einsql.explain.options import assumed
from einsql.planner.context import Context
from einsql.planner.plan import Plan
from einsql.planner.queries import bind_query, plan_query
from einsql.session.statements.explain_dml import explain_change
from einsql.session.statements.target import changes_tables
from einsql.sql.parser import syntax as st
from einsql.sql.parser.positions import unsupported


def explain(ctx: Context, statement: st.Explain) -> Explanation:
    """The explanation of a statement, under the settings that EXPLAIN's options name.

    Raises:
        Error: The statement is wrong, or has no explanation of the format.
    """
    inner = statement.statement
    if isinstance(inner, st.DuckDBStatement):
        return explain_hybrid(ctx, statement, inner.refusal)
    if isinstance(inner, st.Change) and changes_tables(ctx, inner.tree):
        refusal = unsupported("A change of a table", inner.tree)
        return explain_hybrid(ctx, statement, refusal)
    settings, cluster = assumed(ctx.settings, statement)
    ctx = ctx.derive(settings)
    if isinstance(inner, st.Change):
        return explain_change(ctx, statement, cluster)
    try:
        bound = bind_query(ctx, explained(statement))
        plan = plan_query(ctx, bound)
    except errors.Error as error:
        return explain_hybrid(ctx, statement, error)
    if not isinstance(plan, Plan):
        from einsql.explain.tile_explanation import explain_tiles  # few queries are over tiles

        return explain_tiles(plan, statement, bound.inputs, ctx.tick, cluster)
    measure = plan.measure(bound.inputs, ctx.tick) if statement.analyze else None
    return GraphExplanation(statement, plan, ctx.settings, measure, cluster)
