"""A DuckDB connection that refuses statements on the database's files while external access is off.

DuckDB's own rule must permit the files of attached databases and the directory for temporary
files, as it applies to DuckDB's own accesses, too. So the texts of statements are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from einsql.core.lazy_module import LazyModule, lazy_modules
from einsql.core.records import cached_property
from einsql.errors import OperationalError

if TYPE_CHECKING:
    import duckdb

    from einsql.storage.duckdb import duckdb_tokens, file_references
    from einsql.storage.duckdb import protected_files as _protected
else:  # loaded for SQL that DuckDB runs without external access
    duckdb_tokens, file_references = lazy_modules(
        "einsql.storage.duckdb", "duckdb_tokens", "file_references"
    )
    _protected = LazyModule("einsql.storage.duckdb.protected_files")

T = TypeVar("T")

_MOST_CACHED = 1024
"""Size of the cache of permitted texts; einsql itself has fewer than a hundred."""
_DEEPEST = 32
"""Greatest nesting of queries in strings, views that use views, and similar references."""

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


_CHANGING = frozenset({"ATTACH", "ALTER", "DATABASE"})
"""Words of statements that may bind names to definitions without a check.

CREATE is not included, as the definition in it is checked.
"""

Texts = dict[str, set[str]]
"""Texts of definitions by their lower-case names."""


_Used: TypeAlias = tuple[str, int | None, str, bool]
"""A nested text, its offset, a prefix for errors, and whether it is a list of statements."""


class Access:
    """Whether SQL may access files, for all sessions of a database.

    Attributes:
        off: Whether access is off. DuckDB does not turn it on again.
        changes: The number of executed statements with a word of `_CHANGING`.
    """

    def __init__(self) -> None:
        self.off = False
        self.changes = 0


class GuardedConnection:
    """Wraps a connection and checks each text before its first execution.

    Args:
        con: The connection.
        access: The access to files, shared by the sessions of the database.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, access: Access) -> None:
        self._con = con
        self._access = access
        self._changes = -1
        self._permitted: dict[str, bool] = {}
        """Permitted texts, and whether they may change the meaning of other texts."""
        self._defined: Texts = {}
        """All texts that a name has had, as a ROLLBACK may restore an earlier one."""
        self._own = _protected.OwnFiles((), ())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._con, name)

    def execute(self, text: str, parameters: object = None) -> duckdb.DuckDBPyConnection:
        """Checks and executes a text.

        Raises:
            OperationalError: The text refers to a file of the database.
        """
        return self._run(text, lambda: self._con.execute(text, parameters))

    def sql(self, text: str, params: object = None) -> duckdb.DuckDBPyRelation:
        """Checks a query and returns its relation.

        Raises:
            OperationalError: As `execute`.
        """
        return self._run(text, lambda: self._con.sql(text, params=params))

    def _run(self, text: str, work: Callable[[], T]) -> T:
        if not self._check(text):
            return work()
        try:
            return work()
        finally:
            self._access.changes += 1

    def _check(self, text: str) -> bool:
        """Refuses a text that refers to a file of the database.

        Returns:
            Whether the text may change the meaning of other texts.

        Raises:
            OperationalError: The text refers to such a file, is not permitted while external
                access is off, or has a path that is not a constant.
        """
        changes = self._access.changes
        if changes != self._changes:
            self._reload()
            self._changes = changes
        known = self._permitted.get(text)
        if known is not None:
            return known
        try:
            changing = self._refuse(text, set(), 0, self._defined)
        except OperationalError:
            self._refuse(text, set(), 0, {})
            # A definition may have changed, but ROLLBACK may restore the earlier one.
            return self._refuse(text, set(), 0, self._texts(_DEFINED))
        if len(self._permitted) >= _MOST_CACHED:
            self._permitted.clear()
        self._permitted[text] = changing
        return changing

    def _reload(self) -> None:
        self._permitted.clear()
        for name, texts in self._texts(_DEFINED).items():
            self._defined.setdefault(name, set()).update(texts)
        ((temporary, search, home, allowed),) = self._con.execute(_PLACES).fetchall()
        databases = [path for (path,) in self._con.execute(_ATTACHED).fetchall()]
        self._own = _protected.OwnFiles(
            databases,
            [temporary] if temporary else [],
            [folder for folder in (search or "").split(",") if folder],
            home or "",
            allowed or [],
        )

    @cached_property
    def _functions(self) -> frozenset[str]:
        return self._names(_FUNCTIONS)

    @cached_property
    def _numbers(self) -> frozenset[str]:
        return self._names(_NUMBERS)

    def _names(self, query: str) -> frozenset[str]:
        return frozenset(name for (name,) in self._con.execute(query).fetchall())

    def _texts(self, query: str) -> Texts:
        texts: Texts = {}
        for name, text in self._con.execute(query).fetchall():
            texts.setdefault(name, set()).add(text or "")
        return texts

    def _refuse(
        self, text: str, seen: set[str], depth: int, defined: Texts, is_statement: bool = True
    ) -> bool:
        """Refuses a text that refers to a file of the database, directly or by its definitions.

        Args:
            text: Statements, or the body of a macro.
            seen: Names of the definitions that have been checked; receives further ones.
            depth: The nesting depth of the text.
            defined: Texts of views, macros and triggers.
            is_statement: Whether the text is a list of statements.

        Returns:
            Whether the text may change the meaning of other texts.
        """
        changing = False
        if depth > _DEEPEST:
            raise file_references.refused(f"Definitions nest deeper than {_DEEPEST}", None)
        for tokens in duckdb_tokens.statements(text):
            references = file_references.targets(
                tokens, self._functions, self._numbers, is_statement
            )
            changing |= any(token.word in _CHANGING for token in tokens)
            for path, at in references.paths:
                if not self._own.may_search(path):
                    what = f"'{path}' is outside of the allowed directories"
                    raise file_references.refused(what, at)
                if self._own.reached(path):
                    raise file_references.refused(f"'{path}' reaches the database's own files", at)
            used: list[_Used] = [(query, at, "", True) for query, at in references.queries]
            used += _used(defined, references.names, seen, False)
            if any(token.word == "EXECUTE" for token in tokens):
                used += _used(self._texts(_PREPARED), references.names, seen, True)
            for inner, place, where, is_inner_statement in used:
                try:
                    changing |= self._refuse(inner, seen, depth + 1, defined, is_inner_statement)
                except OperationalError as error:
                    reason = where + error.reason
                    raise OperationalError(reason, hint=error.hint, position=place) from None
        return changing


def _used(texts: Texts, names: set[str], seen: set[str], is_statement: bool) -> list[_Used]:
    new = sorted(names & texts.keys() - seen)
    seen.update(new)
    return [
        (text, None, f'"{name}": ', is_statement) for name in new for text in sorted(texts[name])
    ]
