"""DuckDB's grammar decides what is SQL: sqlglot forgives what must not be run.

Half a statement may be a whole one to sqlglot (`DELETE FROM x WHERE v NOT IN`), and a
stray comma nothing at all. DuckDB only parses here; it sees no table and runs nothing.
"""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from importlib import import_module
from typing import Any

from einsql.errors import ProgrammingError
from einsql.sql.lexical import QUIET

_LOCK = threading.Lock()
_CARET = re.compile(r"LINE (\d+): (.*)\n( *)\^", re.DOTALL)
_EXPONENT = re.compile(r"[\d.][eE]\d+[+-]")
_EXPONENTS = re.compile(
    rf"{QUIET} | (?P<number> (?<![\w$]) [\d.][\d_.]* [eE] \d+ (?=[+-]) )", re.VERBOSE | re.DOTALL
)


@lru_cache(maxsize=1)
def _duckdb() -> Any:
    """DuckDB's native module; the package around it takes 40 ms more, for tables."""
    try:
        return import_module("_duckdb")
    except ImportError:
        return import_module("duckdb")


@lru_cache(maxsize=1)
def _parser() -> Any:
    return _duckdb().connect(":memory:")


def check_grammar(text: str) -> None:
    """Refuses what is no SQL statement.

    Raises:
        ProgrammingError: With the position in the text.
    """
    try:
        with _LOCK:
            _parser().extract_statements(text)
    except _duckdb().ParserException as error:
        message = str(error)
        reason = message.split("\n")[0].removeprefix("Parser Error: ").strip()
        raise ProgrammingError(
            f"Syntax error: {reason.removeprefix('syntax error ').rstrip('!')}",
            position=_position(text, message),
        ) from None


def _position(text: str, message: str) -> int | None:
    found = _CARET.search(message)
    if found is None or found[2].startswith("..."):  # DuckDB shows part of a long line
        return None
    before = text.split("\n")[: int(found[1]) - 1]
    return sum(len(line) + 1 for line in before) + len(found[3]) - len(f"LINE {found[1]}: ")


def spaced(text: str) -> tuple[str, list[int]]:
    """The text with a blank behind every exponent that a sign follows.

    sqlglot takes `2e0+1` for one number. Quotes and comments are left alone.

    Returns:
        The text, and the offsets in it of the blanks.
    """
    if _EXPONENT.search(text) is None:
        return text, []
    parts: list[str] = []
    blanks: list[int] = []
    last = 0
    for found in _EXPONENTS.finditer(text):
        if found["number"]:
            parts.append(text[last : found.end()])
            last = found.end()
            blanks.append(last + len(blanks))
    return " ".join([*parts, text[last:]]), blanks
