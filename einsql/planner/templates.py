"""Templates: rewritten graphs whose extents are unknowns, from which plans are made.

A template is made when a statement is planned for inputs of other bounds for the first time. It is
used only if it gives the graphs of both plans that exist then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.errors import Error
from einsql.ir.einsum.graph import EinSum, Roots, walk
from einsql.optimizer import Optimized, optimize
from einsql.optimizer.plan_files.fingerprint import fingerprint
from einsql.planner.compile import check_domains, compiled
from einsql.planner.dependencies import Dependency, ScopeDependency, TensorDependency
from einsql.planner.extents import Extent, Recorder
from einsql.planner.plan import Plan
from einsql.planner.queries import PreparedQuery, bind_late, catalog_of, query_binder
from einsql.planner.target import ExecutionTarget
from einsql.sql.scope.relation import Relation

if TYPE_CHECKING:
    from sqlglot import exp

    from einsql.planner.context import Context
    from einsql.planner.tile_plan import TilePlan

Terms = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Template:
    """A graph over unknown extents, and the conditions under which its rewriting is valid.

    Attributes:
        relation: The bound relation.
        roots: The rewritten graph.
        terms: The values of the terms for some extents; None if a condition fails.
        base: A plan for some extents.
    """

    relation: Relation
    roots: Roots
    terms: Callable[[Sequence[int]], Terms | None]
    base: Plan

    def prepare(self, ctx: Context) -> PreparedQuery | None:
        """Returns the statement for the present inputs; None if a condition fails."""
        if self.base.version != ctx.store.names:
            return None
        try:
            return self._prepared(ctx)
        except (Error, RecursionError):
            return None  # planning anew reports the error, or has more room

    def _prepared(self, ctx: Context) -> PreparedQuery | None:
        base = self.base
        dependencies: list[Dependency] = []
        for d in base.dependencies:
            schema = _present(d, ctx)
            if schema is None:
                return None
            dependencies.append(replace(d, schema=schema))
        terms = self.terms(_extents(dependencies))
        if terms is None:
            return None
        known: dict[int, Any] = {}
        for node in walk(self.relation.node):  # producers first, so that the recursion stays flat
            _over(node, terms, known)
        relation = _over(self.relation, terms, known)
        roots = self.rewritten(terms, known)
        check_domains(*roots)
        root, *more = roots
        program = compiled(root, ctx.settings, ctx.memory, more)
        optimized = Optimized(roots, ())
        plan = replace(
            base, relation=relation, optimized=optimized, program=program,
            dependencies=tuple(dependencies),
        )  # fmt: skip
        return PreparedQuery(plan)

    def rewritten(self, terms: Terms, known: dict[int, Any]) -> Roots:
        """The rewritten graph for the values of the terms."""
        for node in walk(*self.roots):
            _over(node, terms, known)
        return tuple(known[id(root)] for root in self.roots)

    def gives(self, plan: Plan) -> bool:
        """Whether the template gives the graph of a plan."""
        terms = self.terms(_extents(plan.dependencies))
        if terms is None:
            return False
        return fingerprint(*self.rewritten(terms, {})) == fingerprint(*plan.optimized.roots)


def template_of(
    ctx: Context, tree: exp.Query, prepared: Sequence[Plan | TilePlan]
) -> Template | None:
    """Returns a template for a query; None if its plan depends on more than extents.

    Args:
        ctx: The services.
        tree: The query.
        prepared: Plans of the query for different extents, the one for the present inputs first.
    """
    plans = [p for p in prepared if isinstance(p, Plan)]
    if len(plans) < len(prepared):
        return None
    plan = plans[0]
    if ctx.target is not ExecutionTarget.CPU or ctx.parameters or ctx.settings.plan is not None:
        return None
    if any(p.volatile or p.parts or p.probes or p.reads or p.notices or p.ends for p in plans):
        return None
    if any(type(d) not in (TensorDependency, ScopeDependency) for d in plan.dependencies):
        return None
    recorder, noticed = Recorder(), len(ctx.notices)
    try:
        relation, binder = bind_late(
            partial(query_binder, ctx, extents=recorder.extent), lambda b: b.bind(tree), []
        )
        names = [d.name for d in catalog_of(binder).dependencies]
        if names != [d.name for d in plan.dependencies] or catalog_of(binder).volatile:
            return None
        disabled = ctx.settings.disabled_rules
        optimized = optimize(relation.node, disabled=disabled, alone=True)
        graph = [n for n in walk(relation.node, *optimized.roots) if isinstance(n, EinSum)]
        bounds = {b for n in graph for a in n.axes for b in (a.lo, a.hi) if type(b) is int}
        terms = recorder.function(sorted(bounds))
        template = Template(relation, optimized.roots, terms, plan)
        return template if all(map(template.gives, plans)) else None
    except Exception:  # code that does not know extents; the statement is planned anew each time
        return None
    finally:
        del ctx.notices[noticed:]  # the plan has given them already


def _extents(dependencies: Sequence[Dependency]) -> list[int]:
    return [k.hi for d in dependencies for k in d.schema.keys]


def _present(dependency: Dependency, ctx: Context) -> Schema | None:
    """The present schema of an input, if it differs in upper bounds at most."""
    assert isinstance(dependency, TensorDependency | ScopeDependency)
    schema = dependency.present(ctx)
    known = dependency.schema
    if schema is None or schema.fields != known.fields:
        return None
    same = [(k.name, k.lo) for k in schema.keys] == [(k.name, k.lo) for k in known.keys]
    return schema if same else None


def _over(item: Any, terms: Terms, known: dict[int, Any]) -> Any:
    """An object of a graph with numbers in the place of extents."""
    kind = type(item)
    if kind is Extent:
        return terms[item.term]
    if kind is tuple:
        new = [_over(x, terms, known) for x in item]
        return item if all(map(_same, new, item)) else tuple(new)
    if not is_dataclass(kind):
        return item
    if id(item) not in known:
        changes = {}
        for f in fields(item):
            if f.init:
                before = getattr(item, f.name)
                after = _over(before, terms, known)
                if after is not before:
                    changes[f.name] = after
        known[id(item)] = replace(item, **changes) if changes else item
    return known[id(item)]


def _same(a: object, b: object) -> bool:
    return a is b
