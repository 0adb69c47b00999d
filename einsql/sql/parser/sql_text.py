"""Syntax nodes as SQL text, and as names in messages."""

from __future__ import annotations

from sqlglot import exp
from sqlglot.errors import ErrorLevel


def kind(node: exp.Expr) -> str:
    """A node's name in messages."""
    if isinstance(node, exp.IgnoreNulls | exp.RespectNulls):
        return "IGNORE NULLS" if isinstance(node, exp.IgnoreNulls) else "RESPECT NULLS"
    return node.sql_names()[0] if isinstance(node, exp.Func) else node.key.upper()


def text(node: exp.Expr) -> str:
    """The start of a node's SQL, for messages."""
    if isinstance(node, exp.IgnoreNulls | exp.RespectNulls):
        return kind(node)
    return as_sql(node)[:60]


def as_sql(node: exp.Expr, normalize_functions: str = "upper") -> str:
    """A node as DuckDB's SQL; parts that sqlglot cannot write are omitted."""
    return node.sql(
        dialect="duckdb",
        unsupported_level=ErrorLevel.IGNORE,
        normalize_functions=normalize_functions,
    )
