"""Checks statements with DuckDB's grammar, because sqlglot accepts text that is not SQL.

sqlglot accepts some incomplete statements (`DELETE FROM x WHERE v NOT IN`) and ignores stray
commas. DuckDB only parses the text here: it reads no table and runs no statement. It is not loaded
for frequent queries.
"""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from importlib import import_module
from typing import Any

from einsql.core import forks
from einsql.errors import ProgrammingError, pointed_at
from einsql.sql.parser.frequent_queries import is_frequent
from einsql.sql.parser.lexical import QUIET

_CARET = re.compile(r"LINE (\d+): (.*)\n( *)\^", re.DOTALL)
_EXPONENT = re.compile(r"[\d.][eE]\d+[+-]")
_EXPONENTS = re.compile(
    rf"{QUIET} | (?P<number> (?<![\w$]) [\d.][\d_.]* [eE] \d+ (?=[+-]) )", re.VERBOSE | re.DOTALL
)
_POSITIVE = re.compile(r"\+\s*\d")
_CLAUSES = re.compile(
    rf"""{QUIET} | (?P<group> \bGROUP\s+BY\b ) | (?P<open> \( ) | (?P<close> \) ) | (?P<comma> , )
    | (?P<end> ; | \b(?:HAVING|QUALIFY|WINDOW|ORDER|LIMIT|UNION|EXCEPT|INTERSECT)\b )
    | (?P<plus> \+ (?=\s*\d) )""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_SPECIAL = re.compile(
    rf"""{QUIET} | (?P<in_from> (?: \b(?:FROM|JOIN)\b | , ) \s* )
    (?P<word> COALESCE | NULLIF ) (?= \s*+ \( \s*+ [^\s)] )""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


@lru_cache(maxsize=1)
def _duckdb() -> Any:
    """DuckDB's native module. Importing the whole package would take 40 ms more."""
    try:
        return import_module("_duckdb")
    except ImportError:
        return import_module("duckdb")


class _Parser:
    """A process's DuckDB connection for parsing, and its lock."""

    def __init__(self, _: object) -> None:
        self.connection = _duckdb().connect(":memory:")
        self.lock = threading.Lock()


_parser = forks.PerProcess(_Parser)


def check_grammar(text: str) -> None:
    """Requires that DuckDB's grammar accepts a text.

    Raises:
        ProgrammingError: A syntax error, with its position in the text.
    """
    if is_frequent(text):
        return
    message = _message(text)
    if message is not None and _message(_SPECIAL.sub(_as_name, text)) is not None:
        reason = message.split("\n")[0].removeprefix("Parser Error: ").strip()
        raise ProgrammingError(
            f"Syntax error: {reason.removeprefix('syntax error ').rstrip('!')}",
            position=_position(text, message),
        )


def _message(text: str) -> str | None:
    """DuckDB's message about a text's syntax, or None if DuckDB accepts the text."""
    parser = _parser.get()
    try:
        with parser.lock:
            parser.connection.extract_statements(text)
    except _duckdb().ParserException as error:
        return str(error)
    return None


def _as_name(found: re.Match[str]) -> str:
    """Replaces COALESCE and NULLIF in FROM, where DuckDB's grammar allows only other names."""
    return found[0] if found["word"] is None else f"{found['in_from']}f"


def _position(text: str, message: str) -> int | None:
    caret = _CARET.search(message)
    if caret is None:
        return None
    column = len(caret[3]) - len(f"LINE {caret[1]}: ")
    return pointed_at(text, int(caret[1]), caret[2], column)


def spaced(text: str) -> tuple[str, list[int]]:
    """Inserts characters where sqlglot would misread the text.

    An exponent before a sign is followed by a blank, because sqlglot reads `2e0+1` as one number.
    A zero precedes `+1` in GROUP BY: it is a constant there, but sqlglot drops the sign and reads
    the number of a SELECT item. Quotes and comments are unchanged.

    Returns:
        The new text, and the offsets of the inserted characters in it.
    """
    inserted: dict[int, str] = {}
    if _EXPONENT.search(text) is not None:
        inserted |= {f.end(): " " for f in _EXPONENTS.finditer(text) if f["number"]}
    if _POSITIVE.search(text) is not None:
        inserted |= dict.fromkeys(_positives(text), "0")
    parts: list[str] = []
    last = 0
    for at in sorted(inserted):
        parts += [text[last:at], inserted[at]]
        last = at
    return "".join([*parts, text[last:]]), [at + n for n, at in enumerate(sorted(inserted))]


def _positives(text: str) -> list[int]:
    """Offsets of the plus signs that begin a number in a GROUP BY list."""
    offsets: list[int] = []
    lists: list[int] = []  # depths at which a GROUP BY list is open
    depth, before = 0, -1
    for m in _CLAUSES.finditer(text):
        kind = m.lastgroup
        depth += (kind == "open") - (kind == "close")
        while lists and depth < lists[-1]:
            lists.pop()
        here = bool(lists) and lists[-1] == depth
        if kind == "group":
            lists.append(depth)
        elif kind == "end" and here:
            lists.pop()
        elif kind == "plus" and here and before >= 0 and not text[before : m.start()].strip():
            offsets.append(m.start())
        is_comment = m[0].startswith(("--", "/*"))
        if kind == "group" or (kind == "comma" and here) or (is_comment and before >= 0):
            before = m.end()
        else:
            before = -1
    return offsets
