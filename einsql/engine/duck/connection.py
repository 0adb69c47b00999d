"""A session's DuckDB connection, made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import duckdb


class Duck:
    """One session's connection to the DuckDB database beneath it.

    Attributes:
        in_transaction: Whether a transaction runs; in DuckDB it begins when that is needed.
    """

    def __init__(self, open_: Callable[[], duckdb.DuckDBPyConnection]) -> None:
        self._open = open_
        self._con: duckdb.DuckDBPyConnection | None = None
        self.in_transaction = False

    @property
    def con(self) -> duckdb.DuckDBPyConnection:
        """The connection."""
        if self._con is None:
            self._con = self._open()
            if self.in_transaction:
                self._con.begin()
        return self._con

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Runs a statement of DuckDB's and gives its rows."""
        return self.con.execute(sql, list(parameters)).fetchall()

    def begin(self) -> None:
        """Starts a transaction."""
        if self._con is not None:
            self._con.begin()
        self.in_transaction = True

    def commit(self) -> None:
        """Commits the transaction."""
        begun, self.in_transaction = self.in_transaction, False
        if begun and self._con is not None:
            self._con.commit()

    def rollback(self) -> None:
        """Undoes the transaction."""
        begun, self.in_transaction = self.in_transaction, False
        if begun and self._con is not None:
            self._con.rollback()

    def close(self) -> None:
        """Closes the connection if it was made."""
        if self._con is not None:
            self._con.close()
            self._con = None
