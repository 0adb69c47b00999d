"""The SQL dialect: DuckDB's, registered with sqlglot under the name `einsql`.

Only Dialect and Tokenizer are subclassed; sqlglot's compiled build forbids the rest.
Statements that sqlglot does not know are parsed from its tokens in `parser.py`.
"""

from __future__ import annotations

from typing import ClassVar

from sqlglot import TokenType
from sqlglot.dialects.duckdb import DuckDB


class EinSQL(DuckDB):
    """DuckDB's dialect with `/*+ … */` read as a hint."""

    # For the names of columns: POW(x, 2) and POWER(x, 2) are equal nodes.
    ORIGINAL_NAME_META_KEY: str | None = "name"

    class Tokenizer(DuckDB.Tokenizer):
        """Reads `/*+` as the start of a hint and keeps the tokens of every statement."""

        KEYWORDS: ClassVar = {**DuckDB.Tokenizer.KEYWORDS, "/*+": TokenType.HINT}
        COMMANDS: ClassVar = set()  # else EXPLAIN and SHOW swallow their text unparsed
