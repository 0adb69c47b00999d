"""Statements about names: CREATE VIEW and MACRO, DROP, SHOW and DESCRIBE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlglot import exp

from einsql.einsum import Input
from einsql.engine.objects import is_local
from einsql.engine.relation import PlacedFields, lies
from einsql.engine.store import Definition, Tensor
from einsql.errors import Error, OperationalError, ProgrammingError, suggest
from einsql.placements import described
from einsql.schema import DType, Key, Schema
from einsql.settings import SETTINGS, setting_text
from einsql.sql.macros import Macro
from einsql.sql.parser import parse
from einsql.sql.scope import Relation, TileRelation
from einsql.sql.syntax import CreateMacro, CreateView, Drop, Show

if TYPE_CHECKING:
    from einsql.session import Connection

Table = tuple[tuple[str, ...], list[tuple[Any, ...]]]
"""Column names and rows of a result that is text."""


def create_view(con: Connection, statement: CreateView) -> None:
    """CREATE [OR REPLACE] VIEW; a wrong query is refused now.

    Raises:
        ProgrammingError: The name is taken, or the query is wrong.
    """
    taken = con.store.get(statement.name)
    hides = taken is not None and statement.temporary and not is_local(taken)
    replaces = statement.replace and isinstance(taken, Definition) and taken.kind == "view"
    if taken is not None and not hides and not replaces:
        raise ProgrammingError(
            f'There is something named "{statement.name}" already',
            hint="CREATE OR REPLACE VIEW replaces a view.",
        )
    con.duck.refuse(statement.name)
    _check_view(con, statement)
    con.store.put(_definition(statement))


def _check_view(con: Connection, statement: CreateView) -> None:
    """Binds a view's query, as a whole or in parts."""
    query, binder = statement.query, con.query_binder()
    refusal = statement.refusal
    if query is not None:
        try:
            binder.nested(f"view {statement.name.lower()}", lambda: binder.bind_any(query))
            return
        except Error as error:
            refusal = error
    from einsql import hybrid  # few views need it

    assert refusal is not None
    if con.settings.fallback == "off" or not (query is None or hybrid.is_outside(refusal)):
        raise refusal
    hybrid.check(con, hybrid.split_from(con, statement.text, statement.start))


def create_macro(con: Connection, statement: CreateMacro) -> None:
    """CREATE [OR REPLACE] MACRO.

    Raises:
        ProgrammingError: The name is taken.
    """
    name = f"{statement.name}()"
    taken = con.store.get(name)
    hides = taken is not None and statement.temporary and not is_local(taken)
    if taken is not None and not hides and not statement.replace:
        raise ProgrammingError(
            f'There is a macro "{statement.name}" already',
            hint="CREATE OR REPLACE MACRO replaces it.",
        )
    con.store.put(_definition(statement))


def _definition(statement: CreateView | CreateMacro) -> Definition:
    if isinstance(statement, CreateView):
        return Definition(
            statement.name, "view", statement.query, statement.text, statement.temporary
        )
    macro = Macro(
        statement.name, statement.parameters, statement.body, statement.is_table, statement.text,
        statement.defaults,
    )  # fmt: skip
    return Definition(f"{statement.name}()", "macro", macro, statement.text, statement.temporary)


def definition(kind: str, text: str) -> Definition:
    """The view or macro that a database file has as text.

    Raises:
        OperationalError: The text defines none.
    """
    statement, _ = parse(text)
    if not isinstance(statement, CreateView | CreateMacro):
        raise OperationalError(f"The database holds a {kind} that einsql cannot read: {text}")
    return _definition(statement)


def drop(con: Connection, statement: Drop) -> None:
    """DROP TENSOR, VIEW or MACRO.

    Raises:
        ProgrammingError: There is none of that name and kind.
    """
    name = f"{statement.name}()" if statement.kind == "macro" else statement.name
    found = con.store.get(name)
    kind = None if found is None else "tensor" if isinstance(found, Tensor) else found.kind
    if kind == statement.kind:
        con.store.remove(name)
    elif kind is not None:
        raise ProgrammingError(f'"{statement.name}" is a {kind}, not a {statement.kind}')
    elif not statement.if_exists:
        known = [o.name for o in con.store.objects.values()]
        raise ProgrammingError(
            f'There is no {statement.kind} "{statement.name}"',
            hint=suggest(statement.name, known, "names"),
        )


def show(con: Connection, statement: Show) -> Table:
    """The rows of SHOW SETTINGS, SHOW TENSORS and DESCRIBE."""
    if statement.what == "settings":
        settings = [(n, setting_text(con.settings, n)) for n in SETTINGS]
        ranks = "none" if con.cluster is None else str(con.cluster.ranks)
        return ("name", "value"), [*settings, ("mpi", ranks)]
    if statement.what in ("tensors", "tables"):
        tensors = [o for o in con.store.objects.values() if isinstance(o, Tensor)]
        listed: list[tuple[Any, ...]] = [
            (
                t.name,
                key_text(t.relation.schema),
                value_text(t.relation.schema),
                t.relation.nbytes,
                partition_text(t),
                placement_text(t, con.settings.sites),
            )
            for t in tensors
        ]
        if statement.what == "tables":
            listed += [(name, "", columns, None, "", "") for name, columns in con.duck.tables()]
        names = ("name", "keys", "values", "bytes", "partition", "placement")
        return names, sorted(listed, key=lambda row: str(row[0]))
    binder = con.query_binder()
    placement = ""
    if statement.query is not None:
        relation = binder.bind_any(statement.query)
    else:
        relation = binder.named(statement.name, exp.to_identifier(statement.name))
        stored = con.store.get(statement.name)
        if isinstance(stored, Tensor):
            placement = placement_text(stored, con.settings.sites)
    if not isinstance(relation, Relation):
        return _DESCRIBED, _tile_columns(relation)
    bounds = {k.name: k for k in relation.node.schema.keys}
    return _DESCRIBED, [
        (c.name, c.dtype.value, "", placement)
        if c.key is None
        else (c.name, c.dtype.value, _range_text(bounds[c.key]), "")
        for c in relation.columns
    ]


_DESCRIBED = ("column_name", "column_type", "key", "placement")


def _tile_columns(relation: TileRelation) -> list[tuple[Any, ...]]:
    from einsql.engine.tile_result import type_text  # few statements need it

    schema = relation.node.schema
    return [
        (c.name, type_text(schema), "", "")
        if c.key is None
        else (c.name, DType.BIGINT.value, str(schema.bounds[c.key]), "")
        for c in relation.columns
    ]


def key_text(schema: Schema) -> str:
    """Keys as `i:64, j:0..8`."""
    return ", ".join(f"{k.name}:{_range_text(k)}" for k in schema.keys)


def value_text(schema: Schema) -> str:
    """Values as `val FLOAT`."""
    return ", ".join(f"{f.name} {f.dtype.value}" for f in schema.values)


def partition_text(tensor: Tensor) -> str:
    """The declared cut as `i 4, j 2`; `()` for a copy at every site, empty if there is none."""
    if tensor.partition is None:
        return ""
    keys = tensor.relation.schema.keys
    cut = [(keys[n].name, tensor.partition[n]) for n in tensor.order]
    return ", ".join(f"{key} {parts}" for key, parts in cut if parts > 1) or "()"


def placement_text(tensor: Tensor, sites: int) -> str:
    """Where a tensor's values lie, in DTensor's terms; empty if wherever they are read.

    Args:
        tensor: The tensor.
        sites: Over how many sites its declared cut is dealt, if nothing else says where it is.
    """
    schema, fields = tensor.relation.schema, tensor.relation.fields
    if isinstance(fields, PlacedFields):
        sites = fields.sites
    stored = Input(tensor.name, schema, tensor.partition, tensor.order, lies(fields, sites))
    if sites == 1 or not stored.settled:
        return ""
    from einsql.optimizer.layouts import lying  # 20 ms, for several sites only

    extents = {k.name: k.extent for k in schema.keys}
    return described(lying(stored, sites), sites, extents)


def _range_text(key: Key) -> str:
    return str(key.hi) if key.lo == 0 else f"{key.lo}..{key.hi}"
