"""Tensor fragments of a DuckDB statement: binding, planning and execution."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from sqlglot import exp

from einsql.core.records import dataclass
from einsql.errors import OF_A_TABLE, Error, NotSupportedError, UnknownHere
from einsql.hybrid.split.operands import names_in, refusal, sources
from einsql.hybrid.split.parts import Fragment, column_of
from einsql.hybrid.split.sharing import share
from einsql.ir.einsum.graph import Input
from einsql.planner.dependencies import SharedQueries
from einsql.planner.outcome import Rows
from einsql.planner.plan import Plan, rebind_inputs
from einsql.planner.planner import BinderCatalog
from einsql.planner.queries import Bound, catalog_of, plan_query, query_binder
from einsql.planner.target import ExecutionTarget
from einsql.sql.macros.macros import Macro
from einsql.sql.query_binder import QueryBinder
from einsql.sql.scope.relation import Column, Relation
from einsql.storage.duckdb.operands import Named, Tables
from einsql.storage.duckdb.streams import stream
from einsql.storage.fields import LocalFields
from einsql.storage.objects import Definition, bare_name
from einsql.storage.results.result import Result

if TYPE_CHECKING:
    from einsql.engine.step import Tick
    from einsql.planner.context import Context
    from einsql.planner.tile_plan import TilePlan
    from einsql.storage.fields import Fields


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PlannedFragment:
    """A planned fragment, or the planned element rows of a tensor.

    Attributes:
        plan: The plan.
        names: The column names in DuckDB.
    """

    plan: Plan | TilePlan
    names: tuple[str, ...]

    def shown(self, inputs: Mapping[str, Fields], tick: Tick) -> object:
        """Runs the plan and returns an Arrow stream or table for DuckDB."""
        return self.counted(inputs, tick)[0]

    def counted(self, inputs: Mapping[str, Fields], tick: Tick) -> tuple[object, int]:
        """Runs the plan.

        Returns:
            An Arrow stream or table for DuckDB, and the number of its elements. A dense result
            counts all its keys.
        """
        query_result = self.plan.result(inputs, tick)
        if not isinstance(query_result, Result):
            return query_result.arrow().rename_columns(list(self.names)), 0
        is_sparse = query_result.fields.is_sparse
        count = len(query_result) if is_sparse else query_result.schema.size
        return stream(query_result, self.names), count


@dataclass
class FragmentRunner:
    """Plans and runs the fragments of one statement.

    Attributes:
        ctx: The session.
        tables: The reader of tables that are operands.
        has_gradient: Whether the statement calls GRADIENT. DuckDB has no such function, so
            every query that a loss may read becomes a fragment if it binds.
        plans: The planned fragments and tensors, by their name in DuckDB.
        once: The plans of subqueries that several fragments read, by name, in execution order.
        element_rows: The elements of all relations for DuckDB, if no filter leaves any out.
    """

    ctx: Context
    tables: Tables
    has_gradient: bool = False
    plans: dict[str, PlannedFragment] = field(default_factory=dict)
    once: dict[str, PlannedFragment] = field(default_factory=dict)
    element_rows: int = 0
    _shared: SharedQueries = field(default_factory=SharedQueries)

    def binder(self, tree: exp.Expr, foreign: frozenset[str]) -> QueryBinder:
        """Returns a binder for a fragment, which may read DuckDB tables as operands."""
        ctx = self.ctx
        self.tables.named = _named(ctx, tree)
        alone = ctx.target is not ExecutionTarget.SITES
        tables = self.tables if alone else None
        binder = query_binder(ctx, tables=tables, shared=self._shared)
        binder.foreign = foreign
        return binder

    def with_tables(
        self, tree: exp.Expr, foreign: frozenset[str], error: Error
    ) -> list[str] | Error:
        """Binds a query with tables as operands. Returns its column names, or the error.

        Args:
            tree: The query.
            foreign: Names of WITH that do not refer to tensors.
            error: The error of binding without tables.
        """
        is_ours = self.has_gradient or calls_aggregate(self.ctx, tree)
        if not is_ours and not any(self._is_tensor(t) for t in sources(tree)):
            return error
        binder = self.binder(tree, foreign)
        binder.notices = []
        self.tables.outside.clear()
        names = (t.name for t in sources(tree) if isinstance(t.this, exp.Identifier))
        table = next(filter(self.ctx.has_table, names), None)
        if is_ours and table is not None and self.ctx.target is ExecutionTarget.SITES:
            return NotSupportedError(
                f"{table} is a table, which one site reads",
                hint="SET sites = 1, or CREATE TENSOR … AS SELECT a tensor of it.",
                position=error.position,
            )
        try:
            bound = binder.bind_any(tree)
        except NotSupportedError as outside:
            return outside
        except Error as wrong:
            if not self.tables.outside:
                return wrong if is_ours else error
            return self.tables.mismatch(error.position)
        if not isinstance(bound, Relation):
            return error
        reason = refusal(bound.node, is_ours or bool(binder.backward))
        if reason is None:
            return [c.name for c in bound.columns]
        shown = catalog_of(binder).operand_tables
        return NotSupportedError(
            f"{shown} stays in DuckDB: {reason}", hint=OF_A_TABLE, position=error.position
        )

    def _is_tensor(self, item: exp.Table) -> bool:
        """Returns True if an item of FROM may be a tensor; only then tables are looked up."""
        if not isinstance(item.this, exp.Identifier):
            return True
        name = item.name
        is_known = self.ctx.store.get(name) is not None
        return is_known or self.ctx.array_named(name) is not None or "." in name

    def plan(self, fragment: Fragment) -> tuple[PlannedFragment, Mapping[str, Fields]]:
        """Binds and plans a fragment.

        Returns:
            The plan, and the inputs that were read during binding.
        """
        binder = self.binder(fragment.tree, fragment.foreign)
        bound = Bound(binder.bind_any(fragment.tree), binder)
        names = tuple(map(column_of, range(len(fragment.names))))
        return PlannedFragment(plan_query(self.ctx, bound), names), bound.inputs

    def compute(self, requested: Sequence[Fragment], tensors: Sequence[str]) -> dict[str, object]:
        """Runs fragments and reads tensors. Returns the relations for DuckDB, by name."""
        ctx = self.ctx
        try:
            shared, fragments = share(requested, query_binder(ctx).catalog.view)
            for o in shared:
                planned, inputs = self.plan(Fragment(o.name, o.tree, o.foreign, (), o.shown))
                query_result = planned.plan.result(inputs, ctx.tick)
                if not isinstance(query_result, Result) or not query_result.fields.is_local:
                    fragments = list(requested)  # a result on ranks cannot be an operand
                    break
                assert isinstance(planned.plan, Plan)
                low, plan = o.name.lower(), planned.plan
                columns = (Column(c.name, c.dtype, c.key, c.field, c.over) for c in plan.columns)
                relation = Relation(Input(low, plan.schema), tuple(columns))
                self._shared.relations[low] = relation
                self._shared.fields[low] = _filled(query_result)
                self.once[low] = planned
            relations: dict[str, object] = {}
            self.element_rows = 0
            planned_by_name = ((f.name, partial(self.plan, f)) for f in fragments)
            of_tensors = ((name, partial(self._elements, name)) for name in tensors)
            for name, plan_it in (*planned_by_name, *of_tensors):
                self.plans[name], inputs = plan_it()
                relations[name], count = self.plans[name].counted(inputs, ctx.tick)
                self.element_rows += count
            return relations
        finally:
            self._release()

    def _elements(self, name: str) -> tuple[PlannedFragment, Mapping[str, Fields]]:
        """Plans the element rows of a tensor, or of an array in the caller's scope."""
        binder = query_binder(self.ctx)
        relation = binder.named(name, exp.to_identifier(name))
        assert isinstance(relation, Relation)
        names = tuple(c.name for c in relation.columns)
        bound = Bound(relation, binder)
        return PlannedFragment(plan_query(self.ctx, bound), names), bound.inputs

    def whole(self, fragment: Fragment) -> Rows | None:
        """Runs a statement that is one fragment. Returns None if the result has no keys."""
        ctx = self.ctx
        try:
            planned, inputs = self.plan(fragment)
            self.plans[fragment.name] = planned
            if isinstance(planned.plan, Plan) and planned.plan.hidden:
                return None
            return Rows(planned.plan.result(inputs, ctx.tick), planned.plan.description)
        finally:
            self.tables.forget()

    def current(self) -> dict[str, Mapping[str, Fields]] | None:
        """Returns the current inputs of every plan, by name, or None if a plan is outdated."""
        ctx = self.ctx
        inputs_by_plan: dict[str, Mapping[str, Fields]] = {}
        self.tables.forget()  # tables may have changed since they were read
        try:
            for name, planned in self.once.items():
                inputs = rebind_inputs(planned.plan, ctx)
                if inputs is None:
                    return None
                result = planned.plan.result(inputs, ctx.tick)
                if not isinstance(result, Result):
                    return None
                self._shared.fields[name] = _filled(result)
            for name, planned in self.plans.items():
                inputs = rebind_inputs(planned.plan, ctx)
                if inputs is None:
                    return None
                inputs_by_plan[name] = inputs
            return inputs_by_plan
        finally:
            self._release()

    def _release(self) -> None:
        """Releases the arrays that the statement has read and computed."""
        self._shared.relations.clear()
        self._shared.fields.clear()
        self.tables.forget()


def bound_over_tables(
    ctx: Context,
    tree: exp.Expr,
    bind: Callable[[Callable[..., QueryBinder]], tuple[T, QueryBinder]],
) -> tuple[T, QueryBinder]:
    """Binds a statement that changes tensors.

    In a statement that begins with WITH, DuckDB tables may be operands, because DuckDB cannot run
    the statement itself.

    Args:
        ctx: The session.
        tree: The statement.
        bind: Callback that binds the statement with a binder factory, its argument.

    Returns:
        The results of `bind`.

    Raises:
        Error: The statement is invalid or outside the tensor fragment.
    """
    try:
        return bind(partial(query_binder, ctx))
    except (UnknownHere, NotSupportedError):
        alone = ctx.target is not ExecutionTarget.SITES
        if not alone or ctx.settings.fallback == "off" or tree.args.get("with_") is None:
            raise
    tables = Tables(ctx.duck, ctx.has_table, ctx.tick, _named(ctx, tree), keeps=False)
    try:
        return bind(partial(query_binder, ctx, tables=tables))
    except UnknownHere as error:
        raise (tables.mismatch(error.position) if tables.outside else error) from None
    finally:
        tables.forget()


def check_groups(roots: Iterable[Relation], catalog: BinderCatalog) -> None:
    """Refuses tables as operands if their rows are too sparse for a dense tensor.

    Raises:
        NotSupportedError: The rows of a table are too sparse.
    """
    tables = catalog.operand_tables
    for root in roots if tables else ():
        reason = refusal(root.node, is_ours=True)
        if reason is not None:
            raise NotSupportedError(f"{tables} is no operand: {reason}", hint=OF_A_TABLE)


def calls_aggregate(ctx: Context, tree: exp.Expr) -> bool:
    """Returns whether a query may call an aggregate of CREATE AGGREGATE, which DuckDB lacks."""
    definitions = _definitions(ctx, tree)
    return any(isinstance(d, Macro) and d.law is not None for d in definitions)


def _named(ctx: Context, tree: exp.Expr) -> Named:
    """Returns the names in a query and in the views and macros that it may read."""

    def is_tensor(name: str) -> bool:
        return ctx.store.get(name) is not None or ctx.array_named(name) is not None

    bodies = map(_body, _definitions(ctx, tree))
    trees = [tree, *(body for body in bodies if isinstance(body, exp.Expr))]
    return Named(*names_in(trees, is_tensor))


def _definitions(ctx: Context, tree: exp.Expr) -> list[object]:
    """Returns the views and macros that a query may read, in the form of `Body.tree`."""
    left: dict[str, list[Definition]] = {}
    for item in ctx.store.objects.values():
        if isinstance(item, Definition):
            left.setdefault(bare_name(item).lower(), []).append(item)
    definitions: list[object] = []
    trees = [tree]
    for read in trees:  # the loop appends to it
        names = {i.name.lower() for i in read.find_all(exp.Identifier, exp.Anonymous)}
        read_here = [d.body.tree for name in names & left.keys() for d in left.pop(name)]
        definitions += read_here
        trees += [body for body in map(_body, read_here) if isinstance(body, exp.Expr)]
    return definitions


def _body(definition: object) -> object:
    return definition.body if isinstance(definition, Macro) else definition


def _filled(result: Result) -> Fields:
    """Returns the fields of a result; adds flag arrays, which are omitted if all flags are True."""
    schema = result.schema
    missing = [f.name for f in schema.fields if f.name not in result.fields]
    flags = {n: np.broadcast_to(np.True_, schema.shape) for n in missing}
    return LocalFields({**result.fields, **flags})
