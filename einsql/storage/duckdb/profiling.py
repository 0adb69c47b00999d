"""DuckDB's profiles of the user's statements, without einsql's own queries."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule

if TYPE_CHECKING:
    import json

    import duckdb
else:  # loaded for statements that DuckDB runs
    json = LazyModule("json")

_OFF = {"result": "disabled"}


class Profiling:
    """Whether the user has asked for profiles; DuckDB makes them for the user's statements alone.

    DuckDB keeps the format and the file of the profiles while it makes none.
    """

    def __init__(self) -> None:
        self._on = False

    def look(self, con: duckdb.DuckDBPyConnection) -> None:
        """Finds out whether profiling is on now, and lets it rest until a statement is run.

        Args:
            con: The session's connection, on which a statement may have changed the setting.
        """
        self._on = json.loads(con.get_profiling_information()) != _OFF
        if self._on:
            con.disable_profiling()

    @contextmanager
    def of(self, con: duckdb.DuckDBPyConnection, may_change: bool) -> Iterator[None]:
        """Meanwhile DuckDB profiles what it runs, if the user has asked for that.

        Args:
            con: The session's connection.
            may_change: Whether what it runs may change the setting.
        """
        if self._on:
            con.enable_profiling()
        try:
            yield
        finally:
            if self._on or may_change:
                self.look(con)
