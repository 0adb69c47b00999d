"""EXPLAIN: the plan of a statement, and with ANALYZE its measured costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql import errors
from einsql.explain.explanation import Explanation
from einsql.explain.graph_report import graph_report
from einsql.explain.hybrid_report import hybrid_report
from einsql.explain.options import assumed
from einsql.explain.tile_report import tile_report
from einsql.planner.context import Context
from einsql.planner.plan import Plan
from einsql.planner.queries import bind_query, merged_back, plan_query
from einsql.session.statements.explain_dml import explain_change
from einsql.session.statements.target import changes_tables
from einsql.sql.parser import syntax as st
from einsql.sql.parser.positions import unsupported

if TYPE_CHECKING:
    from sqlglot import exp


def explain(ctx: Context, statement: st.Explain) -> Explanation:
    """Returns the explanation of a statement under the settings of EXPLAIN's options.

    Raises:
        Error: The statement is wrong, or cannot be explained in the format.
    """
    inner = statement.statement
    if isinstance(inner, st.DuckDBStatement):
        return _explain_hybrid(ctx, statement, inner.refusal)
    if isinstance(inner, st.Change) and changes_tables(ctx, inner.tree):
        return _explain_hybrid(ctx, statement, unsupported("A change of a table", inner.tree))
    settings, cluster = assumed(ctx.settings, statement)
    ctx = ctx.derive(settings)
    if isinstance(inner, st.Change):
        return explain_change(ctx, statement, cluster)
    try:
        bound = bind_query(ctx, _query(inner))
        if isinstance(inner, st.CreateTensor):
            bound = merged_back(bound)
        plan = plan_query(ctx, bound)
    except errors.Error as error:
        return _explain_hybrid(ctx, statement, error)
    if not isinstance(plan, Plan):
        tiles = tile_report(plan, statement, ctx.settings, bound.inputs, ctx.tick, cluster)
        return Explanation(tiles, statement.form, plan)
    measure = plan.measure(bound.inputs, ctx.tick) if statement.analyze else None
    report = graph_report(statement, plan, ctx.settings, measure, ctx.tick, bound.inputs, cluster)
    return Explanation(report, statement.form, plan)


def _explain_hybrid(ctx: Context, statement: st.Explain, refusal: errors.Error) -> Explanation:
    return Explanation(hybrid_report(ctx, statement, refusal), statement.form)


def _query(inner: st.Statement) -> exp.Query:
    """Returns the query whose plan an EXPLAIN shows.

    Raises:
        Error: Only DuckDB can read the query.
    """
    if isinstance(inner, st.Query):
        return inner.tree
    assert isinstance(inner, st.CreateTensor)
    if inner.query is None:
        assert inner.refusal is not None
        raise inner.refusal
    return inner.query
