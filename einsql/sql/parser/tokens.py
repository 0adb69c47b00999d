"""A statement's tokens, read from left to right."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sqlglot import Token, TokenType
from sqlglot.errors import TokenError

from einsql.errors import ProgrammingError, nearest
from einsql.sql.parser.dialect import EinSQL
from einsql.sql.parser.long_literals import without_long_literals
from einsql.sql.parser.parameter_marks import mark

_WORD = re.compile(r"[^\W\d][\w$]*")


def tokenize(sql: str) -> list[Token]:
    """The tokens of a statement.

    Raises:
        ProgrammingError: sqlglot cannot tokenize the text, or a quoted name is empty.
    """
    marked = mark(sql)
    try:
        tokens = list(EinSQL().tokenize(without_long_literals(marked.text)))
    except TokenError as error:
        raise ProgrammingError("The statement cannot be read") from error
    for token in tokens:
        if token.start in marked.numbers:
            token.token_type, token.text = TokenType.PLACEHOLDER, sql[token.start : token.end + 1]
        if token.token_type is TokenType.IDENTIFIER and not token.text:
            raise ProgrammingError("A zero-length name", position=token.start)
    return tokens


def is_parameter(token: Token) -> bool:
    """True for `?`, `?1`, `$1` and `$name`."""
    return token.token_type is TokenType.PLACEHOLDER


def is_name_or_value(token: Token) -> bool:
    """True for names, literals and parameters; false for keywords and signs."""
    return token.token_type in (TokenType.VAR, TokenType.NUMBER, TokenType.PLACEHOLDER, *_QUOTED)


def word_of(token: Token) -> str:
    """A token's text in upper case; empty for quoted text, which is never a keyword."""
    return "" if token.token_type in _QUOTED else token.text.upper()


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The beginning of a hint that suggests a similar known word; empty if there is none."""
    meant = nearest(word, known, likeness=0.7)
    return f"Did you mean {meant}? " if meant is not None and meant != word.upper() else ""


class TokenReader:
    """Reads the tokens of a statement in order."""

    def __init__(self, sql: str, tokens: list[Token]) -> None:
        self.sql = sql
        self.tokens = tokens
        self.at = 0

    @property
    def ended(self) -> bool:
        """True after the last token."""
        return self.at >= len(self.tokens)

    def word(self, ahead: int = 0) -> str:
        """A token's text in upper case; empty at the end and for quoted text."""
        at = self.at + ahead
        return "" if at >= len(self.tokens) else word_of(self.tokens[at])

    def position(self) -> int:
        """The offset of the next token."""
        return len(self.sql) if self.ended else self.tokens[self.at].start

    def take(self, *words: str) -> bool:
        """Consumes words if they are the next tokens; returns whether they were."""
        if [self.word(n) for n in range(len(words))] != list(words):
            return False
        self.at += len(words)
        return True

    def expect(self, word: str, where: str) -> None:
        """Consumes a word.

        Raises:
            ProgrammingError: The next token is another one.
        """
        if not self.take(word):
            raise self.error(f"Expected {word} {where}")

    def error(self, reason: str, hint: str = "") -> ProgrammingError:
        """An error at the next token."""
        token_text = ""
        if not self.ended:
            token = self.tokens[self.at]
            is_text = token.token_type is TokenType.STRING
            token_text = (
                f", found the text '{token.text}'" if is_text else f', found "{token.text}"'
            )
        return ProgrammingError(reason + token_text, hint=hint.rstrip(), position=self.position())

    def name(self, what: str) -> str:
        """Consumes a name, quoted or not."""
        if self.ended:
            raise self.error(f"Expected {what}")
        token = self.tokens[self.at]
        quoted = token.token_type is TokenType.IDENTIFIER
        if quoted and token.text.endswith("()"):  # the catalog marks the names of macros this way
            raise ProgrammingError(f'"{token.text}" cannot be a name', position=token.start)
        if not quoted and (token.token_type in _QUOTED or not _WORD.fullmatch(token.text)):
            raise self.error(f"Expected {what}")
        self.at += 1
        if self.word() == ".":
            raise ProgrammingError(
                f"einsql has no schemas: {token.text}.…", position=self.position()
            )
        return token.text

    def names(self, what: str) -> list[str]:
        """Consumes `name, name, …)`: zero or more distinct names.

        Raises:
            ProgrammingError: A name occurs twice.
        """
        names: list[str] = []
        while not self.take(")"):
            if names:
                self.expect(",", "or )")
            position = self.position()
            name = self.name(what)
            if name.lower() in {n.lower() for n in names}:
                raise ProgrammingError(f"{name} is named twice", position=position)
            names.append(name)
        return names

    def integer(self, what: str, least: int = 0) -> int:
        """Consumes an integer literal."""
        token = None if self.ended else self.tokens[self.at]
        if token is None or token.token_type is not TokenType.NUMBER or not token.text.isdecimal():
            raise self.error(f"Expected {what}")
        number = int(token.text)
        if number < least:
            raise self.error(f"Expected {what} of at least {least}")
        self.at += 1
        return number

    def text(self, what: str) -> str:
        """Consumes a quoted text."""
        if self.ended or self.tokens[self.at].token_type is not TokenType.STRING:
            raise self.error(f"Expected {what}")
        self.at += 1
        return self.tokens[self.at - 1].text

    def parenthesised(self) -> tuple[int, int]:
        """Consumes tokens up to the `)` of an open parenthesis; returns the offsets of its content.

        Raises:
            ProgrammingError: The parenthesis is not closed.
        """
        start, depth = self.position(), 1
        while not self.ended:
            depth += {"(": 1, ")": -1}.get(self.word(), 0)
            self.at += 1
            if not depth:
                return start, self.tokens[self.at - 1].start
        raise self.error("Expected )")

    def end(self) -> None:
        """Requires that no token is left."""
        if not self.ended:
            raise self.error("The statement should end here")


_QUOTED = (
    TokenType.STRING,
    TokenType.IDENTIFIER,
    TokenType.HEREDOC_STRING,
    TokenType.NATIONAL_STRING,
    TokenType.RAW_STRING,
    TokenType.BYTE_STRING,
    TokenType.HEX_STRING,
    TokenType.BIT_STRING,
    TokenType.UNICODE_STRING,
)
