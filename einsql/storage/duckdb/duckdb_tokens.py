"""Tokens of SQL from DuckDB's own tokenizer, for checks that must agree with DuckDB."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from einsql.core.records import dataclass
from einsql.errors import OperationalError

_PLAIN = re.compile(r"[nN]?'((?:[^']|'')*)'", re.DOTALL)
_ESCAPED = re.compile(r"[eE]'((?:[^'\\]|'')*)'", re.DOTALL)
_DOLLAR = re.compile(r"(\$\w*\$)(.*)\1", re.DOTALL)
_QUOTED = re.compile(r'"((?:[^"]|"")*)"', re.DOTALL)
_NAME = re.compile(r"[^\W\d][\w$]*")


@dataclass(frozen=True, slots=True)
class Token:
    """A token.

    Attributes:
        text: The text as written.
        start: The offset in characters.
        word: Upper-case text of an unquoted name or keyword, else "".
        name: Lower-case name, quoted or not, else "".
        string: The value of a string literal, else None; also None for escapes and bytes.
        is_string: Whether it is a literal of a string or of bytes.
    """

    text: str
    start: int
    word: str
    name: str
    string: str | None
    is_string: bool


def statements(sql: str) -> list[list[Token]]:
    """The tokens of each statement of a text, without comments.

    Raises:
        OperationalError: The text has a character that DuckDB's parser may read as white space
            and its tokenizer does not.
    """
    import duckdb  # already loaded, as the caller has a connection

    encoded = sql.encode()
    marks = duckdb.tokenize(sql)
    ends = [offset for offset, _ in marks[1:]] + [len(encoded)]
    split: list[list[Token]] = [[]]
    for (offset, kind), end in zip(marks, ends, strict=True):
        if kind == duckdb.token_type.comment:
            continue
        start = len(encoded[:offset].decode()) if len(encoded) != len(sql) else offset
        token = _token(encoded[offset:end].decode().strip(), start)
        if token.text == ";":
            split.append([])
        elif token.text:
            split[-1].append(token)
    return [tokens for tokens in split if tokens]


def _token(text: str, start: int) -> Token:
    last = text[-1:]
    if last == "'" or (last == "$" and len(text) > 1):
        return Token(text, start, "", "", _string(text), True)
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        return Token(text, start, "", quoted[1].replace('""', '"').lower(), None, False)
    for n, character in enumerate(text):
        if character == "\0" or (
            not character.isascii() and unicodedata.category(character)[0] in "ZC"
        ):
            raise OperationalError(
                f"U+{ord(character):04X} is outside of quotes, and enable_external_access is off",
                hint="Use ASCII spaces.",
                position=start + n,
            )
    is_name = _NAME.fullmatch(text) is not None
    return Token(
        text, start, text.upper() if is_name else "", text.lower() if is_name else "", None, False
    )


def _string(text: str) -> str | None:
    plain = _PLAIN.fullmatch(text) or _ESCAPED.fullmatch(text)
    if plain is not None:
        return plain[1].replace("''", "'")
    dollar = _DOLLAR.fullmatch(text)
    return None if dollar is None else dollar[2]


def pairs(tokens: Sequence[Token]) -> dict[int, int]:
    """Positions of closing parentheses, brackets and braces by those of the opening ones."""
    closing: dict[int, int] = {}
    open_: list[int] = []
    for n, token in enumerate(tokens):
        if token.text in ("(", "[", "{"):
            open_.append(n)
        elif token.text in (")", "]", "}") and open_:
            closing[open_.pop()] = n
    return closing
