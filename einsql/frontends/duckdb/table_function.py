"""The table function `einsql('…')` in the catalog of a DuckDB connection.

It is a TEMP macro over DuckDB's table function `query`, which binds a text that it computes. The
text is computed by functions in Python while DuckDB binds a statement, in these steps:

1. `__einsql_probes` gives a text for each name in the query's FROM.
2. `json_serialize_plan` binds each text. Its answer has the types of the columns, or the fact that
   no such table exists, as the user's transaction sees it.
3. `__einsql_bound` binds the query over these types, registers it as a source, and gives a SELECT
   from the source. The SELECT first passes the rows of the tables to `__einsql_put`.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from einsql.core.quoting import in_quotes
from einsql.errors import Error, OperationalError, ProgrammingError
from einsql.frontends.duckdb.inputs import Input, Scans, put
from einsql.frontends.duckdb.scans import Query, read
from einsql.frontends.duckdb.session import GivenScope, Session, bind_text, in_text
from einsql.frontends.duckdb.tables import TableSchema, table_schema
from einsql.storage.duckdb import streams
from einsql.storage.host_arrays import array_in_scope

if TYPE_CHECKING:
    from types import FrameType

    from duckdb import DuckDBPyConnection

VERSIONS = ("2.0.0",)
"""The versions of DuckDB whose private method `_register_source` is known to do what is needed."""

_ROW = "__einsql_row"
_numbers = itertools.count(1)
_functions: WeakValueDictionary[int, TableFunction] = WeakValueDictionary()
_installed: WeakKeyDictionary[DuckDBPyConnection, list[int]] = WeakKeyDictionary()
"""The numbers of the table functions of a connection; the last one is in its catalog."""

FUNCTIONS = ("__einsql_probes", "__einsql_bound", "__einsql_put", "__einsql_read")
"""The functions that the macro and its texts use."""


def is_possible(con: DuckDBPyConnection) -> bool:
    """Whether this version of DuckDB lets Python define the table function."""
    import duckdb

    return duckdb.__version__ in VERSIONS and hasattr(con, "_register_source")


def create_functions(con: DuckDBPyConnection) -> None:
    """Creates the functions that the macro uses in the database of a connection."""
    from duckdb.func import SPECIAL, PythonUDFType

    con.create_function("__einsql_probes", _probes, ["BIGINT", "VARCHAR"], "VARCHAR[]")
    con.create_function("__einsql_bound", _bound, ["BIGINT", "VARCHAR", "VARCHAR[]"], "VARCHAR")
    for name, function in (("__einsql_put", put), ("__einsql_read", read)):
        con.create_function(
            name, function, None, "BIGINT", type=PythonUDFType.ARROW, null_handling=SPECIAL
        )  # fmt: skip


class TableFunction:
    """`einsql('…')` of one attachment.

    Args:
        con: The user's connection, whose macro it becomes.
        session: The session that binds the queries.
    """

    def __init__(self, con: DuckDBPyConnection, session: Session) -> None:
        self._con = con
        self._session = session
        self._number = next(_numbers)
        self._scans = con._register_source(streams.data_set(Scans()))
        self._sources: deque[object] = deque(maxlen=16)  # DuckDB has not bound them yet
        _functions[self._number] = self
        _installed.setdefault(con, []).append(self._number)
        _create_macro(con, self._number)

    def close(self) -> None:
        """Removes the macro, or restores that of another attachment of the connection."""
        import duckdb

        numbers = _installed.get(self._con, [])
        if self._number not in numbers:
            return
        shown = numbers[-1] == self._number
        numbers.remove(self._number)
        self._sources.clear()
        if shown:
            try:
                if numbers:
                    _create_macro(self._con, numbers[-1])
                else:
                    self._con.execute("DROP MACRO TABLE IF EXISTS temp.einsql")
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
            probes.append(f"SELECT list_aggregate([1], typeof({_ROW})) FROM {table} AS {_ROW}")
            if isinstance(array_in_scope(frame, name), np.ndarray):
                probes.append(f"FROM {table}")
        return probes

    def bound(self, text: str, answers: Sequence[str], frame: FrameType | None) -> str:
        """Binds a query.

        Args:
            text: The query.
            answers: DuckDB's answers to its probes.
            frame: The frame whose variables the query may name.

        Returns:
            The SELECT in its place.

        Raises:
            Error: The query is wrong.
        """
        cursor = self._con.cursor()  # the connection itself is in use
        try:
            tables = self._tables(text, answers, frame, cursor)
            inputs: dict[str, Input] = {}

            def given(name: str) -> object | None:
                table = tables.get(name)
                if isinstance(table, Error):
                    raise table
                if table is None:
                    return None
                if name not in inputs:
                    inputs[name] = Input(table_schema(name, table))
                return _example(inputs[name].schema)

            scope = GivenScope(given, frame)
            with self._session.beside(scope) as context:
                bound = in_text(lambda own: bind_text(context, own), text)
            query = Query(self._session, text, bound, scope.found, inputs)
            source = cursor._register_source(streams.data_set(query))
        finally:
            cursor.close()
        self._sources.append(source)
        return _select(query, source.name, self._scans.name)

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
            array = array_in_scope(frame, name)
            if isinstance(array, np.ndarray):
                reads_it = "process-local" in json.loads(next(rest)).get("error_message", "")
                if reads_it:  # DuckDB has no such table and would read the variable itself
                    continue
            tables[name] = _answered(name, answer, cursor)
            if array is not None and isinstance(tables[name], Error):
                tables[name] = None
        return tables


def _create_macro(con: DuckDBPyConnection, number: int) -> None:
    con.execute(
        "CREATE OR REPLACE TEMP MACRO einsql(sql) AS TABLE FROM query(__einsql_bound("
        f"{number}, sql, list_transform(__einsql_probes({number}, sql), "
        "lambda probe: json_serialize_plan(probe)::VARCHAR)))"
    )


def _answered(
    name: str, answer: Mapping[str, str], cursor: DuckDBPyConnection
) -> Mapping[str, str] | Error | None:
    """The types of a table's columns; None without a table; the reason why it cannot be read."""
    message = answer.get("error_message", "")
    if answer.get("type") == "Aggregate Function":
        kind: Any = cursor.sqltype(answer["name"])
        return {column: str(child) for column, child in kind.children}
    if answer.get("type") == "Table" and answer.get("name", "").lower() == name.lower():
        return None
    if "not suitable for replacement scans" in message:
        return None
    return ProgrammingError(f"DuckDB cannot read {name}: {message}")


def _example(schema: TableSchema) -> object:
    """A relation of the types of a table, with one row of zeros."""
    return schema.relation({c: np.zeros(1, t.numpy) for c, t in schema.dtypes.items()})


def _select(query: Query, source: str, scans: str) -> str:
    """The SELECT from a query's source.

    DuckDB runs the subquery first: the build side of a MARK join is complete before its other
    side is scanned. DuckDB keeps these sides, while it may swap those of other joins.
    """
    select = f"SELECT * FROM {in_quotes(source)}"
    if not query.inputs:
        return select
    parts = []
    for n, (name, own) in enumerate(query.inputs.items()):
        columns = ", ".join(own.schema.casts)
        parts.append(
            f"SELECT {n} AS part, any_value(scan) AS scan, "
            f"coalesce(sum(__einsql_put({own.number}, scan, {columns})), 0)::BIGINT AS total "
            f"FROM {in_quotes(name)} AS {_ROW}, {in_quotes(scans)} AS __einsql_scans"
        )
    return (
        f"{select} WHERE coalesce(0 IN (SELECT __einsql_read({query.number}, "
        f"list([total, scan] ORDER BY part)) FROM ({' UNION ALL '.join(parts)})), true)"
    )


# ---- functions of DuckDB


def _probes(number: int, text: str) -> list[str]:
    return _of(number).probes(text, _caller())


def _bound(number: int, text: str, answers: list[str]) -> str:
    return _of(number).bound(text, answers, _caller())


def _of(number: int) -> TableFunction:
    function = _functions.get(number)
    if function is None:
        raise OperationalError("einsql is detached", hint="einsql.attach() the connection again.")
    return function


def _caller() -> FrameType | None:
    """The frame of the user's code that runs the statement."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] != "duckdb" and not module.startswith(__package__):
            break
        frame = frame.f_back
    return frame
