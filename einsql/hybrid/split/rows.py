"""Rewrites UPDATE and DELETE into a query for the changed rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from einsql.core.quoting import in_quotes
from einsql.hybrid.split.blocks import Range, Structure
from einsql.hybrid.split.parts import PREFIX
from einsql.sql.parser.tokens import tokenize


def touching(sql: str, alias: str, keys: Sequence[str]) -> tuple[str, list[str]] | None:
    """Rewrites an UPDATE or DELETE into a query.

    Args:
        sql: The statement; its parameters keep their order.
        alias: The tensor's name in the statement.
        keys: The tensor's keys.

    Returns:
        A query for the changed keys and the new values, and the columns of the new values.
        None if the statement has a clause that the query cannot express.
    """
    structure = Structure(tokenize(sql))
    last = len(structure.tokens)
    word, marks = structure.word(0), dict[str, int]()
    clauses = ("FROM", "WHERE", "RETURNING", "SET" if word == "UPDATE" else "USING")
    for at in structure.outer(1, last):
        keyword = structure.word(at)
        is_other = keyword == "FROM" and structure.word(at - 1) == "DISTINCT"
        if keyword in clauses and not is_other:
            marks.setdefault(keyword, at)
    needed = {"UPDATE": "SET", "DELETE": "FROM"}.get(word)
    if needed not in marks or "RETURNING" in marks:
        return None

    def text(first: int, end: int) -> str:
        a, b = structure.span(Range(first, end))
        return sql[a:b]

    bounds = sorted([*marks.values(), last])

    def clause(name: str) -> str:
        if name not in marks:
            return ""
        at = marks[name]
        return text(at + 1, next(b for b in bounds if b > at))

    target = text(1, marks["SET"]) if word == "UPDATE" else clause("FROM")
    others = clause("FROM") if word == "UPDATE" else clause("USING")
    columns, values = [], []
    if word == "UPDATE":
        start, end = marks["SET"] + 1, next(b for b in bounds if b > marks["SET"])
        commas = list(_commas(structure, start, end))
        for first, stop in zip([start, *(c + 1 for c in commas)], [*commas, end], strict=True):
            equals = next((n for n in range(first, stop) if structure.word(n) == "="), stop)
            columns.append(structure.tokens[equals - 1].text)
            values.append(text(equals + 1, stop))
    items = [f"{in_quotes(alias)}.{in_quotes(k)}" for k in keys]
    items += [f"{value} AS {PREFIX}v{n}" for n, value in enumerate(values)]
    where = clause("WHERE")
    query = f"SELECT {'' if values else 'DISTINCT '}{', '.join(items) or '1'} FROM {target}"
    query += f", {others}" if others else ""
    return query + (f" WHERE {where}" if where else ""), columns


def _commas(structure: Structure, start: int, end: int) -> Iterator[int]:
    """The commas of a list between tokens, outside of parentheses, lists and structs."""
    depth = 0
    for at in structure.outer(start, end):
        word = structure.word(at)
        depth += (word in ("[", "{")) - (word in ("]", "}"))
        if word == "," and not depth:
            yield at
