"""Names of WITH that a query sees."""

from __future__ import annotations

from sqlglot import exp

Scope = dict[str, exp.CTE | None]
"""Visible names of WITH in lower case, with their queries; None if DuckDB runs the query."""


def foreign_names(scope: Scope) -> frozenset[str]:
    """The names whose queries DuckDB runs."""
    return frozenset(n for n, cte in scope.items() if cte is None)


def define(scope: Scope, name: str, tree: exp.CTE | None) -> None:
    """Adds a name.

    If it hides a name of an enclosing WITH, DuckDB runs all enclosing queries, because they may
    read the hidden name.
    """
    if name.lower() in scope:
        scope.update(dict.fromkeys(scope))
    scope[name.lower()] = tree


def with_names(tree: exp.Expr, scope: Scope) -> exp.Expr | None:
    """Returns a query with the enclosing names of WITH that are tensor work.

    Returns None if the query's own WITH is recursive or hides an enclosing name.
    """
    known = [cte for cte in scope.values() if cte is not None]
    if not known:
        return tree
    tree = tree.copy()
    own = tree.args.get("with_")
    mine = [] if own is None else list(own.expressions)
    if own is not None and own.args.get("recursive"):
        return None
    if {cte.alias.lower() for cte in mine} & set(scope):
        return None
    tree.set("with_", exp.With(expressions=[*(cte.copy() for cte in known), *mine]))
    return tree
