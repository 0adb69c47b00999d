"""A DuckDB connection that reaches no file of the database's own while external access is off.

DuckDB itself lets SQL open the files of the databases that are attached, and its directory for
temporary files: it opens them itself under the same rule. So the texts are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from einsql.engine.duck.lexemes import statements
from einsql.engine.duck.own_files import OwnFiles
from einsql.engine.duck.targets import refused, targets
from einsql.errors import OperationalError

if TYPE_CHECKING:
    import duckdb

_KEPT = 1024
"""Texts that are remembered as harmless; einsql itself has fewer than a hundred."""
_DEEPEST = 32
"""How deep texts that run texts, views that read views and the like may nest."""

_DEFINED = (
    "SELECT lower(view_name), sql FROM duckdb_views() WHERE NOT internal "
    "AND NOT (database_name = 'temp' AND starts_with(view_name, '__einsql_')) UNION ALL "
    "SELECT lower(function_name), macro_definition FROM duckdb_functions() "
    "WHERE NOT internal AND macro_definition IS NOT NULL UNION ALL "
    "SELECT lower(table_name), sql FROM duckdb_triggers()"
)
_PREPARED = "SELECT lower(name), statement FROM duckdb_prepared_statements()"
_FUNCTIONS = (
    "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE function_type = 'table'"
)
_NUMBERS = (
    "SELECT lower(name) FROM duckdb_settings() WHERE input_type IN "
    "('BIGINT', 'UBIGINT', 'INTEGER', 'UINTEGER', 'DOUBLE', 'FLOAT')"
)
_PLACES = (
    "SELECT current_setting('temp_directory'), current_setting('file_search_path'), "
    "current_setting('home_directory'), current_setting('allowed_directories')"
)
_ATTACHED = "SELECT path FROM duckdb_databases() WHERE path IS NOT NULL"


class Access:
    """Whether SQL may reach files, for all sessions of a database.

    Attributes:
        off: Whether it may not. DuckDB does not turn it on again.
    """

    def __init__(self) -> None:
        self.off = False


class Checked:
    """Stands for a connection; a text is checked when it is first run.

    Args:
        con: The connection.
        version: Gives another object whenever definitions may have changed.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, version: Callable[[], object]) -> None:
        self._con = con
        self._version = version
        self._seen: object = None
        self._harmless: set[str] = set()
        self._defined: dict[str, list[str]] = {}
        self._own = OwnFiles((), ())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._con, name)

    def execute(self, text: str, parameters: object = None) -> duckdb.DuckDBPyConnection:
        """As the connection's own.

        Raises:
            OperationalError: The text would reach one of the database's own files.
        """
        self.check(text)
        return self._con.execute(text, parameters)

    def sql(self, text: str, params: object = None) -> duckdb.DuckDBPyRelation:
        """As the connection's own.

        Raises:
            OperationalError: As `execute`.
        """
        self.check(text)
        return self._con.sql(text, params=params)

    def check(self, text: str) -> None:
        """Refuses a text that would reach one of the database's own files.

        Raises:
            OperationalError: It would, or it does what is off, or a path in it is no constant.
        """
        version = self._version()
        if version is not self._seen:
            self._look_again()
            self._seen = version
        if text in self._harmless:
            return
        self._refuse(text, set(), 0)
        if len(self._harmless) >= _KEPT:
            self._harmless.clear()
        self._harmless.add(text)

    def _look_again(self) -> None:
        """Reads which definitions and files there are now."""
        self._harmless.clear()
        self._defined = self._texts(_DEFINED)
        ((temporary, search, home, allowed),) = self._con.execute(_PLACES).fetchall()
        databases = [path for (path,) in self._con.execute(_ATTACHED).fetchall()]
        self._own = OwnFiles(
            databases,
            [temporary] if temporary else [],
            [folder for folder in (search or "").split(",") if folder],
            home or "",
            allowed or [],
        )

    @cached_property
    def _functions(self) -> frozenset[str]:
        """Names of table functions."""
        return self._names(_FUNCTIONS)

    @cached_property
    def _numbers(self) -> frozenset[str]:
        """Names of settings that are numbers."""
        return self._names(_NUMBERS)

    def _names(self, query: str) -> frozenset[str]:
        return frozenset(name for (name,) in self._con.execute(query).fetchall())

    def _texts(self, query: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for name, text in self._con.execute(query).fetchall():
            found.setdefault(name, []).append(text or "")
        return found

    def _refuse(self, text: str, seen: set[str], depth: int, whole: bool = True) -> None:
        """Refuses a text, or what it uses; `seen` has the names of definitions that were read."""
        if depth > _DEEPEST:
            raise refused(f"Definitions nest deeper than {_DEEPEST}", None)
        for tokens in statements(text):
            found = targets(tokens, self._functions, self._numbers, whole)
            for path, at in found.paths:
                if not self._own.may_search(path):
                    raise refused(f"'{path}' is in no directory that is allowed", at)
                if self._own.reached(path):
                    raise refused(f"'{path}' reaches the database's own files", at)
            for query, at in found.queries:
                self._refuse_within(query, seen, depth, at)
            self._refuse_used(self._defined, found.names, seen, depth, False)
            if any(token.word == "EXECUTE" for token in tokens):
                self._refuse_used(self._texts(_PREPARED), found.names, seen, depth, True)

    def _refuse_used(
        self, texts: dict[str, list[str]], names: set[str], seen: set[str], depth: int, whole: bool
    ) -> None:
        for name in sorted(names & texts.keys() - seen):
            seen.add(name)
            for text in texts[name]:
                self._refuse_within(text, seen, depth, None, f'"{name}": ', whole)

    def _refuse_within(
        self, text: str, seen: set[str], depth: int, at: int | None, where: str = "",
        whole: bool = True,
    ) -> None:  # fmt: skip
        """Refuses a text inside another one, at that one's place."""
        try:
            self._refuse(text, seen, depth + 1, whole)
        except OperationalError as error:
            raise OperationalError(where + error.reason, hint=error.hint, position=at) from None
