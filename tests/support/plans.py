"""Plans of connections, for tests that look at them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlglot import exp

import einsql
from einsql.planner.plan import Plan
from einsql.planner.queries import PreparedQuery, bind_query, plan_query
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import Query
from einsql.storage.fields import Fields


def cached(con: einsql.Connection, sql: str, parameters: Sequence[object] = ()) -> Any:
    """The plan that a connection caches for a text; None without one."""
    variants = con.context.plans.find(sql, parameters)
    prepared = None if variants is None else variants.find(parameters)
    return prepared.plan if isinstance(prepared, PreparedQuery) else prepared


def planned(con: einsql.Connection, tree: exp.Expr) -> tuple[Plan, Mapping[str, Fields]]:
    """The plan of a query over elements, and the inputs that it reads."""
    bound = bind_query(con.context, tree)
    plan = plan_query(con.context, bound)
    assert isinstance(plan, Plan)
    return plan, bound.inputs


def tree_of(sql: str) -> exp.Query:
    """The tree of a query."""
    query, _ = parse(sql)
    assert isinstance(query, Query)
    return query.tree
