"""A session's DuckDB connection, made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb


class Duck:
    """One session's connection to the DuckDB database beneath it.

    Attributes:
        in_transaction: Whether a DuckDB transaction runs.
    """

    def __init__(
        self, open_: Callable[[], duckdb.DuckDBPyConnection], lazy: bool = False
    ) -> None:  # fmt: skip
        """Remembers how to connect.

        Args:
            open_: Makes the connection.
            lazy: Whether transactions begin when the connection is first needed: right
                where no other session can commit meanwhile.
        """
        self._open = open_
        self._lazy = lazy
        self._con: duckdb.DuckDBPyConnection | None = None
        self.in_transaction = False

    @property
    def con(self) -> duckdb.DuckDBPyConnection:
        """The connection."""
        if self._con is None:
            self._con = self._open()
            if self.in_transaction:
                _start(self._con)
        return self._con

    def execute(self, sql: str, parameters: Sequence[object] = ()) -> duckdb.DuckDBPyConnection:
        """Runs a statement of DuckDB's."""
        return self.con.execute(sql, parameters)

    def begin(self) -> None:
        """Starts a transaction that sees what is committed at this moment."""
        if self._con is not None or not self._lazy:
            _start(self.con)
        self.in_transaction = True

    def commit(self) -> None:
        """Commits the transaction."""
        self.in_transaction = False
        if self._con is not None:
            self._con.execute("COMMIT")

    def rollback(self) -> None:
        """Undoes the transaction, also where DuckDB has given it up already."""
        self.in_transaction = False
        if self._con is not None:
            with suppress(Exception):  # it says that there is none any more
                self._con.rollback()

    def close(self) -> None:
        """Closes the connection if it was made."""
        if self._con is not None:
            self._con.close()
            self._con = None


def _start(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("BEGIN TRANSACTION")
    # DuckDB takes the snapshot when a transaction first looks at the database.
    con.execute("SELECT txid_current()").fetchall()
