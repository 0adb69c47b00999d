"""Random ORDER BY and LIMIT clauses under which the rows have one order."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.oracle.choices import Choices
from tests.support.oracle.relations import Column, Relation

_DIRECTIONS = ("", " DESC", " ASC NULLS FIRST", " DESC NULLS LAST")


def ordering(c: Choices, r: Relation, tables: Sequence[Relation], limited: bool = False) -> str:
    """A clause that orders a SELECT, or an empty text where ties would decide.

    Rows that tie are equal: the terms name all exact columns, and these are all columns or
    hold all keys of rows without duplicates.

    Args:
        c: Where choices come from.
        r: What the SELECT gives.
        tables: What a limit may count the rows of.
        limited: Whether there must be a limit.
    """
    exact = [column for column in r.columns if not column.error]
    if len(exact) < len(r.columns) and not (r.unique and r.keys):
        return ""
    if c.chance(10) and len(exact) == len(r.columns):
        terms = [f"ALL{c.pick(['', ' DESC'])}"]
    else:
        numbers = {column.name: n for n, column in enumerate(r.columns, start=1)}
        at = c.below(len(exact))
        terms = [_term(c, column, numbers[column.name]) for column in exact[at:] + exact[:at]]
        terms = _expression(c, r, exact) + terms
    return f" ORDER BY {', '.join(terms)}{_limit(c, tables, limited)}"


def _term(c: Choices, column: Column, number: int) -> str:
    spelled = c.weighted([(6, column.name), (2, str(number)), (1, f"({column.name})")])
    return spelled + c.pick(_DIRECTIONS)


def _expression(c: Choices, r: Relation, exact: Sequence[Column]) -> list[str]:
    """Sometimes an expression over a value that the SELECT names."""
    named = [
        column for column in exact
        if column.name.startswith("v") and column.magnitude < 100
        and column.dtype in ("INTEGER", "BIGINT", "DOUBLE", "FLOAT")
    ]  # fmt: skip
    if not named or r.sql.startswith("(SELECT DISTINCT") or not c.chance(25):
        return []
    return [c.pick(["-{0}", "abs({0})", "{0} + 1", "{0} * {0}"]).format(c.pick(named).name)]


def _limit(c: Choices, tables: Sequence[Relation], limited: bool) -> str:
    form = c.weighted(
        [(0 if limited else 4, ""), (4, "LIMIT {0}"), (2, "LIMIT {0} OFFSET {1}"),
         (1, "OFFSET {1}"), (1, "LIMIT 1 + {1}"), (1, "LIMIT (SELECT count(*) FROM {2})"),
         (1, "LIMIT 50%")]
    )  # fmt: skip
    text = form.format(c.between(1, 4), c.below(3), c.pick(tables).sql)
    return f" {text}" if text else ""
