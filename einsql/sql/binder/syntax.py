"""Checks the syntax of SELECT, FROM items, WITH and `*`, and reads the aliases of items."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from sqlglot import exp

from einsql.core.units import plural
from einsql.errors import ProgrammingError
from einsql.sql.parser.positions import position, unsupported
from einsql.sql.scope.relation import Relation, TileRelation, deduplicated

Named = TypeVar("Named", Relation, TileRelation)

_ACCEPTED: dict[type[exp.Expr], set[str]] = {
    exp.From: {"this"},
    exp.Table: {"this", "alias", "joins", "db", "catalog"},
    exp.Subquery: {"this", "alias", "joins", "with_"},
    exp.TableAlias: {"this", "columns"},
    exp.Join: {"this", "kind", "side", "method", "on", "using"},
    exp.With: {"expressions", "recursive"},
    exp.CTE: {"this", "alias", "materialized"},
    exp.Star: {"except_", "replace", "rename"},
}
"""The arguments of syntax nodes that einsql binds; sqlglot parses many more."""
_NAMES = {
    "sample": "TABLESAMPLE",
    "when": "AT (…)",
    "version": "FOR VERSION or TIMESTAMP",
    "ordinality": "WITH ORDINALITY",
    "hints": "A table hint",
    "hint": "A join hint",
    "pivots": "PIVOT",
    "key_expressions": "USING KEY",
    "ilike": "* ILIKE",
    "order": "ORDER BY",
}
_HANDLED = {
    "expressions",
    "from_",
    "joins",
    "where",
    "group",
    "having",
    "qualify",
    "with_",
    "hint",
    "kind",
    "operation_modifiers",
}
_CLAUSES = {
    "order": "ORDER BY",
    "limit": "LIMIT",
    "offset": "OFFSET",
    "distinct": "DISTINCT",
    "sample": "SAMPLE",
    "windows": "WINDOW",
    "laterals": "LATERAL",
    "pivots": "PIVOT",
    "into": "INTO",
}


def check_syntax(node: exp.Expr) -> None:
    """Refuses parts of a FROM item, WITH or `*` that einsql does not bind.

    Raises:
        NotSupportedError: The node has such a part; the message names it.
    """
    for arg, value in node.args.items():
        if value and arg not in _ACCEPTED[type(node)]:
            raise unsupported(_NAMES.get(arg, arg.upper().replace("_", " ")), node)


def check_clauses(select: exp.Select) -> None:
    """Refuses the clauses that tensor programs do not support.

    Raises:
        NotSupportedError: The SELECT has such a clause; the message names it.
    """
    for arg, present in select.args.items():
        if present and arg not in _HANDLED:
            at = present if isinstance(present, exp.Expr) else select
            raise unsupported(_CLAUSES.get(arg, arg.upper()), at)
    if select.args.get("kind"):
        raise unsupported(f"SELECT AS {select.args['kind']}", select)


def alias_columns(item: exp.Expr) -> list[str]:
    """The column names of an alias such as x(i, j).

    Raises:
        Error: A column has a type, or the alias contains another clause.
    """
    alias = item.args.get("alias")
    if alias is None:
        return []
    check_syntax(alias)
    for column in alias.args.get("columns") or []:
        if not isinstance(column, exp.Identifier):
            raise ProgrammingError(
                "The columns of an alias are names without types", position=position(column)
            )
    return [c.name for c in alias.args.get("columns") or []]


def renamed(relation: Named, item: exp.Expr) -> Named:
    """Renames columns by an item's alias, such as x(i, j), and makes the names distinct.

    A shorter list renames the first columns.

    Raises:
        ProgrammingError: The list has more names than the relation has columns.
    """
    names = alias_columns(item)
    if len(names) > len(relation.columns):
        raise ProgrammingError(
            f"{plural(len(names), 'column name')} for {plural(len(relation.columns), 'column')}",
            hint="Columns are " + ", ".join(c.name for c in relation.columns) + ".",
            position=position(item),
        )
    names += [c.name for c in relation.columns[len(names) :]]
    columns = zip(deduplicated(names), relation.columns, strict=True)
    return replace(relation, columns=tuple(replace(c, name=name) for name, c in columns))
