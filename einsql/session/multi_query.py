"""Several SELECTs over the same tensors as one program: what they share is computed once."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from einsql.engine.executor import Program
from einsql.errors import NotSupportedError
from einsql.ir.einsum.graph import apart
from einsql.planner.plan import Plan
from einsql.planner.planner import BinderCatalog, make_plan, result_columns
from einsql.planner.rebind import current_inputs
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import Query
from einsql.sql.scope.relation import Relation
from einsql.storage.error_boundary import boundary
from einsql.storage.relation import Fields
from einsql.storage.results.result import Result

if TYPE_CHECKING:
    from einsql.session.connection import Connection


@dataclass
class Several:
    """SELECTs ready to run.

    Attributes:
        plans: One for each; the first has a program for all of them where one site computes.
    """

    plans: tuple[Plan, ...]

    @property
    def is_volatile(self) -> bool:
        """True if it is for once."""
        return any(p.volatile for p in self.plans)

    def run(self, con: Connection, inputs: Mapping[str, Fields]) -> list[Result]:
        """The results, in order."""
        first = self.plans[0]
        if isinstance(first.program, Program) and len(first.program.roots) == len(self.plans):
            found = first.program.run_all(first.complete(inputs, con._tick), con._tick)
            return [p.wrap(f, inputs, inputs) for p, f in zip(self.plans, found, strict=True)]
        return [p.result(inputs, con._tick) for p in self.plans]


def fetch_together(con: Connection, statements: Sequence[str]) -> list[Any]:
    """The arrays of several SELECTs, computed as one program on one site.

    Args:
        con: The session; it keeps the plan for the next time.
        statements: SELECTs without parameters, all of them tensor work.

    Returns:
        For each what `Cursor.fetch_numpy` gives.

    Raises:
        NotSupportedError: One is no SELECT, or outside the tensor fragment.
        Error: One is wrong or fails; keys are absent.
    """
    with con._busy, boundary, con._called_from(sys._getframe(1)), con._begun():
        con._open()
        found = _results(con, statements)
        with con._fetching():
            return [result.numpy() for result in found]


def _results(con: Connection, statements: Sequence[str]) -> list[Result]:
    key = "several", tuple(statements)
    made = con._several.get(key)
    if made is not None:
        con.store.refresh()
        inputs = current_inputs(made.plans[0], con.store, con.in_scope, con._tick)
        if inputs is not None:
            return made.run(con, inputs)
    made = _planned(con, statements)
    if not made.is_volatile:
        con._remember(con._several, key, made)
    return made.run(con, con._inputs)


def _planned(con: Connection, statements: Sequence[str]) -> Several:
    con._parameters = ()
    con.store.refresh()
    binder = con.query_binder()
    catalog = binder.catalog
    assert isinstance(catalog, BinderCatalog)
    relations: list[Relation] = []
    for text in statements:
        statement, doubt = parse(text)
        if doubt is not None or not isinstance(statement, Query):
            raise doubt or NotSupportedError("Only SELECTs are computed together")
        relations.append(binder.bind(statement.tree))
    con.planner_calls += 1
    settings = con.settings
    if con.cluster is not None or settings.sites > 1 or settings.device != "cpu":
        return Several(tuple(make_plan(r, catalog, con.notices) for r in relations))
    first, *more = apart(r.node for r in relations)
    plan = make_plan(replace(relations[0], node=first), catalog, con.notices, more)
    others = (replace(plan, relation=r, columns=result_columns(r)) for r in relations[1:])
    return Several((plan, *others))
