"""Splits the queries inside DuckDB statements."""

from __future__ import annotations

from einsql.hybrid.split.blocks import STARTS, Range
from einsql.hybrid.split.scopes import Scope
from einsql.hybrid.split.split import Splitter

_NAMING = (
    "FROM",
    "JOIN",
    "INTO",
    "UPDATE",
    "USING",
    "SUMMARIZE",
    "DESCRIBE",
    "DESC",
    "TABLE",
    "PIVOT",
    "UNPIVOT",
)
_ENDS = ("RETURNING",)


def split_statement(splitter: Splitter, first: int, names: Scope | None = None) -> None:
    """Splits every query inside a statement.

    Args:
        splitter: The splitter of the statement's text.
        first: The number of the statement's first token.
        names: The visible names of WITH.
    """
    structure = splitter.structure
    last = len(structure.tokens)
    word = structure.word(first)
    is_query = word in STARTS and word not in ("PIVOT", "UNPIVOT", "SUMMARIZE", "DESCRIBE")
    if is_query and not _is_change(splitter, first):
        splitter.query(structure.query(first, last), names or {})
        return
    start = query_of(splitter, first, last)
    end = last if start is None else _end(splitter, start)
    scope: Scope = {} if names is None else dict(names)
    if word == "WITH":
        query = structure.query(first, last)
        for cte in query.ctes:
            scope[cte.name.lower()] = None
    _loose(splitter, Range(first, last if start is None else start), scope)
    if start is not None:
        splitter.query(structure.query(start, end), scope)
        _loose(splitter, Range(end, last), scope)


def _is_change(splitter: Splitter, first: int) -> bool:
    """Returns True if WITH precedes INSERT, UPDATE, DELETE or MERGE, or contains one."""
    structure = splitter.structure
    if structure.word(first) != "WITH":
        return False
    query = structure.query(first, len(structure.tokens))
    starts = (query.body.first, *(cte.query.body.first for cte in query.ctes))
    return any(structure.word(at) in ("INSERT", "UPDATE", "DELETE", "MERGE") for at in starts)


def query_of(splitter: Splitter, first: int, last: int) -> int | None:
    """Returns the first token of the query in CREATE … AS or INSERT INTO …."""
    structure = splitter.structure
    word = structure.word(first)
    if word == "WITH":
        first = structure.query(first, last).body.first
        word = structure.word(first)
    if word not in ("CREATE", "INSERT"):
        return None
    for at in structure.outer(first, last):
        if word == "CREATE" and structure.word(at) == "AS":
            return at + 1
        if word == "INSERT" and structure.word(at) in ("SELECT", "WITH", "FROM", "VALUES"):
            return at
    return None


def _end(splitter: Splitter, start: int) -> int:
    """Returns the end of the query, before RETURNING, ON CONFLICT and WITH DATA."""
    structure = splitter.structure
    last = len(structure.tokens)
    for at in structure.outer(start + 1, last):
        word = structure.word(at)
        is_conflict = word == "ON" and structure.word(at + 1) == "CONFLICT"
        is_data = word == "WITH" and structure.word(at + 1) in ("DATA", "NO")
        if word in _ENDS or is_conflict or is_data:
            return at
    return last


def _loose(splitter: Splitter, part: Range, scope: Scope) -> None:
    """Splits queries in parentheses; registers names after FROM, JOIN, INTO and similar words."""
    structure = splitter.structure
    at = part.first
    for child in structure.children(part.first, part.last):
        splitter.query(child, scope)
        _names(splitter, Range(at, child.range.first), scope)
        at = child.range.last
    _names(splitter, Range(at, part.last), scope)


def _names(splitter: Splitter, part: Range, scope: Scope) -> None:
    structure = splitter.structure
    clauses = [n for n in range(part.first, part.last) if structure.word(n) == "FROM"]
    for at in clauses:
        for reference in structure.references(Range(at, part.last)):
            splitter.refer(reference, scope)
    for at in range(part.first, part.last - 1):
        if structure.word(at) in _NAMING and structure.word(at + 2) != ".":
            splitter.expose(structure.tokens[at + 1].text, scope)
