"""Tensors and views of einsql in DuckDB's system tables, SHOW ALL TABLES and PRAGMA table_info."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.core.quoting import literal
from einsql.core.records import dataclass
from einsql.errors import Error
from einsql.hybrid.split.blocks import Structure
from einsql.planner.queries import query_binder
from einsql.sql.scope.relation import Relation
from einsql.storage.objects import Definition, Tensor, bare_name

if TYPE_CHECKING:
    from einsql.planner.context import Context


@dataclass(frozen=True, slots=True)
class Listed:
    """A tensor or a view.

    Attributes:
        columns: The name and the type of each column, and whether it is a key of a tensor.
        rows: The number of keys of a tensor.
    """

    name: str
    is_view: bool
    temporary: bool
    columns: tuple[tuple[str, str, bool], ...]
    rows: int


def system_table(ctx: Context, name: str, argument: str) -> str | None:
    """The query of a system table with the tensors and views of einsql.

    Args:
        ctx: The session.
        name: The table's name as written, with its schema.
        argument: The text that is the argument of a call, or "".

    Returns:
        None for other tables, and if the table lists nothing of einsql.
    """
    low = name.lower()
    if low in ("pragma_table_info", "pragma_show"):
        return _columns_of(ctx, low, argument)
    rows_of = _ROWS.get(low)
    listed = list(_listed(ctx)) if rows_of is not None else []
    if rows_of is None or not listed:
        return None
    database = ctx.duck.database
    own = (", ".join(row) for relation in listed for row in rows_of(relation, database))
    rows = ", ".join(f"({row})" for row in own)
    if not rows:
        return None
    source = _SOURCES.get(low, low)
    return (
        f"SELECT * FROM {source} UNION ALL BY NAME SELECT * FROM (VALUES {rows}) "
        f"AS v({', '.join(_NAMES[low])})"
    )


def statement(ctx: Context, structure: Structure) -> str | None:
    """The query of SHOW ALL TABLES, DESCRIBE, PRAGMA table_info and show_tables.

    Returns:
        None for other statements, and if the query lists nothing of einsql.
    """
    words = [structure.word(n) for n in range(len(structure.tokens))]
    query: str | None = None
    if words in (["SHOW", "ALL", "TABLES"], ["DESCRIBE"], ["DESC"], ["SHOW"]):
        query = system_table(ctx, "show_all", "")
    elif words[:1] == ["PRAGMA"] and len(words) > 1:
        pragma = structure.tokens[1].text.lower()
        if pragma in ("show_tables", "show_tables_expanded"):
            query = system_table(ctx, "show_all", "")
            if query is not None and pragma == "show_tables":
                query = f"SELECT name FROM ({query}) ORDER BY name"
        elif len(words) > 3:
            query = system_table(ctx, f"pragma_{pragma}", structure.tokens[3].text)
    return query


def _listed(ctx: Context) -> Iterator[Listed]:
    for stored in ctx.store.objects.values():
        if isinstance(stored, Tensor):
            schema = stored.relation.schema
            keys = {k.name for k in schema.keys}
            columns = tuple(
                (c, "BIGINT" if c in keys else schema.dtype(c).value, c in keys)
                for c in stored.columns
            )
            temporary = stored.temporary or stored.borrowed
            yield Listed(stored.name, False, temporary, columns, schema.size)
        elif isinstance(stored, Definition) and stored.name == bare_name(stored):
            columns = _columns_of_view(ctx, stored.name)
            yield Listed(stored.name, True, stored.temporary, columns, 0)


def _columns_of_view(ctx: Context, name: str) -> tuple[tuple[str, str, bool], ...]:
    """The columns of a view; none if einsql cannot bind it."""
    try:
        relation = query_binder(ctx).named(name, exp.to_identifier(name))
    except Error:
        return ()
    if not isinstance(relation, Relation):
        return ()
    return tuple((c.name, c.dtype.value, False) for c in relation.columns)


def _columns_of(ctx: Context, function: str, argument: str) -> str | None:
    """The query of `pragma_table_info` or `pragma_show` of a tensor or a view."""
    relation = next((i for i in _listed(ctx) if i.name.lower() == argument.lower()), None)
    if relation is None or not relation.columns:
        return None
    rows = []
    for number, (name, dtype, is_key) in enumerate(relation.columns):
        shown = f"{literal(name)}, {literal(dtype)}"
        if function == "pragma_table_info":
            rows.append(f"({number}, {shown}, {not relation.is_view}, NULL::VARCHAR, {is_key})")
        else:
            null, key = "YES" if relation.is_view else "NO", "'PRI'" if is_key else "NULL::VARCHAR"
            rows.append(f"({shown}, '{null}', {key}, NULL::VARCHAR, NULL::VARCHAR)")
    return f"SELECT * FROM (VALUES {', '.join(rows)}) AS v({', '.join(_NAMES[function])})"


def _place(relation: Listed, database: str) -> tuple[str, str, str]:
    return literal("temp" if relation.temporary else database), "'main'", literal(relation.name)


def _information_tables(relation: Listed, database: str) -> Iterator[tuple[str, ...]]:
    kind = "VIEW" if relation.is_view else "LOCAL TEMPORARY" if relation.temporary else "BASE TABLE"
    yield (
        *_place(relation, database),
        literal(kind),
        "'NO'" if relation.is_view else "'YES'",
        "'NO'",
    )


def _information_columns(relation: Listed, database: str) -> Iterator[tuple[str, ...]]:
    for number, (name, dtype, _) in enumerate(relation.columns):
        null = "'YES'" if relation.is_view else "'NO'"
        yield *_place(relation, database), literal(name), str(number + 1), null, literal(dtype)


def _duckdb_tables(relation: Listed, database: str) -> Iterator[tuple[str, ...]]:
    if not relation.is_view:
        sizes = (str(relation.rows), str(len(relation.columns)), "0", "0")
        flags = ("false", str(relation.temporary), "true")
        yield *_place(relation, database), *flags, *sizes


def _duckdb_columns(relation: Listed, database: str) -> Iterator[tuple[str, ...]]:
    for number, (name, dtype, _) in enumerate(relation.columns):
        where = (literal(name), str(number + 1))
        yield *_place(relation, database), *where, "false", str(relation.is_view), literal(dtype)


def _duckdb_views(relation: Listed, database: str) -> Iterator[tuple[str, ...]]:
    if relation.is_view:
        yield (
            *_place(relation, database),
            "false",
            str(relation.temporary),
            str(len(relation.columns)),
        )


def _shown(relation: Listed, database: str) -> Iterator[tuple[str, ...]]:
    names = ", ".join(literal(name) for name, _, _ in relation.columns)
    types = ", ".join(literal(dtype) for _, dtype, _ in relation.columns)
    lists = (f"[{names}]::VARCHAR[]", f"[{types}]::VARCHAR[]")
    yield *_place(relation, database), *lists, str(relation.temporary)


_ROWS: dict[str, Callable[[Listed, str], Iterator[tuple[str, ...]]]] = {
    "information_schema.tables": _information_tables,
    "information_schema.columns": _information_columns,
    "duckdb_tables": _duckdb_tables,
    "duckdb_columns": _duckdb_columns,
    "duckdb_views": _duckdb_views,
    "show_all": _shown,
}
_SOURCES = {
    "duckdb_tables": "duckdb_tables()",
    "duckdb_columns": "duckdb_columns()",
    "duckdb_views": "duckdb_views()",
    "show_all": "(SHOW ALL TABLES)",
}
_PLACE = ("table_catalog", "table_schema", "table_name")
_DUCKDB_PLACE = ("database_name", "schema_name", "table_name")
_NAMES: dict[str, tuple[str, ...]] = {
    "information_schema.tables": (*_PLACE, "table_type", "is_insertable_into", "is_typed"),
    "information_schema.columns": (
        *(*_PLACE, "column_name", "ordinal_position", "is_nullable", "data_type"),
    ),
    "duckdb_tables": (
        *(*_DUCKDB_PLACE, "internal", "temporary", "has_primary_key", "estimated_size"),
        *("column_count", "index_count", "check_constraint_count"),
    ),
    "duckdb_columns": (
        *(*_DUCKDB_PLACE, "column_name", "column_index", "internal", "is_nullable", "data_type"),
    ),
    "duckdb_views": (
        *("database_name", "schema_name", "view_name", "internal", "temporary", "column_count"),
    ),
    "show_all": ('"database"', '"schema"', "name", "column_names", "column_types", "temporary"),
    "pragma_table_info": ("cid", "name", "type", '"notnull"', "dflt_value", "pk"),
    "pragma_show": ("column_name", "column_type", '"null"', '"key"', '"default"', "extra"),
}
"""The columns of the rows of tensors, by the system table; others are NULL."""
