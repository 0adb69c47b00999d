"""The statements of a text, one after the other: parsed, and planned or run."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from einsql import errors
from einsql.core.big_stack import with_room
from einsql.errors import Error, NotSupportedError, ProgrammingError
from einsql.kernels.runtime import compile_cache
from einsql.sql.parameters.values import check_given
from einsql.sql.parser import syntax as st
from einsql.sql.parser.lexical import scan
from einsql.sql.parser.parser import parse
from einsql.sql.parser.tokens import is_name_or_value, tokenize

if TYPE_CHECKING:
    from einsql.session.connection import Connection
    from einsql.session.cursor import Cursor
    from einsql.session.statements import Changing

Alone = tuple[str, int]
"""The whole text of a statement that stands alone in it, and where it begins."""


def run_text(
    con: Connection, sql: str, given: tuple[object, ...], cursor: Cursor
) -> None:  # fmt: skip
    """Runs every statement of a text; the plan of one that stands alone is kept.

    Raises:
        Error: With the position in the text.
    """
    try:
        spans = scan(sql)
    except Error as error:
        raise error.locate(sql) from None
    if not spans:
        raise ProgrammingError("There is no statement to run")
    if given and len(spans) > 1:
        raise ProgrammingError(
            "Parameters need a single statement",
            hint="Execute the statements one by one, each with its own.",
            position=spans[1].start,
            sql=sql,
        )
    con._parameters = given
    for span in spans:
        cursor._clear()
        text = sql[span.start : span.end]
        try:
            with errors.located(span.start, sql):
                check_given(text, len(given))
                alone = (sql, span.start) if len(spans) == 1 else None
                _repeated(con, text, cursor, alone, span.depth)
        except RecursionError:
            raise ProgrammingError("The statement nests too deeply") from None
        finally:
            while compile_cache.notices:
                con.notices.append(compile_cache.notices.pop())


def _repeated(
    con: Connection, text: str, cursor: Cursor, alone: Alone | None, depth: int = 0
) -> None:
    """Runs a statement, again if ranks end meanwhile and others go on."""
    while True:
        try:
            return _statement(con, text, cursor, alone, depth)
        except errors.RanksLost:
            cursor._clear()


def _in_loop(con: Connection, text: str, cursor: Cursor) -> None:
    """Runs a statement of a loop's body; its plan is kept, for it comes again."""
    if not con._again(text, cursor):
        _repeated(con, text, cursor, (text, 0))


def _statement(con: Connection, text: str, cursor: Cursor, alone: Alone | None, depth: int) -> None:
    """Parses and runs a statement, on a stack that it and what it reads fit into."""
    con.store.refresh()
    statement, doubt = with_room(partial(parse, text), depth)
    if isinstance(statement, st.For) and doubt is None:
        from einsql.session.statements.loop import (
            run_loop,  # a process that asks one question is to be quick
        )

        con.duck.refuse_aborted()
        run_loop(con, statement, cursor, partial(_in_loop, con))
        return
    with_room(partial(_parsed, con, statement, doubt, text, cursor, alone), depth)


def _parsed(
    con: Connection, statement: st.Statement, doubt: Error | None, text: str, cursor: Cursor,
    alone: Alone | None,
) -> None:  # fmt: skip
    """Runs a statement that is no loop; one that stands alone is remembered."""
    cursor._clear()
    if doubt is not None:
        try:
            _try(con, statement, text, cursor)
        except NotSupportedError as error:
            if not _stumbles_before(text, doubt, error):
                raise
        raise doubt.locate(text)
    if not isinstance(statement, st.Transaction):
        con.duck.refuse_aborted()
    if isinstance(statement, st.Query):
        try:
            plan = con.plan_any(statement.tree)
        except Error as error:
            from einsql.session.dispatch import run_instead  # as above

            made = run_instead(con, text, error, cursor)
            if alone is not None and not made.is_volatile:
                made.start = alone[1]
                con.remember_hybrid(alone[0], made)
            return
        if alone is not None and not plan.volatile:
            con.remember_plan(alone[0], plan)
        cursor._show(plan.result(con._inputs, con._tick), plan.description)
        return
    found = _other(con, statement, text, cursor)
    if found is not None and alone is not None and not found.is_volatile:
        con.remember_plan(alone[0], found)


def _stumbles_before(text: str, doubt: Error, refusal: Error) -> bool:
    """True if DuckDB's grammar cannot read something that stands before what is refused.

    A refusal's position is the first name or value of what it names, such as the table of
    `ONLY t`, where the grammar stops at ONLY: what lies between is words of one construct.
    """
    told, refused = doubt.position, refusal.position
    if told is None or refused is None or "at or near" not in doubt.reason:
        return False
    between = (t for t in tokenize(text) if told < t.start < refused)
    return any(is_name_or_value(t) for t in between)


def _try(con: Connection, statement: st.Statement, text: str, cursor: Cursor) -> None:
    """Binds, or runs and undoes, what is no SQL: the binder's error may say it better."""
    from einsql.session.dispatch import run_statement  # as above

    if isinstance(statement, st.Query):
        con.plan_any(statement.tree)
    elif not isinstance(statement, st.Copy):
        try:
            with con.store.attempt():
                run_statement(con, statement, text, cursor)
        finally:
            cursor._clear()


def _other(
    con: Connection, statement: st.Statement, text: str, cursor: Cursor
) -> Changing | None:  # fmt: skip
    """Runs what is no query; gives what may run again."""
    from einsql.session.dispatch import changes_tables, run_statement
    from einsql.session.statements import Changing  # as above

    alone = isinstance(statement, st.Transaction | st.Vacuum | st.Backup)
    tables = isinstance(statement, st.CreateTensor | st.Copy) or (
        isinstance(statement, st.Change) and not changes_tables(con, statement.tree)
    )
    makes = isinstance(statement, st.Import)
    with nullcontext() if alone else con.store.statement(tables, makes):
        found = run_statement(con, statement, text, cursor)
    if isinstance(found, Changing):
        return found
    if found is not None:
        con._explanation = found
    return None
