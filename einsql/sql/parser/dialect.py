"""The SQL dialect: DuckDB's, registered with sqlglot under the name `einsql`.

Only Dialect and Tokenizer are subclassed; sqlglot's compiled build forbids the rest.
Statements that sqlglot does not know are parsed from its tokens in `parser.py`.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Any, ClassVar

import sqlglot
from sqlglot import Generator, TokenType, exp, tokens
from sqlglot.dialects.dialect import Dialect, NormalizationStrategy, UsingColumnOrder
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.typing import duckdb as duckdb_types

_KEYWORDS = {
    **{k: v for k, v in tokens.Tokenizer.KEYWORDS.items() if k != "SORT BY"},
    "**": TokenType.DSTAR,
    "//": TokenType.DIV,
    "/*+": TokenType.HINT,  # which DuckDB has not
    "<@": TokenType.LT_AT,
    "@>": TokenType.AT_GT,
    "^@": TokenType.CARET_AT,
    **dict.fromkeys(("BPCHAR", "CHAR", "STRING", "VARCHAR"), TokenType.TEXT),
    **dict.fromkeys(("DATETIME", "TIMESTAMP"), TokenType.TIMESTAMPNTZ),
    **{word: TokenType[word] for word in ("ATTACH", "CONNECT", "DETACH", "DISCONNECT", "FORCE")},
    **{word: TokenType[word] for word in ("INSTALL", "ONLY", "POSITIONAL", "SUMMARIZE")},
    **{f"TIMESTAMP_{unit}": TokenType[f"TIMESTAMP_{unit}"] for unit in ("S", "MS", "NS")},
    **{word: TokenType[word] for word in ("UBIGINT", "USMALLINT", "UTINYINT")},
    "BINARY": TokenType.VARBINARY,
    "BITSTRING": TokenType.BIT,
    "INT8": TokenType.BIGINT,
    "LOGICAL": TokenType.BOOLEAN,
    "MACRO": TokenType.FUNCTION,
    "PIVOT_WIDER": TokenType.PIVOT,
    "RESET": TokenType.COMMAND,
    "ROW": TokenType.STRUCT,
    "SIGNED": TokenType.INT,
    "TIMESTAMP_US": TokenType.TIMESTAMP,
    "UINTEGER": TokenType.UINT,
}
_DATE_PARTS = {
    **{k: v for k, v in Dialect.DATE_PART_MAPPING.items() if k != "WEEKDAY"},
    "DAYOFWEEKISO": "ISODOW",
}
_DECIMALS = ("zero", "one", "two", "four", "five", "seven", "eight", "nine")
_TIME_FORMATS = {
    "%e": "%-d",
    "%:z": "%z",
    "%-z": "%z",
    "%f_three": "%g",
    **{f"%f_{digits}": "%n" for digits in _DECIMALS},
}
_TYPES = dict(duckdb_types.EXPRESSION_METADATA)  # type: ignore[attr-defined]  # no __all__
_ESCAPES = {"\\a": "a", "\\v": "v"}


class EinSQL(Dialect):
    """DuckDB's dialect in which `/*+ … */` is a hint.

    The settings are those of sqlglot's class for DuckDB, and a test compares them. The class itself
    is not imported, because its module imports what writes DuckDB's SQL. That takes a fifth of the
    import of sqlglot, and few statements need it.
    """

    # Names of columns need the spelling: POW(x, 2) and POWER(x, 2) are equal nodes.
    ORIGINAL_NAME_META_KEY: str | None = "name"

    ASCII_ONLY_NORMALIZATION = True
    CONCAT_COALESCE = True
    CONCAT_WS_COALESCE = True
    DATE_PART_MAPPING = _DATE_PARTS
    EXPRESSION_METADATA = _TYPES
    HAVING_ALIASES_SHADOW_UNGROUPED_COLUMNS = True
    INDEX_OFFSET = 1
    INVERSE_TIME_MAPPING = _TIME_FORMATS
    NORMALIZATION_STRATEGY = NormalizationStrategy.CASE_INSENSITIVE
    NULL_ORDERING = "nulls_are_last"
    NUMBERS_CAN_BE_UNDERSCORE_SEPARATED = True
    PREFER_COLUMNS_TO_ALIASES_IN_HAVING_AND_QUALIFY = True
    QUERY_RESULTS_ARE_STRUCTS = True
    REGEXP_EXTRACT_MISSING_GROUP_RETURNS_EMPTY = True
    REGEXP_EXTRACT_NO_MATCH_RETURNS_NULL = False
    STRICT_JSON_PATH_SYNTAX = False
    SUPPORTS_FIXED_SIZE_ARRAYS = True
    SUPPORTS_LIMIT_ALL = True
    SUPPORTS_ORDER_BY_ALL = True
    SUPPORTS_USER_DEFINED_TYPES = True
    TABLES_REFERENCEABLE_AS_COLUMNS = True
    UNESCAPED_SEQUENCES = _ESCAPES
    USING_COLUMN_ORDER = UsingColumnOrder.IN_PLACE
    UUID_IS_STRING_TYPE = False

    Parser = DuckDBParser

    class Tokenizer(tokens.Tokenizer):
        """Reads `/*+` as the start of a hint and keeps the tokens of every statement."""

        BYTE_STRINGS: ClassVar = [("e'", "'"), ("E'", "'")]
        BYTE_STRING_ESCAPES: ClassVar = ["'", "\\"]
        COMMANDS: ClassVar = set()  # else EXPLAIN and SHOW keep their text unparsed
        DROP_UNKNOWN_ESCAPES = True
        HEREDOC_STRINGS: ClassVar = ["$"]
        HEREDOC_STRING_ALTERNATIVE = TokenType.PARAMETER
        HEREDOC_TAG_IS_IDENTIFIER = True
        KEYWORDS: ClassVar = _KEYWORDS
        NUMERIC_ESCAPES: ClassVar = {"x": (16, 1, 2, 0xFF), "0": (8, 1, 3, 0o777)}
        NUMERIC_ESCAPES_ARE_BYTES = True
        SINGLE_TOKENS: ClassVar = {**tokens.Tokenizer.SINGLE_TOKENS, "$": TokenType.PARAMETER}
        VAR_SINGLE_TOKENS: ClassVar = {"$"}

    def generator(self, **options: Any) -> Generator:
        """Writes DuckDB's SQL."""
        from sqlglot.generators.duckdb import DuckDBGenerator  # 20 ms

        return DuckDBGenerator(dialect=self, **options)

    def to_json_path(self, path: exp.Expr | None) -> exp.Expr | None:
        """The path of a JSON value; JSON pointers and counts from the end stay text."""
        text = path.name if isinstance(path, exp.Literal) else ""
        return path if text.startswith("/") or "[#" in text else super().to_json_path(path)


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
