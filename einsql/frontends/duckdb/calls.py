"""Calls of `einsql('…')` in the FROM clauses of a DuckDB statement."""

from __future__ import annotations

import re

from einsql.core.records import dataclass
from einsql.errors import Error, NotSupportedError, ProgrammingError
from einsql.sql.parser.lexical import QUIET

NAME = "einsql"
STANDS_FOR = "__einsql_{}"
"""The name of the table that replaces a call; DuckDB resolves it to a Python variable."""

_TOKENS = re.compile(
    rf"(?P<quiet> {QUIET} ) | (?P<word> [^\W\d][\w$]* ) | (?P<mark> \S )", re.VERBOSE | re.DOTALL
)
_BEFORE = ("FROM", "JOIN", "LATERAL", ",", "(")
"""The tokens that precede a FROM item."""
_LASTING = ("VIEW", "MACRO", "FUNCTION")
"""The objects of CREATE whose text runs later, after the result of a call is released."""
_USAGE = "Write FROM einsql('SELECT …')."


@dataclass(frozen=True, slots=True)
class Call:
    """A call and its query.

    Attributes:
        lasting: Whether the call is in a text that runs later, such as a view.
    """

    start: int
    end: int
    query: str
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    start: int
    end: int
    word: str
    """The word in upper case, or the punctuation mark; empty for quoted text."""


def find_calls(sql: str, at_once: bool = True) -> list[Call]:
    """The calls of `einsql` in a text, outside of quotes and comments.

    Args:
        sql: The text.
        at_once: Whether a call in a text that runs later is an error.

    Raises:
        ProgrammingError: A call is outside FROM, or its argument is not one string.
        NotSupportedError: A call is in a text that runs later, such as a view.
    """
    if NAME not in sql.lower():
        return []
    try:
        return _calls(_tokens(sql), at_once)
    except Error as error:
        raise error.locate(sql) from None


def replaced(sql: str, calls: list[Call]) -> str:
    """The text with a table name in place of each call."""
    parts, last = [], 0
    for n, call in enumerate(calls):
        parts += [sql[last : call.start], STANDS_FOR.format(n)]
        last = call.end
    return "".join([*parts, sql[last:]])


def _tokens(sql: str) -> list[_Token]:
    tokens = []
    for m in _TOKENS.finditer(sql):
        if m[0].startswith(("--", "/*")) and m["quiet"]:
            continue
        word = "" if m["quiet"] else m[0].upper()
        tokens.append(_Token(m[0], m.start(), m.end(), word))
    return tokens


def _calls(tokens: list[_Token], at_once: bool) -> list[Call]:
    calls: list[Call] = []
    begun: list[str] = []  # the words of the statement before the token
    for n, token in enumerate(tokens):
        if token.word == ";":
            begun = []
            continue
        begun.append(token.word)
        if token.word != NAME.upper() or _word(tokens, n + 1) != "(":
            continue
        before = _word(tokens, n - 1) if n else ""
        if before == ".":
            continue
        if before not in _BEFORE:
            raise ProgrammingError(
                "einsql('…') is a table and stands in FROM", hint=_USAGE, position=token.start
            )
        lasting = _lasting(begun)
        if lasting and at_once:
            raise NotSupportedError(
                f"einsql('…') cannot stand in a {lasting}: its result is there for one statement",
                hint="CREATE TABLE … AS keeps it; or create the view in einsql: edb.session.",
                position=token.start,
            )
        if lasting:
            calls.append(Call(token.start, token.end, "", lasting=True))
            continue
        if _word(tokens, n + 3) != ")":
            raise ProgrammingError(
                "einsql takes one text, a query of einsql",
                hint=f"{_USAGE} Its values are written in it, for parameters do not reach it.",
                position=token.start,
            )
        calls.append(Call(token.start, tokens[n + 3].end, _text(tokens[n + 2])))
    return calls


def _word(tokens: list[_Token], at: int) -> str:
    return tokens[at].word if at < len(tokens) else ""


def _lasting(begun: list[str]) -> str:
    """The kind of object whose text a statement stores for later; empty for another statement."""
    head = begun[: begun.index("AS")] if "AS" in begun else begun
    kind = next((w for w in _LASTING if w in head), "") if begun[0] == "CREATE" else ""
    return "PREPARE" if begun[0] == "PREPARE" else kind


def _text(token: _Token) -> str:
    if token.text.startswith("'"):
        return token.text[1:-1].replace("''", "'")
    if token.text.startswith("$") and not token.word:
        tag = token.text.index("$", 1) + 1
        return token.text[tag:-tag]
    raise ProgrammingError(
        "einsql takes a text in quotes", hint="As '…' or $$…$$.", position=token.start
    )
