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
    """Turns DuckDB's profiling on for the user's statements only, if the user has enabled it.

    DuckDB keeps the format and the file of the profiles while profiling is off.
    """

    def __init__(self) -> None:
        self._on = False

    def suspend(self, con: duckdb.DuckDBPyConnection) -> None:
        """Records whether profiling is on, and turns it off until the next statement.

        Args:
            con: The session's connection, on which a statement may have changed the setting.
        """
        self._on = json.loads(con.get_profiling_information()) != _OFF
        if self._on:
            con.disable_profiling()

    @contextmanager
    def of(self, con: duckdb.DuckDBPyConnection, may_change: bool) -> Iterator[None]:
        """Profiles DuckDB's statements within the context, if the user has enabled profiling.

        Args:
            con: The session's connection.
            may_change: Whether the statements may change the setting.
        """
        if self._on:
            con.enable_profiling()
        try:
            yield
        finally:
            if self._on or may_change:
                self.suspend(con)
