"""Queries: binding, planning, and running them once or again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from weakref import ReferenceType, ref

from sqlglot import exp

from einsql.core.bfloat16 import loaded
from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.core.unknowns import Recorder
from einsql.errors import Error
from einsql.ir.einsum.graph import TRUE, EinSum, Expr, Output
from einsql.ir.einsum.graph_rewriting import apart
from einsql.planner.compile import compiled
from einsql.planner.context import Context
from einsql.planner.dependencies import TensorDependency
from einsql.planner.outcome import Description, Rows
from einsql.planner.plan import Plan, PlanTemplate, inputs_fit, rebind_inputs
from einsql.planner.plan_cache import Template
from einsql.planner.planner import BinderCatalog, make_plan
from einsql.planner.stored_macros import refuse_variables
from einsql.planner.target import ExecutionTarget
from einsql.planner.templates import NeedsNumbersError
from einsql.sql.parameters.bound_parameters import BoundParameters
from einsql.sql.parameters.host_expr import NeedsValuesError
from einsql.sql.parameters.runtime_inputs import ParameterUse
from einsql.sql.query_binder import QueryBinder
from einsql.sql.scope.relation import Relation, TileRelation
from einsql.storage.fields import Fields
from einsql.storage.results.result import Result

if TYPE_CHECKING:
    from einsql.planner import tile_plan
    from einsql.planner.tile_plan import TilePlan
    from einsql.sql.tiles import free_tiling

    QueryPlan: TypeAlias = Plan | TilePlan

else:  # imported for queries over tiles only
    tile_plan = LazyModule("einsql.planner.tile_plan")
    free_tiling = LazyModule("einsql.sql.tiles.free_tiling")

T = TypeVar("T")

UNAWARE: tuple[type[Exception], ...] = (NeedsNumbersError, NeedsValuesError, NotImplementedError)
UNAWARE += (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions of code that does not know unknowns.

Others come from the caller: a callback of `progress` or a signal handler may raise any exception.
"""


@dataclass(frozen=True, slots=True)
class Bound:
    """A bound query.

    Attributes:
        relation: The graph over elements or tiles, with its columns.
        binder: The binder that bound the query.
        over_numbers: Binds the query again; None if the extents of its inputs are numbers.
    """

    relation: Relation | TileRelation
    binder: QueryBinder
    over_numbers: Callable[[], Bound] | None = None

    @property
    def catalog(self) -> BinderCatalog:
        """The names that the query read, and their meaning."""
        return catalog_of(self.binder)

    @property
    def inputs(self) -> Mapping[str, Fields]:
        """The fields of every input that the query reads."""
        return self.catalog.fields


def catalog_of(binder: QueryBinder) -> BinderCatalog:
    """Returns the catalog of a binder that `query_binder` created."""
    assert isinstance(binder.catalog, BinderCatalog)
    return binder.catalog


def query_binder(
    ctx: Context,
    late: bool = False,
    fixed: AbstractSet[int] = frozenset(),
    foreign: frozenset[str] = frozenset(),
    unknowns: bool = False,
    **more: Any,
) -> QueryBinder:
    """Returns a binder over the session's names and the statement's parameters.

    Args:
        ctx: The services.
        late: Whether parameters may be read at run time.
        fixed: The numbers of parameters whose values the plan depends on in any case.
        foreign: Lower-case names that are not tensors in the query.
        unknowns: Whether the extents of the inputs are unknowns.
        more: Further attributes of the catalog.
    """
    fields: dict[str, Fields] = {}
    parameters = BoundParameters(ctx.parameters, late, set(fixed), fields)
    catalog = BinderCatalog(
        store=ctx.store,
        settings=ctx.settings,
        in_scope=ctx.array_named,  # replaced below, as it depends on the binder
        tick=ctx.tick,
        given=parameters,
        cluster=ctx.cluster,
        memory=ctx.memory,
        has_table=ctx.has_table,
        check_macro=partial(refuse_variables, ctx),
        fields=fields,
        recorder=Recorder() if unknowns else None,
        **more,
    )
    binder = QueryBinder(catalog, parameters, ctx.notices, foreign=foreign)
    catalog.in_scope = partial(_variable, ctx, ref(binder))  # no cycle
    return binder


def _variable(ctx: Context, binder: ReferenceType[QueryBinder], name: str) -> object | None:
    """Returns an array among the caller's variables, which no stored view reads."""
    reader = binder()
    views = (active.removeprefix("view ") for active in (reader.active if reader else ()))
    return None if any(map(ctx.is_stored, views)) else ctx.array_named(name)


def bind_again(ctx: Context, tree: exp.Expr) -> Bound:
    """Binds a query that may run again, over unknown extents where this is possible.

    Raises:
        Error: The query is invalid, or outside the tensor fragment.
    """
    if ctx.target is ExecutionTarget.CPU and ctx.settings.plan is None:
        noticed = len(ctx.notices)
        try:
            bound = bind_query(ctx, tree, unknowns=True)
            return replace(bound, over_numbers=partial(bind_query, ctx, tree))
        except UNAWARE:  # a part of the binder that does not know unknowns
            del ctx.notices[noticed:]
    return bind_query(ctx, tree)


def bind_query(
    ctx: Context,
    tree: exp.Expr,
    foreign: frozenset[str] = frozenset(),
    unknowns: bool = False,
) -> Bound:
    """Binds a query over elements or tiles.

    Args:
        ctx: The services.
        tree: The query.
        foreign: Lower-case names that are not tensors in the query.
        unknowns: Whether the extents of the inputs are unknowns.

    Raises:
        NeedsNumbersError: The query cannot be bound over unknowns.
        Error: The query is invalid, or outside the tensor fragment.
    """

    def bind(binder: QueryBinder) -> Relation | TileRelation:
        relation = binder.bind_any(tree)
        if not isinstance(relation, Relation) and binder.parameters.read:
            raise NeedsValuesError(range(1, len(binder.parameters.values) + 1))
        return relation

    make = partial(query_binder, ctx, foreign=foreign, unknowns=unknowns)
    bound = Bound(*bind_late(make, bind, ctx.notices))
    for dependency in bound.catalog.dependencies:
        if isinstance(dependency, TensorDependency):
            ctx.note_hidden(dependency.tensor)
    return bound


def bind_late(
    make: Callable[[bool, AbstractSet[int]], QueryBinder],
    bind: Callable[[QueryBinder], T],
    notices: list[str],
) -> tuple[T, QueryBinder]:
    """Binds with parameters that are read at run time, where this is possible.

    Args:
        make: Creates a binder. Its arguments are whether it may read parameters at run time, and
            the numbers of the parameters with fixed values.
        bind: Binds a query or a statement.
        notices: Messages of the binders.

    Returns:
        The result of `bind`, and its binder.

    Raises:
        Error: The statement is invalid, or outside the tensor fragment.
    """
    late, fixed, noticed = True, frozenset[int](), len(notices)
    while True:
        binder = make(late, fixed)
        del notices[noticed:]
        try:
            return bind(binder), binder
        except NeedsValuesError as needs:
            fixed |= needs.numbers
        except Error:
            if not binder.parameters.read:
                raise
            late = False  # the error may depend on the values


def plan_query(ctx: Context, bound: Bound) -> QueryPlan:
    """Optimises and compiles a bound query.

    Raises:
        Error: The query is outside the tensor fragment, or too large.
    """
    if isinstance(bound.relation, Relation):
        try:
            return plan_relation(ctx, bound.relation, bound.binder)
        except UNAWARE:  # a part of the optimizer that does not know unknowns
            if bound.over_numbers is None:
                raise
            ctx.plans.planned -= 1
            return plan_query(ctx, bound.over_numbers())
    ctx.plans.planned += 1
    return make_tile_plan(bound.relation, bound.catalog, ctx.notices)


def make_tile_plan(relation: TileRelation, catalog: BinderCatalog, notices: list[str]) -> TilePlan:
    """Plans a bound relation over tiles; plan files have no plans over tiles.

    Raises:
        InterfaceError: A name among the disabled rules is no rule.
    """
    file = catalog.settings.plan
    if file is not None and catalog.settings.sites > 1:
        notice = f"'{file.path}' has no plan for a statement over TILES; it is planned without it"
        catalog.shared.notice_once(notices, notice)
    return tile_plan.TilePlan(
        catalog.tile_program(relation.node),
        tuple((c.name, c.key) for c in relation.columns),
        tile_plan.description_of(relation),
        catalog.parts(tile_plan.scanned(relation.node)),
        tuple(catalog.dependencies),
        tuple(notices),
        catalog.store.names,
        catalog.volatile,
        catalog.files,
        tuple(catalog.probes),
        catalog.given.use,
    )


def plan_together(
    ctx: Context, relations: Sequence[Relation], catalog: BinderCatalog
) -> tuple[Plan, ...]:
    """Returns one plan with a root for each relation; on a GPU one plan for each."""
    ctx.plans.planned += 1
    if ctx.target is ExecutionTarget.DEVICE:
        return tuple(make_plan(r, catalog, ctx.notices) for r in relations)
    first, *more = apart(r.node for r in relations)
    return (make_plan(replace(relations[0], node=first), catalog, ctx.notices, more),)


def plan_relation(ctx: Context, relation: Relation, binder: QueryBinder) -> Plan:
    """Optimises and compiles a relation over elements that a binder bound."""
    ctx.plans.planned += 1
    return make_plan(relation, catalog_of(binder), ctx.notices)


@dataclass(slots=True)
class PreparedQuery:
    """A planned query, an implementation of `planner.prepared.PreparedStatement`.

    Attributes:
        plan: The plan.
        inputs: The fields that binding read, for the first run; None later, so that arrays are
            freed.
    """

    plan: QueryPlan
    inputs: Mapping[str, Fields] | None = None

    @property
    def is_volatile(self) -> bool:
        """Whether the plan is valid for one run only."""
        return self.plan.volatile

    @property
    def version(self) -> int:
        """The version of the session's names at the time of planning."""
        return self.plan.version

    @property
    def use(self) -> ParameterUse | None:
        """The plan's use of parameters."""
        return self.plan.use

    @property
    def template(self) -> Template | None:
        """The template for inputs of other extents."""
        known = self.plan.template if isinstance(self.plan, Plan) else None
        return None if known is None else QueryTemplate(known)

    def fits(self, ctx: Context) -> bool | None:
        """See `planner.plan_cache.Cacheable`."""
        return inputs_fit(self.plan, ctx)

    def described(self, ctx: Context) -> Description | None:
        """Returns the description of the columns if the plan still fits the names; else None."""
        is_current = self.plan.version == ctx.store.names and inputs_fit(self.plan, ctx)
        return self.plan.description if is_current else None

    def run(self, ctx: Context) -> Rows | None:
        """Runs the plan; returns None if its dependencies have changed."""
        inputs, self.inputs = self.inputs, None
        tick = ctx.progress.tick
        if inputs is None:
            store = ctx.store
            if store.seen is not store.database.state:
                store.refresh()
            inputs = rebind_inputs(self.plan, ctx)
            if inputs is None:
                return None
        return Rows(self.plan.result(inputs, tick), self.plan.description)


@dataclass(frozen=True, slots=True)
class QueryTemplate:
    """A template of plans, as `planner.plan_cache.Template` of prepared queries."""

    plans: PlanTemplate

    def prepare(self, ctx: Context) -> PreparedQuery | None:
        """Returns the query prepared for the present inputs; None if a condition fails."""
        plan = self.plans.prepare(ctx)
        return None if plan is None else PreparedQuery(plan)


def select(ctx: Context, tree: exp.Query) -> tuple[Result, Mapping[str, Fields]]:
    """Runs a query inside another statement.

    Returns:
        The result, with tiles assembled to a tensor, and the inputs of the query.

    Raises:
        Error: The query is invalid, outside the tensor fragment, or fails.
    """
    return select_bound(ctx, bind_query(ctx, tree))


def select_bound(ctx: Context, bound: Bound) -> tuple[Result, Mapping[str, Fields]]:
    """Runs a bound query inside another statement; see `select`."""
    bound = merged_back(bound)
    result = plan_query(ctx, bound).result(bound.inputs, ctx.tick)
    return (result if isinstance(result, Result) else result.tensor()), bound.inputs


def merged_back(bound: Bound) -> Bound:
    """The query over elements, for a statement that stores the tiles of TILES without numbers."""
    if isinstance(bound.relation, TileRelation) and free_tiling.is_free(bound.relation):
        return replace(bound, relation=free_tiling.merged_back(bound.relation))
    return bound


def evaluate(ctx: Context, expr: Expr) -> Any:
    """Evaluates an expression without columns."""
    node = EinSum((), (), TRUE, (), (Output("c", (expr,), expr.dtype),))
    cell = compiled(node, ctx.settings).run({}, ctx.tick)[0]["c"]
    return loaded(cell, expr.dtype).item()
