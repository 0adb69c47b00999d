"""INSERT, UPDATE and DELETE of tensors, alone and as parts of WITH.

Every part reads the state before the statement. All parts are roots of one graph, so common
subexpressions are computed once. All changes are stored together at the end, or none of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.core.records import cached_property, dataclass
from einsql.core.schema import Schema
from einsql.errors import Error, NotSupportedError, ProgrammingError, UnknownHere
from einsql.hybrid.fragments import bound_over_tables, check_groups
from einsql.planner.outcome import Changed, Outcome, Rows
from einsql.planner.plan import Plan, inputs_fit, owners, rebind_inputs, result_columns, run_plans
from einsql.planner.queries import bind_late, catalog_of, plan_together
from einsql.session.statements import insert as rows_of
from einsql.session.statements import update
from einsql.session.statements.box_insert import boxed
from einsql.session.statements.parts import (
    Delete,
    Ends,
    Inputs,
    InsertSelect,
    InsertValues,
    Part,
    Update,
    UpdateOrDelete,
)
from einsql.session.statements.target import writable
from einsql.session.statements.value_checks import refuse_violations
from einsql.session.statements.write_set import Write, WriteSet, joined, store
from einsql.sql.binder.dml import (
    Target,
    Touch,
    bind_delete,
    bind_insert,
    bind_update,
    insertion,
    literal_rows,
    target_of,
)
from einsql.sql.parameters.host_expr import NeedsValuesError
from einsql.sql.parameters.runtime_inputs import ParameterUse
from einsql.sql.parser.positions import position, unsupported
from einsql.sql.parser.sqlglot_trees import changing
from einsql.sql.query_binder import QueryBinder
from einsql.sql.scope.relation import Relation
from einsql.storage.fields import Fields, LocalFields, as_fields
from einsql.storage.objects import Tensor
from einsql.storage.results.result import Result

if TYPE_CHECKING:
    from einsql.planner.context import Context


@dataclass
class PreparedDml:
    """A prepared statement that changes tensors.

    Attributes:
        parts: The changes; the change of the statement's own body is last.
        shown: The SELECT after WITH; None if the body is a change.
        plans: One plan for all roots on one site, else one plan for each root.
        version: The version of the store's names when the statement was bound.
        targets: The schemas of the changed tensors by name.
        use: The use of parameters by the plan.
        is_volatile: Whether it may run only once: a plan is volatile, or VALUES has parameters.
    """

    parts: tuple[Part, ...]
    shown: Relation | None
    plans: tuple[Plan, ...]
    version: int
    use: ParameterUse
    is_volatile: bool
    targets: Mapping[str, Schema]

    def fits(self, ctx: Context) -> bool | None:
        """See `planner.plan_cache.Cacheable`."""
        if not self._targets_fit(ctx):
            return False
        return inputs_fit(self.plans[0], ctx) if self.plans else True

    def _targets_fit(self, ctx: Context) -> bool:
        """Whether every changed tensor has the schema for which the statement was bound."""
        for name, schema in self.targets.items():
            tensor = ctx.store.get(name)
            if not isinstance(tensor, Tensor):
                return False
            present = tensor.relation.schema
            if present is not schema and present != schema:
                return False
        return True

    def run(self, ctx: Context) -> Outcome | None:
        """Runs the statement. Returns None if it has to be bound again.

        Raises:
            Error: A part fails; then nothing has changed.
        """
        with ctx.store.statement():
            if self.version != ctx.store.names or not self._targets_fit(ctx):
                return None
            inputs: Mapping[str, Fields] | None = {}
            if self.plans:
                inputs = rebind_inputs(self.plans[0], ctx)
            return None if inputs is None else self.run_over(ctx, inputs)

    def run_over(self, ctx: Context, inputs: Mapping[str, Fields]) -> Outcome:
        """Runs the statement over inputs, within `store.statement`.

        Raises:
            Error: A part fails; then nothing has changed.
        """
        roots = run_plans(self.plans, inputs, ctx.tick)
        root_fields = [as_fields(arrays) for arrays, _ in roots]
        result = None
        if self.shown is not None:  # before the changes overwrite its memory
            result = self.plans[0].wrap(*roots[0])
        written: dict[str, list[WriteSet]] = {}
        number, at = -1, 0 if self.shown is None else 1
        for part in self.parts:
            fields: Fields = LocalFields()
            if part.root is not None:
                fields, at = root_fields[at], at + 1
            try:
                tensor = ctx.store.writable(part.name)
                if part.name in self.shared and not (fields.is_local or fields.is_sparse):
                    fields = LocalFields(fields)  # its rows become part of one write
                new, number = part.writes(ctx, tensor, fields, inputs)
                refuse_violations(new)
            except Error as error:
                if error.position is None:
                    error.position = part.at
                raise
            if number:
                written.setdefault(part.name, []).append(new)
        changes = [self._joined(name, writes) for name, writes in written.items()]
        if ctx.cluster is not None and changes:
            from einsql.session.statements import dml_on_ranks  # imports the transport to the ranks

            changes = dml_on_ranks.pasted(ctx, changes)
        store(ctx, changes, lambda: _foreign(inputs, root_fields))
        return Changed(number) if result is None else Rows(result, self.plans[0].description)

    @cached_property
    def shared(self) -> frozenset[str]:
        """The names of tensors that several parts change."""
        return frozenset(name for name, n in Counter(p.name for p in self.parts).items() if n > 1)

    def _joined(self, name: str, writes: Sequence[WriteSet]) -> WriteSet:
        """Returns the changes of one tensor as one change."""
        if len(writes) == 1:
            return writes[0]
        try:
            return joined([write for write in writes if isinstance(write, Write)])
        except Error as error:
            error.position = next(p.at for p in reversed(self.parts) if p.name == name)
            raise


def _foreign(inputs: Inputs, root_fields: Sequence[Fields]) -> set[int]:
    """Returns ids of memory owners that a tensor must not share: inputs and shared roots."""
    foreign = owners(inputs.values())
    if len(root_fields) > 1:  # two roots may alias, and each tensor owns its memory
        shown = Counter(o for fields in root_fields for o in owners([fields]))
        foreign |= {o for o, times in shown.items() if times > 1}
    return foreign


def run(ctx: Context, tree: exp.Expr, text: str) -> tuple[Outcome, PreparedDml | None]:
    """Runs a statement that changes tensors, within `store.statement`.

    Returns:
        The outcome, and the prepared statement, or None if DuckDB ran a part.

    Raises:
        IntegrityError: A key would occur twice, or several rows of FROM match one row.
        DataError: A value is NULL or does not fit.
        Error: The statement is wrong, or outside the tensor fragment.
    """
    try:
        prepared, inputs = bind(ctx, tree)
    except Error as error:
        if not isinstance(tree, exp.Insert | exp.Update | exp.Delete) or changing(tree):
            raise
        return Changed(_by_duckdb(ctx, tree, text, error)), None
    return prepared.run_over(ctx, inputs), prepared


def _by_duckdb(
    ctx: Context, tree: exp.Insert | exp.Update | exp.Delete, text: str, error: Error
) -> int:
    target = target_of(tree)
    from einsql.session.statements import from_tables  # few statements need DuckDB

    if not isinstance(tree, exp.Insert):
        return from_tables.changed_rows(ctx, writable(ctx, target), text, target.alias, error)
    statement = insertion(tree)
    if isinstance(statement.source, exp.Values):
        raise error
    new, number = from_tables.inserted_rows(ctx, writable(ctx, target), statement, text, error)
    refuse_violations(new)
    store(ctx, [new] if number else [], set)
    return number


# ---- binding


def bind(ctx: Context, tree: exp.Expr) -> tuple[PreparedDml, Mapping[str, Fields]]:
    """Binds and plans a statement that changes tensors.

    Returns:
        The prepared statement, and the inputs that binding has read.

    Raises:
        Error: The statement is wrong, or outside the tensor fragment.
    """
    version = ctx.store.names
    (parts, shown), binder = bound_over_tables(
        ctx, tree, lambda make: bind_late(make, partial(_parts, ctx, tree), ctx.notices)
    )
    catalog = catalog_of(binder)
    roots = [] if shown is None else [shown]
    roots += [Relation(p.root, ()) for p in parts if p.root is not None]
    check_groups(roots, catalog)
    plans = plan_together(ctx, roots, catalog) if roots else ()
    has_parameters = bool(ctx.parameters) and any(isinstance(p, InsertValues) for p in parts)
    prepared = PreparedDml(
        parts=tuple(parts),
        shown=shown,
        plans=plans,
        version=version,
        use=binder.parameters.use,
        is_volatile=has_parameters or any(p.volatile for p in plans),
        targets={p.name: ctx.store.writable(p.name).relation.schema for p in parts},
    )
    return prepared, catalog.fields


def _parts(ctx: Context, tree: exp.Expr, binder: QueryBinder) -> tuple[list[Part], Relation | None]:
    """Binds the changes of a statement, and the SELECT after WITH."""
    parts: list[Part] = []
    several = bool(changing(tree))

    def change(cte: exp.CTE) -> None:
        parts.append(_part(ctx, binder, cte.this, parts, several))

    if several:
        binder.change = change
    shown: Relation | None = None
    try:
        if isinstance(tree, exp.Query):
            shown = binder.bind(tree)
        else:
            parts.append(_part(ctx, binder, tree, parts, several))
    except (NotSupportedError, UnknownHere) as error:
        if several and not error.hint:
            error.hint = (
                "All parts of a WITH with a change are tensor work; BEGIN and COMMIT "
                "make several statements one."
            )
        raise
    return parts, shown


def _part(
    ctx: Context, binder: QueryBinder, tree: exp.Expr, parts: Sequence[Part], several: bool
) -> Part:
    """Binds a change, and appends the changes in its own WITH to `parts`."""
    if not isinstance(tree, exp.Insert | exp.Update | exp.Delete):
        raise unsupported("MERGE", tree, "It is for tables, and this statement changes tensors.")
    target = target_of(tree)
    if several and ctx.store.get(target.name) is None and ctx.duck.has(target.name):
        raise NotSupportedError(
            f"A part of WITH changes the table {target.name}, which is no tensor work",
            hint="Change it in a statement of its own; BEGIN and COMMIT make them one.",
            position=position(target.node),
        )
    tensor = writable(ctx, target)
    part = _bound(ctx, binder, tree, target, tensor)
    if any(p.name == part.name and not (p.ADDS and part.ADDS) for p in parts):
        raise ProgrammingError(
            f"Two parts of the statement change {tensor.name}",
            hint="Only INSERTs may; write one part or two statements, as each reads the old state.",
            position=position(target.node),
        )
    return replace(part, at=position(target.node)) if several else part


def _bound(
    ctx: Context,
    binder: QueryBinder,
    tree: exp.Insert | exp.Update | exp.Delete,
    target: Target,
    tensor: Tensor,
) -> Part:
    if isinstance(tree, exp.Update | exp.Delete):
        change: type[UpdateOrDelete] = Update
        if isinstance(tree, exp.Delete):
            change = Delete
            update.refuse_default(tensor)
            touch = bind_delete(binder, target, tree)
        else:
            touch = bind_update(binder, target, tree)
        return change(
            name=tensor.name,
            at=None,
            touch=update.over_all_keys(ctx, touch, tensor),
            ends=_ends_of(ctx, binder, touch),
        )
    statement = insertion(tree)
    source = statement.source
    if isinstance(source, exp.Values):
        numbers = {int(p.name) for p in source.find_all(exp.Parameter)}
        if binder.parameters.late and not numbers <= binder.parameters.fixed:
            raise NeedsValuesError(numbers)
        rows = binder.with_ctes(tree, lambda: literal_rows(binder, source))
        table = rows_of.literal_table(ctx, tensor, statement.columns, rows)
        return InsertValues(tensor.name, None, table, statement.replaces)
    relation = bind_insert(binder, statement)
    order = rows_of.result_order(tensor, statement, relation)
    keys = [k.name for k in relation.node.schema.keys]
    ends = tuple(e.end(binder.parameters, keys.index(name)) for name, e in relation.edges)
    columns = result_columns(relation)
    empty = Result(relation.node.schema, LocalFields(), columns, relation.hidden)
    constants = rows_of.constant_fields(relation)
    box = boxed(tensor.relation.schema, order, empty, ends, constants)
    return InsertSelect(
        name=tensor.name,
        at=None,
        relation=relation,
        order=order,
        replaces=statement.replaces,
        empty=empty,
        ends=ends,
        constants=constants,
        box=box,
    )


def _ends_of(ctx: Context, binder: QueryBinder, touch: Touch) -> Ends:
    """Returns the bounds of the touched rows that depend on parameters.

    Raises:
        NeedsValuesError: There are such bounds, and the rows are on ranks.
    """
    parameters = binder.parameters
    windows = binder.windows.of(touch.node)
    if ctx.cluster is not None:  # on ranks a change covers all keys of the tensor
        numbers = {n for w in windows.values() for n in w.numbers}
        numbers |= {n for _, e in touch.edges for n in e.numbers}
        if numbers:
            raise NeedsValuesError(numbers)
    cuts = tuple(e.end(parameters, n) for n, e in touch.edges)
    return (*(w.end(parameters, n) for n, w in windows.items()), *cuts)
