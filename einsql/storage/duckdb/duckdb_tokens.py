"""Tokens of SQL from DuckDB's own tokenizer, for checks that must agree with DuckDB."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from einsql.errors import OperationalError

_PLAIN = re.compile(r"[nN]?'((?:[^']|'')*)'", re.DOTALL)
_ESCAPED = re.compile(r"[eE]'((?:[^'\\]|'')*)'", re.DOTALL)
_DOLLAR = re.compile(r"(\$\w*\$)(.*)\1", re.DOTALL)
_QUOTED = re.compile(r'"((?:[^"]|"")*)"', re.DOTALL)
_NAME = re.compile(r"[^\W\d][\w$]*")


@dataclass(frozen=True, slots=True)
class Lexeme:
    """A token.

    Attributes:
        text: As it is written.
        start: Its offset in characters.
        word: In capital letters if it is a name or keyword without quotes, else "".
        name: In small letters if it is a name, quoted or not, else "".
        string: What it stands for if it is a text, else None; also None for escapes and bytes.
        is_string: Whether it is a text or bytes.
    """

    text: str
    start: int
    word: str
    name: str
    string: str | None
    is_string: bool


def statements(sql: str) -> list[list[Lexeme]]:
    """The tokens of each statement of a text, without comments.

    Raises:
        OperationalError: The text has a character that DuckDB may read as a blank and its
            tokenizer does not.
    """
    import duckdb  # loaded already: the caller has a connection

    encoded = sql.encode()
    marks = duckdb.tokenize(sql)
    ends = [offset for offset, _ in marks[1:]] + [len(encoded)]
    split: list[list[Lexeme]] = [[]]
    for (offset, kind), end in zip(marks, ends, strict=True):
        if kind == duckdb.token_type.comment:
            continue
        start = len(encoded[:offset].decode()) if len(encoded) != len(sql) else offset
        lexeme = _lexeme(encoded[offset:end].decode().strip(), start)
        if lexeme.text == ";":
            split.append([])
        elif lexeme.text:
            split[-1].append(lexeme)
    return [tokens for tokens in split if tokens]


def _lexeme(text: str, start: int) -> Lexeme:
    last = text[-1:]
    if last == "'" or (last == "$" and len(text) > 1):
        return Lexeme(text, start, "", "", _string(text), True)
    quoted = _QUOTED.fullmatch(text)
    if quoted is not None:
        return Lexeme(text, start, "", quoted[1].replace('""', '"').lower(), None, False)
    for n, character in enumerate(text):
        if character == "\0" or (
            not character.isascii() and unicodedata.category(character)[0] in "ZC"
        ):
            raise OperationalError(
                f"U+{ord(character):04X} stands outside of quotes, and enable_external_access "
                "is off",
                hint="Write plain blanks.",
                position=start + n,
            )
    is_name = _NAME.fullmatch(text) is not None
    return Lexeme(
        text, start, text.upper() if is_name else "", text.lower() if is_name else "", None, False
    )


def _string(text: str) -> str | None:
    plain = _PLAIN.fullmatch(text) or _ESCAPED.fullmatch(text)
    if plain is not None:
        return plain[1].replace("''", "'")
    dollar = _DOLLAR.fullmatch(text)
    return None if dollar is None else dollar[2]


def pairs(tokens: Sequence[Lexeme]) -> dict[int, int]:
    """The position of the closing parenthesis, bracket or brace by that of the opening one."""
    closing: dict[int, int] = {}
    open_: list[int] = []
    for n, token in enumerate(tokens):
        if token.text in ("(", "[", "{"):
            open_.append(n)
        elif token.text in (")", "]", "}") and open_:
            closing[open_.pop()] = n
    return closing
