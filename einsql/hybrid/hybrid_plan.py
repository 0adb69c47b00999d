"""Statements split between einsql and DuckDB: einsql runs fragments, DuckDB reads their results."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlglot import TokenType, exp

from einsql.core.big_stack import Inherited
from einsql.core.quoting import in_quotes
from einsql.core.records import dataclass
from einsql.errors import Error, NotSupportedError, OperationalError, UnknownHere
from einsql.hybrid import failures
from einsql.hybrid.fragments import FragmentRunner
from einsql.hybrid.lookups import statement_parts
from einsql.hybrid.macro_shipping import Defined, definitions
from einsql.hybrid.registered_functions import register
from einsql.hybrid.split.edits import Edited
from einsql.hybrid.split.parts import Fragment, Parts, column_of, shown
from einsql.hybrid.split.split import Splitter
from einsql.hybrid.split.statement import query_of, split_statement
from einsql.planner.outcome import Description, Rows
from einsql.planner.plan import inputs_fit
from einsql.sql.scope.relation import Relation
from einsql.storage.duckdb.failures import is_cancelled, position_in, translate
from einsql.storage.duckdb.streams import no_rows
from einsql.storage.duckdb.table_result import TableResult, run_once
from einsql.storage.objects import Definition

if TYPE_CHECKING:
    from einsql.planner.context import Context

_DONE = "MATERIALIZED_RELATION"
"""DuckDB's type of a materialized relation, also the type for statements without rows."""
_SPACE = re.compile(r"\s+")
_REPEATED = re.compile(r"(.*)_[0-9]+", re.DOTALL)


@dataclass
class Hybrid:
    """A statement split into fragments and the text that DuckDB runs over their results.

    Attributes:
        text: The text for DuckDB, with its parameters.
        parts: The fragments, and the reasons for running the rest in DuckDB.
        runner: The runner of the fragments.
        defined: einsql's views and macros that the text needs, in dependency order: the kind
            to DROP, the name, and the text after CREATE VIEW or MACRO.
        functions: The Python functions that the text calls, by their names in DuckDB.
        hinted: Whether the text for DuckDB contains an optimizer hint.
        is_query: Whether binding the statement for its columns has no side effects.
        version: The store's version when the statement was split.
    """

    text: Edited
    parts: Parts
    runner: FragmentRunner
    defined: list[Defined] = field(default_factory=list)
    is_query: bool = True
    functions: tuple[str, ...] = ()
    hinted: bool = False
    version: int = -1
    tables: object = None
    """`Database.tables` when the statement was split."""
    variables: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """The columns of the caller's tables that the statement read, by lower-case name."""
    is_whole: bool = False
    """Whether the statement is exactly one fragment, so that DuckDB is not needed."""

    @property
    def is_volatile(self) -> bool:
        """Returns True if a plan may run only once."""
        known = (*self.runner.plans.values(), *self.runner.once.values())
        return any(p.plan.volatile for p in known)


def is_outside(error: Error) -> bool:
    """Returns True if DuckDB may run a statement that the binder refused with this error."""
    return isinstance(error, NotSupportedError | UnknownHere)


def split(ctx: Context, sql: str, refusal: Error | None = None) -> Hybrid:
    """Splits a query.

    Raises:
        Error: The refusal, if the text for DuckDB has a hint, which would have no effect.
    """
    tables, version = ctx.store.database.tables, ctx.store.version
    hybrid = split_from(ctx, sql, 0)
    hybrid.tables, hybrid.version = tables, version
    if len(hybrid.parts.fragments) == 1:
        fragment = hybrid.parts.fragments[0]
        hybrid.is_whole = hybrid.text.text.strip() == shown(fragment.name, fragment.names)
    if refusal is not None and hybrid.hinted:
        raise refusal
    return hybrid


def split_from(ctx: Context, sql: str, start: int) -> Hybrid:
    """Splits the query that begins at an offset and ends with the text."""
    parts, runner = statement_parts(ctx, sql)
    splitter = Splitter(sql, parts)
    tokens = splitter.structure.tokens
    first = next(n for n, t in enumerate(tokens) if t.start >= start)
    splitter.query(splitter.structure.query(first, len(tokens)), {})
    hybrid = Hybrid(splitter.edits.result(start, len(sql)), parts, runner)
    hybrid.hinted = any(
        t.token_type is TokenType.HINT and not splitter.edits.covers(t.start) for t in tokens
    )
    hybrid.defined, hybrid.functions = definitions(ctx, hybrid.text, hybrid.parts)
    return hybrid


def split_insert(ctx: Context, sql: str) -> Hybrid:
    """Splits the query of an INSERT. Names of the statement's own WITH refer to DuckDB."""
    parts, _ = statement_parts(ctx, sql)
    splitter = Splitter(sql, parts)
    tokens = splitter.structure.tokens
    first = query_of(splitter, 0, len(tokens))
    if first is None or splitter.structure.word(0) == "WITH":
        raise NotSupportedError(
            "WITH before INSERT is outside the tensor fragment", hint="Put it before the SELECT."
        )
    return split_from(ctx, sql, tokens[first].start)


def split_duckdb_statement(ctx: Context, sql: str) -> Hybrid:
    """Splits the queries inside a DuckDB statement."""
    parts, runner = statement_parts(ctx, sql)
    splitter = Splitter(sql, parts)
    split_statement(splitter, 0)
    hybrid = Hybrid(splitter.edits.result(0, len(sql)), parts, runner, is_query=False)
    hybrid.defined, hybrid.functions = definitions(ctx, hybrid.text, hybrid.parts)
    return hybrid


def whole_of_duckdb(ctx: Context, sql: str) -> Hybrid:
    """A query of tables of DuckDB alone."""
    parts, runner = statement_parts(ctx, sql)
    return Hybrid(Edited(sql, (), [(0, 0)]), parts, runner)


def check(ctx: Context, hybrid: Hybrid) -> None:
    """Binds the remaining text in DuckDB, over fragments without rows, and does not run it.

    Raises:
        Error: The text is invalid.
    """
    with ctx.duck.showing(_empties(ctx, hybrid)):
        word = "DESCRIBE "
        origins = [(0, 0), *((at + len(word), there) for at, there in hybrid.text.origins)]
        described = _led(word, hybrid, origins)
        _table(ctx, described, [None for _ in hybrid.text.parameters])


def described(ctx: Context, hybrid: Hybrid) -> Description:
    """Binds as `check`, with the parameters; returns the description of the columns."""
    with ctx.duck.showing(_empties(ctx, hybrid)):
        return _table(ctx, hybrid, _given(ctx, hybrid), most=0).description


def duckdb_plan(ctx: Context, hybrid: Hybrid, analyze: bool) -> str:
    """Returns DuckDB's plan of the remaining text. With `analyze`, fragments are computed."""
    word = "EXPLAIN ANALYZE " if analyze else "EXPLAIN "
    relations = _relations(ctx, hybrid) if analyze else _empties(ctx, hybrid)
    with ctx.duck.showing(relations):
        table = _table(ctx, _led(word, hybrid, [(0, 0)]), _given(ctx, hybrid))
    return "\n".join(str(row[-1]) for row in table.rows())


def _led(word: str, hybrid: Hybrid, origins: list[tuple[int, int]]) -> Hybrid:
    """The statement of a word, such as EXPLAIN, before the remaining text."""
    return Hybrid(
        text=Edited(word + hybrid.text.text, hybrid.text.parameters, origins),
        parts=hybrid.parts,
        runner=hybrid.runner,
        defined=hybrid.defined,
        is_query=False,
        functions=hybrid.functions,
    )


def _empties(ctx: Context, hybrid: Hybrid) -> dict[str, object]:
    relations: dict[str, object] = {}
    for fragment in hybrid.parts.fragments:
        relations[fragment.name] = _empty(hybrid, fragment.tree, fragment.foreign, numbered=True)
    for name in hybrid.parts.relations.values():
        if not isinstance(ctx.store.get(name), Definition):
            tree = exp.select("*").from_(exp.Table(this=exp.to_identifier(name, quoted=True)))
            relations[name] = _empty(hybrid, tree, frozenset(), numbered=False)
    return relations


def _empty(hybrid: Hybrid, tree: exp.Expr, foreign: frozenset[str], *, numbered: bool) -> object:
    runner = hybrid.runner
    relation = runner.binder(tree, foreign).bind_any(tree)
    if not isinstance(relation, Relation):
        columns = tuple(c.name for c in relation.columns)
        planned, inputs = runner.plan(Fragment("", tree, foreign, columns, ""))
        return planned.shown(inputs, runner.ctx.tick)
    names = [column_of(n) if numbered else c.name for n, c in enumerate(relation.columns)]
    return no_rows(names, relation.columns)


# ---- running


def run(ctx: Context, hybrid: Hybrid) -> TableResult:
    """Computes the fragments, then runs the remaining text over them in DuckDB.

    Raises:
        Error: A fragment or DuckDB fails.
    """
    ctx.memory.lend()
    with ctx.duck.showing(_relations(ctx, hybrid)):
        return ctx.duck.run(lambda: _table(ctx, hybrid, _given(ctx, hybrid)), ctx.tick)


def answer(ctx: Context, hybrid: Hybrid) -> Rows:
    """Runs a query. If it is exactly one fragment, DuckDB is not involved.

    Raises:
        Error: As `run`.
    """
    if hybrid.is_whole:
        rows = hybrid.runner.whole(hybrid.parts.fragments[0])
        if rows is not None:
            return rows
        hybrid.is_whole = False  # rows without keys are returned as a table
    table = run(ctx, hybrid)
    hybrid.variables = {name: ctx.duck.columns(name) for name in ctx.shown}
    return Rows(table, table.description)


def answer_again(ctx: Context, hybrid: Hybrid) -> Rows | None:
    """Re-executes a split query. Returns None if it has to be split again.

    Raises:
        Error: As `run`.
    """
    if not _reads_same(ctx, hybrid):
        return None
    inputs = hybrid.runner.current()
    if inputs is None:
        return None
    plans = hybrid.runner.plans
    if hybrid.is_whole:
        ((name, planned),) = plans.items()
        return Rows(planned.plan.result(inputs[name], ctx.tick), planned.plan.description)
    relations = {n: p.shown(inputs.pop(n), ctx.tick) for n, p in plans.items()}
    with ctx.duck.showing(relations):
        table = ctx.duck.run(lambda: _table(ctx, hybrid, _given(ctx, hybrid)), ctx.tick)
    return Rows(table, table.description)


def is_current(ctx: Context, hybrid: Hybrid) -> bool:
    """Returns True if the names of a split query have the columns for which it was split."""
    plans = (*hybrid.runner.plans.values(), *hybrid.runner.once.values())
    return _reads_same(ctx, hybrid) and all(inputs_fit(p.plan, ctx) for p in plans)


def _reads_same(ctx: Context, hybrid: Hybrid) -> bool:
    if (hybrid.tables, hybrid.version) != (ctx.store.database.tables, ctx.store.version):
        return False
    return all(
        ctx.show_table(name) and ctx.duck.columns(name) == columns
        for name, columns in hybrid.variables.items()
    )


def _relations(ctx: Context, hybrid: Hybrid) -> dict[str, object]:
    """Computes the fragments. Returns the relations for DuckDB: tensors and fragments."""
    named = hybrid.parts.relations.values()
    tensors = [n for n in named if not isinstance(ctx.store.get(n), Definition)]
    return hybrid.runner.compute(hybrid.parts.fragments, tensors)


def _given(ctx: Context, hybrid: Hybrid) -> list[object]:
    return [_plain(ctx.parameters[n - 1]) for n in hybrid.text.parameters]


def _plain(value: object) -> object:
    return value.item() if isinstance(value, np.generic) else value


def _table(
    ctx: Context, hybrid: Hybrid, parameters: list[object], most: int | None = None
) -> TableResult:
    """Runs the text in DuckDB over the registered relations; `most` limits the rows."""
    import duckdb  # few statements need it

    duck, text = ctx.duck.con, hybrid.text.text
    there: list[str] = []
    try:
        ctx.duck.functions.raised()  # forgets earlier errors
        for called in hybrid.functions:
            register(ctx.duck, called)
        for kind, name, definition in hybrid.defined:
            word = "TEMP VIEW" if kind == "VIEW" else "OR REPLACE TEMP MACRO"
            duck.execute(f"CREATE {word} {definition}").fetchall()
            there.append(f"{kind} temp.{in_quotes(name)}")
        with nullcontext() if most == 0 else ctx.duck.profiling.of(duck, not hybrid.is_query):
            relation = duck.sql(text, params=parameters or None)
            names, types = tuple(relation.columns), tuple(map(str, relation.types))
            if relation.type != _DONE:
                relation = run_once(duck, relation if most is None else relation.limit(most))
        if hybrid.is_query:
            names = tuple(
                _spelled(duck, name, hybrid) for name in _names(duck, names, text, parameters)
            )
    except OperationalError as error:  # external access is off
        of_text = error.position is not None and len(there) == len(hybrid.defined)
        error.position = hybrid.text.origin(error.position or 0) if of_text else None
        raise
    except (duckdb.Error, RuntimeError, UnicodeDecodeError) as error:  # as for `translated`
        if is_cancelled(error):
            raise
        raised = ctx.duck.functions.raised()
        if isinstance(raised, Error):  # of a Python function of the user
            ctx.duck.failed(error)
            raise raised from raised.__cause__
        failure = translate(error, "\n".join([text, *(d for _, _, d in hybrid.defined)]))
        unplaced = isinstance(error, duckdb.BinderException | duckdb.CatalogException)
        if unplaced and not ctx.store.in_transaction:  # EXPLAIN would abort a usable transaction
            failure.position = _place(duck, text)
        elif failure.position is not None and failure.position >= len(text):
            failure.position = None  # the position is in a view's definition
        ctx.duck.failed(error)
        raise failures.explained(ctx, hybrid.parts, hybrid.text, failure) from None
    finally:
        for one in reversed(there):
            with suppress(duckdb.Error):  # a failed transaction has already dropped it
                duck.execute(f"DROP {one}").fetchall()
    busy = Inherited(ctx.lock)
    return TableResult(relation, names, types, busy, text)


def _names(
    duck: Any, columns: Sequence[str], text: str, parameters: list[object]
) -> tuple[str, ...]:
    """Returns the columns' names without the suffixes that relations add to repeated names."""
    low = {c.lower() for c in columns}
    if not any(m and m[1].lower() in low for m in map(_REPEATED.fullmatch, columns)):
        return tuple(columns)
    described = duck.execute(f"DESCRIBE {text}", parameters or None).fetchall()
    return tuple(str(row[0]) for row in described)


def _spelled(duck: Any, name: str, hybrid: Hybrid) -> str:
    """Returns a column's name with the fragments' source text, in DuckDB's format."""
    for fragment in hybrid.parts.fragments:
        if not re.search(rf"\b{fragment.name}\b", name):
            continue
        stands, spelled = (
            _formatted(duck, text) for text in (shown(fragment.name, fragment.names), fragment.text)
        )
        if stands and spelled:
            shortened = _SPACE.sub(" ", name)
            name = f"({spelled}".join(re.split(re.escape(f"({stands}") + r"\b", shortened))
    return name


def _formatted(duck: Any, text: str) -> str | None:
    """A query in DuckDB's format; None if it is no query of DuckDB."""
    ((tree,),) = duck.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
    if json.loads(tree)["error"]:
        return None
    ((formatted,),) = duck.execute("SELECT json_deserialize_sql(?::JSON)", [tree]).fetchall()
    return _SPACE.sub(" ", formatted)


def _place(duck: Any, text: str) -> int | None:
    """Returns the position of a binder error of DuckDB, which EXPLAIN reports."""
    import duckdb  # loaded, because a connection is open

    try:
        duck.execute(f"EXPLAIN {text}")
        duck.abort()
    except duckdb.Error as again:
        at = position_in(str(again), f"EXPLAIN {text}")
        return None if at is None else max(0, at - len("EXPLAIN "))
    return None
