"""Several SELECTs over the same tensors as one program, which computes common parts once."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.errors import NotSupportedError
from einsql.planner.plan import Plan, rebind_inputs, result_columns, run_plans
from einsql.planner.queries import catalog_of, plan_together, query_binder
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import Query
from einsql.sql.scope.relation import Relation
from einsql.storage.fields import Fields
from einsql.storage.results.result import Result

if TYPE_CHECKING:
    from einsql.planner import plan_files
    from einsql.planner.context import Context
    from einsql.session.connection import Connection
else:  # imported for plan files only
    plan_files = LazyModule("einsql.planner.plan_files")


@dataclass
class MultiQuery:
    """Planned SELECTs.

    Attributes:
        plans: One plan for each query.
        runs: The plans whose programs compute all queries, in execution order.
    """

    plans: tuple[Plan, ...]
    runs: tuple[Plan, ...]

    @property
    def is_volatile(self) -> bool:
        """True if the plans may run only once."""
        return any(p.volatile for p in self.plans)

    def run(self, ctx: Context, inputs: Mapping[str, Fields]) -> list[Result]:
        """Runs the plans and returns one result for each query."""
        roots = run_plans(self.runs, inputs, ctx.tick)
        return [p.wrap(f, known) for p, (f, known) in zip(self.plans, roots, strict=True)]


def fetch_together(con: Connection, statements: Sequence[str]) -> list[Any]:
    """Returns the arrays of several SELECTs, computed as one program on one site.

    Args:
        con: The session, which caches the plan.
        statements: SELECTs of the tensor fragment without parameters.

    Returns:
        The result of `Cursor.fetch_numpy` for each SELECT.

    Raises:
        NotSupportedError: A statement is no SELECT, or outside the tensor fragment.
        Error: A SELECT is wrong or fails, or keys are absent.
    """
    with con.running(sys._getframe(1), ()):
        results = _results(con.context, statements)
        with con.fetching():
            return [result.numpy() for result in results]


def _results(ctx: Context, statements: Sequence[str]) -> list[Result]:
    if ctx.settings.plan is not None:
        plan_files.refresh(ctx)
    key = "together", tuple(statements)
    cached = ctx.plans.get(key)
    if isinstance(cached, MultiQuery):
        ctx.store.refresh()
        inputs = rebind_inputs(cached.plans[0], ctx)
        if inputs is not None:
            return cached.run(ctx, inputs)
    prepared, read = _planned(ctx, statements)
    if not prepared.is_volatile:
        ctx.plans.put(key, prepared)
    return prepared.run(ctx, read)


def _planned(ctx: Context, statements: Sequence[str]) -> tuple[MultiQuery, Mapping[str, Fields]]:
    ctx.store.refresh()
    binder = query_binder(ctx)
    catalog = catalog_of(binder)
    relations: list[Relation] = []
    for text in statements:
        statement, doubt = parse(text)
        if doubt is not None or not isinstance(statement, Query):
            raise doubt or NotSupportedError("Only SELECTs are computed together")
        relations.append(binder.bind(statement.tree))
    plans = plan_together(ctx, relations, catalog)
    shared = relations[len(plans) :]  # the same program computes them
    others = (
        replace(plans[0], schema=r.node.schema, hidden=r.hidden, columns=result_columns(r))
        for r in shared
    )
    return MultiQuery((*plans, *others), plans), catalog.fields
