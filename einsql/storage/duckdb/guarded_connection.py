"""A DuckDB connection that reaches no file of the database's own while external access is off.

DuckDB itself lets SQL open the files of the databases that are attached, and its directory for
temporary files: it opens them itself under the same rule. So the texts are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from einsql.core.lazy_module import lazy_modules
from einsql.errors import OperationalError
from einsql.storage.duckdb.protected_files import OwnFiles

if TYPE_CHECKING:
    import duckdb

    from einsql.storage.duckdb import duckdb_tokens, file_references
else:  # loaded for SQL that DuckDB runs without external access
    duckdb_tokens, file_references = lazy_modules(
        "einsql.storage.duckdb", "duckdb_tokens", "file_references"
    )

T = TypeVar("T")

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


_CHANGING = frozenset({"ATTACH", "ALTER", "DATABASE"})
"""Words of statements that may put definitions under names that have not been checked there.

CREATE is none of them: what it defines is checked before.
"""

Texts = dict[str, set[str]]
"""Texts of definitions by their names in small letters."""


_Used: TypeAlias = tuple[str, int | None, str, bool]
"""A text inside another, its place, what to say before a refusal, whether it is statements."""


class Access:
    """Whether SQL may reach files, for all sessions of a database.

    Attributes:
        off: Whether it may not. DuckDB does not turn it on again.
        changes: How many statements have run that `_CHANGING` tells of.
    """

    def __init__(self) -> None:
        self.off = False
        self.changes = 0


class Checked:
    """Stands for a connection; a text is checked when it is first run.

    Args:
        con: The connection.
        access: What its database's sessions share.
    """

    def __init__(self, con: duckdb.DuckDBPyConnection, access: Access) -> None:
        self._con = con
        self._access = access
        self._changes = -1
        self._harmless: dict[str, bool] = {}
        """Texts that may run, and whether they may change what others mean."""
        self._defined: Texts = {}
        """Every text that a name has had: one that is gone may come back by ROLLBACK."""
        self._own = OwnFiles((), ())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._con, name)

    def execute(self, text: str, parameters: object = None) -> duckdb.DuckDBPyConnection:
        """As the connection's own.

        Raises:
            OperationalError: The text would reach one of the database's own files.
        """
        return self._run(text, lambda: self._con.execute(text, parameters))

    def sql(self, text: str, params: object = None) -> duckdb.DuckDBPyRelation:
        """As the connection's own.

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
        """Refuses a text that would reach one of the database's own files.

        Returns:
            Whether it may change what other texts mean.

        Raises:
            OperationalError: It would, or it does what is off, or a path in it is no constant.
        """
        changes = self._access.changes
        if changes != self._changes:
            self._look_again()
            self._changes = changes
        known = self._harmless.get(text)
        if known is not None:
            return known
        try:
            changing = self._refuse(text, set(), 0, self._defined)
        except OperationalError:
            self._refuse(text, set(), 0, {})
            # A definition may be another one now; but ROLLBACK may bring the old one back.
            return self._refuse(text, set(), 0, self._texts(_DEFINED))
        if len(self._harmless) >= _KEPT:
            self._harmless.clear()
        self._harmless[text] = changing
        return changing

    def _look_again(self) -> None:
        """Reads which definitions and files there are now."""
        self._harmless.clear()
        for name, texts in self._texts(_DEFINED).items():
            self._defined.setdefault(name, set()).update(texts)
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

    def _texts(self, query: str) -> Texts:
        texts: Texts = {}
        for name, text in self._con.execute(query).fetchall():
            texts.setdefault(name, set()).add(text or "")
        return texts

    def _refuse(
        self, text: str, seen: set[str], depth: int, defined: Texts, whole: bool = True
    ) -> bool:
        """Refuses a text, or what it uses.

        Args:
            text: Statements, or the body of a macro.
            seen: Names of definitions that have been read; those that are read now are added.
            depth: How deep the text is inside others.
            defined: Texts of views, macros and triggers.
            whole: Whether it is statements.

        Returns:
            Whether it may change what other texts mean.
        """
        changing = False
        if depth > _DEEPEST:
            raise file_references.refused(f"Definitions nest deeper than {_DEEPEST}", None)
        for tokens in duckdb_tokens.statements(text):
            references = file_references.targets(tokens, self._functions, self._numbers, whole)
            changing |= any(token.word in _CHANGING for token in tokens)
            for path, at in references.paths:
                if not self._own.may_search(path):
                    what = f"'{path}' is in no directory that is allowed"
                    raise file_references.refused(what, at)
                if self._own.reached(path):
                    raise file_references.refused(f"'{path}' reaches the database's own files", at)
            used: list[_Used] = [(query, at, "", True) for query, at in references.queries]
            used += _used(defined, references.names, seen, False)
            if any(token.word == "EXECUTE" for token in tokens):
                used += _used(self._texts(_PREPARED), references.names, seen, True)
            for inner, place, where, is_whole in used:
                try:
                    changing |= self._refuse(inner, seen, depth + 1, defined, is_whole)
                except OperationalError as error:
                    reason = where + error.reason
                    raise OperationalError(reason, hint=error.hint, position=place) from None
        return changing


def _used(texts: Texts, names: set[str], seen: set[str], whole: bool) -> list[_Used]:
    """The texts of names that have not been read."""
    new = sorted(names & texts.keys() - seen)
    seen.update(new)
    return [(text, None, f'"{name}": ', whole) for name in new for text in sorted(texts[name])]
