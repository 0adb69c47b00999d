"""The stages of a statement: it is parsed, bound, prepared and run."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from einsql import errors
from einsql.core.big_stack import with_room
from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.errors import Error, NotSupportedError, ProgrammingError, RanksLost
from einsql.kernels.runtime import compile_cache
from einsql.planner.context import Context
from einsql.planner.outcome import Description, Outcome
from einsql.planner.prepared import PreparedStatement
from einsql.planner.queries import Bound, PreparedQuery, bind_again, bind_query, plan_query
from einsql.sql.parameters.values import check_given
from einsql.sql.parser import syntax as st
from einsql.sql.parser.lexical import scan
from einsql.sql.parser.parser import parse
from einsql.sql.parser.tokens import is_name_or_value, tokenize

if TYPE_CHECKING:
    from einsql.hybrid import hybrid_query
    from einsql.planner import plan_files
    from einsql.session import dispatch
else:  # imported for plan files, and statements other than tensor queries
    plan_files = LazyModule("einsql.planner.plan_files")
    hybrid_query = LazyModule("einsql.hybrid.hybrid_query")
    dispatch = LazyModule("einsql.session.dispatch")


@dataclass(frozen=True, slots=True)
class Source:
    """The text of one statement.

    Attributes:
        text: The statement's text.
        key: The key in the plan cache; None for a part of a script.
        depth: The nesting depth of its parentheses.
    """

    text: str
    key: str | None = None
    depth: int = 0


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """A statement whose names are resolved as far as possible before it runs.

    Attributes:
        query: The bound query; None for other statements and refused queries.
        refusal: The error of a query outside the tensor fragment.
    """

    statement: st.Statement
    text: str
    query: Bound | None = None
    refusal: Error | None = None


def run_statement(ctx: Context, source: Source) -> Outcome:
    """Parses, binds, prepares and runs one statement of any kind.

    Raises:
        RanksLost: MPI ranks have ended, and others remain.
        Error: The statement is wrong or fails; the position is in the statement's text.
    """
    ctx.store.refresh()
    statement, doubt = with_room(partial(ctx.plans.trees.parsed, source.text, parse), source.depth)

    def plan_and_run() -> tuple[PreparedStatement, Outcome | None]:
        bound = bind(ctx, statement, doubt, source.text, again=source.key is not None)
        prepared = prepare(ctx, bound)
        return prepared, prepared.run(ctx)

    depth = 0 if isinstance(statement, st.For) else source.depth
    prepared, outcome = with_room(plan_and_run, depth)
    assert outcome is not None, "a statement that was just prepared holds"
    if source.key is not None and not prepared.is_volatile:
        ctx.plans.keep(ctx, source.key, prepared)
    return outcome


def _run_on_remaining(ctx: Context, source: Source) -> Outcome:
    """Runs a statement, and repeats it if MPI ranks are lost and others remain."""
    if ctx.settings.plan is not None:
        plan_files.refresh(ctx)
    while True:
        try:
            return run_statement(ctx, source)
        except RanksLost:
            continue


def run_cached(ctx: Context, text: str) -> Outcome | None:
    """Runs the cached statement of a text. Returns None without a valid cached statement.

    Raises:
        Error: The statement fails; the position is in the statement's text.
    """
    if ctx.duck.aborted:
        return None
    if ctx.settings.plan is not None:
        plan_files.refresh(ctx)
    cached = ctx.plans.find(text, ctx.parameters)
    if cached is None:
        return None
    try:
        outcome: Outcome | None = cached.run(ctx, ctx.parameters)
    except RanksLost:
        return None  # the statement is planned again for the remaining ranks
    return outcome


def run_script(ctx: Context, sql: str) -> Outcome:
    """Runs every statement of a text; a text of one statement is cached.

    Returns:
        The outcome of the last statement.

    Raises:
        Error: A statement is wrong or fails; the error has the position in the text.
    """
    try:
        outcome = run_cached(ctx, sql)
    except Error as error:
        errors.place(error, scan(sql)[0].start, sql)
        raise
    if outcome is not None:
        return outcome
    try:
        spans = scan(sql)
    except Error as error:
        raise error.locate(sql) from None
    if not spans:
        raise ProgrammingError("There is no statement to run")
    if ctx.parameters and len(spans) > 1:
        raise ProgrammingError(
            "Parameters need a single statement",
            hint="Execute the statements one by one, each with its own.",
            position=spans[1].start,
            sql=sql,
        )
    for span in spans:
        outcome = None  # frees the previous statement's result
        text = sql[span.start : span.end]
        try:
            with errors.located(span.start, sql):
                check_given(text, len(ctx.parameters))
                key = sql if len(spans) == 1 else None
                outcome = _run_on_remaining(ctx, Source(text, key, span.depth))
        except RecursionError:
            raise ProgrammingError("The statement nests too deeply") from None
        finally:
            while compile_cache.notices:
                ctx.notices.append(compile_cache.notices.pop())
    assert outcome is not None, "there is a statement"
    return outcome


def described(ctx: Context, sql: str) -> Description | None:
    """Binds a query without running it; its plan is cached for the first run.

    Returns:
        The description of the query's columns; None for a text that has to run at once: another
        statement, several statements, or a query with an effect or of chance or time.

    Raises:
        Error: The query is wrong; the error has the position in the text.
    """
    try:
        spans = scan(sql)
    except Error as error:
        raise error.locate(sql) from None
    if len(spans) != 1:
        return None
    (span,) = spans
    text = sql[span.start : span.end]

    ctx.store.refresh()
    cached = ctx.plans.find(sql, ctx.parameters)
    known = None if cached is None else cached.find(ctx.parameters)
    if isinstance(known, PreparedQuery | hybrid_query.HybridQuery):
        description = known.described(ctx)
        if description is not None:
            return description

    def bind_and_plan() -> Description | None:
        statement, doubt = ctx.plans.trees.parsed(text, parse)
        if doubt is not None or not isinstance(statement, st.Query):
            return None
        prepared = prepare(ctx, bind(ctx, statement, None, text, again=True))
        if not isinstance(prepared, PreparedQuery):
            return hybrid_query.described(ctx, text, prepared)
        prepared.inputs = None  # the first run reads them anew
        if not prepared.is_volatile:
            ctx.plans.keep(ctx, sql, prepared)
        return prepared.plan.description

    with errors.located(span.start, sql):
        check_given(text, len(ctx.parameters))
        return with_room(bind_and_plan, span.depth)


def bind(
    ctx: Context, statement: st.Statement, doubt: Error | None, text: str, again: bool = False
) -> BoundStatement:
    """Binds a query; other statements resolve their names when they run.

    Args:
        ctx: The session.
        statement: The statement.
        doubt: The syntax error of DuckDB's grammar, or None.
        text: The statement's text.
        again: Whether the statement may run again.

    Raises:
        Error: DuckDB's grammar refuses the text, or the transaction is aborted.
    """
    if doubt is not None:
        raise _refusal(ctx, statement, doubt, text)
    if not isinstance(statement, st.Transaction):
        ctx.duck.refuse_aborted()
    if not isinstance(statement, st.Query):
        return BoundStatement(statement, text)
    try:
        make = bind_again if again else bind_query
        return BoundStatement(statement, text, make(ctx, statement.tree))
    except Error as error:
        return BoundStatement(statement, text, refusal=error)


def prepare(ctx: Context, bound: BoundStatement) -> PreparedStatement:
    """Plans a bound statement.

    Raises:
        Error: A query is outside the tensor fragment, and DuckDB may not or cannot run it.
    """
    statement, refusal = bound.statement, bound.refusal
    if bound.query is not None:
        try:
            return PreparedQuery(plan_query(ctx, bound.query), bound.query.inputs)
        except Error as error:
            refusal = error
    if refusal is not None:
        return hybrid_query.prepare_hybrid(ctx, bound.text, refusal)
    return dispatch.prepare_command(ctx, statement, bound.text, partial(_run_in_loop, ctx))


def _run_in_loop(ctx: Context, text: str) -> Outcome:
    """Runs a statement of a loop's body; it is cached, because it is repeated."""
    outcome = run_cached(ctx, text)
    return _run_on_remaining(ctx, Source(text, text)) if outcome is None else outcome


def _refusal(ctx: Context, statement: st.Statement, doubt: Error, text: str) -> Error:
    """Returns the grammar's error for a text that DuckDB refuses.

    Raises:
        Error: The statement itself has an error, when bound, planned or run. An unsupported
            construct counts only if the grammar does not stop at an earlier construct.
    """
    try:
        _try(ctx, statement, text)
    except NotSupportedError as error:
        if not _stumbles_before(text, doubt, error):
            raise
    return doubt.locate(text)


def _stumbles_before(text: str, doubt: Error, refusal: Error) -> bool:
    """Returns True if DuckDB's grammar stops at an earlier construct than the refusal.

    A refusal's position is the first name or value of the refused construct. For `ONLY t` it
    is t, but the grammar stops at ONLY: the words between the two belong to one construct.
    """
    stop, refused = doubt.position, refusal.position
    if stop is None or refused is None or "at or near" not in doubt.reason:
        return False
    between = (t for t in tokenize(text) if stop < t.start < refused)
    return any(is_name_or_value(t) for t in between)


def _try(ctx: Context, statement: st.Statement, text: str) -> None:
    """Raises a statement's error: binds and plans a query, or runs and undoes another statement."""
    if isinstance(statement, st.Query):
        plan_query(ctx, bind_query(ctx, statement.tree))
    elif not isinstance(statement, st.Copy):
        with ctx.store.attempt():
            dispatch.run_command(ctx, statement, text)
