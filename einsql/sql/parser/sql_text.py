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
    return _as_written(node)[:60]


def _as_written(node: exp.Expr) -> str:
    """A node's SQL, in which a function has the name that the user wrote: LIST is no ARRAY_AGG."""
    sql, name = as_sql(node), node.meta.get("name")
    if isinstance(node, exp.GroupConcat):  # sqlglot keeps no name of it
        name = "string_agg"
    if not isinstance(node, exp.Func) or name is None or "(" not in sql:
        return sql
    return f"{name.upper()}{sql[sql.index('(') :]}"


def as_sql(node: exp.Expr, normalize_functions: str = "upper") -> str:
    """A node as DuckDB's SQL; parts that sqlglot cannot write are omitted."""
    return node.sql(
        dialect="duckdb",
        unsupported_level=ErrorLevel.IGNORE,
        normalize_functions=normalize_functions,
    )
