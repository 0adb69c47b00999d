"""Reflection: tables, keys and indexes from DuckDB; tensors and views from einsql."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import reflection
from sqlalchemy.engine.interfaces import Dialect

from einsql.core.quoting import in_quotes
from einsql.errors import Error
from einsql.frontends.sqlalchemy.types import DIM, named_type
from einsql.session.connection import Connection
from einsql.storage.objects import (
    Damaged,
    Definition,
    Object,
    Tensor,
    bare_name,
    damage_error,
    kind_of,
)
from einsql.storage.session_store import Store

MAIN = "main"
"""The schema of tensors, and of tables without another."""

_HERE = "(database_name = current_database() OR database_name = 'temp' AND ?)"
"""The condition on the database; without a schema it includes temporary tables."""

_OWNER = """database_name = (
    SELECT CASE WHEN ? AND COUNT(*) > 0 THEN 'temp' ELSE current_database() END FROM (
        SELECT database_name AS d, table_name AS n FROM duckdb_tables()
        UNION ALL SELECT database_name, view_name FROM duckdb_views())
    WHERE d = 'temp' AND lower(n) = lower(?))"""
"""The condition on the database of one table: a temporary one hides others of its name."""


def _session(connection: Any) -> Connection:
    con = connection.connection.dbapi_connection
    assert isinstance(con, Connection)
    return con


def _rows(connection: Any, sql: str, given: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    return _session(connection).duck.execute(sql, given)


def _names(connection: Any, sql: str, given: Sequence[object] = ()) -> list[str]:
    return [str(name) for (name,) in _rows(connection, sql, given)]


def _store(connection: Any, schema: str | None) -> Store | None:
    """The tensors and views of a schema; None for a schema without any."""
    if schema not in (None, MAIN):
        return None
    store = _session(connection).store
    store.refresh()
    return store


def _object(connection: Any, name: str, schema: str | None) -> Object | None:
    store = _store(connection, schema)
    return None if store is None else store.get(name)


def _objects(connection: Any, schema: str | None) -> list[Object]:
    store = _store(connection, schema)
    stored = () if store is None else store.objects.values()
    return [o for o in stored if o.name == bare_name(o)]


class Reflection(Dialect):
    """The part of a dialect that reads the schema of a database."""

    def _place(self, schema: str | None) -> list[object]:
        """The parameters of `schema_name = ? AND` and of `_HERE`."""
        return [schema or MAIN, schema is None]

    def _place_of(self, schema: str | None, table: str) -> list[object]:
        """The parameters of `schema_name = ? AND` and of `_OWNER`."""
        return [*self._place(schema), table]

    # ---- names

    @reflection.cache
    def has_table(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        """True if a table, tensor or view with the name exists."""
        if _object(connection, table_name, schema) is not None:
            return True
        return bool(
            _rows(
                connection,
                "SELECT 1 FROM (SELECT database_name, schema_name, table_name FROM duckdb_tables()"
                " UNION ALL SELECT database_name, schema_name, view_name FROM duckdb_views()) "
                f"WHERE schema_name = ? AND {_HERE} AND lower(table_name) = lower(?)",
                [*self._place(schema), table_name],
            )
        )

    @reflection.cache
    def get_table_options(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> dict[str, Any]:
        """Nothing: tables have no options.

        Raises:
            NoSuchTableError: The table does not exist.
        """
        self._must_be_there(connection, table_name, schema)
        return {}

    @reflection.cache
    def has_schema(self, connection: Any, schema_name: str, **kw: Any) -> bool:
        """True if a schema with the name exists."""
        return schema_name in self.get_schema_names(connection)

    @reflection.cache
    def has_sequence(
        self, connection: Any, sequence_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        """True if a sequence with the name exists."""
        return sequence_name in self.get_sequence_names(connection, schema)

    @reflection.cache
    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        """The schemas of the database; einsql's own catalog is not shown."""
        return _names(
            connection,
            "SELECT schema_name FROM duckdb_schemas() WHERE database_name = current_database() "
            "AND schema_name NOT IN ('__einsql', 'information_schema', 'pg_catalog') ORDER BY 1",
        )

    @reflection.cache
    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """Tables and tensors."""
        tables = _names(
            connection,
            "SELECT table_name FROM duckdb_tables() WHERE schema_name = ? "
            "AND database_name = current_database() AND NOT temporary",
            [schema or MAIN],
        )
        ours = _objects(connection, schema)
        tensors = [o.name for o in ours if kind_of(o) != "view" and not o.temporary]
        return sorted([*tables, *tensors])

    @reflection.cache
    def get_temp_table_names(
        self, connection: Any, schema: str | None = None, **kw: Any
    ) -> list[str]:
        """Temporary tables and tensors."""
        tables = _names(connection, "SELECT table_name FROM duckdb_tables() WHERE temporary")
        ours = _objects(connection, schema)
        tensors = [o.name for o in ours if isinstance(o, Tensor) and o.temporary]
        return sorted([*tables, *tensors])

    @reflection.cache
    def get_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """Views."""
        return self._views(connection, schema, temporary=False)

    @reflection.cache
    def get_temp_view_names(
        self, connection: Any, schema: str | None = None, **kw: Any
    ) -> list[str]:
        """Temporary views."""
        return self._views(connection, schema, temporary=True)

    def _views(self, connection: Any, schema: str | None, temporary: bool) -> list[str]:
        duckdb_views = _names(
            connection,
            "SELECT view_name FROM duckdb_views() WHERE schema_name = ? AND NOT internal "
            "AND temporary = ?",
            [schema or MAIN, temporary],
        )
        ours = _objects(connection, schema)
        views = [o for o in ours if kind_of(o) == "view" and o.temporary == temporary]
        return sorted([*duckdb_views, *(v.name for v in views)])

    @reflection.cache
    def get_sequence_names(
        self, connection: Any, schema: str | None = None, **kw: Any
    ) -> list[str]:
        """Returns the sequences except temporary ones, with the sequences that number rows."""
        sequences = _names(
            connection,
            "SELECT sequence_name FROM duckdb_sequences() WHERE schema_name = ? "
            "AND database_name = current_database()",
            [schema or MAIN],
        )
        return sorted(sequences)

    @reflection.cache
    def get_view_definition(
        self, connection: Any, view_name: str, schema: str | None = None, **kw: Any
    ) -> str:
        """The statement that created a view."""
        ours = _object(connection, view_name, schema)
        if isinstance(ours, Definition) and ours.kind == "view":
            return ours.text
        definitions = _names(
            connection,
            f"SELECT sql FROM duckdb_views() WHERE schema_name = ? AND {_OWNER} "
            "AND lower(view_name) = lower(?) AND NOT internal",
            [*self._place_of(schema, view_name), view_name],
        )
        if not definitions:
            raise exc.NoSuchTableError(view_name)
        return definitions[0]

    # ---- columns

    @reflection.cache
    def get_columns(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Columns in their order; of a tensor the keys, then the values.

        Raises:
            NoSuchTableError: There is no such table, tensor or view.
            UnreflectableTableError: The object is damaged, or a view reads a dropped object.
        """
        stored = _object(connection, table_name, schema)
        if isinstance(stored, Tensor):
            return _tensor_columns(stored)
        if isinstance(stored, Definition):
            return _view_columns(_session(connection), stored)
        if isinstance(stored, Damaged):
            raise exc.UnreflectableTableError(damage_error(stored).reason)
        columns = _rows(
            connection,
            "SELECT column_name, data_type, is_nullable, column_default, c.comment, sql "
            "FROM duckdb_columns() c LEFT JOIN duckdb_tables() t USING (database_name, "
            f"schema_name, table_name) WHERE schema_name = ? AND {_OWNER} "
            "AND lower(table_name) = lower(?) ORDER BY database_name <> 'temp', column_index",
            [*self._place_of(schema, table_name), table_name],
        )
        if not columns:
            raise exc.NoSuchTableError(table_name)
        return [
            {
                **_column(name, kind),
                "nullable": nullable,
                "comment": comment,
                **_default(name, kind, default, sql),
            }
            for name, kind, nullable, default, comment, sql in columns
        ]

    # ---- constraints

    @reflection.cache
    def get_pk_constraint(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        """The primary key; of a tensor its keys."""
        stored = _object(connection, table_name, schema)
        if isinstance(stored, Tensor):
            columns = [k.name for k in stored.relation.schema.keys]
        else:
            keys = self._constraints(connection, table_name, schema, "PRIMARY KEY")
            columns = keys[0][0] if keys else []
        return {"constrained_columns": columns, "name": None}

    @reflection.cache
    def get_foreign_keys(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Foreign keys, which stay within a schema."""
        constraints = self._constraints(connection, table_name, schema, "FOREIGN KEY")
        return [
            {
                "name": None,
                "constrained_columns": columns,
                "referred_schema": schema,
                "referred_table": table,
                "referred_columns": referred,
                "options": {},
            }
            for columns, _, table, referred in constraints
        ]

    @reflection.cache
    def get_unique_constraints(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Columns that are unique together."""
        constraints = self._constraints(connection, table_name, schema, "UNIQUE")
        return [{"name": None, "column_names": columns} for columns, *_ in constraints]

    @reflection.cache
    def get_check_constraints(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Check constraints."""
        constraints = self._constraints(connection, table_name, schema, "CHECK")
        return [{"name": None, "sqltext": text} for _, text, *_ in constraints]

    def _constraints(
        self, connection: Any, table: str, schema: str | None, kind: str
    ) -> list[tuple[Any, ...]]:
        """Constraints of a kind without names, for DuckDB does not keep those it is given."""
        constraints = _rows(
            connection,
            "SELECT constraint_column_names, expression, referenced_table, "
            f"referenced_column_names FROM duckdb_constraints() WHERE schema_name = ? AND {_OWNER} "
            "AND lower(table_name) = lower(?) AND constraint_type = ? ORDER BY constraint_index",
            [*self._place_of(schema, table), table, kind],
        )
        if not constraints:
            self._must_be_there(connection, table, schema)
        return constraints

    def _must_be_there(self, connection: Any, table: str, schema: str | None) -> None:
        if not self.has_table(connection, table, schema):
            raise exc.NoSuchTableError(table)

    @reflection.cache
    def get_indexes(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Indexes that were created by statements."""
        indexes = _rows(
            connection,
            "SELECT index_name, is_unique, expressions::VARCHAR[] FROM duckdb_indexes() "
            f"WHERE schema_name = ? AND {_OWNER} AND lower(table_name) = lower(?) ORDER BY 1",
            [*self._place_of(schema, table_name), table_name],
        )
        if not indexes:
            self._must_be_there(connection, table_name, schema)
        return [_index(*row) for row in indexes]

    @reflection.cache
    def get_table_comment(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        """The comment on a table."""
        comments = _rows(
            connection,
            f"SELECT comment FROM duckdb_tables() WHERE schema_name = ? AND {_OWNER} "
            "AND lower(table_name) = lower(?)",
            [*self._place_of(schema, table_name), table_name],
        )
        if not comments:
            self._must_be_there(connection, table_name, schema)
        return {"text": comments[0][0] if comments else None}


def _column(name: str, kind: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": named_type(kind),
        "nullable": True,
        "default": None,
        "autoincrement": False,
        "comment": None,
    }


def _default(name: str, kind: str, default: str | None, sql: str | None) -> dict[str, Any]:
    """A column's default or generating expression; only the table's text distinguishes them."""
    starts = [f"{before}{n} {kind}" for before in "( " for n in (name, in_quotes(name))]
    if any(f"{start} GENERATED ALWAYS AS(" in (sql or "") for start in starts):
        text = str(default).removeprefix("CAST(").removesuffix(f" AS {kind})")
        return {"computed": {"sqltext": text}}
    return {"default": default, "autoincrement": str(default).startswith("nextval(")}


def _tensor_columns(stored: Tensor) -> list[Any]:
    schema = stored.relation.schema
    keys = {k.name: DIM(k.lo, k.hi) for k in schema.keys}
    return [
        {**_column(name, "BIGINT"), "type": keys[name], "nullable": False}
        if name in keys
        else _column(name, schema.dtype(name).value)
        for name in stored.columns
    ]


def _view_columns(con: Connection, stored: Definition) -> list[Any]:
    try:
        columns = con.execute(f"DESCRIBE {in_quotes(stored.name)}").fetchall()
    except Error as error:  # the view reads a dropped object
        raise exc.UnreflectableTableError(str(error)) from error
    return [_column(row[0], row[1]) for row in columns]


def _index(name: str, unique: bool, expressions: list[str]) -> dict[str, Any]:
    index: dict[str, Any] = {"name": name, "unique": unique, "dialect_options": {}}
    columns = [_plain(e) for e in expressions]
    index["column_names"] = columns
    if None in columns:
        index["expressions"] = [
            e if c is None else c for e, c in zip(expressions, columns, strict=True)
        ]
    return index


def _plain(expression: str) -> str | None:
    """The column that an index's expression is, or None."""
    if expression.startswith('"') and expression.endswith('"'):
        return expression[1:-1].replace('""', '"')
    return expression if expression.isidentifier() else None
