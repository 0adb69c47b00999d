"""The einsql session of an attachment: binds the queries of `einsql('…')`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TypeGuard, TypeVar

from sqlglot import exp

from einsql import errors
from einsql.core.big_stack import with_room
from einsql.engine.cancellation import Progress
from einsql.errors import NotSupportedError, ProgrammingError
from einsql.frontends.duckdb.rows import Rows
from einsql.frontends.duckdb.user_database import UserDatabase
from einsql.kernels.runtime.blas import Statement
from einsql.planner.context import CallerScope, Context
from einsql.planner.plan_cache import PlanCache
from einsql.planner.queries import Bound, bind_query, plan_query
from einsql.session.connection import Connection
from einsql.sql.parameters.values import check_given
from einsql.sql.parser import syntax as st
from einsql.sql.parser.lexical import scan
from einsql.sql.parser.parameter_marks import mark
from einsql.sql.parser.parser import parse
from einsql.storage.array_ownership import show
from einsql.storage.error_boundary import boundary
from einsql.storage.fields import Fields
from einsql.storage.objects import Definition
from einsql.storage.relation import Relation

T = TypeVar("T")


class AttachedScope(CallerScope):
    """The tables of a user's DuckDB database, and the variables of the caller.

    Args:
        table: Reads the table of a name, given the frame whose variables it may be.
    """

    __slots__ = ("_read", "_table")

    def __init__(self, table: Callable[[str, FrameType | None], Relation | None]) -> None:
        super().__init__()
        self._table = table
        self._read: dict[str, Relation | None] = {}

    def leave(self, before: FrameType | None) -> None:
        """Restores the previous frame and clears the tables, which are read once per statement."""
        super().leave(before)
        self._read = {}

    def has_read(self, fields: Fields) -> bool:
        """Whether fields are those of a table that the running statement has read."""
        return any(r is not None and r.fields is fields for r in self._read.values())

    def array(self, name: str, readable: bool) -> object | None:
        """A table of the user's database, or an array of the caller's variables."""
        if name not in self._read:
            self._read[name] = self._table(name, self.frame)
        table = self._read[name]
        return super().array(name, readable) if table is None else table


class GivenScope(CallerScope):
    """Relations by name, and the variables of a frame.

    Args:
        given: Returns the relation of a name, or None.
        frame: The frame with the variables; None for no variables.

    Attributes:
        found: The relations and arrays that a query has read, by name.
    """

    __slots__ = ("_given", "found")

    def __init__(self, given: Callable[[str], object | None], frame: FrameType | None) -> None:
        super().__init__()
        self._frame = frame
        self._given = given
        self.found: dict[str, object] = {}

    def array(self, name: str, readable: bool) -> object | None:
        """A given relation, or an array of the caller's variables."""
        array = self._given(name)
        if array is None:
            array = super().array(name, readable)
        if array is not None:
            self.found[name] = array
        return array


class Session(Connection):
    """An einsql session that resolves names to the tables of a user's DuckDB database.

    Args:
        database: The user's database.
    """

    def __init__(self, database: UserDatabase) -> None:
        self._user_scope = AttachedScope(database.table)
        super().__init__(scope=self._user_scope)
        self._user_database = database

    @contextmanager
    def running(self, frame: FrameType | None, parameters: Sequence[object]) -> Iterator[None]:
        """Locks the session for a statement, which reaches files only if DuckDB may.

        Args:
            frame: The caller's frame, whose variables FROM may name; None for none.
            parameters: The values of the statement's parameters.
        """
        with super().running(frame, parameters):
            settings = self.context.settings
            if settings.enable_external_access and not self._user_database.allows_files():
                self.context.change_settings(replace(settings, enable_external_access=False))
            yield

    def rows(self, text: str, frame: FrameType) -> Rows:
        """Binds a query: reads its tables and computes no result.

        Raises:
            Error: The query is wrong; the error has the position in the text.
        """
        with self.running(frame, ()):
            return in_text(self._rows, text)

    def _rows(self, text: str) -> Rows:
        bound = bind_text(self.context, text)
        plan = plan_query(self.context, bound)
        rows = Rows(plan, dict(bound.inputs), self.context.progress.interrupts)
        if not all(self._lasts(name, fields) for name, fields in bound.inputs.items()):
            rows.run_now()
        return rows

    def _lasts(self, name: str, fields: Fields) -> bool:
        """True for fields that no later statement and no owner of an array changes."""
        if self._user_scope.has_read(fields):
            return True
        if not self.store.lasts(name, fields):
            return False
        show(fields.values())  # UPDATE copies them from now on
        return True

    def names(self, text: str) -> tuple[str, ...]:
        """The names in FROM of a query, and of the views and macros of the session in it.

        Some may be names of the query's own, such as those in WITH.

        Raises:
            Error: The query is wrong; the error has the position in the text.
        """
        with boundary:
            return in_text(lambda own: tuple(self._names(parsed(self.context, own))), text)

    def _names(self, tree: exp.Expr) -> Iterator[str]:
        seen: set[str] = set()
        trees = [tree]
        while trees:
            for named in trees.pop().find_all(exp.Table, exp.Anonymous):
                # TILES(x, 4, 4) has its table as an argument.
                inner = named.this if isinstance(named.this, exp.Anonymous) else None
                columns = [] if inner is None else inner.find_all(exp.Column)
                for name in (named.name, *(c.name for c in columns)):
                    if not name or named.args.get("db") or name in seen:
                        continue
                    seen.add(name)
                    stored = [self.store.get(own) for own in (name, f"{name}()")]
                    trees += [d.body.tree for d in stored if _is_query(d)]
                    if isinstance(named, exp.Table):
                        yield name

    @contextmanager
    def beside(
        self, scope: GivenScope, external: bool, parameters: Sequence[object]
    ) -> Iterator[Context]:
        """The services for one query that DuckDB runs, beside statements of this session.

        It takes no lock of the session: DuckDB holds its connection's lock, and a thread that
        holds the session's lock may wait for that one.

        Args:
            scope: The names of the query.
            external: Whether DuckDB's settings allow to read variables and files.
            parameters: The values of the query's parameters.
        """
        self.check_open()
        settings = self.context.settings
        plans = PlanCache()
        plans.trees = self.context.plans.trees
        context = replace(
            self.context,
            settings=replace(
                settings, enable_external_access=settings.enable_external_access and external
            ),
            scope=scope,
            parameters=parameters,
            notices=[],
            progress=Progress(),
            plans=plans,
            lock=threading.RLock(),
        )
        context.progress.interrupts = self.context.progress.interrupts
        context.progress.begin()
        with boundary, Statement():
            yield context


def _is_query(stored: object) -> TypeGuard[Definition]:
    return isinstance(stored, Definition) and isinstance(stored.body.tree, exp.Expr)


def in_text(bind: Callable[[str], T], text: str) -> T:
    """Calls a function that parses a text of one query, and locates its errors in the text.

    Raises:
        Error: The text has several queries, or the function raised it.
    """
    spans = scan(text)
    if len(spans) != 1:
        raise ProgrammingError(f"einsql takes one query, not {len(spans)}")
    (span,) = spans
    try:
        with errors.located(span.start, text):
            return with_room(partial(bind, text[span.start : span.end]), span.depth)
    except NotSupportedError as error:
        error.hint = error.hint or "DuckDB may do that, outside of einsql('…')."
        raise


def bind_text(context: Context, text: str) -> Bound:
    """Binds the text of one query.

    Raises:
        Error: The query is wrong, or the values are not those of its parameters.
    """
    asked = mark(text).numbers
    if asked and not context.parameters:
        raise ProgrammingError(
            "Parameters do not reach the text in einsql('…')",
            hint="Give values beside it: con.sql(\"FROM einsql('… $rate …', {'rate': 0.5})\").",
            position=min(asked),
        )
    check_given(text, len(context.parameters))
    return bind_query(context, parsed(context, text))


def parsed(context: Context, text: str) -> exp.Query:
    """The syntax tree of a query.

    Raises:
        Error: The text is no query.
    """
    statement, doubt = context.plans.trees.parsed(text, parse)
    if not isinstance(statement, st.Query):
        raise ProgrammingError(
            "einsql('…') holds a query, and this is another statement",
            hint="Run it by edb.session.execute(…).",
        )
    if doubt is not None:
        raise doubt.locate(text)
    return statement.tree
