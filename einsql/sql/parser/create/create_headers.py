"""Reads the head of a CREATE VIEW, MACRO or AGGREGATE statement without parsing the rest.

A database stores definitions as text, and a text may be long. Lists of names need the head only.
"""

from __future__ import annotations

import re

from einsql.core.records import dataclass
from einsql.sql.parser.lexical import QUIET

_BLANK = r"(?: \s | --[^\r\n]*[\r\n] | /\*.*?\*/ )"
_HEAD = re.compile(
    rf"""
    {_BLANK}* CREATE {_BLANK}+ (?: OR {_BLANK}+ REPLACE {_BLANK}+ )?
    (?: TEMP(?:ORARY)? {_BLANK}+ )?
    (?: (?P<view> VIEW ) | MACRO | FUNCTION | AGGREGATE ) {_BLANK}*
    (?: "(?P<quoted> (?: [^"] | "" )+ )" | (?P<plain> [^\W\d][\w$]* ) )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
_PARAMETERS = re.compile(rf"{_BLANK}* \(", re.VERBOSE | re.DOTALL)
_MARK = re.compile(rf"{QUIET} | (?P<paren> [()] )", re.VERBOSE | re.DOTALL)
_TABLE = re.compile(rf"{_BLANK}* AS {_BLANK}+ TABLE \b", re.VERBOSE | re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Head:
    """The beginning of a definition.

    Attributes:
        kind: "view" or "macro".
        name: The name as written, without quotes.
        call: The signature of a macro, as `layer_norm(x, axis, eps := 0.00001)`; else empty.
        is_table: Whether FROM accepts it.
    """

    kind: str
    name: str
    call: str = ""
    is_table: bool = True


def head_of(text: str) -> Head | None:
    """The head of a definition; None for any other text."""
    begun = _HEAD.match(text)
    if begun is None:
        return None
    name = begun["plain"] or begun["quoted"].replace('""', '"')
    if begun["view"]:
        return Head("view", name)
    opened = _PARAMETERS.match(text, begun.end())
    end = None if opened is None else _closing(text, opened.end())
    if opened is None or end is None:
        return None
    parameters = " ".join(text[opened.end() : end - 1].split())
    return Head("macro", name, f"{name}({parameters})", _TABLE.match(text, end) is not None)


def _closing(text: str, start: int) -> int | None:
    """The offset after the `)` of an open parenthesis, or None if it is not closed."""
    depth = 1
    for mark in _MARK.finditer(text, start):
        depth += {"(": 1, ")": -1}.get(mark["paren"] or "", 0)
        if not depth:
            return mark.end()
    return None
