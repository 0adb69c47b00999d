"""NATURAL JOINs of built-in macros in DuckDB, which refuses those without a common column."""

from __future__ import annotations

from sqlglot import exp

from einsql.sql.macros.macros import MAY_CROSS

_COMMON = "#common"
"""The column with the value 0 that both sides of such a join get."""


def with_common_column(query: exp.Expr) -> exp.Expr:
    """Gives both sides of each NATURAL JOIN that may be a cross join a column in common.

    `FROM x NATURAL JOIN y` becomes `FROM (SELECT *, 0 AS "#common" FROM x) AS x NATURAL JOIN …`.
    The stars of the SELECT exclude the column.

    Args:
        query: The expansion of a built-in macro; it is not changed.
    """
    query = query.copy()
    for select in list(query.find_all(exp.Select)):
        joins = [j for j in select.args.get("joins") or [] if j.meta.get(MAY_CROSS)]
        if not joins:
            continue
        for source in (select.args["from_"].this, *(join.this for join in joins)):
            source.replace(_extended(source))
        for star in (_star(column) for column in select.expressions):
            if star is not None:
                excluded = exp.Column(this=exp.to_identifier(_COMMON, quoted=True))
                star.set("except_", [*(star.args.get("except_") or []), excluded])
    return query


def _extended(source: exp.Expr) -> exp.Subquery:
    """An item of FROM with the common column, under the same alias."""
    inner, alias = source.copy(), source.args.get("alias")
    if alias is None and isinstance(source, exp.Table):
        alias = exp.TableAlias(this=source.this.copy())
    zero = exp.Alias(this=exp.Literal.number(0), alias=exp.to_identifier(_COMMON, quoted=True))
    select = exp.Select(expressions=[exp.Star(), zero], from_=exp.From(this=inner))
    return exp.Subquery(this=select, alias=None if alias is None else alias.copy())


def _star(column: exp.Expr) -> exp.Star | None:
    """The star of `*` or `x.*`, or None for another item of SELECT."""
    star = column.this if isinstance(column, exp.Column) else column
    return star if isinstance(star, exp.Star) else None
