"""Reflection: tables, keys and indexes from DuckDB; tensors and views from einsql."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import reflection
from sqlalchemy.engine.interfaces import Dialect

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

MAIN = "main"
"""The schema of tensors, and of tables without another."""

_HERE = "(database_name = current_database() OR database_name = 'temp' AND ?)"
"""Temporary tables are seen where no schema is named."""


def session(connection: Any) -> Connection:
    """The einsql connection beneath SQLAlchemy's."""
    con = connection.connection.dbapi_connection
    assert isinstance(con, Connection)
    return con


def rows(connection: Any, sql: str, given: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """The rows of a query on DuckDB's catalog."""
    return session(connection).duck.execute(sql, given)


def is_ours(schema: str | None) -> bool:
    """True if a schema is the one of tensors and views."""
    return schema is None or schema == MAIN


def tensor(connection: Any, name: str, schema: str | None) -> Tensor | None:
    """The tensor of a name."""
    stored = _object(connection, name, schema)
    return stored if isinstance(stored, Tensor) else None


def view(connection: Any, name: str, schema: str | None) -> Definition | None:
    """The view of a name that einsql keeps."""
    stored = _object(connection, name, schema)
    return stored if isinstance(stored, Definition) and stored.kind == "view" else None


def _object(connection: Any, name: str, schema: str | None) -> Object | None:
    if not is_ours(schema):
        return None
    con = session(connection)
    con.store.refresh()
    return con.store.get(name)


def objects(connection: Any, schema: str | None) -> list[Object]:
    """All tensors and views, damaged ones as well."""
    if not is_ours(schema):
        return []
    con = session(connection)
    con.store.refresh()
    stored = con.store.objects.values()
    return [o for o in stored if o.name == bare_name(o)]


class Reflection(Dialect):
    """The part of a dialect that looks at a database."""

    def _place(self, schema: str | None) -> list[object]:
        """The parameters of `schema_name = ? AND` and of `_HERE`."""
        return [schema or MAIN, schema is None]

    # ---- names

    @reflection.cache
    def has_table(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        """True if there is a table, a tensor or a view of the name."""
        if _object(connection, table_name, schema) is not None:
            return True
        return bool(
            rows(
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
            NoSuchTableError: There is no such table.
        """
        self._must_be_there(connection, table_name, schema)
        return {}

    @reflection.cache
    def has_schema(self, connection: Any, schema_name: str, **kw: Any) -> bool:
        """True if there is a schema of the name."""
        return schema_name in self.get_schema_names(connection)

    @reflection.cache
    def has_sequence(
        self, connection: Any, sequence_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        """True if there is a sequence of the name."""
        return sequence_name in self.get_sequence_names(connection, schema)

    @reflection.cache
    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        """The schemas of the database; einsql's own catalog is not shown."""
        schemas = rows(
            connection,
            "SELECT schema_name FROM duckdb_schemas() WHERE database_name = current_database() "
            "AND schema_name NOT IN ('__einsql', 'information_schema', 'pg_catalog') ORDER BY 1",
        )
        return [str(r[0]) for r in schemas]

    @reflection.cache
    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """Tables and tensors."""
        tables = rows(
            connection,
            "SELECT table_name FROM duckdb_tables() WHERE schema_name = ? "
            "AND database_name = current_database() AND NOT temporary",
            [schema or MAIN],
        )
        ours = objects(connection, schema)
        tensors = [o.name for o in ours if kind_of(o) != "view" and not o.temporary]
        return sorted([*(str(r[0]) for r in tables), *tensors])

    @reflection.cache
    def get_temp_table_names(
        self, connection: Any, schema: str | None = None, **kw: Any
    ) -> list[str]:
        """Temporary tables and tensors."""
        tables = rows(connection, "SELECT table_name FROM duckdb_tables() WHERE temporary")
        ours = objects(connection, schema)
        tensors = [o.name for o in ours if isinstance(o, Tensor) and o.temporary]
        return sorted([*(str(r[0]) for r in tables), *tensors])

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
        duckdb_views = rows(
            connection,
            "SELECT view_name FROM duckdb_views() WHERE schema_name = ? AND NOT internal "
            "AND temporary = ?",
            [schema or MAIN, temporary],
        )
        ours = objects(connection, schema)
        views = [o for o in ours if kind_of(o) == "view" and o.temporary == temporary]
        return sorted([*(str(r[0]) for r in duckdb_views), *(v.name for v in views)])

    @reflection.cache
    def get_sequence_names(
        self, connection: Any, schema: str | None = None, **kw: Any
    ) -> list[str]:
        """Sequences but temporary ones; those that number rows are among them."""
        sequences = rows(
            connection,
            "SELECT sequence_name FROM duckdb_sequences() WHERE schema_name = ? "
            "AND database_name = current_database()",
            [schema or MAIN],
        )
        return sorted(str(r[0]) for r in sequences)

    @reflection.cache
    def get_view_definition(
        self, connection: Any, view_name: str, schema: str | None = None, **kw: Any
    ) -> str:
        """The statement that made a view."""
        ours = view(connection, view_name, schema)
        if ours is not None:
            return ours.text
        definitions = rows(
            connection,
            f"SELECT sql FROM duckdb_views() WHERE schema_name = ? AND {_HERE} "
            "AND lower(view_name) = lower(?) AND NOT internal",
            [*self._place(schema), view_name],
        )
        if not definitions:
            raise exc.NoSuchTableError(view_name)
        return str(definitions[0][0])

    # ---- columns

    @reflection.cache
    def get_columns(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> list[Any]:
        """Columns in their order; of a tensor the keys, then the values.

        Raises:
            NoSuchTableError: There is no such table, tensor or view.
            UnreflectableTableError: It is damaged, or what a view reads is gone.
        """
        stored = _object(connection, table_name, schema)
        if isinstance(stored, Tensor):
            return _tensor_columns(stored)
        if isinstance(stored, Definition):
            return _view_columns(session(connection), stored)
        if isinstance(stored, Damaged):
            raise exc.UnreflectableTableError(damage_error(stored).reason)
        columns = rows(
            connection,
            "SELECT column_name, data_type, is_nullable, column_default, c.comment, sql "
            "FROM duckdb_columns() c LEFT JOIN duckdb_tables() t USING (database_name, "
            f"schema_name, table_name) WHERE schema_name = ? AND {_HERE} "
            "AND lower(table_name) = lower(?) ORDER BY database_name <> 'temp', column_index",
            [*self._place(schema), table_name],
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
        stored = tensor(connection, table_name, schema)
        if stored is not None:
            keys = [k.name for k in stored.relation.schema.keys]
            return {"constrained_columns": keys, "name": None}
        for columns, *_ in self._constraints(connection, table_name, schema, "PRIMARY KEY"):
            return {"constrained_columns": columns, "name": None}
        return {"constrained_columns": [], "name": None}

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
        """Conditions that rows meet."""
        constraints = self._constraints(connection, table_name, schema, "CHECK")
        return [{"name": None, "sqltext": text} for _, text, *_ in constraints]

    def _constraints(
        self, connection: Any, table: str, schema: str | None, kind: str
    ) -> list[tuple[Any, ...]]:
        """Constraints of a kind without names, for DuckDB does not keep those it is given."""
        constraints = rows(
            connection,
            "SELECT constraint_column_names, expression, referenced_table, "
            f"referenced_column_names FROM duckdb_constraints() WHERE schema_name = ? AND {_HERE} "
            "AND lower(table_name) = lower(?) AND constraint_type = ? ORDER BY constraint_index",
            [*self._place(schema), table, kind],
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
        """Indexes that statements have made."""
        indexes = rows(
            connection,
            "SELECT index_name, is_unique, expressions::VARCHAR[] FROM duckdb_indexes() "
            f"WHERE schema_name = ? AND {_HERE} AND lower(table_name) = lower(?) ORDER BY 1",
            [*self._place(schema), table_name],
        )
        if not indexes:
            self._must_be_there(connection, table_name, schema)
        return [_index(*row) for row in indexes]

    @reflection.cache
    def get_table_comment(
        self, connection: Any, table_name: str, schema: str | None = None, **kw: Any
    ) -> Any:
        """The comment on a table."""
        comments = rows(
            connection,
            f"SELECT comment FROM duckdb_tables() WHERE schema_name = ? AND {_HERE} "
            "AND lower(table_name) = lower(?)",
            [*self._place(schema), table_name],
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
    quoted = '"' + name.replace('"', '""') + '"'
    starts = [f"{before}{n} {kind}" for before in "( " for n in (name, quoted)]
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
    quoted = '"' + stored.name.replace('"', '""') + '"'
    try:
        columns = con.execute(f"DESCRIBE {quoted}").fetchall()
    except Error as error:  # what it reads is gone
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
