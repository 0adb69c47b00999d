"""Long lists of literals behind IN, and long texts, are not parsed: DuckDB reads the original.

sqlglot needs some 10 µs and a kilobyte for each token, so a list of 100,000 numbers would take
seconds, and a tensor kernel would compare each element with each of them. A text of a megabyte
is read character by character for each pass over the tokens. Both are replaced, before the
statement is tokenized, by a call of the same length. The binder refuses the call, and the
statement runs in DuckDB, which builds a hash table of a list.
"""

from __future__ import annotations

import re

from einsql.sql.parser.lexical import QUIET

LEAST = 1000
"""Literals of a list that is replaced. Binding and compiling fewer takes under 0.2 s."""
LONGEST_TEXT = 2**20
"""Characters of the longest quoted text that is parsed; sqlglot needs 0.1 µs for each."""
STAND_IN = "__einsql_long_literal"
"""The function whose call replaces such a literal."""
_SHORTEST = 2 * LEAST
"""Characters of the shortest text that can hold such a list."""
_LITERAL = r"(?:[-+]?(?:\d[\d_]*+\.?+\d*+|\.\d++)(?:[eE][-+]?\d++)?+|'(?:[^']++|'')*+')"
_LONG = re.compile(
    rf"""(?<![\w$"'])(?P<text> '(?:[^']++|'')*+' ) | {QUIET} | (?<![\w$."]) IN \s*+ \( (?P<list>
    \s*+ {_LITERAL} \s*+ (?: , \s*+ {_LITERAL} \s*+ ){{{LEAST - 1},}}+ ) \)""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def without_long_literals(sql: str) -> str:
    """The text with long lists and long texts replaced by calls of the same length."""
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
