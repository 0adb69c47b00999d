"""Statements of DuckDB's that would take einsql's part of a database away, or leave it behind."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import Token, TokenType

from einsql.errors import Error, NotSupportedError, ProgrammingError
from einsql.sql.tokens import word_of

CATALOG = "__einsql"
"""The schema of the catalog."""

_SETTING = ("SET", "RESET", "PRAGMA", "USE", "CALL")
"""Statements in which text may stand for names."""


def refuse(tokens: Sequence[Token], database: str) -> None:
    """Refuses a statement, no query, that names the catalog or gives up the database.

    Args:
        tokens: Of the statement.
        database: What DuckDB calls the database of the session.

    Raises:
        ProgrammingError: It does.
    """
    word = word_of(tokens[0])
    for token in tokens:
        is_text = token.token_type is TokenType.STRING
        low = token.text.lower()
        if low == CATALOG and not is_text or CATALOG in low and is_text and word in _SETTING:
            raise refusal(token.start)
    gives_up = word == "DETACH" or {word, *map(word_of, tokens[1:2])} in (
        {"DROP", "DATABASE"}, {"ALTER", "DATABASE"},
    )  # fmt: skip
    replaces = word == "ATTACH" and [word_of(t) for t in tokens[1:3]] == ["OR", "REPLACE"]
    if not gives_up and not replaces:
        return
    for token in tokens[1:]:
        # ATTACH without AS calls a database what its file is called.
        stem = token.text.replace("\\", "/").rsplit("/", 1)[-1].split(".")[0]
        if database.lower() in (token.text.lower(), stem.lower()):
            raise ProgrammingError(
                f'"{database}" stays while it is open: it is the session\'s own database',
                hint="con.close() lets it go.",
                position=token.start,
            )


def refusal(position: int | None = None) -> Error:
    """Why the catalog's schema cannot be named."""
    return ProgrammingError(
        f"{CATALOG} is einsql's own schema: nothing but SELECT may name it",
        hint="CREATE, UPDATE and DROP of tensors, views and macros change what it holds.",
        position=position,
    )
