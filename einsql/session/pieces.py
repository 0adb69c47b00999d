"""The texts of SQL that methods of relations take: each is a part of exactly one clause."""

from __future__ import annotations

from sqlglot import Token, TokenType

from einsql.errors import InterfaceError, ProgrammingError
from einsql.sql.parser.lexical import scan
from einsql.sql.parser.tokens import tokenize, word_of

_CLAUSES = {
    *("SELECT", "FROM", "WHERE", "GROUP", "HAVING", "QUALIFY", "WINDOW", "ORDER", "LIMIT"),
    *("OFFSET", "UNION", "INTERSECT", "EXCEPT", "USING"),
}
"""The words that begin another clause or query outside of parentheses."""
_WITHIN = {"FROM": "DISTINCT", "GROUP": "WITHIN", "EXCEPT": "*"}
"""The words before those that continue an expression, as in IS DISTINCT FROM."""
_OPENING = {TokenType.L_PAREN: ")", TokenType.L_BRACKET: "]", TokenType.L_BRACE: "}"}
_CLOSING = {TokenType.R_PAREN: ")", TokenType.R_BRACKET: "]", TokenType.R_BRACE: "}"}


def piece(text: str) -> str:
    """Returns a list of expressions that can be put into a clause.

    A line end after it closes a comment.

    Raises:
        InterfaceError: It is no text.
        ProgrammingError: The text has another clause or statement, or a parenthesis, quote or
            comment that it does not close.
    """
    if not isinstance(text, str):
        raise InterfaceError(f"An expression is a str, not a {type(text).__name__}")
    spans = scan(text)
    if not spans:
        raise ProgrammingError("The text of an expression is empty", sql=text)
    if spans[0].complete:
        raise _refusal("A semicolon", spans[0].end, text)
    open_marks: list[str] = []
    before: Token | None = None
    for token in tokenize(text):
        if token.token_type in _OPENING:
            open_marks.append(_OPENING[token.token_type])
        elif token.token_type in _CLOSING:
            if not open_marks or open_marks.pop() != _CLOSING[token.token_type]:
                raise _refusal(f"A {token.text!r} that closes nothing", token.start, text)
        elif not open_marks and _begins_clause(token, before):
            raise _refusal(word_of(token), token.start, text)
        before = token
    if open_marks:
        raise _refusal(f"An end without {open_marks[-1]!r}", len(text), text)
    return f"{text}\n" if "--" in text else text


def condition(text: str) -> str:
    """Returns a condition in parentheses.

    Raises:
        ProgrammingError: As `piece`.
    """
    return f"({piece(text)})"


def single(text: str) -> str:
    """Returns a composed text that is one statement.

    Raises:
        ProgrammingError: It has other statements.
    """
    spans = scan(text)
    if len(spans) > 1:
        raise ProgrammingError(
            "A relation is made of one statement",
            hint="Run the others with execute().",
            position=spans[1].start,
            sql=text,
        )
    return text


def _begins_clause(token: Token, before: Token | None) -> bool:
    word = word_of(token).partition(" ")[0]  # ORDER BY is one token
    led = "" if before is None else word_of(before)
    if word not in _CLAUSES:
        return False
    return led not in (".", "AS", _WITHIN.get(word))


def _refusal(what: str, position: int, text: str) -> ProgrammingError:
    return ProgrammingError(
        f"{what} does not belong to an expression",
        hint="Write other clauses as methods of the relation, or the query with sql().",
        position=position,
        sql=text,
    )
