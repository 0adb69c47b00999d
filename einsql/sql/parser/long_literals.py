"""Long IN lists and long texts are not parsed: DuckDB runs the original statement.

sqlglot needs some 10 µs and a kilobyte for each token, so a list of 100,000 numbers would take
seconds. A tensor kernel would compare each element with each number. sqlglot reads a text of a
megabyte character by character in each pass over the tokens. Such a literal is replaced by a call
of the same length before the statement is tokenized. The binder refuses the call, and the statement
runs in DuckDB, which builds a hash table of a list.
"""

from __future__ import annotations

import re

from einsql.sql.parser.lexical import QUIET

LEAST = 1000
"""Least literals of a replaced list. Binding and compiling a shorter list takes under 0.2 s."""
LONGEST_TEXT = 2**20
"""Characters of the longest quoted text that is parsed; sqlglot needs 0.1 µs for a character."""
STAND_IN = "__einsql_long_literal"
"""The name of the function whose call replaces a long literal."""
_SHORTEST = 2 * LEAST
"""Characters of the shortest statement that can contain such a list."""
_LITERAL = r"(?:[-+]?(?:\d[\d_]*+\.?+\d*+|\.\d++)(?:[eE][-+]?\d++)?+|'(?:[^']++|'')*+')"
_LONG = re.compile(
    rf"""(?<![\w$"'])(?P<text> '(?:[^']++|'')*+' ) | {QUIET} | (?<![\w$."]) IN \s*+ \( (?P<list>
    \s*+ {_LITERAL} \s*+ (?: , \s*+ {_LITERAL} \s*+ ){{{LEAST - 1},}}+ ) \)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def without_long_literals(sql: str) -> str:
    """The statement with long lists and long texts replaced by calls of the same length."""
    if len(sql) < _SHORTEST:
        return sql
    parts: list[str] = []
    end = 0
    for match in _LONG.finditer(sql):
        group = "list" if match["list"] is not None else "text"
        text = match[group]
        if text is not None and (group == "list" or len(text) > LONGEST_TEXT):
            parts += [sql[end : match.start(group)], f"{STAND_IN}()".ljust(len(text))]
            end = match.end(group)
    return "".join([*parts, sql[end:]])
