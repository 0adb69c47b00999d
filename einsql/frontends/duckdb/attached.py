"""`einsql.attach`: einsql's functions on a user's DuckDB connection."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from einsql.core import forks
from einsql.core.schema import DType
from einsql.errors import InterfaceError, OperationalError, ProgrammingError
from einsql.frontends.duckdb.calls import STANDS_FOR, Call, find_calls, replaced
from einsql.frontends.duckdb.functions import register, unregister, unregister_all
from einsql.frontends.duckdb.rows import Rows
from einsql.frontends.duckdb.session import Session
from einsql.frontends.duckdb.session_statements import tensors_in
from einsql.frontends.duckdb.table_function import TableFunction, check_free, is_possible
from einsql.frontends.duckdb.tables import read_table
from einsql.frontends.duckdb.user_database import UserDatabase, connected, in_frame
from einsql.session.cursor import Cursor
from einsql.sql.parser.lexical import scan
from einsql.storage.objects import Tensor
from einsql.storage.out_of_memory import enough_memory

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

_ELEMENTS = {"FLOAT": DType.FLOAT, "DOUBLE": DType.DOUBLE}


def attach(connection: DuckDBPyConnection, *, element: str = "DOUBLE") -> Attached:
    """Adds einsql's functions of tiles and `FROM einsql('…')` to a DuckDB connection.

    The functions, such as tensor_einsum, are registered in the connection's database. Other
    connections to the database can use them until this connection is closed or `close` removes
    them. The database file is not changed.

    Args:
        connection: The user's DuckDB connection, outside of a transaction.
        element: The element type of the tiles that functions return, FLOAT or DOUBLE.

    Raises:
        InterfaceError: The object is no DuckDB connection, or it is in a transaction.
        ProgrammingError: The database has another function with one of the names.
    """
    import duckdb

    if not isinstance(connection, duckdb.DuckDBPyConnection):
        raise InterfaceError(
            f"attach takes a DuckDB connection, not a {type(connection).__name__}",
            hint="As in einsql.attach(duckdb.connect()).",
        )
    dtype = _ELEMENTS.get(str(element).upper())
    if dtype is None:
        raise InterfaceError(f"Elements of tiles are FLOAT or DOUBLE, not {element!r}")
    _at_exit()
    with connected():
        check_free(connection)
        return Attached(connection, register(connection, dtype))


@cache
def _at_exit() -> None:
    atexit.register(unregister_all)


class Attached:
    """A DuckDB connection with einsql.

    Attributes:
        connection: The DuckDB connection.
        session: The einsql connection that runs `einsql('…')`; its settings, views and macros
            are used there.
    """

    def __init__(self, connection: DuckDBPyConnection, owner: bool) -> None:
        self.connection = connection
        self.session = Session(UserDatabase(connection))
        self._function: TableFunction | None = None
        self._owner = owner
        self._closed = False
        self._inherited: forks.Refusal | None = None
        forks.register(self)
        if is_possible(connection):
            self._function = TableFunction(connection, self.session)

    def forked(self, refusal: forks.Refusal) -> None:
        """In a forked child: refuses every statement and does not use DuckDB."""
        forks.never_destroy(self.connection)
        self._inherited = refusal
        self._owner = False

    def sql(self, query: str, **options: Any) -> DuckDBPyRelation | None:
        """DuckDB's `con.sql` for a text that can contain `FROM einsql('…')`.

        The call reads the tables of the inner queries. The inner queries run at the first fetch
        from the relation, and the relation keeps their results.

        Args:
            query: One or more statements; each statement runs before the next one is bound.
            options: The options of DuckDB's `sql`, such as `params`.

        Returns:
            DuckDB's relation; None for a statement without rows.

        Raises:
            Error: An inner query is wrong.
            duckdb.Error: The outer statement is wrong.
        """
        frame = sys._getframe(1)
        relation: DuckDBPyRelation | None = self._run(self.connection.sql, query, frame, **options)
        return relation

    def execute(self, query: str, parameters: Any = None) -> DuckDBPyConnection | Cursor:
        """DuckDB's `con.execute` for a text that can contain `FROM einsql('…')`.

        The session runs statements about its tensors: CREATE TENSOR, and queries and changes that
        name a tensor in the place of a table. In a script this is decided for each statement.

        Args:
            query: One or more statements.
            parameters: The parameters of the outer statement.

        Returns:
            DuckDB's connection, or einsql's cursor for a statement of the session.

        Raises:
            Error: An inner query, or a statement of the session, is wrong.
            duckdb.Error: The outer statement is wrong or fails.
        """
        return self._execute(query, parameters, sys._getframe(1))

    def _execute(
        self, query: str, parameters: Any, frame: FrameType
    ) -> DuckDBPyConnection | Cursor:
        spans = scan(query) if isinstance(query, str) else []
        if len(spans) > 1 and parameters is None and self._is_of_session(query):
            *before, last = [query[s.start : s.end] for s in spans]
            for statement in before:  # some of them may be about tables of DuckDB
                self._execute(statement, None, frame)
            return self._execute(last, None, frame)
        if self._is_of_session(query):
            run = partial(self.session.execute, query, parameters)
            place = frame if self._is_on("python_enable_replacements") else None
            cursor: Cursor = in_frame(run, place, {})
            return cursor
        arguments = () if parameters is None else (parameters,)
        connection: DuckDBPyConnection = self._run(
            self.connection.execute, query, frame, *arguments
        )
        return connection

    def tensor(
        self,
        name: str,
        query: str,
        dims: Sequence[str] | None = None,
        shape: Sequence[int] | None = None,
    ) -> None:
        """Reads the rows of a query once and registers them as a tensor for `einsql('…')`.

        Args:
            name: The tensor's name; it takes precedence over a table of the same name.
            query: The query, with one row for each element, in any order.
            dims: The key columns; by default the leading integer columns, except the last
                column.
            shape: The extents of the keys, which then start at 0; by default the data
                determines the bounds.

        Raises:
            Error: The conditions of `tables.read_table`.
            duckdb.Error: The query is wrong.
        """
        if isinstance(dims, str) or isinstance(shape, int):
            raise InterfaceError(
                "dims are key names and shape is extents, one for each key",
                hint="Give dims=('i', 'j'), shape=(3, 4).",
            )
        rows = self._run(self.connection.sql, query, sys._getframe(1))
        if rows is None:
            raise ProgrammingError("A tensor is read from a query", hint="Give a SELECT.")
        with enough_memory:
            relation = read_table(name, rows, dims, shape)
        columns = (
            *(k.name for k in relation.schema.keys),
            *(f.name for f in relation.schema.values),
        )
        self.session.store.register(Tensor(name, relation, columns, borrowed=True))

    def register(
        self,
        name: str,
        array: object,
        dims: Sequence[str] | None = None,
        *,
        fill: int | None = None,
    ) -> None:
        """Registers an array for `einsql('…')`, like `einsql.Connection.register`.

        Raises:
            Error: The conditions of `einsql.Connection.register`.
        """
        self._open()
        self.session.register(name, array, dims, fill=fill)

    def unregister(self, name: str) -> None:
        """Removes a name that `tensor` or `register` has registered.

        Raises:
            ProgrammingError: Nothing is registered under the name.
        """
        self._open()
        self.session.unregister(name)

    def interrupt(self) -> None:
        """Cancels the running statement, and the query of einsql that it runs.

        DuckDB's `interrupt` alone takes effect when that query has ended.
        """
        self._open()
        self.session.interrupt()
        self.connection.interrupt()

    def close(self) -> None:
        """Removes the functions if they were registered through this connection.

        They remain while another attachment of the connection is open.
        """
        if self._closed:
            return
        self._closed = True
        if self._function is not None and self._inherited is None:
            self._function.close()
        self.session.close()
        if self._owner:
            unregister(self.connection)

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- implementation

    def _is_of_session(self, query: str) -> bool:
        """True for a text about tensors of the session; tables of DuckDB take precedence."""
        self._open()
        tensors = tensors_in(self.session, query) if isinstance(query, str) else None
        if tensors is None or find_calls(query):
            return False
        if not tensors:
            return True
        with connected():
            rows = self.connection.sql("SELECT lower(table_name) FROM information_schema.tables")
            return tensors.isdisjoint(name for (name,) in rows.fetchall())

    def _open(self) -> None:
        if self._closed:
            raise InterfaceError("This is closed", hint="einsql.attach(connection) again.")
        if self._inherited is not None:
            raise self._inherited()

    def _run(
        self,
        method: Callable[..., Any],
        query: str,
        frame: FrameType,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        self._open()
        if not isinstance(query, str):
            raise InterfaceError(f"A statement is a str, not a {type(query).__name__}")
        if not self._calls(query):
            with connected():
                return in_frame(partial(method, query, *arguments, **options), frame, {})
        *before, last = [query[s.start : s.end] for s in scan(query)]
        with connected():
            self._check_settings()
            for statement in before:  # the next statement can read their tables
                self._run_one(self.connection.execute, statement, frame)
            return self._run_one(method, last, frame, *arguments, **options)

    def _run_one(
        self,
        method: Callable[..., Any],
        query: str,
        frame: FrameType,
        *arguments: Any,
        **options: Any,
    ) -> Any:
        calls = self._calls(query)
        bound: dict[str, Rows] = {}  # a repeated query runs once
        for call in calls:
            if call.query not in bound:
                bound[call.query] = self.session.rows(call.query, frame)
        known = {STANDS_FOR.format(n): bound[call.query] for n, call in enumerate(calls)}
        return in_frame(
            partial(method, replaced(query, calls), *arguments, **options), frame, known
        )

    def _calls(self, query: str) -> list[Call]:
        """The calls in a text whose results this class computes; DuckDB runs the others."""
        return [c for c in find_calls(query, self._function is None) if not c.lasting]

    def _check_settings(self) -> None:
        """Checks that DuckDB can read Python objects and that einsql can read files."""
        for name in ("enable_external_access", "python_enable_replacements"):
            if not self._is_on(name):
                raise OperationalError(
                    f"DuckDB may not read what einsql('…') gives: {name} is off",
                    hint="The functions of tiles work nevertheless.",
                )

    def _is_on(self, setting: str) -> bool:
        with connected():
            asked = f"SELECT current_setting('{setting}')"
            ((value,),) = self.connection.sql(asked).fetchall()
        return bool(value)
