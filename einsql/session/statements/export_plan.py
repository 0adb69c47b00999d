"""EXPORT PLAN: the cuts and the placements of a statement as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql.errors import Error, NotSupportedError, OperationalError
from einsql.hybrid import hybrid_plan
from einsql.optimizer.plan_files.writer import Entry, file_text, graph_entry
from einsql.planner import plan_files
from einsql.planner.plan import Plan
from einsql.planner.queries import bind_query, merged_back, plan_query
from einsql.session.statements.dml import bind
from einsql.session.statements.target import changes_tables
from einsql.sql.parser import syntax as st
from einsql.sql.parser.positions import unsupported
from einsql.sql.parser.tokens import tokenize, word_of

if TYPE_CHECKING:
    from sqlglot import exp

    from einsql.planner.context import Context


def export_plan(ctx: Context, statement: st.ExportPlan) -> None:
    """EXPORT PLAN: writes the plan of a statement, which does not run, to a new file.

    Raises:
        OperationalError: External access is off, or the file exists or cannot be written.
        NotSupportedError: The statement has no plan over elements.
        Error: The statement is wrong.
    """
    if not ctx.settings.enable_external_access:
        raise OperationalError(
            "EXPORT PLAN is off: enable_external_access is false", position=statement.at
        )
    entries = _entries(ctx, statement)
    tiles = _first_tiling(statement.text)
    if not entries and tiles is not None:
        raise NotSupportedError(
            "The tiling is in the statement, so its plan is not written",
            hint="TILES without numbers inside ELEMENTS((…)) leaves the cuts to the optimizer, and "
            "EXPORT PLAN writes them.",
            position=statement.start + tiles,
        )
    if not entries:
        raise NotSupportedError(
            "The statement has no plan over elements",
            hint="EXPORT PLAN writes cuts of SELECT, CREATE TENSOR AS SELECT, INSERT … SELECT, "
            "UPDATE and DELETE over tensors.",
            position=statement.start,
        )
    if tiles is not None:
        ctx.notices.append(
            f"'{statement.path}' has the operations over elements; those over TILES keep the "
            "tiling of the statement"
        )
    settings = ctx.settings
    text = file_text(settings.sites, settings.strategy, settings.cost, entries)
    try:
        plan_files.write_plan(statement.path, text)
    except Error as error:
        error.position = statement.at
        raise


def _first_tiling(text: str) -> int | None:
    """Returns the offset of the first TILES with numbers of parts; None if there is none."""
    tokens = tokenize(text)
    for n, token in enumerate(tokens[:-1]):
        if word_of(token) != "TILES" or word_of(tokens[n + 1]) != "(":
            continue
        depth = 0
        for inside in tokens[n + 1 :]:
            word = word_of(inside)
            depth += (word == "(") - (word == ")")
            if depth == 1 and word == ",":
                return token.start
            if depth == 0:
                break
    return None


def _entries(ctx: Context, statement: st.ExportPlan) -> list[Entry]:
    """Returns an entry for each graph of the statement, in the order of execution."""
    inner = statement.statement
    match inner:
        case st.DuckDBStatement():
            return _fragment_entries(ctx, statement, inner.refusal)
        case st.Change(tree) if changes_tables(ctx, tree):
            return _fragment_entries(ctx, statement, unsupported("A change of a table", tree))
        case st.Change(tree):
            return _change_entries(ctx, tree)
        case st.Query(tree):
            query: exp.Query | None = tree
        case st.CreateTensor():
            query = inner.query
        case _:
            return []
    if query is None:
        refusal = inner.refusal if isinstance(inner, st.CreateTensor) else None
        return [] if refusal is None else _fragment_entries(ctx, statement, refusal)
    try:
        bound = bind_query(ctx, query)
        plan = plan_query(ctx, merged_back(bound) if isinstance(inner, st.CreateTensor) else bound)
    except Error as error:
        return _fragment_entries(ctx, statement, error)
    return [_entry("SELECT", plan)] if isinstance(plan, Plan) else []


def _change_entries(ctx: Context, tree: exp.Expr) -> list[Entry]:
    prepared, _ = bind(ctx, tree)
    titles = [f"{p.VERB} {p.name}" for p in prepared.parts if p.root is not None]
    if prepared.shown is not None:
        titles.insert(0, "SELECT")
    if len(prepared.plans) < len(titles):  # one program computes all changes
        titles = [", ".join(titles)]
    return [_entry(t, p) for t, p in zip(titles, prepared.plans, strict=True)]


def _fragment_entries(ctx: Context, statement: st.ExportPlan, refusal: Error) -> list[Entry]:
    """Returns an entry for each fragment of a statement that DuckDB runs.

    Raises:
        Error: The refusal, if DuckDB may not run the statement, or an error of DuckDB's binder.
    """
    if ctx.settings.fallback == "off" or not hybrid_plan.is_outside(refusal):
        raise refusal
    inner = statement.statement
    start = inner.start if isinstance(inner, st.CreateTensor) else statement.start
    text = " " * start + statement.text[start - statement.start :]  # keeps positions of errors
    is_statement = isinstance(inner, st.DuckDBStatement | st.Change)
    split = hybrid_plan.split_duckdb_statement if is_statement else hybrid_plan.split
    hybrid = split(ctx, text)
    if not hybrid.parts.fragments and not is_statement:
        hybrid_plan.duckdb_plan(ctx, hybrid, False)  # raises if the query is wrong
    plans = [hybrid.runner.plan(f)[0].plan for f in hybrid.parts.fragments]
    return [_entry(f"SELECT {n}", p) for n, p in enumerate(plans, 1) if isinstance(p, Plan)]


def _entry(title: str, plan: Plan) -> Entry:
    return graph_entry(title, plan.optimized.roots, plan.cut, plan.placed)
