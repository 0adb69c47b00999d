"""The DuckDB database that a session is attached to: its tables and what it allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any
from weakref import ref

from einsql.core.quoting import in_quotes
from einsql.errors import InterfaceError
from einsql.frontends.duckdb.tables import read_table
from einsql.storage.host_arrays import array_in_scope
from einsql.storage.out_of_memory import enough_memory
from einsql.storage.relation import Relation

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


class UserDatabase:
    """The database of a user's connection, as the session of an attachment sees it.

    Args:
        connection: The user's connection, which this object does not keep.
    """

    def __init__(self, connection: DuckDBPyConnection) -> None:
        self._connection = ref(connection)

    def table(self, name: str, frame: FrameType | None) -> Relation | None:
        """A table or view of the database, or a caller's variable that DuckDB can read.

        Args:
            name: The name in FROM.
            frame: The frame with the variables; None for no variables.
        """
        import duckdb

        connection, text = self._open(), f"FROM {in_quotes(name)}"
        for place in (None, frame):
            if place is None or array_in_scope(frame, name) is None:
                try:
                    table = in_frame(partial(connection.sql, text), place, {})
                except (duckdb.CatalogException, duckdb.InvalidInputException):
                    continue  # the name is unknown, or the variable is no table
                with enough_memory:
                    return read_table(name, table)
        return None

    def allows_files(self) -> bool:
        """Whether DuckDB's setting enable_external_access is on; no statement turns it on again.

        Raises:
            InterfaceError: The connection is closed.
        """
        with connected():
            cursor = self._open().cursor()  # the connection itself may have an unfinished result
            try:
                asked = "SELECT current_setting('enable_external_access')"
                return bool(cursor.execute(asked).fetchall()[0][0])
            finally:
                cursor.close()

    def _open(self) -> DuckDBPyConnection:
        connection = self._connection()
        if connection is None:
            raise _closed()
        return connection


def _closed() -> InterfaceError:
    return InterfaceError("The DuckDB connection is closed", hint="einsql.attach() an open one.")


@contextmanager
def connected() -> Iterator[None]:
    """Translates DuckDB's error of a closed connection."""
    import duckdb

    try:
        yield
    except duckdb.ConnectionException as error:
        if "closed" not in str(error):
            raise
        raise _closed() from None


_CALL: CodeType = compile("__einsql__()", "<einsql>", "eval")


def in_frame(run: Callable[[], Any], frame: FrameType | None, known: Mapping[str, Any]) -> Any:
    """Calls DuckDB on behalf of a frame, whose variables DuckDB can read as tables.

    Args:
        run: Function that calls DuckDB directly, without another Python frame.
        frame: The frame with the variables; None for no variables.
        known: Tables by name that take precedence over variables.
    """
    own = {**known, "__einsql__": run}
    if frame is None:
        return eval(_CALL, {}, own)
    return eval(_CALL, frame.f_globals, {**frame.f_locals, **own})
