"""The SQL dialect: DuckDB's, registered with sqlglot under the name `einsql`.

Only Dialect and Tokenizer are subclassed; sqlglot's compiled build forbids the rest.
Statements that sqlglot does not know are parsed from its tokens in `parser.py`.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import ClassVar

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError, TokenError


class EinSQL(DuckDB):
    """DuckDB's dialect in which `/*+ … */` is a hint."""

    # Names of columns need the spelling: POW(x, 2) and POWER(x, 2) are equal nodes.
    ORIGINAL_NAME_META_KEY: str | None = "name"

    class Tokenizer(DuckDB.Tokenizer):
        """Reads `/*+` as the start of a hint and keeps the tokens of every statement."""

        KEYWORDS: ClassVar = {**DuckDB.Tokenizer.KEYWORDS, "/*+": TokenType.HINT}
        COMMANDS: ClassVar = set()  # else EXPLAIN and SHOW keep their text unparsed


_reading: ContextVar[bool] = ContextVar("reading", default=False)

# sqlglot logs a warning for text it cannot read; einsql raises an error instead.
logging.getLogger("sqlglot").addFilter(lambda record: not _reading.get())


def parsed(text: str) -> exp.Expr:
    """The syntax tree of a statement.

    Raises:
        sqlglot.errors.ParseError: A syntax error, or a text without tokens.
    """
    token = _reading.set(True)
    try:
        return sqlglot.parse_one(text, dialect=EinSQL)
    except TokenError as error:
        raise ParseError(str(error)) from error
    finally:
        _reading.reset(token)
