"""CREATE TENSOR, declared or AS SELECT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.bfloat16 import stored
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.core.settings import MOST_SITES, mesh_text
from einsql.core.units import plural
from einsql.errors import Error, IntegrityError, NotSupportedError, ProgrammingError, suggest
from einsql.ir.einsum.graph import Const, EinSum
from einsql.ir.einsum.graph_rewriting import fresh
from einsql.ir.einsum.kept_sums import PART
from einsql.ir.layout import Mesh
from einsql.ir.partition import OnMesh, Partition, Parts
from einsql.optimizer import optimize
from einsql.planner.plan import owners
from einsql.planner.queries import Bound as Query
from einsql.planner.queries import bind_query, plan_relation, query_binder, select_bound
from einsql.session.statements import sparse_rows
from einsql.session.statements.insert import filled, refuse_names, refuse_size, result_table
from einsql.session.statements.target import as_declared, constant, refuse_null, rows, taken_by
from einsql.session.statements.value_checks import declared_checks, refuse_violations
from einsql.sql.binder.best_rows import ROW_NUMBER
from einsql.sql.parser.positions import positioned
from einsql.sql.parser.syntax import CreateTensor, KeyCut
from einsql.sql.scope.relation import Column
from einsql.sql.scope.relation import Relation as Bound
from einsql.sql.typing.typed_expr import convert
from einsql.storage.array_ownership import owned
from einsql.storage.fields import LocalFields, Summands
from einsql.storage.objects import Tensor, kind_of
from einsql.storage.partial_fields import PartialFields
from einsql.storage.relation import Relation
from einsql.storage.results.result import Result
from einsql.storage.sparse_fields import sparse_fields_of

if TYPE_CHECKING:
    from sqlglot import exp

    from einsql.planner.context import Context


def create_tensor(ctx: Context, statement: CreateTensor) -> int:
    """CREATE TENSOR, declared or AS SELECT; returns the number of rows stored.

    Raises:
        ProgrammingError: The name exists, or columns are wrong.
    """
    taken = taken_by(ctx, statement.name, statement.temporary)
    if taken is not None and not statement.replace:
        if statement.if_not_exists:
            return 0
        raise ProgrammingError(
            f'There is a {kind_of(taken)} "{statement.name}" already',
            hint="CREATE OR REPLACE TENSOR replaces it.",
        )
    ctx.duck.refuse(statement.name)
    tensor = _selected(ctx, statement) if statement.text else _declared(ctx, statement)
    partition = _partition(ctx, statement, tensor.relation.schema)
    if partition is not None:
        tensor = as_declared(ctx, replace(tensor, partition=partition))
    if statement.text:
        refuse_violations(tensor)
    ctx.store.put(replace(tensor, temporary=statement.temporary))
    _note_without_key(ctx, statement)
    if not statement.text and PRESENT in tensor.relation.fields:
        return 0
    return rows(tensor.relation.fields, tensor.relation.schema)


def _note_without_key(ctx: Context, statement: CreateTensor) -> None:
    """Gives a notice of a declared tensor whose integer column may be meant as a key."""
    integers = [c.name for c in statement.columns if c.dtype is not None and c.dtype.is_integer]
    if all(c.extent is None for c in statement.columns) and integers and len(statement.columns) > 1:
        name = integers[0]
        ctx.notices.append(
            f"{statement.name} has no key, so it has at most one row. A key is declared with its "
            f"bound, as {name} DIM(10) for {name} from 0 to 9."
        )


def _selected(ctx: Context, statement: CreateTensor) -> Tensor:
    """Returns the tensor of a SELECT that einsql or DuckDB runs."""
    empty = _declared(ctx, statement) if statement.columns else None
    refusal = statement.refusal
    if statement.query is not None:
        try:
            bound = bind_query(ctx, _without(statement.query, "order"))
            _refuse_numbered(bound)
            kept = _kept_unreduced(ctx, statement, bound) if empty is None else None
            if kept is not None:
                return kept
            result, inputs = select_bound(ctx, bound)
            if empty is None:
                return _stored(statement, result, owners(inputs.values()))
            with ctx.memory.lending():
                return _filled(empty, result, statement.storage)
        except Error as error:
            refusal = error
    from einsql.hybrid import hybrid_plan  # few statements need DuckDB
    from einsql.session.statements.from_tables import tensor_of

    assert refusal is not None
    if ctx.settings.fallback == "off" or not (
        statement.query is None or hybrid_plan.is_outside(refusal)
    ):
        raise refusal
    table = hybrid_plan.run(ctx, hybrid_plan.split_from(ctx, statement.text, statement.start))
    keys = _keys_of(ctx, statement.query) if empty is None else None
    return tensor_of(ctx, statement.name, table, empty, statement.storage, keys)


def _without(query: exp.Query, *clauses: str) -> exp.Query:
    """The query without clauses at its end; the order of a tensor's rows has no meaning."""
    limits = [a for a in ("limit", "offset", "fetch") if query.args.get(a) and a not in clauses]
    if limits or not any(query.args.get(a) for a in clauses):
        return query
    query = query.copy()
    for clause in clauses:
        query.set(clause, None)
    return query


def _keys_of(ctx: Context, query: exp.Query | None) -> set[str] | None:
    """The names of the columns that are keys, of a query over tensors that DuckDB limits."""
    if query is None:
        return None
    try:
        bound = bind_query(ctx, _without(query, "order", "limit", "offset", "fetch"))
        _refuse_numbered(bound)
    except Error:
        return None
    if not isinstance(bound.relation, Bound):
        return None
    return {c.name.lower() for c in bound.relation.columns if c.key is not None}


def _refuse_numbered(query: Query) -> None:
    """Refuses the best rows without their ROW_NUMBER, whose other keys are values of einsql.

    Raises:
        NotSupportedError: The rows are such ones; DuckDB's rows then become the tensor.
    """
    relation = query.relation
    if not isinstance(relation, Bound) or not isinstance(relation.node, EinSum):
        return
    numbers = (a for a in relation.node.axes if a.label == ROW_NUMBER)
    if any(a.label in relation.hidden or isinstance(a.define, Const) for a in numbers):
        raise NotSupportedError(
            "A tensor of the best rows without their ROW_NUMBER is outside the tensor fragment",
            hint="Select ROW_NUMBER() as a key.",
        )


def _kept_unreduced(ctx: Context, statement: CreateTensor, query: Query) -> Tensor | None:
    """Returns the tensor of a query whose sum is kept as parts on the sites.

    PARTIAL(SUM) OVER declares this. Without any clause, the notation of an EINSUM does, and the
    tensor gets the declaration.

    Returns:
        None if no mesh with the axes is in force, nothing declares it, or the query is neither a
        sum nor linear in sums; then the value is stored complete.
    """
    mesh, relation = Mesh(ctx.settings.mesh_in_force), query.relation
    named = [*(a for cut in statement.partition or () for a in cut.axes), *statement.partial]
    is_declared = statement.partition is not None or bool(statement.replicate or statement.partial)
    if not (statement.partial or (query.binder.keeps_sums and not is_declared)):
        return None
    if not mesh.axes or not {a.name for a in named} <= dict(mesh.axes).keys():
        return None
    if not isinstance(relation, Bound) or relation.edges or relation.hidden:
        return None
    from einsql.optimizer.placement.unreduced import Unreduced, pending_axes  # for several sites

    root = optimize(relation.node, disabled=ctx.settings.disabled_rules, sited=True).root
    keys = {c.key: c.name for c in relation.columns if c.key is not None}
    over = tuple(a.name for a in statement.partial)
    axes = {cut.key.lower(): tuple(a.name for a in cut.axes) for cut in statement.partition or ()}
    shards = {key: axes.get(name.lower(), ()) for key, name in keys.items()}
    if not over:
        pending = pending_axes(root, mesh)
        if pending is None:
            return None
        over, shards = pending
    split = Unreduced(mesh, over).node(root, shards)
    if split is None:
        return None
    part = fresh(PART, (c.name for c in relation.columns))
    columns = (Column(part, DType.BIGINT, key=split.keys[0]), *relation.columns)
    plan = plan_relation(ctx, Bound(split, columns), query.binder)
    computed = plan.result(query.inputs, ctx.tick)
    parts = _stored(statement, computed, owners(query.inputs.values()))
    schema = parts.relation.schema
    fields = PartialFields(Summands(schema, parts.relation.fields, mesh.axes, over))
    complete = Relation(Schema(schema.keys[1:], schema.fields), fields)
    by_name = {keys[key]: names for key, names in shards.items()}
    on_mesh = OnMesh(tuple(by_name[k.name] for k in schema.keys[1:]), (), over)
    return Tensor(statement.name, complete, parts.columns[1:], partition=on_mesh)


def _filled(empty: Tensor, result: Result, storage: str | None) -> Tensor:
    """Inserts the rows of a SELECT into a declared tensor, matching columns by position."""
    if len(result.columns) != len(empty.columns):
        raise ProgrammingError(
            f"The SELECT gives {plural(len(result.columns), 'column')} for {len(empty.columns)}",
            hint=f"{empty.name} has {', '.join(empty.columns)}.",
        )
    return filled(empty, result_table(empty, list(empty.columns), result), storage)


def _partition(ctx: Context, statement: CreateTensor, schema: Schema) -> Partition | None:
    """Resolves PARTITION BY and REPLICATE OVER; None without these clauses.

    Raises:
        ProgrammingError: A key or a mesh axis does not exist, or there are too many parts.
    """
    cuts = statement.partition or ()
    for cut in cuts:
        if cut.key.lower() not in (k.name.lower() for k in schema.keys):
            raise ProgrammingError(
                f'PARTITION BY finds no key "{cut.key}"',
                hint=suggest(cut.key, (k.name for k in schema.keys), "keys"),
            )
    axes = [*(a for cut in cuts for a in cut.axes), *statement.replicate, *statement.partial]
    if not axes:
        return None if statement.partition is None else _parts(cuts, schema)
    mesh = dict(ctx.settings.mesh_in_force)
    for axis in axes if mesh else ():
        if axis.name not in mesh:
            raise ProgrammingError(
                f'The mesh {mesh_text(ctx.settings.mesh)} has no axis "{axis.name}"',
                hint=suggest(axis.name, mesh, "axes"),
                position=axis.at,
            )
    names = {cut.key.lower(): tuple(a.name for a in cut.axes) for cut in cuts}
    copies, partial = (
        tuple(a.name for a in clause) for clause in (statement.replicate, statement.partial)
    )
    return OnMesh(tuple(names.get(k.name.lower(), ()) for k in schema.keys), copies, partial)


def _parts(cuts: Sequence[KeyCut], schema: Schema) -> Parts:
    """Resolves numbers of parts; unnamed keys have one part and are last in the order."""
    keys = {k.name.lower(): k for k in schema.keys}
    named = [cut.key.lower() for cut in cuts]
    parts = dict.fromkeys(keys, 1)
    for key, number in ((cut.key, cut.parts or 1) for cut in cuts):
        if number > max(1, keys[key.lower()].extent):
            raise ProgrammingError(
                f'"{key}" has too few values for {plural(number, "part")}: '
                f"{keys[key.lower()].extent}",
                hint=f"At most {plural(max(1, keys[key.lower()].extent), 'part')}.",
            )
        parts[key.lower()] = number
    if prod(parts.values()) > MOST_SITES:
        raise ProgrammingError(
            f"PARTITION BY makes {prod(parts.values()):,} parts",
            hint=f"There are never more than {MOST_SITES:,} sites.",
        )
    order = dict.fromkeys([*named, *keys])
    return Parts(tuple(parts.values()), tuple(map(list(keys).index, order)))


def _declared(ctx: Context, statement: CreateTensor) -> Tensor:
    refuse_names([c.name for c in statement.columns])
    keys = tuple(Key(c.name, 0, c.extent) for c in statement.columns if c.extent is not None)
    values = [(c.name, c.dtype) for c in statement.columns if c.dtype is not None]
    if not values:
        raise ProgrammingError("A tensor needs a value column, such as val FLOAT")
    schema = Schema(keys, tuple(Field(n, t) for n, t in values))
    refuse_size(schema, statement.storage)
    default: Any = None
    fields: dict[str, np.ndarray] = {}
    fills: dict[str, np.ndarray] = {}
    for name, dtype in values:
        value = np.zeros((), dtype.numpy)
        if statement.default is not None:
            with positioned(statement.default):
                cell = query_binder(ctx).scalar(statement.default)
                value = constant(ctx, convert(cell, dtype), name)
            default, value = value.item(), stored(value, dtype)
            fills[name] = value
        # A stride-0 view has the default in every element, but stores it once.
        fields[name] = np.broadcast_to(value, schema.shape)
    if statement.default is None:
        schema = Schema(keys, (*schema.fields, Field(PRESENT, DType.BOOLEAN)))
        fields[PRESENT] = np.broadcast_to(np.zeros((), np.bool_), schema.shape)
    columns = tuple(c.name for c in statement.columns)
    relation = Relation(schema, LocalFields(fields))
    if sparse_rows.is_chosen(schema, 0, statement.storage or "dense"):
        relation = Relation(schema, sparse_rows.empty_fields(schema, fills or None))
    checks = declared_checks(statement.checks, schema)
    tensor = Tensor(statement.name, relation, columns, default=default, checks=checks, changed=True)
    if statement.default is not None:
        with positioned(statement.default):
            refuse_violations(tensor)
    return tensor


def _stored(statement: CreateTensor, result: Result, foreign: set[int]) -> Tensor:
    """Returns a result as a tensor without NULLs, hidden keys or shared memory.

    Args:
        statement: The statement.
        result: The result to store.
        foreign: The ids of memory owners that have other users, whose memory is copied.
    """
    if result.hidden:
        raise ProgrammingError(
            f"The keys {', '.join(result.hidden)} are not selected, so rows are a bag",
            hint="A tensor needs every key: select them, or aggregate them away.",
        )
    names = [c.name for c in result.columns]
    refuse_names(names)
    values = [c for c in result.columns if c.field is not None]
    if not values:
        raise ProgrammingError("A tensor needs a value column", hint="Select one beside the keys.")
    by_key = {c.key: c.name for c in result.columns if c.key is not None}
    keys = []
    for k in result.schema.keys:
        if k.lo < 0:
            raise IntegrityError(
                f"The key {by_key[k.name]} starts at {k.lo}",
                hint="A stored tensor's keys start at 0 or above; shift them.",
            )
        keys.append(Key(by_key[k.name], k.lo, k.hi))
    columns = {c.name: c.field for c in values if c.field is not None}
    for column, field in columns.items():
        refuse_null(result.fields, field, column)
    schema_fields = [Field(c.name, c.dtype) for c in values]
    if len(result) < result.schema.size:
        columns[PRESENT] = PRESENT
        schema_fields.append(Field(PRESENT, DType.BOOLEAN))
    schema = Schema(tuple(keys), tuple(schema_fields))
    name = statement.name
    if result.fields.sites is not None and statement.storage != "sparse":
        placed = result.fields.renamed(schema, columns, name)
        return Tensor(name, Relation(schema, placed), tuple(names))
    if statement.storage == "sparse" or result.fields.is_sparse:
        sparse = _stored_sparsely(statement, result, schema, columns, tuple(names))
        if sparse is not None:
            return sparse
    refuse_size(schema)
    fields = LocalFields({n: owned(result.fields[o], foreign) for n, o in columns.items()})
    return Tensor(name, Relation(schema, fields), tuple(names))


def _stored_sparsely(
    statement: CreateTensor,
    result: Result,
    schema: Schema,
    columns: Mapping[str, str],
    names: tuple[str, ...],
) -> Tensor | None:
    """Returns a result as a sparsely stored tensor; None if STORAGE DENSE asks for an array.

    Args:
        statement: The statement.
        result: The result to store.
        schema: The tensor's schema.
        columns: The result's field for each field of the tensor.
        names: The tensor's columns.
    """
    values = {f.name: columns[f.name] for f in schema.values}
    few = sparse_fields_of(result.fields)
    if few is not None:
        if statement.storage == "dense":
            return None
        refuse_size(schema, "sparse")
        flagged = sparse_rows.with_flag(schema, few.filled)
        fields = few.renamed(flagged, values, statement.name)
        return Tensor(statement.name, Relation(flagged, fields), names)
    sparse_rows.is_chosen(schema, len(result), "sparse")
    is_full = PRESENT not in result.fields
    cells = np.arange(schema.size) if is_full else np.flatnonzero(result.fields[PRESENT])
    stored_values = {n: result.fields[o].reshape(-1)[cells] for n, o in values.items()}
    empty = Tensor(statement.name, Relation(schema, result.fields), names)
    return replace(sparse_rows.filled_rows(empty, cells, stored_values), changed=False)
