"""The table function `einsql('…')` in the catalog of a DuckDB connection.

It is a TEMP macro over DuckDB's table function `query`, which binds a text that it computes. The
text is computed by functions in Python while DuckDB binds a statement, in these steps:

1. `__einsql_probes` gives a text for each name in the query's FROM.
2. `json_serialize_plan` binds each text. Its answer has the types of the columns, or the fact that
   no such table exists, as the user's transaction sees it.
3. `__einsql_bound` binds the query over these types, registers it as a source, and gives a SELECT
   from the source. The SELECT first passes the rows of the tables to `__einsql_read`.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from math import lcm
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import numpy as np

from einsql.core.quoting import in_quotes
from einsql.errors import Error, OperationalError, ProgrammingError
from einsql.frontends.duckdb.inputs import READ, SYSTEM, Input, read
from einsql.frontends.duckdb.scans import Query
from einsql.frontends.duckdb.session import GivenScope, Session, bind_text, in_text
from einsql.frontends.duckdb.tables import table_schema
from einsql.session.cursor import given_values
from einsql.storage.duckdb import streams
from einsql.storage.host_arrays import array_in_scope

if TYPE_CHECKING:
    from types import FrameType

    from duckdb import DuckDBPyConnection

VERSIONS = ("2.0.0", "2.0.1")
"""The versions of DuckDB with whose private method `_register_source` this code was tested."""

SOURCES = 16
"""Number of kept sources. DuckDB binds a source right after it is made, or after those of the
views that its query reads."""
_ROW = "__einsql_row"
_numbers = itertools.count(1)
_functions: WeakValueDictionary[int, TableFunction] = WeakValueDictionary()
_installed: WeakKeyDictionary[DuckDBPyConnection, list[TableFunction]] = WeakKeyDictionary()
"""The table functions of a connection, which live as long as it; the last one is in its catalog."""

FUNCTIONS = ("__einsql_probes", "__einsql_bound", READ)
"""The functions that the macro and its texts use."""


def is_possible(con: DuckDBPyConnection) -> bool:
    """Whether this version of DuckDB lets Python define the table function."""
    import duckdb

    return duckdb.__version__ in VERSIONS and hasattr(con, "_register_source")


def create_functions(con: DuckDBPyConnection) -> None:
    """Creates the functions that the macro uses in the database of a connection."""
    from duckdb.func import SPECIAL, PythonUDFType

    con.create_function("__einsql_probes", _probes, ["BIGINT", "VARCHAR"], "VARCHAR[]")
    con.create_function(
        "__einsql_bound",
        _bound,
        ["BIGINT", "VARCHAR", "VARCHAR[]", "BOOLEAN", "VARCHAR"],
        "VARCHAR",
    )
    arrow = PythonUDFType.ARROW
    con.create_function(READ, read, None, "BIGINT", type=arrow, null_handling=SPECIAL)


class TableFunction:
    """`einsql('…')` of one attachment.

    Args:
        con: The user's connection, whose macro it becomes. This object does not keep it.
        session: The session that binds the queries.
    """

    def __init__(self, con: DuckDBPyConnection, session: Session) -> None:
        self._con = ref(con)
        self._session = session
        self._number = next(_numbers)
        self._sources: dict[int, object] = {}
        self._source_numbers = itertools.count(1)
        _functions[self._number] = self
        _installed.setdefault(con, []).append(self)
        _create_macro(con, self._number)

    def close(self) -> None:
        """Removes the macro, or restores that of another attachment of the connection."""
        import duckdb

        con = self._con()
        installed = [] if con is None else _installed.get(con, [])
        if con is None or self not in installed:
            return
        shown = installed[-1] is self
        installed.remove(self)
        self._sources.clear()
        if shown:
            try:
                if installed:
                    _create_macro(con, installed[-1]._number)
                else:
                    con.execute("DROP MACRO TABLE IF EXISTS temp.einsql")
            except duckdb.Error:  # closed, or in an aborted transaction
                return

    def probes(self, text: str, frame: FrameType | None) -> list[str]:
        """The texts whose plans tell about the tables of a query.

        An error message of DuckDB's has the type of a table's row: `list_aggregate` takes it as
        the name of an aggregate while the text is bound. Nothing is read.
        """
        probes = []
        for name in self._session.names(text):
            table = in_quotes(name)
            kind = f"{SYSTEM}.typeof({_ROW})"
            probes.append(f"SELECT {SYSTEM}.list_aggregate([1], {kind}) FROM {table} AS {_ROW}")
            if isinstance(array_in_scope(frame, name), np.ndarray):
                probes.append(f"FROM {table}")
        return probes

    def bound(
        self,
        text: str,
        answers: Sequence[str],
        external: bool,
        parameters: str,
        frame: FrameType | None,
    ) -> str:
        """Binds a query.

        Args:
            text: The query.
            answers: DuckDB's answers to its probes.
            external: Whether DuckDB's settings allow to read variables and files.
            parameters: The values of the query's parameters, as a list or an object in JSON.
            frame: The frame whose variables the query may name.

        Returns:
            The SELECT in its place.

        Raises:
            Error: The query is wrong.
        """
        con = self._con()
        if con is None:
            raise _detached()
        cursor = con.cursor()  # the connection itself is in use
        try:
            tables = self._tables(text, answers, frame, cursor)
            inputs: dict[str, Input] = {}
            extent = _fitting(text)
            values = given_values(text, json.loads(parameters))

            def given(name: str) -> object | None:
                table = tables.get(name)
                if isinstance(table, Error):
                    raise table
                if table is None:
                    return None
                if name not in inputs:
                    inputs[name] = Input(table_schema(name, table))
                return inputs[name].example(extent)

            scope = GivenScope(given, frame)
            with self._session.beside(scope, external, values) as context:
                bound = in_text(lambda own: bind_text(context, own), text)
            query = Query(self._session, text, bound, scope.found, inputs, external, values)
            source = cursor._register_source(streams.data_set(query))
            self._keep(query, source)
        finally:
            cursor.close()
        return _select(query, source.name)

    def _keep(self, query: Query, source: object) -> None:
        """Keeps a source until DuckDB scans it; a plan of DuckDB keeps it from then on.

        A statement that is bound and never runs leaves a source behind; few of them are kept.
        """
        number = next(self._source_numbers)
        self._sources[number] = source
        self._sources.pop(number - SOURCES, None)
        query.on_scan = partial(self._sources.pop, number, None)

    def _tables(
        self,
        text: str,
        answers: Sequence[str],
        frame: FrameType | None,
        cursor: DuckDBPyConnection,
    ) -> dict[str, Mapping[str, str] | Error | None]:
        """The types of the columns of DuckDB's tables, by the names in a query."""
        rest = iter(answers)
        tables: dict[str, Mapping[str, str] | Error | None] = {}
        for name in self._session.names(text):
            answer = json.loads(next(rest))
            found = _answered(name, answer, cursor)
            array = array_in_scope(frame, name)
            if isinstance(array, np.ndarray):
                plan = json.loads(next(rest))
                if isinstance(found, Mapping) and _is_variable(found, plan):
                    found = None
            tables[name] = None if array is not None and isinstance(found, Error) else found
        return tables


def check_free(con: DuckDBPyConnection) -> None:
    """Requires that a connection has no other function of the name.

    Raises:
        ProgrammingError: It has one.
    """
    if _installed.get(con):
        return
    namesakes = con.sql(
        "SELECT DISTINCT database_name, function_type FROM duckdb_functions() "
        "WHERE function_name = 'einsql'"
    ).fetchall()
    for database, kind in namesakes:
        raise ProgrammingError(
            f"The database {database} has a {kind} named einsql already",
            hint="Rename it; einsql's function needs the name.",
        )


def _create_macro(con: DuckDBPyConnection, number: int) -> None:
    own = f"{SYSTEM}.__einsql_"
    external = " AND ".join(
        f"{SYSTEM}.current_setting('{name}')"
        for name in ("enable_external_access", "python_enable_replacements")
    )
    plan = f"lambda probe: {SYSTEM}.json_serialize_plan(probe)::VARCHAR"
    answers = f"{SYSTEM}.list_transform({own}probes({number}, sql), {plan})"
    bound = f"{own}bound({number}, sql, {answers}, {external}"
    forms = (
        f"({names}) AS TABLE (FROM {SYSTEM}.query({bound}, {values})))"
        for names, values in (
            ("sql", "'[]'"),
            ("sql, parameters", f"{SYSTEM}.to_json(parameters)::VARCHAR"),
        )
    )
    con.execute(f"CREATE OR REPLACE TEMP MACRO einsql{', '.join(forms)}")


def _answered(
    name: str, answer: Mapping[str, str], cursor: DuckDBPyConnection
) -> Mapping[str, str] | Error | None:
    """The types of a table's columns; None without a table; the reason why it cannot be read."""
    if answer.get("type") == "Aggregate Function":
        kind: Any = cursor.sqltype(answer["name"])
        return {column: str(child) for column, child in kind.children}
    missing = answer.get("name", name).lower() == name.lower()
    if missing and answer.get("error_type") in ("catalog", "invalid input"):
        return None
    if re.fullmatch(r"\w+", name) is None:  # a file of another format than DuckDB's
        return None
    return ProgrammingError(f"DuckDB cannot read {name}: {answer.get('error_message')}")


def _is_variable(types: Mapping[str, str], plan: Mapping[str, str]) -> bool:
    """Whether DuckDB has no table of a name and reads an array of NumPy of that name instead.

    Args:
        types: The columns that it reads.
        plan: Its plan, or the reason why the plan has no text: it reads an object of Python.
    """
    named = [f"column{n}" for n in range(len(types))]
    return list(types) == named and "process-local" in plan.get("error_message", "")


def _fitting(text: str) -> int:
    """An extent that the numbers in a query divide, as TILES(x, 3, 4) cuts keys into 3 and 4."""
    return lcm(*(int(n) for n in re.findall(r"\b[1-9]\d{0,3}\b", text)))


def _select(query: Query, source: str) -> str:
    """The SELECT from a query's source.

    DuckDB passes the tables first: the build side of a MARK join is complete before its other side
    is scanned. DuckDB may swap the sides of other joins.
    """
    select = f"SELECT * FROM {in_quotes(source)}"
    if not query.inputs:
        return select
    reads = " UNION ALL ".join(own.select for own in query.inputs.values())
    return f"{select} WHERE coalesce(0 IN ({reads}), true)"


# ---- functions of DuckDB


def _probes(number: int, text: str) -> list[str]:
    return _of(number).probes(text, _caller())


def _bound(number: int, text: str, answers: list[str], external: bool, parameters: str) -> str:
    return _of(number).bound(text, answers, external, parameters, _caller())


def _of(number: int) -> TableFunction:
    function = _functions.get(number)
    if function is None:
        raise _detached()
    return function


def _detached() -> OperationalError:
    return OperationalError("einsql is detached", hint="einsql.attach() the connection again.")


def _caller() -> FrameType | None:
    """The frame of the user's code that runs the statement."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] != "duckdb" and not module.startswith(__package__):
            break
        frame = frame.f_back
    return frame
