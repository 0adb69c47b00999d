"""A tolerant tokenizer of SQL for highlighting and completion; it accepts incomplete text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from einsql.sql.functions.descriptions import AGGREGATE_NAMES, FUNCTION_NAMES
from einsql.sql.functions.table_functions import TABLE_FUNCTIONS as SOURCES
from einsql.sql.functions.table_functions import TABLE_MACROS
from einsql.sql.functions.tile_functions import FUNCTIONS as TILE_FUNCTIONS

KEYWORDS = [
    "AGGREGATE",
    "ALL",
    "ANALYZE",
    "AND",
    "AS",
    "ASC",
    "BACKUP",
    "BEGIN",
    "BETWEEN",
    "BFLOAT16",
    "BIGINT",
    "BOOLEAN",
    "BY",
    "CALIBRATE",
    "CASE",
    "CAST",
    "COMMIT",
    "COPY",
    "CREATE",
    "CROSS",
    "DATABASE",
    "DEFAULT",
    "DELETE",
    "DESC",
    "DESCRIBE",
    "DIM",
    "DISTINCT",
    "DO",
    "DOUBLE",
    "DROP",
    "EINSUM",
    "ELSE",
    "END",
    "EXISTS",
    "EXPLAIN",
    "EXPORT",
    "FALSE",
    "FILTER",
    "FLOAT",
    "FOR",
    "FORMAT",
    "FINISH",
    "FROM",
    "GROUP",
    "HALF",
    "HAVING",
    "IF",
    "IMPORT",
    "IN",
    "INSERT",
    "INTEGER",
    "INTEGRITY_CHECK",
    "INIT",
    "INTO",
    "IS",
    "JOIN",
    "LEFT",
    "LIFT",
    "LIMIT",
    "MACRO",
    "MERGE",
    "NATURAL",
    "NOT",
    "NULL",
    "ON",
    "OR",
    "ORDER",
    "OVER",
    "PARTIAL",
    "PARTITION",
    "PLAN",
    "PRAGMA",
    "READ_TENSOR",
    "REPLACE",
    "REPLICATE",
    "RESCALE",
    "RESET",
    "ROLLBACK",
    "SELECT",
    "SET",
    "SETTINGS",
    "SHOW",
    "SIMULATE",
    "TABLE",
    "TENSOR",
    "TENSORS",
    "THEN",
    "TO",
    "TRUE",
    "UNION",
    "UPDATE",
    "USING",
    "VACUUM",
    "VALUES",
    "VARCHAR",
    "VERBOSE",
    "VIEW",
    "WHEN",
    "WHERE",
    "WITH",
]

FUNCTIONS = sorted({n.upper() for n in (*FUNCTION_NAMES, *AGGREGATE_NAMES, *TILE_FUNCTIONS)})

TABLE_FUNCTIONS = sorted({n.upper() for n in (*SOURCES, *TABLE_MACROS)})

_KEYWORDS, _FUNCTIONS = {*KEYWORDS, "OUTER", "RIGHT", "INNER"}, {*FUNCTIONS, *TABLE_FUNCTIONS}

_TOKEN = re.compile(
    r"""(?P<comment>--[^\r\n]*|/\*[\s\S]*?(?:\*/|\Z))
      | (?P<string>'(?:[^']++|'')*+(?:'|\Z))
      | (?P<name>"(?:[^"]|"")*(?:"|\Z))
      | (?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
      | (?P<word>[^\W\d]\w*)
      | (?P<other>[\s\S])""",
    re.VERBOSE,
)


def pieces(text: str) -> Iterator[tuple[str, str]]:
    """The pieces of a text with their kinds; together they cover the text.

    The kinds are comment, string, name (in double quotes), number, keyword, function, word, other.
    """
    for match in _TOKEN.finditer(text):
        kind, piece = str(match.lastgroup), match[0]
        if kind == "word" and piece.upper() in _KEYWORDS:
            kind = "keyword"
        elif kind == "word" and piece.upper() in _FUNCTIONS:
            kind = "function"
        yield kind, piece


def statement_at(text: str, at: int) -> tuple[str, str, str]:
    """The statement around an offset, with blanks in place of its strings and comments.

    Returns:
        The text before the offset, the text after it, and the string or comment that contains
        the offset, with its opening quote; empty outside strings and comments.
    """
    before, after, inside, place = "", "", "", 0
    for kind, piece in pieces(text):
        end = place + len(piece)
        if place < at < end or (at == end and _is_open(kind, piece)):
            if kind in ("comment", "string", "name"):
                inside = piece[: at - place]
            before += piece[: at - place]
            after += piece[at - place :]
        elif kind == "other" and piece == ";":
            if place >= at:
                break
            before = ""
        else:
            shown = "''" if kind == "string" else " " if kind == "comment" else piece
            if place < at:
                before += shown
            else:
                after += shown
        place = end
    return before, after, inside


def _is_open(kind: str, piece: str) -> bool:
    if kind == "comment":
        return not piece.endswith("*/")
    quote = {"string": "'", "name": '"'}.get(kind)
    return quote is not None and (len(piece) == 1 or piece.count(quote) % 2 == 1)
