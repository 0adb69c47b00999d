"""What may stand at the cursor: commands, keywords, functions, tensors and their columns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from einsql.console.commands import COMMANDS
from einsql.console.render import MODES
from einsql.errors import Error
from einsql.sql.aggregates import AGGREGATE_NAMES
from einsql.sql.scalar import FUNCTION_NAMES
from einsql.sql.tiles.names import FUNCTIONS as TILE_FUNCTIONS
from einsql.sql.tiles.names import TABLE_FUNCTIONS

if TYPE_CHECKING:
    from einsql.console.shell import Shell

KEYWORDS = [
    "ALL", "ANALYZE", "AND", "AS", "ASC", "BEGIN", "BETWEEN", "BFLOAT16", "BIGINT",
    "BOOLEAN", "BY",
    "CALIBRATE", "CASE", "CAST", "COMMIT", "COPY", "CREATE", "CROSS", "DEFAULT", "DELETE", "DESC",
    "DESCRIBE", "DIM",
    "DISTINCT", "DOUBLE", "DROP", "EINSUM", "ELSE", "END", "EXISTS", "EXPLAIN", "FALSE", "FILTER",
    "FLOAT", "FORMAT", "FROM", "GROUP", "HALF", "HAVING", "IF", "IN", "INSERT",
    "INTEGER", "INTO", "IS", "JOIN", "LEFT", "LIMIT", "MACRO", "NATURAL", "NOT", "NULL", "ON",
    "OR", "ORDER", "OVER", "PARTITION", "READ_TENSOR", "REPLACE", "ROLLBACK", "SELECT", "SET",
    "SETTINGS", "SHOW", "SIMULATE", "TABLE", "TENSOR", "TENSORS", "THEN", "TRUE", "UNION", "UPDATE",
    "USING", "VALUES", "VERBOSE", "VIEW", "WHEN", "WHERE", "WITH",
]  # fmt: skip

_NAMES = (*FUNCTION_NAMES, *AGGREGATE_NAMES, *TILE_FUNCTIONS, *TABLE_FUNCTIONS)
_FUNCTIONS = [name.upper() for name in _NAMES]
_RESPELLED = {*KEYWORDS, *_FUNCTIONS}

_WORD = re.compile(r"\w*\Z")
_COMMAND = re.compile(r"\.(\w*)\Z")
_MODE = re.compile(r"\.mode +(\w*)\Z")


class Vocabulary:
    """The words of one session; the catalog's are read again after each statement."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._columns: dict[str, list[str]] | None = None

    def refresh(self) -> None:
        """Forgets the catalog: a statement may have changed it."""
        self._columns = None

    def complete(self, before: str) -> tuple[int, list[str]]:
        """How many characters before the cursor are replaced, and by which words."""
        if mode := _MODE.match(before):
            return len(mode[1]), _starting(mode[1], MODES)
        if command := _COMMAND.match(before):
            return len(command[1]), _starting(command[1], COMMANDS)
        word = _WORD.search(before)
        assert word is not None  # the pattern matches the empty text
        if before[: word.start()].endswith("."):
            owner = _WORD.search(before[: word.start() - 1])
            columns = self._catalog().get(owner[0], []) if owner else []
            return len(word[0]), _starting(word[0], columns or self._all_columns())
        if not word[0]:
            return 0, []
        names = [*self._catalog(), *self._all_columns()]
        return len(word[0]), _starting(word[0], [*names, *KEYWORDS, *_FUNCTIONS])

    def _all_columns(self) -> list[str]:
        return sorted({c for columns in self._catalog().values() for c in columns})

    def _catalog(self) -> dict[str, list[str]]:
        if self._columns is None:
            try:
                self._columns = {
                    name: [column for column, _, _ in self._shell.describe(name)]
                    for name in self._shell.tensors()
                }
            except Error:
                self._columns = {}  # completion stays silent; a statement will say what is wrong
        return self._columns


def _starting(prefix: str, words: Iterable[str]) -> list[str]:
    """The words beginning with the prefix in any case; keywords follow the prefix's case."""
    lower = prefix.islower()
    found = dict.fromkeys(w for w in words if w.lower().startswith(prefix.lower()))
    return [w.lower() if lower and w in _RESPELLED else w for w in found]
