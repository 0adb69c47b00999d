"""Statements about names: CREATE VIEW and MACRO, DROP, SHOW and DESCRIBE."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from einsql.core.big_stack import with_deep_stack
from einsql.core.quoting import in_quotes
from einsql.core.schema import DType, Field, Key
from einsql.core.settings import Settings, points
from einsql.core.units import with_article
from einsql.errors import Error, OperationalError, ProgrammingError, UnknownHere, suggest
from einsql.ir.layout import Mesh, describe, described
from einsql.ir.partition import OnMesh
from einsql.planner.queries import query_binder
from einsql.planner.stored_inputs import stored_input
from einsql.planner.stored_macros import of_variable, refuse_to_store
from einsql.session.setting_statements import SHOWN_SETTINGS, setting
from einsql.session.statements.target import taken_by
from einsql.sql.binder.state_binder import StateBinder
from einsql.sql.laws.state_laws import check_laws
from einsql.sql.macros.macros import Macro
from einsql.sql.parser.create.create_headers import head_of
from einsql.sql.parser.lexical import scan
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import CreateMacro, CreateView, Drop, Show
from einsql.sql.scope.relation import Relation, TileRelation
from einsql.storage.objects import Body, Definition, Object, Tensor, kind_of, macro_key
from einsql.storage.sparse_fields import sparse_fields_of

if TYPE_CHECKING:
    from einsql.planner.context import Context

Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]
"""Column names and rows of a listing."""


def create_view(ctx: Context, statement: CreateView) -> None:
    """CREATE [OR REPLACE] VIEW; rejects a wrong query at once.

    Raises:
        ProgrammingError: The name exists, or the query is wrong.
    """
    taken = taken_by(ctx, statement.name, statement.temporary)
    if taken is not None and not (statement.replace and kind_of(taken) == "view"):
        raise ProgrammingError(
            f'There is something named "{statement.name}" already',
            hint="CREATE OR REPLACE VIEW replaces a view.",
        )
    ctx.duck.refuse(statement.name)
    if statement.temporary or ctx.store.database.path is None:
        _check_view(ctx, statement)
    else:
        _check_stored_view(ctx, statement)
    ctx.store.put(_definition(statement))


def _check_stored_view(ctx: Context, statement: CreateView) -> None:
    """Binds the query of a view in a file, which cannot read variables: they do not last.

    Raises:
        ProgrammingError: The query is wrong.
    """
    try:
        with ctx.scope.hidden():
            _check_view(ctx, statement)
    except UnknownHere as error:
        named = error.reason.split('"')[1::2]
        if named and ctx.scope.find(named[0]) is not None:
            raise of_variable("view", named[0], error.position) from None
        raise


def _check_view(ctx: Context, statement: CreateView) -> None:
    """Binds a view's query; if that fails, has DuckDB bind it over fragments."""
    query, binder = statement.query, query_binder(ctx)
    refusal = statement.refusal
    if query is not None:
        try:
            binder.nested(f"view {statement.name.lower()}", lambda: binder.bind_any(query))
            return
        except Error as error:
            refusal = error
    from einsql.hybrid import hybrid_plan  # few views need it

    assert refusal is not None
    if ctx.settings.fallback == "off" or not (query is None or hybrid_plan.is_outside(refusal)):
        raise refusal
    hybrid_plan.check(ctx, hybrid_plan.split_from(ctx, statement.text, statement.start))


def create_macro(ctx: Context, statement: CreateMacro) -> None:
    """CREATE [OR REPLACE] MACRO, or AGGREGATE, whose laws are tested.

    Raises:
        ProgrammingError: The name is taken, or a law of an aggregate does not hold.
        Error: An expression of an aggregate is wrong.
    """
    taken = taken_by(ctx, macro_key(statement.name), statement.temporary)
    if taken is not None and not statement.replace:
        kind = "MACRO" if statement.law is None else "AGGREGATE"
        raise ProgrammingError(
            f'There is {with_article(_kind_shown(taken))} "{statement.name}" already',
            hint=f"CREATE OR REPLACE {kind} replaces it.",
        )
    binder = query_binder(ctx)
    if not statement.temporary and ctx.store.database.path is not None:
        refuse_to_store(ctx, _macro(statement), binder.catalog.macro)
    if statement.law is not None:
        check_laws(
            statement.law, StateBinder(statement.law, binder.catalog.float_stays, binder.macros)
        )
    ctx.store.put(_definition(statement))


def _definition(statement: CreateView | CreateMacro) -> Definition:
    tree, text = _tree(statement), statement.text
    name = statement.name if isinstance(statement, CreateView) else macro_key(statement.name)
    kind = "view" if isinstance(statement, CreateView) else "macro"
    return Definition(name, kind, text, lambda: Body(tree, _depth(text)), statement.temporary)


def _tree(statement: CreateView | CreateMacro) -> exp.Expr | Macro | None:
    return statement.query if isinstance(statement, CreateView) else _macro(statement)


def _macro(statement: CreateMacro) -> Macro:
    return Macro(
        statement.name,
        statement.parameters,
        statement.body,
        statement.is_table,
        statement.text,
        statement.types,
        statement.defaults,
        statement.law,
    )


def _depth(text: str) -> int:
    """Returns the nesting depth of a definition's text.

    Raises:
        ProgrammingError: The text nests deeper than the limit for statements.
    """
    return max((span.depth for span in scan(text)), default=0)


def definition(kind: str, name: str, text: str) -> Definition:
    """Returns a view or macro of a database file. Its text is parsed on first use.

    Args:
        kind: "view" or "macro".
        name: The lower-case name; macros end in `()`.
        text: The CREATE statement.

    Raises:
        OperationalError: The text's header has another kind or name.
    """
    head = head_of(text)
    if head is not None:
        written = macro_key(head.name) if head.kind == "macro" else head.name
        if (head.kind, written.lower()) != (kind, name):
            raise OperationalError(f"its row has the text of the {head.kind} {head.name!r}")
        name = written
    elif name.endswith("()") != (kind == "macro"):
        raise OperationalError(f"{name!r} is no name of a {kind}")
    return Definition(name, kind, text, lambda: _read(kind, name, text))


def _read(kind: str, name: str, text: str) -> Body:
    """Parses the text of a definition like a statement of a script.

    Raises:
        Error: The text does not parse, or defines another object.
    """
    depth = _depth(text)
    try:
        statement, _ = with_deep_stack(partial(parse, text))
    except RecursionError:
        raise ProgrammingError("Its text nests too deeply") from None
    if isinstance(statement, CreateView | CreateMacro):
        definition = _definition(statement)
        if (definition.kind, definition.name.lower()) == (kind, name.lower()):
            return Body(_tree(statement), depth)
    raise ProgrammingError("Its text defines something else")


def drop(ctx: Context, statement: Drop) -> None:
    """DROP TENSOR, VIEW or MACRO; each also removes damaged objects of unknown kind.

    Raises:
        ProgrammingError: No object of that kind has the name.
    """
    # Macros have a separate namespace; a damaged row may have the other form of the name.
    names = [statement.name, macro_key(statement.name)]
    if statement.kind == "macro":
        names.reverse()
    candidates = [taken for taken in map(ctx.store.get, names) if taken is not None]
    for taken in candidates:
        if kind_of(taken) == statement.kind or kind_of(taken) == "object":
            ctx.store.remove(taken.name)
            return
    if candidates:
        other = candidates[0]
        kind, wanted = with_article(_kind_shown(other)), with_article(statement.written)
        raise ProgrammingError(f'"{statement.name}" is {kind}, not {wanted}')
    if not statement.if_exists:
        if ctx.duck.has(statement.name):
            raise ProgrammingError(
                f'"{statement.name}" is a table, not {with_article(statement.written)}',
                hint=f"DROP TABLE {in_quotes(statement.name)} drops it.",
            )
        known = [o.name for o in ctx.store.objects.values()]
        raise ProgrammingError(
            f'There is no {statement.written} "{statement.name}"',
            hint=suggest(statement.name, known, "names"),
        )


def _kind_shown(item: Object) -> str:
    """The kind of an object in errors, which distinguishes aggregates from macros."""
    tree = item.body.tree if isinstance(item, Definition) else None
    return tree.kind if isinstance(tree, Macro) else kind_of(item)


def show(ctx: Context, statement: Show) -> Table:
    """Returns the column names and rows of SHOW and DESCRIBE."""
    if statement.what == "settings":
        return ("name", "value"), [(name, setting(ctx, name)) for name in SHOWN_SETTINGS]
    if statement.what in ("tensors", "tables"):
        tensors = [o for o in ctx.store.objects.values() if isinstance(o, Tensor)]
        listed: list[tuple[Any, ...]] = [
            (
                t.name,
                ", ".join(f"{k.name}:{_range_text(k)}" for k in t.relation.schema.keys),
                ", ".join(_value_text(t, f) for f in t.relation.schema.values),
                t.relation.nbytes,
                _partition_text(t),
                _placement_text(t, ctx.settings),
                *_storage(t),
            )
            for t in tensors
        ]
        listed += [
            (o.name, "", f"damaged {kind_of(o)}: {o.fault}", None, "", "", "", None, None)
            for o in ctx.store.objects.values()
            if not isinstance(o, Tensor) and o.fault
        ]
        if statement.what == "tables":
            tables = ctx.duck.tables()
            listed += [(name, "", cols, None, "", "", "", None, None) for name, cols in tables]
        return _LISTED, sorted(listed, key=lambda row: str(row[0]))
    binder = query_binder(ctx)
    placement, storage, checks = "", "", dict[str, str]()
    if statement.query is not None:
        relation = binder.bind_any(statement.query)
    else:
        relation = binder.named(statement.name, exp.to_identifier(statement.name))
        stored = ctx.store.get(statement.name)
        if isinstance(stored, Tensor):
            placement = _placement_text(stored, ctx.settings)
            storage = _storage_text(stored)
            checks = {c.column: str(c) for c in stored.checks}
    if not isinstance(relation, Relation):
        return _DESCRIBED, _tile_columns(relation)
    bounds = {k.name: k for k in relation.node.schema.keys}
    return _DESCRIBED, [
        (c.name, c.dtype.value, "", checks.get(c.name, ""), storage, placement)
        if c.key is None
        else (c.name, c.dtype.value, _range_text(bounds[c.key]), "", "", "")
        for c in relation.columns
    ]


_DESCRIBED = ("column_name", "column_type", "key", "check", "storage", "placement")
_LISTED = (
    *("name", "keys", "values", "bytes", "partition", "placement"),
    *("storage", "stored", "density"),
)


def _tile_columns(relation: TileRelation) -> list[tuple[Any, ...]]:
    from einsql.storage.results.tile_result import type_text  # few statements need it

    schema = relation.node.schema
    return [
        (c.name, type_text(schema), "", "", "", "")
        if c.key is None
        else (c.name, DType.BIGINT.value, str(schema.bounds[c.key]), "", "", "")
        for c in relation.columns
    ]


def _storage(tensor: Tensor) -> tuple[str, int, float]:
    """Returns the storage, the number of stored elements, and their share of all keys."""
    size, few = tensor.relation.schema.size, sparse_fields_of(tensor.relation.fields)
    if few is None:
        return "dense", size, 1.0
    return "sparse", few.stored, few.stored / max(1, size)


def _storage_text(tensor: Tensor) -> str:
    """Formats the storage as `dense` or `sparse: 2,000 of 1,000,000 (0.2 %)`."""
    storage, stored, density = _storage(tensor)
    if storage == "dense":
        return storage
    return f"{storage}: {stored:,} of {tensor.relation.schema.size:,} ({100 * density:.3g} %)"


def _value_text(tensor: Tensor, field: Field) -> str:
    """Formats a value column as `val INTEGER CHECK (val >= 0)`."""
    checks = (str(c) for c in tensor.checks if c.column == field.name)
    return " ".join([field.name, field.dtype.value, *checks])


def _partition_text(tensor: Tensor) -> str:
    """Formats the declared cut as `i 4, j 2` or `i data; REPLICATE OVER (model)`.

    It is `()` for a copy at every site, and "" without a declaration.
    """
    partition = tensor.partition
    if partition is None:
        return ""
    text = partition.listed([k.name for k in tensor.relation.schema.keys]) or "()"
    return "; ".join([text, *partition.over])


def _placement_text(tensor: Tensor, settings: Settings) -> str:
    """Returns a tensor's placement in DTensor's terms; "" if it has none.

    Args:
        tensor: The tensor.
        settings: The number of sites of its declared cut, if the tensor is not placed yet, and
            the mesh.
    """
    schema, sites = tensor.relation.schema, tensor.relation.fields.sites or settings.sites
    summands, partition = tensor.relation.fields.summands, tensor.partition
    if summands is not None and summands.mesh == settings.mesh_in_force:
        assert isinstance(partition, OnMesh)
        layout = partition.layout(Mesh(summands.mesh), kept=True)
        return describe(layout, [k.name for k in schema.keys], named=True)
    stored = stored_input(tensor.name, tensor, settings, sites)
    if sites == 1 or not stored.settled:
        return ""
    from einsql.optimizer.placement.layouts import lying  # takes 20 ms; only several sites need it

    extents = {k.name: k.extent for k in schema.keys}
    mesh = Mesh(settings.mesh) if points(settings.mesh) == sites else None
    return described(lying(stored, sites), sites, extents, mesh)


def _range_text(key: Key) -> str:
    return str(key.hi) if key.lo == 0 else f"{key.lo}..{key.hi}"
